//! The bundled chain on real namespaces: needs root.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

use std::{
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use nix::sched::{CloneFlags, unshare};
use podlab_cni::{
    chain::{Attachment, ConfList, Mode, Runtime},
    netlink::Netlink,
    plugins::host_local,
};
use serde_json::json;

/// Runs a closure in a fresh network namespace of its own thread.
fn in_new_netns<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    let inside = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("these tests need root");
        f()
    });
    inside.join().unwrap()
}

/// A container's namespace, alive until dropped.
struct Netns {
    path: PathBuf,
    _stop: mpsc::Sender<()>,
}

impl Netns {
    fn new() -> Self {
        let (stop, wait) = mpsc::channel::<()>();
        let (tell, path) = mpsc::channel();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let tid = nix::unistd::gettid();
            tell.send(PathBuf::from(format!("/proc/self/task/{tid}/ns/net"))).unwrap();
            let _ = wait.recv();
        });
        Self { path: path.recv().unwrap(), _stop: stop }
    }
}

fn setup(dir: &Path) -> (Runtime, ConfList) {
    let bin = dir.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    for name in ["bridge", "host-local", "loopback", "portmap"] {
        std::os::unix::fs::symlink(std::env::current_exe().unwrap(), bin.join(name)).unwrap();
    }
    Mode::Linked.set_for_process();
    let list = json!({"cniVersion": "1.1.0", "name": "test", "plugins": [
        {"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "hairpinMode": true, "ipMasq": true,
         "capabilities": {"io.kubernetes.cri.pod-annotations": true},
         "ipam": {"type": "host-local", "subnet": "10.9.0.0/29", "dataDir": dir.join("ipam")}},
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]});
    let runtime = Runtime { path: vec![bin], cache: dir.join("cache"), mode: Mode::Linked };
    (runtime, ConfList::parse(&list.to_string()).unwrap())
}

fn attachment(id: &str, netns: &Netns) -> Attachment {
    Attachment {
        container_id: id.into(),
        netns: Some(netns.path.clone()),
        ifname: "eth0".into(),
        ..Attachment::default()
    }
}

#[test]
fn add_connects_check_verifies_and_del_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (runtime, list) = setup(dir.path());
    let data = dir.path().join("ipam");
    in_new_netns(move || {
        let container = Netns::new();
        let mut a = attachment("c1", &container);
        a.capabilities
            .insert("portMappings".into(), json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]));
        let result = runtime.add(&list, &a).unwrap();
        assert_eq!(result.ips[0].address, "10.9.0.2/29");
        assert_eq!(result.interfaces.iter().map(|i| i.name.as_str()).nth(2), Some("eth0"));
        runtime.check(&list, &a).unwrap();
        runtime.status(&list).unwrap();
        let host = Netlink::open().unwrap();
        assert_eq!(host.links().unwrap().iter().filter(|l| l.name.starts_with("veth")).count(), 1);
        assert_eq!(host_local::allocations(&data, "test").len(), 1);
        runtime.del(&list, &a).unwrap();
        runtime.del(&list, &a).unwrap();
        assert_eq!(host.links().unwrap().iter().filter(|l| l.name.starts_with("veth")).count(), 0);
        assert!(host_local::allocations(&data, "test").is_empty());
    });
}

#[test]
fn addresses_run_out_with_the_reference_message_and_a_failed_add_keeps_none() {
    let dir = tempfile::tempdir().unwrap();
    let (runtime, list) = setup(dir.path());
    let data = dir.path().join("ipam");
    in_new_netns(move || {
        let all: Vec<Netns> = (0..6).map(|_| Netns::new()).collect();
        for (i, netns) in all.iter().take(5).enumerate() {
            runtime.add(&list, &attachment(&format!("c{i}"), netns)).unwrap();
        }
        let error = runtime.add(&list, &attachment("c5", &all[5])).unwrap_err();
        assert_eq!(
            error.msg,
            "plugin type=\"bridge\" failed (add): failed to allocate for range 0: \
             no IP addresses available in range set: 10.9.0.1-10.9.0.6"
        );
        assert_eq!(host_local::allocations(&data, "test").len(), 5);
        runtime.gc(&list, &[("c1".into(), "eth0".into())]).unwrap();
        assert_eq!(host_local::allocations(&data, "test").len(), 1);
    });
}

#[test]
fn calicos_annotation_asks_for_an_address() {
    let dir = tempfile::tempdir().unwrap();
    let (runtime, list) = setup(dir.path());
    in_new_netns(move || {
        let container = Netns::new();
        let with = |text: &str| {
            let mut a = attachment("c1", &container);
            let annotations = json!({"cni.projectcalico.org/ipAddrs": text});
            a.capabilities.insert("io.kubernetes.cri.pod-annotations".into(), annotations);
            a
        };
        let error = runtime.add(&list, &with("[\"10.9.0.x\"]")).unwrap_err();
        assert!(error.msg.contains("invalid IP format: 10.9.0.x"), "{}", error.msg);
        let error = runtime.add(&list, &with("[]")).unwrap_err();
        assert!(error.msg.contains("specified but empty"), "{}", error.msg);
        let result = runtime.add(&list, &with("[\"10.9.0.5\"]")).unwrap();
        assert_eq!(result.ips[0].address, "10.9.0.5/29");
    });
}
