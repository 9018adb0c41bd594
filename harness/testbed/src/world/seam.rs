//! The tap at every seam of the virtual world: it lets others run first, takes its time, applies the fault plan, kills
//! the agent that calls, and records.

use std::{sync::Arc, time::Duration};

use podlab_clock::Clock;
use podlab_fault::{Call, Effect, Plan, Point};
use podlab_timeline::{Event, Lane, Outcome, PodKey, Recorder};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::choices::Choices;
use crate::effects::{UNAVAILABLE, made};

/// A crash of an agent that asks to be carried out.
#[derive(Debug)]
pub(super) struct Crash {
    pub(super) node: String,
    pub(super) down: Duration,
}

/// One agent process from its start to its end. After its death no call of it has an effect any more.
#[derive(Debug, Clone)]
pub(super) struct Life {
    pub(super) node: String,
    pub(super) dead: CancellationToken,
    pub(super) crashes: mpsc::UnboundedSender<Crash>,
}

/// A tap. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Seam {
    pub(super) who: String,
    pub(super) choices: Choices,
    pub(super) plan: Arc<Plan>,
    pub(super) recorder: Recorder,
    pub(super) clock: Clock,
    /// The agent that calls, if one does.
    pub(super) life: Option<Life>,
}

/// A call as the tap sees it.
#[derive(Debug, Clone)]
pub(super) struct Site<'a> {
    pub(super) call: Call<'a>,
    /// Name of the choice: the call and what it is about.
    pub(super) name: String,
    pub(super) pod: Option<PodKey>,
    pub(super) subject: &'a str,
    /// Where to record it; `None` keeps it out of the log.
    pub(super) lane: Option<Lane>,
}

/// How a call is written down; those of the network are by its own tap.
fn method_of(call: Call<'_>) -> Option<&str> {
    match call {
        Call::Cri { method, .. } | Call::Csi { method } => Some(method),
        Call::Api { verb, .. } => Some(verb),
        Call::Cni { .. } => None,
    }
}

impl Seam {
    /// Makes a call through the tap. `refused` words a fault's error in the seam's own terms.
    pub(super) async fn pass<T, E: std::fmt::Display, F: Future<Output = Result<T, E>>>(
        &self,
        site: Site<'_>,
        make: impl Fn() -> F,
        refused: impl Fn(u32, String) -> E,
    ) -> Result<T, E> {
        self.pass_with(site, make, refused).await.map(|(answer, _)| answer)
    }

    /// The same; with the answer comes the effect that its caller has to finish.
    pub(super) async fn pass_with<T, E: std::fmt::Display, F: Future<Output = Result<T, E>>>(
        &self,
        site: Site<'_>,
        make: impl Fn() -> F,
        refused: impl Fn(u32, String) -> E,
    ) -> Result<(T, Option<Effect>), E> {
        self.alive().await;
        let start = self.recorder.now();
        let drawn = self.choices.draw(&format!("{}: {}", self.who, site.name), self.life.is_some());
        for _ in 0..drawn.turns {
            tokio::task::yield_now().await;
        }
        if !drawn.delay.is_zero() {
            self.clock.sleep(drawn.delay).await;
        }
        let effect = self.plan.decide(site.call).map(|fired| {
            let recorder = site.lane.map_or_else(|| self.recorder.clone(), |l| self.recorder.lane(l));
            recorder.record(site.pod.clone(), Event::Run(json!({"faultFired": fired.id})));
            fired.effect
        });
        let result = self.under(effect.as_ref(), drawn.crash, make, refused).await;
        if result.is_ok() {
            for id in self.plan.succeeded(site.call) {
                self.recorder.record(None, Event::Run(json!({"faultHealed": id})));
            }
        }
        if let (Some(lane), Some(method)) = (site.lane, method_of(site.call)) {
            let outcome = result.as_ref().map_or_else(|e| Outcome::Error(e.to_string()), |_| Outcome::Ok);
            self.recorder.lane(lane).call(site.pod.as_ref(), method, site.subject, start, outcome);
        }
        result.map(|answer| (answer, effect))
    }

    /// Makes the call under an effect, and lets the agent that makes it die before or after.
    async fn under<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        effect: Option<&Effect>,
        drawn: Option<(bool, Duration)>,
        make: impl Fn() -> F,
        refused: impl Fn(u32, String) -> E,
    ) -> Result<T, E> {
        if let Some(delay) = effect.and_then(Effect::delay) {
            self.clock.sleep(delay).await;
        }
        self.alive().await;
        let mut crash = drawn;
        if let Some(Effect::CrashAt { point, down_ms }) = effect {
            crash = Some((*point == Point::After, Duration::from_millis(*down_ms)));
        }
        if let Some((false, down)) = crash {
            self.crash(down).await;
        }
        let result = match effect {
            Some(Effect::Error { code, msg }) => Err(refused(*code, msg.clone())),
            Some(Effect::DropRequest { msg }) => Err(refused(UNAVAILABLE, msg.clone())),
            Some(Effect::DropReply { msg }) => make().await.and_then(|_| Err(refused(UNAVAILABLE, msg.clone()))),
            Some(Effect::Hang) => std::future::pending().await,
            _ => made(effect, make).await,
        };
        if let Some((true, down)) = crash {
            self.crash(down).await;
        }
        self.alive().await;
        result
    }

    /// Lets others run first and takes its time, for what is no call: an event on its way.
    pub(super) async fn pause(&self, name: &str) {
        let drawn = self.choices.draw(&format!("{}: {name}", self.who), false);
        for _ in 0..drawn.turns {
            tokio::task::yield_now().await;
        }
        if !drawn.delay.is_zero() {
            self.clock.sleep(drawn.delay).await;
        }
        self.alive().await;
    }

    /// A dead agent's call never returns.
    pub(super) async fn alive(&self) {
        if self.life.as_ref().is_some_and(|l| l.dead.is_cancelled()) {
            std::future::pending::<()>().await;
        }
    }

    async fn crash(&self, down: Duration) {
        if let Some(life) = &self.life {
            life.dead.cancel();
            // The world ends before its nodes do; then nobody carries it out.
            let _ = life.crashes.send(Crash { node: life.node.clone(), down });
            std::future::pending::<()>().await;
        }
    }
}
