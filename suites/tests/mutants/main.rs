//! Known-bad changes to the components turn the trials red that are named for them. `cargo test` plays a tenth,
//! `PODLAB_MUTANTS=all` every one; nightly does.

use std::{path::PathBuf, sync::Arc};

use libtest_mimic::{Arguments, Failed, Trial};
use podlab_runner::{
    PlayOptions,
    mutants::{self, Share, Verdict},
    suite,
};
use podlab_testbed::Zygote;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn main() -> std::process::ExitCode {
    let zygote = match podlab_testbed::early_main() {
        Ok(zygote) => Arc::new(zygote),
        Err(e) => {
            eprintln!("mutants: {e}");
            return std::process::ExitCode::from(2);
        }
    };
    let arguments = Arguments::from_args();
    let trials = vec![
        Trial::test("the_mutants_of_this_share_turn_their_trials_red", move || turn_red(zygote)),
        Trial::test("the_table_in_the_reports_folder_is_that_of_the_list", kept),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn turn_red(zygote: Arc<Zygote>) -> Result<(), Failed> {
    let share = if std::env::var("PODLAB_MUTANTS").is_ok_and(|v| v == "all") { Share::All } else { Share::Tenth };
    let scenarios = suite::read(&root().join("scenarios"), "").map_err(|e| format!("{e:?}"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let options = PlayOptions { out: root().join("target/reports/mutants"), seed: 1, ..PlayOptions::default() };
    let chosen = share.mutants();
    let judged = mutants::judge(Some(zygote), &scenarios, &chosen, &options, 2, |_| {});
    let rows = runtime.block_on(judged).map_err(|e| e.to_string())?;
    let wrong: Vec<String> = rows
        .iter()
        .filter(|r| !matches!(r.verdict, Verdict::Red { .. }))
        .map(|r| format!("{} in {}: {:?}", r.mutant.name(), r.trial, r.verdict))
        .collect();
    if wrong.is_empty() && !rows.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

/// `cargo xtask mutants` writes it after it has played all of them.
fn kept() -> Result<(), Failed> {
    let path = root().join("reports/mutants.md");
    let text = std::fs::read_to_string(&path)?;
    let wanted = mutants::table(&mutants::expected());
    if text == wanted { Ok(()) } else { Err("reports/mutants.md is not what `cargo xtask mutants` writes".into()) }
}
