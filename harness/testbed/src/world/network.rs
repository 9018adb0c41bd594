//! The network of the virtual world: addresses, who listens on them, and where Services lead.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use podlab_api::{core::Service, discovery::EndpointSlice};
use podlab_client::{Client, ListOptions};
use podlab_cri::{NetRequest, NetResult, NetworkError, NetworkPlugin};
use podlab_kubelet::{Health, HttpAnswer, HttpProbe, fake::Dialer};

use crate::spec::address;

/// What a listener answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

/// A process that listens on a port.
pub(super) trait Listener: Send + Sync {
    /// Answers a GET.
    fn get(&self, path: &str) -> Answer;
}

#[derive(Default)]
struct State {
    listeners: BTreeMap<(String, u16), Arc<dyn Listener>>,
    /// Address → sandbox.
    leases: BTreeMap<Ipv4Addr, String>,
    /// The address handed out last, by node.
    last: BTreeMap<u8, u8>,
}

/// The network that all nodes share.
#[derive(Default)]
pub(super) struct Network {
    state: Mutex<State>,
    client: OnceLock<Client>,
}

impl Network {
    /// Tells it where Services are to be looked up.
    pub(super) fn know(&self, client: Client) {
        // A second world has a network of its own.
        let _ = self.client.set(client);
    }

    /// Addresses in use on a node.
    pub(super) fn leases(&self, node: u8) -> Vec<Ipv4Addr> {
        self.state.lock().leases.keys().copied().filter(|ip| ip.octets()[2] == node).collect()
    }

    fn lease(&self, node: u8, sandbox: &str, wanted: Option<Ipv4Addr>) -> Result<Ipv4Addr, NetworkError> {
        let mut state = self.state.lock();
        let [a, b, c, _] = address::pod_network(node).octets();
        if let Some(ip) = wanted {
            if state.leases.contains_key(&ip) {
                return Err(NetworkError(format!("requested IP address {ip} is not available in range set")));
            }
            state.leases.insert(ip, sandbox.to_owned());
            return Ok(ip);
        }
        let last = state.last.get(&node).copied().unwrap_or(1);
        // One after the other and around, as host-local hands them out; .0, .1 and .255 are not for Pods.
        let ring = (last.saturating_add(1)..=254).chain(2..=last);
        let free = ring.map(|d| Ipv4Addr::new(a, b, c, d)).find(|ip| !state.leases.contains_key(ip));
        let ip = free.ok_or_else(|| NetworkError("no IP addresses available in range set".into()))?;
        state.last.insert(node, ip.octets()[3]);
        state.leases.insert(ip, sandbox.to_owned());
        Ok(ip)
    }

    /// Frees what a sandbox had; what it had not is fine.
    pub(super) fn forget(&self, sandbox: &str) {
        let mut state = self.state.lock();
        let gone: Vec<Ipv4Addr> = state.leases.iter().filter(|(_, s)| *s == sandbox).map(|(ip, _)| *ip).collect();
        for ip in gone {
            state.leases.remove(&ip);
            let text = ip.to_string();
            state.listeners.retain(|(at, _), _| *at != text);
        }
    }

    /// Who answers at an address; behind a Service the first ready endpoint does.
    async fn find(&self, ip: &str, port: u16) -> Option<Arc<dyn Listener>> {
        if let Some(l) = self.state.lock().listeners.get(&(ip.to_owned(), port)) {
            return Some(l.clone());
        }
        let (ip, port) = self.endpoint(ip, port).await?;
        self.state.lock().listeners.get(&(ip, port)).cloned()
    }

    async fn endpoint(&self, ip: &str, port: u16) -> Option<(String, u16)> {
        let client = self.client.get()?;
        let (services, _) = client.all::<Service>().list(&ListOptions::default()).await.ok()?;
        let service =
            services.into_iter().find(|s| s.spec.as_ref().and_then(|s| s.cluster_ip.as_deref()) == Some(ip))?;
        let name = service.metadata.name?;
        let wanted = service.spec?.ports.into_iter().flatten().find(|p| p.port == i32::from(port))?;
        let options = ListOptions {
            label_selector: Some(format!("kubernetes.io/service-name={name}")),
            ..ListOptions::default()
        };
        let slices = client.namespaced::<EndpointSlice>(service.metadata.namespace.as_deref()?).list(&options).await;
        for slice in slices.ok()?.0 {
            let port = slice
                .ports
                .into_iter()
                .flatten()
                .find(|p| p.name.as_deref().unwrap_or_default() == wanted.name.as_deref().unwrap_or_default());
            let mut endpoints = slice.endpoints.into_iter().flatten();
            let ready = endpoints.find(|e| e.conditions.as_ref().is_none_or(|c| c.ready != Some(false)));
            if let (Some(port), Some(endpoint)) = (port.and_then(|p| p.port), ready)
                && let Some(ip) = endpoint.addresses.first()
            {
                return Some((ip.clone(), u16::try_from(port).ok()?));
            }
        }
        None
    }
}

