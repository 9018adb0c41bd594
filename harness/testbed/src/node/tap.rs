//! What every tap does with a call: asks the fault plan, applies its effect, says that it fired.

use std::sync::Arc;

use podlab_clock::Clock;
use podlab_fault::{Call, Effect, Plan};
use podlab_timeline::{Event, PodKey, Recorder};
use serde_json::json;

/// The fault plan of a run in front of one seam.
#[derive(Debug, Clone)]
pub(super) struct Tap {
    plan: Arc<Plan>,
    pub(super) recorder: Recorder,
    clock: Clock,
}

/// An error that a fault puts in a call's place: its code, where the seam has codes, and its words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Injected {
    /// The seam's own code; 14 (`UNAVAILABLE` of gRPC) for a lost reply.
    pub(super) code: u32,
    pub(super) message: String,
    /// The call was made all the same.
    pub(super) made: bool,
}

/// gRPC's `UNAVAILABLE`: what a caller sees of a server whose answer did not arrive.
const UNAVAILABLE: u32 = 14;

impl Tap {
    pub(super) fn new(plan: Arc<Plan>, recorder: Recorder, clock: Clock) -> Self {
        Self { plan, recorder, clock }
    }

    /// Makes a call, unless a fault says otherwise. `failed` words an injected error as the seam does. Dropping it midway
    /// leaves unknown whether the call was made, as without a tap.
    pub(super) async fn through<T, E>(
        &self,
        call: Call<'_>,
        pod: Option<&PodKey>,
        failed: impl Fn(Injected) -> E,
        real: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let Some(fired) = self.plan.decide(call) else { return real.await };
        self.recorder.record(pod.cloned(), Event::Run(json!({"faultFired": fired.id})));
        if let Some(delay) = fired.effect.delay() {
            self.clock.sleep(delay).await;
        }
        match fired.effect {
            Effect::Error { code, msg } => Err(failed(Injected { code, message: msg, made: false })),
            Effect::DropReply { msg } => {
                real.await.and_then(|_| Err(failed(Injected { code: UNAVAILABLE, message: msg, made: true })))
            }
            Effect::Hang => std::future::pending().await,
            // An agent among real processes is killed from outside: a scenario with this effect is played in the virtual
            // world alone.
            Effect::Delay { .. } | Effect::CrashAt { .. } => real.await,
        }
    }
}
