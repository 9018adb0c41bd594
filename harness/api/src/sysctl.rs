//! Sysctls that cannot hurt anybody but their own Pod: allowed by every node and by Pod security's baseline level.
//! Source: k/k pkg/kubelet/sysctl/safe_sysctls.go, k8s.io/pod-security-admission policy/check_sysctls.go (1.32 and later).

const SAFE: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Whether a sysctl, written with dots, is one of them.
pub fn is_safe(name: &str) -> bool {
    SAFE.contains(&name)
}
