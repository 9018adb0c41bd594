//! One call at each of the four seams: over HTTP, over gRPC sockets, and by the bundled network plugins.
#![allow(clippy::disallowed_methods, reason = "the driver's task is ended and waited for")]

use std::{os::unix::fs::symlink, path::Path, sync::mpsc, thread, time::Duration};

use criterion::{BatchSize, Criterion};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use podlab_api::{
    Object, ResourceRef,
    core::{ConfigMap, Pod},
};
use podlab_benches::{Lab, is_ready, pod};
use podlab_client::{Collection, DeleteOptions, Target};
use podlab_cni::chain::{Attachment, ConfList, Mode, Runtime as Plugins};
use podlab_cri::v1::{ListContainersRequest, StatusRequest, runtime_service_client::RuntimeServiceClient};
use podlab_csi::{
    connect,
    driver::{Driver, DriverConfig},
    v1::{
        self,
        controller_client::ControllerClient,
        node_client::NodeClient,
        volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode as Access},
    },
};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

fn api(criterion: &mut Criterion, lab: &Lab, runtime: &Runtime) {
    let mut group = criterion.benchmark_group("api");
    let in_default = |resource| Collection { resource, namespace: Some("default".to_owned()) };
    let one = Target { collection: in_default(ResourceRef::of::<Pod>()), name: "standing".into(), subresource: None };
    group.bench_function("get_pod", |b| {
        b.iter(|| runtime.block_on(lab.client.raw().get(&one)).expect("the API answers"));
    });
    let maps = in_default(ResourceRef::of::<ConfigMap>());
    let mut n = 0;
    group.bench_function("create_and_delete_config_map", |b| {
        b.iter(|| {
            n += 1;
            let name = format!("m{n}");
            let map = Object(
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}}),
            );
            let target = Target { collection: maps.clone(), name, subresource: None };
            runtime.block_on(async {
                lab.client.raw().create(&maps, None, map).await.expect("it is accepted");
                lab.client.raw().delete(&target, &DeleteOptions::default()).await.expect("it can be deleted");
            });
        });
    });
    group.finish();
}

fn cri(criterion: &mut Criterion, lab: &Lab, runtime: &Runtime) {
    let node = lab.cluster.inside("node-1").expect("the node is up");
    let socket = node.path("/run/podlab/cri.sock");
    let _inside = runtime.enter();
    let mut client = RuntimeServiceClient::new(connect(&socket).expect("a channel"));
    let mut group = criterion.benchmark_group("cri");
    group.bench_function("status", |b| {
        b.iter(|| runtime.block_on(client.status(StatusRequest::default())).expect("the runtime answers"));
    });
    group.bench_function("list_20_containers", |b| {
        b.iter(|| {
            runtime.block_on(client.list_containers(ListContainersRequest::default())).expect("the runtime answers")
        });
    });
    group.finish();
}

