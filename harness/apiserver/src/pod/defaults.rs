//! Pod defaulting. Source: k/k pkg/apis/core/v1/defaults.go.

use serde_json::{Value, json};

use crate::tree::{at, each_mut, fill, fill_text, get_mut, has, list, map, text, yes};

/// Fills a Pod.
pub(crate) fn pod(pod: &mut Value) {
    if let Some(spec) = get_mut(pod, "spec") {
        pod_spec(spec);
        // Only Pods themselves, not templates, copy limits to requests.
        for field in ["containers", "initContainers"] {
            for container in each_mut(spec, field) {
                requests_from_limits(container);
            }
        }
        if text(spec, "serviceAccountName").is_empty() && !text(spec, "serviceAccount").is_empty() {
            let name = at(spec, "serviceAccount").clone();
            map(spec).insert("serviceAccountName".into(), name);
        }
        fill(spec, "enableServiceLinks", true);
    }
    let labels = at(pod, "metadata.labels").clone();
    if let Some(spec) = get_mut(pod, "spec") {
        fold_match_labels(spec, &labels);
    }
}

/// Fills the spec of a Pod or of a template.
pub(crate) fn pod_spec(spec: &mut Value) {
    fill_text(spec, "restartPolicy", "Always");
    fill_text(spec, "dnsPolicy", "ClusterFirst");
    fill_text(spec, "schedulerName", "default-scheduler");
    fill(spec, "terminationGracePeriodSeconds", 30);
    fill(spec, "securityContext", json!({}));
    if !text(spec, "serviceAccountName").is_empty() {
        let name = at(spec, "serviceAccountName").clone();
        map(spec).insert("serviceAccount".into(), name);
    }
    let host_network = yes(spec, "hostNetwork");
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        for container in each_mut(spec, field) {
            container_defaults(container, host_network);
        }
    }
    for volume in each_mut(spec, "volumes") {
        volume_defaults(volume);
    }
    for constraint in each_mut(spec, "topologySpreadConstraints") {
        fill_text(constraint, "whenUnsatisfiable", "DoNotSchedule");
    }
}

