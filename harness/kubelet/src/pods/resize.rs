//! Changing the limits of containers that run. Source: k/k pkg/kubelet/kuberuntime/kuberuntime_manager.go doPodResizeAction.

use std::{collections::BTreeMap, sync::Arc};

use podlab_api::core::Pod;
use podlab_lifecycle::{
    resize::{self, ContainerResize, Method, ResizeState},
    resources,
    runtime::RuntimePod,
    spec,
};
use serde_json::{Value, json};

use super::{
    kill::{Kill, Target},
    worker::Worker,
};
use crate::{admission, container};

impl Worker {
    /// Decides whether a resize is due, and whether it may happen now.
    pub(super) fn plan_resize(&mut self, pod: &Pod, runtime: &RuntimePod) -> Vec<ContainerResize> {
        // Once applied, small differences (page rounding, weights) are the kernel's.
        let settled = self.sized.is_some() && self.sized == pod.metadata.generation;
        let plan = if settled { Vec::new() } else { resize::plan(pod, runtime) };
        if plan.is_empty() {
            self.resize = None;
            return plan;
        }
        let others: Vec<Arc<Pod>> =
            self.agent.workers.active().into_iter().filter(|p| p.metadata.uid != pod.metadata.uid).collect();
        let capacity = self.agent.capacity_for_pods();
        let next = if let Err(v) = admission::fits(pod, &[], &capacity) {
            ResizeState::Infeasible(v.message)
        } else if let Err(v) = admission::fits(pod, &others, &capacity) {
            ResizeState::Deferred(v.message)
        } else {
            ResizeState::InProgress
        };
        let news = self.resize.as_ref() != Some(&next);
        let details = details(pod, None);
        match &next {
            ResizeState::Infeasible(_) if news => {
                self.agent.say.warn(pod, "ResizeInfeasible", format!("Pod resize Infeasible: {details}"))
            }
            ResizeState::Deferred(_) if news => {
                self.agent.say.warn(pod, "ResizeDeferred", format!("Pod resize Deferred: {details}"))
            }
            ResizeState::InProgress => {
                self.agent.say.normal(pod, "ResizeStarted", format!("Pod resize started: {details}"))
            }
            _ => {}
        }
        let go = next == ResizeState::InProgress;
        self.resize = Some(next);
        if go { plan } else { Vec::new() }
    }

    /// Applies it; true when the runtime is not as it was.
    pub(super) async fn apply_resize(&mut self, pod: &Arc<Pod>, plan: &[ContainerResize]) -> bool {
        if plan.is_empty() {
            return false;
        }
        match self.try_resize(pod, plan).await {
            Ok(()) => {
                self.agent.say.normal(pod, "ResizeCompleted", format!("Pod resize completed: {}", details(pod, None)));
                self.resize = None;
                self.sized = pod.metadata.generation;
                true
            }
            Err(error) => {
                self.agent.say.warn(pod, "ResizeError", format!("Pod resize error: {}", details(pod, Some(&error))));
                self.resize = Some(ResizeState::Failed(error));
                false
            }
        }
    }

    async fn try_resize(&self, pod: &Arc<Pod>, plan: &[ContainerResize]) -> Result<(), String> {
        let agent = &self.agent;
        if agent.config.cgroup_root.is_some() {
            let limits = resources::pod_cgroup(pod);
            agent.host.cgroup_apply(&container::pod_cgroup_path(pod), &limits).map_err(|e| e.to_string())?;
            agent.qos_changed();
        }
        for r in plan {
            let Some((_, c)) = spec::find(pod, &r.name) else { continue };
            match r.method {
                Method::InPlace => {
                    let linux = container::linux_resources(pod, &c, agent.machine.memory);
                    agent.runtime.update_container_resources(&r.id, linux).await.map_err(|e| e.to_string())?;
                }
                Method::Restart => {
                    let message = format!("Container {} resize requires restart", r.name);
                    let target =
                        Target { id: r.id.clone(), name: r.name.clone(), message: Some(message), reason: None };
                    Kill { agent, pod: Some(pod), key: &self.key }.containers(&[target], None).await;
                }
            }
        }
        Ok(())
    }
}

/// The resources of the Pod as the events show them.
fn details(pod: &Pod, error: Option<&str>) -> String {
    let containers: Vec<Value> = spec::containers(pod)
        .iter()
        .map(|c| json!({"name": c.name, "resources": c.resources.clone().unwrap_or_default()}))
        .collect();
    let mut all: BTreeMap<&str, Value> = BTreeMap::new();
    let init: Vec<Value> = spec::init_containers(pod)
        .iter()
        .filter(|c| spec::is_sidecar(c))
        .map(|c| json!({"name": c.name, "resources": c.resources.clone().unwrap_or_default()}))
        .collect();
    if !init.is_empty() {
        all.insert("initContainers", Value::Array(init));
    }
    all.insert("containers", Value::Array(containers));
    all.insert("generation", json!(pod.metadata.generation));
    if let Some(e) = error {
        all.insert("error", json!(e));
    }
    serde_json::to_string(&all).unwrap_or_default()
}
