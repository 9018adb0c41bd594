//! The runtime over its socket, with real containers. Needs root, and fails without.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, unsafe_code, reason = "a test, which forks")]

mod node;
mod wire;

use std::{collections::BTreeMap, path::Path, time::Duration};

use node::Node;
use podlab_clock::Clock;
use podlab_cri::{
    images::Store,
    v1::{self, image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient},
};
use podlab_testimage::Image;
use tonic::transport::Channel;

const IMAGE: &str = "registry.test/testimage:1";

type Runtime = RuntimeServiceClient<Channel>;

fn main() {
    if std::env::args().any(|a| a == "--list") {
        return;
    }
    assert!(nix::unistd::geteuid().is_root(), "these tests need root, or a user namespace: unshare -r");
    let only = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("logs")).unwrap();
    let node = node::start(dir.path(), Some(registries));
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt.block_on(async {
        import(dir.path());
        for (name, test) in TESTS {
            if only.as_ref().is_some_and(|o| !name.contains(o.as_str())) {
                continue;
            }
            let what = tokio::time::timeout(Duration::from_secs(60), test(&node)).await;
            println!("test {name} ... {}", if what.is_ok() { "ok" } else { "HUNG" });
            what.unwrap();
        }
    });
}

type Test = for<'n> fn(&'n Node) -> std::pin::Pin<Box<dyn Future<Output = ()> + 'n>>;

macro_rules! tests {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), |n| Box::pin($name(n)))),*] };
}

const TESTS: &[(&str, Test)] = tests![
    a_container_runs_logs_and_ends_with_its_code,
    a_command_that_is_not_there_is_a_start_error,
    exec_returns_output_and_code_and_kills_what_takes_too_long,
    stop_sends_the_signal_then_kills,
    a_container_may_join_the_processes_of_another,
    a_container_that_needs_more_memory_than_it_may_is_oom_killed,
    a_user_a_seccomp_profile_and_dropped_capabilities_hold,
    mounts_show_what_was_asked_for,
    a_killed_bridge_loses_neither_output_nor_exit_codes,
    events_tell_each_change_at_once,
    images_are_pulled_with_credentials_and_refused_without,
    names_are_unique_and_repeated_calls_succeed,
    exec_attach_and_port_forward_stream_over_websocket_and_spdy,
    a_bridge_killed_at_any_moment_leaks_nothing_and_invents_nothing,
];

fn registries(dir: std::path::PathBuf) -> std::pin::Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(async move {
        use podlab_registry::{Access, Registry, Storage};
        let _ = dir;
        let storage = |name: &str| {
            let s = Storage::in_memory();
            s.put_image(name, "1", &Image::testimage()).unwrap();
            s
        };
        let listen = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
        let open = Registry::new(storage("pulled"), Access::Open, listen(8081));
        let access = Access::Basic { user: "bench".into(), password: "s3cret".into() };
        let private = Registry::new(storage("secret"), access, listen(8082));
        let end = tokio_util::sync::CancellationToken::new();
        let _ = tokio::join!(open.run(end.clone()), private.run(end));
    })
}

fn import(dir: &Path) {
    let tar = dir.join("image.tar");
    Image::testimage().write_archive(&tar, IMAGE).unwrap();
    // Another process than the bridge, as `podlab image load` is.
    let clock = Clock::real();
    let store = Store::open(
        &dir.join("root/images"),
        &dir.join("root/content"),
        false,
        clock,
        podlab_clock::Rng::from_entropy(),
    )
    .unwrap();
    assert_eq!(store.import(&tar).unwrap(), [IMAGE]);
}

