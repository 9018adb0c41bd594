//! From a manifest file to a static Pod. Source: k/k pkg/kubelet/config/{common,file}.go, pkg/apis/core/v1/defaults.go.

use std::{collections::BTreeMap, path::Path};

use podlab_api::{
    Object,
    core::{Container, Pod, PodSpec, Probe, Toleration},
};
use podlab_lifecycle::spec::{CONFIG_HASH, CONFIG_SOURCE};
use sha2::{Digest, Sha256};

use super::{FullName, full_name};
use crate::{agent::Agent, host::FileKind, labels::CONFIG_SEEN};

/// Largest manifest read, bytes.
const MAX_FILE: usize = 1 << 20;
/// Most manifests read.
const MAX_FILES: usize = 256;

/// Why a manifest is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ManifestError {
    #[error("read it")]
    Read(#[source] std::io::Error),
    #[error("it has more than {MAX_FILE} bytes")]
    TooLarge,
    #[error("parse it: {0}")]
    Parse(String),
    #[error("it is a {0}, not a Pod")]
    Kind(String),
    #[error("it names no Pod")]
    NoName,
    #[error("it has no containers")]
    NoContainers,
    #[error("static pods may not reference {0}")]
    Reference(&'static str),
}

/// Reads all manifests; those that cannot be used are logged and left out. An absent directory holds none.
pub(super) fn read_all(agent: &Agent, dir: &Path) -> BTreeMap<FullName, Pod> {
    let names = match agent.host.list(dir) {
        Ok(n) => n,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            tracing::warn!(dir = %dir.display(), %error, "static Pods not read");
            // What runs stays: an unreadable directory is no order to end it.
            return agent.statics.running.lock().iter().map(|(k, p)| (k.clone(), (**p).clone())).collect();
        }
    };
    let mut out = BTreeMap::new();
    for name in names.iter().filter(|n| !n.starts_with('.')).take(MAX_FILES) {
        let path = dir.join(name);
        if agent.host.stat(&path).is_ok_and(|s| s.kind != FileKind::File) {
            continue;
        }
        match read_one(agent, &path) {
            Ok(pod) => {
                let key = full_name(&pod);
                if let Some(other) = out.insert(key.clone(), pod) {
                    tracing::warn!(path = %path.display(), pod = key.1, "duplicate pod name, ignoring");
                    out.insert(key, other);
                }
            }
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(path = %path.display(), error, "manifest not used");
            }
        }
    }
    out
}

fn chain(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |s| format!("{error}: {s}"))
}

fn read_one(agent: &Agent, path: &Path) -> Result<Pod, ManifestError> {
    let bytes = agent.host.read_at(path, 0, MAX_FILE + 1).map_err(ManifestError::Read)?;
    if bytes.len() > MAX_FILE {
        return Err(ManifestError::TooLarge);
    }
    let mut pod = parse(&bytes, &agent.config.node_name, path)?;
    let seen = agent.clock.wall().to_string();
    pod.metadata.annotations.get_or_insert_default().insert(CONFIG_SEEN.to_owned(), seen);
    Ok(pod)
}

/// A static Pod of a node, from the text of its manifest.
pub(super) fn parse(bytes: &[u8], node: &str, path: &Path) -> Result<Pod, ManifestError> {
    let text = std::str::from_utf8(bytes).map_err(|e| ManifestError::Parse(e.to_string()))?;
    let tree: serde_json::Value = serde_saphyr::from_str(text).map_err(|e| ManifestError::Parse(e.to_string()))?;
    let kind = tree["kind"].as_str().unwrap_or_default().to_owned();
    if kind != "Pod" {
        return Err(ManifestError::Kind(kind));
    }
    let canonical = tree.to_string();
    let mut pod: Pod = Object(tree).to_typed().map_err(|e| ManifestError::Parse(e.to_string()))?;
    let name = pod.metadata.name.as_deref().filter(|n| !n.is_empty()).ok_or(ManifestError::NoName)?;
    pod.metadata.name = Some(format!("{}-{}", name.to_lowercase(), node.to_lowercase()));
    pod.metadata.namespace.get_or_insert_with(|| "default".to_owned());
    let spec = pod.spec.as_mut().filter(|s| !s.containers.is_empty()).ok_or(ManifestError::NoContainers)?;
    if let Some(what) = api_reference(spec) {
        return Err(ManifestError::Reference(what));
    }
    let uid = pod.metadata.uid.clone().filter(|u| !u.is_empty()).unwrap_or_else(|| {
        let mut hash = Sha256::new();
        hash.update(format!("host:{node}\nfile:{}\n{canonical}", path.display()));
        hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect()
    });
    spec.node_name = Some(node.to_owned());
    spec.tolerations.get_or_insert_default().push(Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    });
    defaults(spec);
    let notes = pod.metadata.annotations.get_or_insert_default();
    notes.insert(CONFIG_HASH.to_owned(), uid.clone());
    notes.insert(CONFIG_SOURCE.to_owned(), "file".to_owned());
    pod.metadata.uid = Some(uid);
    pod.metadata.resource_version = None;
    pod.status = None;
    Ok(pod)
}