/// A process's place in the network.
#[derive(Clone)]
pub(super) struct Attachment {
    pub(super) network: Arc<Network>,
    /// The Pod's address; empty without a network of its own (then it is the node's).
    pub(super) ip: String,
    pub(super) namespace: String,
}

/// An open port; dropping it closes it.
pub(super) struct Open {
    network: Arc<Network>,
    at: (String, u16),
}

impl Drop for Open {
    fn drop(&mut self) {
        self.network.state.lock().listeners.remove(&self.at);
    }
}

impl Attachment {
    /// Listens; `None` when the port is taken.
    pub(super) fn listen(&self, port: u16, listener: Arc<dyn Listener>) -> Option<Open> {
        let at = (self.ip.clone(), port);
        let mut state = self.network.state.lock();
        if state.listeners.contains_key(&at) {
            return None;
        }
        state.listeners.insert(at.clone(), listener);
        drop(state);
        Some(Open { network: self.network.clone(), at })
    }

    /// The addresses of a name: itself, this host, or a Service by any of its names.
    pub(super) async fn lookup(&self, name: &str) -> Result<Vec<String>, String> {
        if name.parse::<IpAddr>().is_ok() {
            return Ok(vec![name.to_owned()]);
        }
        if name == "localhost" {
            return Ok(vec![self.ip.clone()]);
        }
        let unknown = || "failed to lookup address information: Name does not resolve".to_owned();
        let client = self.network.client.get().ok_or_else(unknown)?;
        let mut parts = name.trim_end_matches('.').split('.');
        let service = parts.next().unwrap_or_default();
        let namespace = parts.next().unwrap_or(&self.namespace);
        let found = client.namespaced::<Service>(namespace).get_opt(service).await.map_err(|_| unknown())?;
        let ip = found.and_then(|s| s.spec).and_then(|s| s.cluster_ip).ok_or_else(unknown)?;
        Ok(vec![ip])
    }

    /// GETs a path.
    pub(super) async fn get(&self, ip: &str, port: u16, path: &str) -> Result<Answer, String> {
        match self.network.find(ip, port).await {
            Some(l) => Ok(l.get(path)),
            None => Err("Connection refused (os error 111)".into()),
        }
    }

    /// Opens and closes a connection.
    pub(super) async fn dial(&self, ip: &str, port: u16) -> Result<(), String> {
        let found = self.network.find(ip, port).await;
        found.map(drop).ok_or_else(|| "Connection refused (os error 111)".to_owned())
    }
}

/// Probes of the node agent.
#[async_trait]
impl Dialer for Network {
    async fn http_get(&self, probe: &HttpProbe, _timeout: Duration) -> Result<HttpAnswer, String> {
        match self.find(&probe.host, probe.port).await {
            Some(l) => {
                let a = l.get(&probe.path);
                Ok(HttpAnswer { status: a.status, location: None, body: a.body })
            }
            None => Err(format!("dial tcp {}:{}: connect: connection refused", probe.host, probe.port)),
        }
    }

    async fn tcp_dial(&self, host: &str, port: u16, _timeout: Duration) -> Result<(), String> {
        let found = self.find(host, port).await;
        found.map(drop).ok_or_else(|| format!("dial tcp {host}:{port}: connect: connection refused"))
    }

    async fn grpc_health(&self, host: &str, port: u16, _service: &str, timeout: Duration) -> Result<Health, String> {
        Err(format!(
            "timeout: failed to connect service \"{host}:{port}\" within {}s: context deadline exceeded",
            timeout.as_secs()
        ))
    }
}

/// The CNI of one node, which the runtime calls.
pub(super) struct NodeNetwork {
    pub(super) network: Arc<Network>,
    pub(super) index: u8,
}

impl std::fmt::Debug for NodeNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeNetwork").field("index", &self.index).finish_non_exhaustive()
    }
}

#[async_trait]
impl NetworkPlugin for NodeNetwork {
    async fn add(&self, r: &NetRequest) -> Result<NetResult, NetworkError> {
        let asked = r.annotations.get("cni.projectcalico.org/ipAddrs");
        let wanted = asked.and_then(|v| serde_json::from_str::<Vec<Ipv4Addr>>(v).ok()?.first().copied());
        let ip = self.network.lease(self.index, &r.sandbox_id, wanted)?;
        Ok(NetResult { ips: vec![ip.into()], raw: serde_json::Value::Null })
    }

    async fn del(&self, r: &NetRequest) -> Result<(), NetworkError> {
        self.network.forget(&r.sandbox_id);
        Ok(())
    }

    async fn status(&self) -> Result<(), NetworkError> {
        Ok(())
    }
}
