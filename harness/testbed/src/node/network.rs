//! The tap at the CNI seam of a node: passes calls through, records them, applies the fault plan.

use std::sync::Arc;

use async_trait::async_trait;
use podlab_clock::Clock;
use podlab_cri::{NetRequest, NetResult, NetworkError, NetworkPlugin};
use podlab_fault::{Call, Effect, Plan};
use podlab_timeline::{Event, Lane, Outcome, PodKey, Recorder};
use serde_json::json;

/// A network with a tap in front.
#[derive(Debug)]
pub(crate) struct CniTap<N> {
    inner: N,
    plan: Arc<Plan>,
    recorder: Recorder,
    clock: Clock,
}

impl<N: NetworkPlugin> CniTap<N> {
    pub(crate) fn new(inner: N, plan: Arc<Plan>, recorder: &Recorder, clock: Clock) -> Self {
        Self { inner, plan, recorder: recorder.lane(Lane::Cni), clock }
    }

    async fn tapped<T: Default>(
        &self,
        command: &'static str,
        request: &NetRequest,
        call: impl Future<Output = Result<T, NetworkError>>,
    ) -> Result<T, NetworkError> {
        let start = self.recorder.now();
        let (namespace, name, uid) = (request.pod_namespace.clone(), request.pod_name.clone(), request.pod_uid.clone());
        let pod = PodKey { namespace, name, uid };
        let effect = self.plan.decide(Call::Cni { command, pod: &request.pod_name }).map(|fired| {
            self.recorder.record(Some(pod.clone()), Event::Run(json!({"faultFired": fired.id})));
            fired.effect
        });
        if let Some(delay) = effect.as_ref().and_then(Effect::delay) {
            self.clock.sleep(delay).await;
        }
        let result = match effect {
            // Worded as the runtime words a plugin's own error.
            Some(Effect::Error { msg, .. }) => {
                Err(NetworkError(format!("plugin type=\"fault\" failed ({}): {msg}", command.to_lowercase())))
            }
            Some(Effect::DropReply { msg }) => call.await.and(Err(NetworkError(msg))),
            // The runtime is not an agent's process of its own here; its crash points are the agent's own.
            Some(Effect::Delay { .. } | Effect::CrashAt { .. }) | None => call.await,
            Some(Effect::Hang) => std::future::pending().await,
        };
        let outcome = match &result {
            Ok(_) => Outcome::Ok,
            Err(e) => Outcome::Error(e.to_string()),
        };
        self.recorder.call(Some(&pod), command, "", start, outcome);
        result
    }
}

#[async_trait]
impl<N: NetworkPlugin> NetworkPlugin for CniTap<N> {
    async fn add(&self, request: &NetRequest) -> Result<NetResult, NetworkError> {
        self.tapped("ADD", request, self.inner.add(request)).await
    }

    async fn del(&self, request: &NetRequest) -> Result<(), NetworkError> {
        self.tapped("DEL", request, self.inner.del(request)).await
    }

    async fn status(&self) -> Result<(), NetworkError> {
        self.inner.status().await
    }

    async fn gc(&self, valid: &[String]) -> Result<(), NetworkError> {
        self.inner.gc(valid).await
    }
}
