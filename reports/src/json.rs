//! The report as JSON, version 1: everything the page shows, for programs. Its schema is made from these types; a field added
//! later is optional, none is renamed or taken away within a version.

use std::collections::BTreeMap;

use podlab_timeline::diff;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Run, StepState, Trial, Verdict, steps};

/// Version of the format.
pub const REPORT_VERSION: u8 = 1;

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReportFile {
    /// Version of this format: 1.
    pub version: u8,
    /// Name of the suite.
    pub suite: String,
    /// When it began, in nanoseconds since 1970 (UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_unix_ns: Option<u64>,
    /// From first to last, in microseconds.
    pub duration_us: u64,
    /// Kernel, cores and the like, by name.
    pub environment: BTreeMap<String, String>,
    /// How many trials passed.
    pub passed: usize,
    /// How many found a fault in what was tested.
    pub failed: usize,
    /// How many the harness itself could not play.
    pub broken: usize,
    /// How many say nothing, since a fault did not do its work.
    pub invalid: usize,
    /// How many were not played.
    pub skipped: usize,
    /// How many passed only when they were played again.
    pub flaky: usize,
    /// How many failed in quarantine.
    pub quarantined: usize,
    /// All trials, in their order.
    pub trials: Vec<TrialReport>,
}

/// A trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrialReport {
    /// The scenario's path.
    pub name: String,
    /// What holds when it passes.
    pub intent: String,
    /// `real`, `virtual`, or empty where that is not known.
    #[serde(default)]
    pub world: String,
    /// How it ended.
    pub verdict: Word,
    /// At which step, if at one.
    pub step: Option<String>,
    /// Why, unless it passed.
    pub why: Option<String>,
    /// From boot to verdict, in microseconds.
    pub duration_us: u64,
    /// From boot to all nodes Ready, in microseconds.
    pub boot_us: u64,
    /// What it did, in order.
    #[serde(default)]
    pub steps: Vec<StepReport>,
    /// The Pods it saw.
    pub pods: Vec<PodReport>,
    /// Its timeline in normal form, where it keeps one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<TimelineReport>,
}

/// How a trial ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "each is told at the count of its name")]
pub enum Word {
    Passed,
    Failed,
    Broken,
    Invalid,
    Skipped,
    Flaky,
    Quarantined,
}

/// One time a step was done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepReport {
    /// Its path in the scenario, such as `then[2].retry.steps[1]`.
    pub at: String,
    /// What it does, in a sentence.
    pub what: String,
    /// `done`, `failed` or `cutOff`.
    pub state: StepWord,
    /// When it began, in microseconds from the first one.
    pub start_us: u64,
    /// How long it took, in microseconds.
    pub duration_us: u64,
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "each says it")]
pub enum StepWord {
    Done,
    Failed,
    CutOff,
}

/// A Pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodReport {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// Its startup, where its creation was seen.
    pub startup: Option<StartupReport>,
    /// Its events, in order of their first appearance.
    pub events: Vec<EventReport>,
}

/// A startup; its phases sum to the total.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StartupReport {
    /// From the accepted create to the last milestone, in microseconds.
    pub total_us: u64,
    /// Of that, time whose end no milestone marks.
    pub unattributed_us: u64,
    /// Whether a watcher saw the Pod Ready.
    pub complete: bool,
    /// The phases, in order.
    pub phases: Vec<PhaseReport>,
}

/// A phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PhaseReport {
    /// Its name.
    pub name: String,
    /// How long, in microseconds.
    pub us: u64,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventReport {
    /// `Normal` or `Warning`.
    pub r#type: String,
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
    /// Which component wrote it.
    pub source: String,
    /// How often, as the API object counts.
    pub count: u32,
}

/// A timeline in normal form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TimelineReport {
    /// The text.
    pub text: String,
    /// Whether something was recorded of it before.
    pub recorded: bool,
    /// What differs from that, as lines of a diff; empty when nothing does.
    pub difference: String,
}

