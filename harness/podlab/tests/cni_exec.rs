//! The bundled CNI plugins give the same result exec'ed by the specification's protocol and linked in.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

use std::{path::Path, sync::mpsc, thread};

use nix::sched::{CloneFlags, unshare};
use podlab_cni::{
    chain::{Attachment, ConfList, Mode, Runtime},
    types::CniResult,
};

/// Plays ADD, CHECK and DEL in fresh namespaces; the plugins are links to `program`.
fn play(program: &Path, mode: Mode) -> CniResult {
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for name in podlab_cni::plugins::NAMES {
        std::os::unix::fs::symlink(program, bin.join(name)).unwrap();
    }
    let list = format!(
        r#"{{"cniVersion":"1.1.0","name":"net","plugins":[
            {{"type":"bridge","bridge":"br0","isDefaultGateway":true,"hairpinMode":true,"ipam":{{"type":"host-local","subnet":"10.9.0.0/24","dataDir":"{}"}}}},
            {{"type":"portmap","capabilities":{{"portMappings":true}}}}]}}"#,
        dir.path().join("ipam").display()
    );
    let list = ConfList::parse(&list).unwrap();
    let runtime = Runtime { path: vec![bin], cache: dir.path().join("cache"), mode };
    let (tell, path) = mpsc::channel();
    let (stop, wait) = mpsc::channel::<()>();
    thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("these tests need root");
        let (pid, tid) = (std::process::id(), nix::unistd::gettid());
        // By number, so that an exec'ed plugin, for whom `self` is somebody else, finds it too.
        tell.send(std::path::PathBuf::from(format!("/proc/{pid}/task/{tid}/ns/net"))).unwrap();
        let _ = wait.recv();
    });
    let netns = path.recv().unwrap();
    let result = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let mut a = Attachment {
            container_id: "c1".into(),
            netns: Some(netns),
            ifname: "eth0".into(),
            ..Attachment::default()
        };
        let ports = r#"[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]"#;
        a.capabilities.insert("portMappings".into(), serde_json::from_str(ports).unwrap());
        let result = runtime.add(&list, &a).unwrap();
        runtime.check(&list, &a).unwrap();
        runtime.status(&list).unwrap();
        runtime.del(&list, &a).unwrap();
        result
    })
    .join()
    .unwrap();
    drop(stop);
    result
}

/// Without what differs between any two attachments: hardware addresses and the namespace's path.
fn comparable(mut r: CniResult) -> CniResult {
    for i in &mut r.interfaces {
        i.mac.clear();
        i.sandbox = if i.sandbox.is_empty() { String::new() } else { "netns".into() };
    }
    r
}

#[test]
fn exec_and_linked_give_the_same_result() {
    let exec = play(Path::new(env!("CARGO_BIN_EXE_podlab")), Mode::Exec);
    Mode::Linked.set_for_process();
    let linked = play(&std::env::current_exe().unwrap(), Mode::Linked);
    assert_eq!(exec.ips[0].address, "10.9.0.2/24");
    assert_eq!(comparable(exec), comparable(linked));
}
