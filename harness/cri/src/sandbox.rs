//! Sandboxes: run, stop, remove, status, list.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::Path, sync::Arc};

use podlab_mutant::{self as mutant, Mutant};
use podlab_timeline::Outcome;

use crate::{
    error::Error,
    journal::Kind,
    launch::{self, IdMaps, IdRange, SandboxSpec, UserNamespace},
    network::{NetRequest, PortMapping},
    runtime::{Runtime, pod_key},
    state::{Sandbox, SandboxPhase, SandboxRecord, sandbox_dir},
    v1::{self, ContainerEventType, NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxState, Protocol},
};

type Result<T, E = Error> = std::result::Result<T, E>;

/// Size of a Pod's shared memory, containerd's default.
const SHM: &str = "mode=1777,size=65536k";

/// The namespaces a Pod asks for; what it does not mention is its own.
pub(crate) fn namespace_options(config: &PodSandboxConfig) -> NamespaceOption {
    config
        .linux
        .as_ref()
        .and_then(|l| l.security_context.as_ref())
        .and_then(|s| s.namespace_options.clone())
        .unwrap_or_default()
}

pub(crate) fn is_node(mode: i32) -> bool {
    mode == NamespaceMode::Node as i32
}

impl Runtime {
    /// Makes a sandbox and its network; on failure nothing is left.
    pub(crate) async fn run_pod_sandbox(self: &Arc<Self>, config: PodSandboxConfig, handler: String) -> Result<String> {
        let metadata =
            config.metadata.clone().ok_or_else(|| Error::Invalid("sandbox config must include metadata".into()))?;
        if !handler.is_empty() && !self.config.runtime_handlers.contains(&handler) {
            return Err(Error::State(format!(
                "unable to get OCI runtime for sandbox: no runtime for {handler:?} is configured"
            )));
        }
        id_maps(&namespace_options(&config), self.in_user_namespace)?;
        let id = self.new_id();
        let name = format!("{}_{}_{}_{}", metadata.name, metadata.namespace, metadata.uid, metadata.attempt);
        self.reserve("sandbox", &name, &id)?;
        let options = namespace_options(&config);
        let netns = (!is_node(options.network)).then(|| self.config.netns_dir.join(format!("cni-{}", self.rng.uuid())));
        let record = SandboxRecord {
            id: id.clone(),
            handler,
            created_at: self.now_ns(),
            netns,
            config,
            ..SandboxRecord::default()
        };
        let sandbox = Sandbox::new(record);
        let _op = sandbox.op.lock().await;
        let made = self.make_sandbox(&sandbox).await;
        if let Err(e) = made {
            self.undo_sandbox(&sandbox).await;
            return Err(e);
        }
        self.sandboxes.lock().insert(id.clone(), Arc::clone(&sandbox));
        self.emit(ContainerEventType::ContainerCreatedEvent, &id, &id);
        self.emit(ContainerEventType::ContainerStartedEvent, &id, &id);
        Ok(id)
    }

