//! Two clusters side by side, each booted by a build of its own, measured in turn.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use podlab_client::{Client, http::HttpApi, kubeconfig};
use podlab_clock::Clock;
use podlab_measure::{Attribution, Plan, Start, Subject, attribute, run};
use podlab_testbed::StateDir;
use podlab_timeline::fold::read_log;
use tokio::signal::unix::{SignalKind, signal};

/// How long a Pod may take to be Ready, or gone, before it is lost.
const WITHIN: Duration = Duration::from_secs(20);

/// One of the two.
#[derive(Debug, Clone)]
pub(crate) struct Side {
    /// The build.
    pub(crate) program: PathBuf,
    /// More words for its `up`.
    pub(crate) up: Vec<String>,
}

/// What one pair of clusters gave.
pub(crate) struct Round {
    /// Pairs of starts by block.
    pub(crate) blocks: Vec<Vec<(Attribution, Attribution)>>,
    /// Time spent measuring.
    pub(crate) took: Duration,
}

/// A cluster of a build, down when dropped.
struct Booted {
    program: PathBuf,
    name: String,
    kubeconfig: tempfile::TempPath,
}

impl Booted {
    fn up(side: &Side, name: String) -> Result<Self> {
        let kubeconfig = tempfile::NamedTempFile::new().context("a file for the kubeconfig")?.into_temp_path();
        let mut command = Command::new(&side.program);
        command.args(["up", "--name", &name, "--kubeconfig"]).arg(&*kubeconfig).args(&side.up);
        let output = command.stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("start {}", side.program.display()))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            bail!("{} up: {}", side.program.display(), why.trim());
        }
        Ok(Self { program: side.program.clone(), name, kubeconfig })
    }

    fn client(&self) -> Result<Client> {
        Ok(Client::new(Arc::new(HttpApi::new(&kubeconfig::load(&self.kubeconfig)?)?)))
    }

    fn log(&self) -> Result<PathBuf> {
        Ok(StateDir::of(&self.name)?.join("run.jsonl"))
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        // A build that cannot end what it booted leaves it to `podlab down`.
        let _ = Command::new(&self.program)
            .args(["down", "--name", &self.name])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status();
    }
}

/// Boots both, measures, takes both down.
pub(crate) fn measure(runtime: &tokio::runtime::Runtime, sides: &[Side; 2], plan: &Plan, number: u32) -> Result<Round> {
    let name = |side: &str| format!("bench-{}-{number}{side}", std::process::id());
    let [a, b] = sides;
    // Which of the two is booted first takes turns as well.
    let (a, b) = if number.is_multiple_of(2) {
        let a = Booted::up(a, name("a"))?;
        (a, Booted::up(b, name("b"))?)
    } else {
        let b = Booted::up(b, name("b"))?;
        (Booted::up(a, name("a"))?, b)
    };
    let clock = Clock::real();
    let measuring = async {
        let mut first = Subject::open("A", a.client()?, "default", clock, WITHIN).await?;
        let mut second = Subject::open("B", b.client()?, "default", clock, WITHIN).await?;
        Ok::<_, anyhow::Error>(run(&mut first, &mut second, plan, clock).await?)
    };
    let interrupted = async {
        // Without handlers for what asks this program to end, the clusters would stay.
        match signal(SignalKind::terminate()) {
            Ok(mut term) => tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = term.recv() => {}
            },
            Err(_) => drop(tokio::signal::ctrl_c().await),
        }
    };
    let measured = runtime.block_on(async {
        tokio::select! {
            done = measuring => done,
            () = interrupted => bail!("interrupted"),
        }
    })?;
    let side = |log: &Path, of: fn(&(Start, Start)) -> &Start| -> Result<Vec<Attribution>> {
        let starts: Vec<Start> = measured.blocks.iter().flatten().map(|p| of(p).clone()).collect();
        let entries = if log.exists() { read_log(log)? } else { Vec::new() };
        Ok(attribute(&entries, "default", &starts))
    };
    let mut of_a = side(&a.log()?, |p| &p.0)?.into_iter();
    let mut of_b = side(&b.log()?, |p| &p.1)?.into_iter();
    let blocks = measured.blocks.iter().map(|b| of_a.by_ref().zip(of_b.by_ref()).take(b.len()).collect()).collect();
    Ok(Round { blocks, took: measured.took })
}
