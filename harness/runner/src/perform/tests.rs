//! What comes of a scenario, in the virtual world: every way a step can end, and what is done afterwards all the same.

use std::path::Path;

use podlab_scenario::parse;
use podlab_timeline::Event;
use tokio_util::sync::CancellationToken;

use crate::{Failure, Outcome, Played, VirtualOptions, play_virtual};

const POD: &str = "- apply: {yaml: '{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: \"registry.test/testimage:1\", command: [serve]}]}}'}
- eventually: {match: {pod: a, condition: Ready}, within: 30s}
";

fn play_with(body: &str, interrupt: CancellationToken) -> Played {
    let text = format!("apiVersion: podlab/v1\nkind: Scenario\nintent: Something holds.\nclock: virtual\n{body}");
    let scenario = parse(&text, Path::new("x.yaml")).unwrap_or_else(|e| panic!("{e}"));
    let how = VirtualOptions { seed: 1, interrupt, ..VirtualOptions::default() };
    play_virtual("x", Path::new("x.yaml"), &scenario, &how)
}

fn play(body: &str) -> Played {
    play_with(body, CancellationToken::new())
}

fn failed(p: &Played) -> Failure {
    match &p.trial.outcome {
        Outcome::Failed(f) => f.clone(),
        other => panic!("{other:?}"),
    }
}

/// Steps that ended, with how: `then[1] done`.
fn ended(p: &Played) -> Vec<String> {
    let one = |e: &podlab_timeline::Entry| match &e.event {
        Event::Run(v) if v["state"] != "begins" => Some(format!("{} {}", v["step"].as_str()?, v["state"].as_str()?)),
        _ => None,
    };
    p.entries.iter().filter_map(one).collect()
}

#[test]
fn a_failed_step_is_followed_by_catch_finally_and_cleanup_and_stays_the_verdict() {
    let p = play(&format!(
        "given:\n{POD}then:\n- expect: {{that: pods.a.status.phase == \"Failed\"}}\n- delete: {{pod: a}}\n\
         catch:\n- logs: {{pod: a, contains: nothing, within: 1s}}\n- exec: {{pod: a, command: [\"true\"]}}\n\
         finally:\n- expect: {{that: size(pods) == 7}}\n- delete: {{pod: a}}\n\
         cleanup:\n- eventually: {{match: {{pod: a, gone: true}}, within: 40s}}\n"
    ));
    let f = failed(&p);
    assert_eq!(f.step, "then[1]");
    assert!(f.why.contains("it compares \"Running\" == \"Failed\""), "{}", f.why);
    assert!(f.context.contains("Pod a") && f.context.contains("phase: Running"), "{}", f.context);
    let ended = ended(&p);
    for step in [
        "then[1] failed",
        "catch[1] failed",
        "catch[2] done",
        "finally[1] failed",
        "finally[2] done",
        "cleanup[1] done",
    ] {
        assert!(ended.contains(&step.to_owned()), "{step}: {ended:?}");
    }
    assert!(!ended.iter().any(|s| s.starts_with("then[2]")), "{ended:?}");
}

#[test]
fn finally_fails_a_trial_cleanup_breaks_it_and_catch_is_not_done_without_a_failure() {
    let p = play(&format!(
        "given:\n{POD}then:\n- expect: {{that: size(pods) == 1}}\ncatch:\n- delete: {{pod: a}}\nfinally:\n- expect: {{that: size(pods) == 2}}\n"
    ));
    assert_eq!(failed(&p).step, "finally[1]");
    assert!(!ended(&p).iter().any(|s| s.starts_with("catch")));
    let p = play(&format!(
        "given:\n{POD}then:\n- expect: {{that: size(pods) == 1}}\ncleanup:\n- delete: {{pod: b}}\n- delete: {{pod: a}}\n"
    ));
    assert!(matches!(&p.trial.outcome, Outcome::Broken(f) if f.step == "cleanup[1]"), "{:?}", p.trial.outcome);
    assert!(ended(&p).contains(&"cleanup[2] done".to_owned()));
}

