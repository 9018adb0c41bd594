//! Changing the limits of containers that run. Source: k/k pkg/kubelet/kuberuntime/kuberuntime_manager.go doPodResizeAction.

use std::sync::{Arc, atomic::Ordering};

use podlab_api::core::{Container, Pod};
use podlab_lifecycle::{
    resize::{self, ContainerResize, Method, ResizeState},
    resources,
    runtime::RuntimePod,
    spec,
};
use serde::Serialize;
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
        let plan = if settled { Vec::new() } else { resize::plan(pod, runtime, &self.requested) };
        if plan.is_empty() {
            self.resize = None;
            self.mailbox.wants_room.store(false, Ordering::Relaxed);
            return plan;
        }
        let others: Vec<Arc<Pod>> =
            self.agent.workers.active().into_iter().filter(|p| p.metadata.uid != pod.metadata.uid).collect();
        let capacity = self.agent.capacity_for_pods();
        let mut why = String::new();
        let next = if let Err(v) = admission::fits(pod, &[], &capacity) {
            ResizeState::Infeasible(v.message)
        } else if let Err(v) = admission::fits(pod, &others, &capacity) {
            why = v.reason;
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
            ResizeState::Deferred(error) if news => {
                let message = format!("Pod resize {why}: {}", self::details(pod, Some(error)));
                self.agent.say.warn(pod, "ResizeDeferred", message)
            }
            ResizeState::InProgress => {
                self.agent.say.normal(pod, "ResizeStarted", format!("Pod resize started: {details}"))
            }
            _ => {}
        }
        self.mailbox.wants_room.store(matches!(next, ResizeState::Deferred(_)), Ordering::Relaxed);
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
                self.agent.workers.room_made();
                for r in plan {
                    if let Some((_, c)) = spec::find(pod, &r.name) {
                        self.requested.insert(r.id.clone(), resources::memory_request(&c));
                    }
                }
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

/// What the events of a resize say, in the order of upstream's fields.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Details {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<Value>,
    containers: Vec<Value>,
    generation: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The resources of the Pod as the events show them.
fn details(pod: &Pod, error: Option<&str>) -> String {
    let shown = |c: &Container| json!({"name": c.name, "resources": c.resources.clone().unwrap_or_default()});
    let details = Details {
        init_containers: spec::init_containers(pod).iter().filter(|c| spec::is_sidecar(c)).map(shown).collect(),
        containers: spec::containers(pod).iter().map(shown).collect(),
        generation: pod.metadata.generation,
        error: error.map(str::to_owned),
    };
    serde_json::to_string(&details).unwrap_or_default()
}
