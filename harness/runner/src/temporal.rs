//! Demands on the order of entries in the run log. Each fails when what it speaks of did not happen.

use std::{collections::BTreeMap, time::Duration};

use podlab_clock::Mono;
use podlab_scenario::{Between, Moment, Monotone, Order, Times, Within};
use podlab_timeline::{Entry, Event};

use crate::elapsed::{Wrong, all, shown};

fn other(text: String) -> Result<(), Wrong> {
    Err(Wrong::Other(text))
}

fn missing(m: &Moment) -> Wrong {
    Wrong::Missing(format!("{} did not happen", nth(m)))
}

fn nth(m: &Moment) -> String {
    m.nth.map_or_else(|| shown(m), |n| format!("{} number {n}", shown(m)))
}

fn first(m: &Moment, entries: &[Entry]) -> Result<(Mono, usize), Wrong> {
    all(m, entries).first().copied().ok_or_else(|| missing(m))
}

/// A call is written down when it ends, so among entries of one instant its beginning has no place of its own.
fn comes_after(later: (Mono, usize), earlier: (Mono, usize), either_begins: bool) -> bool {
    later.0 > earlier.0 || later.0 == earlier.0 && (either_begins || later.1 >= earlier.1)
}

fn begins(m: &Moment) -> bool {
    m.call.is_some() && !m.end
}

/// The moments came one after the other.
pub(crate) fn order(o: &Order, entries: &[Entry]) -> Result<(), Wrong> {
    let mut last: Option<((Mono, usize), &Moment)> = None;
    for m in &o.moments {
        let at = first(m, entries)?;
        if let Some((before, earlier)) = last
            && !comes_after(at, before, begins(m) || begins(earlier))
        {
            let early = before.0.since(at.0);
            return other(format!("order: {} came {early:?} before {}, not after it", nth(m), nth(earlier)));
        }
        last = Some((at, m));
    }
    Ok(())
}

/// Each `from` is followed by a `to` in time. One that may still come is missing.
pub(crate) fn within(w: &Within, entries: &[Entry], now: Mono) -> Result<(), Wrong> {
    let (from, to) = (all(&w.from, entries), all(&w.to, entries));
    if from.is_empty() {
        return Err(missing(&w.from));
    }
    for (t, i) in from {
        let next = to.iter().find(|(u, j)| *u > t || *u == t && *j != i).map(|(u, _)| u.since(t));
        match next {
            Some(took) if took <= w.max.0 => {}
            Some(took) => {
                return other(format!(
                    "within: {} came {took:?} after {}, expected at most {:?}",
                    nth(&w.to),
                    nth(&w.from),
                    w.max.0
                ));
            }
            None if now.since(t) <= w.max.0 => return Err(missing(&w.to)),
            None => {
                return other(format!(
                    "within: {} did not come within {:?} after {}",
                    nth(&w.to),
                    w.max.0,
                    nth(&w.from)
                ));
            }
        }
    }
    Ok(())
}

/// What happened between two moments.
pub(crate) fn between(b: &Between, entries: &[Entry]) -> Result<(), Wrong> {
    let (from, to) = (first(&b.from, entries)?, first(&b.to, entries)?);
    if !comes_after(to, from, begins(&b.from) || begins(&b.to)) {
        return other(format!("between: {} came before {}", nth(&b.to), nth(&b.from)));
    }
    let inside = |m: &Moment| all(m, entries).into_iter().filter(|at| *at > from && *at < to).count();
    match (&b.none, &b.some) {
        (Some(m), _) if inside(m) > 0 => {
            other(format!("between {} and {}: expected no {}, actual {}", nth(&b.from), nth(&b.to), nth(m), inside(m)))
        }
        (_, Some(m)) if inside(m) == 0 => {
            other(format!("between {} and {}: expected {}, actual none", nth(&b.from), nth(&b.to), nth(m)))
        }
        _ => Ok(()),
    }
}

/// A watched field never went back, in any Pod of that name.
pub(crate) fn monotone(m: &Monotone, entries: &[Entry]) -> Result<(), Wrong> {
    let mut last: BTreeMap<&str, (i64, &str)> = BTreeMap::new();
    for entry in entries {
        let (Some(pod), Event::Field { name, value }) = (&entry.pod, &entry.event) else { continue };
        if pod.name != m.pod || *name != m.field {
            continue;
        }
        let rank = match &m.order {
            Some(order) => order.iter().position(|v| v == value).and_then(|i| i64::try_from(i).ok()),
            None => value.parse().ok(),
        };
        let Some(rank) = rank else {
            let among = m.order.as_ref().map_or_else(|| "a number".to_owned(), |o| format!("one of {}", o.join(", ")));
            return other(format!("monotone: {} of {} became {value:?}, expected {among}", m.field, m.pod));
        };
        if let Some((before, was)) = last.insert(&pod.uid, (rank, value))
            && rank < before
        {
            return other(format!("monotone: {} of {} went back from {was} to {value}", m.field, m.pod));
        }
    }
    if last.is_empty() {
        return Err(Wrong::Missing(format!("{} of {} was never seen", m.field, m.pod)));
    }
    Ok(())
}

/// How often something is in the log. Too few may still become more.
pub(crate) fn times(t: &Times, entries: &[Entry]) -> Result<(), Wrong> {
    let n = u32::try_from(all(&t.of, entries).len()).unwrap_or(u32::MAX);
    let wrong = |what: &str, m: u32| format!("{}: expected {what} {m}, actual {n}", shown(&t.of));
    let most = t.exactly.or(t.at_most).filter(|m| n > *m);
    if let Some(m) = most {
        return other(wrong(if t.exactly.is_some() { "exactly" } else { "at most" }, m));
    }
    match t.exactly.or(t.at_least).filter(|m| n < *m) {
        Some(m) => Err(Wrong::Missing(wrong(if t.exactly.is_some() { "exactly" } else { "at least" }, m))),
        None => Ok(()),
    }
}

