//! `docs`: pages made from scenarios, so that what is promised is what is played.

use std::{collections::BTreeMap, fmt::Write, fs, path::Path, process::ExitCode};

use crate::out::say;
use anyhow::{Context, Result};
use podlab_runner::suite::Ready;
use podlab_scenario::{Worlds, explain, lint::LINTS};

use super::e2e;

pub(crate) fn run(root: &Path, out: &Path) -> Result<ExitCode> {
    let scenarios = e2e::read(root, "")?;
    fs::create_dir_all(out).with_context(|| format!("make {}", out.display()))?;
    let put = |name: &str, text: String| {
        let path = out.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    let mut folders: BTreeMap<&str, Vec<&Ready>> = BTreeMap::new();
    for s in &scenarios {
        folders.entry(s.name.rsplit_once('/').map_or("", |(folder, _)| folder)).or_default().push(s);
    }
    let mut index = format!("# Scenarios\n\n{} trials, each on a cluster of its own.\n", scenarios.len());
    for (folder, all) in &folders {
        let page = format!("{}.md", if folder.is_empty() { "top".to_owned() } else { folder.replace('/', "-") });
        let _ = write!(index, "\n## [{folder}]({page})\n\n");
        let mut text = String::new();
        for s in all {
            let _ = writeln!(index, "- `{}` ({}): {}", s.name, worlds(s.scenario.clock), s.scenario.intent.trim());
            let _ = writeln!(text, "{}", explain(&s.name, &s.scenario));
        }
        put(&page, text)?;
    }
    put("README.md", index)?;
    let mut lints = String::from("# Lints\n\nWhat `podlab lint` finds in scenarios.\n");
    for l in LINTS {
        let refused = if l.refused { " Such a file is not read at all." } else { "" };
        let _ = write!(
            lints,
            "\n## {}\n\n{} {}{refused}\n\nNot so:\n\n```yaml\n{}```\n\nBut so:\n\n```yaml\n{}```\n",
            l.id, l.what, l.why, l.bad, l.good
        );
    }
    put("lints.md", lints)?;
    say!("{} scenarios in {} pages: {}", scenarios.len(), folders.len() + 2, out.join("README.md").display());
    Ok(ExitCode::SUCCESS)
}

fn worlds(clock: Worlds) -> &'static str {
    match clock {
        Worlds::Real => "real containers",
        Worlds::Virtual => "virtual world",
        Worlds::Both => "both worlds",
    }
}
