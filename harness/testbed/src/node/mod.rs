//! A node: its own mounts, pids, network, host name and cgroup; an init that is the parent of its containers; an agent
//! (node agent, CRI bridge, CSI driver, Service proxy) that may die and come back.

pub(crate) mod agent;
mod components;
mod cri_tap;
mod csi_tap;
pub(crate) mod disk;
mod network;
pub(crate) mod rootfs;
pub(crate) mod tap;

use std::{io, os::fd::OwnedFd, path::PathBuf};

pub(crate) use components::configure;
use nix::sched::{CloneFlags, unshare};
use podlab_clock::Clock;
use podlab_cri::init::{Init, InitConfig};
use podlab_fault::Effect;

pub(crate) use network::CniTap;

use crate::{
    capsule::{Capsule, network as links},
    cgroup, process,
};

/// Where the node keeps its init's socket, the agent's sockets and the record of exits; the host sees it as
/// `nodes/<node>/run` in the cluster's state.
pub(crate) const RUN_DIR: &str = "/run/podlab";

/// The body of node init, in a fresh child with new namespaces. Waits on `go` until the network is plugged in.
pub(crate) fn main(capsule: &Capsule, index: u8, cgroups: &[PathBuf], go: &OwnedFd) -> i32 {
    match run(capsule, index, cgroups, go) {
        Ok(()) => 0,
        Err(e) => {
            crate::telemetry::say(format_args!("node-{index} init: {e}"));
            1
        }
    }
}

fn run(capsule: &Capsule, index: u8, cgroups: &[PathBuf], go: &OwnedFd) -> io::Result<()> {
    let name = format!("node-{index}");
    process::redirect_stdio(&capsule.state.join(format!("logs/{name}.log")))?;
    cgroup::enter(cgroups)?;
    let hierarchies = rootfs::own_hierarchies(&capsule.state.cgroup())?;
    unshare(CloneFlags::CLONE_NEWCGROUP)?;
    nix::unistd::sethostname(&name)?;
    let settings = agent::Settings::new(capsule, index)?;
    rootfs::enter(capsule, &name, &hierarchies)?;
    let mut byte = [0];
    if nix::unistd::read(go, &mut byte)? != 1 {
        return Err(io::Error::other("the capsule ended before the network was there"));
    }
    links::set_up_node(index, capsule.spec.nodes)?;
    let config = InitConfig {
        socket: PathBuf::from(RUN_DIR).join("init.sock"),
        run_dir: PathBuf::from(RUN_DIR).join("init"),
        start_agent: true,
        lifeline: None,
    };
    let init = Init::new(config, Clock::real())?;
    // An agent that a fault crashes comes back by itself; one that somebody kills stays down.
    let crashes = capsule.spec.faults.iter().any(|f| matches!(f.effect, Effect::CrashAt { .. }));
    let init = if crashes { init.keep_agent() } else { init };
    init.run(|| agent::main(&settings));
    Ok(())
}
