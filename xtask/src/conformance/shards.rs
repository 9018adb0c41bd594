//! Playing the specs: several processes of the suite at a time, each with its share, and after them the serial ones alone.
//! The suite's own way of running in parallel needs a coordinator that is no part of it.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::Stdio,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use super::{
    Suite,
    options::Options,
    report::{self, Played, Spec},
};

use crate::out::say;

/// Plays all specs on the cluster; what became of each, in the order given.
///
/// # Errors
/// When a process of the suite cannot be started or leaves no report.
pub(super) fn play(
    suite: &Suite,
    kubeconfig: &Path,
    options: &Options,
    specs: &[Spec],
    out: &Path,
) -> Result<Vec<Played>, String> {
    let (serial, parallel): (Vec<&Spec>, Vec<&Spec>) = specs.iter().partition(|s| s.is_serial());
    let shards = share(&parallel, options.jobs);
    let ended = AtomicUsize::new(0);
    let one = |name: String, shard: &[&Spec]| {
        run(suite, kubeconfig, options, shard, &out.join(name), &|line| {
            let n = ended.fetch_add(1, Ordering::Relaxed) + 1;
            say!("  {n}/{}  {line}", specs.len());
        })
    };
    let mut reports = thread::scope(|scope| {
        let started: Vec<_> = shards
            .iter()
            .enumerate()
            .map(|(i, shard)| {
                let one = &one;
                scope.spawn(move || one(format!("part-{}", i + 1), shard))
            })
            .collect();
        started.into_iter().map(|t| t.join().expect("a part's thread does not panic")).collect::<Result<Vec<_>, _>>()
    })?;
    if !serial.is_empty() {
        reports.push(one("serial".into(), &serial)?);
    }
    Ok(specs.iter().map(|s| report::fate(s, &reports)).collect())
}

/// Deals the specs out, like cards: neighbours are of one kind and equally slow.
fn share<'a>(specs: &[&'a Spec], jobs: usize) -> Vec<Vec<&'a Spec>> {
    let mut shards: Vec<Vec<&Spec>> = vec![Vec::new(); jobs.min(specs.len())];
    for (i, spec) in specs.iter().enumerate() {
        let n = i % shards.len();
        shards[n].push(spec);
    }
    shards
}

/// Runs one process of the suite; its report. Its words go to `OUT.log`.
fn run(
    suite: &Suite,
    kubeconfig: &Path,
    options: &Options,
    shard: &[&Spec],
    out: &Path,
    progress: &dyn Fn(&str),
) -> Result<Vec<Spec>, String> {
    let (json, log) = (out.with_extension("json"), out.with_extension("log"));
    let mut command = suite.command(options);
    command
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--ginkgo.json-report={}", json.display()))
        .arg("--ginkgo.v");
    for spec in shard {
        command.arg(format!("--ginkgo.focus={}$", escape(&spec.name)));
    }
    let failed = |e: std::io::Error| format!("{}: {e}", log.display());
    let mut file = File::create(&log).map_err(failed)?;
    command.stdout(Stdio::piped()).stderr(file.try_clone().map_err(failed)?);
    let mut child = command.spawn().map_err(|e| format!("{}: {e}", suite.program.display()))?;
    let stdout = child.stdout.take().expect("its output was asked for as a pipe");
    let mut teller = Teller::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.map_err(failed)?;
        file.write_all(&line).and_then(|()| file.write_all(b"\n")).map_err(failed)?;
        if let Some(ended) = teller.ended(&String::from_utf8_lossy(&line)) {
            progress(&ended);
        }
    }
    child.wait().map_err(failed)?;
    let text =
        std::fs::read_to_string(&json).map_err(|e| format!("the suite left no report: {e}; see {}", log.display()))?;
    report::specs(&text)
}

/// Reads what the suite says as it goes: a ruler, the name of a spec, its words, and `• [1.2 seconds]`, `• [FAILED] …` or
/// `S [SKIPPED] …` at its end.
#[derive(Debug, Default)]
struct Teller {
    /// The last line was a ruler.
    ruled: bool,
    name: String,
}

impl Teller {
    /// One line; what to tell when it ends a spec.
    fn ended(&mut self, line: &str) -> Option<String> {
        let was_ruled = std::mem::replace(&mut self.ruled, line.starts_with("----------"));
        if line.starts_with("• [") || line.starts_with("S [SKIPPED]") {
            let how = line.split(']').next().unwrap_or_default();
            return Some(format!("{:<24}{}", format!("{how}]"), self.name));
        }
        if was_ruled && !self.ruled && !line.is_empty() {
            line.trim().clone_into(&mut self.name);
        }
        None
    }
}

/// The text as a regular expression that matches it alone.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if "\\.+*?()|[]{}^$".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spec_is_dealt_out_once_and_no_part_is_empty() {
        let specs: Vec<Spec> = (0..7).map(|i| Spec::named(&format!("spec {i}"))).collect();
        let all: Vec<&Spec> = specs.iter().collect();
        let shards = share(&all, 3);
        assert_eq!(shards.iter().map(Vec::len).collect::<Vec<_>>(), [3, 2, 2]);
        assert_eq!(share(&all[..2], 3).len(), 2);
        assert!(share(&[], 3).is_empty());
    }

    #[test]
    fn the_end_of_a_spec_is_told_with_its_name() {
        let mut teller = Teller::default();
        let said = ["------------------------------", "[sig-node] Pods a", "file.go:3", "  STEP: x", "• [1.5 seconds]"];
        let told: Vec<String> = said.iter().filter_map(|l| teller.ended(l)).collect();
        assert_eq!(told, ["• [1.5 seconds]         [sig-node] Pods a"]);
    }

    #[test]
    fn a_name_with_brackets_is_matched_to_the_letter() {
        assert_eq!(escape("[a] b*c (d)"), "\\[a\\] b\\*c \\(d\\)");
    }
}
