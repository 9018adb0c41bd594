//! An embedded cluster in a container for each trial: the same program, from an image made of it, with nothing of this
//! host but the kernel. The API is reached over a published port, nodes by commands in the container; the run log lies in
//! a shared folder, so that the timeline has all its lanes.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use podlab_api::ApiError;
use podlab_client::{Client, http::HttpApi, kubeconfig};
use podlab_clock::Clock;
use podlab_container::{Engine, Executed, Owner, PROGRAM, Parts, Request, Running};
use podlab_scenario::{AgentAction, NodeAction, Scenario};
use podlab_testbed::{ClusterSpec, Holding};
use podlab_timeline::{Entry, Recorder, fold::read_log};

use super::owner;
use crate::{
    Outcome, PlayOptions, Trial,
    backend::Backend,
    exec::{self, Output},
    play::{self, failure},
    steps::{StepError, chain},
};

/// The API's port in the container.
const API_PORT: u16 = 6443;
/// The cluster's name in the container.
const NAME: &str = "run";
/// What the program says when its cluster is ready.
const READY: &str = "is ready";
/// How long container and cluster may take together.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// Where the folder with the specification and the credentials is in the container.
const RUN: &str = "/podlab/run";
/// Where the trial's folder is in the container.
const OUT: &str = "/podlab/out";

/// A Docker engine with our image.
pub struct ContainerPlace {
    engine: Engine,
    next: AtomicU32,
}

impl std::fmt::Debug for ContainerPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.engine.fmt(f)
    }
}

impl ContainerPlace {
    /// Finds the engine, puts the running program into an image there, and removes what dead runs left.
    ///
    /// # Errors
    /// In one sentence: which engine does not answer, or why there is no image.
    pub async fn connect() -> Result<Self, String> {
        let parts = Parts::of_this_program().map_err(|e| format!("look at this program: {e}"))?;
        // A process of another host cannot have used the engine of this one.
        let lives = Arc::new(|name: &str| owner::lives(name).unwrap_or(false));
        let engine = Engine::prepare(&parts, Owner { name: owner::this(), lives }).await.map_err(|e| chain(&e))?;
        Ok(Self { engine, next: AtomicU32::new(0) })
    }

    /// Plays one trial. Dropping the future removes the container in the background.
    pub(crate) async fn play(&self, name: &str, path: &Path, scenario: &Scenario, options: &PlayOptions) -> Trial {
        let clock = Clock::real();
        let start = clock.now();
        let log = options.out.join(name).join("run.jsonl");
        let mut trial = play::blank(name, scenario, start, log.clone());
        trial.outcome = match play::prepare(&log) {
            Ok(log) => self.in_container(path, scenario, options, &log, &mut trial).await,
            Err(why) => Outcome::Broken(failure("prepare", why)),
        };
        trial.duration = clock.now().since(start);
        play::conclude(&mut trial, scenario, &read_log(&log).unwrap_or_default());
        trial
    }

    async fn in_container(
        &self,
        path: &Path,
        scenario: &Scenario,
        options: &PlayOptions,
        log: &Path,
        trial: &mut Trial,
    ) -> Outcome {
        let broken = |step: &str, why: String| Outcome::Broken(failure(step, why));
        let clock = Clock::real();
        // Only its owner may enter it: there are keys in it. It goes when the trial is over.
        let private = match tempfile::Builder::new().prefix("podlab-container-").tempdir() {
            Ok(dir) => dir,
            Err(e) => return broken("prepare", format!("a temporary folder: {e}")),
        };
        let spec = ClusterSpec {
            nodes: scenario.cluster.nodes,
            node_cpu_milli: scenario.cluster.node_cpu_milli,
            seed: options.seed,
            run_log: Some(PathBuf::from(OUT).join("run.jsonl")),
            faults: scenario.faults.clone(),
            api_listen: Some(([0, 0, 0, 0], API_PORT).into()),
            ..ClusterSpec::named(NAME)
        };
        let written = serde_json::to_vec(&spec)
            .map_err(std::io::Error::from)
            .and_then(|text| std::fs::write(private.path().join("cluster.json"), text));
        if let Err(e) = written {
            return broken("prepare", format!("write the cluster's specification: {e}"));
        }
        let dir = log.parent().unwrap_or_else(|| Path::new("/")).to_owned();
        let request = Request {
            name: format!("podlab-{}-{}", std::process::id(), self.next.fetch_add(1, Ordering::Relaxed)),
            arguments: [
                "up",
                "--foreground",
                "--spec",
                &format!("{RUN}/cluster.json"),
                "--kubeconfig",
                &format!("{RUN}/kubeconfig"),
            ]
            .map(str::to_owned)
            .to_vec(),
            port: API_PORT,
            folders: vec![(private.path().to_owned(), RUN.to_owned()), (dir.clone(), OUT.to_owned())],
            ready: READY.to_owned(),
            within: BOOT_LIMIT,
        };
        let running = match self.engine.start(&request).await {
            Ok(running) => running,
            Err(e) => return broken("boot", chain(&e)),
        };
        trial.boot = clock.now().since(trial.start);
        let nodes = spec.node_names();
        let outcome =
            match ContainerBackend::new(&running, request.name.clone(), private.path(), log, nodes.clone(), clock) {
                Ok(backend) => play::within_limits(&backend, path, scenario, options, trial).await,
                Err(why) => broken("prepare", why),
            };
        keep_logs(&running, &dir, &nodes).await;
        match running.end().await {
            Err(e) if outcome == Outcome::Passed => broken("clean up", chain(&e)),
            _ => outcome,
        }
    }

