//! The program of a revision: built from a checkout of its own, always in the same place, so that two builds of one source
//! are the same to the byte.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// The program that is meant: a file, or a revision to build.
pub(crate) fn program(word: &str) -> Result<PathBuf> {
    let path = Path::new(word);
    if path.is_file() {
        return path.canonicalize().with_context(|| format!("{}", path.display()));
    }
    build(word)
}

/// The commit of a revision; the word itself for what is none.
pub(super) fn name(word: &str) -> String {
    git(None, &["rev-parse", "--verify", "--quiet", &format!("{word}^{{commit}}")]).unwrap_or_else(|_| word.to_owned())
}

fn git(root: Option<&Path>, args: &[&str]) -> Result<String> {
    let mut command = Command::new("git");
    if let Some(root) = root {
        command.arg("-C").arg(root);
    }
    let output = command.args(args).stdin(Stdio::null()).output().context("start git")?;
    if !output.status.success() {
        bail!("git {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn build(revision: &str) -> Result<PathBuf> {
    let named = format!("{revision}^{{commit}}");
    let commit = git(None, &["rev-parse", "--verify", "--quiet", &named])
        .with_context(|| format!("{revision:?} is neither a program nor a revision of this repository"))?;
    let root = PathBuf::from(git(None, &["rev-parse", "--show-toplevel"])?);
    let base = root.join("target/bench");
    let kept = base.join("programs").join(&commit);
    if kept.is_file() {
        return Ok(kept);
    }
    let tree = base.join("tree");
    if tree.join(".git").exists() {
        git(Some(&tree), &["checkout", "--quiet", "--force", "--detach", &commit])?;
    } else {
        std::fs::create_dir_all(&base).with_context(|| format!("{}", base.display()))?;
        // A checkout that was removed by hand is still known to git.
        git(Some(&root), &["worktree", "prune"])?;
        let place = tree.display().to_string();
        git(Some(&root), &["worktree", "add", "--quiet", "--detach", "--force", &place, &commit])?;
    }
    let target = base.join("build");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--release", "--locked", "--package", "podlab", "--bin", "podlab", "--target-dir"])
        .arg(&target)
        .current_dir(&tree)
        .stdin(Stdio::null())
        .status()
        .context("start cargo")?;
    if !status.success() {
        bail!("revision {revision} does not build");
    }
    std::fs::create_dir_all(base.join("programs")).context("a folder for programs")?;
    // Under another name first: a copy that is cut off must not be taken for the program.
    let part = kept.with_extension("part");
    std::fs::copy(target.join("release/podlab"), &part).context("keep the program")?;
    std::fs::rename(&part, &kept).context("keep the program")?;
    Ok(kept)
}
