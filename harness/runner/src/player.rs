//! Doing lists of steps: each is written down when it begins and ends; texts are filled in at a step's turn; steps made of
//! steps are taken apart here.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use futures::{
    FutureExt,
    future::{BoxFuture, try_join_all},
};
use podlab_clock::Mono;
use podlab_scenario::{ForEach, Group, Repeat, Retry, Scenario, Step, fill, sentence};
use podlab_timeline::{Event, Recorder};
use serde_json::{Value, json};

use crate::steps::{Stage, StepError};

/// Where it stopped, and why.
#[derive(Debug)]
pub(crate) struct Stopped {
    /// Path of the step, e.g. `then[2].retry.steps[1]`.
    pub(crate) at: String,
    pub(crate) error: StepError,
}

/// Steps that are being done, with their beginning and what they do.
#[derive(Clone, Default)]
pub(crate) struct Waits(Arc<Mutex<BTreeMap<String, (Mono, String)>>>);

impl Waits {
    /// One line for each step that has not ended: who waits for what, and since when.
    pub(crate) fn dump(&self, now: Mono) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = |(at, (since, what)): (&String, &(Mono, String))| {
            format!("{at} waits since {:.1?}: {what}\n", now.since(*since))
        };
        all.iter().map(line).collect()
    }

    fn begin(&self, at: &str, now: Mono, what: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(at.to_owned(), (now, what));
    }

    fn end(&self, at: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(at);
    }
}

/// Does the steps of one scenario.
#[derive(Clone)]
pub(crate) struct Player<'a> {
    pub(crate) stage: Stage<'a>,
    pub(crate) scenario: &'a Scenario,
    pub(crate) recorder: Recorder,
    pub(crate) waits: Waits,
}

impl<'a> Player<'a> {
    /// Does steps one after the other, until one fails. Dropping it midway may leave a step's effect half done.
    pub(crate) fn list<'b>(&'b mut self, path: String, steps: &'b [Step]) -> BoxFuture<'b, Result<(), Stopped>> {
        async move {
            for (i, step) in steps.iter().enumerate() {
                self.step(format!("{path}[{}]", i + 1), step).await?;
            }
            Ok(())
        }
        .boxed()
    }

    /// Does one step, as a list of one would.
    pub(crate) fn one<'b>(&'b mut self, at: String, step: &'b Step) -> BoxFuture<'b, Result<(), Stopped>> {
        self.step(at, step).boxed()
    }

    fn note(&self, at: &str, state: &str) {
        self.recorder.record(None, Event::Run(json!({"step": at, "state": state})));
    }

    async fn step(&mut self, at: String, step: &Step) -> Result<(), Stopped> {
        let begins = json!({"step": at, "state": "begins", "what": sentence(step)});
        self.recorder.record(None, Event::Run(begins));
        let result = if step.inner().is_empty() { self.leaf(&at, step).await } else { self.compound(&at, step).await };
        self.note(&at, if result.is_ok() { "done" } else { "failed" });
        result
    }

    /// A step without steps in it, its texts filled in.
    async fn leaf(&mut self, at: &str, step: &Step) -> Result<(), Stopped> {
        let stopped = |error| Stopped { at: at.to_owned(), error };
        let filled = match self.scenario.origin.template(at) {
            None => None,
            Some(template) => Some(self.fill(template).map_err(stopped)?),
        };
        let step = filled.as_ref().unwrap_or(step);
        if let Step::Note(text) = step {
            let note = json!({"step": at, "state": "note", "why": text.trim()});
            self.recorder.record(None, Event::Run(note));
        }
        self.waits.begin(at, self.stage.clock.now(), sentence(step));
        let done = self.stage.run(step).await;
        self.waits.end(at);
        done.map_err(stopped)
    }

    fn fill(&self, template: &Value) -> Result<Step, StepError> {
        let filled = fill(template, &self.stage.vars_now()?).map_err(StepError::Failed)?;
        serde_json::from_value(filled).map_err(|e| StepError::Broken(format!("filled in, it is no step: {e}")))
    }