    /// Trials remove their containers themselves; what is left has lost its runner, and the next run removes it.
    #[expect(clippy::unused_async, reason = "the places have one shape")]
    pub(crate) async fn end(&self) {}
}

/// A missing log is no reason to lose the verdict.
async fn keep_logs(running: &Running, dir: &Path, nodes: &[String]) {
    if let Ok(text) = running.log().await {
        let _ = std::fs::write(dir.join("container.log"), text);
    }
    for component in ["capsule", "plane"].into_iter().chain(nodes.iter().map(String::as_str)) {
        if let Ok(log) = running.exec(&["logs", component, "--name", NAME]).await {
            let _ = std::fs::write(dir.join(format!("{component}.log")), log.stdout);
        }
    }
}

/// One trial's hands on the container.
struct ContainerBackend<'a> {
    running: &'a Running,
    /// The container's name.
    name: String,
    client: Client,
    api: HttpApi,
    recorder: Recorder,
    log: PathBuf,
    nodes: Vec<String>,
    clock: Clock,
}

impl<'a> ContainerBackend<'a> {
    fn new(
        running: &'a Running,
        name: String,
        private: &Path,
        log: &Path,
        nodes: Vec<String>,
        clock: Clock,
    ) -> Result<Self, String> {
        let mut access = kubeconfig::load(&private.join("kubeconfig")).map_err(|e| chain(&e))?;
        access.server = format!("https://127.0.0.1:{}", running.port());
        let api = HttpApi::new(&access).map_err(|e| chain(&e))?;
        let client = Client::new(Arc::new(HttpApi::new(&access).map_err(|e| chain(&e))?));
        let recorder = Recorder::to_file(log, clock).map_err(|e| chain(&e))?;
        Ok(Self { running, name, client, api, recorder, log: log.to_owned(), nodes, clock })
    }

    /// A command of the program in the container that must succeed; its standard output.
    async fn command(&self, arguments: &[&str]) -> Result<String, StepError> {
        let broken = |why: String| StepError::Broken(format!("podlab {} in the container: {why}", arguments.join(" ")));
        match self.running.exec(arguments).await {
            Ok(Executed { code: 0, stdout, .. }) => Ok(stdout),
            Ok(Executed { code, stderr, .. }) => Err(broken(format!("exit code {code}: {}", stderr.trim()))),
            Err(e) => Err(broken(chain(&e))),
        }
    }

    async fn act(&self, what: &str, node: &str) -> Result<(), StepError> {
        self.command(&["node", what, node, "--name", NAME]).await.map(drop)
    }
}

#[async_trait]
impl Backend for ContainerBackend<'_> {
    fn world(&self) -> &'static str {
        "real"
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    fn client(&self) -> Client {
        self.client.clone()
    }

    fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }

    fn entries(&self) -> Result<Vec<Entry>, StepError> {
        read_log(&self.log).map_err(|e| StepError::Broken(chain(&e)))
    }

    async fn agent(&self, action: &AgentAction) -> Result<(), StepError> {
        match action {
            AgentAction::Kill(n) => self.act("kill", n).await,
            AgentAction::Stop(n) => self.act("stop", n).await,
            AgentAction::Start(n) => self.act("start", n).await,
            AgentAction::Restart(n) => {
                self.act("kill", n).await?;
                self.act("start", n).await
            }
        }
    }

    async fn node(&self, action: &NodeAction) -> Result<(), StepError> {
        match action {
            NodeAction::Crash(n) => self.act("crash", n).await,
            NodeAction::Boot(n) => self.act("boot", n).await,
        }
    }

    async fn exec(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
        command: &[String],
    ) -> Result<Output, ApiError> {
        exec::exec(&self.api, namespace, pod, container, command).await
    }

    async fn logs(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
        previous: bool,
    ) -> Result<String, ApiError> {
        exec::logs(&self.api, namespace, pod, container, previous).await
    }

    fn how_to_look(&self) -> String {
        format!("the container is kept: docker exec {} {PROGRAM} enter --name {NAME} -- COMMAND", self.name)
    }

    fn nodes(&self) -> Vec<String> {
        self.nodes.clone()
    }

    async fn holdings(&self, node: &str) -> Result<Vec<Holding>, StepError> {
        let text = self.command(&["node", "holdings", node, "--name", NAME]).await?;
        serde_json::from_str(&text).map_err(|e| StepError::Broken(format!("what {node} holds: {e}")))
    }

    fn settle(&self) -> Duration {
        Duration::ZERO
    }

    fn slack(&self) -> Duration {
        Duration::ZERO
    }
}
