//! The lints by id: what each finds, why that matters, an example that has it and one that has not.

/// A lint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lint {
    /// Its id, for `allow`.
    pub id: &'static str,
    /// What it finds.
    pub what: &'static str,
    /// Why that matters.
    pub why: &'static str,
    /// A scenario that has it.
    pub bad: &'static str,
    /// The same without it.
    pub good: &'static str,
    /// Such a scenario is not read at all; there is no allowing it.
    pub refused: bool,
}

macro_rules! pod {
    () => {
        "- apply: {yaml: '{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: \"registry.test/testimage:1\"}]}}'}"
    };
}

macro_rules! intent {
    () => {
        "intent: A Pod that is applied becomes Ready."
    };
}

macro_rules! load {
    ($count:literal) => {
        concat!("load: {arrivals: {constant: {rate: 5/s}}, ", $count, "template: '{apiVersion: v1, kind: Pod, spec: {containers: [{name: c, image: \"registry.test/testimage:1\"}]}}'}\nmeasure: [{id: ready, of: {startup: {}}}]")
    };
}

macro_rules! gate {
    () => {
        "gate: [{of: ready.lost, countAtMost: 0}]"
    };
}

macro_rules! lint {
    ($id:literal, $what:literal, $why:literal, bad: [$($bad:expr),* $(,)?], good: [$($good:expr),* $(,)?] $(, refused: $refused:literal)?) => {
        Lint {
            id: $id,
            what: $what,
            why: $why,
            bad: concat!("apiVersion: podlab/v1\nkind: Scenario\n", $($bad, "\n"),*),
            good: concat!("apiVersion: podlab/v1\nkind: Scenario\n", $($good, "\n"),*),
            refused: false $(|| $refused)?,
        }
    };
}

