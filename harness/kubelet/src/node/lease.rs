//! The node's heartbeat.

use std::{sync::Arc, time::Duration};

use podlab_api::{
    ApiError,
    coordination::{Lease, LeaseSpec},
    meta::{MicroTime, ObjectMeta, OwnerReference},
};
use podlab_client::PatchKind;
use serde_json::json;

use crate::agent::Agent;

/// Where leases of nodes live.
const NAMESPACE: &str = "kube-node-lease";
/// How much later than its period a renewal may come.
/// Source: k/k staging/src/k8s.io/component-helpers/apimachinery/lease/controller.go Run.
const JITTER: f64 = 0.04;
/// Pause after a failed write; doubles up to [`RETRY_MAX`].
const RETRY_FIRST: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(7);

/// Renews the lease until the agent stops.
pub(crate) async fn renew(agent: Arc<Agent>) {
    let shutdown = agent.shutdown.clone();
    let _ = shutdown
        .run_until_cancelled(async {
            let period = agent.config.lease_duration / 4;
            let mut pause = RETRY_FIRST;
            loop {
                match write(&agent).await {
                    Ok(()) => {
                        pause = RETRY_FIRST;
                        agent.clock.sleep(period.mul_f64(1.0 + JITTER * agent.rng.unit())).await;
                    }
                    Err(error) => {
                        tracing::debug!(%error, "lease not renewed");
                        agent.clock.sleep(pause).await;
                        pause = (pause * 2).min(RETRY_MAX);
                    }
                }
            }
        })
        .await;
}

async fn write(agent: &Agent) -> Result<(), ApiError> {
    let name = &agent.config.node_name;
    let leases = agent.client.namespaced::<Lease>(NAMESPACE);
    let now = MicroTime(agent.clock.wall());
    let seconds = i32::try_from(agent.config.lease_duration.as_secs()).unwrap_or(40);
    let body = json!({"spec": {"holderIdentity": name, "leaseDurationSeconds": seconds, "renewTime": now}});
    match leases.patch(name, &PatchKind::Merge, &body).await {
        Err(e) if e.is_not_found() => {}
        other => return other.map(drop),
    }
    let owner = agent.node.lock().metadata.uid.clone().map(|uid| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.clone(),
        uid,
        ..OwnerReference::default()
    });
    let lease = Lease {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(NAMESPACE.to_owned()),
            owner_references: owner.map(|o| vec![o]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(name.clone()),
            lease_duration_seconds: Some(seconds),
            renew_time: Some(now),
            ..LeaseSpec::default()
        }),
    };
    leases.create(&lease).await.map(drop)
}
