//! A cluster as its user holds it: boot, wait for it, act on its parts, end it.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use podlab_api::{ApiError, core::Node};
use podlab_client::{Client, ListOptions, WatchOptions, http::HttpApi, kubeconfig};
use podlab_clock::Clock;
use podlab_cri::init::{AgentCommand, InitClient};

use crate::{
    capsule::control::Control,
    process,
    spec::ClusterSpec,
    state::{self, StateDir, StateError},
    zygote::{MAX_PUBLISHED, Zygote},
};

/// Why something could not be done with a cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Its state.
    #[error(transparent)]
    State(#[from] StateError),
    /// Its boot.
    #[error("boot cluster {name:?}: {why}")]
    Boot {
        /// Which cluster.
        name: String,
        /// Why, in the words of the process that tried.
        why: String,
    },
    /// A port of the host's loopback could not be had.
    #[error("listen on 127.0.0.1:{port}")]
    Listen {
        /// Which.
        port: u16,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Too many published ports.
    #[error("at most {MAX_PUBLISHED} ports can be published")]
    TooManyPorts,
    /// Its control socket.
    #[error("ask cluster {name:?}")]
    Control {
        /// Which cluster.
        name: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A node's init.
    #[error("ask {node}")]
    Node {
        /// Which node.
        node: String,
        /// Why.
        #[source]
        source: podlab_cri::init::InitError,
    },
    /// The API.
    #[error("API of cluster {name:?}")]
    Api {
        /// Which cluster.
        name: String,
        /// Why.
        #[source]
        source: ApiError,
    },
    /// Its kubeconfig.
    #[error("kubeconfig of the cluster")]
    Kubeconfig(#[from] kubeconfig::KubeconfigError),
    /// The client could not be set up.
    #[error("client of the cluster")]
    Access(#[from] podlab_client::http::AccessError),
    /// An image archive.
    #[error("image archive {archive}: {why}")]
    Image {
        /// Which file.
        archive: PathBuf,
        /// Why.
        why: String,
    },
    /// A part of it ended while it was waited for.
    #[error("{part} of cluster {name:?} has ended: {why}")]
    Ended {
        /// Which cluster.
        name: String,
        /// Which part, as in `podlab logs`.
        part: String,
        /// The last line of its log.
        why: String,
    },
    /// Not ready in time.
    #[error("not Ready after {after:?}: {missing}; see `podlab logs plane --name {name}`")]
    NotReady {
        /// Which cluster.
        name: String,
        /// How long was waited.
        after: Duration,
        /// What is missing.
        missing: String,
    },
}

/// A cluster that has been booted.
#[derive(Debug)]
pub struct Cluster {
    state: StateDir,
    spec: ClusterSpec,
    /// Keeps a run's capsule alive; its end is the capsule's end.
    lifeline: Option<OwnedFd>,
}

/// What `podlab ps` shows of a cluster.
#[derive(Debug, Clone, serde::Serialize)]
pub struct ClusterInfo {
    /// Its name.
    pub name: String,
    /// Whether its first process lives.
    pub live: bool,
    /// Number of nodes.
    pub nodes: u8,
    /// Pids inside the capsule of plane and nodes; 0 for what is down.
    pub processes: BTreeMap<String, i32>,
    /// The kubeconfig in its state.
    pub kubeconfig: PathBuf,
}

impl Cluster {
    /// Boots a cluster. Returns once its first process exists; [`Cluster::wait_ready`] waits for the rest.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub fn boot(zygote: &Zygote, spec: ClusterSpec) -> Result<Self, ClusterError> {
        let state = StateDir::of(&spec.name)?;
        // First of all: what a living cluster of this name keeps there is not ours to replace.
        if state.is_live() {
            return Err(StateError::Live(spec.name).into());
        }
        state.create(&spec)?;
        if spec.publish.len() > MAX_PUBLISHED {
            return Err(ClusterError::TooManyPorts);
        }
        // A cluster kept by `down --keep` comes back on the port its kubeconfigs name, if that is still free.
        let wanted = fs::read_to_string(state.join("port")).ok().and_then(|p| p.trim().parse().ok()).unwrap_or(0);
        let listen =
            |port| TcpListener::bind(("127.0.0.1", port)).map_err(|source| ClusterError::Listen { port, source });
        let api = match spec.api_listen {
            Some(at) => TcpListener::bind(at).map_err(|source| ClusterError::Listen { port: at.port(), source })?,
            None => listen(wanted).or_else(|_| listen(0))?,
        };
        let port = api.local_addr().map_err(|source| ClusterError::Listen { port: wanted, source })?.port();
        fs::write(state.join("port"), port.to_string()).map_err(state::io_at(&state.join("port")))?;
        let published = spec.publish.iter().map(|p| listen(*p)).collect::<Result<Vec<_>, _>>()?;
        let boot_error = |why: String| ClusterError::Boot { name: spec.name.clone(), why };
        let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).map_err(|e| boot_error(e.to_string()))?;
        let line = spec.tied_to_runner.then_some(&read);
        zygote.boot(&spec, &api, &published, line).map_err(boot_error)?;
        let lifeline = spec.tied_to_runner.then_some(write);
        Ok(Self { state, spec, lifeline })
    }

    /// A handle on a cluster booted by another process.
    ///
    /// # Errors
    /// [`StateError::Unknown`] when none of that name lives.
    pub fn attach(name: &str) -> Result<Self, ClusterError> {
        let state = StateDir::of(name)?;
        if !state.is_live() {
            return Err(StateError::Unknown(name.to_owned()).into());
        }
        // Only the handle of who booted it ends a run's cluster; one that came to look leaves it as it is.
        let spec = ClusterSpec { tied_to_runner: false, ..state.spec()? };
        Ok(Self { state, spec, lifeline: None })
    }

    /// Its state directory.
    pub fn state(&self) -> &StateDir {
        &self.state
    }

    /// What it was booted with.
    pub fn spec(&self) -> &ClusterSpec {
        &self.spec
    }

    /// Path of the administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.state.join("kubeconfig")
    }

    /// A client with the administrator's rights. Needs a tokio runtime when used.
    ///
    /// # Errors
    /// [`ClusterError`] when the kubeconfig cannot be read.
    pub fn client(&self) -> Result<Client, ClusterError> {
        Ok(Client::new(Arc::new(HttpApi::new(&kubeconfig::load(&self.kubeconfig())?)?)))
    }

    /// Waits until every node is Ready and takes Pods. Safe to drop.
    ///
    /// # Errors
    /// [`ClusterError::NotReady`] after `within`, naming what is missing; [`ClusterError::Ended`] as soon as the capsule
    /// or a node has, with the last it said.
    pub async fn wait_ready(&self, clock: Clock, within: Duration) -> Result<(), ClusterError> {
        let client = self.client()?;
        let wanted = self.spec.node_names();
        let mut ready: BTreeMap<String, bool> = wanted.iter().map(|n| (n.clone(), false)).collect();
        let watch = async {
            loop {
                let seen = watch_nodes(&client, &mut ready).await;
                match seen {
                    // An API server that is still starting, or being started again, is not there yet: the deadline decides.
                    Err(e) if e.reason == podlab_api::Reason::ServiceUnavailable => clock.sleep(RETRY).await,
                    Ok(()) if !ready.values().all(|r| *r) => {}
                    other => return other,
                }
            }
        };
        let watch = async {
            tokio::select! {
                done = watch => Ok(done),
                ended = self.end_of_a_part(clock) => Err(ended),
            }
        };
        let outcome = match clock.timeout(within, watch).await {
            Some(Err(ended)) => return Err(ended),
            Some(Ok(done)) => Some(done),
            None => None,
        };
        match outcome {
            Some(Ok(())) if ready.values().all(|r| *r) => Ok(()),
            Some(Err(source)) => Err(ClusterError::Api { name: self.spec.name.clone(), source }),
            _ => {
                let missing: Vec<_> = ready.iter().filter(|(_, r)| !**r).map(|(n, _)| n.clone()).collect();
                let missing = missing.join(", ");
                Err(ClusterError::NotReady { name: self.spec.name.clone(), after: within, missing })
            }
        }
    }

    /// Waits until the capsule or a node has ended. The plane is left out: it is started again.
    async fn end_of_a_part(&self, clock: Clock) -> ClusterError {
        loop {
            clock.sleep(PART_CHECK).await;
            let node = || {
                let status = Control::connect(&self.state.control_socket()).ok()?.status().ok()?;
                status.into_iter().find(|(name, pid)| *pid == 0 && name != "plane").map(|(name, _)| name)
            };
            let part = if self.state.is_live() { node() } else { Some("capsule".to_owned()) };
            if let Some(part) = part {
                let log = fs::read_to_string(self.log_path(&part)).unwrap_or_default();
                let why = log.lines().next_back().unwrap_or("it said nothing").to_owned();
                return ClusterError::Ended { name: self.spec.name.clone(), part, why };
            }
        }
    }

    /// Waits until its first process has ended, which nobody tells: it is asked ten times a second.
    pub async fn ended(&self, clock: Clock) {
        while self.state.is_live() {
            clock.sleep(PART_CHECK).await;
        }
    }

    /// Acts on the agent of a node; returns when it is done. Containers live on.
    ///
    /// # Errors
    /// [`ClusterError::Node`].
    pub fn agent(&self, node: &str, command: AgentCommand) -> Result<(), ClusterError> {
        let ask = || InitClient::connect(&self.state.node_socket(node))?.agent(command);
        ask().map_err(|source| ClusterError::Node { node: node.to_owned(), source })
    }

    /// Sends a request to capsule init: `plane kill|stop|start`, `crash NODE`, `boot NODE`.
    ///
    /// # Errors
    /// [`ClusterError::Control`].
    pub fn control(&self, request: &str) -> Result<String, ClusterError> {
        let ask = || Control::connect(&self.state.control_socket())?.ask(request);
        ask().map_err(|source| ClusterError::Control { name: self.spec.name.clone(), source })
    }

    /// Ends the cluster and removes what is left; with `keep` the API's state stays for a later boot of that name.
    pub fn down(mut self, keep: bool) {
        self.end(keep);
        self.spec.tied_to_runner = false;
    }

    fn end(&mut self, keep: bool) {
        let pidfd = self.state.pid().and_then(|pid| process::pidfd_open(pid).ok());
        if keep {
            let _ = fs::write(self.state.join("kept"), "");
        }
        drop(self.lifeline.take());
        if let Ok(control) = Control::connect(&self.state.control_socket()) {
            let _ = control.down();
        }
        if let (Some(pidfd), true) = (pidfd, self.state.is_live())
            && !process::wait_gone(&pidfd, 5000)
            && let Some(pid) = self.state.pid()
        {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
            let _ = process::wait_gone(&pidfd, 5000);
        }
        self.state.sweep(keep);
    }

    /// What there is to show.
    pub fn info(state: &StateDir) -> ClusterInfo {
        let live = state.is_live();
        let status = || Control::connect(&state.control_socket()).and_then(|c| c.status());
        ClusterInfo {
            name: state.name().to_owned(),
            live,
            nodes: state.spec().map_or(0, |s| s.nodes),
            processes: if live { status().unwrap_or_default() } else { BTreeMap::new() },
            kubeconfig: state.join("kubeconfig"),
        }
    }

    /// Path of the log of a component: `capsule`, `plane` or a node.
    pub fn log_path(&self, component: &str) -> PathBuf {
        self.state.join("logs").join(format!("{component}.log"))
    }

    /// Path of the run log.
    pub fn run_log(&self) -> PathBuf {
        self.spec.run_log.clone().unwrap_or_else(|| self.state.join("run.jsonl"))
    }

    /// Lists the nodes.
    ///
    /// # Errors
    /// [`ClusterError::Api`].
    pub async fn nodes(&self) -> Result<Vec<Node>, ClusterError> {
        let list = self.client()?.all::<Node>().list(&ListOptions::default()).await;
        list.map(|(nodes, _)| nodes).map_err(|source| ClusterError::Api { name: self.spec.name.clone(), source })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A run's cluster goes with its handle; one of `up` lives on.
        if self.spec.tied_to_runner {
            self.end(false);
        }
    }
}

/// How often parts are looked at while waiting for them: the wait is for a rare failure, its cost is one packet.
const PART_CHECK: Duration = Duration::from_millis(100);

/// How soon an API server that is not there yet is asked again.
const RETRY: Duration = Duration::from_millis(20);

/// Follows the nodes until all of `ready` are, or the watch ends.
async fn watch_nodes(client: &Client, ready: &mut BTreeMap<String, bool>) -> Result<(), ApiError> {
    let mut stream = client.all::<Node>().watch(&WatchOptions::default()).await?.boxed();
    while !ready.values().all(|r| *r)
        && let Some(event) = stream.next().await
    {
        let node = event?.object;
        ready.insert(node.metadata.name.clone().unwrap_or_default(), takes_pods(&node));
    }
    Ok(())
}

/// Whether a node is Ready and nothing keeps Pods from it. One that is Ready still wears the taint
/// `node.kubernetes.io/not-ready` until the node lifecycle controller has heard of it: a run that begins there would begin
/// with a Pod that is refused and backs off.
pub fn takes_pods(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    // What a user's configuration registers stays: only what the controller is about to take away is waited for.
    let passing = |key: &str| matches!(key, "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable");
    is_ready(node) && !taints.is_some_and(|t| t.iter().any(|t| passing(&t.key)))
}

/// Whether a node's Ready condition is True.
fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

/// Writes a copy of a kubeconfig readable only by its owner.
///
/// # Errors
/// [`StateError::Io`].
pub fn copy_kubeconfig(from: &Path, to: &Path) -> Result<(), StateError> {
    let text = fs::read_to_string(from).map_err(state::io_at(from))?;
    crate::capsule::write_private(to, &text)
}

#[cfg(test)]
mod tests {
    use super::{Node, takes_pods};

    fn node(ready: &str, taint: &str) -> Node {
        let taints =
            if taint.is_empty() { vec![] } else { vec![serde_json::json!({"key": taint, "effect": "NoSchedule"})] };
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "n"},
            "spec": {"taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .expect("it is a node")
    }

    #[test]
    fn a_node_takes_pods_when_it_is_ready_and_the_controllers_have_heard_of_it() {
        assert!(takes_pods(&node("True", "")));
        assert!(!takes_pods(&node("True", "node.kubernetes.io/not-ready")));
        assert!(!takes_pods(&node("True", "node.kubernetes.io/unreachable")));
        assert!(!takes_pods(&node("False", "")));
        assert!(takes_pods(&node("True", "dedicated")), "a taint of the user's own is there to stay");
    }
}
