//! Folders of scenarios to play, and what a run of them left.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
};

pub(crate) const HEAD: &str = "apiVersion: podlab/v1\nkind: Scenario\nclock: virtual\n";
pub(crate) const POD: &str = "when:\n- apply: {yaml: '{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: \"registry.test/testimage:1\", command: [serve]}]}}'}\n";
pub(crate) const READY: &str = "then:\n- eventually: {match: {pod: a, condition: Ready}, within: 1m}\n";

/// A folder with scenarios `s/t/NAME.yaml`.
pub(crate) fn folder(files: &[(&str, String)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("s/t")).unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(format!("s/t/{name}.yaml")), text).unwrap();
    }
    dir
}

pub(crate) fn scenario(intent: &str, more: &str) -> String {
    format!("{HEAD}intent: {intent}\n{more}")
}

pub(crate) fn passes() -> String {
    scenario("A Pod becomes Ready and passes.", &format!("tags: [quick]\n{POD}{READY}"))
}

pub(crate) fn fails() -> String {
    scenario(
        "A Pod fails, which is not so.",
        &format!("{POD}then:\n- eventually: {{match: {{pod: a, phase: Failed}}, within: 1m}}\n"),
    )
}

/// Takes seconds, however fast the machine: a thousand hours of probes. Its cleanup succeeds whenever it is ended.
pub(crate) fn slow() -> String {
    let probes = POD
        .replace("command: [serve]", "command: [serve], readinessProbe: {periodSeconds: 1, tcpSocket: {port: 8080}}");
    let wait = "- repeat: {times: 1000, steps: [{pause: {duration: 1h, because: it takes long}}]}\n";
    scenario(
        "A Pod lives for a long time.",
        &format!("budget: 24h\n{probes}{wait}{READY}cleanup:\n- expect: {{that: size(podNames) >= 0}}\n"),
    )
}

pub(crate) fn command(dir: &Path, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_podlab"));
    c.args(args).env("PODLAB_STATE", dir).current_dir(dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    c
}

pub(crate) fn e2e(dir: &Path, more: &[&str]) -> Output {
    let mut args = vec!["e2e", "--scenarios", "s", "--out", "out", "--seed", "1"];
    args.extend(more);
    command(dir, &args).output().unwrap()
}

pub(crate) fn said(o: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr))
}

pub(crate) fn report(dir: &Path) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(dir.join("out/report.json")).unwrap()).unwrap()
}

pub(crate) fn verdict(dir: &Path, trial: &str) -> String {
    let report = report(dir);
    let all = report["trials"].as_array().unwrap();
    let one = all.iter().find(|t| t["name"] == trial).unwrap_or_else(|| panic!("{trial} is not in {report}"));
    one["verdict"].as_str().unwrap().to_owned()
}

/// Begins a run of a quick trial and then a slow one; returns when the quick one has ended and the slow one has begun.
pub(crate) fn begin(dir: &Path) -> Child {
    let args = ["e2e", "--scenarios", "s", "--out", "out", "-j", "1", "--seed", "1"];
    let child = command(dir, &args).spawn().unwrap();
    let log = dir.join("out/session.jsonl");
    let clock = podlab_clock::Clock::real();
    let deadline = clock.now().after(std::time::Duration::from_secs(120));
    while fs::read_to_string(&log).unwrap_or_default().matches("\"trialBegin\"").count() < 2 {
        assert!(clock.now() < deadline, "the second trial never began");
        std::thread::yield_now();
    }
    child
}
