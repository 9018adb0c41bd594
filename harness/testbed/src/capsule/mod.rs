//! The capsule: one process tree in namespaces of its own, with the plane and the nodes below one tiny init.
//!
//! ```text
//! boot() ── capsule init (PID 1, one thread)  ──┬── plane                 forked again when it dies
//!                                               └── node init × K ──┬── agent     see crate::node
//!                                                                   └── containers
//! ```
//!
//! Ending capsule init, by `down`, by the end of the lifeline or by SIGKILL, ends everything: the kernel kills a pid
//! namespace with its first process, and mounts, links and namespaces go with the last process that uses them.

pub(crate) mod control;
mod init;
pub(crate) mod network;

use std::{fs, net::TcpListener, os::fd::OwnedFd, path::PathBuf, sync::Arc};

use podlab_apiserver::pki::Authority;

use crate::{
    cgroup, process,
    spec::{ClusterSpec, address},
    state::{StateDir, StateError, io_at},
};

/// Why a capsule could not be booted.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// Its state directory failed.
    #[error(transparent)]
    State(#[from] StateError),
    /// Its certificates failed.
    #[error("make certificates")]
    Pki(#[from] podlab_apiserver::pki::PkiError),
    /// Its cgroup failed.
    #[error("make cgroup; podlab needs write access to the cgroup it runs in")]
    Cgroup(#[source] std::io::Error),
    /// The kernel refused the namespaces.
    #[error("make namespaces; podlab needs root (or CAP_SYS_ADMIN) for this")]
    Namespaces(#[source] std::io::Error),
}

/// What capsule init and its children need, besides the state directory.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// API listeners on the host's loopback.
    pub(crate) api: Vec<TcpListener>,
    /// Published ports on the host's loopback.
    pub(crate) published: Vec<TcpListener>,
    /// Read end of the pipe whose writer is the runner.
    pub(crate) lifeline: Option<OwnedFd>,
}

/// Everything capsule init works with.
#[derive(Debug)]
pub(crate) struct Capsule {
    pub(crate) state: StateDir,
    pub(crate) spec: ClusterSpec,
    pub(crate) sockets: Sockets,
    pub(crate) cgroups: Vec<(String, Vec<PathBuf>)>,
}

/// Boots a capsule: writes keys and kubeconfig, makes the cgroup, clones capsule init. The caller must be
/// single-threaded. Returns as soon as init exists; the cluster becomes ready by itself.
///
/// # Errors
/// [`BootError`].
pub(crate) fn boot(state: &StateDir, spec: &ClusterSpec, sockets: Sockets) -> Result<i32, BootError> {
    write_credentials(state, spec, &sockets)?;
    let lock = state.lock()?.ok_or_else(|| StateError::Live(spec.name.clone()))?;
    let _ = fs::remove_file(state.join("kept"));
    cgroup::sweep(&state.cgroup());
    let claim = cgroup::claim(&state.cgroup()).map_err(BootError::Cgroup)?;
    let mut cgroups = Vec::new();
    for part in std::iter::once("plane".to_owned()).chain(spec.node_names()) {
        let name = format!("{}/{part}", state.cgroup());
        cgroup::create(&name).map_err(BootError::Cgroup)?;
        cgroups.push((part, cgroup::dirs(&name).map_err(BootError::Cgroup)?));
    }
    let capsule = Capsule { state: state.clone(), spec: spec.clone(), sockets, cgroups };
    let namespaces =
        libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    let init = process::spawn(namespaces, move || {
        // Lock and claim live exactly as long as this process: it inherited the open files.
        let _held = (&lock, &claim);
        init::main(capsule)
    })
    .map_err(BootError::Namespaces)?;
    let pid = state.join("pid");
    fs::write(&pid, init.to_string()).map_err(io_at(&pid))?;
    Ok(init)
}

/// Certificates of everything that serves or calls, made once before any process exists.
fn write_credentials(state: &StateDir, spec: &ClusterSpec, sockets: &Sockets) -> Result<(), BootError> {
    let pki = state.join("pki");
    let authority = Arc::new(Authority::load(&pki)?);
    let write = |name: &str, text: &str| {
        let path = pki.join(name);
        fs::write(&path, text).map_err(io_at(&path))
    };
    let plane = address::PLANE.to_string();
    let service = address::API_SERVICE.to_string();
    let names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];
    let mut sans = vec!["127.0.0.1", "localhost", "::1", plane.as_str(), service.as_str()];
    sans.extend(names);
    let server = authority.server_cert(&sans)?;
    write("apiserver.crt", &server.certificate)?;
    write("apiserver.key", &server.key)?;
    for (i, node) in spec.node_names().into_iter().enumerate() {
        let ip = address::node(u8::try_from(i + 1).unwrap_or(u8::MAX)).to_string();
        let serving = authority.server_cert(&[&node, &ip, "127.0.0.1"])?;
        write(&format!("{node}-server.crt"), &serving.certificate)?;
        write(&format!("{node}-server.key"), &serving.key)?;
        let client = authority.client_cert(&format!("system:node:{node}"), &["system:nodes"])?;
        write(&format!("{node}-client.crt"), &client.certificate)?;
        write(&format!("{node}-client.key"), &client.key)?;
    }
    if let Some(port) = sockets.api.first().and_then(|l| l.local_addr().ok()).map(|a| a.port()) {
        let admin = authority.client_cert("kubernetes-admin", &["system:masters"])?;
        let text = authority.kubeconfig(&format!("https://127.0.0.1:{port}"), &spec.name, "admin", &admin);
        write_private(&state.join("kubeconfig"), &text)?;
    }
    Ok(())
}

/// Writes a file only its owner can read.
pub(crate) fn write_private(path: &std::path::Path, text: &str) -> Result<(), StateError> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};
    let open = fs::File::options().create(true).write(true).truncate(true).mode(0o600).open(path);
    open.and_then(|mut f| f.write_all(text.as_bytes())).map_err(io_at(path))
}
