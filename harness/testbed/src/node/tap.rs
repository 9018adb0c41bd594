//! What every tap of a node does with a call: asks the fault plan, applies its effect, says that it fired and healed.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use podlab_api::ApiError;
use podlab_clock::Clock;
use podlab_fault::{Call, Effect, Fault, Plan, Point};
use podlab_timeline::{Event, Lane, Outcome, PodKey, Recorder};
use serde_json::json;

use crate::{
    api_tap::{ApiSite, Gate, refused},
    effects::{UNAVAILABLE, made},
};

/// The fault plan of a run in front of one seam.
#[derive(Debug, Clone)]
pub(crate) struct Tap {
    plan: Arc<Plan>,
    pub(super) recorder: Recorder,
    clock: Clock,
    life: Option<Life>,
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

/// What an agent leaves to the one after it: how often each fault was asked, and how long to stay away. In the node's
/// memory, so that both last as long as the node does.
#[derive(Debug, Clone)]
pub(super) struct Life {
    dir: PathBuf,
}

impl Life {
    pub(super) fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The plan as the agent before this one left it.
    pub(super) fn plan(&self, faults: Vec<Fault>) -> Plan {
        Plan::resumed(faults, &fs::read_to_string(self.dir.join("faults")).unwrap_or_default())
    }

    /// How long a crash has asked the next agent to stay away; asked once.
    pub(super) fn away(&self) -> Duration {
        let path = self.dir.join("away");
        let asked = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
        // Absent in most lives.
        let _ = fs::remove_file(path);
        Duration::from_millis(asked.unwrap_or(0))
    }

    fn remember(&self, plan: &Plan) {
        let next = self.dir.join("faults.next");
        let kept = fs::write(&next, plan.memory()).and_then(|()| fs::rename(&next, self.dir.join("faults")));
        if let Err(error) = kept {
            tracing::warn!(%error, "how often faults were asked is not kept");
        }
    }

    /// Ends this process as SIGKILL from outside would.
    async fn crash(&self, down: Duration) {
        if let Err(error) = fs::write(self.dir.join("away"), down.as_millis().to_string()) {
            tracing::warn!(%error, "the next agent will not stay away");
        }
        // A process may always kill itself.
        let _ = kill(Pid::this(), Signal::SIGKILL);
        std::future::pending::<()>().await;
    }
}

impl Tap {
    /// A tap whose counters end with the process, and that cannot make it crash.
    pub(super) fn new(plan: Arc<Plan>, recorder: Recorder, clock: Clock) -> Self {
        Self { plan, recorder, clock, life: None }
    }

    /// The same in an agent that may be started again.
    pub(super) fn of_life(self, life: &Life) -> Self {
        Self { life: Some(life.clone()), ..self }
    }

    /// Time there.
    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    /// Makes a call, unless a fault says otherwise. `failed` words an injected error as the seam does. Dropping it midway
    /// leaves unknown whether the call was made, as without a tap.
    pub(super) async fn through<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        call: Call<'_>,
        pod: Option<&PodKey>,
        failed: impl Fn(Injected) -> E,
        make: impl Fn() -> F,
    ) -> Result<T, E> {
        self.through_with(call, pod, failed, make).await.map(|(answer, _)| answer)
    }

    /// The same; with the answer comes the effect that its caller has to finish.
    pub(super) async fn through_with<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        call: Call<'_>,
        pod: Option<&PodKey>,
        failed: impl Fn(Injected) -> E,
        make: impl Fn() -> F,
    ) -> Result<(T, Option<Effect>), E> {
        let fired = self.plan.decide(call);
        if let Some(fired) = &fired {
            self.recorder.record(pod.cloned(), Event::Run(json!({"faultFired": fired.id})));
        }
        if let Some(life) = &self.life {
            life.remember(&self.plan);
        }
        let effect = fired.map(|f| f.effect);
        let result = self.under(effect.as_ref(), failed, make).await;
        if result.is_ok() {
            for id in self.plan.succeeded(call) {
                self.recorder.record(pod.cloned(), Event::Run(json!({"faultHealed": id})));
            }
        }
        result.map(|answer| (answer, effect))
    }

    async fn under<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        effect: Option<&Effect>,
        failed: impl Fn(Injected) -> E,
        make: impl Fn() -> F,
    ) -> Result<T, E> {
        if let Some(delay) = effect.and_then(Effect::delay) {
            self.clock.sleep(delay).await;
        }
        let lost = |msg: &String, made| failed(Injected { code: UNAVAILABLE, message: msg.clone(), made });
        match effect {
            Some(Effect::Error { code, msg }) => {
                Err(failed(Injected { code: *code, message: msg.clone(), made: false }))
            }
            Some(Effect::DropRequest { msg }) => Err(lost(msg, false)),
            Some(Effect::DropReply { msg }) => make().await.and_then(|_| Err(lost(msg, true))),
            Some(Effect::Hang) => std::future::pending().await,
            Some(Effect::CrashAt { point, down_ms }) => {
                let result = if *point == Point::Before { None } else { Some(make().await) };
                if let Some(life) = &self.life {
                    life.crash(Duration::from_millis(*down_ms)).await;
                }
                // Without a life to lose the call goes on as if nothing had been asked.
                match result {
                    Some(result) => result,
                    None => make().await,
                }
            }
            _ => made(effect, make).await,
        }
    }
}

