//! What the types cannot say: that every step does something, that every demand can fail, that names are known before they
//! are used. All of it is found at once.

mod asserts;
mod calls;
mod faults;
mod scope;
mod words;

use std::path::Path;

use asserts::vacuous;
pub(crate) use scope::moments;

use crate::{Apply, Scenario, Step, Worlds, workload};

/// Most steps of a scenario, those of libraries counted.
const MAX_STEPS: usize = 2000;

/// Path and text of everything that is wrong.
pub(crate) fn check(scenario: &Scenario, path: &Path) -> Vec<(String, String)> {
    let mut wrong: Vec<(String, String)> = Vec::new();
    let mut say = |path: &str, text: &str| wrong.push((path.to_owned(), text.to_owned()));
    if scenario.intent.trim().is_empty() {
        say("intent", "it must say in one sentence what holds when the scenario passes");
    }
    if !(1..=10).contains(&scenario.cluster.nodes) {
        say("cluster.nodes", "it must be between 1 and 10");
    }
    if !scenario.gate.is_empty() {
        // A gate demands something, so there may be no other demand.
    } else if scenario.then.is_empty() {
        say("", "then must demand something; a scenario without an assertion cannot fail");
    } else if !scenario.then.iter().any(Step::demands) {
        say("then", "none of its steps demands anything in every run; a scenario without an assertion cannot fail");
    }
    if scenario.snapshot.as_ref().is_some_and(|s| s.timeline.is_empty()) {
        say("snapshot.timeline", "it keeps the timeline of no Pod");
    }
    if !scenario.record.is_empty() && !scenario.clock.real() {
        say("record", "it needs real containers: `clock: real` or `clock: both`");
    }
    if scenario.record.iter().enumerate().any(|(i, s)| scenario.record[..i].contains(s)) {
        say("record", "it names a seam twice");
    }
    for (i, a) in scenario.allow.iter().enumerate() {
        if a.because.trim().is_empty() {
            say(&format!("allow[{}]", i + 1), "because must give the reason");
        }
    }
    let mut count = 0;
    scenario.walk(&mut |at, step| {
        count += 1;
        if let Some(text) = step_is_wrong(step, scenario, path) {
            say(at, &text);
        }
    });
    if count > MAX_STEPS {
        say("", &format!("it has {count} steps, more than {MAX_STEPS}"));
    }
    workload::check(scenario, &mut say);
    faults::check(scenario, &mut say);
    scope::check(scenario, &mut say);
    wrong
}

impl Step {
    /// Whether it can fail because of what the system under test did, in every run.
    pub fn demands(&self) -> bool {
        match self {
            Self::If(s) => s.then.iter().any(Self::demands) && s.otherwise.iter().any(Self::demands),
            Self::Retry(_)
            | Self::Repeat(_)
            | Self::ForEach(_)
            | Self::Limit(_)
            | Self::Group(_)
            | Self::Parallel(_) => self.inner().iter().any(|(_, steps)| steps.iter().any(Self::demands)),
            Self::Apply(_)
            | Self::Create(_)
            | Self::Patch(_)
            | Self::Scale(_)
            | Self::Evict(_)
            | Self::Cordon(_)
            | Self::Uncordon(_)
            | Self::Drain(_)
            | Self::Taint(_)
            | Self::Resize(_)
            | Self::Debug(_)
            | Self::Note(_)
            | Self::Delete(_)
            | Self::Label(_)
            | Self::Agent(_)
            | Self::Node(_)
            | Self::Pause(_)
            | Self::Checkpoint(_)
            | Self::Bind(_)
            | Self::Use(_) => false,
            _ => true,
        }
    }
}

fn step_is_wrong(step: &Step, scenario: &Scenario, path: &Path) -> Option<String> {
    let wrong = |text: &str| Some(text.to_owned());
    match step {
        Step::Apply(Apply::File(file)) | Step::Create(Apply::File(file)) => {
            let full = path.parent().unwrap_or_else(|| Path::new(".")).join(file);
            (file.contains("..") || !full.is_file()).then(|| format!("{file:?} is not a file beside the scenario"))
        }
        Step::Apply(Apply::Yaml(text)) | Step::Create(Apply::Yaml(text)) if text.trim().is_empty() => {
            wrong("yaml has no object")
        }
        Step::Apply(Apply::Yaml(text)) | Step::Create(Apply::Yaml(text)) => words::manifest(text),
        Step::Delete(d) if d.pod.is_some() == d.claim.is_some() => wrong("delete needs exactly one of pod and claim"),
        Step::Label(l) if l.set.is_empty() => wrong("label.set names no label"),
        Step::Pause(p) if p.because.trim().is_empty() => wrong("pause.because must give the reason"),
        Step::Bind(names) if names.is_empty() => wrong("bind names nothing"),
        Step::Elapsed(_) if scenario.clock != Worlds::Virtual => {
            wrong("elapsed needs `clock: virtual`; on the real clock a duration says more of the machine")
        }
        Step::Replay(_) if scenario.clock != Worlds::Virtual => {
            wrong("replay needs `clock: virtual`: it plays a tape against a simulated runtime")
        }
        Step::Replay(r) if r.except.iter().any(|e| e.because.trim().is_empty()) => {
            wrong("replay.except.because must give the reason")
        }
        Step::Replay(r) => {
            let full = path.parent().unwrap_or_else(|| Path::new(".")).join(&r.tape);
            (r.tape.contains("..") || !full.is_file())
                .then(|| format!("replay.tape {:?} is not a file beside the scenario", r.tape))
        }
        Step::If(s) if s.then.is_empty() => wrong("if.then has no step"),
        Step::Retry(s) if !(2..=100).contains(&s.attempts) => wrong("retry.attempts must be between 2 and 100"),
        Step::Repeat(s) if !(1..=1000).contains(&s.times) => wrong("repeat.times must be between 1 and 1000"),
        Step::Parallel(branches) if branches.len() < 2 => wrong("parallel needs two lists of steps at least"),
        Step::Group(g) if g.name.trim().is_empty() => wrong("group.name must say what the steps do"),
        Step::Use(_) => wrong("use stands for a step of a list"),
        Step::Retry(_) | Step::Repeat(_) | Step::ForEach(_) | Step::Parallel(_) | Step::Limit(_) | Step::Group(_)
            if step.inner().iter().any(|(_, steps)| steps.is_empty()) =>
        {
            wrong("it has no steps")
        }
        _ => {
            let vain = vacuous(step).map(|why| format!("{why}; such a step could never fail"));
            let inner = |step: &Step| step_is_wrong(step, scenario, path);
            vain.or_else(|| asserts::malformed(step))
                .or_else(|| words::wrong(step))
                .or_else(|| crate::acts::wrong(step, inner))
        }
    }
}
