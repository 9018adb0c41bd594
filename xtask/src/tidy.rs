//! Conventions as a test: which crate may depend on which, how long a file may be, that every module says what it owns,
//! and that every file is reachable from its crate's root.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::flags::root;
use crate::out::say;

/// Hard limit of lines in a source file.
const MAX_LINES: usize = 800;

/// Checks everything and prints every finding; 1 when there is one.
pub(crate) fn run() -> Result<u8, String> {
    let mut findings = Vec::new();
    edges(&mut findings)?;
    files(&mut findings)?;
    for f in &findings {
        say!("tidy: {f}");
    }
    say!("tidy: {} findings", findings.len());
    Ok(u8::from(!findings.is_empty()))
}

/// The edges `harness/ARCHITECTURE.md` allows: table rows ``| `crate` | … | `dep` `dep` … |`` below "May use".
fn allowed() -> Result<BTreeMap<String, BTreeSet<String>>, String> {
    let path = root().join("harness/ARCHITECTURE.md");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut out = BTreeMap::new();
    for line in text.lines().filter(|l| l.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let words = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
        if let [name, _, uses] = cells[..]
            && let Some(name) = words(name).pop_first()
        {
            out.insert(name, words(uses));
        }
    }
    Ok(out)
}

fn edges(findings: &mut Vec<String>) -> Result<(), String> {
    let run = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output();
    let output = run.map_err(|e| format!("cargo metadata: {e}"))?;
    let tree: Value = serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let allowed = allowed()?;
    let text = |v: &Value, key: &str| v.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let short = |name: &str| name.strip_prefix("podlab-").unwrap_or(name).to_owned();
    for package in tree.get("packages").and_then(Value::as_array).into_iter().flatten() {
        let name = short(&text(package, "name"));
        let Some(uses) = allowed.get(&name) else {
            findings.push(format!("crate {name} is not in the table of harness/ARCHITECTURE.md"));
            continue;
        };
        for dependency in package.get("dependencies").and_then(Value::as_array).into_iter().flatten() {
            let full = text(dependency, "name");
            let is_ours = full.starts_with("podlab");
            // Tests may use anything below; only what ships is layered.
            if is_ours && dependency.get("kind").is_none_or(Value::is_null) && !uses.contains(&short(&full)) {
                findings.push(format!(
                    "crate {name} depends on {}, which harness/ARCHITECTURE.md does not allow",
                    short(&full)
                ));
            }
        }
    }
    Ok(())
}

fn files(findings: &mut Vec<String>) -> Result<(), String> {
    let mut all = Vec::new();
    for dir in ["harness", "suites", "benches", "reports", "xtask"] {
        collect(&root().join(dir), &mut all).map_err(|e| format!("{dir}: {e}"))?;
    }
    for path in &all {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let shown = path.strip_prefix(root()).unwrap_or(path).display();
        let lines = text.lines().count();
        if lines > MAX_LINES {
            findings.push(format!("{shown}: {lines} lines; the limit is {MAX_LINES}"));
        }
        if !text.lines().take(5).any(|l| l.starts_with("//!")) {
            findings.push(format!("{shown}: no //! line says what the module owns"));
        }
        if !reachable(path, &all) {
            findings.push(format!("{shown}: no `mod` line leads here"));
        }
    }
    Ok(())
}

fn collect(dir: &Path, out: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() && path.file_name().is_none_or(|n| n != "target") {
            collect(&path, out)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
    Ok(())
}

/// Whether some file of the module tree names this one, or it is a root itself.
fn reachable(path: &Path, all: &[PathBuf]) -> bool {
    let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
    let dir = path.parent().unwrap_or(path);
    let folder = dir.file_name().and_then(|s| s.to_str()).unwrap_or_default();
    let is_root = ["lib", "main", "build"].contains(&stem) || ["tests", "benches", "examples", "bin"].contains(&folder);
    if is_root {
        return true;
    }
    // `x/mod.rs` is named by a file in the folder above, any other file by its folder's `mod.rs` or `folder.rs`, or a
    // root beside it.
    let (name, parents) = if stem == "mod" {
        let above = dir.parent().unwrap_or(dir);
        (folder, vec![above.join("mod.rs"), above.join("lib.rs"), above.join("main.rs"), above.with_extension("rs")])
    } else {
        (stem, vec![dir.join("mod.rs"), dir.join("lib.rs"), dir.join("main.rs"), dir.with_extension("rs")])
    };
    let tests = dir.parent().filter(|p| p.file_name().is_some_and(|n| n == "tests"));
    let named = |file: &Path| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().any(|l| {
            l.trim_end().ends_with(&format!("mod {name};"))
                || l.contains(&format!("mod {name} {{"))
                || l.contains(&format!("/{stem}.rs\""))
        })
    };
    let beside = || all.iter().filter(|f| f.parent() == tests.or(dir.parent())).any(|f| named(f));
    parents.iter().any(|p| named(p)) || beside()
}
