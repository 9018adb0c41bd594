//! The verbs.

use std::{
    env,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::out::say;
use crate::{checks, conformance, tidy};

const USAGE: &str = "usage: cargo xtask VERB
  e2e [FILTER] [OPTIONS]   play every scenario on embedded clusters, with reports under target/reports
  test                     every test of the workspace
  up | down | ps | logs | enter | node | image | gc | diag | lint | docs | report | schema | new | explain | explore | parity | registry …   the same verb of podlab
  tidy                     the conventions: layers, file length, module docs, reachable files
  ci                       everything CI runs, listing every failure
  nightly                  the long counts
  mutants [NAME…]          known-bad changes against the scenarios that are to notice them
  bench                    criterion benches
  bench --against REV      compare this tree with a revision, start by start: 0 not slower, 1 slower (`podlab bench --help`)
  stress SCENARIO          play a scenario that has a load; figures by phase, or the highest rate that holds
  conformance [FOCUS]      upstream's conformance suite on a cluster of ours; `conformance --help` says more";

/// Exit code 2: could not run.
type Verdict = Result<u8, String>;

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs a verb; its exit code.
pub(crate) fn run(args: &[String]) -> Verdict {
    let (verb, rest) = args.split_first().ok_or(USAGE)?;
    match verb.as_str() {
        "test" => test(rest),
        "tidy" => tidy::run(),
        "ci" => checks::ci(),
        "nightly" => nightly(),
        "mutants" => mutants(rest),
        "conformance" if rest.iter().any(|a| a == "--help" || a == "-h") => {
            say!("{}", conformance::USAGE);
            Ok(0)
        }
        "conformance" => conformance::run(rest),
        "bench" if rest.iter().any(|a| a == "--against" || a.starts_with("--against=") || a == "--self-check") => {
            released("bench", rest)
        }
        "stress" => released("stress", rest),
        "bench" => cargo(&["bench", "-p", "podlab-benches"], rest),
        "e2e" | "up" | "down" | "ps" | "logs" | "enter" | "node" | "image" | "gc" | "diag" | "lint" | "docs"
        | "report" | "schema" | "new" | "explain" | "explore" | "parity" | "registry" | "tape" => {
            become_podlab(verb, rest)
        }
        "help" | "--help" | "-h" => {
            say!("{USAGE}");
            Ok(0)
        }
        other => Err(format!("there is no verb {other:?}\n{USAGE}")),
    }
}

/// Every test of the workspace; without a filter also the example of a repository that uses this one.
fn test(rest: &[String]) -> Verdict {
    let tests = cargo(&["test", "--workspace", "--no-fail-fast"], rest)?;
    if rest.is_empty() { Ok(tests.max(example()?)) } else { Ok(tests) }
}

/// The example shares what the workspace has built.
pub(crate) fn example() -> Verdict {
    let target = env::var("CARGO_TARGET_DIR").map_or_else(|_| root().join("target"), PathBuf::from);
    cargo(&["test", "--manifest-path", "suites/example/Cargo.toml", "--target-dir", &target.display().to_string()], &[])
}

/// Plays mutants in the workspace; the table of all of them is kept with the sources.
fn mutants(rest: &[String]) -> Verdict {
    let keep = ["--keep".to_owned(), "reports/mutants.md".to_owned()];
    let all = rest.is_empty();
    let program = build_podlab()?;
    let mut command = Command::new(program);
    command.arg("mutants").args(rest).args(keep.iter().filter(|_| all)).current_dir(root());
    status(&mut command)
}

/// The same with a podlab as it is released: for verbs whose figures are of its speed.
fn released(verb: &str, rest: &[String]) -> Verdict {
    if cargo(&["build", "--release", "--quiet", "--package", "podlab", "--bin", "podlab"], &[])? != 0 {
        return Ok(2);
    }
    let target = env::var("CARGO_TARGET_DIR").map_or_else(|_| root().join("target"), PathBuf::from);
    status(Command::new(target.join("release/podlab")).arg(verb).args(rest))
}

/// The long counts: twenty rounds of the suite, fifty kills, eighty killed runners, a soak of 500 Pods, ten replays of each
/// virtual scenario, every scenario in a container, a thousand seeds of each scenario made for exploring, every mutant, every load, and the
/// gate held against itself: forty comparisons of one program and twenty with a delay. CI runs a tenth of kills and Pods, one
/// round, two replays, and six scenarios in containers; the gate it knows from made-up samples only, because what it demands
/// of a machine is a time.
fn nightly() -> Verdict {
    let rounds = podlab("e2e", &["--rounds".into(), "20".into()])?;
    let mut kills = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    kills.args(["test", "-p", "podlab-suites", "--test", "robustness"]).current_dir(root());
    kills.env("PODLAB_KILLS", "50").env("PODLAB_SOAK", "500");
    let mut killed = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    killed.args(["test", "-p", "podlab", "--test", "runs", "whatever_moment"]).current_dir(root());
    killed.env("PODLAB_KILLED_RUNS", "80");
    let mut replays = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    let replay = ["test", "-p", "podlab-suites", "--test", "world", "every_replay"];
    replays.args(replay).env("PODLAB_REPLAYS", "10").current_dir(root());
    let mut worst = rounds.max(status(&mut kills)?).max(status(&mut killed)?).max(status(&mut replays)?);
    let mut containers = Command::new(root().join(".ci/with-docker"));
    containers.arg(build_podlab()?).args(["e2e", "--backend", "container", "--out", "target/reports/container"]);
    worst = worst.max(status(containers.current_dir(root()))?);
    worst = worst.max(released("stress", &["startup-stress/".into()])?);
    worst = worst.max(released("bench", &["--self-check".into(), "40".into()])?);
    worst = worst.max(mutants(&[])?);
    let dir = root().join("scenarios/virtual/explore");
    let mut names: Vec<_> = std::fs::read_dir(&dir)
        .map_err(|e| format!("{}: {e}", dir.display()))?
        .filter_map(|e| e.ok()?.path().file_stem()?.to_str().map(|n| format!("virtual/explore/{n}")))
        .collect();
    names.sort();
    for name in names {
        let args = [
            name,
            "--runs".into(),
            "1000".into(),
            "--scenarios".into(),
            root().join("scenarios").display().to_string(),
        ];
        worst = worst.max(podlab("explore", &args)?);
    }
    Ok(worst)
}

/// Runs cargo in the workspace.
pub(crate) fn cargo(args: &[&str], rest: &[String]) -> Verdict {
    let mut command = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    command.args(args).args(rest).current_dir(root());
    status(&mut command)
}

/// Builds podlab and starts one of its verbs in the caller's folder.
fn podlab(verb: &str, rest: &[String]) -> Verdict {
    match build_podlab() {
        Ok(program) => status(Command::new(program).arg(verb).args(rest)),
        // The compiler has said what is wrong.
        Err(_) => Ok(2),
    }
}

/// Builds podlab and becomes one of its verbs: what a terminal sends goes to it alone, and the prompt waits for its end.
fn become_podlab(verb: &str, rest: &[String]) -> Verdict {
    match build_podlab() {
        Ok(program) => Err(format!("{}: {}", program.display(), Command::new(&program).arg(verb).args(rest).exec())),
        // The compiler has said what is wrong.
        Err(_) => Ok(2),
    }
}

/// Builds podlab; where it is. Silent but for the first time, which takes minutes.
pub(crate) fn build_podlab() -> Result<PathBuf, String> {
    let target = env::var("CARGO_TARGET_DIR").map_or_else(|_| root().join("target"), PathBuf::from);
    let program = target.join("debug/podlab");
    let quiet: &[&str] = if program.exists() { &["--quiet"] } else { &[] };
    if cargo(&[&["build", "--workspace", "--bin", "podlab"], quiet].concat(), &[])? != 0 {
        return Err("podlab does not build".into());
    }
    Ok(program)
}

/// Runs a command with the caller's streams; its exit code.
pub(crate) fn status(command: &mut Command) -> Verdict {
    let shown = format!("{command:?}");
    let status = command.stdin(Stdio::inherit()).status().map_err(|e| format!("{shown}: {e}"))?;
    Ok(status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1))
}
