//! How long a Pod's start takes through the socket: RunPodSandbox, CreateContainer, StartContainer, one after the other.
//!
//! `cargo run --release -p podlab-cri --example startbench -- [N]`, as root.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, unsafe_code, dead_code, reason = "a bench, which forks")]

#[path = "../tests/node/mod.rs"]
mod node;

use podlab_clock::{Clock, Rng};
use podlab_cri::{images::Store, v1};

const IMAGE: &str = "registry.test/testimage:1";

fn main() {
    let n: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(100);
    let dir = tempfile::tempdir().unwrap();
    let node = node::start(dir.path(), None);
    let clock = Clock::real();
    let tar = dir.path().join("image.tar");
    podlab_testimage::Image::testimage().write_archive(&tar, IMAGE).unwrap();
    let store = Store::open(
        &dir.path().join("root/images"),
        &dir.path().join("root/content"),
        false,
        clock,
        Rng::from_entropy(),
    )
    .unwrap();
    store.import(&tar).unwrap();
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut times: [Vec<f64>; 6] = Default::default();
    rt.block_on(async {
        let (mut rt, _) = node.clients().await;
        for i in 0..n + 5 {
            let mut marks = vec![clock.now()];
            let options = v1::NamespaceOption { pid: v1::NamespaceMode::Container.into(), ..Default::default() };
            let config = v1::PodSandboxConfig {
                metadata: Some(v1::PodSandboxMetadata {
                    name: format!("p{i}"),
                    uid: format!("u{i}"),
                    namespace: "default".into(),
                    attempt: 0,
                }),
                hostname: format!("p{i}"),
                log_directory: dir.path().join("logs").display().to_string(),
                linux: Some(v1::LinuxPodSandboxConfig {
                    cgroup_parent: format!("{}/pod{i}", node.cgroup),
                    security_context: Some(v1::LinuxSandboxSecurityContext {
                        namespace_options: Some(options.clone()),
                        ..Default::default()
                    }),
                    ..Default::default()
                }),
                ..Default::default()
            };
            let request = v1::RunPodSandboxRequest { config: Some(config.clone()), ..Default::default() };
            let pod_sandbox_id = rt.run_pod_sandbox(request).await.unwrap().into_inner().pod_sandbox_id;
            marks.push(clock.now());
            let config = v1::ContainerConfig {
                metadata: Some(v1::ContainerMetadata { name: "c".into(), attempt: 0 }),
                image: Some(v1::ImageSpec { image: IMAGE.into(), ..Default::default() }),
                command: vec!["pause".into()],
                log_path: format!("{i}.log"),
                linux: Some(v1::LinuxContainerConfig {
                    security_context: Some(v1::LinuxContainerSecurityContext {
                        namespace_options: Some(options),
                        masked_paths: [
                            "/proc/acpi",
                            "/proc/kcore",
                            "/proc/keys",
                            "/proc/timer_list",
                            "/proc/scsi",
                            "/sys/firmware",
                        ]
                        .map(Into::into)
                        .to_vec(),
                        readonly_paths: ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
                            .map(Into::into)
                            .to_vec(),
                        ..Default::default()
                    }),
                    resources: Some(v1::LinuxContainerResources {
                        cpu_shares: 102,
                        memory_limit_in_bytes: 64 << 20,
                        ..Default::default()
                    }),
                }),
                ..Default::default()
            };
            let request = v1::CreateContainerRequest {
                pod_sandbox_id: pod_sandbox_id.clone(),
                config: Some(config),
                sandbox_config: None,
            };
            let container_id = rt.create_container(request).await.unwrap().into_inner().container_id;
            marks.push(clock.now());
            rt.start_container(v1::StartContainerRequest { container_id: container_id.clone() }).await.unwrap();
            marks.push(clock.now());
            rt.stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() }).await.unwrap();
            marks.push(clock.now());
            rt.remove_pod_sandbox(v1::RemovePodSandboxRequest { pod_sandbox_id }).await.unwrap();
            marks.push(clock.now());
            if i >= 5 {
                for (at, pair) in marks.windows(2).enumerate() {
                    times[at].push(pair[1].since(pair[0]).as_secs_f64() * 1e3);
                }
                times[5].push(marks[3].since(marks[0]).as_secs_f64() * 1e3);
            }
        }
    });
    for (name, list) in [
        "RunPodSandbox",
        "CreateContainer",
        "StartContainer",
        "StopPodSandbox",
        "RemovePodSandbox",
        "start path (first three)",
    ]
    .iter()
    .zip(&mut times)
    {
        list.sort_by(f64::total_cmp);
        let at = |q: usize| list[(list.len() * q / 100).min(list.len() - 1)];
        println!("{name:<26} n={n} min={:.2} p50={:.2} p90={:.2} p99={:.2} ms", list[0], at(50), at(90), at(99));
    }
    let all = podlab_cri::cgroup::Cgroups::detect(None).unwrap();
    for i in 0..n + 5 {
        let _ = all.group(&format!("{}/pod{i}", node.cgroup)).remove();
    }
}
