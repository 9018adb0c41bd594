//! The tap at the CNI seam of a node. Recording the calls is its task too: the plugins do not.

use std::sync::Arc;

use async_trait::async_trait;
use podlab_clock::Clock;
use podlab_cri::{NetRequest, NetResult, NetworkError, NetworkPlugin};
use podlab_fault::{Call, Plan};
use podlab_timeline::{Lane, Outcome, PodKey, Recorder};

use super::tap::{Injected, Life, Tap};

/// A network with a tap in front.
#[derive(Debug)]
pub(crate) struct CniTap<N> {
    inner: N,
    tap: Tap,
}

impl<N: NetworkPlugin> CniTap<N> {
    pub(crate) fn new(inner: N, plan: Arc<Plan>, recorder: &Recorder, clock: Clock) -> Self {
        Self { inner, tap: Tap::new(plan, recorder.lane(Lane::Cni), clock) }
    }

    /// The same in an agent that may be started again.
    pub(super) fn of_life(self, life: &Life) -> Self {
        Self { tap: self.tap.of_life(life), ..self }
    }

    async fn tapped<T, F: Future<Output = Result<T, NetworkError>>>(
        &self,
        command: &'static str,
        request: &NetRequest,
        make: impl Fn() -> F,
    ) -> Result<T, NetworkError> {
        let recorder = &self.tap.recorder;
        let start = recorder.now();
        let (namespace, name, uid) = (request.pod_namespace.clone(), request.pod_name.clone(), request.pod_uid.clone());
        let pod = PodKey { namespace, name, uid };
        let asked = Call::Cni { command, pod: &request.pod_name };
        // Worded as the runtime words a plugin's own error.
        let failed = |e: Injected| match e.made {
            true => NetworkError(e.message),
            false => NetworkError(format!("plugin type=\"fault\" failed ({}): {}", command.to_lowercase(), e.message)),
        };
        let result = self.tap.through(asked, Some(&pod), failed, make).await;
        let outcome = match &result {
            Ok(_) => Outcome::Ok,
            Err(e) => Outcome::Error(e.to_string()),
        };
        recorder.call(Some(&pod), command, "", start, outcome);
        result
    }
}

#[async_trait]
impl<N: NetworkPlugin> NetworkPlugin for CniTap<N> {
    async fn add(&self, request: &NetRequest) -> Result<NetResult, NetworkError> {
        self.tapped("ADD", request, || self.inner.add(request)).await
    }

    async fn del(&self, request: &NetRequest) -> Result<(), NetworkError> {
        self.tapped("DEL", request, || self.inner.del(request)).await
    }

    /// Asked each few seconds, so it is not recorded.
    async fn status(&self) -> Result<(), NetworkError> {
        let failed = |e: Injected| NetworkError(e.message);
        self.tap.through(Call::Cni { command: "STATUS", pod: "" }, None, failed, || self.inner.status()).await
    }

    async fn gc(&self, valid: &[String]) -> Result<(), NetworkError> {
        self.inner.gc(valid).await
    }
}
