//! Lints about time: sleeping, waits without an end, looks that are too short, clocks that are none.

use std::time::Duration;

use super::{
    Found,
    facts::{matcher, moments_of},
};
use crate::{Scenario, Step, Worlds};

/// What is tried again is tried again after ten seconds first: back-offs of starts and pulls, sandboxes that failed.
const RETRY: Duration = Duration::from_secs(10);
/// What a whole scenario may take on the real clock without `budget`.
const BUDGET: Duration = Duration::from_secs(180);
/// The longest pause on the real clock.
const PAUSE: Duration = Duration::from_secs(5);

pub(crate) fn check(s: &Scenario, found: &mut Found) {
    let budget = s.budget.map(|b| b.0).or((s.clock != Worlds::Virtual).then_some(BUDGET));
    s.walk(&mut |path, step| {
        if let Some(wait) = wait(step)
            && budget.is_some_and(|b| wait >= b)
        {
            let text =
                format!("it waits {wait:?}, as long as the whole scenario may take: it never ends with its own words");
            found.say("unbounded-wait", path, text);
        }
        match step {
            Step::Pause(p) if s.clock != Worlds::Virtual && p.duration.0 > PAUSE => {
                found.say("sleep", path, format!("a pause of {:?} on the real clock", p.duration.0));
            }
            Step::Never(n) if n.duration.0 < RETRY => short(path, n.duration.0, found),
            Step::Holds(h) if s.clock == Worlds::Virtual && h.duration.0 < RETRY => short(path, h.duration.0, found),
            Step::Elapsed(_) | Step::Within(_) if moments_of(step).iter().any(|m| m.event.is_some()) => {
                found.say(
                    "event-clock",
                    path,
                    "an event is written when there is time for it; measure a call or a field",
                );
            }
            _ => {}
        }
    });
    for (part, steps) in s.parts() {
        lists(part, steps, found);
    }
}

fn short(path: &str, looked: Duration, found: &mut Found) {
    found.say(
        "short-look",
        path,
        format!("{looked:?} is shorter than the {RETRY:?} after which things are tried again"),
    );
}

/// How long a step waits for something to become true.
fn wait(step: &Step) -> Option<Duration> {
    match step {
        Step::Eventually(e) => Some(e.within.0),
        Step::Expect(e) => e.within.map(|w| w.0),
        Step::Logs(l) => l.within.map(|w| w.0),
        Step::Order(o) => o.within.map(|w| w.0),
        _ => None,
    }
}

/// Neighbours in each list of steps.
fn lists(path: &str, steps: &[Step], found: &mut Found) {
    for (i, pair) in steps.windows(2).enumerate() {
        let at = format!("{path}[{}]", i + 1);
        let [first, second] = pair else { continue };
        if matches!(first, Step::Pause(_)) && wait(second).is_some() {
            found.say("sleep", &at, "the step after it waits by itself");
        }
        if first == second && !matches!(first, Step::Agent(_)) {
            found.say("repeated-step", &format!("{path}[{}]", i + 2), "the step before it is the same");
        }
        if let (Step::Delete(d), Some(m)) = (first, matcher(second))
            && let (Some(grace), Some(wait), Some(true)) = (d.grace, wait(second), m.gone)
            && d.pod.as_deref() == Some(m.pod.as_str())
            && wait <= grace.0
        {
            let text = format!("the Pod may take its grace period of {:?}; {wait:?} are not enough", grace.0);
            found.say("wait-within-grace", &format!("{path}[{}]", i + 2), text);
        }
    }
    for (i, step) in steps.iter().enumerate() {
        for (name, inner) in step.inner() {
            lists(&format!("{path}[{}].{name}", i + 1), inner, found);
        }
    }
}
