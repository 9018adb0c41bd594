//! Which request goes where.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::Incoming;
use podlab_api::core::Pod;
use podlab_cri::v1;
use podlab_lifecycle::spec;
use serde_json::{Value, json};

use super::{logs, metrics, stream, summary};
use crate::{agent::Agent, labels};

/// Bodies of answers.
pub(super) type Body = BoxBody<Bytes, std::io::Error>;

/// A body that is all there.
pub(super) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

/// A plain answer.
pub(super) fn text(status: StatusCode, body: impl Into<String>) -> Response<Body> {
    let mut response = Response::new(full(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn json_answer(value: &Value) -> Response<Body> {
    let mut response = Response::new(full(value.to_string()));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

/// An answer in the text format of metrics.
fn measured(body: String) -> Response<Body> {
    let mut response = text(StatusCode::OK, body);
    let kind = header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8; escaping=underscores");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Query parameters; the last of a name wins, except that `command` and `port` are kept in order.
pub(super) struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    fn parse(raw: &str) -> Self {
        let decode = |s: &str| percent_decode(&s.replace('+', " "));
        let pairs = raw
            .split('&')
            .filter(|p| !p.is_empty())
            .map(|p| p.split_once('=').unwrap_or((p, "")))
            .map(|(k, v)| (decode(k), decode(v)));
        Self { pairs: pairs.collect() }
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().rev().find(|(k, _)| k == name).map(|(_, v)| v.as_str()).filter(|v| !v.is_empty())
    }

    pub(super) fn all(&self, name: &str) -> Vec<String> {
        self.pairs.iter().filter(|(k, _)| k == name).map(|(_, v)| v.clone()).collect()
    }

    /// Whether any of these is set to something true.
    pub(super) fn on(&self, names: &[&str]) -> bool {
        names.iter().any(|n| matches!(self.get(n), Some("1" | "true" | "True" | "TRUE" | "t")))
    }
}

fn percent_decode(s: &str) -> String {
    let bytes = s.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = (bytes[i] == b'%').then(|| bytes.get(i + 1..i + 3)).flatten();
        match hex.and_then(|h| std::str::from_utf8(h).ok()).and_then(|h| u8::from_str_radix(h, 16).ok()) {
            Some(b) => {
                out.push(b);
                i += 3;
            }
            None => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Answers one request.
pub(super) async fn answer(agent: Arc<Agent>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let parts: Vec<String> = path.trim_matches('/').split('/').map(percent_decode).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let get = request.method() == Method::GET;
    match parts.as_slice() {
        ["healthz", ..] => text(StatusCode::OK, "ok"),
        ["pods"] if get => json_answer(&pod_list(&agent)),
        ["runningpods"] if get => json_answer(&running_pods(&agent).await),
        ["configz"] if get => json_answer(&agent.config.show()),
        ["stats", "summary"] => json_answer(&summary::summary(&agent, query.on(&["only_cpu_and_memory"])).await),
        ["metrics"] if get => measured(metrics::own(&agent).await),
        ["metrics", "resource"] if get => measured(metrics::resource(&agent).await),
        ["metrics", "cadvisor"] if get => measured(metrics::cadvisor(&agent).await),
        ["metrics", "probes"] if get => measured(metrics::probes(&agent)),
        ["checkpoint", namespace, pod, container] => checkpoint(&agent, namespace, pod, container, request.method()),
        ["containerLogs", namespace, pod, container] if get => match agent.workers.find(namespace, pod) {
            Some(p) => logs::answer(&agent, &p, container, &query).await,
            None => text(StatusCode::NOT_FOUND, format!("pod \"{pod}\" not found\n")),
        },
        ["exec", namespace, pod, rest @ ..] => {
            with_container(&agent, namespace, pod, rest, request, query, Kind::Exec).await
        }
        ["attach", namespace, pod, rest @ ..] => {
            with_container(&agent, namespace, pod, rest, request, query, Kind::Attach).await
        }
        ["run", namespace, pod, rest @ ..] => run(&agent, namespace, pod, rest, &query).await,
        ["portForward", namespace, pod, ..] => forward(&agent, namespace, pod, request, &query).await,
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Exec,
    Attach,
}

/// The id of a container that runs, by the last status.
fn running(agent: &Agent, pod: &Pod, container: &str) -> Option<String> {
    let status = agent.status.get(pod.metadata.uid.as_deref()?)?;
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let found = lists.into_iter().flatten().flatten().find(|s| s.name == container)?.clone();
    found.state.as_ref().filter(|s| s.running.is_some())?;
    found.container_id.map(|id| crate::prober::raw_id(&id).to_owned())
}

/// `[uid/]container`.
fn container_of<'a>(rest: &[&'a str]) -> Option<&'a str> {
    match rest {
        [container] | [_, container] => Some(container),
        _ => None,
    }
}

async fn with_container(
    agent: &Arc<Agent>,
    namespace: &str,
    pod: &str,
    rest: &[&str],
    request: Request<Incoming>,
    query: Query,
    kind: Kind,
) -> Response<Body> {
    let Some(container) = container_of(rest) else { return text(StatusCode::NOT_FOUND, "404 page not found\n") };
    let Some(p) = agent.workers.find(namespace, pod) else {
        return text(StatusCode::NOT_FOUND, format!("pod does not exist: {pod}_{namespace}\n"));
    };
    let Some(id) = running(agent, &p, container) else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, format!("container not found (\"{container}\")"));
    };
    let tty = query.on(&["tty"]);
    let (stdin, stdout, stderr) =
        (query.on(&["input", "stdin"]), query.on(&["output", "stdout"]), query.on(&["error", "stderr"]) && !tty);
    if !stdin && !stdout && !stderr {
        return text(StatusCode::BAD_REQUEST, "you must specify at least 1 of stdin, stdout, stderr");
    }
    let url = match kind {
        Kind::Exec => {
            agent
                .runtime
                .exec(v1::ExecRequest { container_id: id, cmd: query.all("command"), tty, stdin, stdout, stderr })
                .await
        }
        Kind::Attach => {
            let declared = spec::find(&p, container).is_some_and(|(_, c)| c.tty == Some(true));
            agent
                .runtime
                .attach(v1::AttachRequest {
                    container_id: id,
                    stdin,
                    tty: declared,
                    stdout,
                    stderr: stderr && !declared,
                })
                .await
        }
    };
    match url {
        Ok(url) => stream::splice(agent, &url, request).await,
        Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    }
}

async fn forward(
    agent: &Arc<Agent>,
    namespace: &str,
    pod: &str,
    request: Request<Incoming>,
    query: &Query,
) -> Response<Body> {
    let Some(p) = agent.workers.find(namespace, pod) else {
        return text(StatusCode::NOT_FOUND, format!("pod does not exist: {pod}_{namespace}\n"));
    };
    let uid = p.metadata.uid.clone().unwrap_or_default();
    let filter = v1::PodSandboxFilter {
        label_selector: [(labels::POD_UID.to_owned(), uid)].into(),
        state: Some(v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady.into() }),
        ..Default::default()
    };
    let sandboxes = match agent.runtime.list_pod_sandbox(filter).await {
        Ok(s) => s,
        Err(e) => return text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    };
    let Some(sandbox) = sandboxes.into_iter().max_by_key(|s| s.created_at) else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, format!("sandbox of pod \"{pod}\" not found"));
    };
    let port = query
        .all("port")
        .iter()
        .flat_map(|p| p.split(',').map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|p| p.parse().ok())
        .collect();
    match agent.runtime.port_forward(v1::PortForwardRequest { pod_sandbox_id: sandbox.id, port }).await {
        Ok(url) => stream::splice(agent, &url, request).await,
        Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    }
}

