//! `enter`: a command inside a node's namespaces.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use podlab_testbed::Cluster;

pub(crate) fn enter(name: &str, node: &str, command: &[String]) -> Result<ExitCode> {
    let cluster = Cluster::attach(name)?;
    cluster.enter_node(node)?;
    let (program, args) = command.split_first().map_or(("/bin/sh", &[][..]), |(p, a)| (p.as_str(), a));
    // A child, because a pid namespace only takes effect for children.
    let status = Command::new(program)
        .args(args)
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/podlab/bin")
        .env("HOME", "/root")
        .current_dir("/")
        .status()
        .with_context(|| format!("run {program} in {node}"))?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}
