//! What the runner needs of a cluster, whichever world it is in: a client, a clock, the run log, and hands on its nodes.

use std::collections::BTreeMap;

use async_trait::async_trait;
use podlab_api::ApiError;
use podlab_client::{Client, http::HttpApi, kubeconfig};
use podlab_clock::Clock;
use podlab_scenario::{AgentAction, NodeAction};
use podlab_tape::{Replayed, Tape};
use podlab_testbed::{AgentCommand, Cluster, Cost, Holding, world::VirtualCluster};
use podlab_timeline::{Entry, Recorder, fold::read_log};

use crate::{
    exec::{self, Output},
    steps::{StepError, chain},
};

/// A booted cluster. Methods that act return when it is done; dropping one midway may leave its effect half done.
#[async_trait]
pub(crate) trait Backend: Send + Sync {
    /// `real` or `virtual`.
    fn world(&self) -> &'static str;
    /// Time there.
    fn clock(&self) -> Clock;
    /// A client with all rights.
    fn client(&self) -> Client;
    /// The run log, to write to.
    fn recorder(&self) -> Recorder;
    /// The run log so far.
    fn entries(&self) -> Result<Vec<Entry>, StepError>;
    /// Acts on a node's agent.
    async fn agent(&self, action: &AgentAction) -> Result<(), StepError>;
    /// Acts on a node.
    async fn node(&self, action: &NodeAction) -> Result<(), StepError>;
    /// Runs a command in a container.
    async fn exec(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
        command: &[String],
    ) -> Result<Output, ApiError>;
    /// A container's log.
    async fn logs(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
        previous: bool,
    ) -> Result<String, ApiError>;
    /// How somebody can look at the cluster while it is there.
    fn how_to_look(&self) -> String;
    /// Names of the nodes.
    fn nodes(&self) -> Vec<String>;
    /// What a node holds for Pods.
    async fn holdings(&self, node: &str) -> Result<Vec<Holding>, StepError>;
    /// Whether [`Backend::holdings`] can be asked for.
    fn sees_nodes(&self) -> bool {
        true
    }
    /// Plays a tape against the simulated runtime of a node.
    async fn replay(&self, _node: &str, _tape: &Tape) -> Result<Replayed, StepError> {
        Err(StepError::Broken("a tape is played in the virtual world alone".into()))
    }
    /// How long to go on watching when the last step is done, so that what it set in motion belongs to the run.
    fn settle(&self) -> std::time::Duration;
    /// What the parts of the cluster have used so far, by name; nothing where they are no processes.
    fn costs(&self) -> BTreeMap<String, Cost> {
        BTreeMap::new()
    }
    /// How far a measured duration may be off: nothing, unless this run was told to take its time.
    fn slack(&self) -> std::time::Duration;
}

/// A cluster of real processes.
pub(crate) struct RealBackend<'a> {
    cluster: &'a Cluster,
    client: Client,
    api: HttpApi,
    recorder: Recorder,
}

impl<'a> RealBackend<'a> {
    /// Connects to a booted cluster.
    pub(crate) fn new(cluster: &'a Cluster) -> Result<Self, String> {
        let access = kubeconfig::load(&cluster.kubeconfig()).map_err(|e| chain(&e))?;
        let api = HttpApi::new(&access).map_err(|e| chain(&e))?;
        let client = cluster.client().map_err(|e| chain(&e))?;
        let recorder = Recorder::to_file(&cluster.run_log(), Clock::real()).map_err(|e| chain(&e))?;
        Ok(Self { cluster, client, api, recorder })
    }
}

