//! Cluster DNS in the plane: the server, and the `kube-dns` Service that leads to it.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};

use podlab_api::{ApiError, core::Service, discovery::EndpointSlice};
use podlab_client::Client;
use podlab_clock::Clock;
use podlab_services::dns::Dns;
use serde_json::json;

use super::Failure;
use crate::spec::address;

const NAME: &str = "kube-dns";
const NAMESPACE: &str = "kube-system";

/// Binds the server's sockets.
pub(super) fn server(client: &Client, clock: Clock) -> std::io::Result<Dns> {
    let udp = UdpSocket::bind((address::DNS, 53))?;
    let tcp = TcpListener::bind((address::DNS, 53))?;
    let host = |name: &str, ip: Ipv4Addr| (name.to_owned(), ip);
    let hosts =
        vec![host("registry.test", address::REGISTRY), host("private.registry.test", address::PRIVATE_REGISTRY)];
    Ok(Dns::new(client.clone(), clock, address::DOMAIN, hosts, udp, tcp))
}

/// Makes the Service at the tenth address of the range, with the server as its endpoint. Twice is once.
pub(crate) async fn ensure_service(client: &Client) -> Result<(), Failure> {
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {"k8s-app": NAME, "kubernetes.io/name": "CoreDNS"}},
        "spec": {"clusterIP": address::DNS_SERVICE, "ports": [
            {"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]},
    }))?;
    there(client.namespaced::<Service>(NAMESPACE).create(&service).await)?;
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": "kube-dns-plane", "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address::DNS], "conditions": {"ready": true}}],
        "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}],
    }))?;
    there(client.namespaced::<EndpointSlice>(NAMESPACE).create(&slice).await)
}

fn there<T>(result: Result<T, ApiError>) -> Result<(), Failure> {
    match result {
        Err(e) if !e.is_already_exists() => Err(e.into()),
        _ => Ok(()),
    }
}
