//! Proof that the faults of a run did their work: they fired as often as they must have, and healed.

use podlab_clock::Mono;
use podlab_scenario::Fault;
use podlab_timeline::{Entry, Event};

/// A fault that did not do its work, or did not heal, makes the run worthless, whatever else held.
pub(crate) fn unfired(faults: &[Fault], entries: &[Entry]) -> Option<String> {
    let times = |what: &str, id: &str| -> Vec<Mono> {
        let said = |e: &&Entry| matches!(&e.event, Event::Run(v) if v.get(what).and_then(|f| f.as_str()) == Some(id));
        entries.iter().filter(said).map(|e| e.t).collect()
    };
    faults.iter().find_map(|fault| {
        let (id, fired) = (&fault.id, times("faultFired", &fault.id));
        if let Some(wanted) = fault.must.fired
            && u32::try_from(fired.len()) != Ok(wanted)
        {
            return Some(format!("fault {id} must have fired {wanted} times, and fired {}", fired.len()));
        }
        let (within, last) = (fault.must.healed_by?.0, *fired.iter().max()?);
        let healed = times("faultHealed", id).into_iter().filter(|t| *t >= last).min();
        match healed.map(|t| t.since(last)) {
            None => Some(format!("fault {id} must have healed within {within:?}, and no such call succeeded after it")),
            Some(took) if took > within => {
                Some(format!("fault {id} must have healed within {within:?}, and took {took:?}"))
            }
            Some(_) => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use podlab_timeline::{Lane, SCHEMA_VERSION};
    use serde_json::json;

    use super::*;

    fn said(at_s: u64, what: &str) -> Entry {
        let (t, event) = (Mono(0).after(Duration::from_secs(at_s)), Event::Run(json!({what: "f"})));
        Entry { v: SCHEMA_VERSION, t, lane: Lane::Cri, pod: None, node: None, event }
    }

    fn fault(must: &str) -> Vec<Fault> {
        let text = format!(r#"{{"id": "f", "at": {{"cri": {{"method": "X"}}}}, "effect": "hang", "must": {must}}}"#);
        vec![serde_json::from_str(&text).unwrap()]
    }

    #[test]
    fn a_fault_that_did_not_fire_as_often_as_it_must_makes_the_run_invalid() {
        let faults = fault(r#"{"fired": 2}"#);
        let log = [said(1, "faultFired"), said(2, "faultFired"), said(3, "faultFired")];
        assert_eq!(unfired(&faults, &log[..2]), None);
        for n in [0, 1, 3] {
            assert!(unfired(&faults, &log[..n]).unwrap().contains(&format!("fired {n}")));
        }
    }

    #[test]
    fn a_fault_heals_after_it_fired_last_and_in_time_or_the_run_is_invalid() {
        let faults = fault(r#"{"fired": 2, "healedBy": "5s"}"#);
        let log =
            |last: &[Entry]| [&[said(1, "faultFired"), said(2, "faultHealed"), said(3, "faultFired")], last].concat();
        assert_eq!(unfired(&faults, &log(&[said(8, "faultHealed")])), None);
        assert!(unfired(&faults, &log(&[said(9, "faultHealed")])).unwrap().contains("took 6s"));
        assert!(unfired(&faults, &log(&[])).unwrap().contains("no such call succeeded"));
    }
}
