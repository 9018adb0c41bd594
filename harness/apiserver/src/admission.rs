//! Admission: what is filled in and refused between decoding and storing, in upstream's order.
//! Source: k/k pkg/kubeapiserver/options/plugins.go.

mod limits;
mod namespace;
mod pod;
mod pod_security;
mod quota;
mod resources;
mod storage;

use podlab_api::ApiError;
pub(crate) use quota::InFlight;
use serde_json::{Value, json};

use crate::{
    context::Context,
    errors::forbidden,
    kinds::{Kind, SubKind},
    server::ApiServer,
    tree::{list, list_at},
};

impl ApiServer {
    /// The mutating phase of a create. Dropping the future is safe.
    ///
    /// # Errors
    /// 403 and 404 in the words of the plugin that refuses.
    pub(crate) async fn admit_create(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        object: &mut Value,
    ) -> Result<(), ApiError> {
        self.check_namespace(kind, namespace, object)?;
        match (kind.resource.group, kind.resource.kind) {
            ("", "Pod") => {
                self.default_limits(kind, namespace, object)?;
                self.admit_service_account(kind, namespace, object).await?;
                self.admit_priority(kind, object)?;
                pod::default_tolerations(object);
                self.admit_runtime_class(kind, object)?;
            }
            ("", "Node") => {
                // Every new node waits for its conditions. Source: plugin/pkg/admission/nodetaint.
                let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
                let known = list(object, "spec.taints")
                    .iter()
                    .any(|t| t["key"] == taint["key"] && t["effect"] == taint["effect"]);
                if !known {
                    list_at(object, "spec.taints").push(taint);
                }
            }
            ("", "PersistentVolumeClaim") => {
                self.default_class(object);
                storage::protect(object, "kubernetes.io/pvc-protection");
            }
            ("", "PersistentVolume") => storage::protect(object, "kubernetes.io/pv-protection"),
            _ => {}
        }
        Ok(())
    }

    /// The validating phase of a create.
    ///
    /// # Errors
    /// 403 in the words of the plugin that refuses.
    pub(crate) fn check_create(
        &self,
        cx: &Context,
        kind: &Kind,
        namespace: Option<&str>,
        object: &Value,
    ) -> Result<(), ApiError> {
        if (kind.resource.group, kind.resource.kind) == ("", "Pod") {
            self.check_limits(kind, namespace, object)?;
            self.check_pod_security(cx, kind, namespace, object)?;
            pod::warn(cx, object);
        } else if (kind.resource.group, kind.resource.kind) == ("", "PersistentVolumeClaim") {
            self.check_claim_limits(kind, namespace, object)?;
        }
        Ok(())
    }

    /// Both phases of an update.
    ///
    /// # Errors
    /// 403 in the words of the plugin that refuses.
    pub(crate) fn admit_update(
        &self,
        cx: &Context,
        kind: &Kind,
        namespace: Option<&str>,
        sub: Option<SubKind>,
        old: &Value,
        new: &mut Value,
    ) -> Result<(), ApiError> {
        match (kind.resource.group, kind.resource.kind, sub) {
            // As upstream does at every update too, so that a client that replaces all tolerations keeps these.
            ("", "Pod", None) => pod::default_tolerations(new),
            ("", "Pod", Some(SubKind::Resize)) => {
                self.check_limits(kind, namespace, new)?;
                self.check_resize_fits(kind, new)?;
            }
            ("", "Pod", Some(SubKind::Ephemeral)) => self.check_pod_security(cx, kind, namespace, new)?,
            ("", "PersistentVolumeClaim", None) => self.check_expansion(kind, old, new)?,
            ("", "Service", None) => self.reallocate(old, new)?,
            _ => {}
        }
        Ok(())
    }

    /// What may not be deleted at all.
    ///
    /// # Errors
    /// 403.
    pub(crate) fn admit_delete(&self, kind: &Kind, name: &str) -> Result<(), ApiError> {
        let immortal = matches!(name, "default" | "kube-system" | "kube-public");
        if kind.resource.kind == "Namespace" && immortal {
            return Err(forbidden(kind, name, "this namespace may not be deleted"));
        }
        Ok(())
    }

    /// A Service whose type changes gets or gives back what the type needs.
    fn reallocate(&self, old: &Value, new: &mut Value) -> Result<(), ApiError> {
        use crate::tree::{at, each_mut, int, text};
        let needs_ports = |s: &Value| matches!(text(s, "spec.type"), "NodePort" | "LoadBalancer");
        if text(new, "spec.type") == "ExternalName" {
            if text(old, "spec.type") != "ExternalName" {
                let own = [
                    "clusterIP",
                    "clusterIPs",
                    "ipFamilies",
                    "ipFamilyPolicy",
                    "internalTrafficPolicy",
                    "externalTrafficPolicy",
                    "allocateLoadBalancerNodePorts",
                ];
                for field in own {
                    crate::tree::remove(new, &format!("spec.{field}"));
                }
                for port in each_mut(new, "spec.ports") {
                    crate::tree::remove(port, "nodePort");
                }
            }
            return Ok(());
        }
        if needs_ports(old) && !needs_ports(new) {
            for port in each_mut(new, "spec.ports") {
                let was = list(old, "spec.ports").iter().any(|p| at(p, "nodePort") == at(port, "nodePort"));
                if was {
                    crate::tree::remove(port, "nodePort");
                }
            }
        }
        let settled = |s: &Value| {
            let numbered = list(s, "spec.ports").iter().all(|p| int(p, "nodePort").unwrap_or(0) != 0);
            !text(s, "spec.clusterIP").is_empty() && (numbered || !needs_ports(s))
        };
        if settled(new)
            && at(old, "spec.ports") == at(new, "spec.ports")
            && at(old, "spec.clusterIP") == at(new, "spec.clusterIP")
        {
            return Ok(());
        }
        // What it has already is its own. Nothing is held for it beyond that until the update is stored.
        self.release_service(old);
        let result = self.allocate(new);
        if result.is_ok() {
            self.release_service(new);
        }
        self.services.lock().note(old);
        result
    }
}