fn container_defaults(container: &mut Value, host_network: bool) {
    fill_text(container, "imagePullPolicy", pull_policy(text(container, "image")));
    fill_text(container, "terminationMessagePath", "/dev/termination-log");
    fill_text(container, "terminationMessagePolicy", "File");
    fill(container, "resources", json!({}));
    for port in each_mut(container, "ports") {
        fill_text(port, "protocol", "TCP");
        if host_network && !has(port, "hostPort") {
            let number = at(port, "containerPort").clone();
            map(port).insert("hostPort".into(), number);
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = get_mut(container, probe) {
            for (field, value) in
                [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
            {
                // Zero means unset in upstream's structs.
                if at(probe, field).as_i64().unwrap_or(0) == 0 {
                    map(probe).insert(field.into(), value.into());
                }
            }
            http_get(probe);
            if let Some(grpc) = get_mut(probe, "grpc") {
                fill(grpc, "service", "");
            }
        }
    }
    for hook in ["lifecycle.postStart", "lifecycle.preStop"] {
        if let Some(hook) = get_mut(container, hook) {
            http_get(hook);
        }
    }
    for env in each_mut(container, "env") {
        if let Some(field) = get_mut(env, "valueFrom.fieldRef") {
            fill_text(field, "apiVersion", "v1");
        }
    }
}

fn http_get(handler: &mut Value) {
    if let Some(get) = get_mut(handler, "httpGet") {
        fill_text(get, "path", "/");
        fill_text(get, "scheme", "HTTP");
    }
}

/// `Always` for `latest` and untagged images, else `IfNotPresent`.
pub(crate) fn pull_policy(image: &str) -> &'static str {
    if image.contains('@') {
        return "IfNotPresent";
    }
    let last = image.rsplit('/').next().unwrap_or(image);
    match last.split_once(':') {
        None | Some((_, "latest" | "")) => "Always",
        Some(_) => "IfNotPresent",
    }
}

fn requests_from_limits(container: &mut Value) {
    let limits = at(container, "resources.limits").clone();
    let Some(limits) = limits.as_object().filter(|l| !l.is_empty()) else { return };
    let requests = crate::tree::map_at(container, "resources.requests");
    for (name, quantity) in limits {
        requests.entry(name.clone()).or_insert_with(|| quantity.clone());
    }
}

const MODE: i64 = 0o644;

fn volume_defaults(volume: &mut Value) {
    let source = map(volume).keys().any(|k| k != "name");
    if !source {
        fill(volume, "emptyDir", json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = get_mut(volume, source) {
            fill(source, "defaultMode", MODE);
        }
    }
    for item in each_mut(volume, "downwardAPI.items") {
        if let Some(field) = get_mut(item, "fieldRef") {
            fill_text(field, "apiVersion", "v1");
        }
    }
    for source in each_mut(volume, "projected.sources") {
        if let Some(token) = get_mut(source, "serviceAccountToken") {
            fill(token, "expirationSeconds", 3600);
        }
        for item in each_mut(source, "downwardAPI.items") {
            if let Some(field) = get_mut(item, "fieldRef") {
                fill_text(field, "apiVersion", "v1");
            }
        }
    }
    if let Some(host) = get_mut(volume, "hostPath") {
        fill(host, "type", "");
    }
    if let Some(image) = get_mut(volume, "image") {
        let policy = pull_policy(text(image, "reference"));
        fill_text(image, "pullPolicy", policy);
    }
    if let Some(template) = get_mut(volume, "ephemeral.volumeClaimTemplate.spec") {
        fill_text(template, "volumeMode", "Filesystem");
    }
}

/// Folds matchLabelKeys and mismatchLabelKeys of affinity terms into their label selectors, as at create.
fn fold_match_labels(spec: &mut Value, labels: &Value) {
    for side in ["podAffinity", "podAntiAffinity"] {
        let required = format!("affinity.{side}.requiredDuringSchedulingIgnoredDuringExecution");
        for term in each_mut(spec, &required) {
            fold_term(term, labels);
        }
        let preferred = format!("affinity.{side}.preferredDuringSchedulingIgnoredDuringExecution");
        for weighted in each_mut(spec, &preferred) {
            if let Some(term) = get_mut(weighted, "podAffinityTerm") {
                fold_term(term, labels);
            }
        }
    }
    for constraint in each_mut(spec, "topologySpreadConstraints") {
        fold_keys(constraint, labels, "matchLabelKeys", "In");
    }
}

fn fold_term(term: &mut Value, labels: &Value) {
    fold_keys(term, labels, "matchLabelKeys", "In");
    fold_keys(term, labels, "mismatchLabelKeys", "NotIn");
}

fn fold_keys(term: &mut Value, labels: &Value, keys: &str, operator: &str) {
    if !has(term, "labelSelector") {
        return;
    }
    for key in list(term, keys).to_vec() {
        let Some(value) = key.as_str().and_then(|k| labels.get(k)) else { continue };
        let expression = json!({"key": key, "operator": operator, "values": [value]});
        let expressions = crate::tree::list_at(term, "labelSelector.matchExpressions");
        if !expressions.contains(&expression) {
            expressions.push(expression);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pull_policy_follows_the_tag() {
        for (image, policy) in [
            ("a", "Always"),
            ("a:latest", "Always"),
            ("r:5000/a", "Always"),
            ("r:5000/a:1", "IfNotPresent"),
            ("a@sha256:00", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
    }

    #[test]
    fn defaulting_twice_changes_nothing_more() {
        let mut once = json!({"metadata": {"labels": {"a": "b"}}, "spec": {
            "volumes": [{"name": "v"}, {"name": "s", "secret": {"secretName": "x"}}],
            "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}},
                "livenessProbe": {"httpGet": {"port": 80}}, "ports": [{"containerPort": 80}]}]}});
        pod(&mut once);
        let mut twice = once.clone();
        pod(&mut twice);
        assert_eq!(once, twice);
        let c = &once["spec"]["containers"][0];
        assert_eq!(c["resources"]["requests"]["cpu"], "1");
        assert_eq!(c["livenessProbe"]["httpGet"]["path"], "/");
        assert_eq!(once["spec"]["volumes"][0]["emptyDir"], json!({}));
    }
}