#[test]
fn a_budget_that_is_used_up_says_who_waits_for_what_and_leaves_cleanup_its_own() {
    let p = play(&format!(
        "budget: 1m\ngiven:\n{POD}then:\n- parallel:\n  - - pause: {{duration: 1h, because: it hangs}}\n  - - eventually: {{match: {{pod: a, phase: Failed}}, within: 1h}}\n\
         cleanup:\n- pause: {{duration: 50s, because: its budget is a minute}}\n- delete: {{pod: a}}\n"
    ));
    let f = failed(&p);
    assert_eq!(f.step, "whole scenario");
    for said in
        ["budget of 60s", "then[1].parallel[1][1] waits since", "then[1].parallel[2][1] waits", "Pod a is Failed"]
    {
        assert!(f.why.contains(said), "{said}: {}", f.why);
    }
    assert!(ended(&p).contains(&"cleanup[2] done".to_owned()));
    let p = play("then:\n- leakFree: [ips]\ncleanup:\n- pause: {duration: 2m, because: it hangs}\n");
    assert!(
        matches!(&p.trial.outcome, Outcome::Broken(f) if f.step == "cleanup" && f.why.contains("60s")),
        "{:?}",
        p.trial.outcome
    );
}

#[test]
fn somebody_who_ends_a_run_ends_its_steps_and_not_its_cleanup() {
    let now = CancellationToken::new();
    now.cancel();
    let p = play_with(
        &format!("given:\n{POD}then:\n- leakFree: [ips]\ncleanup:\n- expect: {{that: size(pods) == 0}}\n"),
        now,
    );
    assert!(matches!(&p.trial.outcome, Outcome::Broken(f) if f.step == "interrupt"), "{:?}", p.trial.outcome);
    assert!(ended(&p).contains(&"cleanup[1] done".to_owned()), "{:?}", ended(&p));
}

#[test]
fn an_invariant_of_the_scenario_is_looked_at_in_every_state_and_one_without_a_value_fails() {
    let always = |that: &str| {
        play(&format!(
            "always:\n- that: {that}\n  because: it must\ngiven:\n{POD}then:\n- leakFree: [cgroups]\n- pause: {{duration: 1h, because: x}}\n"
        ))
    };
    // True at the end of the run: it was false for a moment only.
    let f = failed(&always("podNames.all(n, pods[n].status.phase != \"Pending\")"));
    assert!(f.step == "always[1]" && f.why.contains("because it must"), "{f:?}");
    let f = failed(&play(&format!(
        "always:\n- that: pods.a.status.phaze == \"x\"\n  because: it must\ngiven:\n{POD}then:\n- expect: {{that: size(pods) == 1}}\n"
    )));
    assert!(f.step == "always[1]" && f.why.contains("nothing was checked"), "{f:?}");
    let p = play(&format!(
        "always:\n- that: size(pods) <= 1\n  because: it must\ngiven:\n{POD}then:\n- expect: {{that: size(pods) == 1}}\n"
    ));
    assert_eq!(p.trial.outcome, Outcome::Passed);
}

