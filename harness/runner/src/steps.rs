//! Doing one step. An `Err` is a failed demand; a [`StepError::Broken`] is the harness's own trouble.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use podlab_api::{
    ApiError, Object, ResourceRef,
    core::{Node, PersistentVolumeClaim, Pod},
};
use podlab_client::{Client, Collection, DeleteOptions, PatchKind, Target};
use podlab_clock::Clock;
use podlab_scenario::{
    AgentAction, Apply, Checkpoint, Delete, Elapsed, Eventually, Exactly, Exec, Holds, LogMatch, Matcher, NodeAction,
    RpcCount, StatusIs, Step, Vars,
};
use podlab_testbed::ClusterError;
use podlab_timeline::{Entry, Event, Lane};
use serde_json::{Value, json};

use crate::{
    apply, apply::ApplyError, backend::Backend, elapsed, elapsed::Wrong, events, judge, leaks, overcommit::Overcommit,
    temporal, watch::Watcher,
};

/// How long something immediate may take before it counts as not so: an event travels apart from the status.
pub(crate) const SETTLE: Duration = Duration::from_secs(2);

/// Why a step did not succeed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    /// The system under test did something else than was demanded.
    #[error("{0}")]
    Failed(String),
    /// The API refused what was asked of it.
    #[error("{text}")]
    Answered {
        /// In words, with what was asked.
        text: String,
        /// Its answer.
        error: ApiError,
    },
    /// The step could not be done.
    #[error("{0}")]
    Broken(String),
}

impl From<ClusterError> for StepError {
    fn from(e: ClusterError) -> Self {
        Self::Broken(chain(&e))
    }
}

impl From<ApiError> for StepError {
    fn from(error: ApiError) -> Self {
        Self::Answered { text: format!("the API answered: {}", error.message), error }
    }
}

impl From<ApplyError> for StepError {
    fn from(e: ApplyError) -> Self {
        let text = chain(&e);
        match e {
            ApplyError::Api { source, .. } => Self::Answered { text, error: source },
            ApplyError::Parse { .. } | ApplyError::Kind { .. } | ApplyError::Dropped { .. } => Self::Failed(text),
        }
    }
}

impl StepError {
    /// Whether the system under test is at fault, so that it may be tried again.
    pub(crate) fn is_failure(&self) -> bool {
        !matches!(self, Self::Broken(_))
    }
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |e| e.source())
        .fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

pub(crate) type Done = Result<(), StepError>;

fn failed(text: impl Into<String>) -> Done {
    Err(StepError::Failed(text.into()))
}

/// What steps work with.
#[derive(Clone)]
pub(crate) struct Stage<'a> {
    pub(crate) backend: &'a dyn Backend,
    pub(crate) client: Client,
    pub(crate) watcher: Watcher,
    pub(crate) clock: Clock,
    pub(crate) namespace: String,
    pub(crate) dir: &'a Path,
    pub(crate) remembered: BTreeMap<String, (Checkpoint, Value)>,
    /// Parameters and what was bound.
    pub(crate) vars: Vars,
    /// Nodes that were taken down, or whose agents were, and not started again.
    pub(crate) down: Arc<Mutex<BTreeSet<String>>>,
    /// The monitor that looks at every state.
    pub(crate) overcommit: Overcommit,
}

