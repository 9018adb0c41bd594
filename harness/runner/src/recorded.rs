//! Timelines that were recorded before, and a trial against its own. The files are insta's, so `cargo insta review` shows and
//! accepts what the suite found; here they are only read.

use std::path::Path;

use podlab_timeline::diff;

use crate::{Failure, Outcome, Trial};

/// Lines of what is the same shown around a difference.
const CONTEXT: usize = 2;

/// What was recorded of a scenario in a folder, if anything.
pub(crate) fn read(folder: &Path, scenario: &str) -> Option<String> {
    let text = std::fs::read_to_string(folder.join(format!("{scenario}.snap"))).ok()?;
    let content = text.strip_prefix("---\n").and_then(|rest| rest.split_once("\n---\n")).map(|(_, content)| content);
    Some(content.unwrap_or(&text).to_owned())
}

/// Holds a trial against what was recorded of its scenario: one that passed fails when its timeline is another one.
pub(crate) fn compare(trial: &mut Trial, folder: &Path, scenario: &str) {
    if trial.snapshot.is_empty() {
        return;
    }
    trial.recorded = read(folder, scenario);
    let Some(recorded) = &trial.recorded else { return };
    let lines = diff::diff(recorded.trim_end(), trial.snapshot.trim_end());
    if trial.outcome == Outcome::Passed && diff::differs(&lines) {
        let why = "its timeline is not the one that was recorded".to_owned();
        let context = diff::render(&lines, CONTEXT);
        trial.outcome = Outcome::Failed(Failure { step: "snapshot".into(), why, context });
    }
}

#[cfg(test)]
mod tests {
    use podlab_clock::Mono;

    use super::*;

    #[test]
    fn a_trial_that_passed_fails_when_its_timeline_is_another_one_and_says_what_differs() {
        let dir = std::env::temp_dir().join(format!("podlab-recorded-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("a")).unwrap();
        std::fs::write(dir.join("a/b.snap"), "---\nsource: x\n---\npod web\nwatch phase: Pending > Running\n").unwrap();
        let text = "apiVersion: podlab/v1\nkind: Scenario\nintent: Something holds.\nthen:\n- leakFree: [ips]\n";
        let scenario = podlab_scenario::parse(text, Path::new("x.yaml")).unwrap();
        let judged = |snapshot: &str, name: &str| {
            let mut trial = crate::play::blank("a/b", &scenario, Mono(0), "x".into());
            trial.snapshot = snapshot.into();
            compare(&mut trial, &dir, name);
            trial
        };
        assert_eq!(judged("pod web\nwatch phase: Pending > Running\n", "a/b").outcome, Outcome::Passed);
        let Outcome::Failed(f) = judged("pod web\nwatch phase: Pending > Failed\n", "a/b").outcome else { panic!() };
        assert_eq!(
            (f.step.as_str(), f.context.as_str()),
            ("snapshot", "  pod web\n~ watch phase: Pending > [-Running-]{+Failed+}\n")
        );
        let unknown = judged("pod web\n", "a/c");
        assert_eq!((unknown.outcome, unknown.recorded), (Outcome::Passed, None));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