fn micros(d: std::time::Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

/// Micros since a point, in whole steps, so that neighbours add up.
fn phases(p: &podlab_timeline::fold::Phases) -> StartupReport {
    let each = p.phases.iter().map(|x| PhaseReport { name: x.name.to_owned(), us: micros(x.duration) });
    StartupReport {
        total_us: micros(p.total),
        unattributed_us: micros(p.unattributed),
        complete: p.complete,
        phases: each.collect(),
    }
}

fn trial(t: &Trial) -> TrialReport {
    let pods = t.timelines.iter().filter(|(k, _)| !k.uid.is_empty()).map(|(key, timeline)| {
        let event = |e: &podlab_timeline::fold::SeenEvent| EventReport {
            r#type: e.kind.clone(),
            reason: e.reason.clone(),
            message: e.message.clone(),
            source: e.source.clone(),
            count: e.count,
        };
        PodReport {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: key.uid.clone(),
            startup: timeline.phases().as_ref().map(phases),
            events: timeline.events.iter().map(event).collect(),
        }
    });
    let (verdict, at_a_step) = match &t.verdict {
        Verdict::Passed => (Word::Passed, false),
        Verdict::Failed { .. } => (Word::Failed, true),
        Verdict::Broken { .. } => (Word::Broken, true),
        Verdict::Invalid(_) => (Word::Invalid, false),
        Verdict::Skipped(_) => (Word::Skipped, false),
        Verdict::Flaky(_) => (Word::Flaky, false),
        Verdict::Quarantined(_) => (Word::Quarantined, false),
    };
    let why = t.verdict.why();
    let timeline = (!t.timeline.is_empty()).then(|| {
        let before = t.recorded.as_deref().unwrap_or(&t.timeline);
        let lines = diff::diff(before.trim_end(), t.timeline.trim_end());
        TimelineReport { text: t.timeline.clone(), recorded: t.recorded.is_some(), difference: diff::render(&lines, 1) }
    });
    TrialReport {
        name: t.name.clone(),
        intent: t.intent.clone(),
        world: t.world.clone(),
        verdict,
        step: why.filter(|_| at_a_step).map(|(step, _)| step.to_owned()),
        why: why.map(|(_, why)| why.to_owned()),
        duration_us: micros(t.duration),
        boot_us: micros(t.boot),
        steps: step_reports(t),
        pods: pods.collect(),
        timeline,
    }
}

fn step_reports(t: &Trial) -> Vec<StepReport> {
    let all = steps(&t.entries);
    let begin = all.iter().map(|s| s.start).min().unwrap_or_default();
    let one = |s: crate::StepRun| StepReport {
        state: match s.state {
            StepState::Done => StepWord::Done,
            StepState::Failed => StepWord::Failed,
            StepState::CutOff => StepWord::CutOff,
        },
        start_us: micros(s.start.since(begin)),
        duration_us: micros(s.end.since(s.start)),
        at: s.at,
        what: s.what,
    };
    all.into_iter().map(one).collect()
}

/// A run in this format.
pub fn report_file(run: &Run) -> ReportFile {
    ReportFile {
        version: REPORT_VERSION,
        suite: run.suite.clone(),
        began_unix_ns: run.began.map(|b| b.unix_ns),
        duration_us: micros(run.duration),
        environment: run.environment.clone(),
        passed: run.count("passed"),
        failed: run.count("failed"),
        broken: run.count("broken"),
        invalid: run.count("invalid"),
        skipped: run.count("skipped"),
        flaky: run.count("flaky"),
        quarantined: run.count("quarantined"),
        trials: run.trials.iter().map(trial).collect(),
    }
}

/// Renders a run.
pub(crate) fn render(run: &Run) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(&report_file(run))
}

/// The JSON schema of the format, with a final newline.
pub fn report_schema() -> String {
    let schema = schemars::schema_for!(ReportFile);
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}
