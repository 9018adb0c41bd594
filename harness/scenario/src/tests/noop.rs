//! There is no way to write a demand that could never fail: each of these is refused, with its place.

use super::{GOOD, error};

/// Steps that look like demands and are none.
const IDLE: [&str; 54] = [
    "eventually: {match: {pod: a}, within: 1s}",
    "eventually: {match: {pod: a, container: c}, within: 1s}",
    "eventually: {match: {pod: a, restarts: 1}, within: 1s}",
    "eventually: {match: {pod: a, state: running}, within: 1s}",
    "eventually: {match: {pod: a, message: x}, within: 1s}",
    "eventually: {match: {pod: a, container: c, restarts: 0}, within: 1s}",
    "eventually: {match: {pod: a, container: c, state: ''}, within: 1s}",
    "eventually: {match: {pod: a, phase: Running, status: 'True'}, within: 1s}",
    "eventually: {match: {pod: a, event: {reason: X, count: 0}}, within: 1s}",
    "eventually: {match: {pod: a, event: {reason: ''}}, within: 1s}",
    "holds: {match: {pod: a}, for: 1s}",
    "holds: {match: {pod: a, phase: Running}, for: 0s}",
    "never: {match: {pod: a}, for: 1s}",
    "never: {match: {pod: a, phase: Failed}, for: 0s}",
    "never: {for: 1s}",
    "never: {that: 'false', for: 1s}",
    "never: {of: {pod: a}, for: 1s}",
    "never: {of: {call: cri.StartContaner}, for: 1s}",
    "never: {match: {pod: a, phase: Runing}, for: 1s}",
    "never: {match: {pod: a, container: c, state: runing}, for: 1s}",
    "never: {match: {pod: a, condition: Redy}, for: 1s}",
    "never: {match: {pod: a, condition: Ready, status: Treu}, for: 1s}",
    "never: {match: {pod: a, event: {reason: Unhelthy}}, for: 1s}",
    "never: {match: {pod: a, gone: true, phase: Running}, for: 1s}",
    "never: {of: {field: phaes}, for: 1s}",
    "never: {of: {field: phase, value: Runing}, for: 1s}",
    "never: {of: {field: container/c/stat}, for: 1s}",
    "holds: {match: {pod: a, container: c, state: running, restarts: 0}, for: 1s}",
    "expect: {that: 'true'}",
    "expect: {that: '1 == 1'}",
    "expect: {that: 'params == {}'}",
    "expect: {that: 'matrix == params && world == \"real\"'}",
    "logs: {pod: a}",
    "logs: {pod: a, contains: ''}",
    "rpc: {}",
    "rpc: {cri.StartContainer: {}}",
    "rpc: {cri.StartContainer: {atLeast: 0}}",
    "rpc: {cri.StartContaner: {exactly: 0}}",
    "rpc: {cry.StartContainer: {exactly: 0}}",
    "rpc: {StartContainer: {exactly: 0}}",
    "leakFree: []",
    "exec: {pod: a, command: []}",
    "order: {moments: [{call: cri.StartContainer}]}",
    "order: {moments: []}",
    "order: {moments: [{pod: a}, {pod: b}]}",
    "between: {from: {event: A}, to: {event: B}}",
    "between: {from: {event: A}, to: {event: B}, none: {value: x}}",
    "monotone: {pod: a, field: phase, order: [Running]}",
    "times: {of: {event: A}}",
    "times: {of: {event: A}, atLeast: 0}",
    "unchanged: nothing",
    "parallel: [[], []]",
    "repeat: {times: 0, steps: [{expect: {that: 'size(pods) == 1'}}]}",
    "group: {name: g, steps: []}",
];

#[test]
fn a_demand_that_could_never_fail_is_refused_at_its_line() {
    for step in IDLE {
        // Beside a good demand: it is this step that is refused, not a scenario without any.
        let text = format!("{GOOD}- {step}\n");
        let said = error(&text);
        assert!(said.contains("x.yaml:8:"), "{step}: {said}");
    }
}

#[test]
fn a_scenario_needs_a_demand_that_is_made_in_every_run() {
    let head = GOOD.split("then:").next().unwrap();
    for then in [
        "- delete: {pod: a}",
        "- pause: {duration: 1s, because: nothing}",
        "- bind: {x: 'size(pods)'}",
        "- if: {that: 'size(pods) > 0', then: [{leakFree: [ips]}]}",
        "- if: {that: 'size(pods) > 0', then: [{leakFree: [ips]}], else: [{delete: {pod: a}}]}",
        "- group: {name: g, steps: [{delete: {pod: a}}]}",
        "- checkpoint: {name: x, pod: a, path: /spec}",
    ] {
        let said = error(&format!("{head}then:\n{then}\n"));
        assert!(said.contains("none of its steps demands anything in every run"), "{then}: {said}");
    }
    let both = "- if: {that: 'size(pods) > 0', then: [{leakFree: [ips]}], else: [{leakFree: [netns]}]}";
    crate::parse(&format!("{head}then:\n{both}\n"), std::path::Path::new("x.yaml")).unwrap();
}

#[test]
fn a_kept_timeline_of_nothing_and_an_allowance_without_a_reason_are_refused() {
    assert!(error(&format!("{GOOD}snapshot: {{timeline: []}}\n")).contains("keeps the timeline of no Pod"));
    assert!(error(&format!("{GOOD}allow: [{{lint: sleep, because: ' '}}]\n")).contains("because must give the reason"));
}
