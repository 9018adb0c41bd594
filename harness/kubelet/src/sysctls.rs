//! Which sysctls a Pod may set: those of its own namespaces that cannot hurt others, and those the node allows.
//! Source: k/k pkg/kubelet/sysctl/{allowlist,safe_sysctls}.go, staging/src/k8s.io/component-helpers/node/util/sysctl.

use podlab_api::{core::Pod, sysctl::is_safe};
use podlab_lifecycle::{spec, status::Verdict};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
}

/// The namespace a sysctl belongs to.
fn namespace(name: &str) -> Option<Namespace> {
    let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."];
    if name == "kernel.sem" || ipc.iter().any(|p| name.starts_with(p)) {
        Some(Namespace::Ipc)
    } else if name.starts_with("net.") {
        Some(Namespace::Net)
    } else {
        None
    }
}

/// Dots for slashes, unless the first separator is a dot already.
fn normalized(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(i) if name.as_bytes()[i] == b'/' => name
            .chars()
            .map(|c| {
                if c == '/' {
                    '.'
                } else if c == '.' {
                    '/'
                } else {
                    c
                }
            })
            .collect(),
        _ => name.to_owned(),
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    let pattern = normalized(pattern);
    pattern.strip_suffix('*').map_or(name == pattern, |prefix| name.starts_with(prefix))
}

/// Lets a Pod in whose sysctls are all allowed.
pub(crate) fn admit(pod: &Pod, allowed: &[String]) -> Result<(), Verdict> {
    let s = spec::pod_spec(pod);
    let host_ipc = s.host_ipc == Some(true);
    for sysctl in s.security_context.iter().flat_map(|c| c.sysctls.iter().flatten()) {
        let name = normalized(&sysctl.name);
        let why = match namespace(&name) {
            _ if !is_safe(&name) && !allowed.iter().any(|p| matches(p, &name)) => "not allowlisted",
            Some(Namespace::Net) if spec::host_network(pod) => "not allowed with host net enabled",
            Some(Namespace::Ipc) if host_ipc => "not allowed with host ipc enabled",
            Some(_) => continue,
            // What belongs to no namespace would change the node.
            None => "not allowlisted",
        };
        let message = format!("forbidden sysctl: \"{name}\" {why}");
        return Err(Verdict { reason: "SysctlForbidden".to_owned(), message, disruption: None });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use podlab_api::core::{PodSecurityContext, PodSpec, Sysctl};

    use super::*;

    fn verdict(name: &str, host_network: bool, allowed: &[&str]) -> Option<String> {
        let sysctls = vec![Sysctl { name: name.to_owned(), value: "1".to_owned() }];
        let pod = Pod {
            spec: Some(PodSpec {
                host_network: Some(host_network),
                security_context: Some(PodSecurityContext { sysctls: Some(sysctls), ..Default::default() }),
                ..PodSpec::default()
            }),
            ..Pod::default()
        };
        let allowed: Vec<String> = allowed.iter().map(|a| (*a).to_owned()).collect();
        admit(&pod, &allowed).err().map(|v| v.message)
    }

    #[test]
    fn only_safe_or_allowed_sysctls_of_the_pods_own_namespaces_are_let_in() {
        assert_eq!(verdict("kernel.shm_rmid_forced", false, &[]), None);
        assert_eq!(verdict("net/ipv4/tcp_syncookies", false, &[]), None);
        assert_eq!(
            verdict("kernel.msgmax", false, &[]).unwrap(),
            "forbidden sysctl: \"kernel.msgmax\" not allowlisted"
        );
        assert_eq!(verdict("kernel.msgmax", false, &["kernel.msg*"]), None);
        assert_eq!(
            verdict("net.ipv4.tcp_syncookies", true, &[]).unwrap(),
            "forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host net enabled"
        );
        assert!(verdict("vm.swappiness", false, &["vm.swappiness"]).is_some());
    }
}