/// How often a moment is in the log; with `nth` once or not at all.
pub(crate) fn count(m: &Moment, entries: &[Entry]) -> usize {
    all(m, entries).len()
}

/// How long a demand may wait for what is missing: at least until a `within` can be judged.
pub(crate) fn patience(w: &Within, settle: Duration) -> Duration {
    w.max.0.saturating_add(settle)
}

#[cfg(test)]
mod tests {
    use podlab_scenario::Span;
    use podlab_timeline::{Lane, Outcome, PodKey, SCHEMA_VERSION};

    use super::*;

    fn entry(t: u64, event: Event) -> Entry {
        let pod = Some(PodKey { namespace: "d".into(), name: "a".into(), uid: "u".into() });
        let lane = if matches!(event, Event::Call { .. }) { Lane::Cri } else { Lane::Watch };
        Entry { v: SCHEMA_VERSION, t: Mono(t * 1_000_000), lane, pod, node: None, event }
    }

    fn field(t: u64, name: &str, value: &str) -> Entry {
        entry(t, Event::Field { name: name.into(), value: value.into() })
    }

    fn log() -> Vec<Entry> {
        let call = Event::Call {
            method: "StartContainer".into(),
            start: Mono(2_000_000),
            outcome: Outcome::Ok,
            subject: "c".into(),
        };
        vec![field(1, "phase", "Pending"), entry(5, call), field(6, "phase", "Running"), field(9, "phase", "Failed")]
    }

    fn phase(value: &str) -> Moment {
        Moment { field: Some("phase".into()), value: Some(value.into()), ..Moment::default() }
    }

    fn start() -> Moment {
        Moment { call: Some("cri.StartContainer".into()), ..Moment::default() }
    }

    fn ms(n: u64) -> Span {
        Span(Duration::from_millis(n))
    }

    #[test]
    fn an_order_holds_one_way_only_and_needs_all_its_moments() {
        let order_of = |moments: Vec<Moment>| order(&Order { moments, within: None }, &log());
        assert_eq!(order_of(vec![phase("Pending"), start(), phase("Running")]), Ok(()));
        assert!(matches!(order_of(vec![phase("Running"), start()]), Err(Wrong::Other(_))));
        assert!(matches!(order_of(vec![phase("Pending"), phase("Succeeded")]), Err(Wrong::Missing(_))));
    }

    #[test]
    fn a_response_in_time_late_absent_or_still_possible_is_told_apart() {
        let judge = |max, to, now| within(&Within { from: phase("Pending"), to, max: ms(max) }, &log(), Mono(now));
        assert_eq!(judge(5, phase("Running"), 20_000_000), Ok(()));
        assert!(matches!(judge(4, phase("Running"), 20_000_000), Err(Wrong::Other(_))));
        assert!(matches!(judge(50, phase("Succeeded"), 20_000_000), Err(Wrong::Missing(_))));
        assert!(matches!(judge(10, phase("Succeeded"), 20_000_000), Err(Wrong::Other(_))));
        let none = Within { from: phase("Succeeded"), to: phase("Running"), max: ms(5) };
        assert!(matches!(within(&none, &log(), Mono(0)), Err(Wrong::Missing(_))), "nothing was looked at");
    }

    #[test]
    fn what_is_between_two_moments_is_found_and_what_is_not_is_missed() {
        let judge = |none, some| between(&Between { from: phase("Pending"), to: phase("Failed"), none, some }, &log());
        assert_eq!(judge(None, Some(phase("Running"))), Ok(()));
        assert!(judge(Some(phase("Running")), None).is_err());
        assert_eq!(judge(Some(phase("Succeeded")), None), Ok(()));
        assert!(judge(None, Some(phase("Succeeded"))).is_err());
        let backwards = Between { from: phase("Failed"), to: phase("Pending"), none: Some(start()), some: None };
        assert!(between(&backwards, &log()).is_err());
    }

    #[test]
    fn a_field_that_goes_back_or_was_never_seen_is_not_monotone() {
        let judge = |order: &[&str], log: &[Entry]| {
            let order = Some(order.iter().map(|s| (*s).to_owned()).collect());
            monotone(&Monotone { pod: "a".into(), field: "phase".into(), order }, log)
        };
        assert_eq!(judge(&["Pending", "Running", "Failed"], &log()), Ok(()));
        assert!(judge(&["Running", "Pending", "Failed"], &log()).is_err());
        assert!(judge(&["Pending", "Running"], &log()).is_err(), "a value that is not in the order");
        assert!(matches!(judge(&["Pending", "Running"], &[]), Err(Wrong::Missing(_))));
        let counts = [field(1, "n", "0"), field(2, "n", "2"), field(3, "n", "1")];
        let m = Monotone { pod: "a".into(), field: "n".into(), order: None };
        assert!(monotone(&m, &counts).is_err() && monotone(&m, &counts[..2]).is_ok());
    }

    #[test]
    fn too_few_may_still_come_and_too_many_may_not() {
        let judge = |exactly, at_least, at_most| times(&Times { of: start(), exactly, at_least, at_most }, &log());
        assert_eq!(judge(Some(1), None, None), Ok(()));
        assert_eq!(judge(None, Some(1), Some(1)), Ok(()));
        assert!(matches!(judge(Some(2), None, None), Err(Wrong::Missing(_))));
        assert!(matches!(judge(Some(0), None, None), Err(Wrong::Other(_))));
        assert!(matches!(judge(None, None, Some(0)), Err(Wrong::Other(_))));
    }
}