    async fn compound(&mut self, at: &str, step: &Step) -> Result<(), Stopped> {
        let stopped = |error| Stopped { at: at.to_owned(), error };
        match step {
            Step::If(s) => {
                let (name, steps) = match self.stage.is_true(&s.that).map_err(stopped)? {
                    true => ("if.then", &s.then),
                    false => ("if.else", &s.otherwise),
                };
                self.list(format!("{at}.{name}"), steps).await
            }
            Step::Retry(s) => self.retry(at, s).await,
            Step::Repeat(s) => self.repeat(at, s).await,
            Step::ForEach(s) => self.for_each(at, s).await,
            Step::Group(s) => self.group(at, s).await,
            Step::Limit(s) => {
                let (clock, within) = (self.stage.clock, s.within.0);
                match clock.timeout(within, self.list(format!("{at}.limit.steps"), &s.steps)).await {
                    Some(result) => result,
                    None => {
                        let waits = self.waits.dump(clock.now());
                        step.walk(at, &mut |path, _| self.waits.end(path));
                        Err(stopped(StepError::Failed(format!("not done within {within:?}\n{waits}"))))
                    }
                }
            }
            Step::Parallel(branches) => {
                let branch = |(i, steps): (usize, &'_ Vec<Step>)| {
                    let (mut player, path) = (self.clone(), format!("{at}.parallel[{}]", i + 1));
                    let steps = steps.clone();
                    async move { player.list(path, &steps).await }
                };
                let all: Vec<_> = branches.iter().enumerate().map(branch).collect();
                let result = try_join_all(all).await.map(drop);
                // The branches that were cut off wait for nothing any more.
                step.walk(at, &mut |path, _| self.waits.end(path));
                result
            }
            _ => Ok(()),
        }
    }

    async fn retry(&mut self, at: &str, s: &Retry) -> Result<(), Stopped> {
        let mut attempt = 1;
        loop {
            match self.list(format!("{at}.retry.steps"), &s.steps).await {
                Err(Stopped { at: inner, error }) if error.is_failure() && attempt < s.attempts => {
                    let why = error.to_string();
                    self.recorder.record(
                        None,
                        Event::Run(json!({"step": at, "state": "again", "attempt": attempt, "at": inner, "why": why})),
                    );
                    attempt += 1;
                    if let Some(every) = s.every {
                        self.stage.clock.sleep(every.0).await;
                    }
                }
                Err(Stopped { at: inner, error }) if error.is_failure() => {
                    let why = format!("{error} (attempt {attempt} of {})", s.attempts);
                    return Err(Stopped { at: inner, error: StepError::Failed(why) });
                }
                other => return other,
            }
        }
    }

    async fn repeat(&mut self, at: &str, s: &Repeat) -> Result<(), Stopped> {
        let stopped = |error| Stopped { at: at.to_owned(), error };
        let before = self.stage.vars.get("round").cloned();
        for round in 1..=s.times {
            self.stage.vars.insert("round".into(), round.into());
            self.list(format!("{at}.repeat.steps"), &s.steps).await?;
            if let Some(until) = &s.until
                && self.stage.is_true(until).map_err(stopped)?
            {
                self.restore("round", before);
                return Ok(());
            }
        }
        self.restore("round", before);
        match &s.until {
            None => Ok(()),
            Some(until) => {
                let why = until.why_not(&self.stage.vars_now().map_err(stopped)?);
                Err(stopped(StepError::Failed(format!("after {} rounds {why}", s.times))))
            }
        }
    }

    async fn for_each(&mut self, at: &str, s: &ForEach) -> Result<(), Stopped> {
        let stopped = |error| Stopped { at: at.to_owned(), error };
        let list = match self.stage.eval(&s.list).map_err(stopped)? {
            Value::Array(list) if !list.is_empty() => list,
            Value::Array(_) => return Err(stopped(StepError::Failed(format!("`{}` is empty", s.list.0)))),
            other => return Err(stopped(StepError::Failed(format!("`{}` is {other}, not a list", s.list.0)))),
        };
        let before = self.stage.vars.get(&s.name).cloned();
        for item in list {
            self.stage.vars.insert(s.name.clone(), item);
            self.list(format!("{at}.forEach.steps"), &s.steps).await?;
        }
        self.restore(&s.name, before);
        Ok(())
    }

    async fn group(&mut self, at: &str, s: &Group) -> Result<(), Stopped> {
        let Some(params) = &s.params else { return self.list(format!("{at}.group.steps"), &s.steps).await };
        let stopped = |error| Stopped { at: at.to_owned(), error };
        let vars = self.stage.vars_now().map_err(stopped)?;
        let params = fill(&json!(params), &vars).map_err(|why| stopped(StepError::Failed(why)))?;
        let before = self.stage.vars.insert("params".into(), params);
        let result = self.list(format!("{at}.group.steps"), &s.steps).await;
        self.restore("params", before);
        result
    }

    fn restore(&mut self, name: &str, before: Option<Value>) {
        match before {
            Some(value) => self.stage.vars.insert(name.to_owned(), value),
            None => self.stage.vars.remove(name),
        };
    }
}
