//! The network by CNI: the first configuration list of a directory, read anew each time, so that a network installed
//! later is found. Source: containerd internal/cri/server/sandbox_run.go, go-cni.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use async_trait::async_trait;
use podlab_clock::Clock;
use podlab_cni::{
    chain::{Attachment, ConfList, Mode, Runtime},
    types::{CniError, CniResult},
};
use serde_json::{Map, Value, json};

use super::{NetRequest, NetResult, NetworkError, NetworkPlugin};

/// Settings of a [`CniNetwork`].
#[derive(Debug, Clone)]
pub struct CniConfig {
    /// Where configuration lists are.
    pub conf_dir: PathBuf,
    /// Where plugins are, in order.
    pub bin_dirs: Vec<PathBuf>,
    /// Where results are kept between ADD and DEL.
    pub cache_dir: PathBuf,
    /// Exec the plugins, or call bundled ones in process.
    pub mode: Mode,
}

/// A CNI chain as the Pod network.
#[derive(Debug, Clone)]
pub struct CniNetwork {
    conf_dir: PathBuf,
    runtime: Runtime,
    clock: Clock,
}

/// A plugin that takes longer than this for one call is given up on; the sandbox fails and is retried.
const PATIENCE: Duration = Duration::from_secs(110);

impl CniNetwork {
    /// Makes the network; nothing is read yet.
    pub fn new(config: CniConfig, clock: Clock) -> Self {
        let runtime = Runtime { path: config.bin_dirs, cache: config.cache_dir, mode: config.mode };
        Self { conf_dir: config.conf_dir, runtime, clock }
    }

    async fn call<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Runtime, &ConfList) -> Result<T, CniError> + Send + 'static,
    ) -> Result<T, NetworkError> {
        let (runtime, dir) = (self.runtime.clone(), self.conf_dir.clone());
        let call = tokio::task::spawn_blocking(move || {
            let list = ConfList::load_dir(&dir).map_err(|_| NetworkError("cni plugin not initialized".into()))?;
            f(&runtime, &list).map_err(|e| NetworkError(e.to_string()))
        });
        match self.clock.timeout(PATIENCE, call).await {
            Some(Ok(result)) => result,
            Some(Err(e)) => Err(NetworkError(format!("the network plugin failed: {e}"))),
            None => Err(NetworkError("netplugin failed: context deadline exceeded".into())),
        }
    }
}

fn attachment(r: &NetRequest) -> Attachment {
    let mut capabilities = Map::new();
    let mut offer = |name: &str, value: Value| drop(capabilities.insert(name.to_owned(), value));
    if !r.annotations.is_empty() {
        offer("io.kubernetes.cri.pod-annotations", json!(r.annotations));
    }
    if !r.port_mappings.is_empty() {
        let one = |p: &super::PortMapping| json!({"hostPort": p.host_port, "containerPort": p.container_port, "protocol": p.protocol, "hostIP": p.host_ip});
        offer("portMappings", r.port_mappings.iter().map(one).collect());
    }
    if let Some(bandwidth) = bandwidth(r) {
        offer("bandwidth", bandwidth);
    }
    let (servers, searches, options) = &r.dns;
    if !(servers.is_empty() && searches.is_empty() && options.is_empty()) {
        offer("dns", json!({"servers": servers, "searches": searches, "options": options}));
    }
    if !r.cgroup_parent.is_empty() {
        offer("cgroupPath", json!(r.cgroup_parent));
    }
    Attachment {
        container_id: r.sandbox_id.clone(),
        // DEL after the namespace has gone: plugins free what does not need it.
        netns: r.netns.exists().then(|| r.netns.clone()),
        ifname: r.ifname.clone(),
        args: r.cni_args(),
        capabilities,
    }
}

