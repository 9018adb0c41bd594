//! What a ReplicaSet and its elder, the ReplicationController, have in common: one controller serves both.
//! Source: k/k pkg/controller/replication/conversion.go.

use podlab_api::{
    KubeType,
    apps::{ReplicaSet, ReplicaSetCondition, ReplicaSetSpec, ReplicaSetStatus},
    core::{ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus},
    meta::LabelSelector,
};

/// A kind that keeps a number of equal Pods.
pub(crate) trait Replicated: KubeType {
    /// The name of its controller, as events show it.
    const CONTROLLER: &'static str;
    /// The object as a ReplicaSet.
    fn as_set(&self) -> ReplicaSet;
    /// The object with this status.
    fn with_status(&self, status: ReplicaSetStatus) -> Self;
}

impl Replicated for ReplicaSet {
    const CONTROLLER: &'static str = "replicaset-controller";

    fn as_set(&self) -> ReplicaSet {
        self.clone()
    }

    fn with_status(&self, status: ReplicaSetStatus) -> Self {
        Self { status: Some(status), ..self.clone() }
    }
}

impl Replicated for ReplicationController {
    const CONTROLLER: &'static str = "replication-controller";

    fn as_set(&self) -> ReplicaSet {
        let spec = self.spec.clone().map(|s| ReplicaSetSpec {
            replicas: s.replicas,
            min_ready_seconds: s.min_ready_seconds,
            selector: LabelSelector { match_labels: s.selector, match_expressions: None },
            template: s.template,
        });
        let status = self.status.clone().map(|s| ReplicaSetStatus {
            replicas: s.replicas,
            fully_labeled_replicas: s.fully_labeled_replicas,
            ready_replicas: s.ready_replicas,
            available_replicas: s.available_replicas,
            terminating_replicas: None,
            observed_generation: s.observed_generation,
            conditions: s.conditions.map(|all| {
                let condition = |c: ReplicationControllerCondition| ReplicaSetCondition {
                    type_: c.type_,
                    status: c.status,
                    reason: c.reason,
                    message: c.message,
                    last_transition_time: c.last_transition_time,
                };
                all.into_iter().map(condition).collect()
            }),
        });
        ReplicaSet { metadata: self.metadata.clone(), spec, status }
    }

    fn with_status(&self, s: ReplicaSetStatus) -> Self {
        let condition = |c: ReplicaSetCondition| ReplicationControllerCondition {
            type_: c.type_,
            status: c.status,
            reason: c.reason,
            message: c.message,
            last_transition_time: c.last_transition_time,
        };
        let status = ReplicationControllerStatus {
            replicas: s.replicas,
            fully_labeled_replicas: s.fully_labeled_replicas,
            ready_replicas: s.ready_replicas,
            available_replicas: s.available_replicas,
            observed_generation: s.observed_generation,
            conditions: s.conditions.map(|all| all.into_iter().map(condition).collect()),
        };
        Self { status: Some(status), ..self.clone() }
    }
}
