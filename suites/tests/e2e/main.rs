//! Every scenario as a test: `cargo test --test e2e [FILTER]`. A scenario that keeps a timeline is compared with its
//! snapshot under `reports/snapshots/timelines`, in whichever world it is played: one that is played in both has one
//! snapshot, so its two timelines are the same.

use std::path::PathBuf;

use podlab_runner::library::Suite;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn main() -> std::process::ExitCode {
    let suite = Suite::at(root().join("scenarios")).logs(root().join("target/reports/suite"));
    let kept = suite.check(|r, trial| match r.scenario.snapshot {
        Some(_) => compare(&r.name, &trial.snapshot),
        None => Ok(()),
    });
    kept.run()
}

fn compare(name: &str, snapshot: &str) -> Result<(), String> {
    let path = root().join("reports/snapshots/timelines").join(name);
    let (dir, file) = (
        path.parent().unwrap_or(&path).to_owned(),
        path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
    );
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(dir);
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    // insta panics on a difference, after printing it.
    let compared = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        settings.bind(|| insta::assert_snapshot!(file, snapshot))
    }));
    compared.map_err(|_| format!("the timeline of {name} differs from its snapshot"))
}
