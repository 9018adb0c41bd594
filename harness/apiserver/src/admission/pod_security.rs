//! PodSecurity: the levels baseline and restricted, by namespace label.
//! Source: k/k staging/src/k8s.io/pod-security-admission/policy.

use podlab_api::ApiError;
use serde_json::Value;

use crate::{
    context::Context,
    errors::forbidden,
    kinds::{Kind, registry},
    server::ApiServer,
    tree::{at, has, int, list, text, yes},
};

impl ApiServer {
    pub(super) fn check_pod_security(
        &self,
        cx: &Context,
        kind: &Kind,
        namespace: Option<&str>,
        pod: &Value,
    ) -> Result<(), ApiError> {
        let namespaces = registry().core("namespaces");
        let Some(found) = namespace.and_then(|ns| self.store.get(&namespaces.key(None, ns))) else { return Ok(()) };
        let labels = at(&found.object.0, "metadata.labels");
        let label = |mode: &str, suffix: &str| {
            let key = format!("pod-security.kubernetes.io/{mode}{suffix}");
            labels.get(&key).and_then(Value::as_str).map(str::to_owned)
        };
        let violations = |mode: &str| {
            let level = label(mode, "")?;
            let version = label(mode, "-version").unwrap_or_else(|| "latest".into());
            let broken = violations(pod, &level);
            (!broken.is_empty()).then(|| format!("\"{level}:{version}\": {}", broken.join(", ")))
        };
        if let Some(text_of) = violations("enforce") {
            let why = format!("violates PodSecurity {text_of}");
            return Err(forbidden(kind, text(pod, "metadata.name"), &why));
        }
        if let Some(text_of) = violations("warn") {
            cx.warn(format!("would violate PodSecurity {text_of}"));
        }
        Ok(())
    }
}

/// The rules of a level that a Pod breaks, in upstream's order and words.
fn violations(pod: &Value, level: &str) -> Vec<String> {
    if !matches!(level, "baseline" | "restricted") {
        return Vec::new();
    }
    let restricted = level == "restricted";
    let mut out = Vec::new();
    baseline(pod, restricted, &mut out);
    if restricted {
        restricted_only(pod, &mut out);
    }
    // Upstream reports by check id; these are the ones of both levels in its order.
    let order = [
        "allowPrivilegeEscalation",
        "unrestricted capabilities",
        "non-default capabilities",
        "host namespaces",
        "hostPath volumes",
        "hostPort",
        "hostProbes",
        "privileged",
        "procMount",
        "restricted volume types",
        "runAsNonRoot",
        "runAsUser",
        "seLinuxOptions",
        "seccompProfile",
        "forbidden sysctls",
        "hostProcess",
    ];
    out.sort_by_key(|v| order.iter().position(|o| v.starts_with(o)).unwrap_or(order.len()));
    out
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["spec.initContainers", "spec.containers", "spec.ephemeralContainers"].into_iter().flat_map(|f| list(pod, f))
}

/// `container "a"` or `containers "a", "b"`.
fn naming(names: &[&str]) -> String {
    let quoted = names.iter().map(|n| format!("{n:?}")).collect::<Vec<_>>().join(", ");
    if names.len() == 1 { format!("container {quoted}") } else { format!("containers {quoted}") }
}

fn offenders(pod: &Value, bad: impl Fn(&Value) -> bool) -> Vec<&str> {
    containers(pod).filter(|c| bad(c)).map(|c| text(c, "name")).collect()
}

