//! The driver on a real socket with real mounts, in a user's or root's own mount namespace: a volume's whole life, each
//! call twice, and the codes of what is refused.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use podlab_csi::{
    connect,
    driver::{Driver, DriverConfig, TOPOLOGY},
    registrar::Registrar,
    v1::{
        self,
        controller_client::ControllerClient,
        identity_client::IdentityClient,
        node_client::NodeClient,
        registration::{InfoRequest, registration_client::RegistrationClient},
        volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode},
    },
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, transport::Channel};

fn main() {
    unshare(CloneFlags::CLONE_NEWNS).expect("these tests need root, or a user namespace: unshare -rm");
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .expect("make mounts private");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for (name, test) in [
        ("a_volumes_life_with_every_call_twice", 0),
        ("what_is_wrong_is_refused_with_its_code", 1),
        ("volumes_outlive_the_driver", 2),
    ] {
        runtime.block_on(async {
            match test {
                0 => life().await,
                1 => refusals().await,
                _ => restart().await,
            }
        });
        println!("test {name} ... ok");
    }
}

struct Running {
    dir: tempfile::TempDir,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    channel: Channel,
}

impl Running {
    async fn start() -> Self {
        Self::start_in(tempfile::tempdir().expect("a directory")).await
    }

    async fn start_in(dir: tempfile::TempDir) -> Self {
        let stop = CancellationToken::new();
        let socket = dir.path().join("csi.sock");
        let config = DriverConfig { socket: socket.clone(), root: dir.path().join("volumes"), node_id: "n1".into() };
        let (driver, token) = (Driver::new(config).expect("a driver"), stop.clone());
        #[expect(clippy::disallowed_methods, reason = "the test ends the task and waits for it")]
        let task = tokio::spawn(async move { driver.run(token).await.expect("serves") });
        while !socket.exists() {
            tokio::task::yield_now().await;
        }
        Self { channel: connect(&socket).expect("a channel"), dir, stop, task }
    }

    async fn end(self) -> tempfile::TempDir {
        self.stop.cancel();
        self.task.await.expect("ends");
        self.dir
    }

    fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn capability(mode: Mode) -> v1::VolumeCapability {
    let access_type = Some(AccessType::Mount(MountVolume::default()));
    v1::VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type }
}

fn create(name: &str, required_bytes: i64, limit_bytes: i64) -> v1::CreateVolumeRequest {
    v1::CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(v1::CapacityRange { required_bytes, limit_bytes }),
        volume_capabilities: vec![capability(Mode::SingleNodeWriter)],
        ..Default::default()
    }
}

fn stage(id: &str, path: &Path) -> v1::NodeStageVolumeRequest {
    v1::NodeStageVolumeRequest {
        volume_id: id.into(),
        staging_target_path: path.display().to_string(),
        volume_capability: Some(capability(Mode::SingleNodeWriter)),
        ..Default::default()
    }
}

