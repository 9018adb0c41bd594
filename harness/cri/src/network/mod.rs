//! Where the bridge asks for a Pod's network. The implementation ([`CniNetwork`] in a real node) is handed in by
//! whoever composes.

mod cni;

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use async_trait::async_trait;

pub use cni::{CniConfig, CniNetwork};

/// Why there is no network; the text ends up in the Pod's events.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NetworkError(pub String);

/// A port of the node that leads into the Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortMapping {
    /// On the node.
    pub host_port: u16,
    /// In the Pod.
    pub container_port: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: &'static str,
    /// Address of the node; empty: all.
    pub host_ip: String,
}

/// One attachment: a sandbox's namespace and what the plugins shall know of its Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetRequest {
    /// `CNI_CONTAINERID`.
    pub sandbox_id: String,
    /// `CNI_NETNS`.
    pub netns: PathBuf,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `K8S_POD_NAMESPACE`.
    pub pod_namespace: String,
    /// `K8S_POD_NAME`.
    pub pod_name: String,
    /// `K8S_POD_UID`.
    pub pod_uid: String,
    /// The Pod's annotations.
    pub annotations: BTreeMap<String, String>,
    /// Capability `portMappings`; only those with a host port.
    pub port_mappings: Vec<PortMapping>,
    /// Capability `dns`: servers, searches, options.
    pub dns: (Vec<String>, Vec<String>, Vec<String>),
    /// The Pod's cgroup.
    pub cgroup_parent: String,
}

impl NetRequest {
    /// `CNI_ARGS` as containerd writes them. Source: containerd internal/cri/server/sandbox_run.go.
    pub fn cni_args(&self) -> Vec<(String, String)> {
        [
            ("IgnoreUnknown", "1"),
            ("K8S_POD_NAMESPACE", &self.pod_namespace),
            ("K8S_POD_NAME", &self.pod_name),
            ("K8S_POD_INFRA_CONTAINER_ID", &self.sandbox_id),
            ("K8S_POD_UID", &self.pod_uid),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .to_vec()
    }
}

/// What an attachment got.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NetResult {
    /// Addresses of the Pod's interface, the preferred one first. Empty: none (the sandbox then has no address).
    pub ips: Vec<IpAddr>,
    /// The CNI result as it is, for the verbose status.
    pub raw: serde_json::Value,
}

/// A Pod network. Calls may be made at the same time for different sandboxes.
#[async_trait]
pub trait NetworkPlugin: Send + Sync + std::fmt::Debug {
    /// Attaches a sandbox. After an error the caller calls [`NetworkPlugin::del`].
    async fn add(&self, request: &NetRequest) -> Result<NetResult, NetworkError>;
    /// Detaches a sandbox; what is not attached is success.
    async fn del(&self, request: &NetRequest) -> Result<(), NetworkError>;
    /// Whether [`NetworkPlugin::add`] can work.
    async fn status(&self) -> Result<(), NetworkError>;
    /// Frees what belongs to no sandbox of the list (ids).
    async fn gc(&self, _valid: &[String]) -> Result<(), NetworkError> {
        Ok(())
    }
}

/// No network but loopback: for tests and benches of the runtime alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoopbackOnly;

#[async_trait]
impl NetworkPlugin for LoopbackOnly {
    async fn add(&self, _: &NetRequest) -> Result<NetResult, NetworkError> {
        Ok(NetResult::default())
    }

    async fn del(&self, _: &NetRequest) -> Result<(), NetworkError> {
        Ok(())
    }

    async fn status(&self) -> Result<(), NetworkError> {
        Ok(())
    }
}

/// A node whose network is not configured: every Pod with a network of its own fails, and NetworkReady is false.
#[derive(Debug, Clone, Copy, Default)]
pub struct NotConfigured;

#[async_trait]
impl NetworkPlugin for NotConfigured {
    async fn add(&self, _: &NetRequest) -> Result<NetResult, NetworkError> {
        Err(NetworkError("cni plugin not initialized".into()))
    }

    async fn del(&self, _: &NetRequest) -> Result<(), NetworkError> {
        Ok(())
    }

    async fn status(&self) -> Result<(), NetworkError> {
        Err(NetworkError("cni plugin not initialized".into()))
    }
}