fn baseline(pod: &Value, restricted: bool, out: &mut Vec<String>) {
    let spaces: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .iter()
        .filter(|f| yes(pod, &format!("spec.{f}")))
        .map(|f| format!("{f}=true"))
        .collect();
    if !spaces.is_empty() {
        out.push(format!("host namespaces ({})", spaces.join(", ")));
    }
    let privileged = offenders(pod, |c| yes(c, "securityContext.privileged"));
    if !privileged.is_empty() {
        out.push(format!("privileged ({} must not set securityContext.privileged=true)", naming(&privileged)));
    }
    if !restricted {
        const ALLOWED: [&str; 13] = [
            "AUDIT_WRITE",
            "CHOWN",
            "DAC_OVERRIDE",
            "FOWNER",
            "FSETID",
            "KILL",
            "MKNOD",
            "NET_BIND_SERVICE",
            "SETFCAP",
            "SETGID",
            "SETPCAP",
            "SETUID",
            "SYS_CHROOT",
        ];
        let mut added: Vec<&str> = Vec::new();
        let bad = offenders(pod, |c| {
            list(c, "securityContext.capabilities.add")
                .iter()
                .any(|a| !ALLOWED.contains(&a.as_str().unwrap_or_default()))
        });
        for c in containers(pod) {
            added.extend(
                list(c, "securityContext.capabilities.add")
                    .iter()
                    .filter_map(Value::as_str)
                    .filter(|a| !ALLOWED.contains(a)),
            );
        }
        added.sort_unstable();
        added.dedup();
        if !bad.is_empty() {
            let quoted = added.iter().map(|a| format!("{a:?}")).collect::<Vec<_>>().join(", ");
            out.push(format!(
                "non-default capabilities ({} must not include {quoted} in securityContext.capabilities.add)",
                naming(&bad)
            ));
        }
    }
    let host: Vec<&str> =
        list(pod, "spec.volumes").iter().filter(|v| has(v, "hostPath")).map(|v| text(v, "name")).collect();
    if !host.is_empty() {
        let quoted = host.iter().map(|n| format!("{n:?}")).collect::<Vec<_>>().join(", ");
        out.push(format!("hostPath volumes (volume{} {quoted})", if host.len() == 1 { "" } else { "s" }));
    }
    let ports = offenders(pod, |c| list(c, "ports").iter().any(|p| int(p, "hostPort").unwrap_or(0) != 0));
    if !ports.is_empty() {
        let mut numbers: Vec<i64> = containers(pod)
            .flat_map(|c| list(c, "ports"))
            .filter_map(|p| int(p, "hostPort"))
            .filter(|n| *n != 0)
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        let shown = numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
        let plural = if numbers.len() == 1 { "hostPort" } else { "hostPorts" };
        let verb = if ports.len() == 1 { "uses" } else { "use" };
        out.push(format!("hostPort ({} {verb} {plural} {shown})", naming(&ports)));
    }
    let unmasked = offenders(pod, |c| !matches!(text(c, "securityContext.procMount"), "" | "Default"));
    if !unmasked.is_empty() {
        out.push(format!("procMount ({} must not set securityContext.procMount to \"Unmasked\")", naming(&unmasked)));
    }
    if !restricted {
        let unconfined = offenders(pod, |c| text(c, "securityContext.seccompProfile.type") == "Unconfined");
        let whole = text(pod, "spec.securityContext.seccompProfile.type") == "Unconfined";
        if whole || !unconfined.is_empty() {
            let who = if unconfined.is_empty() { "pod".to_owned() } else { naming(&unconfined) };
            out.push(format!(
                "seccompProfile ({who} must not set securityContext.seccompProfile.type to \"Unconfined\")"
            ));
        }
    }
    let unsafe_ones: Vec<&str> = list(pod, "spec.securityContext.sysctls")
        .iter()
        .map(|s| text(s, "name"))
        .filter(|n| !podlab_api::sysctl::is_safe(n))
        .collect();
    if !unsafe_ones.is_empty() {
        out.push(format!("forbidden sysctls ({})", unsafe_ones.join(", ")));
    }
}