/// What a static Pod must do without: it runs where there may be no API.
fn api_reference(s: &PodSpec) -> Option<&'static str> {
    if s.service_account_name.as_deref().is_some_and(|n| !n.is_empty()) {
        return Some("serviceaccounts");
    }
    for c in s.init_containers.iter().flatten().chain(&s.containers) {
        let env = || c.env.iter().flatten().filter_map(|e| e.value_from.as_ref());
        let from = || c.env_from.iter().flatten();
        if env().any(|v| v.config_map_key_ref.is_some()) || from().any(|f| f.config_map_ref.is_some()) {
            return Some("configmaps");
        }
        if env().any(|v| v.secret_key_ref.is_some()) || from().any(|f| f.secret_ref.is_some()) {
            return Some("secrets");
        }
    }
    if s.image_pull_secrets.as_ref().is_some_and(|l| !l.is_empty()) {
        return Some("secrets");
    }
    s.volumes.iter().flatten().find_map(|v| {
        let sources = || v.projected.iter().flat_map(|p| p.sources.iter().flatten());
        if v.config_map.is_some() || sources().any(|p| p.config_map.is_some()) {
            Some("configmaps")
        } else if v.secret.is_some() || sources().any(|p| p.secret.is_some()) {
            Some("secrets")
        } else if v.persistent_volume_claim.is_some() {
            Some("persistentvolumeclaims")
        } else if sources().any(|p| p.service_account_token.is_some()) {
            Some("serviceaccounts")
        } else {
            None
        }
    })
}

/// The defaults the API would have filled in.
fn defaults(s: &mut PodSpec) {
    let text = |v: &mut Option<String>, default: &str| {
        v.get_or_insert_with(|| default.to_owned());
    };
    text(&mut s.restart_policy, "Always");
    text(&mut s.dns_policy, "ClusterFirst");
    text(&mut s.scheduler_name, "default-scheduler");
    s.termination_grace_period_seconds.get_or_insert(30);
    s.enable_service_links.get_or_insert(true);
    s.security_context.get_or_insert_default();
    if s.priority_class_name.as_deref() == Some("system-node-critical") {
        s.priority.get_or_insert(podlab_lifecycle::resources::NODE_CRITICAL_PRIORITY);
    } else if s.priority_class_name.as_deref() == Some("system-cluster-critical") {
        s.priority.get_or_insert(podlab_lifecycle::resources::CRITICAL_PRIORITY);
    }
    let host_network = s.host_network == Some(true);
    for c in s.init_containers.iter_mut().flatten().chain(&mut s.containers) {
        container_defaults(c, host_network);
    }
}

fn container_defaults(c: &mut Container, host_network: bool) {
    let image = c.image.clone().unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    let latest = !image.contains('@') && last.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    c.image_pull_policy.get_or_insert_with(|| if latest { "Always" } else { "IfNotPresent" }.to_owned());
    c.termination_message_path.get_or_insert_with(|| "/dev/termination-log".to_owned());
    c.termination_message_policy.get_or_insert_with(|| "File".to_owned());
    for p in c.ports.iter_mut().flatten() {
        p.protocol.get_or_insert_with(|| "TCP".to_owned());
        if host_network {
            p.host_port.get_or_insert(p.container_port);
        }
    }
    if let Some(r) = &mut c.resources
        && let Some(limits) = r.limits.clone()
    {
        let requests = r.requests.get_or_insert_default();
        for (k, v) in limits {
            requests.entry(k).or_insert(v);
        }
    }
    for probe in [&mut c.liveness_probe, &mut c.readiness_probe, &mut c.startup_probe].into_iter().flatten() {
        probe_defaults(probe);
    }
}

fn probe_defaults(p: &mut Probe) {
    p.timeout_seconds.get_or_insert(1);
    p.period_seconds.get_or_insert(10);
    p.success_threshold.get_or_insert(1);
    p.failure_threshold.get_or_insert(3);
    if let Some(get) = &mut p.http_get {
        get.path.get_or_insert_with(|| "/".to_owned());
        get.scheme.get_or_insert_with(|| "HTTP".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Pod, ManifestError> {
        parse(text.as_bytes(), "Node-1", Path::new("/m/a.yaml"))
    }

    #[test]
    fn a_manifest_becomes_a_pod_of_this_node_with_a_uid_that_stands_for_its_text() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: Web}\nspec:\n  containers: [{name: c, image: 'r.test:5000/a/b'}]\n";
        let p = read(text).unwrap();
        assert_eq!(p.metadata.name.as_deref(), Some("web-node-1"));
        assert_eq!(p.metadata.namespace.as_deref(), Some("default"));
        let uid = p.metadata.uid.clone().unwrap();
        assert_eq!(uid.len(), 32);
        assert_eq!(read(text).unwrap().metadata.uid.unwrap(), uid);
        assert_ne!(read(&text.replace("name: c", "name: d")).unwrap().metadata.uid.unwrap(), uid);
        assert!(podlab_lifecycle::spec::is_static(&p));
        let s = p.spec.unwrap();
        assert_eq!(s.node_name.as_deref(), Some("Node-1"));
        assert_eq!(s.containers[0].image_pull_policy.as_deref(), Some("Always"));
        assert_eq!(s.tolerations.unwrap()[0].effect.as_deref(), Some("NoExecute"));
    }

    #[test]
    fn what_is_no_pod_or_needs_the_api_is_refused_and_nothing_panics() {
        for (bad, why) in [
            ("", "not a Pod"),
            ("{", "parse"),
            ("kind: ConfigMap", "ConfigMap"),
            ("kind: Pod", "names no Pod"),
            ("kind: Pod\nmetadata: {name: a}\nspec: {containers: []}", "no containers"),
            (
                "kind: Pod\nmetadata: {name: a}\nspec: {serviceAccountName: x, containers: [{name: c}]}",
                "serviceaccounts",
            ),
            (
                "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, envFrom: [{secretRef: {name: s}}]}]}",
                "secrets",
            ),
            (
                "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c}], volumes: [{name: v, configMap: {name: x}}]}",
                "configmaps",
            ),
            ("kind: Pod\nmetadata: [1]\n", "parse"),
        ] {
            let text = read(bad).unwrap_err().to_string();
            assert!(text.contains(why), "{bad:?}: {text}");
        }
    }
}
