//! What a machine class has measured night after night, a line each, and where its level changed.

use std::{
    fs::OpenOptions,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
};

use anyhow::{Context, Result};
use podlab_clock::Clock;
use podlab_stats::{Comparison, change_points};
use serde::{Deserialize, Serialize};

use super::{machine, revision};
use crate::out::say;

/// How improbable a change must be without one.
const ALPHA: f64 = 0.05;

/// One night.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Night {
    v: u32,
    /// RFC 3339.
    at: String,
    /// The revision that was judged, if it is one of a repository.
    subject: String,
    /// Lower-half means in milliseconds by what they are of: `total`, then the phases.
    figures: Vec<(String, f64)>,
}

/// Adds a comparison's judged side to the history of this machine's class, and says where its figures changed.
pub(super) fn keep(dir: &Path, subject: Option<&str>, c: &Comparison, least: f64) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("{}", dir.display()))?;
    let path = dir.join(format!("{}.jsonl", machine::class()));
    let figures = std::iter::once(&c.total).chain(&c.phases).map(|e| (e.of.clone(), e.b)).collect();
    let at = Clock::real().wall_secs().to_string();
    let night = Night { v: 1, at, subject: revision::name(subject.unwrap_or("HEAD")), figures };
    append(&path, &night)?;
    let nights = read(&path)?;
    for line in changes(&nights, least) {
        say!("{line}");
    }
    say!("{} nights in {}", nights.len(), path.display());
    Ok(())
}

/// Adds a night. A line that was cut off before is taken away, so that it does not spoil this one.
fn append(path: &Path, night: &Night) -> Result<()> {
    let at = || format!("{}", path.display());
    let mut file = OpenOptions::new().create(true).append(true).read(true).open(path).with_context(at)?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).with_context(at)?;
    let whole = text.iter().rposition(|b| *b == b'\n').map_or(0, |last| last + 1);
    if whole < text.len() {
        file.set_len(u64::try_from(whole).unwrap_or(0)).with_context(at)?;
    }
    file.write_all(format!("{}\n", serde_json::to_string(night)?).as_bytes()).with_context(at)
}

/// Nights of a history. A last line that was cut off is left out.
fn read(path: &Path) -> Result<Vec<Night>> {
    let file = std::fs::File::open(path).with_context(|| format!("{}", path.display()))?;
    let mut nights = Vec::new();
    let lines: Vec<String> = BufReader::new(file).lines().collect::<Result<_, _>>()?;
    for (i, line) in lines.iter().enumerate() {
        match serde_json::from_str(line) {
            Ok(night) => nights.push(night),
            Err(_) if i + 1 == lines.len() => {}
            Err(e) => return Err(e).with_context(|| format!("{}:{}", path.display(), i + 1)),
        }
    }
    Ok(nights)
}

/// Each change in words. A phase's share of the total decides whether a change of it matters, as in a comparison.
fn changes(nights: &[Night], least: f64) -> Vec<String> {
    let Some(last) = nights.last() else { return Vec::new() };
    let mut out = Vec::new();
    for (name, _) in &last.figures {
        let of = |n: &Night, name: &str| n.figures.iter().find(|(o, _)| o == name).map(|(_, ms)| *ms);
        // A phase that came later begins when it came.
        let with: Vec<(&Night, f64)> = nights.iter().filter_map(|n| Some((n, of(n, name)?))).collect();
        let series: Vec<f64> = with.iter().map(|(_, ms)| *ms).collect();
        for c in change_points(&series, ALPHA, 0.0) {
            let Some((night, _)) = with.get(c.at) else { continue };
            let total = of(night, "total").unwrap_or(0.0);
            if (c.after - c.before).abs() >= least * total {
                out.push(format!(
                    "{name} changed on {} ({}): {:.3} → {:.3} ms",
                    night.at, night.subject, c.before, c.after
                ));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn night(i: usize, start: f64) -> Night {
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        let wobble = (i * 7 % 5) as f64 / 100.0;
        let figures = vec![("total".to_owned(), 12.0 + start + wobble), ("start".to_owned(), start + wobble)];
        Night { v: 1, at: format!("night {i}"), subject: format!("r{i}"), figures }
    }

    #[test]
    fn a_phase_that_became_slower_is_named_with_its_night() {
        let nights: Vec<Night> = (0..40).map(|i| night(i, if i < 20 { 6.0 } else { 6.6 })).collect();
        let said = changes(&nights, 0.015);
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said.iter().all(|s| s.contains("changed on night 20 (r20)")), "{said:?}");
        assert_eq!(changes(&nights[..20], 0.015), Vec::<String>::new());
        assert_eq!(changes(&[], 0.015), Vec::<String>::new());
    }

    #[test]
    fn a_line_cut_off_at_the_end_is_left_out_and_one_inside_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h.jsonl");
        let line = serde_json::to_string(&night(1, 6.0)).unwrap();
        std::fs::write(&path, format!("{line}\n{}", &line[..9])).unwrap();
        assert_eq!(read(&path).unwrap(), [night(1, 6.0)]);
        append(&path, &night(2, 6.0)).unwrap();
        append(&path, &night(3, 6.0)).unwrap();
        assert_eq!(read(&path).unwrap(), [night(1, 6.0), night(2, 6.0), night(3, 6.0)]);
        std::fs::write(&path, format!("{}\n{line}\n", &line[..9])).unwrap();
        assert!(format!("{:#}", read(&path).unwrap_err()).contains("h.jsonl:1"));
    }
}
