//! Carrying out one probe. Source: k/k pkg/probe/{exec,http,tcp,grpc}, pkg/kubelet/prober/prober.go.

use std::time::Duration;

use podlab_api::{
    core::{Container, HTTPHeader, Pod, PodStatus, Probe},
    k8s_openapi::apimachinery::pkg::util::intstr::IntOrString,
};

use super::Prober;
use crate::{
    container::expand_static,
    host::{Health, HttpProbe},
};

/// Most output an event carries.
const MAX_OUTPUT: usize = 10 * 1024;
/// Redirects followed on the same host.
const MAX_REDIRECTS: usize = 10;

/// What a probe found.
pub(super) enum Look {
    Success,
    /// Success with something to say.
    Warning(String),
    Failure(String),
    /// The probe could not be carried out.
    Error(String),
}

pub(super) async fn run(
    p: &Prober,
    pod: &Pod,
    c: &Container,
    probe: &Probe,
    status: &PodStatus,
    id: &str,
    timeout: Duration,
) -> Look {
    let ip = status
        .pod_ip
        .clone()
        .or_else(|| p.config.node_ips.first().filter(|_| podlab_lifecycle::spec::host_network(pod)).cloned());
    let ip = ip.unwrap_or_default();
    if let Some(exec) = &probe.exec {
        if podlab_lifecycle::spec::is_deleting(pod) {
            // Upstream asks under the context of the sync that began the probing, which a deletion ends.
            return Look::Error("rpc error: code = Canceled desc = context canceled".to_owned());
        }
        return run_exec(p, c, exec.command.as_deref().unwrap_or_default(), id, timeout).await;
    }
    if let Some(get) = &probe.http_get {
        let Some(port) = port_of(&get.port, c) else {
            return Look::Error(format!("couldn't find port: {}", shown(&get.port)));
        };
        let request = HttpProbe {
            scheme: get.scheme.as_deref().unwrap_or("HTTP").to_lowercase(),
            host: get.host.clone().filter(|h| !h.is_empty()).unwrap_or(ip),
            port,
            path: get.path.clone().filter(|p| !p.is_empty()).unwrap_or_else(|| "/".to_owned()),
            headers: headers(get.http_headers.as_deref()),
        };
        return run_http(p, request, timeout).await;
    }
    if let Some(tcp) = &probe.tcp_socket {
        let Some(port) = port_of(&tcp.port, c) else {
            return Look::Error(format!("couldn't find port: {}", shown(&tcp.port)));
        };
        let host = tcp.host.clone().filter(|h| !h.is_empty()).unwrap_or(ip);
        return match p.host.tcp_dial(&host, port, timeout).await {
            Ok(()) => Look::Success,
            Err(e) => Look::Failure(e),
        };
    }
    if let Some(grpc) = &probe.grpc {
        let Ok(port) = u16::try_from(grpc.port) else { return Look::Error(format!("invalid port {}", grpc.port)) };
        return match p.host.grpc_health(&ip, port, grpc.service.as_deref().unwrap_or_default(), timeout).await {
            Ok(Health::Serving) => Look::Success,
            Ok(Health::Other(n)) => {
                Look::Failure(format!("service unhealthy (responded with \"{}\")", serving_name(n)))
            }
            Err(e) => Look::Failure(e),
        };
    }
    Look::Error(format!("missing probe handler for {}:{}", podlab_lifecycle::spec::pod_label(pod), c.name))
}

fn serving_name(n: i32) -> &'static str {
    match n {
        0 => "UNKNOWN",
        2 => "NOT_SERVING",
        3 => "SERVICE_UNKNOWN",
        _ => "UNRECOGNIZED",
    }
}

async fn run_exec(p: &Prober, c: &Container, command: &[String], id: &str, timeout: Duration) -> Look {
    let command = expand_static(command, c);
    match p.runtime.exec_sync(id, command.clone(), Some(timeout)).await {
        Ok(out) if out.exit_code == 0 => Look::Success,
        Ok(out) => Look::Failure(cut(out.combined().trim())),
        Err(e) if e.code == tonic::Code::DeadlineExceeded => Look::Failure(format!(
            "command timed out: \"{}\" timed out after {}s",
            command.join(" "),
            timeout.as_secs()
        )),
        Err(e) => Look::Error(e.to_string()),
    }
}

async fn run_http(p: &Prober, mut request: HttpProbe, timeout: Duration) -> Look {
    let first = request.url();
    for _ in 0..=MAX_REDIRECTS {
        let answer = match p.host.http_get(&request, timeout).await {
            Ok(a) => a,
            Err(e) => return Look::Failure(format!("Get \"{}\": {e}", request.url())),
        };
        let body = cut(&String::from_utf8_lossy(&answer.body));
        if let (300..=399, Some(location)) = (answer.status, &answer.location) {
            match follow(&request, location) {
                Some(next) => {
                    request = next;
                    continue;
                }
                None => return Look::Warning(format!("Probe terminated redirects, Response body: {body}")),
            }
        }
        return if (200..400).contains(&answer.status) {
            Look::Success
        } else {
            Look::Failure(format!("HTTP probe failed with statuscode: {}", answer.status))
        };
    }
    Look::Failure(format!("Get \"{first}\": stopped after 10 redirects"))
}

/// Where a redirect leads, if it stays on the host.
fn follow(from: &HttpProbe, location: &str) -> Option<HttpProbe> {
    if location.starts_with('/') && !location.starts_with("//") {
        return Some(HttpProbe { path: location.to_owned(), ..from.clone() });
    }
    let uri: http::Uri = location.parse().ok()?;
    let host = uri.host()?;
    if host != from.host {
        return None;
    }
    let scheme = uri.scheme_str().unwrap_or(&from.scheme).to_owned();
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    let path = uri.path_and_query().map_or("/", |p| p.as_str()).to_owned();
    Some(HttpProbe { scheme, port, path, ..from.clone() })
}

/// A port by number, or by the name of one of the container's ports.
pub(crate) fn port_of(port: &IntOrString, c: &Container) -> Option<u16> {
    let number = match port {
        IntOrString::Int(n) => *n,
        IntOrString::String(s) => match s.parse() {
            Ok(n) => n,
            Err(_) => c.ports.iter().flatten().find(|p| p.name.as_deref() == Some(s))?.container_port,
        },
    };
    u16::try_from(number).ok().filter(|n| *n > 0)
}

fn shown(port: &IntOrString) -> String {
    match port {
        IntOrString::Int(n) => n.to_string(),
        IntOrString::String(s) => s.clone(),
    }
}

/// Headers, later ones of a name replacing none: all are sent.
pub(crate) fn headers(list: Option<&[HTTPHeader]>) -> Vec<(String, String)> {
    list.into_iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect()
}

fn cut(s: &str) -> String {
    let end = (0..=s.len().min(MAX_OUTPUT)).rev().find(|i| s.is_char_boundary(*i)).unwrap_or(0);
    s[..end].to_owned()
}
