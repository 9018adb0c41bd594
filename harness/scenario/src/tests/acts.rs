//! Steps that change objects, and what is wrong with one.

use super::{GOOD, error};
use crate::{Step, parse};

/// Each step as it may be written.
const FINE: [&str; 16] = [
    "create: {yaml: 'kind: Pod'}",
    "patch: {kind: Pod, name: a, with: {metadata: {labels: {x: y}}}}",
    "patch: {kind: Deployment, name: a, type: json, with: [{op: remove, path: /spec/paused}]}",
    "patch: {kind: Pod, name: a, type: strategic, subresource: status, with: {status: {reason: x}}}",
    "scale: {kind: Deployment, name: a, replicas: 0}",
    "evict: {pod: a, grace: 0s}",
    "cordon: node-1",
    "uncordon: node-1",
    "drain: {node: node-1, within: 1m}",
    "taint: {node: node-1, key: k, effect: NoExecute}",
    "resize: {pod: a, container: c, limits: {cpu: 1}}",
    "debug: {pod: a, name: d, image: x}",
    "note: What follows is what this is about.",
    "refused: {code: 404, step: {delete: {pod: b}}}",
    "refused: {code: 422, contains: no, step: {apply: {yaml: 'kind: Pod'}}}",
    "limit: {within: 10s, steps: [{delete: {pod: b}}]}",
];

#[test]
fn each_can_be_written_and_only_a_refusal_demands_something_by_itself() {
    for step in FINE {
        let scenario = parse(&format!("{GOOD}- {step}\n"), std::path::Path::new("x.yaml"));
        let scenario = scenario.unwrap_or_else(|e| panic!("{step}: {e}"));
        let step = scenario.then.last().unwrap();
        assert_eq!(step.demands(), matches!(step, Step::Refused(_)), "{step:?}");
        assert!(crate::sentence(step).len() > 8, "{step:?}");
    }
}

#[test]
fn what_is_wrong_with_one_is_told_at_its_place_with_a_suggestion() {
    for (step, said) in [
        ("patch: {kind: Pod, name: a, with: {}}", "then[2]: patch.with changes nothing"),
        ("patch: {kind: Pod, name: a, with: [1]}", "patch.with is an object unless type is json"),
        ("patch: {kind: Pod, name: a, type: json, with: {}}", "patch.with is a list of operations when type is json"),
        ("patch: {kind: Pot, name: a, with: {x: y}}", "did you mean \"Pod\"?"),
        ("patch: {kind: Pod, name: a, with: {x: y}, subresourc: status}", "did you mean \"subresource\"?"),
        ("scale: {kind: Pod, name: a, replicas: 1}", "then[2].scale.kind"),
        ("scale: {kind: Deployment, name: a, replicas: -1}", "then[2].scale.replicas"),
        ("evict: {}", "\"pod\" is missing"),
        ("drain: {node: node-1}", "\"within\" is missing"),
        ("drain: {node: node-1, within: 0s}", "drain.within must be more than nothing"),
        ("taint: {node: node-1, key: k, effect: NoRun}", "then[2].taint.effect"),
        ("resize: {pod: a, container: c}", "resize changes nothing"),
        ("debug: {pod: a, name: d}", "\"image\" is missing"),
        ("note: ' '", "note says nothing"),
        ("refused: {code: 200, step: {delete: {pod: b}}}", "another is no refusal"),
        ("refused: {code: 404, step: {leakFree: [ips]}}", "must be one that asks the API"),
        ("refused: {code: 404, step: {delete: {}}}", "refused.step: delete needs exactly one of pod and claim"),
        ("refused: {code: 404, contains: '', step: {delete: {pod: b}}}", "is in every message"),
        ("limit: {within: 0s, steps: [{delete: {pod: b}}]}", "limit.within must be more than nothing"),
        ("limit: {within: 1s, steps: []}", "it has no steps"),
        ("cordn: node-1", "did you mean \"cordon\"?"),
    ] {
        let text = error(&format!("{GOOD}- {step}\n"));
        assert!(text.contains(said) && text.contains("x.yaml:8:"), "{step}\n{text}");
    }
}