fn publish(id: &str, staging: &Path, target: &Path, readonly: bool) -> v1::NodePublishVolumeRequest {
    v1::NodePublishVolumeRequest {
        volume_id: id.into(),
        staging_target_path: staging.display().to_string(),
        target_path: target.display().to_string(),
        volume_capability: Some(capability(Mode::SingleNodeWriter)),
        readonly,
        ..Default::default()
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

async fn life() {
    let r = Running::start().await;
    let (mut c, mut n) = (r.controller(), r.node());
    let name = IdentityClient::new(r.channel.clone())
        .get_plugin_info(v1::GetPluginInfoRequest {})
        .await
        .unwrap()
        .into_inner()
        .name;
    assert_eq!(name, "csi.podlab.dev");
    let mut ids = Vec::new();
    for _ in 0..2 {
        let v = c.create_volume(create("a", 1 << 20, 1 << 20)).await.unwrap().into_inner().volume.unwrap();
        assert_eq!((v.capacity_bytes, v.accessible_topology[0].segments[TOPOLOGY].as_str()), (1 << 20, "n1"));
        ids.push(v.volume_id);
    }
    assert_eq!(ids[0], ids[1]);
    let id = ids[0].as_str();
    let (staging, target, second) = (r.path("stage"), r.path("target"), r.path("second"));
    fs::create_dir(&staging).unwrap();
    for _ in 0..2 {
        n.node_stage_volume(stage(id, &staging)).await.unwrap();
    }
    for _ in 0..2 {
        n.node_publish_volume(publish(id, &staging, &target, false)).await.unwrap();
        n.node_publish_volume(publish(id, &staging, &second, true)).await.unwrap();
    }
    fs::write(target.join("f"), "kept").unwrap();
    assert_eq!(fs::read(second.join("f")).unwrap(), b"kept");
    assert_eq!(fs::write(second.join("f"), "x").unwrap_err().raw_os_error(), Some(30));
    let refused = n.node_publish_volume(publish(id, &staging, &target, true)).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists);

    let stats = |path: &Path| v1::NodeGetVolumeStatsRequest {
        volume_id: id.into(),
        volume_path: text(path),
        ..Default::default()
    };
    assert_eq!(n.node_get_volume_stats(stats(&target)).await.unwrap().into_inner().usage.len(), 2);
    assert_eq!(n.node_get_volume_stats(stats(r.dir.path())).await.unwrap_err().code(), Code::NotFound);
    let expand = v1::ControllerExpandVolumeRequest {
        volume_id: id.into(),
        capacity_range: Some(v1::CapacityRange { required_bytes: 1 << 21, limit_bytes: 0 }),
        ..Default::default()
    };
    for _ in 0..2 {
        assert_eq!(c.controller_expand_volume(expand.clone()).await.unwrap().into_inner().capacity_bytes, 1 << 21);
    }
    let delete = v1::DeleteVolumeRequest { volume_id: id.into(), ..Default::default() };
    assert_eq!(c.delete_volume(delete.clone()).await.unwrap_err().code(), Code::FailedPrecondition);
    for path in [&target, &second, &target] {
        n.node_unpublish_volume(v1::NodeUnpublishVolumeRequest { volume_id: id.into(), target_path: text(path) })
            .await
            .unwrap();
        assert!(!path.exists());
    }
    for _ in 0..2 {
        n.node_unstage_volume(v1::NodeUnstageVolumeRequest {
            volume_id: id.into(),
            staging_target_path: text(&staging),
        })
        .await
        .unwrap();
    }
    assert_eq!(fs::read_dir(&staging).unwrap().count(), 0);
    for _ in 0..2 {
        c.delete_volume(delete.clone()).await.unwrap();
    }
    assert_eq!(fs::read_dir(r.path("volumes")).unwrap().count(), 0);
    r.end().await;
}

async fn refusals() {
    let r = Running::start().await;
    let (mut c, mut n) = (r.controller(), r.node());
    let block = v1::VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        ..capability(Mode::SingleNodeWriter)
    };
    let elsewhere = v1::TopologyRequirement {
        requisite: vec![v1::Topology { segments: [(TOPOLOGY.to_owned(), "n2".to_owned())].into() }],
        ..Default::default()
    };
    for (request, code) in [
        (create("", 1, 0), Code::InvalidArgument),
        (v1::CreateVolumeRequest { volume_capabilities: vec![], ..create("a", 1, 0) }, Code::InvalidArgument),
        (v1::CreateVolumeRequest { volume_capabilities: vec![block], ..create("a", 1, 0) }, Code::InvalidArgument),
        (
            v1::CreateVolumeRequest {
                volume_capabilities: vec![capability(Mode::MultiNodeMultiWriter)],
                ..create("a", 1, 0)
            },
            Code::InvalidArgument,
        ),
        (
            v1::CreateVolumeRequest { accessibility_requirements: Some(elsewhere), ..create("a", 1, 0) },
            Code::ResourceExhausted,
        ),
        (create("a", i64::MAX, 0), Code::OutOfRange),
    ] {
        assert_eq!(c.create_volume(request.clone()).await.unwrap_err().code(), code, "{request:?}");
    }
    let id = c.create_volume(create("a", 5, 5)).await.unwrap().into_inner().volume.unwrap().volume_id;
    assert_eq!(c.create_volume(create("a", 9, 9)).await.unwrap_err().code(), Code::AlreadyExists);
    let list = |token: &str| v1::ListVolumesRequest { max_entries: 0, starting_token: token.into() };
    assert_eq!(c.list_volumes(list("")).await.unwrap().into_inner().entries.len(), 1);
    assert_eq!(c.list_volumes(list("nonsense")).await.unwrap_err().code(), Code::Aborted);
    let path = r.path("p");
    assert_eq!(n.node_stage_volume(stage("", &path)).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(n.node_stage_volume(stage("unknown", &path)).await.unwrap_err().code(), Code::NotFound);
    let unstaged = publish(&id, &path, &r.path("t"), false);
    assert_eq!(n.node_publish_volume(unstaged).await.unwrap_err().code(), Code::FailedPrecondition);
    r.end().await;
}

async fn restart() {
    let first = Running::start().await;
    let id = first.controller().create_volume(create("a", 5, 0)).await.unwrap().into_inner().volume.unwrap().volume_id;
    let dir = first.end().await;
    let data = dir.path().join("volumes").join(&id).join("data");
    let inode = fs::metadata(&data).unwrap().ino();
    let again = Running::start_in(dir).await;
    assert_eq!(
        again.controller().create_volume(create("a", 5, 0)).await.unwrap().into_inner().volume.unwrap().volume_id,
        id
    );
    assert_eq!(fs::metadata(&data).unwrap().ino(), inode);

    let socket = again.path("reg.sock");
    let registrar = Registrar { socket: socket.clone(), name: "d".into(), endpoint: "/x/csi.sock".into() };
    let (served, asked) = (again.stop.clone(), async {
        while !socket.exists() {
            tokio::task::yield_now().await;
        }
        let mut client = RegistrationClient::new(connect(&socket).unwrap());
        let info = client.get_info(InfoRequest {}).await.unwrap().into_inner();
        assert_eq!(
            (info.r#type.as_str(), info.name.as_str(), info.endpoint.as_str()),
            ("CSIPlugin", "d", "/x/csi.sock")
        );
        again.stop.cancel();
    });
    let (result, ()) = tokio::join!(registrar.run(served), asked);
    result.unwrap();
    assert!(!socket.exists());
}
