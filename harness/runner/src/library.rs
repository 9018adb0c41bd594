//! A folder of scenarios as a test binary of another repository.
//!
//! ```text
//! fn main() -> std::process::ExitCode {
//!     podlab_runner::library::Suite::at("scenarios").run()
//! }
//! ```
//! with `harness = false` in the `[[test]]` section of its `Cargo.toml`. The binary takes the arguments of any test binary
//! (a filter, `--list`, `--test-threads`, …). Listing reads only YAML; a cluster is booted inside its trial.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use libtest_mimic::{Arguments, Failed};
use podlab_testbed::Zygote;

use crate::{
    Outcome, PlayOptions, Trial, play,
    suite::{self, Ready, World},
};

/// Two clusters at a time are what two cores bear; more only makes each slower.
const JOBS: usize = 2;

type Check = dyn Fn(&Ready, &Trial) -> Result<(), String> + Send + Sync;

/// A folder of scenarios to play as tests.
pub struct Suite {
    scenarios: PathBuf,
    options: PlayOptions,
    check: Arc<Check>,
}

impl std::fmt::Debug for Suite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Suite")
            .field("scenarios", &self.scenarios)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Suite {
    /// The scenarios below a folder. Logs go to `target/reports/suite` of the working directory.
    pub fn at(scenarios: impl Into<PathBuf>) -> Self {
        let options = PlayOptions { out: "target/reports/suite".into(), ..PlayOptions::default() };
        Self { scenarios: scenarios.into(), options, check: Arc::new(|_, _| Ok(())) }
    }

    /// Another folder for logs.
    #[must_use]
    pub fn logs(mut self, out: impl Into<PathBuf>) -> Self {
        self.options.out = out.into();
        self
    }

    /// A seed for every component's randomness.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.seed = seed;
        self
    }

    /// A demand on every trial that passed, beside what its scenario demands.
    #[must_use]
    pub fn check(mut self, check: impl Fn(&Ready, &Trial) -> Result<(), String> + Send + Sync + 'static) -> Self {
        self.check = Arc::new(check);
        self
    }

    /// Plays what the command line asks for; the exit code of a test binary, or 2 when a scenario cannot be used. Call it
    /// first thing in `main`: clusters are forked from a process that has no threads yet.
    pub fn run(self) -> ExitCode {
        let zygote = match podlab_testbed::early_main() {
            Ok(zygote) => Arc::new(zygote),
            Err(e) => return refuse(&[e.to_string()]),
        };
        let mut arguments = Arguments::from_args();
        arguments.test_threads = arguments.test_threads.or(Some(JOBS));
        let ready = match suite::read(&self.scenarios, "") {
            Ok(ready) if ready.is_empty() => {
                return refuse(&[format!("there are no scenarios in {}", self.scenarios.display())]);
            }
            Ok(ready) => ready,
            Err(errors) => return refuse(&errors.iter().map(ToString::to_string).collect::<Vec<_>>()),
        };
        let trials = ready.into_iter().flat_map(|r| {
            let (zygote, options, check) = (zygote.clone(), self.options.clone(), self.check.clone());
            r.worlds(None).into_iter().map(move |world| {
                let (r, zygote, options, check) = (r.clone(), zygote.clone(), options.clone(), check.clone());
                let name = r.trial_name(world);
                // What a load must hold on real containers is a time, which a busy machine decides: only who asks plays it.
                let timed = world == World::Real && r.scenario.load.is_some();
                libtest_mimic::Trial::test(name, move || judge(&zygote, &r, world, &options, &*check))
                    .with_ignored_flag(timed)
            })
        });
        libtest_mimic::run(&arguments, trials.collect()).exit_code()
    }
}

fn judge(zygote: &Zygote, r: &Ready, world: World, options: &PlayOptions, check: &Check) -> Result<(), Failed> {
    let trial = match world {
        World::Virtual => r.play_virtual(options),
        World::Real => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(play(zygote, &r.name, &r.path, &r.scenario, options))
        }
    };
    let log = shown(&trial.log);
    match &trial.outcome {
        Outcome::Passed => check(r, &trial).map_err(Failed::from),
        Outcome::Failed(f) => Err(format!("{}: {}\n{}{log}", f.step, f.why, f.context).into()),
        Outcome::Broken(f) => Err(format!("broken: {}: {}{log}", f.step, f.why).into()),
        Outcome::Invalid(why) => Err(format!("invalid: {why}{log}").into()),
        Outcome::Skipped(why) => Err(format!("skipped: {why}").into()),
    }
}

fn shown(log: &Path) -> String {
    if log.as_os_str().is_empty() { String::new() } else { format!("\nlog: {}", log.display()) }
}

/// The harness of a test binary prints its own lines the same way.
#[expect(clippy::print_stderr, reason = "what a test binary cannot begin with is said where its user looks")]
fn refuse(why: &[String]) -> ExitCode {
    why.iter().for_each(|line| eprintln!("{line}"));
    ExitCode::from(2)
}
