//! ResourceQuota: what a namespace may hold. Usage is counted from the stored objects themselves, plus the creates on
//! their way, so it needs no controller to be right. Source: k/k plugin/pkg/admission/resourcequota, pkg/quota/v1.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use podlab_api::ApiError;
use serde_json::Value;

use super::resources::{Amounts, amounts, of_pod, show_like};
use crate::{
    errors::forbidden,
    kinds::{Kind, registry},
    server::ApiServer,
    tree::{at, entries, list, text},
};

/// Usage of creates that are admitted and not stored yet, by namespace and number.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    next: u64,
    charges: BTreeMap<(String, u64), Amounts>,
}

/// Holds a charge until the create is stored or has failed.
pub(crate) struct Charge<'a> {
    pending: &'a Mutex<InFlight>,
    id: (String, u64),
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.pending.lock().charges.remove(&self.id);
    }
}

impl ApiServer {
    /// Admits what an object adds to its namespace.
    ///
    /// # Errors
    /// 403 naming the quota that it would exceed, or a request that it must state.
    pub(crate) fn charge_quota(&self, kind: &Kind, object: &Value) -> Result<Option<Charge<'_>>, ApiError> {
        let quotas = registry().core("resourcequotas");
        let namespace = text(object, "metadata.namespace");
        if !kind.resource.namespaced || namespace.is_empty() || kind.resource.kind == "Event" {
            return Ok(None);
        }
        let Ok(listing) = self.store.list(&quotas.prefix_of(Some(namespace)), None) else { return Ok(None) };
        if listing.items.is_empty() {
            return Ok(None);
        }
        let wanted = usage(kind, object);
        let name = text(object, "metadata.name");
        let mut pending = self.in_flight.lock();
        for (_, quota) in &listing.items {
            let quota = &quota.object.0;
            if !in_scope(quota, object) {
                continue;
            }
            let hard = amounts(at(quota, "spec.hard"));
            self.check_required(kind, quota, object, &hard)?;
            let relevant: Vec<&String> = hard.keys().filter(|k| wanted.contains_key(*k)).collect();
            if relevant.is_empty() {
                continue;
            }
            let mut used = self.used(namespace, quota, &hard);
            for (_, charge) in
                pending.charges.range((namespace.to_owned(), 0)..).take_while(|((ns, _), _)| ns == namespace)
            {
                for (resource, amount) in charge {
                    if let Some(slot) = used.get_mut(resource) {
                        *slot += amount;
                    }
                }
            }
            let over: Vec<&&String> = relevant.iter().filter(|k| used[**k] + wanted[**k] > hard[**k]).collect();
            if !over.is_empty() {
                let part = |amounts: &Amounts| {
                    let shown = over.iter().map(|k| {
                        let like = at(quota, "spec.hard").get(k.as_str()).and_then(Value::as_str).unwrap_or_default();
                        format!("{k}={}", show_like(amounts[**k], like))
                    });
                    shown.collect::<Vec<_>>().join(",")
                };
                let why = format!(
                    "exceeded quota: {}, requested: {}, used: {}, limited: {}",
                    text(quota, "metadata.name"),
                    part(&wanted),
                    part(&used),
                    part(&hard)
                );
                return Err(forbidden(kind, name, &why));
            }
        }
        pending.next += 1;
        let id = (namespace.to_owned(), pending.next);
        pending.charges.insert(id.clone(), wanted);
        Ok(Some(Charge { pending: &self.in_flight, id }))
    }

    /// A quota on requests or limits makes them mandatory.
    fn check_required(&self, kind: &Kind, quota: &Value, object: &Value, hard: &Amounts) -> Result<(), ApiError> {
        if kind.resource.kind != "Pod" {
            return Ok(());
        }
        let mut missing = Vec::new();
        for resource in hard.keys() {
            let (which, plain) = match resource.as_str() {
                "cpu" | "requests.cpu" => ("requests", "cpu"),
                "memory" | "requests.memory" => ("requests", "memory"),
                "limits.cpu" => ("limits", "cpu"),
                "limits.memory" => ("limits", "memory"),
                _ => continue,
            };
            let lacking: Vec<&str> = list(object, "spec.containers")
                .iter()
                .chain(list(object, "spec.initContainers"))
                .filter(|c| at(c, "resources").get(which).and_then(|r| r.get(plain)).is_none())
                .map(|c| text(c, "name"))
                .collect();
            if !lacking.is_empty() {
                missing.push(format!("{resource} for: {}", lacking.join(",")));
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let why = format!("failed quota: {}: must specify {}", text(quota, "metadata.name"), missing.join("; "));
        Err(forbidden(kind, text(object, "metadata.name"), &why))
    }

    /// What the objects of a namespace use of a quota's resources.
    pub(crate) fn used(&self, namespace: &str, quota: &Value, hard: &Amounts) -> Amounts {
        let mut used: Amounts = hard.keys().map(|k| (k.clone(), 0)).collect();
        for kind in registry().all().iter().filter(|k| k.resource.namespaced && !k.converted()) {
            let counted = hard.keys().any(|k| counts(k, kind));
            if !counted {
                continue;
            }
            let Ok(listing) = self.store.list(&kind.prefix_of(Some(namespace)), None) else { continue };
            for (_, stored) in listing.items {
                if !in_scope(quota, &stored.object.0) {
                    continue;
                }
                for (resource, amount) in usage(kind, &stored.object.0) {
                    if let Some(slot) = used.get_mut(&resource) {
                        *slot += amount;
                    }
                }
            }
        }
        used
    }

    /// `status` of a quota as it should be now.
    pub(crate) fn quota_status(&self, quota: &Value) -> Value {
        let hard = amounts(at(quota, "spec.hard"));
        let used = self.used(text(quota, "metadata.namespace"), quota, &hard);
        let shown = used.iter().map(|(name, amount)| {
            let like = at(quota, "spec.hard").get(name).and_then(Value::as_str).unwrap_or_default();
            (name.clone(), Value::from(show_like(*amount, like)))
        });
        serde_json::json!({"hard": at(quota, "spec.hard"), "used": shown.collect::<serde_json::Map<_, _>>()})
    }
}

/// Whether a quota resource counts objects of a kind.
fn counts(resource: &str, kind: &Kind) -> bool {
    let of_pods = matches!(resource, "pods" | "cpu" | "memory")
        || resource.starts_with("requests.")
        || resource.starts_with("limits.");
    match kind.resource.kind {
        "Pod" => of_pods || resource == "count/pods",
        "PersistentVolumeClaim" => resource.contains("storage") || resource.contains("persistentvolumeclaims"),
        "Service" => resource.starts_with("services") || resource == "count/services",
        _ => resource == kind.resource.plural || resource == format!("count/{}", kind.qualified()),
    }
}

/// What one object uses.
fn usage(kind: &Kind, object: &Value) -> Amounts {
    let mut out = Amounts::from([(format!("count/{}", kind.qualified()), 1000)]);
    match kind.resource.kind {
        "Pod" => {
            if matches!(text(object, "status.phase"), "Succeeded" | "Failed") {
                return out;
            }
            out.insert("pods".into(), 1000);
            for (name, amount) in of_pod(object, "requests") {
                if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
                    out.insert(name.clone(), amount);
                }
                out.insert(format!("requests.{name}"), amount);
            }
            for (name, amount) in of_pod(object, "limits") {
                out.insert(format!("limits.{name}"), amount);
            }
        }
        "PersistentVolumeClaim" => {
            out.insert("persistentvolumeclaims".into(), 1000);
            let storage = amounts(at(object, "spec.resources.requests")).get("storage").copied().unwrap_or(0);
            out.insert("requests.storage".into(), storage);
            let class = text(object, "spec.storageClassName");
            if !class.is_empty() {
                let prefix = format!("{class}.storageclass.storage.k8s.io/");
                out.insert(format!("{prefix}persistentvolumeclaims"), 1000);
                out.insert(format!("{prefix}requests.storage"), storage);
            }
        }
        "Service" => {
            out.insert("services".into(), 1000);
            match text(object, "spec.type") {
                "NodePort" => out.insert("services.nodeports".into(), 1000),
                "LoadBalancer" => out.insert("services.loadbalancers".into(), 1000),
                _ => None,
            };
        }
        _ => {
            out.insert(kind.resource.plural.into(), 1000);
        }
    }
    out
}

fn in_scope(quota: &Value, object: &Value) -> bool {
    let scopes = list(quota, "spec.scopes");
    if text(object, "kind") != "Pod" {
        return scopes.is_empty();
    }
    let best_effort = crate::pod::qos::class(object) == "BestEffort";
    let terminating = !at(object, "spec.activeDeadlineSeconds").is_null();
    let by_priority = list(quota, "spec.scopeSelector.matchExpressions").iter().all(|e| {
        let class = text(object, "spec.priorityClassName");
        let values = list(e, "values");
        text(e, "scopeName") != "PriorityClass"
            || match text(e, "operator") {
                "In" => values.iter().any(|v| v == class),
                "NotIn" => !values.iter().any(|v| v == class),
                "Exists" => !class.is_empty(),
                _ => class.is_empty(),
            }
    });
    by_priority
        && scopes.iter().filter_map(Value::as_str).all(|scope| match scope {
            "BestEffort" => best_effort,
            "NotBestEffort" => !best_effort,
            "Terminating" => terminating,
            "NotTerminating" => !terminating,
            _ => true,
        })
        && entries(quota, "spec.hard").next().is_some()
}
