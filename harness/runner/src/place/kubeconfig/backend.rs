//! One trial's hands on a foreign cluster: the API alone.

use std::{path::PathBuf, time::Duration};

use async_trait::async_trait;
use podlab_api::ApiError;
use podlab_client::Client;
use podlab_clock::Clock;
use podlab_scenario::{AgentAction, NodeAction};
use podlab_testbed::Holding;
use podlab_timeline::{Entry, Recorder, fold::read_log};

use super::{super::mapping::Mapping, KubeconfigPlace};
use crate::{
    backend::Backend,
    exec::{self, Output},
    steps::{StepError, chain},
};

/// One trial's hands on the cluster.
pub(super) struct KubeconfigBackend<'a> {
    pub(super) place: &'a KubeconfigPlace,
    pub(super) mapping: Mapping,
    pub(super) client: Client,
    pub(super) recorder: Recorder,
    pub(super) log: PathBuf,
    pub(super) clock: Clock,
}

fn lacks(what: &str) -> StepError {
    StepError::Broken(format!("a cluster given by kubeconfig has no {what}; the scenario should have been skipped"))
}

#[async_trait]
impl Backend for KubeconfigBackend<'_> {
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

    async fn agent(&self, _: &AgentAction) -> Result<(), StepError> {
        Err(lacks("hand on its node agents"))
    }

    async fn node(&self, _: &NodeAction) -> Result<(), StepError> {
        Err(lacks("hand on its nodes"))
    }

    async fn exec(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
        command: &[String],
    ) -> Result<Output, ApiError> {
        let namespace = self.mapping.namespace_out(namespace);
        let mut out = exec::exec(&self.place.api, &namespace, pod, container, command).await?;
        out.text = self.mapping.text_back(&out.text);
        Ok(out)
    }

    async fn logs(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
        previous: bool,
    ) -> Result<String, ApiError> {
        let namespace = self.mapping.namespace_out(namespace);
        let text = exec::logs(&self.place.api, &namespace, pod, container, previous).await?;
        Ok(self.mapping.text_back(&text))
    }

    fn how_to_look(&self) -> String {
        format!("kubectl --kubeconfig {} --namespace {}", self.place.file.display(), self.mapping.namespace)
    }

    fn nodes(&self) -> Vec<String> {
        self.mapping.nodes.iter().map(|(_, ours)| ours.clone()).collect()
    }

    async fn holdings(&self, _: &str) -> Result<Vec<Holding>, StepError> {
        Err(lacks("view into its nodes"))
    }

    fn sees_nodes(&self) -> bool {
        false
    }

    fn settle(&self) -> Duration {
        Duration::ZERO
    }

    fn slack(&self) -> Duration {
        Duration::ZERO
    }
}
