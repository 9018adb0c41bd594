//! The host before and after.

use std::{process::Command, time::Duration};

use libtest_mimic::Failed;
use podlab_clock::Clock;
use podlab_testbed::{Cluster, ClusterSpec, Fingerprint, StateDir, Zygote, collect_garbage};

use crate::pods;

const LIMIT: Duration = Duration::from_secs(60);

/// Boots a cluster with a running Pod on it.
fn with_a_pod(zygote: &Zygote, name: &str) -> Result<Cluster, Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let cluster = Cluster::boot(zygote, ClusterSpec { nodes: 2, tied_to_runner: true, ..ClusterSpec::named(name) })?;
    runtime.block_on(async {
        cluster.wait_ready(Clock::real(), LIMIT).await?;
        let client = cluster.client()?;
        client.namespaced("default").create(&pods::make("a", "Always", serde_json::json!(["sleep", "1000"]))?).await?;
        pods::wait(&client, "a", "Ready", LIMIT, pods::is_ready).await
    })?;
    Ok(cluster)
}

fn unchanged(before: &Fingerprint) -> Result<(), Failed> {
    let differences = before.differences(&Fingerprint::take());
    if differences.is_empty() { Ok(()) } else { Err(differences.join("\n").into()) }
}

pub fn after_a_run(zygote: &Zygote) -> Result<(), Failed> {
    collect_garbage();
    let before = Fingerprint::take();
    let cluster = with_a_pod(zygote, &format!("host-{}", std::process::id()))?;
    if before.differences(&Fingerprint::take()).is_empty() {
        return Err("the fingerprint does not even see a running cluster".into());
    }
    drop(cluster);
    unchanged(&before)
}

/// The program of [`after_sigkill`]'s child: has a cluster, says so, and waits to be killed.
pub fn be_the_victim(zygote: &Zygote, name: &str) -> ! {
    match with_a_pod(zygote, name) {
        Ok(_cluster) => {
            println!("ready");
            loop {
                std::thread::park();
            }
        }
        Err(e) => {
            println!("failed: {}", e.message().unwrap_or_default());
            std::process::exit(1);
        }
    }
}

pub fn after_sigkill(_: &Zygote) -> Result<(), Failed> {
    use std::io::BufRead;
    collect_garbage();
    let before = Fingerprint::take();
    let name = format!("victim-{}", std::process::id());
    let mut child = Command::new(std::env::current_exe()?)
        .env("PODLAB_VICTIM", &name)
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        std::io::BufReader::new(out).read_line(&mut line)?;
    }
    if line.trim() != "ready" {
        return Err(format!("the victim said {line:?}").into());
    }
    child.kill()?;
    child.wait()?;
    // The capsule ends by itself, by its lifeline; then the next command finds and removes the rest.
    let state = StateDir::of(&name)?;
    let clock = Clock::real();
    let end = clock.now().after(Duration::from_secs(10));
    while state.is_live() {
        if clock.now() > end {
            return Err("the capsule outlived its runner".into());
        }
        std::thread::yield_now();
    }
    collect_garbage();
    if state.path().exists() {
        return Err("the state directory is still there".into());
    }
    unchanged(&before)
}
