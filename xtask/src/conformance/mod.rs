//! `cargo xtask conformance`: upstream's own conformance suite against a fresh cluster of ours, with a table of what
//! passed, failed and was not run. The suite is no part of this repository; a folder holds it (`$PODLAB_UPSTREAM`).

mod options;
mod report;
mod shards;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

pub(crate) use options::USAGE;
use options::{Options, Target};
use report::{Outcome, Spec};

use crate::flags::{build_podlab, root, status};
use crate::out::{complain, say};

/// Runs the verb. 0 when nothing failed, 1 when a spec failed; an error means that it could not run.
pub(crate) fn run(args: &[String]) -> Result<u8, String> {
    let options = Options::parse(args)?;
    let suite = Suite::find(&options.upstream)?;
    let out = root().join("target/reports/conformance");
    let failed = |e: std::io::Error| format!("{}: {e}", out.display());
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out).map_err(failed)?;

    let specs = suite.list(&options, &out)?;
    if specs.is_empty() {
        return Err(format!("no conformance spec matches {:?}", options.focus));
    }
    say!("conformance: {} specs match {:?}", specs.len(), options.focus);
    let outcomes = match &options.target {
        Target::Cluster(kubeconfig) => shards::play(&suite, kubeconfig, &options, &specs, &out)?,
        Target::Fresh(name) => {
            let cluster = Fresh::boot(name, &suite, &out, options.keep)?;
            shards::play(&suite, &cluster.kubeconfig, &options, &specs, &out)?
        }
    };
    say!("{}", report::table(&outcomes).trim_end());
    fs::write(out.join("junit.xml"), report::junit(&outcomes)).map_err(failed)?;
    fs::write(out.join("conformance.json"), report::json(&outcomes)).map_err(failed)?;
    say!("conformance: {}; reports and logs in target/reports/conformance", report::summary(&outcomes));
    Ok(u8::from(outcomes.iter().any(|o| matches!(o.outcome, Outcome::Failed(_)))))
}

/// Upstream's programs and images.
pub(crate) struct Suite {
    program: PathBuf,
    kubectl: PathBuf,
    images: Vec<PathBuf>,
}

impl Suite {
    /// What is in the folder.
    ///
    /// # Errors
    /// One sentence that says what is missing and how to name another folder.
    fn find(folder: &Path) -> Result<Self, String> {
        let program = folder.join("bin/e2e.test");
        if !program.is_file() {
            return Err(format!(
                "{} is missing: build k8s.io/kubernetes/test/e2e as a test program there, or name the folder whose bin/ \
                 has it with --upstream or $PODLAB_UPSTREAM",
                program.display()
            ));
        }
        let dir = folder.join("images");
        let mut images: Vec<PathBuf> =
            fs::read_dir(&dir).map(|entries| entries.flatten().map(|e| e.path()).collect()).unwrap_or_default();
        images.retain(|p| p.extension().is_some_and(|e| e == "tar"));
        images.sort();
        if images.is_empty() {
            return Err(format!(
                "{} has no image archives: save the images the suite names there (`docker save`, one .tar each)",
                dir.display()
            ));
        }
        Ok(Self { program, kubectl: folder.join("bin/kubectl"), images })
    }

    /// The suite's program with the arguments every start has.
    fn command(&self, options: &Options) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(["--provider=skeleton", "--num-nodes=2", "--kube-api-content-type=application/json"])
            .args(["--ginkgo.no-color", "--ginkgo.timeout=3h"])
            .arg(format!("--kubectl-path={}", self.kubectl.display()))
            .args(&options.more)
            .stdin(Stdio::null());
        command
    }

    /// The conformance specs that the focus matches, by a run that plays nothing.
    fn list(&self, options: &Options, out: &Path) -> Result<Vec<Spec>, String> {
        let report = out.join("list.json");
        let mut command = self.command(options);
        command
            .arg("--ginkgo.dry-run")
            .arg(format!("--ginkgo.focus=(?:{}).*\\[Conformance\\]", options.focus))
            .arg(format!("--ginkgo.json-report={}", report.display()));
        if let Some(skip) = &options.skip {
            command.arg(format!("--ginkgo.skip={skip}"));
        }
        let done = command.output().map_err(|e| format!("{}: {e}", self.program.display()))?;
        let text = fs::read_to_string(&report).map_err(|e| {
            let said = String::from_utf8_lossy(&done.stderr);
            format!("the suite does not list its specs: {e}: {}", said.lines().last().unwrap_or_default())
        })?;
        Ok(report::specs(&text)?.into_iter().filter(|s| s.ran).collect())
    }
}

/// A cluster of this run; taken down at its end.
struct Fresh {
    podlab: PathBuf,
    name: String,
    kubeconfig: PathBuf,
    keep: bool,
}

impl Fresh {
    fn boot(name: &str, suite: &Suite, out: &Path, keep: bool) -> Result<Self, String> {
        let podlab = build_podlab()?;
        let kubeconfig = out.join("kubeconfig");
        let verb = |args: &[&str]| {
            let mut command = Command::new(&podlab);
            command.args(args).args(["--name", name]);
            command
        };
        status(&mut verb(&["down"]))?;
        if status(verb(&["up", "--nodes", "2"]).arg("--kubeconfig").arg(&kubeconfig))? != 0 {
            return Err("no cluster to play on".into());
        }
        let cluster = Self { podlab: podlab.clone(), name: name.to_owned(), kubeconfig, keep };
        if status(verb(&["image", "load"]).args(&suite.images))? != 0 {
            return Err("the suite's images could not be loaded".into());
        }
        Ok(cluster)
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if self.keep {
            say!("conformance: the cluster stays: export KUBECONFIG={}", self.kubeconfig.display());
        } else if let Err(e) = status(Command::new(&self.podlab).args(["down", "--name", &self.name])) {
            complain!("conformance: {e}");
        }
    }
}

/// The default folder of upstream's programs.
fn default_upstream() -> PathBuf {
    env::var_os("PODLAB_UPSTREAM").map_or_else(|| PathBuf::from("/var/tmp/podlab-upstream"), PathBuf::from)
}