/// All lints, sorted by id.
pub const LINTS: &[Lint] = &[
    lint!(
        "event-clock", "A duration is measured from or to an event.",
        "Events are written beside the work, dropped and counted together; the time of one says little. A call or a watched field is exact.",
        bad: [intent!(), "clock: virtual", "when:", pod!(), "then:",
            "- eventually: {match: {pod: a, condition: Ready}, within: 30s}",
            "- elapsed: {from: {pod: a, event: Scheduled}, to: {pod: a, event: Started}, atMost: 5s}"],
        good: [intent!(), "clock: virtual", "when:", pod!(), "then:",
            "- eventually: {match: {pod: a, condition: Ready}, within: 30s}",
            "- elapsed: {from: {pod: a, field: condition/PodScheduled}, to: {pod: a, call: cri.StartContainer}, atMost: 5s}"]
    ),
    lint!(
        "fault-without-must", "A fault does not say how often it must fire.",
        "One that never fires would leave a run that passes and shows nothing.",
        bad: [intent!(), "clock: virtual", "faults:", "- {id: slow, at: {cri: {method: StartContainer}}, effect: {delay: {ms: 5}}}",
            "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"],
        good: [intent!(), "clock: virtual", "faults:", "- {id: slow, at: {cri: {method: StartContainer}}, effect: {delay: {ms: 5}}, must: {fired: 1}}",
            "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"],
        refused: true
    ),
    lint!(
        "idle-allow", "A lint is allowed that finds nothing, or does not exist.",
        "An allowance that is not needed hides the next finding.",
        bad: [intent!(), "allow: [{lint: sleep, because: it was needed once}]", "when:", pod!(), "then:",
            "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"],
        good: [intent!(), "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"]
    ),
    lint!(
        "measure-without-warmup", "Pods of a load are measured from the first one on.",
        "The first pay for caches and connections of all others; a tail made of them says nothing of the rest.",
        bad: [intent!(), load!("count: 20, "), gate!()],
        good: [intent!(), load!("count: 20, warmup: 5, "), gate!()]
    ),
    lint!(
        "missing-capability", "A step needs a capability the scenario does not list.",
        "Where it is missing the scenario would fail instead of being skipped with that reason.",
        bad: [intent!(), "given:", pod!(), "when:", "- agent: {restart: node-1}", "then:",
            "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"],
        good: [intent!(), "requires: [node.agent]", "given:", pod!(), "when:", "- agent: {restart: node-1}", "then:",
            "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"]
    ),
    lint!(
        "missing-intent", "A scenario does not say what holds.",
        "A failure is read by somebody who did not write it.",
        bad: ["intent: ''", "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"],
        good: [intent!(), "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"],
        refused: true
    ),
    lint!(
        "negative-only", "Every demand is that something is not, or is gone.",
        "A cluster that does nothing at all meets them; one of them must show that the behaviour was there.",
        bad: [intent!(), "when:", pod!(), "then:", "- never: {match: {pod: a, phase: Failed}, for: 20s}", "- leakFree: [ips]"],
        good: [intent!(), "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 30s}",
            "- never: {match: {pod: a, phase: Failed}, for: 20s}"]
    ),
    lint!(
        "no-action", "No step does anything to the cluster.",
        "What holds of a cluster that was left alone is not the behaviour of a Pod.",
        bad: [intent!(), "then:", "- expect: {that: 'size(pods) == 0'}"],
        good: [intent!(), "when:", pod!(), "then:", "- expect: {that: 'size(pods) == 1', within: 5s}"]
    ),
    lint!(
        "no-op-assert", "A demand could never fail.",
        "It looks like a check and is none.",
        bad: [intent!(), "when:", pod!(), "then:", "- eventually: {match: {pod: a, container: c, restarts: 0}, within: 30s}"],
        good: [intent!(), "when:", pod!(), "then:", "- eventually: {match: {pod: a, container: c, restarts: 1}, within: 30s}"],
        refused: true
    ),
    lint!(
        "repeated-step", "A step is the same as the one before it.",
        "It is a slip, or belongs into `repeat`.",
        bad: [intent!(), "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 30s}",
            "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"],
        good: [intent!(), "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"]
    ),
    lint!(
        "short-look", "`never` or `holds` looks for less than ten seconds.",
        "What failed is tried again after ten seconds at first: a shorter look ends before the second attempt.",
        bad: [intent!(), "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 30s}",
            "- never: {match: {pod: a, phase: Failed}, for: 2s}"],
        good: [intent!(), "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 30s}",
            "- never: {match: {pod: a, phase: Failed}, for: 20s}"]
    ),
    lint!(
        "sleep", "A pause stands where a condition would do.",
        "It is too short on a slow machine and too long on every other.",
        bad: [intent!(), "when:", pod!(), "then:", "- pause: {duration: 3s, because: it takes a while}",
            "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"],
        good: [intent!(), "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 33s}"]
    ),
    lint!(
        "unbounded-wait", "A wait is as long as the whole scenario may take.",
        "It is cut off by the budget, which cannot say what was waited for as well as the step can.",
        bad: [intent!(), "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 1h}"],
        good: [intent!(), "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"]
    ),
    lint!(
        "unknown-pod", "A step speaks of a Pod that nothing makes.",
        "A demand that something is gone, or never so, would hold of a name that was mistyped.",
        bad: [intent!(), "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 30s}",
            "- never: {match: {pod: b, phase: Failed}, for: 20s}"],
        good: [intent!(), "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 30s}",
            "- never: {match: {pod: a, phase: Failed}, for: 20s}"]
    ),
    lint!(
        "unpinned-image", "An image has no tag or digest, or the tag `latest`.",
        "It may be another image tomorrow.",
        bad: [intent!(), "when:", "- apply: {yaml: '{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: registry.test/testimage}]}}'}",
            "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"],
        good: [intent!(), "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"]
    ),
    lint!(
        "unreachable-step", "A condition comes out the same in every variant.",
        "The steps under it are never done, and whoever reads them believes they are.",
        bad: [intent!(), "matrix: {n: [1, 2]}", "when:", pod!(), "then:", "- expect: {that: 'size(pods) == 1', within: 5s}",
            "- if: {that: matrix.n > 2, then: [{leakFree: [ips]}]}"],
        good: [intent!(), "matrix: {n: [1, 2]}", "when:", pod!(), "then:", "- expect: {that: 'size(pods) == 1', within: 5s}",
            "- if: {that: matrix.n > 1, then: [{leakFree: [ips]}]}"]
    ),
    lint!(
        "unused-binding", "A value is given a name that nothing uses.",
        "The comparison it was meant for is missing.",
        bad: [intent!(), "when:", pod!(), "- bind: {uid: 'pods.a.metadata.uid'}", "then:",
            "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"],
        good: [intent!(), "when:", pod!(), "- bind: {uid: 'pods.a.metadata.uid'}", "then:",
            "- expect: {that: pods.a.metadata.uid == uid, within: 30s}"]
    ),
    lint!(
        "unused-capability", "A capability is listed that nothing needs.",
        "The scenario would be skipped for nothing where it is missing.",
        bad: [intent!(), "requires: [fault.cni]", "when:", pod!(), "then:",
            "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"],
        good: [intent!(), "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"]
    ),
    lint!(
        "unused-param", "A parameter or a name of the matrix is never used.",
        "Changing it changes nothing, and a matrix plays the same trial several times.",
        bad: [intent!(), "params: {wait: 30s}", "when:", pod!(), "then:",
            "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"],
        good: [intent!(), "params: {wait: 30s}", "when:", pod!(), "then:",
            "- eventually: {match: {pod: a, condition: Ready}, within: '${params.wait}'}"]
    ),
    lint!(
        "vague-intent", "The intent is no sentence of five words at least that ends with a full stop.",
        "It is what a report says of the trial; \"pod test\" says nothing.",
        bad: ["intent: pod test", "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"],
        good: [intent!(), "when:", pod!(), "then:", "- eventually: {match: {pod: a, condition: Ready}, within: 30s}"]
    ),
    lint!(
        "wait-within-grace", "A wait for a Pod's end is not longer than the grace period it was given.",
        "A Pod that uses its grace period would fail the step.",
        bad: [intent!(), "given:", pod!(), "- eventually: {match: {pod: a, condition: Ready}, within: 30s}", "when:",
            "- delete: {pod: a, grace: 20s}", "- eventually: {match: {pod: a, gone: true}, within: 20s}", "then:", "- leakFree: [ips]"],
        good: [intent!(), "given:", pod!(), "- eventually: {match: {pod: a, condition: Ready}, within: 30s}", "when:",
            "- delete: {pod: a, grace: 20s}", "- eventually: {match: {pod: a, gone: true}, within: 40s}", "then:", "- leakFree: [ips]"]
    ),
];