impl Stage<'_> {
    /// Does one step. Dropping it midway may leave its effect half done.
    pub(crate) async fn run(&mut self, step: &Step) -> Done {
        match step {
            Step::Apply(a) => Ok(apply::apply(&self.client, &self.namespace, &self.manifest(a)?).await?),
            Step::Create(a) => Ok(apply::create(&self.client, &self.namespace, &self.manifest(a)?).await?),
            Step::Note(_) => Ok(()),
            Step::Delete(d) => self.delete(d).await,
            Step::Label(l) => {
                let value = |v: &String| if v.is_empty() { Value::Null } else { v.as_str().into() };
                let labels: serde_json::Map<_, _> = l.set.iter().map(|(k, v)| (k.clone(), value(v))).collect();
                let body = json!({"metadata": {"labels": labels}});
                self.client.all::<Node>().patch(&l.node, &PatchKind::Merge, &body).await?;
                Ok(())
            }
            Step::Exec(e) => self.exec(e).await,
            Step::Agent(a) => {
                match a {
                    AgentAction::Kill(n) | AgentAction::Stop(n) => self.mark(n, true),
                    AgentAction::Start(n) | AgentAction::Restart(n) => self.mark(n, false),
                }
                self.backend.agent(a).await
            }
            Step::Node(n) => {
                match n {
                    NodeAction::Crash(n) => self.mark(n, true),
                    NodeAction::Boot(n) => self.mark(n, false),
                }
                self.backend.node(n).await
            }
            Step::Pause(p) => {
                self.clock.sleep(p.duration.0).await;
                Ok(())
            }
            Step::Eventually(e) => self.eventually(e).await,
            Step::Holds(h) => self.holds(h).await,
            Step::Exactly(e) => self.exactly(e).await,
            Step::Events(e) => self.events(e).await,
            Step::Status(s) => self.status(s).await,
            Step::Logs(l) => self.logs(l).await,
            Step::Checkpoint(c) => {
                let value = self.field(&c.pod, &c.path)?;
                self.remembered.insert(c.name.clone(), (c.clone(), value));
                Ok(())
            }
            Step::Unchanged(name) => self.unchanged(name),
            Step::Elapsed(e) => self.elapsed(e).await,
            Step::Rpc(counts) => self.rpc(counts),
            Step::LeakFree(kinds) => self.leak_free(kinds).await,
            Step::Replay(r) => self.replay(r).await,
            Step::Expect(e) => self.expect(e).await,
            Step::Never(n) => self.never(n).await,
            Step::Order(o) => self.in_the_log(o.within.map_or(SETTLE, |w| w.0), |log, _| temporal::order(o, log)).await,
            Step::Within(w) => {
                self.in_the_log(temporal::patience(w, SETTLE), |log, now| temporal::within(w, log, now)).await
            }
            Step::Between(b) => self.in_the_log(SETTLE, |log, _| temporal::between(b, log)).await,
            Step::Monotone(m) => self.in_the_log(SETTLE, |log, _| temporal::monotone(m, log)).await,
            Step::Times(t) => self.in_the_log(SETTLE, |log, _| temporal::times(t, log)).await,
            Step::Bind(names) => {
                for (name, that) in names {
                    let value = self.eval(that)?;
                    self.vars.insert(name.clone(), value);
                }
                Ok(())
            }
            Step::Patch(_)
            | Step::Scale(_)
            | Step::Evict(_)
            | Step::Cordon(_)
            | Step::Uncordon(_)
            | Step::Drain(_)
            | Step::Taint(_)
            | Step::Resize(_)
            | Step::Debug(_)
            | Step::Refused(_) => self.act(step).await,
            Step::If(_)
            | Step::Limit(_)
            | Step::Retry(_)
            | Step::Repeat(_)
            | Step::ForEach(_)
            | Step::Parallel(_)
            | Step::Group(_)
            | Step::Use(_) => Err(StepError::Broken("a step made of steps came here by itself".into())),
        }
    }

    fn mark(&self, node: &str, down: bool) {
        let mut all = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        if down {
            all.insert(node.to_owned());
        } else {
            all.remove(node);
        }
    }

    fn manifest(&self, a: &Apply) -> Result<String, StepError> {
        match a {
            Apply::Yaml(text) => Ok(text.clone()),
            Apply::File(file) => {
                let path = self.dir.join(file);
                std::fs::read_to_string(&path).map_err(|e| StepError::Broken(format!("{}: {e}", path.display())))
            }
        }
    }

    async fn delete(&self, d: &Delete) -> Done {
        let (resource, name) = match (&d.pod, &d.claim) {
            (Some(pod), _) => (ResourceRef::of::<Pod>(), pod),
            (None, Some(claim)) => (ResourceRef::of::<PersistentVolumeClaim>(), claim),
            (None, None) => return Err(StepError::Broken("delete names nothing".into())),
        };
        let collection = Collection { resource, namespace: Some(self.namespace.clone()) };
        let target = Target { collection, name: name.clone(), subresource: None };
        let options = DeleteOptions { grace_period: d.grace.map(|g| g.0), ..DeleteOptions::default() };
        self.client.raw().delete(&target, &options).await?;
        Ok(())
    }

    async fn exec(&self, e: &Exec) -> Done {
        let out = self.backend.exec(&self.namespace, &e.pod, e.container.as_deref(), &e.command).await?;
        if out.code != e.exit_code {
            return failed(format!(
                "exit code: expected {}, actual {} {}; output: {:?}",
                e.exit_code, out.code, out.error, out.text
            ));
        }
        match &e.contains {
            Some(text) if !out.text.contains(text.as_str()) => {
                failed(format!("output: expected to contain {text:?}, actual {:?}", out.text))
            }
            _ => Ok(()),
        }
    }

    async fn eventually(&self, e: &Eventually) -> Done {
        self.wait_for(&e.what, e.within.0).await.map_err(StepError::Failed)
    }

    /// Waits for a match; the error says what was there instead at the end.
    async fn wait_for(&self, what: &Matcher, within: Duration) -> Result<(), String> {
        let wanted = what.clone();
        let met = self.watcher.first(move |seen| judge::matches(&wanted, seen).is_ok());
        match self.clock.timeout(within, met).await {
            Some(_) => Ok(()),
            None => {
                let last = judge::matches(what, &self.watcher.look()).err().unwrap_or_default();
                Err(format!("{}: not within {within:?}: {last}", what.pod))
            }
        }
    }

    async fn holds(&self, h: &Holds) -> Done {
        let (wanted, why) = (h.what.clone(), Arc::new(Mutex::new(String::new())));
        let note = why.clone();
        let broken = self.watcher.first(move |seen| match judge::matches(&wanted, seen) {
            Ok(()) => false,
            Err(e) => {
                *note.lock().unwrap_or_else(PoisonError::into_inner) = e;
                true
            }
        });
        match self.clock.timeout(h.duration.0, broken).await {
            Some(_) => {
                let why = why.lock().unwrap_or_else(PoisonError::into_inner).clone();
                failed(format!("{}: did not hold for {:?}: {why}", h.what.pod, h.duration.0))
            }
            None => Ok(()),
        }
    }

    async fn elapsed(&self, e: &Elapsed) -> Done {
        self.in_the_log(SETTLE, |log, _| elapsed::judge(e, log, self.backend.slack())).await
    }

    /// Judges the run log; what is missing may still be on its way, as an event travels apart from the status.
    async fn in_the_log(
        &self,
        patience: Duration,
        judge: impl Fn(&[Entry], podlab_clock::Mono) -> Result<(), Wrong>,
    ) -> Done {
        let deadline = self.clock.now().after(patience);
        loop {
            let now = self.clock.now();
            match judge(&self.backend.entries()?, now) {
                Ok(()) => return Ok(()),
                Err(Wrong::Missing(_)) if now < deadline => self.clock.sleep(Duration::from_millis(50)).await,
                Err(wrong) => return failed(wrong.to_string()),
            }
        }
    }

    async fn exactly(&self, e: &Exactly) -> Done {
        let mut changes = self.watcher.changes();
        let enough = async {
            while judge::events(&self.watcher.look(), &e.pod, &e.event) < e.n {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = self.clock.timeout(SETTLE, enough).await;
        let actual = judge::events(&self.watcher.look(), &e.pod, &e.event);
        if actual == e.n {
            Ok(())
        } else {
            failed(format!("event {} of {}: expected exactly {}, actual {actual}", e.event.reason, e.pod, e.n))
        }
    }

    async fn events(&self, e: &podlab_scenario::Events) -> Done {
        let wanted = e.clone();
        let met = self.watcher.first(move |seen| events::judge(&wanted, seen).is_ok());
        if self.clock.timeout(e.within.map_or(SETTLE, |w| w.0), met).await.is_some() {
            return Ok(());
        }
        events::judge(e, &self.watcher.look()).map_err(StepError::Failed)
    }

    fn pod(&self, name: &str) -> Result<std::sync::Arc<Object>, StepError> {
        self.watcher.look().pods.get(name).cloned().ok_or_else(|| StepError::Failed(format!("Pod {name} is not there")))
    }

    fn field(&self, pod: &str, path: &str) -> Result<Value, StepError> {
        Ok(self.pod(pod)?.0.pointer(path).cloned().unwrap_or(Value::Null))
    }

    async fn status(&self, s: &StatusIs) -> Done {
        let mut changes = self.watcher.changes();
        let equal = async {
            while self.field(&s.pod, &s.path).ok().as_ref() != Some(&s.equals) {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        if self.clock.timeout(SETTLE, equal).await.is_some() {
            return Ok(());
        }
        failed(format!("{} of {}: expected {}, actual {}", s.path, s.pod, s.equals, self.field(&s.pod, &s.path)?))
    }

    async fn logs(&self, l: &LogMatch) -> Done {
        let deadline = self.clock.now().after(l.within.map_or(SETTLE, |w| w.0));
        loop {
            let text = self.backend.logs(&self.namespace, &l.pod, l.container.as_deref(), l.previous).await;
            let judged = match &text {
                Ok(t) if l.contains.as_ref().is_some_and(|c| !t.contains(c.as_str())) => {
                    Err(format!("log of {}: expected to contain {:?}, actual {t:?}", l.pod, l.contains))
                }
                Ok(t) if l.equals.as_ref().is_some_and(|e| t != e) => {
                    Err(format!("log of {}: expected {:?}, actual {t:?}", l.pod, l.equals))
                }
                Ok(_) => Ok(()),
                Err(e) => Err(format!("log of {}: {}", l.pod, e.message)),
            };
            match judged {
                Ok(()) => return Ok(()),
                Err(why) if self.clock.now() >= deadline => return failed(why),
                // A log has no watch; asking again is the only way to wait for it.
                Err(_) => self.clock.sleep(Duration::from_millis(50)).await,
            }
        }
    }

    fn unchanged(&self, name: &str) -> Done {
        let Some((c, before)) = self.remembered.get(name) else {
            return Err(StepError::Broken(format!("there is no checkpoint {name:?}")));
        };
        let now = self.field(&c.pod, &c.path)?;
        if now == *before { Ok(()) } else { failed(format!("{} of {}: was {before}, now {now}", c.path, c.pod)) }
    }

    fn rpc(&self, counts: &BTreeMap<String, RpcCount>) -> Done {
        let entries = self.backend.entries()?;
        for (call, wanted) in counts {
            let (lane, method) =
                call.split_once('.').ok_or_else(|| StepError::Broken(format!("{call:?} is not <lane>.<method>")))?;
            let lane: Lane = serde_json::from_value(Value::from(lane))
                .map_err(|_| StepError::Broken(format!("there is no lane {lane:?}")))?;
            let hit = |e: &&Entry| matches!(&e.event, Event::Call { method: m, .. } if m == method) && e.lane == lane;
            let actual = entries.iter().filter(hit).count();
            let ok = wanted.at_least.is_none_or(|n| actual >= n) && wanted.exactly.is_none_or(|n| actual == n);
            if !ok {
                return failed(format!("calls of {call}: expected {wanted:?}, actual {actual}"));
            }
        }
        Ok(())
    }

    async fn leak_free(&self, kinds: &[podlab_scenario::Leak]) -> Done {
        let deadline = self.clock.now().after(Duration::from_secs(10));
        loop {
            let left = leaks::find(self.backend, kinds).await?;
            if left.is_empty() {
                return Ok(());
            }
            if self.clock.now() >= deadline {
                return failed(format!("left behind: {}", left.join(", ")));
            }
            // The kernel's leavings have no watch either.
            self.clock.sleep(Duration::from_millis(100)).await;
        }
    }
}
