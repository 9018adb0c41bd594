//! Making the node known.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use podlab_api::{
    core::{Node, NodeSpec},
    meta::ObjectMeta,
};
use podlab_client::PatchKind;
use serde_json::json;

use super::status;
use crate::agent::Agent;

/// Pause after a failed try; doubles up to [`RETRY_MAX`].
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(7);

/// Creates the node, or brings an existing one up to date; tries until it works.
pub(crate) async fn register(agent: &Arc<Agent>) {
    let mut pause = RETRY_FIRST;
    loop {
        match try_register(agent).await {
            Ok(node) => {
                *agent.node.lock() = node;
                return;
            }
            Err(error) => {
                tracing::debug!(%error, "node not registered");
                agent.clock.sleep(pause).await;
                pause = (pause * 2).min(RETRY_MAX);
            }
        }
    }
}

fn labels(agent: &Agent) -> BTreeMap<String, String> {
    let arch = &agent.machine.architecture;
    let fixed = [
        ("kubernetes.io/hostname", agent.config.hostname.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch),
    ];
    let mut out = agent.config.labels.clone();
    for (k, v) in fixed {
        out.entry(k.to_owned()).or_insert_with(|| v.to_owned());
    }
    out
}

async fn try_register(agent: &Arc<Agent>) -> Result<Node, podlab_api::ApiError> {
    let nodes = agent.client.all::<Node>();
    let name = &agent.config.node_name;
    let attach = ("volumes.kubernetes.io/controller-managed-attach-detach".to_owned(), "true".to_owned());
    let node = Node {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels(agent)),
            annotations: Some([attach.clone()].into()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: Some(agent.config.taints.clone()).filter(|t| !t.is_empty()),
            provider_id: agent.config.provider_id.clone(),
            ..NodeSpec::default()
        }),
        status: Some(status::build(agent, &Default::default()).await),
    };
    if !agent.config.register_node {
        // Somebody else makes it; until then there is nothing to report on.
        return nodes.get(name).await;
    }
    match nodes.create(&node).await {
        Ok(made) => Ok(made),
        Err(e) if e.is_already_exists() => {
            let body = json!({"metadata": {"labels": labels(agent), "annotations": {attach.0: attach.1}}});
            nodes.patch(name, &PatchKind::Merge, &body).await
        }
        Err(e) => Err(e),
    }
}