fn sandbox(name: &str) -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: name.into(),
            uid: format!("uid-{name}"),
            namespace: "default".into(),
            attempt: 0,
        }),
        hostname: name.into(),
        labels: BTreeMap::from([("pod".to_owned(), name.to_owned())]),
        linux: Some(v1::LinuxPodSandboxConfig {
            security_context: Some(v1::LinuxSandboxSecurityContext {
                namespace_options: Some(v1::NamespaceOption {
                    pid: v1::NamespaceMode::Container.into(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn container(name: &str, command: &[&str]) -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: name.into(), attempt: 0 }),
        image: Some(v1::ImageSpec { image: IMAGE.into(), ..Default::default() }),
        command: command.iter().map(ToString::to_string).collect(),
        log_path: format!("{name}.log"),
        linux: Some(v1::LinuxContainerConfig {
            security_context: Some(v1::LinuxContainerSecurityContext {
                namespace_options: Some(v1::NamespaceOption {
                    pid: v1::NamespaceMode::Container.into(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            resources: Some(v1::LinuxContainerResources::default()),
        }),
        ..Default::default()
    }
}

/// A sandbox with a log directory.
async fn run_sandbox(node: &Node, rt: &mut Runtime, name: &str) -> String {
    let mut config = sandbox(name);
    config.log_directory = node.dir.join("logs").join(name).display().to_string();
    rt.run_pod_sandbox(v1::RunPodSandboxRequest { config: Some(config), ..Default::default() })
        .await
        .unwrap()
        .into_inner()
        .pod_sandbox_id
}

async fn create(rt: &mut Runtime, sandbox: &str, config: v1::ContainerConfig) -> String {
    let request =
        v1::CreateContainerRequest { pod_sandbox_id: sandbox.into(), config: Some(config), sandbox_config: None };
    rt.create_container(request).await.unwrap().into_inner().container_id
}

async fn start(rt: &mut Runtime, id: &str) {
    rt.start_container(v1::StartContainerRequest { container_id: id.into() }).await.unwrap();
}

async fn status(rt: &mut Runtime, id: &str) -> v1::ContainerStatus {
    let request = v1::ContainerStatusRequest { container_id: id.into(), verbose: false };
    rt.container_status(request).await.unwrap().into_inner().status.unwrap()
}

async fn ended(rt: &mut Runtime, id: &str) -> v1::ContainerStatus {
    loop {
        let s = status(rt, id).await;
        if s.state() == v1::ContainerState::ContainerExited {
            return s;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn exec(rt: &mut Runtime, id: &str, cmd: &[&str]) -> (String, i32) {
    let request = v1::ExecSyncRequest {
        container_id: id.into(),
        cmd: cmd.iter().map(ToString::to_string).collect(),
        timeout: 10,
    };
    let r = rt.exec_sync(request).await.unwrap().into_inner();
    (String::from_utf8_lossy(&[r.stdout, r.stderr].concat()).trim().to_owned(), r.exit_code)
}

async fn remove_sandbox(rt: &mut Runtime, id: &str) {
    rt.stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id: id.into() }).await.unwrap();
    rt.remove_pod_sandbox(v1::RemovePodSandboxRequest { pod_sandbox_id: id.into() }).await.unwrap();
}

fn log(node: &Node, pod: &str, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(node.dir.join("logs").join(pod).join(format!("{name}.log"))).unwrap();
    text.lines().map(|l| l.split_once(' ').unwrap().1.to_owned()).collect()
}

async fn a_container_runs_logs_and_ends_with_its_code(node: &Node) {
    let (mut rt, _) = node.clients().await;
    let pod = run_sandbox(node, &mut rt, "p1").await;
    let c = create(&mut rt, &pod, container("c", &["sh", "-c", "echo out; echo err >&2; hostname; exit 3"])).await;
    assert_eq!(status(&mut rt, &c).await.state(), v1::ContainerState::ContainerCreated);
    start(&mut rt, &c).await;
    let s = ended(&mut rt, &c).await;
    assert_eq!((s.exit_code, s.reason.as_str()), (3, "Error"));
    assert!(s.created_at < s.started_at && s.started_at < s.finished_at);
    let mut lines = log(node, "p1", "c");
    lines.sort();
    assert_eq!(lines, ["stderr F err", "stdout F out", "stdout F p1"]);
    remove_sandbox(&mut rt, &pod).await;
    let listed = rt.list_containers(v1::ListContainersRequest::default()).await.unwrap().into_inner().containers;
    assert!(listed.is_empty(), "{listed:?}");
}

async fn a_command_that_is_not_there_is_a_start_error(node: &Node) {
    let (mut rt, _) = node.clients().await;
    let pod = run_sandbox(node, &mut rt, "p2").await;
    for (n, (command, want)) in [
        ("nope", "exec: \"nope\": executable file not found in $PATH"),
        ("/bin/nope", "exec: \"/bin/nope\": stat /bin/nope: no such file or directory"),
        ("/etc", "exec: \"/etc\": permission denied"),
    ]
    .into_iter()
    .enumerate()
    {
        let c = create(&mut rt, &pod, container(&format!("c{n}"), &[command])).await;
        let e = rt.start_container(v1::StartContainerRequest { container_id: c.clone() }).await.unwrap_err();
        assert!(e.message().contains(want), "{}", e.message());
        let s = status(&mut rt, &c).await;
        assert_eq!(
            (s.state(), s.exit_code, s.reason.as_str()),
            (v1::ContainerState::ContainerExited, 128, "StartError")
        );
        assert!(s.message.contains(want));
    }
    remove_sandbox(&mut rt, &pod).await;
}

async fn exec_returns_output_and_code_and_kills_what_takes_too_long(node: &Node) {
    let (mut rt, _) = node.clients().await;
    let pod = run_sandbox(node, &mut rt, "p3").await;
    let mut config = container("c", &["sleep", "1000"]);
    config.envs.push(v1::KeyValue { key: "COLOUR".into(), value: b"green".to_vec() });
    let c = create(&mut rt, &pod, config).await;
    start(&mut rt, &c).await;
    assert_eq!(exec(&mut rt, &c, &["sh", "-c", "echo $COLOUR; exit 7"]).await, ("green".into(), 7));
    let request = v1::ExecSyncRequest { container_id: c.clone(), cmd: vec!["sleep".into(), "77".into()], timeout: 1 };
    let e = rt.exec_sync(request).await.unwrap_err();
    assert_eq!(e.code(), tonic::Code::DeadlineExceeded);
    let (ps, _) = exec(&mut rt, &c, &["ps"]).await;
    assert!(!ps.contains("sleep 77") && ps.contains("sleep 1000"), "{ps}");
    remove_sandbox(&mut rt, &pod).await;
}

async fn stop_sends_the_signal_then_kills(node: &Node) {
    let (mut rt, _) = node.clients().await;
    let pod = run_sandbox(node, &mut rt, "p4").await;
    let polite = create(
        &mut rt,
        &pod,
        container("polite", &["sh", "-c", "trap 'echo bye; exit 5' TERM; while true; do sleep 0.05; done"]),
    )
    .await;
    let deaf =
        create(&mut rt, &pod, container("deaf", &["sh", "-c", "trap '' TERM; while true; do sleep 0.05; done"])).await;
    for c in [&polite, &deaf] {
        start(&mut rt, c).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    for c in [&polite, &deaf] {
        rt.stop_container(v1::StopContainerRequest { container_id: c.clone(), timeout: 1 }).await.unwrap();
    }
    assert_eq!(status(&mut rt, &polite).await.exit_code, 5);
    assert_eq!(status(&mut rt, &deaf).await.exit_code, 137);
    assert_eq!(log(node, "p4", "polite"), ["stdout F bye"]);
    remove_sandbox(&mut rt, &pod).await;
}

/// What `kubectl debug --target` asks for.
async fn a_container_may_join_the_processes_of_another(node: &Node) {
    let (mut rt, _) = node.clients().await;
    let pod = run_sandbox(node, &mut rt, "p4t").await;
    let target =
        create(&mut rt, &pod, container("target", &["sh", "-c", "true target; while true; do sleep 0.05; done"])).await;
    let into = |name: &str| {
        let mut config = container(name, &["sh", "-c", "while true; do sleep 0.05; done"]);
        let security = config.linux.as_mut().and_then(|l| l.security_context.as_mut()).unwrap();
        security.namespace_options = Some(v1::NamespaceOption {
            pid: v1::NamespaceMode::Target.into(),
            target_id: target.clone(),
            ..Default::default()
        });
        config
    };
    let early = create(&mut rt, &pod, into("early")).await;
    let refused = rt.start_container(v1::StartContainerRequest { container_id: early }).await.unwrap_err();
    assert!(refused.message().contains("is not running"), "{refused}");
    start(&mut rt, &target).await;
    let guest = create(&mut rt, &pod, into("guest")).await;
    start(&mut rt, &guest).await;
    // `/proc` shows whose process is the first.
    let (first, code) = exec(&mut rt, &guest, &["cat", "/proc/1/cmdline"]).await;
    assert!(code == 0 && first.contains("true target"), "{first:?}");
    remove_sandbox(&mut rt, &pod).await;
}

async fn a_container_that_needs_more_memory_than_it_may_is_oom_killed(node: &Node) {
    let (mut rt, _) = node.clients().await;
    let pod = run_sandbox(node, &mut rt, "p5").await;
    let mut config = container("c", &["oom"]);
    config.linux.as_mut().unwrap().resources =
        Some(v1::LinuxContainerResources { memory_limit_in_bytes: 20 << 20, ..Default::default() });
    let c = create(&mut rt, &pod, config).await;
    start(&mut rt, &c).await;
    let s = ended(&mut rt, &c).await;
    assert_eq!((s.exit_code, s.reason.as_str()), (137, "OOMKilled"));
    remove_sandbox(&mut rt, &pod).await;
}

async fn a_user_a_seccomp_profile_and_dropped_capabilities_hold(node: &Node) {
    let (mut rt, _) = node.clients().await;
    let pod = run_sandbox(node, &mut rt, "p6").await;
    let mut config = container("c", &["sleep", "1000"]);
    let s = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    s.run_as_user = Some(v1::Int64Value { value: 1000 });
    s.run_as_group = Some(v1::Int64Value { value: 2000 });
    s.supplemental_groups = vec![3000];
    s.no_new_privs = true;
    s.seccomp = Some(v1::SecurityProfile { profile_type: 0, localhost_ref: String::new() });
    s.readonly_rootfs = true;
    let c = create(&mut rt, &pod, config).await;
    start(&mut rt, &c).await;
    let (text, _) = exec(&mut rt, &c, &["cat", "/proc/1/status"]).await;
    for want in [
        "Uid:\t1000\t1000",
        "Gid:\t2000\t2000",
        "Groups:\t2000 3000",
        "Seccomp:\t2",
        "NoNewPrivs:\t1",
        "CapEff:\t0000000000000000",
    ] {
        assert!(text.contains(want), "{want} in {text}");
    }
    let (_, code) = exec(&mut rt, &c, &["touch", "/x"]).await;
    assert_ne!(code, 0, "the root is read-only");
    let user = status(&mut rt, &c).await.user.unwrap().linux.unwrap();
    assert_eq!((user.uid, user.gid, user.supplemental_groups), (1000, 2000, vec![2000, 3000]));
    remove_sandbox(&mut rt, &pod).await;
}

async fn mounts_show_what_was_asked_for(node: &Node) {
    let (mut rt, _) = node.clients().await;
    let pod = run_sandbox(node, &mut rt, "p7").await;
    let host = node.dir.join("vol");
    std::fs::create_dir_all(host.join("d")).unwrap();
    std::fs::write(host.join("f"), "hello").unwrap();
    let mount = |target: &str, source: &Path, readonly| v1::Mount {
        container_path: target.into(),
        host_path: source.display().to_string(),
        readonly,
        ..Default::default()
    };
    let mut config = container("c", &["sleep", "1000"]);
    config.mounts = vec![
        mount("/data", &host, false),
        mount("/data/d/ro", &host, true),
        mount("/etc/one-file", &host.join("f"), true),
        mount("/made", &host.join("made"), false),
    ];
    config.mounts.push(v1::Mount {
        container_path: "/img".into(),
        readonly: true,
        image: Some(v1::ImageSpec { image: IMAGE.into(), ..Default::default() }),
        ..Default::default()
    });
    let c = create(&mut rt, &pod, config).await;
    start(&mut rt, &c).await;
    assert_eq!(
        exec(&mut rt, &c, &["cat", "/data/f", "/etc/one-file", "/data/d/ro/f"]).await,
        ("hellohellohello".into(), 0)
    );
    assert_eq!(exec(&mut rt, &c, &["touch", "/data/new", "/made/new"]).await.1, 0);
    assert_ne!(exec(&mut rt, &c, &["touch", "/data/d/ro/new2"]).await.1, 0);
    assert_ne!(exec(&mut rt, &c, &["touch", "/img/x"]).await.1, 0);
    assert_eq!(exec(&mut rt, &c, &["sh", "-c", "/img/bin/echo in-image"]).await.0, "in-image");
    assert!(host.join("new").exists() && host.join("made/new").exists());
    let (mounts, _) = exec(&mut rt, &c, &["cat", "/proc/mounts"]).await;
    for want in
        ["proc /proc proc", "sysfs /sys sysfs ro", "devpts /dev/pts", "mqueue /dev/mqueue", "shm /dev/shm tmpfs"]
    {
        assert!(mounts.contains(want), "{want} in {mounts}");
    }
    assert!(
        !mounts.contains(&*node.dir.join("run/netns").display().to_string()),
        "the node's mounts are not in the container"
    );
    remove_sandbox(&mut rt, &pod).await;
}

async fn a_killed_bridge_loses_neither_output_nor_exit_codes(node: &Node) {
    let (mut rt, _) = node.clients().await;
    let pod = run_sandbox(node, &mut rt, "p8").await;
    let count = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo line $i; sleep 0.005; done; exit 9";
    let long = create(&mut rt, &pod, container("long", &["sh", "-c", count])).await;
    let short = create(&mut rt, &pod, container("short", &["sh", "-c", "sleep 0.2; echo last; exit 4"])).await;
    for c in [&long, &short] {
        start(&mut rt, c).await;
    }
    let pid = |s: &str| s.to_owned();
    let before = pid(&status(&mut rt, &long).await.id);
    // Down while the short one ends.
    node.init.agent(podlab_cri::init::AgentCommand::Kill).unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    node.init.agent(podlab_cri::init::AgentCommand::Start).unwrap();
    for _ in 0..5 {
        let (mut rt, _) = node.clients().await;
        assert_eq!(status(&mut rt, &before).await.id, long);
        tokio::time::sleep(Duration::from_millis(60)).await;
        node.kill_and_start_bridge();
    }
    let (mut rt, _) = node.clients().await;
    assert_eq!(ended(&mut rt, &short).await.exit_code, 4);
    assert_eq!(ended(&mut rt, &long).await.exit_code, 9);
    assert_eq!(log(node, "p8", "short"), ["stdout F last"]);
    let lines = log(node, "p8", "long");
    let want: Vec<String> = (1..=300).map(|n| format!("stdout F line {n}")).collect();
    assert_eq!(lines, want);
    remove_sandbox(&mut rt, &pod).await;
    assert_eq!(node.init.status().unwrap().held, 0);
}

async fn events_tell_each_change_at_once(node: &Node) {
    use v1::ContainerEventType::{
        ContainerCreatedEvent as Created, ContainerDeletedEvent as Deleted, ContainerStartedEvent as Started,
        ContainerStoppedEvent as Stopped,
    };
    let (mut rt, _) = node.clients().await;
    let mut events = rt.get_container_events(v1::GetEventsRequest {}).await.unwrap().into_inner();
    let pod = run_sandbox(node, &mut rt, "p9").await;
    let c = create(&mut rt, &pod, container("c", &["true"])).await;
    start(&mut rt, &c).await;
    ended(&mut rt, &c).await;
    remove_sandbox(&mut rt, &pod).await;
    let want = [
        (&pod, Created),
        (&pod, Started),
        (&c, Created),
        (&c, Started),
        (&c, Stopped),
        (&pod, Stopped),
        (&c, Deleted),
        (&pod, Deleted),
    ];
    for (id, kind) in want {
        let e = events.message().await.unwrap().unwrap();
        assert_eq!((&e.container_id, e.container_event_type()), (id, kind));
        assert_eq!(e.pod_sandbox_status.is_some(), kind != Deleted || *id != pod);
    }
}

async fn images_are_pulled_with_credentials_and_refused_without(node: &Node) {
    let (_, mut im): (Runtime, ImageServiceClient<Channel>) = node.clients().await;
    let mut pull = async |name: &str, auth: Option<v1::AuthConfig>| {
        let request = v1::PullImageRequest {
            image: Some(v1::ImageSpec { image: name.into(), ..Default::default() }),
            auth,
            sandbox_config: None,
        };
        im.pull_image(request).await.map(|r| r.into_inner().image_ref)
    };
    let id = pull("registry.test/pulled:1", None).await.unwrap();
    let e = pull("registry.test/pulled:2", None).await.unwrap_err();
    assert_eq!(e.code(), tonic::Code::NotFound);
    let want = r#"failed to pull and unpack image "registry.test/pulled:2": failed to resolve image: registry.test/pulled:2: not found"#;
    assert_eq!(e.message(), want);
    let e = pull("private.registry.test/secret:1", None).await.unwrap_err();
    assert!(e.message().contains("pull access denied, repository does not exist or may require authorization: authorization failed: no basic auth credentials"), "{e}");
    let auth = |password: &str| {
        Some(v1::AuthConfig { username: "bench".into(), password: password.into(), ..Default::default() })
    };
    assert!(pull("private.registry.test/secret:1", auth("wrong")).await.is_err());
    assert_eq!(pull("private.registry.test/secret:1", auth("s3cret")).await.unwrap(), id, "one image, two names");
    let status = im
        .image_status(v1::ImageStatusRequest {
            image: Some(v1::ImageSpec { image: id.clone(), ..Default::default() }),
            verbose: true,
        })
        .await
        .unwrap();
    let image = status.into_inner().image.unwrap();
    assert_eq!(image.repo_tags, ["private.registry.test/secret:1", "registry.test/pulled:1", IMAGE]);
}

async fn names_are_unique_and_repeated_calls_succeed(node: &Node) {
    let (mut rt, mut im) = node.clients().await;
    let pod = run_sandbox(node, &mut rt, "p10").await;
    let again = rt
        .run_pod_sandbox(v1::RunPodSandboxRequest { config: Some(sandbox("p10")), ..Default::default() })
        .await
        .unwrap_err();
    assert!(again.message().starts_with("failed to reserve sandbox name"), "{again}");
    let unknown = rt
        .run_pod_sandbox(v1::RunPodSandboxRequest { config: Some(sandbox("x")), runtime_handler: "none".into() })
        .await;
    assert!(unknown.is_err());
    let c = create(&mut rt, &pod, container("c", &["sleep", "1000"])).await;
    start(&mut rt, &c).await;
    let e = rt.start_container(v1::StartContainerRequest { container_id: c.clone() }).await.unwrap_err();
    assert_eq!(e.message(), "container is in CONTAINER_RUNNING state");
    for _ in 0..2 {
        rt.stop_container(v1::StopContainerRequest { container_id: c.clone(), timeout: 0 }).await.unwrap();
        rt.remove_container(v1::RemoveContainerRequest { container_id: c.clone() }).await.unwrap();
        remove_sandbox(&mut rt, &pod).await;
        im.remove_image(v1::RemoveImageRequest {
            image: Some(v1::ImageSpec { image: "registry.test/none:1".into(), ..Default::default() }),
        })
        .await
        .unwrap();
    }
    let e = rt.container_status(v1::ContainerStatusRequest { container_id: c, verbose: false }).await.unwrap_err();
    assert_eq!(e.code(), tonic::Code::NotFound);
    let none = v1::ImageStatusRequest {
        image: Some(v1::ImageSpec { image: "registry.test/none:1".into(), ..Default::default() }),
        verbose: false,
    };
    assert!(im.image_status(none).await.unwrap().into_inner().image.is_none());
}

async fn exec_attach_and_port_forward_stream_over_websocket_and_spdy(node: &Node) {
    let (mut rt, _) = node.clients().await;
    let pod = run_sandbox(node, &mut rt, "p11").await;
    let c = create(&mut rt, &pod, container("c", &["sleep", "1000"])).await;
    start(&mut rt, &c).await;
    let own = |cmd: &[&str]| cmd.iter().map(ToString::to_string).collect::<Vec<_>>();

    let mut exec_url = async |cmd: &[&str], tty: bool, stdin: bool| {
        let request =
            v1::ExecRequest { container_id: c.clone(), cmd: own(cmd), tty, stdin, stdout: true, stderr: !tty };
        rt.exec(request).await.unwrap().into_inner().url
    };
    let url = exec_url(&["sh", "-c", "echo out; echo err >&2; exit 3"], false, false).await;
    let got = wire::websocket(&url, "v5.channel.k8s.io", &[]).await;
    assert_eq!((got[&1].as_str(), got[&2].as_str()), ("out\n", "err\n"));
    assert!(got[&3].contains("NonZeroExitCode") && got[&3].contains(r#""message":"3""#), "{}", got[&3]);
    assert!(wire::refused(&url).await, "a token is good once");

    let url = exec_url(&["cat"], false, true).await;
    let got = wire::websocket(&url, "v5.channel.k8s.io", &[b"\0hello ", b"\0there", b"\xff\0"]).await;
    assert_eq!(got[&1], "hello there");
    assert!(got[&3].contains("Success"));

    let url = exec_url(&["cat"], false, true).await;
    let got = wire::spdy_exec(&url, &["error", "stdin", "stdout", "stderr"], b"through spdy").await;
    assert_eq!(got["stdout"], "through spdy");
    assert!(got["error"].contains("Success"), "{got:?}");

    let url = exec_url(&["cat"], true, true).await;
    let got =
        wire::websocket(&url, "v5.channel.k8s.io", &[b"\x04{\"Width\":100,\"Height\":30}", b"\0hi\n", b"\xff\0"]).await;
    assert_eq!(got[&1], "hi\r\nhi\r\n", "a terminal echoes");

    let mut config = container("in", &["sh", "-c", "cat; echo done"]);
    config.stdin = true;
    config.stdin_once = true;
    let a = create(&mut rt, &pod, config).await;
    start(&mut rt, &a).await;
    let request = v1::AttachRequest { container_id: a.clone(), stdin: true, stdout: true, stderr: true, tty: false };
    let url = rt.attach(request).await.unwrap().into_inner().url;
    let got = wire::websocket(&url, "v5.channel.k8s.io", &[b"\0typed\n", b"\xff\0"]).await;
    assert_eq!(got[&1], "typed\ndone\n");
    assert_eq!(ended(&mut rt, &a).await.exit_code, 0);
    assert_eq!(log(node, "p11", "in"), ["stdout F typed", "stdout F done"]);

    let web = create(&mut rt, &pod, container("web", &["serve"])).await;
    start(&mut rt, &web).await;
    let mut forward = async |ports: Vec<i32>| {
        let request = v1::PortForwardRequest { pod_sandbox_id: pod.clone(), port: ports };
        rt.port_forward(request).await.unwrap().into_inner().url
    };
    for tunnel in [false, true] {
        let got = loop {
            let got = wire::spdy_forward(&forward(vec![]).await, tunnel, 8080, b"GET /health HTTP/1.0\r\n\r\n").await;
            // Until the server listens.
            if !got["error"].contains("Connection refused") {
                break got;
            }
        };
        assert!(got["data"].starts_with("HTTP/1.1 200") || got["data"].starts_with("HTTP/1.0 200"), "{got:?}");
    }
    let got = wire::spdy_forward(&forward(vec![]).await, false, 9, b"x").await;
    assert!(got["error"].starts_with("error forwarding port 9 to pod"), "{got:?}");
    remove_sandbox(&mut rt, &pod).await;
}

async fn a_bridge_killed_at_any_moment_leaks_nothing_and_invents_nothing(node: &Node) {
    let rng = podlab_clock::Rng::from_entropy();
    for round in 0..25 {
        let (rt, _) = node.clients().await;
        let pod = format!("k{round}");
        let work = async {
            let mut rt = rt;
            let mut config = sandbox(&pod);
            config.log_directory = node.dir.join("logs").join(&pod).display().to_string();
            let sandbox = rt
                .run_pod_sandbox(v1::RunPodSandboxRequest { config: Some(config), ..Default::default() })
                .await?
                .into_inner()
                .pod_sandbox_id;
            for n in 0..4 {
                let c = container(&format!("c{n}"), &["sh", "-c", "echo one; echo two; exit 42"]);
                let request = v1::CreateContainerRequest {
                    pod_sandbox_id: sandbox.clone(),
                    config: Some(c),
                    sandbox_config: None,
                };
                let container_id = rt.create_container(request).await?.into_inner().container_id;
                rt.start_container(v1::StartContainerRequest { container_id }).await?;
            }
            rt.stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id: sandbox }).await.map(drop)
        };
        let kill = async {
            tokio::time::sleep(Duration::from_micros(rng.below(45_000))).await;
            node.init.agent(podlab_cri::init::AgentCommand::Kill).unwrap();
        };
        let _: (Result<(), tonic::Status>, ()) = tokio::join!(work, kill);
        node.init.agent(podlab_cri::init::AgentCommand::Start).unwrap();

        let (mut rt, _) = node.clients().await;
        for c in rt.list_containers(v1::ListContainersRequest::default()).await.unwrap().into_inner().containers {
            let s = loop {
                let s = status(&mut rt, &c.id).await;
                match s.state() {
                    // Also one that was about to start: it becomes this again.
                    v1::ContainerState::ContainerCreated => start(&mut rt, &c.id).await,
                    v1::ContainerState::ContainerExited => break s,
                    _ => tokio::time::sleep(Duration::from_millis(2)).await,
                }
            };
            // 137: the sandbox was being stopped.
            assert!(matches!(s.exit_code, 42 | 137), "round {round}: {s:?}");
            if s.exit_code == 42 {
                assert_eq!(
                    log(node, &pod, &c.metadata.unwrap().name),
                    ["stdout F one", "stdout F two"],
                    "round {round}"
                );
            }
        }
        for s in rt.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await.unwrap().into_inner().items {
            remove_sandbox(&mut rt, &s.id).await;
        }
    }
    // What goes in the background is gone soon.
    let empty = |dir: &str| std::fs::read_dir(node.inside(dir)).map_or(0, Iterator::count) == 0;
    let left = || {
        let status = node.init.status().unwrap();
        let dirs: Vec<&str> =
            ["run/netns", "run/rw/pods", "run/rw/containers", "run/rw/io"].into_iter().filter(|d| !empty(d)).collect();
        let cgroup = podlab_cri::cgroup::Cgroups::detect(None).unwrap().group(&node.cgroup);
        let groups: Vec<_> = cgroup
            .dirs()
            .flat_map(|d| std::fs::read_dir(&d).unwrap_or_else(|e| panic!("{}: {e}", d.display())).flatten())
            .filter(|e| e.path().is_dir())
            .map(|e| e.path())
            .collect();
        (status.held, status.exits, dirs, groups, node.processes())
    };
    let clock = Clock::real();
    for _ in 0..200 {
        if left() == (0, 0, vec![], vec![], 2) {
            return;
        }
        clock.sleep(Duration::from_millis(20)).await;
    }
    panic!("left behind: {:?}", left());
}
