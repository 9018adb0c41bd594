//! Endpoints and EndpointSlices of Services with a selector. Source: k/k pkg/controller/{endpoint,endpointslice}.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use podlab_api::{
    ApiError,
    core::{
        EndpointAddress, EndpointPort as CorePort, EndpointSubset, Endpoints, ObjectReference, Pod, Service,
        ServicePort,
    },
    discovery::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    k8s_openapi::apimachinery::pkg::util::intstr::IntOrString,
    meta::{ObjectMeta, OwnerReference},
};
use podlab_client::{Client, DeleteOptions, reflector::Cache};

use crate::{
    replicaset::ready_since,
    work::{Again, Key, Reconcile},
};

const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslice-controller.k8s.io";

/// The controller.
pub(crate) struct EndpointSlices {
    pub(crate) client: Client,
    pub(crate) pods: Cache<Pod>,
}

/// A Pod as an endpoint: which port numbers it has for the Service's ports.
type Ports = Vec<(String, String, i32, Option<String>)>;

#[async_trait]
impl Reconcile for EndpointSlices {
    fn name(&self) -> &'static str {
        "endpointslice"
    }

    async fn reconcile(&self, (namespace, name): &Key) -> Result<Again, ApiError> {
        let Some(service) = self.client.namespaced::<Service>(namespace).get_opt(name).await? else {
            // The slice has an owner reference; the legacy object is ours to remove.
            ignore_gone(self.client.namespaced::<Endpoints>(namespace).delete(name, &DeleteOptions::default()).await)?;
            return Ok(Again::OnChange);
        };
        let spec = service.spec.clone().unwrap_or_default();
        let Some(selector) = spec.selector.clone().filter(|s| !s.is_empty()) else { return Ok(Again::OnChange) };
        let publish_all = spec.publish_not_ready_addresses.unwrap_or(false);
        let mut by_ports: BTreeMap<Ports, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in self.pods.list() {
            let mine = pod.metadata.namespace.as_ref() == Some(namespace) && matches(&selector, &pod);
            if mine && ip(&pod).is_some() && !is_terminal(&pod) {
                by_ports.entry(ports(&spec.ports.clone().unwrap_or_default(), &pod)).or_default().push(pod);
            }
        }
        // Pods may name their ports differently; each set of numbers is a slice of its own. Most Services have one.
        let mut sets: Vec<(Ports, Vec<Arc<Pod>>)> = by_ports.into_iter().collect();
        if sets.is_empty() {
            sets.push((Vec::new(), Vec::new()));
        }
        for (i, (ports, pods)) in sets.iter().enumerate() {
            let suffix = if i == 0 { String::new() } else { format!("-{i}") };
            self.write_slice(&service, &format!("{name}{suffix}"), ports, pods, publish_all).await?;
        }
        self.write_endpoints(&service, &sets, publish_all).await?;
        Ok(Again::OnChange)
    }
}

fn matches(selector: &BTreeMap<String, String>, pod: &Pod) -> bool {
    selector.iter().all(|(k, v)| pod.metadata.labels.as_ref().and_then(|l| l.get(k)) == Some(v))
}

fn ip(pod: &Pod) -> Option<String> {
    pod.status.as_ref()?.pod_ip.clone().filter(|ip| !ip.is_empty())
}

