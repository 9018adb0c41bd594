//! Two timelines of one scenario, played in two places, side by side.

use std::collections::BTreeMap;

use podlab_timeline::{Entry, Lane, PodKey, PodTimeline, fold::fold};

/// Lines shown around one that differs.
const CONTEXT: usize = 2;

/// The normal form of everything a run's log says of its Pods, in the order of their names. With `api_only` it is what a
/// watcher of the API saw, which every place can see.
pub fn timeline(entries: &[Entry], api_only: bool) -> String {
    let seen: Vec<Entry> = entries.iter().filter(|e| !api_only || e.lane == Lane::Watch).cloned().collect();
    let timelines: BTreeMap<PodKey, PodTimeline> = fold(&seen);
    let names: Vec<(String, String)> = (1..=10).rev().map(|i| (format!("node-{i}"), "<node>".to_owned())).collect();
    // Pods whose names were made up are told apart by nothing that lasts; their texts are sorted instead.
    let mut pods: Vec<(String, String)> = timelines
        .iter()
        .filter(|(key, _)| !key.uid.is_empty())
        .map(|(key, timeline)| (key.name.clone(), timeline.normal_form(&names)))
        .collect();
    pods.sort();
    pods.into_iter().map(|(name, text)| format!("pod {name}\n{text}")).collect()
}

/// What differs, one line each, `-` for the first and `+` for the second, with what stands around it; `None` when nothing
/// does.
pub fn diff(a: &str, b: &str) -> Option<String> {
    let (a, b): (Vec<&str>, Vec<&str>) = (a.lines().collect(), b.lines().collect());
    let lines = align(&a, &b);
    let changed: Vec<usize> = (0..lines.len()).filter(|i| lines[*i].0 != ' ').collect();
    if changed.is_empty() {
        return None;
    }
    let near = |i: usize| changed.iter().any(|c| c.abs_diff(i) <= CONTEXT);
    let (mut out, mut cut) = (String::new(), false);
    for (i, (mark, text)) in lines.iter().enumerate() {
        // The Pod a change belongs to is always shown.
        let heading = text.starts_with("pod ") && {
            let next = (i + 1..lines.len()).find(|j| lines[*j].1.starts_with("pod ")).unwrap_or(lines.len());
            changed.iter().any(|c| (i..next).contains(c))
        };
        if near(i) || heading {
            out.push_str(&format!("{mark} {text}\n"));
            cut = false;
        } else if !cut {
            out.push_str("  …\n");
            cut = true;
        }
    }
    Some(out)
}

/// The longest common subsequence of both, with what is only in one of them.
fn align<'a>(a: &[&'a str], b: &[&'a str]) -> Vec<(char, &'a str)> {
    let mut longest = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            longest[i][j] =
                if a[i] == b[j] { longest[i + 1][j + 1] + 1 } else { longest[i + 1][j].max(longest[i][j + 1]) };
        }
    }
    let (mut i, mut j, mut out) = (0, 0, Vec::new());
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            out.push((' ', a[i]));
            (i, j) = (i + 1, j + 1);
        } else if i < a.len() && (j == b.len() || longest[i + 1][j] >= longest[i][j + 1]) {
            out.push(('-', a[i]));
            i += 1;
        } else {
            out.push(('+', b[j]));
            j += 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use podlab_clock::Mono;
    use podlab_timeline::{Event, Outcome, SCHEMA_VERSION};

    use super::*;

    fn entry(lane: Lane, event: Event) -> Entry {
        let pod = Some(PodKey { namespace: "default".into(), name: "a".into(), uid: "u".into() });
        Entry { v: SCHEMA_VERSION, t: Mono(1), lane, pod, node: None, event }
    }

    #[test]
    fn what_only_our_taps_see_is_left_out_where_the_other_side_has_none() {
        let log = [
            entry(Lane::Watch, Event::Field { name: "phase".into(), value: "Pending".into() }),
            entry(
                Lane::Cni,
                Event::Call { method: "ADD".into(), start: Mono(0), outcome: Outcome::Ok, subject: String::new() },
            ),
        ];
        assert_eq!(timeline(&log, false), "pod a\nwatch phase: Pending\ncni ADD\n");
        assert_eq!(timeline(&log, true), "pod a\nwatch phase: Pending\n");
    }

    #[test]
    fn only_what_differs_is_shown_with_the_pod_it_belongs_to() {
        let a = "pod a\n1\n2\n3\n4\n5\n6\npod b\nx\n";
        assert_eq!(diff(a, a), None);
        let b = "pod a\n1\n2\n3\n4\n5\nsix\npod b\nx\n";
        assert_eq!(diff(a, b).unwrap(), "  pod a\n  …\n  4\n  5\n- 6\n+ six\n  pod b\n  x\n");
        assert_eq!(diff("", "pod a\n").unwrap(), "+ pod a\n");
        assert_eq!(diff("pod a\nx\n", "pod a\nx\nx\n").unwrap(), "  pod a\n  x\n+ x\n");
    }
}
