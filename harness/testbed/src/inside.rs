//! Reaching into a running cluster from outside: nodes' namespaces and files, registries.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use nix::sched::{CloneFlags, setns};
use podlab_clock::{Clock, Rng};
use podlab_cri::images::Store;

use crate::{
    cluster::{Cluster, ClusterError},
    node::agent::{CONTENT, CRI_ROOT},
    spec::address,
};

/// Pid in our namespace of a process that is `pid` in the pid namespace one below and a child of `parent`.
fn child_with_inner_pid(parent: i32, pid: i32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    let inner = |outer: &i32| {
        let status = fs::read_to_string(format!("/proc/{outer}/status")).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?;
        let pids: Vec<i32> = line.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        let own = pids.iter().position(|p| p == outer)?;
        pids.get(own + 1).copied()
    };
    children.split_whitespace().filter_map(|w| w.parse().ok()).find(|outer| inner(outer) == Some(pid))
}

/// A node's files and links, as this process can reach them.
#[derive(Debug, Clone)]
pub struct NodeInside {
    pid: i32,
    name: String,
}

impl NodeInside {
    /// A path of the node as a path of this process.
    pub fn path(&self, inside: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.pid)).join(inside.trim_start_matches('/'))
    }

    /// Names of the node's network links.
    ///
    /// # Errors
    /// [`ClusterError::Control`] when the node went away.
    pub fn links(&self) -> Result<Vec<String>, ClusterError> {
        let netns = PathBuf::from(format!("/proc/{}/ns/net", self.pid));
        let list = podlab_cni::netlink::Netlink::open_in(&netns).and_then(|n| n.links());
        let fail = |e| ClusterError::Control { name: self.name.clone(), source: io::Error::other(e) };
        Ok(list.map_err(fail)?.into_iter().map(|l| l.name).collect())
    }
}

impl Cluster {
    /// Exit codes that a node's init has recorded and no bridge has fetched yet, by container id. The record outlives
    /// the node, so it can be read while the node is down.
    pub fn recorded_exits(&self, node: &str) -> BTreeMap<String, i32> {
        let record = self.state().join("nodes").join(node).join("run/init/exits");
        let text = fs::read_to_string(record).unwrap_or_default();
        let exit = |line| {
            let exit = podlab_cri::init::Exit::parse(line)?;
            Some((exit.key.strip_prefix("c/")?.to_owned(), exit.code))
        };
        text.lines().filter_map(exit).collect()
    }

    /// Reaches into a node.
    ///
    /// # Errors
    /// [`ClusterError::Control`] when it is down.
    pub fn inside(&self, node: &str) -> Result<NodeInside, ClusterError> {
        Ok(NodeInside { pid: self.pid_of(node)?, name: self.spec().name.clone() })
    }

    /// Pid, as seen from here, of a node's init or of the plane (`plane`).
    ///
    /// # Errors
    /// [`ClusterError::Control`] when it is down or the cluster does not answer.
    pub fn pid_of(&self, part: &str) -> Result<i32, ClusterError> {
        let fail =
            |text: String| ClusterError::Control { name: self.spec().name.clone(), source: io::Error::other(text) };
        let status = self.control("status")?;
        let pair = status.split_whitespace().filter_map(|w| w.split_once('=')).find(|(n, _)| *n == part);
        let inner: i32 = pair.and_then(|(_, p)| p.parse().ok()).ok_or_else(|| fail(format!("there is no {part:?}")))?;
        let capsule = self.state().pid().ok_or_else(|| fail("its first process is gone".into()))?;
        let found = (inner > 0).then(|| child_with_inner_pid(capsule, inner)).flatten();
        found.ok_or_else(|| fail(format!("{part} is down")))
    }