fn csi(criterion: &mut Criterion, runtime: &Runtime, dir: &Path) {
    let stop = CancellationToken::new();
    let socket = dir.join("csi.sock");
    let config = DriverConfig { socket: socket.clone(), root: dir.join("volumes"), node_id: "n1".into() };
    let (driver, token) = (Driver::new(config).expect("a driver"), stop.clone());
    let task = runtime.spawn(async move { driver.run(token).await.expect("it serves") });
    while !socket.exists() {
        thread::yield_now();
    }
    let _inside = runtime.enter();
    let channel = connect(&socket).expect("a channel");
    let (mut controller, mut node) = (ControllerClient::new(channel.clone()), NodeClient::new(channel));
    let capability = v1::VolumeCapability {
        access_mode: Some(AccessMode { mode: Access::SingleNodeWriter.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    };
    let volume = runtime
        .block_on(controller.create_volume(v1::CreateVolumeRequest {
            name: "bench".into(),
            capacity_range: Some(v1::CapacityRange { required_bytes: 1 << 20, limit_bytes: 1 << 20 }),
            volume_capabilities: vec![capability.clone()],
            ..Default::default()
        }))
        .expect("a volume");
    let volume_id = volume.into_inner().volume.expect("a volume").volume_id;
    let text = |name: &str| dir.join(name).display().to_string();
    let (staging, target_path) = (text("stage"), text("target"));
    std::fs::create_dir(&staging).expect("a directory");
    let mut group = criterion.benchmark_group("csi");
    group.bench_function("stage_publish_unpublish_unstage", |b| {
        b.iter(|| {
            runtime.block_on(async {
                let stage = v1::NodeStageVolumeRequest {
                    volume_id: volume_id.clone(),
                    staging_target_path: staging.clone(),
                    volume_capability: Some(capability.clone()),
                    ..Default::default()
                };
                node.node_stage_volume(stage).await.expect("staged");
                let publish = v1::NodePublishVolumeRequest {
                    volume_id: volume_id.clone(),
                    staging_target_path: staging.clone(),
                    target_path: target_path.clone(),
                    volume_capability: Some(capability.clone()),
                    ..Default::default()
                };
                node.node_publish_volume(publish).await.expect("published");
                let back =
                    v1::NodeUnpublishVolumeRequest { volume_id: volume_id.clone(), target_path: target_path.clone() };
                node.node_unpublish_volume(back).await.expect("unpublished");
                let back =
                    v1::NodeUnstageVolumeRequest { volume_id: volume_id.clone(), staging_target_path: staging.clone() };
                node.node_unstage_volume(back).await.expect("unstaged");
            });
        });
    });
    group.finish();
    stop.cancel();
    runtime.block_on(task).expect("the driver ends");
}

/// A network namespace, alive until dropped.
struct Netns {
    path: std::path::PathBuf,
    _stop: mpsc::Sender<()>,
}

impl Netns {
    fn new() -> Self {
        let (stop, wait) = mpsc::channel::<()>();
        let (tell, path) = mpsc::channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("benches need root");
            let tid = nix::unistd::gettid();
            tell.send(format!("/proc/self/task/{tid}/ns/net").into()).expect("somebody waits");
            let _ = wait.recv();
        });
        Self { path: path.recv().expect("a namespace"), _stop: stop }
    }
}

fn cni(criterion: &mut Criterion, dir: &Path) {
    let bin = dir.join("bin");
    std::fs::create_dir_all(&bin).expect("a directory");
    for name in ["bridge", "host-local", "loopback", "portmap"] {
        symlink(std::env::current_exe().expect("a program"), bin.join(name)).expect("a link");
    }
    Mode::Linked.set_for_process();
    let list = json!({"cniVersion": "1.1.0", "name": "bench", "plugins": [
        {"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true,
         "ipam": {"type": "host-local", "subnet": "10.9.0.0/24", "dataDir": dir.join("ipam")}}]});
    let plugins = Plugins { path: vec![bin], cache: dir.join("cache"), mode: Mode::Linked };
    let list = ConfList::parse(&list.to_string()).expect("a configuration");
    // Bridge and rules live in a namespace of this thread's own, never in the host's; nothing after this needs the network.
    unshare(CloneFlags::CLONE_NEWNET).expect("benches need root");
    let mut group = criterion.benchmark_group("cni");
    group.sample_size(30).measurement_time(Duration::from_secs(3));
    let mut n = 0;
    let mut attachment = || {
        n += 1;
        let netns = Netns::new();
        let a = Attachment {
            container_id: format!("c{n}"),
            netns: Some(netns.path.clone()),
            ifname: "eth0".into(),
            ..Attachment::default()
        };
        (netns, a)
    };
    group.bench_function("add_and_del", |b| {
        b.iter_batched(
            &mut attachment,
            |(netns, a)| {
                plugins.add(&list, &a).expect("attached");
                plugins.del(&list, &a).expect("detached");
                netns
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn main() {
    let zygote = podlab_testbed::early_main().expect("the zygote starts");
    // The driver mounts: in a mount namespace of our own, made before there are threads.
    unshare(CloneFlags::CLONE_NEWNS).expect("benches need root");
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>).expect("mounts become private");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("tokio starts");
    let mut criterion = Criterion::default().configure_from_args();
    let dir = tempfile::tempdir().expect("a directory");
    let mut lab = Lab::new(&zygote, &runtime, "bench-seams");
    let mut standing: Vec<Object> = (1..20).map(|k| pod(&format!("p{k}"), json!({}))).collect();
    standing.push(pod("standing", json!({})));
    runtime.block_on(lab.create(standing, is_ready));
    api(&mut criterion, &lab, &runtime);
    cri(&mut criterion, &lab, &runtime);
    csi(&mut criterion, &runtime, dir.path());
    cni(&mut criterion, dir.path());
    criterion.final_summary();
}
