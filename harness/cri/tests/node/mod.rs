//! A node for tests and benches: namespaces of its own, an init, and a bridge as init's child.

use std::{
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use nix::{
    sched::{CloneFlags, unshare},
    unistd::{ForkResult, fork},
};
use podlab_clock::{Clock, Rng};
use podlab_cri::{
    Bridge, BridgeConfig, BridgeDeps, LoopbackOnly,
    init::{AgentCommand, Init, InitClient, InitConfig},
    v1::{image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient},
};
use podlab_timeline::Recorder;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Uri};

/// What a node is made in.
pub struct Node {
    pub dir: PathBuf,
    pub init: InitClient,
    pub cgroup: String,
    child: nix::unistd::Pid,
}

/// What runs beside the bridge in the agent process, such as a registry.
pub type Beside = fn(PathBuf) -> Pin<Box<dyn Future<Output = ()>>>;

/// Starts a node below `dir`. Must be called before any thread exists.
pub fn start(dir: &Path, beside: Option<Beside>) -> Node {
    let dir = dir.to_owned();
    let cgroup = format!("podlab-test-{}", std::process::id());
    let new = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWNET;
    // The first child is the first process of the pid namespace; this process stays outside all but the pid one.
    let child = match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).unwrap();
            unshare(new).unwrap();
            match unsafe { fork() }.unwrap() {
                ForkResult::Parent { child } => {
                    let _ = nix::sys::wait::waitpid(child, None);
                    unsafe { libc::_exit(0) }
                }
                ForkResult::Child => {
                    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).unwrap();
                    node(&dir, &cgroup, beside);
                    unsafe { libc::_exit(0) }
                }
            }
        }
    };
    let socket = dir.join("run/init.sock");
    let init = loop {
        match InitClient::connect(&socket) {
            Ok(init) => break init,
            Err(_) => std::thread::yield_now(),
        }
    };
    // Sockets of this thread belong to the node's network from here on, so that URLs of its loopback lead there.
    let net = std::fs::File::open(format!("/proc/{}/ns/net", init.pid())).unwrap();
    nix::sched::setns(net, CloneFlags::CLONE_NEWNET).unwrap();
    Node { dir, init, cgroup, child }
}

fn node(dir: &Path, cgroup: &str, beside: Option<Beside>) {
    use nix::mount::{MsFlags, mount};
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SHARED, None::<&str>).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SHARED, None::<&str>).unwrap();
    mount(Some("proc"), "/proc", Some("proc"), MsFlags::empty(), None::<&str>).unwrap();
    let run = dir.join("run");
    let init = Init::new(
        InitConfig { socket: run.join("init.sock"), run_dir: run, start_agent: true, lifeline: None },
        Clock::real(),
    )
    .unwrap();
    init.run(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(agent(dir, cgroup, beside))
    });
}

async fn agent(dir: &Path, cgroup: &str, beside: Option<Beside>) -> i32 {
    let clock = Clock::real();
    let mut config = BridgeConfig::new(dir.join("root"), dir.join("run"));
    config.netns_dir = dir.join("run/netns");
    config.default_cgroup_parent = cgroup.into();
    config.seccomp_dir = dir.join("seccomp");
    config.registries.plain_http.insert("registry.test".into());
    config.registries.hosts.insert("registry.test".into(), "127.0.0.1:8081".parse().unwrap());
    config.registries.plain_http.insert("private.registry.test".into());
    config.registries.hosts.insert("private.registry.test".into(), "127.0.0.1:8082".parse().unwrap());
    let deps = BridgeDeps {
        clock,
        rng: Rng::from_entropy(),
        recorder: Recorder::disabled(clock),
        network: Arc::new(LoopbackOnly),
    };
    std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
    let bridge = match Bridge::new(config, deps) {
        Ok(bridge) => bridge,
        Err(e) => {
            eprintln!("bridge: {e}");
            return 1;
        }
    };
    let beside = async {
        match beside {
            Some(f) => f(dir.to_owned()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        r = bridge.run(CancellationToken::new()) => { eprintln!("bridge: {r:?}"); 1 }
        () = beside => 0,
    }
}

impl Node {
    /// Clients of the bridge, once it listens.
    pub async fn clients(&self) -> (RuntimeServiceClient<Channel>, ImageServiceClient<Channel>) {
        let path = self.dir.join("run/cri.sock");
        let clock = Clock::real();
        loop {
            let path = path.clone();
            let connector = tower::service_fn(move |_: Uri| {
                let path = path.clone();
                async move { tokio::net::UnixStream::connect(path).await.map(hyper_util::rt::TokioIo::new) }
            });
            if let Ok(channel) = Endpoint::from_static("http://localhost").connect_with_connector(connector).await {
                let mut runtime = RuntimeServiceClient::new(channel.clone());
                if runtime.version(podlab_cri::v1::VersionRequest::default()).await.is_ok() {
                    return (runtime, ImageServiceClient::new(channel));
                }
            }
            clock.sleep(Duration::from_millis(5)).await;
        }
    }

    /// A path below the node's directory as the node's mounts show it.
    pub fn inside(&self, path: &str) -> PathBuf {
        let below = self.dir.join(path);
        PathBuf::from(format!("/proc/{}/root", self.init.pid())).join(below.strip_prefix("/").unwrap())
    }

    /// Processes of the node: init, the bridge, and whatever else.
    pub fn processes(&self) -> usize {
        let all = std::fs::read_dir(self.inside("..").ancestors().find(|p| p.ends_with("root")).unwrap().join("proc"))
            .unwrap();
        all.flatten().filter(|e| e.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit())).count()
    }

    /// SIGKILL for the bridge, and a new one.
    pub fn kill_and_start_bridge(&self) {
        self.init.agent(AgentCommand::Kill).unwrap();
        self.init.agent(AgentCommand::Start).unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.init.shutdown();
        let _ = nix::sys::wait::waitpid(self.child, None);
        if let Ok(all) = podlab_cri::cgroup::Cgroups::detect(None) {
            let _ = all.group(&self.cgroup).remove();
        }
    }
}