async fn run(agent: &Arc<Agent>, namespace: &str, pod: &str, rest: &[&str], query: &Query) -> Response<Body> {
    let Some(container) = container_of(rest) else { return text(StatusCode::NOT_FOUND, "404 page not found\n") };
    let id = agent.workers.find(namespace, pod).and_then(|p| running(agent, &p, container));
    let Some(id) = id else { return text(StatusCode::NOT_FOUND, format!("container not found (\"{container}\")")) };
    let cmd: Vec<String> = query.get("cmd").unwrap_or_default().split_whitespace().map(str::to_owned).collect();
    match agent.runtime.exec_sync(&id, cmd, None).await {
        Ok(out) => text(StatusCode::OK, out.combined()),
        Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()),
    }
}

fn pod_list(agent: &Agent) -> Value {
    let items: Vec<Value> = agent
        .workers
        .pods()
        .iter()
        .map(|p| {
            let mut p = (**p).clone();
            if let Some(s) = p.metadata.uid.as_deref().and_then(|u| agent.status.get(u)) {
                p.status = Some(s);
            }
            serde_json::to_value(p).unwrap_or_default()
        })
        .collect();
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
}

/// Pods the runtime runs, as far as it knows them. Source: k/k pkg/kubelet/container/runtime.go ToAPIPod.
async fn running_pods(agent: &Agent) -> Value {
    let running = v1::ContainerFilter {
        state: Some(v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning.into() }),
        ..Default::default()
    };
    let mut pods: BTreeMap<(String, String, String), Vec<Value>> = BTreeMap::new();
    for c in agent.runtime.list_containers(running).await.unwrap_or_default() {
        let text = |k: &str| c.labels.get(k).cloned().unwrap_or_default();
        let key = (text(labels::POD_NAMESPACE), text(labels::POD_NAME), text(labels::POD_UID));
        let image = c.image.as_ref().map(|i| i.image.clone()).unwrap_or_default();
        pods.entry(key)
            .or_default()
            .push(json!({"name": text(labels::CONTAINER_NAME), "image": image, "resources": {}}));
    }
    let items: Vec<Value> = pods
        .into_iter()
        .map(|((namespace, name, uid), containers)| {
            json!({"metadata": {"name": name, "namespace": namespace, "uid": uid}, "spec": {"containers": containers}, "status": {}})
        })
        .collect();
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
}

/// Checkpoints are refused in the words upstream has for a runtime that cannot make them.
fn checkpoint(agent: &Agent, namespace: &str, pod: &str, container: &str, method: &Method) -> Response<Body> {
    if *method != Method::POST {
        return text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
    }
    let Some(found) = agent.workers.find(namespace, pod) else {
        return text(StatusCode::NOT_FOUND, "pod does not exist\n");
    };
    if spec::find(&found, container).is_none() {
        return text(StatusCode::NOT_FOUND, format!("container {container} does not exist\n"));
    }
    let why = "checkpointing of this container is not supported: the runtime does not implement CheckpointContainer";
    text(StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n"))
}

/// Pods by namespace and name, for metrics.
pub(super) fn by_name(pods: &[Arc<Pod>]) -> BTreeMap<(String, String), Arc<Pod>> {
    let text = |v: &Option<String>| v.clone().unwrap_or_default();
    pods.iter().map(|p| ((text(&p.metadata.namespace), text(&p.metadata.name)), p.clone())).collect()
}
