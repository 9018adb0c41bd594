//! Every scenario as a test: `cargo test --test e2e [FILTER]`. Listing reads only YAML; a cluster is booted inside its
//! trial. A scenario that keeps a timeline is compared with its snapshot under `reports/snapshots/timelines`.

use std::{path::PathBuf, sync::Arc};

use libtest_mimic::{Arguments, Failed, Trial};
use podlab_runner::{
    Outcome, PlayOptions, play,
    suite::{self, World},
};
use podlab_testbed::Zygote;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn main() -> std::process::ExitCode {
    let zygote = match podlab_testbed::early_main() {
        Ok(zygote) => Arc::new(zygote),
        Err(e) => {
            eprintln!("e2e: {e}");
            return std::process::ExitCode::from(2);
        }
    };
    let mut arguments = Arguments::from_args();
    // Two clusters at a time are what two cores bear; more only makes each slower.
    arguments.test_threads = arguments.test_threads.or(Some(2));
    let scenarios = match suite::read(&root().join("scenarios"), "") {
        Ok(scenarios) => scenarios,
        Err(errors) => {
            errors.iter().for_each(|e| eprintln!("{e}"));
            return std::process::ExitCode::from(2);
        }
    };
    let trials = scenarios.into_iter().flat_map(|s| {
        let zygote = zygote.clone();
        s.worlds(None).into_iter().map(move |world| {
            let (zygote, s) = (zygote.clone(), s.clone());
            // What a load must hold on real containers is a time, which a busy machine decides; it is played every night.
            let timed = world == World::Real && s.scenario.load.is_some();
            Trial::test(s.trial_name(world), move || judge(&zygote, &s, world)).with_ignored_flag(timed)
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// In whichever world: a scenario that is played in both has one snapshot, so its two timelines are the same.
fn judge(zygote: &Zygote, s: &suite::Ready, world: World) -> Result<(), Failed> {
    let options = PlayOptions { out: root().join("target/reports/suite"), ..PlayOptions::default() };
    let trial = match world {
        World::Virtual => s.play_virtual(&options),
        World::Real => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(play(zygote, &s.name, &s.path, &s.scenario, &options))
        }
    };
    match &trial.outcome {
        Outcome::Passed => {}
        Outcome::Failed(f) => return Err(format!("{}: {}\n{}", f.step, f.why, f.context).into()),
        Outcome::Broken(f) => return Err(format!("broken: {}: {}", f.step, f.why).into()),
        Outcome::Invalid(why) => return Err(format!("invalid: {why}").into()),
        Outcome::Skipped(why) => return Err(format!("skipped: {why}").into()),
    }
    if s.scenario.snapshot.is_some() {
        compare(&s.name, &trial.snapshot)?;
    }
    Ok(())
}

fn compare(name: &str, snapshot: &str) -> Result<(), Failed> {
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
    compared.map_err(|_| format!("the timeline of {name} differs from its snapshot").into())
}