/// The tap between a component and the API.
#[derive(Debug, Clone)]
pub(crate) struct ApiGate {
    tap: Tap,
    /// Whose calls these are.
    client: String,
}

impl ApiGate {
    pub(super) fn new(tap: Tap, client: &str) -> Self {
        Self { tap, client: client.to_owned() }
    }

    /// For a component that lives in the plane.
    pub(crate) fn of_plane(plan: &Arc<Plan>, recorder: &Recorder, clock: Clock, client: &str) -> Self {
        Self::new(Tap::new(plan.clone(), recorder.lane(Lane::Api), clock), client)
    }
}

impl Gate for ApiGate {
    async fn pass<T: Send, F: Future<Output = Result<T, ApiError>> + Send>(
        &self,
        at: ApiSite<'_>,
        make: impl Fn() -> F + Send + Sync,
    ) -> Result<(T, Option<Effect>), ApiError> {
        let recorder = &self.tap.recorder;
        let start = recorder.now();
        let call = Call::Api { client: &self.client, verb: at.verb, resource: at.resource, name: at.name };
        let result = self.tap.through_with(call, None, |e| refused(e.code, e.message), make).await;
        let outcome = result.as_ref().map_or_else(|e| Outcome::Error(e.to_string()), |_| Outcome::Ok);
        let subject = format!("{} {} by {}", at.resource, at.name, self.client);
        recorder.call(None, at.verb, &subject, start, outcome);
        result
    }

    async fn event(&self, _plural: &str, _name: &str) {}

    fn clock(&self) -> Clock {
        self.tap.clock
    }
}

#[cfg(test)]
mod tests {
    use podlab_fault::{At, Method, Must, When};

    use super::*;

    fn fault(effect: Effect) -> Fault {
        Fault {
            id: "f".into(),
            at: At::Cri(Method { method: "StopContainer".into() }),
            effect,
            when: When { nth: vec![1], pod: None },
            must: Must::default(),
        }
    }

    const CALL: Call<'_> = Call::Cri { method: "StopContainer", pod: "a" };

    #[test]
    fn the_next_agent_stays_away_once_and_counts_on() {
        let dir = tempfile::tempdir().unwrap();
        let life = Life::new(dir.path());
        assert_eq!(life.away(), Duration::ZERO);
        fs::write(dir.path().join("away"), "1500").unwrap();
        assert_eq!([life.away(), life.away()], [Duration::from_millis(1500), Duration::ZERO]);
        let plan = life.plan(vec![fault(Effect::Hang)]);
        assert!(plan.decide(CALL).is_some());
        life.remember(&plan);
        assert!(life.plan(vec![fault(Effect::Hang)]).decide(CALL).is_none());
    }

    #[tokio::test]
    async fn a_dropped_request_is_not_made_and_a_dropped_reply_is() {
        for (effect, wanted) in [
            (Effect::DropRequest { msg: "lost".into() }, 0),
            (Effect::DropReply { msg: "lost".into() }, 1),
            (Effect::Error { code: 5, msg: "no".into() }, 0),
        ] {
            let plan = Arc::new(Plan::new(vec![fault(effect.clone())]));
            let tap = Tap::new(plan, Recorder::disabled(Clock::real()), Clock::real());
            let calls = std::sync::atomic::AtomicU32::new(0);
            let make = || async {
                calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Ok(())
            };
            let result: Result<(), Injected> = tap.through(CALL, None, |e| e, make).await;
            assert_eq!(result.unwrap_err().made, wanted == 1, "{effect:?}");
            assert_eq!(calls.into_inner(), wanted, "{effect:?}");
        }
    }
}
