//! The runtime on its own, in the caller's namespaces, for foreign judges and other node agents.

use std::{io, path::PathBuf, sync::Arc};

use podlab_clock::{Clock, Rng};
use podlab_timeline::Recorder;
use tokio_util::sync::CancellationToken;

use crate::{
    bridge::Bridge,
    cgroup::{Cgroups, Version},
    config::BridgeConfig,
    init::{Init, InitConfig},
    network::NetworkPlugin,
    runtime::BridgeDeps,
};

/// Where a standalone runtime keeps its things: `ROOT` for what survives it, a directory beside it for what does not.
pub fn config(listen: PathBuf, root: PathBuf) -> BridgeConfig {
    let run = root.join("run");
    BridgeConfig { listen, netns_dir: run.join("netns"), ..BridgeConfig::new(root, run) }
}

/// Makes this process an init and forks the bridge as its child; returns the exit code when everything has ended:
/// SIGTERM and SIGINT end bridge and containers. Must be called before any thread exists. `network` is called in the
/// bridge's process.
///
/// # Errors
/// What the kernel refuses to the init; errors of the bridge are printed and give exit code 2.
pub fn serve(mut config: BridgeConfig, network: impl Fn(Clock) -> Arc<dyn NetworkPlugin>) -> io::Result<i32> {
    let clock = Clock::real();
    let cgroups = Cgroups::detect(config.cgroup_base.as_deref())?;
    if cgroups.version() == Version::V2 && config.cgroup_base.is_none() {
        // A group that has processes cannot have limited groups below it, so this process moves aside.
        config.cgroup_base = Some(Cgroups::own_path()?);
        let aside = cgroups.group("podlab-bridge");
        aside.create()?;
        aside.enter()?;
    }
    let init = InitConfig {
        socket: config.init_socket.clone(),
        run_dir: config.run.clone(),
        start_agent: true,
        lifeline: None,
    };
    let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC | nix::fcntl::OFlag::O_NONBLOCK)?;
    let mut agent = || {
        let result = bridge(config.clone(), network(clock), clock);
        if let Err(message) = &result {
            let _ = nix::unistd::write(&write, &[2]);
            // The last word of a program that cannot serve; there is no log yet that anybody reads.
            let _ = io::Write::write_all(&mut io::stderr(), format!("podlab cri: {message}\n").as_bytes());
        }
        if result.is_ok() { 0 } else { 2 }
    };
    Init::new(init, clock)?.keep_agent().run(&mut agent);
    // Containers and bridge have ended, so nothing uses the writable layers any more.
    let _ = nix::mount::umount2(&config.run.join("rw"), nix::mount::MntFlags::MNT_DETACH);
    cgroups.group(&config.default_cgroup_parent).remove_empty();
    let mut code = [0];
    Ok(match nix::unistd::read(&read, &mut code) {
        Ok(1) => i32::from(code[0]),
        _ => 0,
    })
}

fn bridge(config: BridgeConfig, network: Arc<dyn NetworkPlugin>, clock: Clock) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|e| e.to_string())?;
    let result = runtime.block_on(async {
        let end = CancellationToken::new();
        let mut term =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).map_err(|e| e.to_string())?;
        let deps = BridgeDeps { clock, rng: Rng::from_entropy(), recorder: Recorder::disabled(clock), network };
        let serving = Bridge::new(config, deps).map_err(|e| e.to_string())?.run(end.clone());
        tokio::pin!(serving);
        loop {
            tokio::select! {
                r = &mut serving => return r.map_err(|e| e.to_string()),
                _ = term.recv() => end.cancel(),
            }
        }
    });
    // What still blocks (a removal that waits for a process to end) is somebody else's next start.
    runtime.shutdown_background();
    result
}