fn restricted_only(pod: &Value, out: &mut Vec<String>) {
    let escalating = offenders(pod, |c| at(c, "securityContext.allowPrivilegeEscalation").as_bool() != Some(false));
    if !escalating.is_empty() {
        out.push(format!(
            "allowPrivilegeEscalation != false ({} must set securityContext.allowPrivilegeEscalation=false)",
            naming(&escalating)
        ));
    }
    let undropped = offenders(pod, |c| !list(c, "securityContext.capabilities.drop").iter().any(|d| d == "ALL"));
    let adding =
        offenders(pod, |c| list(c, "securityContext.capabilities.add").iter().any(|a| a != "NET_BIND_SERVICE"));
    let mut parts = Vec::new();
    if !undropped.is_empty() {
        parts.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", naming(&undropped)));
    }
    if !adding.is_empty() {
        let mut names: Vec<String> = containers(pod)
            .flat_map(|c| list(c, "securityContext.capabilities.add"))
            .filter(|a| *a != "NET_BIND_SERVICE")
            .map(Value::to_string)
            .collect();
        names.sort_unstable();
        names.dedup();
        parts.push(format!(
            "{} must not include {} in securityContext.capabilities.add",
            naming(&adding),
            names.join(", ")
        ));
    }
    if !parts.is_empty() {
        out.push(format!("unrestricted capabilities ({})", parts.join("; ")));
    }
    let volumes = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    for volume in list(pod, "spec.volumes") {
        let kind = volume.as_object().into_iter().flatten().map(|(k, _)| k.as_str()).find(|k| *k != "name");
        if let Some(kind) = kind.filter(|k| !volumes.contains(k)) {
            out.push(format!(
                "restricted volume types (volume {:?} uses restricted volume type {kind:?})",
                text(volume, "name")
            ));
        }
    }
    let whole = at(pod, "spec.securityContext.runAsNonRoot").as_bool();
    let explicit = offenders(pod, |c| at(c, "securityContext.runAsNonRoot").as_bool() == Some(false));
    let implicit = offenders(pod, |c| at(c, "securityContext.runAsNonRoot").is_null());
    if !explicit.is_empty() {
        out.push(format!(
            "runAsNonRoot != true ({} must not set securityContext.runAsNonRoot=false)",
            naming(&explicit)
        ));
    } else if whole == Some(false) {
        out.push("runAsNonRoot != true (pod must not set securityContext.runAsNonRoot=false)".into());
    } else if whole.is_none() && !implicit.is_empty() {
        out.push(format!(
            "runAsNonRoot != true (pod or {} must set securityContext.runAsNonRoot=true)",
            naming(&implicit)
        ));
    }
    let root = offenders(pod, |c| int(c, "securityContext.runAsUser") == Some(0));
    let pod_root = int(pod, "spec.securityContext.runAsUser") == Some(0);
    if pod_root || !root.is_empty() {
        let who = match (pod_root, root.is_empty()) {
            (true, true) => "pod".to_owned(),
            (true, false) => format!("pod and {}", naming(&root)),
            (false, _) => naming(&root),
        };
        out.push(format!("runAsUser=0 ({who} must not set runAsUser=0)"));
    }
    let confined = |kind: &str| matches!(kind, "RuntimeDefault" | "Localhost");
    let pod_kind = text(pod, "spec.securityContext.seccompProfile.type");
    let bad = offenders(pod, |c| {
        let kind = text(c, "securityContext.seccompProfile.type");
        !kind.is_empty() && !confined(kind)
    });
    let unset = offenders(pod, |c| text(c, "securityContext.seccompProfile.type").is_empty());
    if !bad.is_empty() {
        out.push(format!(
            "seccompProfile ({} must not set securityContext.seccompProfile.type to \"Unconfined\")",
            naming(&bad)
        ));
    } else if !pod_kind.is_empty() && !confined(pod_kind) {
        out.push("seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")".into());
    } else if pod_kind.is_empty() && !unset.is_empty() {
        out.push(format!(
            "seccompProfile (pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
            naming(&unset)
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn restricted_names_each_violation_of_a_plain_pod() {
        let pod = json!({"spec": {"containers": [{"name": "c"}]}});
        assert_eq!(
            violations(&pod, "restricted").join(", "),
            "allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false), \
             unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"]), \
             runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true), \
             seccompProfile (pod or container \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
        );
        assert!(violations(&pod, "baseline").is_empty());
        assert!(violations(&pod, "privileged").is_empty());
    }

    #[test]
    fn baseline_allows_the_sysctls_a_node_allows_and_no_other() {
        let pod = json!({"spec": {"containers": [{"name": "c"}], "securityContext": {"sysctls": [
            {"name": "net.ipv4.tcp_rmem", "value": "1"}, {"name": "net.ipv4.tcp_wmem", "value": "1"},
            {"name": "kernel.msgmax", "value": "1"}, {"name": "net.netfilter.nf_conntrack_tcp_be_liberal", "value": "1"}]}}});
        assert_eq!(
            violations(&pod, "baseline").join(", "),
            "forbidden sysctls (kernel.msgmax, net.netfilter.nf_conntrack_tcp_be_liberal)"
        );
    }
}
