//! Plugins that complete Pods: ServiceAccount, Priority, DefaultTolerationSeconds, RuntimeClass; and warnings.
//! Source: k/k plugin/pkg/admission/{serviceaccount,priority,defaulttolerationseconds,runtimeclass}.

use std::{sync::Arc, time::Duration};

use podlab_api::ApiError;
use podlab_store::Stored;
use serde_json::{Value, json};

use crate::{
    context::Context,
    errors::forbidden,
    kinds::{Kind, registry},
    server::ApiServer,
    tree::{at, each_mut, entries, has, int, list, list_at, map_at, put, text, yes},
};

const TOKEN_MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// How long a Pod waits for the `default` account of a new namespace. Source: serviceaccount/admission.go: 10 × 100 ms.
const ACCOUNT_WAIT: Duration = Duration::from_secs(1);

impl ApiServer {
    pub(super) async fn admit_service_account(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        pod: &mut Value,
    ) -> Result<(), ApiError> {
        // A mirror Pod stands for a static one and uses nothing of the API.
        if at(pod, "metadata.annotations").get("kubernetes.io/config.mirror").is_some() {
            return Ok(());
        }
        if text(pod, "spec.serviceAccountName").is_empty() {
            put(pod, "spec.serviceAccountName", "default");
        }
        let name = text(pod, "spec.serviceAccountName").to_owned();
        put(pod, "spec.serviceAccount", name.as_str());
        let Some(account) = self.find_account(namespace, &name).await else {
            let ns = namespace.unwrap_or_default();
            let why = format!("error looking up service account {ns}/{name}: serviceaccount {name:?} not found");
            return Err(forbidden(kind, text(pod, "metadata.name"), &why));
        };
        let account = &account.object.0;
        if list(pod, "spec.imagePullSecrets").is_empty() && !list(account, "imagePullSecrets").is_empty() {
            put(pod, "spec.imagePullSecrets", at(account, "imagePullSecrets").clone());
        }
        let wanted = at(pod, "spec.automountServiceAccountToken").as_bool();
        let wanted = wanted.or_else(|| at(account, "automountServiceAccountToken").as_bool()).unwrap_or(true);
        if wanted {
            self.mount_token(pod);
        }
        Ok(())
    }

    /// The account; the `default` one of a namespace that was just made is waited for.
    async fn find_account(&self, namespace: Option<&str>, name: &str) -> Option<Arc<Stored>> {
        let kind = registry().core("serviceaccounts");
        let key = kind.key(namespace, name);
        let found = self.store.get(&key);
        if found.is_some() || name != "default" {
            return found;
        }
        let mut watch = self.store.watch(&key, None).ok()?;
        // It may have come between the look and the watch.
        if let Some(found) = self.store.get(&key) {
            return Some(found);
        }
        let event = self.clock.timeout(ACCOUNT_WAIT, watch.next()).await.flatten()?;
        event.ok()?;
        self.store.get(&key)
    }