    /// Moves this process into a node's namespaces; children are then inside its pid namespace as well. The process must
    /// have a single thread.
    ///
    /// # Errors
    /// [`ClusterError::Control`].
    pub fn enter_node(&self, node: &str) -> Result<(), ClusterError> {
        let pid = self.pid_of(node)?;
        let fail = |source| ClusterError::Control { name: self.spec().name.clone(), source };
        let all = [
            ("cgroup", CloneFlags::CLONE_NEWCGROUP),
            ("ipc", CloneFlags::CLONE_NEWIPC),
            ("uts", CloneFlags::CLONE_NEWUTS),
            ("net", CloneFlags::CLONE_NEWNET),
            ("pid", CloneFlags::CLONE_NEWPID),
            ("mnt", CloneFlags::CLONE_NEWNS),
        ];
        // All are opened first: after entering the mount namespace /proc is another one.
        let open = |(name, flag): (&str, CloneFlags)| File::open(format!("/proc/{pid}/ns/{name}")).map(|f| (f, flag));
        let files = all.into_iter().map(open).collect::<io::Result<Vec<_>>>().map_err(fail)?;
        let groups = crate::cgroup::dirs(&format!("{}/{node}", self.state().cgroup())).map_err(fail)?;
        // On a v2 host a group with children takes no processes; then the command stays where its caller is.
        let _ = crate::cgroup::enter(&groups);
        for (file, flag) in files {
            setns(file, flag).map_err(|e| fail(e.into()))?;
        }
        Ok(())
    }

    /// Puts image archives on all nodes under their names; returns the names.
    ///
    /// # Errors
    /// [`ClusterError::Image`].
    pub fn load_images(&self, archives: &[PathBuf]) -> Result<Vec<String>, ClusterError> {
        let mut names = Vec::new();
        if archives.is_empty() {
            return Ok(names);
        }
        for node in self.spec().node_names() {
            let node = self.inside(&node)?;
            for archive in archives {
                let fail =
                    |e: &dyn std::error::Error| ClusterError::Image { archive: archive.clone(), why: chain_of(e) };
                let store = Store::open(
                    &node.path(CRI_ROOT).join("images"),
                    &node.path(CONTENT),
                    true,
                    Clock::real(),
                    Rng::from_entropy(),
                );
                let loaded = store.map_err(|e| fail(&e))?.import(archive).map_err(|e| fail(&e))?;
                names.extend(loaded.into_iter().filter(|n| !names.contains(n)).collect::<Vec<_>>());
            }
        }
        Ok(names)
    }

    /// Puts an archive's image into one of the cluster's registries under `reference`.
    ///
    /// # Errors
    /// [`ClusterError::Image`] when the archive or the reference is not usable, or the registry refuses.
    pub fn push_image(&self, archive: &Path, reference: &str) -> Result<(), ClusterError> {
        let fail = |why: String| ClusterError::Image { archive: archive.to_owned(), why };
        let (host, rest) = reference.split_once('/').ok_or_else(|| fail(format!("{reference:?} names no registry")))?;
        let (repository, tag) = rest.rsplit_once(':').unwrap_or((rest, "latest"));
        let credentials = Some((self.spec().registry_user.as_str(), self.spec().registry_password.as_str()));
        let (ip, credentials) = match host {
            "registry.test" => (address::REGISTRY, None),
            "private.registry.test" => (address::PRIVATE_REGISTRY, credentials),
            _ => {
                return Err(fail(format!(
                    "{host} is not a registry of this cluster; there are registry.test and private.registry.test"
                )));
            }
        };
        let netns = PathBuf::from(format!("/proc/{}/ns/net", self.pid_of("plane")?));
        let push =
            || podlab_registry::archive::push_http(SocketAddr::from((ip, 80)), credentials, archive, repository, tag);
        let pushed = podlab_cni::netlink::in_netns(&netns, push).map_err(|e| fail(chain_of(&e)))?;
        pushed.map_err(|e| fail(chain_of(&e)))
    }
}

fn chain_of(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |e| e.source())
        .fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
