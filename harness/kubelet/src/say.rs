//! Events about Pods, containers and the node, in upstream's words.

use std::collections::BTreeMap;

use podlab_api::core::{ObjectReference, Pod};
use podlab_client::events::{EventRecorder, EventType, reference};
use podlab_lifecycle::spec::ContainerKind;

/// Says things about Pods of this node.
#[derive(Clone, Debug)]
pub(crate) struct Say {
    recorder: EventRecorder,
    node: String,
}

impl Say {
    pub(crate) fn new(recorder: EventRecorder, node: &str) -> Self {
        Self { recorder, node: node.to_owned() }
    }

    /// An ordinary event about a Pod.
    pub(crate) fn normal(&self, pod: &Pod, reason: &'static str, message: impl Into<String>) {
        self.recorder.event(reference(pod), EventType::Normal, reason, message);
    }

    /// A warning about a Pod.
    pub(crate) fn warn(&self, pod: &Pod, reason: &'static str, message: impl Into<String>) {
        self.recorder.event(reference(pod), EventType::Warning, reason, message);
    }

    /// An ordinary event about one container.
    pub(crate) fn container(
        &self,
        pod: &Pod,
        kind: ContainerKind,
        name: &str,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.recorder.event(at(pod, kind, name), EventType::Normal, reason, message);
    }

    /// A warning about one container.
    pub(crate) fn container_warn(
        &self,
        pod: &Pod,
        kind: ContainerKind,
        name: &str,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.recorder.event(at(pod, kind, name), EventType::Warning, reason, message);
    }

    /// An ordinary event about the node.
    pub(crate) fn node(&self, reason: &'static str, message: impl Into<String>) {
        self.recorder.event(self.about_node(), EventType::Normal, reason, message);
    }

    /// A warning about the node.
    pub(crate) fn node_warn(&self, reason: &'static str, message: impl Into<String>) {
        self.recorder.event(self.about_node(), EventType::Warning, reason, message);
    }

    /// A warning about a Pod with annotations on the event.
    pub(crate) fn annotated_warn(
        &self,
        pod: &Pod,
        notes: BTreeMap<String, String>,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.recorder.annotated_event(reference(pod), EventType::Warning, reason, message, notes);
    }

    fn about_node(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.node.clone()),
            ..ObjectReference::default()
        }
    }

    /// `Node <n> status is now: <what>`.
    pub(crate) fn node_status(&self, what: &'static str) {
        self.node(what, format!("Node {} status is now: {what}", self.node));
    }
}

fn at(pod: &Pod, kind: ContainerKind, name: &str) -> ObjectReference {
    ObjectReference { field_path: Some(kind.field_path(name)), ..reference(pod) }
}
