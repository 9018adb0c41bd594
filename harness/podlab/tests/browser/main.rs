//! The pages in a real browser, from a file: what a person sees and does with nothing but a keyboard, that nothing is asked of
//! any network, and what axe-core finds. Leaves screenshots under `target/reports/screenshots`.
//!
//! `.ci/run` installs what it needs: Chromium (`PODLAB_CHROMIUM`, or `chromium` in the path) and axe-core (`PODLAB_AXE`, or
//! `target/axe/package/axe.min.js`). Without them it fails.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]
#![allow(clippy::print_stderr, reason = "what axe finds besides is worth reading")]

mod chromium;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::chromium::Chromium;

const HEAD: &str = "apiVersion: podlab/v1\nkind: Scenario\nclock: virtual\n";
const POD: &str = "when:\n- apply: {yaml: '{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {initContainers: [{name: i, image: \"registry.test/testimage:1\", command: [exit, \"0\"]}], containers: [{name: c, image: \"registry.test/testimage:1\", command: [serve], readinessProbe: {initialDelaySeconds: 2, tcpSocket: {port: 8080}}}]}}'}\n";
const READY: &str =
    "then:\n- eventually: {match: {pod: a, condition: Ready}, within: 1m}\n- rpc: {cni.ADD: {exactly: 1}}\n";

fn target() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target").canonicalize().unwrap()
}

fn podlab(dir: &Path, args: &[&str]) -> Option<i32> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_podlab"));
    command.args(args).env("PODLAB_STATE", dir).env_remove("GITHUB_STEP_SUMMARY").current_dir(dir);
    command.output().unwrap().status.code()
}

