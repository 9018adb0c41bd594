//! The normal form of a timeline, specified in `harness/timeline/NORMAL-FORM.md`.
//!
//! Lanes (watched fields, events by component, CNI calls) are listed side by side instead of interleaved: how entries of
//! different lanes fall between each other differs from run to run and is nobody's promise. Inside a lane order counts;
//! repeats collapse to `×n`. Ids, addresses and durations are replaced by what they stand for.

use std::collections::BTreeMap;

use crate::{Lane, Outcome, PodTimeline};

/// Version of the text; see the specification, section 4.
pub const NORMAL_FORM_VERSION: u8 = 1;

/// Renders a timeline. `names` replaces what differs from run to run (nodes, namespaces) by nicknames.
pub(super) fn render(timeline: &PodTimeline, names: &[(String, String)]) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        out.push_str(&normalise(&text, names));
        out.push('\n');
    };
    for (field, values) in &timeline.fields {
        let values: Vec<&str> = values.iter().map(|(_, v)| v.as_str()).collect();
        line(format!("watch {field}: {}", values.join(" > ")));
    }
    let mut sources: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for e in &timeline.events {
        let path = if e.field_path.is_empty() { String::new() } else { format!(" {}", e.field_path) };
        let entry = format!("{} {}{path}: {}", e.kind, e.reason, e.message);
        sources.entry(&e.source).or_default().push(entry);
    }
    for (source, events) in sources {
        for (event, n) in collapse(events) {
            line(format!("event {source} {event}{}", times(n)));
        }
    }
    let cni = timeline.calls.iter().filter(|c| c.lane == Lane::Cni).map(|c| match &c.outcome {
        Outcome::Ok => c.method.clone(),
        Outcome::Error(why) => format!("{} failed: {why}", c.method),
    });
    for (call, n) in collapse(cni.collect()) {
        line(format!("cni {call}{}", times(n)));
    }
    out
}

fn times(n: usize) -> String {
    if n > 1 { format!(" ×{n}") } else { String::new() }
}

/// Equal neighbours become one with a count.
fn collapse(items: Vec<String>) -> Vec<(String, usize)> {
    let mut out: Vec<(String, usize)> = Vec::new();
    for item in items {
        match out.last_mut() {
            Some((last, n)) if *last == item => *n += 1,
            _ => out.push((item, 1)),
        }
    }
    out
}

/// Replaces names, then everything that looks like an id, an address, a digest, a duration or a size.
fn normalise(text: &str, names: &[(String, String)]) -> String {
    let mut text = text.to_owned();
    for (real, nick) in names {
        text = text.replace(real, nick);
    }
    let mut out = String::with_capacity(text.len());
    let mut word = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() || ".:-µ".contains(c) {
            word.push(c);
        } else {
            out.push_str(&stand_in(&word));
            word.clear();
            out.push(c);
        }
    }
    out.push_str(&stand_in(&word));
    out
}

/// What a word stands for, or the word itself.
fn stand_in(word: &str) -> String {
    let (bare, tail) = match word.strip_suffix(['.', ':']) {
        Some(bare) => (bare, &word[bare.len()..]),
        None => (word, ""),
    };
    let hex = |s: &str, n: usize| s.len() == n && s.bytes().all(|b| b.is_ascii_hexdigit());
    let uid = bare.len() == 36
        && bare.split('-').map(str::len).eq([8, 4, 4, 4, 12])
        && bare.split('-').all(|p| hex(p, p.len()));
    let host = bare.split_once(':').map_or(bare, |(h, _)| h);
    let dotted: Vec<&str> = host.split('.').collect();
    let ip = dotted.len() == 4 && dotted.iter().all(|p| p.parse::<u8>().is_ok());
    let time = bare.len() >= 20 && bare.as_bytes().get(4) == Some(&b'-') && bare.contains('T') && bare.ends_with('Z');
    let number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let unit = ["ms", "µs", "s"].iter().find_map(|u| bare.strip_suffix(u));
    let kind = if uid {
        "<uid>"
    } else if hex(bare, 64) {
        "<id>"
    } else if ip {
        if bare.contains(':') { "<ip>:<port>" } else { "<ip>" }
    } else if time {
        "<time>"
    } else if unit.is_some_and(|n| number(n) && n.contains(|c: char| c.is_ascii_digit())) && bare.len() > 1 {
        "<dur>"
    } else if bare.len() >= 5 && bare.bytes().all(|b| b.is_ascii_digit()) {
        "<n>"
    } else {
        return word.to_owned();
    };
    format!("{kind}{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_run_to_run_is_replaced_and_the_rest_is_kept() {
        let names = [("ns-x1".to_owned(), "NS".to_owned())];
        for (text, expected) in [
            ("Successfully assigned ns-x1/a to node-1", "Successfully assigned NS/a to node-1"),
            (
                "in 98ms (98ms including waiting). Image size: 961250 bytes.",
                "in <dur> (<dur> including waiting). Image size: <n> bytes.",
            ),
            ("dial tcp 10.244.1.2:8080: refused", "dial tcp <ip>:<port>: refused"),
            ("uid 514b4074-1e89-4c19-a805-7f09272087d8.", "uid <uid>."),
            ("exit code 137, restarted 3 times", "exit code 137, restarted 3 times"),
        ] {
            assert_eq!(normalise(text, &names), expected);
        }
    }

    #[test]
    fn a_text_in_normal_form_is_its_own_normal_form() {
        let text =
            "uid 514b4074-1e89-4c19-a805-7f09272087d8 at 10.244.1.2:8080 after 98ms: exit code 137, 961250 bytes. ×3";
        let once = normalise(text, &[]);
        assert_eq!(normalise(&once, &[]), once);
        assert!(once.contains("<uid> at <ip>:<port> after <dur>: exit code 137, <n> bytes"), "{once}");
    }

    #[test]
    fn neighbours_collapse() {
        let items = ["a", "a", "b", "a"].map(str::to_owned).to_vec();
        assert_eq!(collapse(items), [("a".to_owned(), 2), ("b".to_owned(), 1), ("a".to_owned(), 1)]);
    }
}
