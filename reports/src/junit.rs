//! JUnit XML: failed trials are failures; broken and invalid ones are errors.

use quick_junit::{NonSuccessKind, Report, SerializeError, TestCase, TestCaseStatus, TestSuite};

use crate::{Run, Verdict};

/// Renders a run.
pub(crate) fn render(run: &Run) -> Result<String, SerializeError> {
    let mut report = Report::new(run.suite.clone());
    let mut suite = TestSuite::new(run.suite.clone());
    suite.set_time(run.duration);
    for trial in &run.trials {
        let non_success = |kind: NonSuccessKind, message: String, text: &str| {
            let mut status = TestCaseStatus::non_success(kind);
            status.set_message(message).set_type(trial.verdict.word()).set_description(text.to_owned());
            status
        };
        let status = match &trial.verdict {
            Verdict::Passed => TestCaseStatus::success(),
            Verdict::Failed { step, why, context } => {
                non_success(NonSuccessKind::Failure, format!("{step}: {why}"), context)
            }
            Verdict::Broken { step, why } => non_success(NonSuccessKind::Error, format!("{step}: {why}"), ""),
            Verdict::Invalid(why) => non_success(NonSuccessKind::Error, why.clone(), ""),
            // It passed in the end; what readers of JUnit do with a flaky test is theirs.
            Verdict::Flaky(why) => {
                let mut status = TestCaseStatus::success();
                let mut before = quick_junit::TestRerun::new(NonSuccessKind::Failure);
                before.set_message(why.clone()).set_type("flaky");
                status.add_rerun(before);
                status
            }
            Verdict::Skipped(why) | Verdict::Quarantined(why) => {
                let mut status = TestCaseStatus::skipped();
                status.set_message(why.clone());
                status
            }
        };
        let mut case = TestCase::new(trial.name.clone(), status);
        case.set_classname(run.suite.clone()).set_time(trial.duration);
        suite.add_test_case(case);
    }
    report.add_test_suite(suite);
    report.to_string()
}