/// Two runs with trials of every kind, and the comparison of them.
fn runs(dir: &Path) {
    let scenario = |name: &str, text: String| {
        let path = dir.join(format!("s/{name}.yaml"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let intent = |intent: &str, more: String| format!("{HEAD}intent: {intent}\n{more}");
    scenario("t/passes", intent("A Pod becomes Ready, by & by.", format!("{POD}{READY}")));
    scenario(
        "t/fails",
        intent(
            "A Pod <b>fails</b>, which is not so.",
            format!("{POD}then:\n- eventually: {{match: {{pod: a, phase: Failed}}, within: 1m}}\n"),
        ),
    );
    scenario(
        "t/breaks",
        intent("A Pod is Ready, its cleanup is not.", format!("{POD}{READY}cleanup:\n- delete: {{pod: b}}\n")),
    );
    scenario(
        "t/invalid",
        intent(
            "A fault fires seven times, which is not so.",
            format!(
                "faults:\n- {{id: f, at: {{cri: {{method: StartContainer}}}}, effect: {{delay: {{ms: 5}}}}, must: {{fired: 7}}}}\n{POD}{READY}"
            ),
        ),
    );
    scenario(
        "t/m",
        intent("One for each of a matrix.", format!("matrix: {{n: [1, 2]}}\nbudget: \"${{matrix.n}}h\"\n{POD}{READY}")),
    );
    scenario(
        "t/kept",
        intent(
            "A timeline is the one that was recorded, which is not so.",
            format!("{POD}{READY}snapshot: {{timeline: [a]}}\n"),
        ),
    );
    scenario(
        "t/excused",
        intent(
            "A Pod fails, for which there is an excuse.",
            format!("{POD}then:\n- eventually: {{match: {{pod: a, phase: Failed}}, within: 1m}}\n"),
        ),
    );
    let excuse = "{scenario: t/excused, owner: me, reason: it races, expires: 9999-01-01}";
    fs::write(
        dir.join("s/quarantine.yaml"),
        format!("apiVersion: podlab/v1\nkind: Quarantine\nentries:\n- {excuse}\n"),
    )
    .unwrap();
    fs::create_dir_all(dir.join("kept/t")).unwrap();
    fs::write(
        dir.join("kept/t/kept.snap"),
        "---\nsource: x\n---\npod a\nwatch phase: Pending > Running > Failed\ncni ADD\ncni DEL\n",
    )
    .unwrap();
    let play = |out: &str, seed: &str| {
        podlab(dir, &["e2e", "--scenarios", "s", "--out", out, "--seed", seed, "--snapshots", "kept"])
    };
    assert_eq!(play("before", "1"), Some(1));
    scenario("t/fails", intent("A Pod <b>fails</b>, which is not so.", format!("{POD}{READY}")));
    scenario("t/new", intent("A Pod becomes Ready, and is new.", format!("{POD}{READY}")));
    assert_eq!(play("after", "2"), Some(1));
    assert_eq!(podlab(dir, &["report", "after", "--against", "before"]), Some(1));
    assert_eq!(podlab(dir, &["report", "before"]), Some(1));
}

/// What axe finds in what is shown now; serious faults fail, and all are told.
fn accessible(browser: &mut Chromium, axe: &str, what: &str) {
    browser.eval(axe);
    let found = browser.eval("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => ({id: v.id, impact: v.impact, help: v.help, nodes: v.nodes.slice(0, 3).map(n => n.html.slice(0, 160) + ' | ' + n.failureSummary)})))");
    let all = found.as_array().unwrap();
    all.iter().for_each(|v| eprintln!("axe, {what}: {v}"));
    let serious: Vec<&Value> = all.iter().filter(|v| v["impact"] != "minor" && v["impact"] != "moderate").collect();
    assert!(serious.is_empty(), "{what}: {serious:#?}");
}

fn rows(browser: &mut Chromium) -> Vec<String> {
    let rows = browser
        .eval("[...document.querySelectorAll('#trials tbody tr')].filter(r => !r.hidden).map(r => r.dataset.name)");
    rows.as_array().unwrap().iter().map(|r| r.as_str().unwrap().to_owned()).collect()
}

fn shown(browser: &mut Chromium) -> String {
    let page = browser.eval("[...document.querySelectorAll('.page')].filter(p => p.offsetParent !== null || p.getClientRects().length).map(p => p.dataset.page).join('|')");
    page.as_str().unwrap().to_owned()
}

#[test]
fn a_person_with_a_browser_a_file_and_a_keyboard_finds_what_failed_and_why() {
    let axe = std::env::var_os("PODLAB_AXE").map_or_else(|| target().join("axe/package/axe.min.js"), PathBuf::from);
    let axe = fs::read_to_string(&axe)
        .unwrap_or_else(|e| panic!("{}: {e}; npm pack axe-core, or set PODLAB_AXE", axe.display()));
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    runs(at);
    let pictures = target().join("reports/screenshots");
    fs::create_dir_all(&pictures).unwrap();
    let mut browser = Chromium::start(&at.join("profile"));
    let b = &mut browser;

    b.look(1280, "light");
    b.open(&at.join("before/report.html"));
    assert_eq!(
        rows(b),
        ["t/breaks", "t/excused", "t/fails", "t/invalid", "t/kept", "t/m[n=1]", "t/m[n=2]", "t/passes"]
    );
    assert_eq!(shown(b), "", "only the first page is shown");
    b.picture(&pictures.join("suite-light.png"));
    accessible(b, &axe, "suite, light");
    keyboard(b);
    sorting(b);

    for (trial, picture) in [("#t/fails", "failed"), ("#t/kept", "difference"), ("#t/m%5Bn=1%5D", "passed")] {
        b.visit(trial);
        b.picture(&pictures.join(format!("trial-{picture}-light.png")));
        accessible(b, &axe, trial);
    }
    assert_eq!(shown(b), "t/m[n=1]");
    assert_eq!(b.eval("document.title"), "t/m[n=1] – e2e report");
    let text = |b: &mut Chromium, q: &str| {
        b.eval(&format!("document.querySelector({q:?}).innerText")).as_str().unwrap().to_owned()
    };
    let failed = text(b, "[id='t/fails'] .reason");
    assert!(failed.contains("then[1]") && text(b, "[id='t/fails'] .intent").contains("<b>fails</b>"), "{failed}");
    assert_eq!(
        b.eval("document.querySelector('[id=\"t/kept\"] .diff .changed').textContent"),
        "~watch phase: Pending > Running > Failed"
    );

    b.look(1280, "dark");
    b.visit("#");
    b.picture(&pictures.join("suite-dark.png"));
    accessible(b, &axe, "suite, dark");
    b.visit("#t/kept");
    b.picture(&pictures.join("trial-difference-dark.png"));
    accessible(b, &axe, "trial, dark");
    // What the user chose wins over what the system wants.
    b.eval("document.getElementById('theme').click()");
    assert_eq!(b.eval("getComputedStyle(document.body).backgroundColor"), "rgb(255, 255, 255)");
    b.eval("document.getElementById('theme').click(); document.getElementById('theme').click()");

    b.look(390, "light");
    b.visit("#");
    let wide = b.eval("document.documentElement.scrollWidth");
    assert_eq!(wide, 390, "nothing but tables and lanes scrolls sideways");
    b.picture(&pictures.join("suite-narrow.png"));
    b.visit("#t/fails");
    assert_eq!(b.eval("document.documentElement.scrollWidth"), 390);
    b.picture(&pictures.join("trial-narrow.png"));
    let pdf = b.call("Page.printToPDF", serde_json::json!({}))["data"].as_str().unwrap().len();
    assert!(pdf > 10_000, "a page can be printed");

    b.look(1280, "light");
    b.open(&at.join("after/comparison.html"));
    b.picture(&pictures.join("comparison-light.png"));
    accessible(b, &axe, "comparison");
    assert_eq!(rows(b)[..2], ["t/fails", "t/new"], "what moved comes first");
    b.visit("#t/fails");
    b.picture(&pictures.join("comparison-trial.png"));
    accessible(b, &axe, "comparison of a trial");
    b.look(1280, "dark");
    accessible(b, &axe, "comparison of a trial, dark");

    let foreign: Vec<Value> = b.events("Network.requestWillBeSent");
    assert!(!foreign.is_empty(), "requests are seen");
    for request in foreign {
        let url = request["request"]["url"].as_str().unwrap().to_owned();
        assert!(url.starts_with("file:"), "{url} was asked for");
    }
    for trouble in ["Runtime.exceptionThrown", "Log.entryAdded"] {
        assert_eq!(b.events(trouble), Vec::<Value>::new(), "{trouble}");
    }
}

/// Everything with keys alone.
fn keyboard(b: &mut Chromium) {
    let focus = |b: &mut Chromium| b.eval("document.activeElement.id || document.activeElement.textContent.trim()");
    b.press("Tab");
    assert_eq!(focus(b), "Skip to the content");
    b.press("/");
    assert_eq!(focus(b), "q");
    for key in ["n", "=", "2"] {
        b.press(key);
    }
    assert_eq!(rows(b), ["t/m[n=2]"], "letters go into the field while it has the focus");
    assert_eq!(b.eval("document.getElementById('shown').textContent"), "1 of 8 trials");
    b.eval("document.getElementById('q').value = ''; document.getElementById('q').dispatchEvent(new Event('input'))");
    b.press("Escape");
    b.press("j");
    b.press("j");
    assert_eq!(focus(b), "t/excused");
    b.press("n");
    assert_eq!(focus(b), "t/fails", "the next that did not pass");
    b.press("Enter");
    assert_eq!(shown(b), "t/fails");
    b.press("n");
    assert_eq!(shown(b), "t/invalid");
    b.press("p");
    b.press("j");
    b.press("k");
    assert_eq!(shown(b), "t/fails");
    b.press("u");
    assert_eq!(shown(b), "");
    b.press("?");
    assert_eq!(b.eval("document.getElementById('keys').open"), true);
    b.press("Escape");
    assert_eq!(b.eval("document.getElementById('keys').open"), false);
    b.eval("document.getElementById('single').click()");
    b.press("?");
    assert_eq!(b.eval("document.getElementById('keys').open"), false, "keys of one letter can be turned off");
    b.eval("document.getElementById('single').click()");
    b.eval("document.querySelector('.pick.passed').click()");
    assert_eq!(rows(b), ["t/breaks", "t/excused", "t/fails", "t/invalid", "t/kept"]);
    b.eval("document.querySelector('.pick.passed').click()");
}

fn sorting(b: &mut Chromium) {
    b.eval("document.querySelector('th[data-key=verdict] button').click()");
    let by_verdict = rows(b);
    assert_eq!(by_verdict[..2], ["t/fails", "t/kept"], "what failed comes first");
    b.eval("document.querySelector('th[data-key=name] button').click()");
    let by_name = rows(b);
    assert_eq!((by_name[0].as_str(), by_name[7].as_str()), ("t/breaks", "t/passes"));
    b.eval("document.querySelector('th[data-key=name] button').click()");
    assert_eq!(rows(b)[0], "t/passes");
    assert_eq!(b.eval("document.querySelector('th[data-key=name]').getAttribute('aria-sort')"), "descending");
    b.eval("document.querySelector('th[data-key=name] button').click()");
}
