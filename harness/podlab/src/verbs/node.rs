//! `node kill|stop|start|crash|boot|holdings`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use podlab_testbed::{AgentCommand, Cluster};

use crate::cli::{NodeAction, NodeName};

pub(crate) fn act(action: NodeAction) -> Result<ExitCode> {
    let (NodeAction::Kill(n)
    | NodeAction::Stop(n)
    | NodeAction::Start(n)
    | NodeAction::Crash(n)
    | NodeAction::Boot(n)
    | NodeAction::Holdings(n)) = &action;
    let NodeName { node, name } = n;
    let cluster = Cluster::attach(&name.name)?;
    if !cluster.spec().node_names().contains(node) {
        bail!("cluster {:?} has no node {node:?}; it has {}", name.name, cluster.spec().node_names().join(", "));
    }
    match &action {
        NodeAction::Kill(_) => cluster.agent(node, AgentCommand::Kill)?,
        NodeAction::Stop(_) => cluster.agent(node, AgentCommand::Stop)?,
        NodeAction::Start(_) => cluster.agent(node, AgentCommand::Start)?,
        NodeAction::Crash(_) => drop(cluster.control(&format!("crash {node}"))?),
        NodeAction::Boot(_) => drop(cluster.control(&format!("boot {node}"))?),
        NodeAction::Holdings(_) => crate::out::whole(&serde_json::to_vec(&cluster.inside(node)?.holdings()?)?)?,
    }
    Ok(ExitCode::SUCCESS)
}
