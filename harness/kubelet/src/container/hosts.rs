//! A Pod's `/etc/hosts`. Source: k/k pkg/kubelet/kubelet_pods.go managedHostsFileContent.

use podlab_api::core::{HostAlias, Pod};
use podlab_lifecycle::spec;

/// The file's contents. `node_hosts` is the node's own file, for Pods on its network.
pub(crate) fn hosts_file(pod: &Pod, ips: &[String], hostname: &str, domain: &str, node_hosts: &str) -> String {
    let aliases = aliases(spec::pod_spec(pod).host_aliases.as_deref().unwrap_or_default());
    if spec::host_network(pod) {
        return format!("# Kubernetes-managed hosts file (host network).\n{node_hosts}{aliases}");
    }
    let mut out = String::from(
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    );
    out.push_str("fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n");
    for ip in ips {
        if domain.is_empty() {
            out.push_str(&format!("{ip}\t{hostname}\n"));
        } else {
            out.push_str(&format!("{ip}\t{hostname}.{domain}\t{hostname}\n"));
        }
    }
    out + &aliases
}

fn aliases(list: &[HostAlias]) -> String {
    if list.is_empty() {
        return String::new();
    }
    let mut out = String::from("\n# Entries added by HostAliases.\n");
    for a in list {
        let names = a.hostnames.as_deref().unwrap_or_default().join("\t");
        out.push_str(&format!("{}\t{names}\n", a.ip));
    }
    out
}
