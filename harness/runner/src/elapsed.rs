//! Durations between moments of the run log.

use std::time::Duration;

use podlab_clock::Mono;
use podlab_scenario::{Elapsed, Moment};
use podlab_timeline::{Entry, Event, Lane};

/// Why a duration is not as demanded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Wrong {
    /// One of the moments is not in the log (yet).
    #[error("{0}")]
    Missing(String),
    /// It is another duration.
    #[error("{0}")]
    Other(String),
}

/// `Ok` when the measured time is as demanded, give or take `slack`; else what it was.
pub(crate) fn judge(e: &Elapsed, entries: &[Entry], slack: Duration) -> Result<(), Wrong> {
    let from = find(&e.from, entries)?;
    let to = find(&e.to, entries)?;
    if to < from {
        return Err(Wrong::Other(format!("the end came {:?} before the beginning", from.since(to))));
    }
    // Virtual time moves in whole milliseconds.
    let took = Duration::from_millis(u64::try_from(to.since(from).as_millis()).unwrap_or(u64::MAX));
    let wrong = |what: &str, d: Duration| Err(Wrong::Other(format!("expected {what} {d:?}, actual {took:?}")));
    if let Some(is) = e.is.map(|s| s.0)
        && took.abs_diff(is) > slack
    {
        return wrong("exactly", is);
    }
    if let Some(least) = e.at_least.map(|s| s.0)
        && took + slack < least
    {
        return wrong("at least", least);
    }
    match e.at_most.map(|s| s.0) {
        Some(most) if took > most + slack => wrong("at most", most),
        _ => Ok(()),
    }
}

fn find(m: &Moment, entries: &[Entry]) -> Result<Mono, Wrong> {
    let nth = usize::try_from(m.nth.unwrap_or(1).max(1)).unwrap_or(1);
    let mut times: Vec<Mono> = entries.iter().filter_map(|e| when(m, e)).collect();
    // A call is written down when it ends; what is asked for is its beginning.
    times.sort();
    let missing = || Wrong::Missing(format!("{} happened {} times, not {nth}", shown(m), times.len()));
    times.get(nth - 1).copied().ok_or_else(missing)
}

pub(crate) fn shown(m: &Moment) -> String {
    let parts = [&m.pod, &m.field, &m.value, &m.event, &m.call, &m.subject, &m.step];
    parts.into_iter().flatten().cloned().collect::<Vec<_>>().join(" ")
}

/// All times a moment happened, each with the number of its entry, in order. With `nth` only that one.
pub(crate) fn all(m: &Moment, entries: &[Entry]) -> Vec<(Mono, usize)> {
    let mut times: Vec<(Mono, usize)> =
        entries.iter().enumerate().filter_map(|(i, e)| Some((when(m, e)?, i))).collect();
    times.sort_unstable();
    match m.nth {
        None => times,
        Some(n) => times.get(usize::try_from(n).unwrap_or(0).wrapping_sub(1)).copied().into_iter().collect(),
    }
}

/// When an entry is such a moment, the time it stands for.
fn when(m: &Moment, entry: &Entry) -> Option<Mono> {
    if m.pod.is_some() && m.pod.as_deref() != entry.pod.as_ref().map(|p| p.name.as_str()) {
        return None;
    }
    match &entry.event {
        Event::Field { name, value } => (m.field.as_deref() == Some(name)
            && m.value.as_deref().is_none_or(|v| value.starts_with(v)))
        .then_some(entry.t),
        Event::KubeEvent { reason, .. } => (m.event.as_deref() == Some(reason)).then_some(entry.t),
        Event::Call { method, start, subject, .. } => {
            let (lane, wanted) = m.call.as_deref()?.split_once('.')?;
            let lane: Lane = serde_json::from_value(lane.into()).ok()?;
            let hit = entry.lane == lane && method == wanted && m.subject.as_deref().is_none_or(|s| s == subject);
            hit.then_some(if m.end { entry.t } else { *start })
        }
        Event::Run(v) => {
            let text = |key: &str| v.get(key).and_then(|s| s.as_str());
            (m.step.is_some() && text("step") == m.step.as_deref() && text("state") == Some("begins"))
                .then_some(entry.t)
        }
        Event::Stage(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use podlab_scenario::Span;
    use podlab_timeline::SCHEMA_VERSION;

    use super::*;

    fn field(ms: u64, value: &str) -> Entry {
        let event = Event::Field { name: "phase".into(), value: value.into() };
        Entry { v: SCHEMA_VERSION, t: Mono(ms * 1_000_000), lane: Lane::Watch, pod: None, node: None, event }
    }

    fn moment(value: &str, nth: u32) -> Moment {
        Moment { field: Some("phase".into()), value: Some(value.into()), nth: Some(nth), ..Moment::default() }
    }

    #[test]
    fn a_millisecond_too_many_is_too_many_unless_there_is_slack() {
        let log = [field(0, "Pending"), field(10, "Running"), field(10_011, "Running")];
        let e = |is: &str| Elapsed {
            from: moment("Running", 1),
            to: moment("Running", 2),
            is: Some(is.parse::<Span>().unwrap()),
            at_least: None,
            at_most: None,
        };
        assert_eq!(judge(&e("10001ms"), &log, Duration::ZERO), Ok(()));
        assert!(judge(&e("10s"), &log, Duration::ZERO).unwrap_err().to_string().contains("actual 10.001s"));
        assert_eq!(judge(&e("10s"), &log, Duration::from_millis(1)), Ok(()));
        let missing = Elapsed { to: moment("Failed", 1), ..e("1s") };
        assert!(judge(&missing, &log, Duration::ZERO).unwrap_err().to_string().contains("happened 0 times"));
    }
}
