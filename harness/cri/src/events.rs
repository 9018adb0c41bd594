//! The event stream: each change of a sandbox or container, as it happens, with the Pod's whole state beside it.

use std::sync::Arc;

use crate::{
    runtime::Runtime,
    v1::{ContainerEventResponse, ContainerEventType},
};

impl Runtime {
    /// Tells everybody who listens. `id` is a container's, or the sandbox's own.
    pub(crate) fn emit(self: &Arc<Self>, kind: ContainerEventType, id: &str, sandbox_id: &str) {
        if self.events.receiver_count() == 0 {
            return;
        }
        let sandbox = self.sandbox(sandbox_id).ok();
        let event = ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            created_at: self.now_ns(),
            pod_sandbox_status: sandbox.map(|s| Self::sandbox_status_of(&s.record.lock())),
            containers_statuses: self.containers_of(sandbox_id).iter().map(|c| self.container_status_of(c)).collect(),
        };
        let _ = self.events.send(event);
    }
}