    async fn make_sandbox(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Result<()> {
        let s = Arc::clone(sandbox);
        self.blocking(move |this| {
            this.save_sandbox(&s)?;
            this.write_sandbox_files(&s)?;
            this.start_pause(&s)
        })
        .await?;
        if let Some(request) = self.net_request(sandbox) {
            sandbox.record.lock().attached = true;
            let key = pod_key(sandbox.record.lock().config.metadata.as_ref());
            let start = self.recorder.now();
            let added = self.network.add(&request).await;
            let outcome = added.as_ref().map_or_else(|e| Outcome::Error(e.to_string()), |_| Outcome::Ok);
            self.recorder.call(key.as_ref(), "network.add", &request.ifname, start, outcome);
            let result = added
                .map_err(|e| Error::State(format!("failed to setup network for sandbox {:?}: {e}", sandbox.id)))?;
            let mut record = sandbox.record.lock();
            record.ips = result.ips.iter().map(ToString::to_string).collect();
            record.network = result.raw;
        }
        sandbox.record.lock().phase = SandboxPhase::Ready;
        let s = Arc::clone(sandbox);
        self.blocking(move |this| this.save_sandbox(&s)).await
    }

    /// Hosts, resolv.conf and hostname files, and the shared memory, of a Pod.
    fn write_sandbox_files(&self, sandbox: &Sandbox) -> Result<()> {
        let dir = sandbox_dir(&self.config.run, &sandbox.id);
        let record = sandbox.record.lock();
        let options = namespace_options(&record.config);
        let write = || -> std::io::Result<()> {
            fs::create_dir_all(&dir)?;
            if let Some(netns) = &record.netns {
                // So that whoever finds the directory alone finds the namespace too.
                std::os::unix::fs::symlink(netns, dir.join("netns"))?;
            }
            let dns = record.config.dns_config.clone();
            match dns.filter(|d| !(d.servers.is_empty() && d.searches.is_empty() && d.options.is_empty())) {
                Some(dns) => fs::write(dir.join("resolv.conf"), resolv_conf(&dns))?,
                None => drop(
                    fs::copy("/etc/resolv.conf", dir.join("resolv.conf"))
                        .or_else(|_| fs::write(dir.join("resolv.conf"), "").map(|()| 0))?,
                ),
            }
            fs::set_permissions(dir.join("resolv.conf"), fs::Permissions::from_mode(0o644))?;
            fs::write(dir.join("hostname"), format!("{}\n", hostname(&record.config)))?;
            if !is_node(options.ipc) {
                let shm = dir.join("shm");
                fs::create_dir_all(&shm)?;
                crate::sys::mount::mount_fs(
                    "tmpfs",
                    "shm",
                    &shm,
                    libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC,
                    SHM,
                )?;
            }
            Ok(())
        };
        write().map_err(Error::io(format!("write the files of sandbox {}", sandbox.id)))
    }

    fn start_pause(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Result<()> {
        let (config, netns) = {
            let record = sandbox.record.lock();
            (record.config.clone(), record.netns.clone())
        };
        let options = namespace_options(&config);
        let linux = config.linux.clone().unwrap_or_default();
        let spec = SandboxSpec {
            pause: self.pause.clone(),
            hostname: netns.is_some().then(|| hostname(&config)),
            netns,
            new_ipc: !is_node(options.ipc),
            shared_pid: options.pid == NamespaceMode::Pod as i32,
            sysctls: linux.sysctls.into_iter().collect(),
            users: id_maps(&options, self.in_user_namespace)?,
        };
        launch::launch_sandbox(spec, |process| {
            sandbox.record.lock().process = Some(process);
            let failed = |e: Error| launch::LaunchError::Invalid(e.to_string());
            self.save_sandbox(sandbox).map_err(failed)?;
            self.init.register(process, &format!("s/{}", sandbox.id), &[]).map_err(|e| failed(e.into()))
        })?;
        Ok(())
    }

    /// The user namespace of a running sandbox, `None` for the node's.
    pub(crate) fn users_of(&self, record: &SandboxRecord) -> Result<Option<UserNamespace>> {
        let Some(maps) = id_maps(&namespace_options(&record.config), self.in_user_namespace)? else { return Ok(None) };
        let gone = || Error::State(format!("sandbox container {:?} is not running", record.id));
        let fd = record.process.ok_or_else(gone)?.namespace("user");
        let fd = fd.map_err(Error::io("open the sandbox's user namespace"))?;
        Ok(Some(UserNamespace { fd: Arc::new(fd), maps }))
    }

    /// What the network is told of a Pod; `None` on the node's network.
    pub(crate) fn net_request(&self, sandbox: &Sandbox) -> Option<NetRequest> {
        let record = sandbox.record.lock();
        let netns = record.netns.clone()?;
        let metadata = record.config.metadata.clone().unwrap_or_default();
        let dns = record.config.dns_config.clone().unwrap_or_default();
        let port_mappings = record.config.port_mappings.iter().filter_map(|p| {
            let (host, container) =
                (u16::try_from(p.host_port).ok().filter(|n| *n > 0)?, u16::try_from(p.container_port).ok()?);
            let protocol = match p.protocol() {
                Protocol::Tcp => "tcp",
                Protocol::Udp => "udp",
                Protocol::Sctp => "sctp",
            };
            Some(PortMapping { host_port: host, container_port: container, protocol, host_ip: p.host_ip.clone() })
        });
        Some(NetRequest {
            sandbox_id: record.id.clone(),
            netns,
            ifname: "eth0".into(),
            pod_namespace: metadata.namespace,
            pod_name: metadata.name,
            pod_uid: metadata.uid,
            annotations: record.config.annotations.clone(),
            port_mappings: port_mappings.collect(),
            dns: (dns.servers, dns.searches, dns.options),
            cgroup_parent: record.config.linux.as_ref().map(|l| l.cgroup_parent.clone()).unwrap_or_default(),
        })
    }

    /// Takes back what a bridge that died left half made.
    pub(crate) async fn undo_half_made(self: &Arc<Self>, sandbox: &Arc<Sandbox>) {
        // The network may or may not have been asked for.
        sandbox.record.lock().attached = true;
        self.undo_sandbox(sandbox).await;
    }

    /// Takes back what a failed `RunPodSandbox` did.
    async fn undo_sandbox(self: &Arc<Self>, sandbox: &Arc<Sandbox>) {
        if let Err(error) = self.tear_down(sandbox).await {
            // It stays as one that is not ready, so that whoever removes it tries again.
            tracing::warn!(sandbox = %sandbox.id, %error, "what a failed sandbox left behind could not be undone yet");
            sandbox.record.lock().phase = SandboxPhase::NotReady;
            let _ = self.save_sandbox(sandbox);
            self.release(&sandbox.id);
            self.sandboxes.lock().insert(sandbox.id.clone(), Arc::clone(sandbox));
            return;
        }
        self.forget_sandbox(sandbox);
    }

    fn forget_sandbox(self: &Arc<Self>, sandbox: &Arc<Sandbox>) {
        let dir = sandbox_dir(&self.config.run, &sandbox.id);
        let _ = self.journal.remove(Kind::Sandbox, &sandbox.id);
        self.release(&sandbox.id);
        self.background(move |_| remove_sandbox_dir(&dir));
    }

    /// Network, namespace, process: all that makes a sandbox run. May be repeated until it succeeds.
    async fn tear_down(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Result<()> {
        if sandbox.record.lock().attached
            && !mutant::is(Mutant::NetworkIsKept)
            && let Some(request) = self.net_request(sandbox)
        {
            let key = pod_key(sandbox.record.lock().config.metadata.as_ref());
            let start = self.recorder.now();
            let deleted = self.network.del(&request).await;
            let outcome = deleted.as_ref().map_or_else(|e| Outcome::Error(e.to_string()), |()| Outcome::Ok);
            self.recorder.call(key.as_ref(), "network.del", &request.ifname, start, outcome);
            deleted
                .map_err(|e| Error::State(format!("failed to destroy network for sandbox {:?}: {e}", sandbox.id)))?;
            sandbox.record.lock().attached = false;
        }
        let (process, netns) = {
            let record = sandbox.record.lock();
            (record.process, record.netns.clone())
        };
        if let Some(process) = process {
            process.signal(libc::SIGKILL).map_err(Error::io("end the sandbox's process"))?;
        }
        if let Some(netns) = netns {
            self.background(move |_| launch::remove_netns(&netns));
        }
        Ok(())
    }

    /// Stops a sandbox with all its containers. Absent and stopped are success.
    pub(crate) async fn stop_pod_sandbox(self: &Arc<Self>, id: &str) -> Result<()> {
        let Ok(sandbox) = self.sandbox(id) else { return Ok(()) };
        for container in self.containers_of(&sandbox.id) {
            self.stop_container(&container, 0).await?;
            // Its end has been told before the sandbox's is.
            drop(container.op.lock().await);
        }
        let _op = sandbox.op.lock().await;
        if sandbox.record.lock().stopped {
            return Ok(());
        }
        self.tear_down(&sandbox).await?;
        {
            let mut record = sandbox.record.lock();
            record.phase = SandboxPhase::NotReady;
            record.stopped = true;
        }
        self.save_sandbox(&sandbox)?;
        self.emit(ContainerEventType::ContainerStoppedEvent, &sandbox.id, &sandbox.id);
        Ok(())
    }

    /// Removes a sandbox, stopping it first if need be. Absent is success.
    pub(crate) async fn remove_pod_sandbox(self: &Arc<Self>, id: &str) -> Result<()> {
        let Ok(sandbox) = self.sandbox(id) else { return Ok(()) };
        self.stop_pod_sandbox(&sandbox.id).await?;
        for container in self.containers_of(&sandbox.id) {
            self.remove_container(&container.id).await?;
        }
        let _op = sandbox.op.lock().await;
        if self.sandboxes.lock().remove(&sandbox.id).is_none() {
            return Ok(());
        }
        self.forget_sandbox(&sandbox);
        self.emit(ContainerEventType::ContainerDeletedEvent, &sandbox.id, &sandbox.id);
        Ok(())
    }

    /// The pause process of a sandbox has ended by itself.
    pub(crate) async fn sandbox_exited(self: &Arc<Self>, id: &str) {
        let Ok(sandbox) = self.sandbox(id) else { return };
        // A stop under way has its own word; so has a removal, after which there is nothing to write down.
        let _op = sandbox.op.lock().await;
        if !self.sandboxes.lock().contains_key(&sandbox.id) {
            return;
        }
        let was_ready = {
            let mut record = sandbox.record.lock();
            let was = record.phase == SandboxPhase::Ready;
            record.phase = SandboxPhase::NotReady;
            was
        };
        if was_ready {
            let _ = self.save_sandbox(&sandbox);
            self.emit(ContainerEventType::ContainerStoppedEvent, &sandbox.id, &sandbox.id);
        }
    }

    pub(crate) fn sandbox_state(record: &SandboxRecord) -> PodSandboxState {
        if record.phase == SandboxPhase::Ready {
            PodSandboxState::SandboxReady
        } else {
            PodSandboxState::SandboxNotready
        }
    }

    pub(crate) fn sandbox_status_of(record: &SandboxRecord) -> v1::PodSandboxStatus {
        let mut ips = record.ips.iter();
        let ip = ips.next().cloned().unwrap_or_default();
        v1::PodSandboxStatus {
            id: record.id.clone(),
            metadata: record.config.metadata.clone(),
            state: Self::sandbox_state(record).into(),
            created_at: record.created_at,
            network: Some(v1::PodSandboxNetworkStatus {
                ip,
                additional_ips: ips.map(|ip| v1::PodIp { ip: ip.clone() }).collect(),
            }),
            linux: Some(v1::LinuxPodSandboxStatus {
                namespaces: Some(v1::Namespace { options: Some(namespace_options(&record.config)) }),
            }),
            labels: record.config.labels.clone(),
            annotations: record.config.annotations.clone(),
            runtime_handler: record.handler.clone(),
        }
    }

    pub(crate) fn pod_sandbox_status(
        self: &Arc<Self>,
        id: &str,
        verbose: bool,
    ) -> Result<v1::PodSandboxStatusResponse> {
        let sandbox = self.sandbox(id)?;
        let record = sandbox.record.lock();
        let mut info = BTreeMap::new();
        if verbose {
            info.insert(
                "info".to_owned(),
                serde_json::to_string(&serde_json::json!({
                    "pid": record.process.map(|p| p.pid),
                    "netns": record.netns,
                    "config": record.config,
                    "runtimeHandler": record.handler,
                    "cniResult": record.network,
                }))
                .unwrap_or_default(),
            );
        }
        Ok(v1::PodSandboxStatusResponse { status: Some(Self::sandbox_status_of(&record)), info, ..Default::default() })
    }

    pub(crate) fn list_pod_sandbox(&self, filter: Option<v1::PodSandboxFilter>) -> Vec<v1::PodSandbox> {
        let filter = filter.unwrap_or_default();
        let all: Vec<Arc<Sandbox>> = self.sandboxes.lock().values().cloned().collect();
        let items = all.iter().map(|s| s.record.lock()).map(|r| v1::PodSandbox {
            id: r.id.clone(),
            metadata: r.config.metadata.clone(),
            state: Self::sandbox_state(&r).into(),
            created_at: r.created_at,
            labels: r.config.labels.clone(),
            annotations: r.config.annotations.clone(),
            runtime_handler: r.handler.clone(),
        });
        let chosen = items.filter(|s| {
            (filter.id.is_empty() || s.id.starts_with(&filter.id))
                && filter.state.as_ref().is_none_or(|v| v.state == s.state)
                && filter.label_selector.iter().all(|(k, v)| s.labels.get(k) == Some(v))
        });
        chosen.collect()
    }
}

/// The mapping of a user namespace that is asked for, `None` for the node's. A bridge that is in one itself has no ids to
/// give away, and a Pod that needs its own must not run without.
/// Source: containerd internal/cri/server/podsandbox/sandbox_run_linux.go parseUsernsIDs.
pub(crate) fn id_maps(options: &NamespaceOption, inside: bool) -> Result<Option<IdMaps>> {
    let Some(wanted) = options.userns_options.as_ref() else { return Ok(None) };
    match wanted.mode() {
        NamespaceMode::Node if wanted.uids.is_empty() && wanted.gids.is_empty() => return Ok(None),
        NamespaceMode::Pod if !inside => {}
        NamespaceMode::Node => {
            return Err(Error::Invalid("user namespace mode is NODE, but mappings are given".into()));
        }
        mode => return Err(Error::Invalid(format!("user namespace mode {} is not supported", mode.as_str_name()))),
    }
    if is_node(options.network) {
        return Err(Error::Invalid("a user namespace cannot be used with the node's network".into()));
    }
    let range = |list: &[v1::IdMapping]| match list {
        [one] if one.length > 0 => {
            Ok(vec![IdRange { container: one.container_id, host: one.host_id, length: one.length }])
        }
        _ => Err(Error::Invalid(format!("a user namespace needs exactly one mapping, not {}", list.len()))),
    };
    Ok(Some(IdMaps { uids: range(&wanted.uids)?, gids: range(&wanted.gids)? }))
}

/// The host name a Pod has: its own, or the node's.
fn hostname(config: &PodSandboxConfig) -> String {
    if config.hostname.is_empty() || is_node(namespace_options(config).network) {
        return nix::unistd::gethostname().map(|h| h.to_string_lossy().into_owned()).unwrap_or_default();
    }
    config.hostname.clone()
}

/// The host name of a sandbox, for its containers' environment.
pub(crate) fn hostname_of(config: &PodSandboxConfig) -> String {
    hostname(config)
}

fn resolv_conf(dns: &v1::DnsConfig) -> String {
    let mut text = String::new();
    if !dns.searches.is_empty() {
        text += &format!("search {}\n", dns.searches.join(" "));
    }
    for server in &dns.servers {
        text += &format!("nameserver {server}\n");
    }
    if !dns.options.is_empty() {
        text += &format!("options {}\n", dns.options.join(" "));
    }
    text
}

/// Removes what a sandbox keeps on the node: its network namespace, its shared memory, its files.
pub(crate) fn remove_sandbox_dir(dir: &Path) {
    if let Ok(netns) = fs::read_link(dir.join("netns")) {
        launch::remove_netns(&netns);
    }
    let _ = nix::mount::umount2(&dir.join("shm"), nix::mount::MntFlags::MNT_DETACH);
    let _ = fs::remove_dir_all(dir);
}

/// Whether a path is a kept network namespace (and not a plain file a crash left).
pub(crate) fn is_netns(path: &Path) -> bool {
    nix::sys::statfs::statfs(path).is_ok_and(|s| s.filesystem_type().0 == libc::NSFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_has_search_then_servers_then_options() {
        let dns = v1::DnsConfig {
            servers: vec!["10.0.0.10".into(), "1.1.1.1".into()],
            searches: vec!["a.b".into(), "c".into()],
            options: vec!["ndots:5".into()],
        };
        assert_eq!(resolv_conf(&dns), "search a.b c\nnameserver 10.0.0.10\nnameserver 1.1.1.1\noptions ndots:5\n");
    }
}