/// The two annotations as the bandwidth plugin's rates (bits a second) and bursts.
fn bandwidth(r: &NetRequest) -> Option<Value> {
    let rate = |key: &str| {
        r.annotations.get(key).and_then(|v| bits(v)).filter(|n| (1_000..=1_000_000_000_000_000).contains(n))
    };
    let (ingress, egress) = (rate("kubernetes.io/ingress-bandwidth"), rate("kubernetes.io/egress-bandwidth"));
    let mut value = Map::new();
    for (name, rate) in [("ingress", ingress), ("egress", egress)] {
        if let Some(rate) = rate {
            value.insert(format!("{name}Rate"), json!(rate));
            value.insert(format!("{name}Burst"), json!(u32::MAX));
        }
    }
    (!value.is_empty()).then_some(Value::Object(value))
}

/// A whole quantity: digits and a suffix.
fn bits(text: &str) -> Option<u64> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let scale: u64 = match &text[at..] {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "P" => 1_000_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    };
    text[..at].parse::<u64>().ok()?.checked_mul(scale)
}

/// Addresses of the Pod's own interface, IPv4 before IPv6.
fn addresses(result: &CniResult, ifname: &str) -> Vec<IpAddr> {
    let ours = |at: Option<usize>| match at.and_then(|i| result.interfaces.get(i)) {
        Some(interface) => interface.name == ifname && !interface.sandbox.is_empty(),
        // Old results do not say which interface an address is on.
        None => true,
    };
    let mut ips: Vec<IpAddr> =
        result.ips.iter().filter(|ip| ours(ip.interface)).filter_map(|ip| ip.parse().ok().map(|p| p.0)).collect();
    ips.sort_by_key(IpAddr::is_ipv6);
    ips
}

#[async_trait]
impl NetworkPlugin for CniNetwork {
    async fn add(&self, request: &NetRequest) -> Result<NetResult, NetworkError> {
        let (attachment, ifname, id) = (attachment(request), request.ifname.clone(), request.sandbox_id.clone());
        let result = self.call(move |runtime, list| runtime.add(list, &attachment)).await?;
        let ips = addresses(&result, &ifname);
        if ips.is_empty() {
            return Err(NetworkError(format!("failed to find network info for sandbox {id:?}")));
        }
        Ok(NetResult { ips, raw: serde_json::to_value(&result).unwrap_or_default() })
    }

    async fn del(&self, request: &NetRequest) -> Result<(), NetworkError> {
        let attachment = attachment(request);
        let deleted = self.call(move |runtime, list| runtime.del(list, &attachment)).await;
        match deleted {
            // Without a configuration nothing was attached by it either.
            Err(e) if e.0 == "cni plugin not initialized" => Ok(()),
            other => other,
        }
    }

    async fn status(&self) -> Result<(), NetworkError> {
        self.call(|runtime, list| runtime.status(list)).await
    }

    async fn gc(&self, valid: &[String]) -> Result<(), NetworkError> {
        let valid: Vec<(String, String)> = valid.iter().map(|id| (id.clone(), "eth0".to_owned())).collect();
        self.call(move |runtime, list| runtime.gc(list, &valid)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_outside_what_the_plugin_takes_are_left_out() {
        for (text, want) in
            [("10M", Some(10_000_000)), ("1Ki", Some(1024)), ("5", Some(5)), ("1.5M", None), ("x", None)]
        {
            assert_eq!(bits(text), want, "{text}");
        }
        let mut r = NetRequest::default();
        r.annotations.insert("kubernetes.io/ingress-bandwidth".into(), "5".into());
        assert_eq!(bandwidth(&r), None);
        r.annotations.insert("kubernetes.io/egress-bandwidth".into(), "1M".into());
        assert_eq!(bandwidth(&r), Some(json!({"egressRate": 1_000_000, "egressBurst": u32::MAX})));
    }

    #[test]
    fn only_the_pods_interface_counts_and_ipv4_comes_first() {
        let result: CniResult = serde_json::from_value(json!({
            "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/x"}],
            "ips": [{"address": "fd00::2/64", "interface": 1}, {"address": "10.1.1.1/16", "interface": 0}, {"address": "10.1.0.2/16", "interface": 1}],
        })).unwrap();
        assert_eq!(addresses(&result, "eth0"), ["10.1.0.2".parse::<IpAddr>().unwrap(), "fd00::2".parse().unwrap()]);
    }
}