    fn mount_token(&self, pod: &mut Value) {
        let existing = list(pod, "spec.volumes")
            .iter()
            .map(|v| text(v, "name"))
            .find(|n| n.starts_with("kube-api-access-"))
            .map(str::to_owned);
        let fresh = existing.is_none();
        let name = existing.unwrap_or_else(|| format!("kube-api-access-{}", self.rng.name_suffix(5)));
        let mut mounted = false;
        for field in ["spec.initContainers", "spec.containers"] {
            for container in each_mut(pod, field) {
                if list(container, "volumeMounts").iter().any(|m| text(m, "mountPath") == TOKEN_MOUNT) {
                    continue;
                }
                let mount = json!({"name": name, "readOnly": true, "mountPath": TOKEN_MOUNT});
                list_at(container, "volumeMounts").push(mount);
                mounted = true;
            }
        }
        if mounted && fresh {
            list_at(pod, "spec.volumes").push(json!({"name": name, "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [{"path": "namespace",
                    "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
            ]}}));
        }
    }

    pub(super) fn admit_priority(&self, kind: &Kind, pod: &mut Value) -> Result<(), ApiError> {
        let Some(classes) = registry().by_plural("scheduling.k8s.io", "v1", "priorityclasses") else { return Ok(()) };
        let pod_name = text(pod, "metadata.name").to_owned();
        let name = text(pod, "spec.priorityClassName").to_owned();
        let class = if name.is_empty() {
            self.default_priority(classes)
        } else {
            let found = self.store.get(&classes.key(None, &name));
            let missing = || forbidden(kind, &pod_name, &format!("no PriorityClass with name {name} was found"));
            Some(found.ok_or_else(missing)?)
        };
        let (value, policy) = class.as_ref().map_or((0, "PreemptLowerPriority".to_owned()), |c| {
            (int(&c.object.0, "value").unwrap_or(0), text(&c.object.0, "preemptionPolicy").to_owned())
        });
        if let (true, Some(class)) = (name.is_empty(), &class) {
            put(pod, "spec.priorityClassName", class.object.name());
        }
        if let Some(given) = int(pod, "spec.priority").filter(|g| *g != value) {
            let why = format!(
                "the integer value of priority ({given}) must not be provided in pod spec; priority admission \
                 controller computed {value} from the given PriorityClass name"
            );
            return Err(forbidden(kind, &pod_name, &why));
        }
        put(pod, "spec.priority", value);
        let given = text(pod, "spec.preemptionPolicy").to_owned();
        if given.is_empty() {
            put(pod, "spec.preemptionPolicy", policy);
        } else if given != policy {
            let why = format!(
                "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission \
                 controller computed {policy} from the given PriorityClass name"
            );
            return Err(forbidden(kind, &pod_name, &why));
        }
        Ok(())
    }

    /// The global default class of lowest value.
    fn default_priority(&self, classes: &Kind) -> Option<Arc<Stored>> {
        let listing = self.store.list(&classes.prefix, None).ok()?;
        let defaults = listing.items.into_iter().map(|(_, s)| s).filter(|s| yes(&s.object.0, "globalDefault"));
        defaults.min_by_key(|s| int(&s.object.0, "value"))
    }

    pub(super) fn admit_runtime_class(&self, kind: &Kind, pod: &mut Value) -> Result<(), ApiError> {
        let name = text(pod, "spec.runtimeClassName").to_owned();
        if name.is_empty() {
            return Ok(());
        }
        let pod_name = text(pod, "metadata.name").to_owned();
        let Some(classes) = registry().by_plural("node.k8s.io", "v1", "runtimeclasses") else { return Ok(()) };
        let Some(class) = self.store.get(&classes.key(None, &name)) else {
            return Err(forbidden(kind, &pod_name, &format!("pod rejected: RuntimeClass {name:?} not found")));
        };
        let class = &class.object.0;
        let overhead = at(class, "overhead.podFixed");
        if overhead.is_object() {
            if has(pod, "spec.overhead") && at(pod, "spec.overhead") != overhead {
                let why = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
                return Err(forbidden(kind, &pod_name, why));
            }
            put(pod, "spec.overhead", overhead.clone());
        }
        for (key, value) in entries(class, "scheduling.nodeSelector") {
            let selector = map_at(pod, "spec.nodeSelector");
            if selector.get(key).is_some_and(|v| v != value) {
                let why = format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; pod.spec.nodeSelector[{key}] = {}",
                    selector[key]
                );
                return Err(forbidden(kind, &pod_name, &why));
            }
            selector.insert(key.clone(), value.clone());
        }
        for toleration in list(class, "scheduling.tolerations") {
            let held = list_at(pod, "spec.tolerations");
            if !held.contains(toleration) {
                held.push(toleration.clone());
            }
        }
        Ok(())
    }
}

/// A Pod stays 300 s on a node that is not ready or unreachable.
pub(super) fn default_tolerations(pod: &mut Value) {
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerated = list(pod, "spec.tolerations").iter().any(|t| {
            let (k, effect) = (text(t, "key"), text(t, "effect"));
            (k == key || (k.is_empty() && text(t, "operator") == "Exists")) && matches!(effect, "" | "NoExecute")
        });
        if !tolerated {
            list_at(pod, "spec.tolerations").push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300,
            }));
        }
    }
}

/// What upstream warns about. Source: k/k pkg/api/pod/warnings.go.
pub(super) fn warn(cx: &Context, pod: &Value) {
    let name = text(pod, "metadata.name");
    if !crate::names::dns_label(name).is_empty() {
        let rules = crate::names::dns_label(name);
        cx.warn(format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label \
             is recommended: {rules:?}"
        ));
    }
    for field in ["initContainers", "containers"] {
        for (i, container) in list(pod, &format!("spec.{field}")).iter().enumerate() {
            let mut seen = std::collections::BTreeSet::new();
            for (j, variable) in list(container, "env").iter().enumerate() {
                let name = text(variable, "name");
                if !seen.insert(name) {
                    cx.warn(format!("spec.{field}[{i}].env[{j}]: hides previous definition of {name:?}, which may be dropped when using apply"));
                }
            }
        }
    }
}