#[test]
fn steps_made_of_steps_fail_at_the_step_inside() {
    for (then, at, said) in [
        (
            "- retry: {attempts: 3, every: 1s, steps: [{expect: {that: size(pods) == 2}}]}",
            "then[1].retry.steps[1]",
            "(attempt 3 of 3)",
        ),
        (
            "- repeat: {times: 3, until: round == 4, steps: [{leakFree: [ips]}]}",
            "then[1].repeat.steps[1]",
            "left behind",
        ),
        (
            "- repeat: {times: 3, until: round == 4, steps: [{expect: {that: size(pods) == 1}}]}",
            "then[1]",
            "after 3 rounds",
        ),
        (
            "- forEach: {in: 'podNames.filter(n, n == \"b\")', as: n, steps: [{expect: {that: size(pods) == 1}}]}",
            "then[1]",
            "is empty",
        ),
        (
            "- forEach: {in: podNames, as: n, steps: [{exec: {pod: '${n}', command: [\"false\"]}}]}",
            "then[1].forEach.steps[1]",
            "exit code",
        ),
        (
            "- group: {name: g, params: {x: '${podNames[0]}'}, steps: [{expect: {that: 'pods[params.x].metadata.name == \"b\"'}}]}",
            "then[1].group.steps[1]",
            "",
        ),
        (
            "- if: {that: 'size(pods) == 1', then: [{expect: {that: size(pods) == 3}}], else: [{expect: {that: size(pods) == 3}}]}",
            "then[1].if.then[1]",
            "1 == 3",
        ),
        (
            "- parallel: [[{pause: {duration: 1h, because: x}}], [{expect: {that: size(pods) == 5}}]]",
            "then[1].parallel[2][1]",
            "1 == 5",
        ),
        ("- never: {that: 'size(pods) == 1', for: 1h}", "then[1]", "became true"),
        ("- never: {that: 'pods.b.x == 1', for: 1s}", "then[1]", "pods.b.x"),
        ("- never: {of: {event: Started}, for: 1s}", "then[1]", "Started happened"),
        ("- bind: {x: pods.b}\n- expect: {that: x == 1}", "then[1]", "pods.b"),
    ] {
        let f = failed(&play(&format!("given:\n{POD}then:\n{then}\n")));
        assert!(f.step == at && f.why.contains(said), "{then}: {f:?}");
    }
}

#[test]
fn each_attempt_is_in_the_run_log() {
    let p = play(&format!(
        "given:\n{POD}when:\n- retry: {{attempts: 10, every: 1s, steps: [{{expect: {{that: 'size(events) > 1000 || calls[\"probe.Readiness\"] > 1', within: 1s}}}}]}}\nthen:\n- leakFree: [ips]\n"
    ));
    let again = p.entries.iter().filter(|e| matches!(&e.event, Event::Run(v) if v["state"] == "again")).count();
    assert_eq!(again, 9, "no probe is defined, so every attempt fails");
    assert_eq!(failed(&p).step, "when[1].retry.steps[1]");
}

/// A demand for each word that makes one. Where nothing was applied, none of them may pass.
const DEMANDS: [&str; 15] = [
    "eventually: {match: {pod: a, phase: Running}, within: 1s}",
    "eventually: {match: {pod: a, gone: true}, within: 1s}",
    "holds: {match: {pod: a, phase: Running}, for: 1s}",
    "exactly: {n: 1, pod: a, event: {reason: Started}}",
    "status: {pod: a, path: /spec, equals: null}",
    "logs: {pod: a, contains: x, within: 1s}",
    "elapsed: {from: {pod: a, field: phase}, to: {pod: a, field: gone}, atMost: 1h}",
    "rpc: {cri.StartContainer: {atLeast: 1}}",
    "expect: {that: pods.a.status.phase == \"Running\"}",
    "order: {moments: [{pod: a, field: phase}, {pod: a, field: gone}]}",
    "within: {from: {call: cri.CreateContainer}, to: {call: cri.StartContainer}, max: 1h}",
    "between: {from: {pod: a, field: phase}, to: {pod: a, field: gone}, none: {event: Failed}}",
    "monotone: {pod: a, field: phase}",
    "times: {of: {call: cri.StartContainer}, atLeast: 1}",
    "exec: {pod: a, command: [\"true\"]}",
];

#[test]
fn no_demand_passes_where_there_was_nothing_to_look_at() {
    for step in DEMANDS {
        let p = play(&format!("then:\n- {step}\n"));
        assert!(matches!(&p.trial.outcome, Outcome::Failed(f) if f.step == "then[1]"), "{step}: {:?}", p.trial.outcome);
    }
}
