//! Tapes recorded on real containers, replayed offline: against the bundled CSI driver alone, which must answer as it did,
//! and against one that is known to be bad, which must be found out. Mounts in a namespace of its own, so that nothing of
//! the host is touched.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use libtest_mimic::{Arguments, Failed, Trial};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use podlab_clock::Clock;
use podlab_csi::driver::{Driver, DriverConfig};
use podlab_mutant::Mutant;
use podlab_tape::{Patience, Replayed, SocketTarget, Tape, replay, serve};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Where the node agent had its volumes when the tape was recorded.
const THERE: &str = "/var/lib/kubelet";

fn tape(name: &str) -> Result<Tape, Failed> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../scenarios/virtual/tapes");
    Ok(Tape::read(&dir.join(name))?)
}

fn main() -> std::process::ExitCode {
    // Before any thread: a namespace belongs to the thread that asks for it.
    let alone = unshare(CloneFlags::CLONE_NEWNS)
        .and_then(|()| mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>));
    if let Err(e) = alone {
        eprintln!("tapes: a mount namespace of its own: {e}; run as root");
        return std::process::ExitCode::from(2);
    }
    let trials = vec![
        Trial::test("the_driver_alone_answers_a_tape_as_it_did_in_a_cluster", driver),
        Trial::test("a_driver_that_stages_only_once_is_found_by_the_tape", bad_driver),
        Trial::test("a_tape_served_in_the_runtimes_place_answers_its_own_calls", served),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Plays the claim's tape against a driver of this process.
fn on_driver(mutant: Option<Mutant>) -> Result<Replayed, Failed> {
    let _on = podlab_mutant::on_thread(mutant);
    let (tape, dir) = (tape("claim.csi.jsonl")?, tempfile::tempdir()?);
    let config = DriverConfig {
        socket: dir.path().join("csi.sock"),
        root: dir.path().join("volumes"),
        node_id: "node-1".to_owned(),
    };
    let (socket, moved) = (config.socket.clone(), (PathBuf::from(THERE), dir.path().join("kubelet")));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (driver, stop, mut tasks) = (Driver::new(config)?, CancellationToken::new(), JoinSet::new());
        let token = stop.clone();
        tasks.spawn(async move { driver.run(token).await });
        until_there(&socket).await?;
        let target = SocketTarget::new(&socket, tape.seam)?;
        let done = replay(&tape, &target, Some(&moved), Clock::real(), Patience::default()).await;
        stop.cancel();
        while tasks.join_next().await.is_some() {}
        Ok(done)
    })
}

async fn until_there(socket: &Path) -> Result<(), Failed> {
    let clock = Clock::real();
    let there = async {
        while !socket.exists() {
            clock.sleep(Duration::from_millis(2)).await;
        }
    };
    clock.timeout(Duration::from_secs(60), there).await.ok_or_else(|| "nobody listens".into())
}

fn driver() -> Result<(), Failed> {
    let done = on_driver(None)?;
    match done.differences.as_slice() {
        [] if done.calls >= 8 => Ok(()),
        [] => Err(format!("only {} calls are on the tape", done.calls).into()),
        found => Err(format!("{found:#?}").into()),
    }
}

fn bad_driver() -> Result<(), Failed> {
    let done = on_driver(Some(Mutant::StagesOnce))?;
    match done.differences.as_slice() {
        [d] if d.method == "NodeStageVolume" => Ok(()),
        found => Err(format!("{found:#?}").into()),
    }
}

fn served() -> Result<(), Failed> {
    let (tape, dir) = (tape("pod.cri.jsonl")?, tempfile::tempdir()?);
    let socket = dir.path().join("cri.sock");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let (token, listen, fake) = (stop.clone(), socket.clone(), tape.clone());
        tasks.spawn(async move { serve(fake, &listen, token).await });
        until_there(&socket).await?;
        let target = SocketTarget::new(&socket, tape.seam)?;
        let done = replay(&tape, &target, None, Clock::real(), Patience::default()).await;
        stop.cancel();
        while tasks.join_next().await.is_some() {}
        match done.differences.as_slice() {
            [] if done.calls >= 10 => Ok(()),
            found => Err(format!("{} calls, {found:#?}", done.calls).into()),
        }
    })
}
