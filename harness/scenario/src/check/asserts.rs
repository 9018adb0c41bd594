//! Demands that nothing could fail, and demands that contradict themselves.

use super::calls::call;
use crate::{EventMatch, LogMatch, Matcher, Moment, Span, Step};

/// Why a step demands nothing, if so.
pub(crate) fn vacuous(step: &Step) -> Option<String> {
    let none = |span: &Span| span.0.is_zero();
    match step {
        Step::Eventually(e) => matcher(&e.what, "eventually.match"),
        Step::Holds(h) if none(&h.duration) => Some("holds.for is no time".into()),
        Step::Holds(h) => matcher(&h.what, "holds.match"),
        Step::Never(n) if none(&n.duration) => Some("never.for is no time".into()),
        Step::Never(n) => n.what.as_ref().and_then(|m| matcher(m, "never.match")),
        Step::Exec(e) if e.command.is_empty() => Some("exec.command is empty".into()),
        Step::Logs(l) => log(l),
        Step::Rpc(calls) if calls.is_empty() => Some("rpc names no call".into()),
        Step::Rpc(calls) => calls
            .iter()
            .find(|(_, n)| n.exactly.is_none() && n.at_least.is_none_or(|n| n == 0))
            .map(|(name, _)| format!("rpc.{name} needs exactly, or atLeast of 1 or more")),
        Step::LeakFree(kinds) if kinds.is_empty() => Some("leakFree names nothing".into()),
        Step::Elapsed(e) => {
            let least = e.at_least.is_some_and(|s| !none(&s));
            (e.is.is_none() && !least && e.at_most.is_none()).then(|| "elapsed needs is, atLeast or atMost".into())
        }
        Step::Order(o) if o.moments.len() < 2 => Some("order needs two moments at least".into()),
        Step::Between(b) if b.none.is_some() == b.some.is_some() => {
            Some("between needs exactly one of none and some".into())
        }
        Step::Monotone(m) if m.order.as_ref().is_some_and(|o| o.len() < 2) => {
            Some("monotone.order needs two values at least".into())
        }
        Step::Times(t) => {
            let least = t.at_least.is_some_and(|n| n > 0);
            (t.exactly.is_none() && !least && t.at_most.is_none())
                .then(|| "times needs exactly, atMost, or atLeast of 1 or more".into())
        }
        _ => None,
    }
}

/// What contradicts itself in a step.
pub(crate) fn malformed(step: &Step) -> Option<String> {
    let moments = |all: &[(&str, &Moment)]| all.iter().find_map(|(at, m)| moment(m).map(|why| format!("{at}: {why}")));
    match step {
        Step::Rpc(calls) => calls.keys().find_map(|name| call(name)),
        Step::Never(n) => {
            let given = [n.what.is_some(), n.that.is_some(), n.of.is_some()].iter().filter(|b| **b).count();
            if given != 1 {
                return Some("never needs exactly one of match, that and of".into());
            }
            n.of.as_ref().and_then(|m| moments(&[("never.of", m)]))
        }
        Step::Events(e) => e.check().err().map(str::to_owned),
        Step::Elapsed(e) => moments(&[("elapsed.from", &e.from), ("elapsed.to", &e.to)]),
        Step::Order(o) => o
            .moments
            .iter()
            .enumerate()
            .find_map(|(i, m)| moment(m).map(|why| format!("order.moments[{}]: {why}", i + 1))),
        Step::Within(w) => moments(&[("within.from", &w.from), ("within.to", &w.to)]),
        Step::Between(b) => {
            let mut all = vec![("between.from", &b.from), ("between.to", &b.to)];
            all.extend(b.none.as_ref().map(|m| ("between.none", m)));
            all.extend(b.some.as_ref().map(|m| ("between.some", m)));
            moments(&all)
        }
        Step::Times(t) if t.of.nth.is_some() => Some("times.of: nth picks one; what is counted are all".into()),
        Step::Times(t) if t.exactly.is_some() && (t.at_least.is_some() || t.at_most.is_some()) => {
            Some("times: exactly leaves nothing for atLeast and atMost to say".into())
        }
        Step::Times(t) => moments(&[("times.of", &t.of)]),
        Step::Status(s) if !s.path.is_empty() && !s.path.starts_with('/') => {
            Some("status.path is a JSON pointer and begins with /".into())
        }
        Step::Checkpoint(c) if !c.path.is_empty() && !c.path.starts_with('/') => {
            Some("checkpoint.path is a JSON pointer and begins with /".into())
        }
        Step::Eventually(e) => e.what.event.as_ref().and_then(event),
        Step::Exactly(e) => event(&e.event),
        _ => None,
    }
}

fn event(e: &EventMatch) -> Option<String> {
    e.reason.trim().is_empty().then(|| "event.reason is empty".into())
}

fn log(l: &LogMatch) -> Option<String> {
    (l.contains.as_ref().is_none_or(String::is_empty) && l.equals.is_none())
        .then(|| "logs needs contains or equals".into())
}

/// Why a matcher demands nothing, or names something that nothing is demanded of.
fn matcher(m: &Matcher, at: &str) -> Option<String> {
    let empty = |t: &Option<String>| t.as_ref().is_none_or(String::is_empty);
    let of_container =
        !empty(&m.state) || !empty(&m.last_state) || !empty(&m.message) || m.restarts.is_some_and(|n| n > 0);
    let given_of_container = m.state.is_some() || m.last_state.is_some() || m.message.is_some() || m.restarts.is_some();
    if m.container.is_none() && given_of_container {
        return Some(format!("{at} demands something of a container and names none"));
    }
    if m.container.is_some() && !of_container {
        return Some(format!("{at} names a container and demands nothing of it"));
    }
    if m.condition.is_none() && (m.status.is_some() || m.reason.is_some()) {
        return Some(format!("{at} demands a status or reason and names no condition"));
    }
    let event = m.event.as_ref().is_some_and(|e| e.count != Some(0));
    let something = of_container
        || event
        || m.gone.is_some()
        || [&m.phase, &m.condition, &m.node, &m.ip].into_iter().any(Option::is_some);
    (!something).then(|| format!("{at} demands nothing but the Pod's name"))
}

/// Whether a moment says nothing.
pub(crate) fn moment_is_empty(m: &Moment) -> bool {
    [m.field.is_some(), m.event.is_some(), m.call.is_some(), m.step.is_some()].iter().filter(|b| **b).count() != 1
}

fn moment(m: &Moment) -> Option<String> {
    if moment_is_empty(m) {
        return Some("it needs exactly one of field, event, call and step".into());
    }
    if m.value.is_some() && m.field.is_none() {
        return Some("value belongs to a field".into());
    }
    if (m.subject.is_some() || m.end) && m.call.is_none() {
        return Some("subject and end belong to a call".into());
    }
    if m.nth == Some(0) {
        return Some("nth counts from 1".into());
    }
    m.call.as_ref().and_then(|name| call(name))
}