fn is_terminal(pod: &Pod) -> bool {
    matches!(pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"))
}

/// The Service's ports on a Pod; a port name the Pod does not have is left out.
fn ports(ports: &[ServicePort], pod: &Pod) -> Ports {
    let number = |p: &ServicePort| match &p.target_port {
        None => Some(p.port),
        Some(IntOrString::Int(0)) => Some(p.port),
        Some(IntOrString::Int(n)) => Some(*n),
        Some(IntOrString::String(name)) => {
            let containers =
                pod.spec.iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
            let mut all = containers.flat_map(|c| c.ports.iter().flatten());
            let protocol = p.protocol.as_deref().unwrap_or("TCP");
            let same = |c: &&podlab_api::core::ContainerPort| {
                c.name.as_deref() == Some(name) && c.protocol.as_deref().unwrap_or("TCP") == protocol
            };
            all.find(same).map(|c| c.container_port)
        }
    };
    let entry = |p: &ServicePort| {
        let protocol = p.protocol.clone().unwrap_or_else(|| "TCP".into());
        Some((p.name.clone().unwrap_or_default(), protocol, number(p)?, p.app_protocol.clone()))
    };
    ports.iter().filter_map(entry).collect()
}

fn pod_ref(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".into()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

fn hostname(pod: &Pod, service: &Service) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    (spec.subdomain == service.metadata.name).then(|| spec.hostname.clone()).flatten().filter(|h| !h.is_empty())
}

impl EndpointSlices {
    async fn write_slice(
        &self,
        service: &Service,
        base: &str,
        ports: &Ports,
        pods: &[Arc<Pod>],
        publish_all: bool,
    ) -> Result<(), ApiError> {
        let namespace = service.metadata.namespace.clone().unwrap_or_default();
        let endpoint = |pod: &Arc<Pod>| {
            let ready = ready_since(pod).is_some();
            let terminating = pod.metadata.deletion_timestamp.is_some();
            Endpoint {
                addresses: ip(pod).into_iter().collect(),
                conditions: Some(EndpointConditions {
                    ready: Some(publish_all || ready && !terminating),
                    serving: Some(ready || publish_all),
                    terminating: Some(terminating),
                }),
                hostname: hostname(pod, service),
                node_name: pod.spec.as_ref().and_then(|s| s.node_name.clone()),
                target_ref: Some(pod_ref(pod)),
                ..Endpoint::default()
            }
        };
        let port = |(name, protocol, number, app): &(String, String, i32, Option<String>)| EndpointPort {
            name: Some(name.clone()),
            protocol: Some(protocol.clone()),
            port: Some(*number),
            app_protocol: app.clone(),
        };
        let mut labels = service.metadata.labels.clone().unwrap_or_default();
        labels.insert(SERVICE_NAME.into(), service.metadata.name.clone().unwrap_or_default());
        labels.insert(MANAGED_BY.into(), MANAGER.into());
        if service.spec.as_ref().and_then(|s| s.cluster_ip.as_deref()) == Some("None") {
            labels.insert("service.kubernetes.io/headless".into(), String::new());
        }
        let wanted = EndpointSlice {
            metadata: ObjectMeta {
                name: Some(format!("{base}-podlab")),
                namespace: Some(namespace.clone()),
                labels: Some(labels),
                owner_references: Some(vec![OwnerReference {
                    api_version: "v1".into(),
                    kind: "Service".into(),
                    name: service.metadata.name.clone().unwrap_or_default(),
                    uid: service.metadata.uid.clone().unwrap_or_default(),
                    controller: Some(true),
                    block_owner_deletion: Some(true),
                }]),
                ..ObjectMeta::default()
            },
            address_type: "IPv4".into(),
            endpoints: Some(pods.iter().map(endpoint).collect()),
            ports: Some(ports.iter().map(port).collect()),
        };
        let slices = self.client.namespaced::<EndpointSlice>(&namespace);
        let name = wanted.metadata.name.clone().unwrap_or_default();
        match slices.get_opt(&name).await? {
            None => slices.create(&wanted).await.map(drop),
            Some(old)
                if old.endpoints == wanted.endpoints
                    && old.ports == wanted.ports
                    && old.metadata.labels == wanted.metadata.labels =>
            {
                Ok(())
            }
            Some(old) => {
                let metadata = ObjectMeta {
                    resource_version: old.metadata.resource_version,
                    uid: old.metadata.uid,
                    ..wanted.metadata.clone()
                };
                slices.update(&EndpointSlice { metadata, ..wanted }).await.map(drop)
            }
        }
    }

    async fn write_endpoints(
        &self,
        service: &Service,
        sets: &[(Ports, Vec<Arc<Pod>>)],
        publish_all: bool,
    ) -> Result<(), ApiError> {
        let namespace = service.metadata.namespace.clone().unwrap_or_default();
        let address = |pod: &Arc<Pod>| EndpointAddress {
            ip: ip(pod).unwrap_or_default(),
            hostname: hostname(pod, service),
            node_name: pod.spec.as_ref().and_then(|s| s.node_name.clone()),
            target_ref: Some(pod_ref(pod)),
        };
        let subset = |(ports, pods): &(Ports, Vec<Arc<Pod>>)| {
            let live = pods.iter().filter(|p| p.metadata.deletion_timestamp.is_none());
            let (ready, other): (Vec<_>, Vec<_>) = live.partition(|p| publish_all || ready_since(p).is_some());
            let list =
                |pods: Vec<&Arc<Pod>>| (!pods.is_empty()).then(|| pods.into_iter().map(address).collect::<Vec<_>>());
            let (addresses, not_ready_addresses) = (list(ready), list(other));
            let port = |(name, protocol, number, app): &(String, String, i32, Option<String>)| CorePort {
                name: Some(name.clone()).filter(|n| !n.is_empty()),
                protocol: Some(protocol.clone()),
                port: *number,
                app_protocol: app.clone(),
            };
            let ports = Some(ports.iter().map(port).collect::<Vec<_>>());
            (addresses.is_some() || not_ready_addresses.is_some()).then_some(EndpointSubset {
                addresses,
                not_ready_addresses,
                ports,
            })
        };
        let subsets: Vec<EndpointSubset> = sets.iter().filter_map(subset).collect();
        let subsets = (!subsets.is_empty()).then_some(subsets);
        let api = self.client.namespaced::<Endpoints>(&namespace);
        let name = service.metadata.name.clone().unwrap_or_default();
        match api.get_opt(&name).await? {
            Some(old) if old.subsets == subsets => Ok(()),
            Some(old) => api.update(&Endpoints { subsets, ..old }).await.map(drop),
            None => {
                let metadata =
                    ObjectMeta { name: Some(name), labels: service.metadata.labels.clone(), ..ObjectMeta::default() };
                api.create(&Endpoints { metadata, subsets }).await.map(drop)
            }
        }
    }

    /// The Services whose endpoints a Pod's change concerns: those it matches now or matched before.
    pub(crate) fn concerned(services: &Cache<Service>, pods: [Option<&Arc<Pod>>; 2]) -> Vec<Key> {
        let hit = |s: &Service| {
            let selector = s.spec.as_ref().and_then(|s| s.selector.as_ref()).filter(|s| !s.is_empty());
            pods.into_iter()
                .flatten()
                .any(|p| p.metadata.namespace == s.metadata.namespace && selector.is_some_and(|sel| matches(sel, p)))
        };
        services.list().into_iter().filter(|s| hit(s)).map(|s| crate::work::key_of(&*s)).collect()
    }
}

fn ignore_gone(result: Result<(), ApiError>) -> Result<(), ApiError> {
    match result {
        Err(e) if !e.is_not_found() => Err(e),
        _ => Ok(()),
    }
}