#[async_trait]
impl Backend for RealBackend<'_> {
    fn world(&self) -> &'static str {
        "real"
    }

    fn clock(&self) -> Clock {
        Clock::real()
    }

    fn client(&self) -> Client {
        self.client.clone()
    }

    fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }

    fn entries(&self) -> Result<Vec<Entry>, StepError> {
        read_log(&self.cluster.run_log()).map_err(|e| StepError::Broken(chain(&e)))
    }

    async fn agent(&self, action: &AgentAction) -> Result<(), StepError> {
        match action {
            AgentAction::Kill(n) => self.cluster.agent(n, AgentCommand::Kill)?,
            AgentAction::Stop(n) => self.cluster.agent(n, AgentCommand::Stop)?,
            AgentAction::Start(n) => self.cluster.agent(n, AgentCommand::Start)?,
            AgentAction::Restart(n) => {
                self.cluster.agent(n, AgentCommand::Kill)?;
                self.cluster.agent(n, AgentCommand::Start)?;
            }
        }
        Ok(())
    }

    async fn node(&self, action: &NodeAction) -> Result<(), StepError> {
        let request = match action {
            NodeAction::Crash(n) => format!("crash {n}"),
            NodeAction::Boot(n) => format!("boot {n}"),
        };
        self.cluster.control(&request)?;
        Ok(())
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
        let (name, config) = (&self.cluster.spec().name, self.cluster.kubeconfig());
        format!("the cluster is kept: podlab enter --name {name} -- sh, or KUBECONFIG={}", config.display())
    }

    fn nodes(&self) -> Vec<String> {
        self.cluster.spec().node_names()
    }

    async fn holdings(&self, node: &str) -> Result<Vec<Holding>, StepError> {
        Ok(self.cluster.inside(node)?.holdings()?)
    }

    fn settle(&self) -> std::time::Duration {
        std::time::Duration::ZERO
    }

    fn costs(&self) -> BTreeMap<String, Cost> {
        self.cluster.costs()
    }

    fn slack(&self) -> std::time::Duration {
        std::time::Duration::ZERO
    }
}

/// A cluster of the virtual world.
pub(crate) struct VirtualBackend {
    pub(crate) cluster: VirtualCluster,
    pub(crate) nodes: Vec<String>,
    pub(crate) slack: std::time::Duration,
}

fn unknown(e: podlab_testbed::world::WorldError) -> StepError {
    StepError::Broken(e.to_string())
}

#[async_trait]
impl Backend for VirtualBackend {
    fn world(&self) -> &'static str {
        "virtual"
    }

    fn clock(&self) -> Clock {
        self.cluster.clock()
    }

    fn client(&self) -> Client {
        self.cluster.client()
    }

    fn recorder(&self) -> Recorder {
        self.cluster.recorder()
    }

    fn entries(&self) -> Result<Vec<Entry>, StepError> {
        Ok(self.cluster.entries())
    }

    async fn agent(&self, action: &AgentAction) -> Result<(), StepError> {
        match action {
            AgentAction::Kill(n) => self.cluster.kill_agent(n),
            AgentAction::Stop(n) => self.cluster.stop_agent(n).await,
            AgentAction::Start(n) => self.cluster.start_agent(n),
            AgentAction::Restart(n) => self.cluster.kill_agent(n).and_then(|()| self.cluster.start_agent(n)),
        }
        .map_err(unknown)
    }

    async fn node(&self, action: &NodeAction) -> Result<(), StepError> {
        match action {
            NodeAction::Crash(n) => self.cluster.crash_node(n),
            NodeAction::Boot(n) => self.cluster.boot_node(n),
        }
        .map_err(unknown)
    }

    async fn exec(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
        command: &[String],
    ) -> Result<Output, ApiError> {
        let out = self.cluster.exec(namespace, pod, container, command).await?;
        Ok(Output { code: out.exit_code, text: out.combined(), error: String::new() })
    }

    async fn logs(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
        previous: bool,
    ) -> Result<String, ApiError> {
        self.cluster.logs(namespace, pod, container, previous).await
    }

    fn how_to_look(&self) -> String {
        "a virtual cluster cannot be entered".into()
    }

    fn nodes(&self) -> Vec<String> {
        self.nodes.clone()
    }

    async fn holdings(&self, node: &str) -> Result<Vec<Holding>, StepError> {
        self.cluster.holdings(node).map_err(unknown)
    }

    async fn replay(&self, node: &str, tape: &Tape) -> Result<Replayed, StepError> {
        self.cluster.replay(node, tape).await.map_err(unknown)
    }

    fn settle(&self) -> std::time::Duration {
        std::time::Duration::from_secs(1)
    }

    fn slack(&self) -> std::time::Duration {
        self.slack
    }
}
