//! Traces as OTLP in JSON (opentelemetry-proto `ExportTraceServiceRequest`): one trace for each trial, under it its steps and
//! Pods, under a Pod its phases and calls. Ids follow from the run, so a trace that is sent twice is one.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Instant, Span, axis, begin, end, instants, spans};
use crate::{Run, Trial};

/// `Status.StatusCode`.
const OK: u8 = 1;
const ERROR: u8 = 2;
/// `Span.SpanKind`: internal.
const INTERNAL: u8 = 1;

/// One request with all traces.
pub(crate) fn render(run: &Run) -> Result<String, serde_json::Error> {
    let scopes: Vec<Value> = run.trials.iter().filter_map(|t| scope(run, t)).collect();
    serde_json::to_string(&request(run, &scopes))
}

/// A request for each trial, which keeps each small enough for any receiver.
pub(crate) fn requests(run: &Run) -> Result<Vec<String>, serde_json::Error> {
    run.trials.iter().filter_map(|t| scope(run, t)).map(|s| serde_json::to_string(&request(run, &[s]))).collect()
}

fn request(run: &Run, scopes: &[Value]) -> Value {
    let host = run.environment.iter().map(|(k, v)| attribute(&format!("podlab.host.{k}"), v));
    let resource: Vec<Value> =
        [attribute("service.name", "podlab"), attribute("podlab.suite", &run.suite)].into_iter().chain(host).collect();
    json!({"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": scopes}]})
}

fn attribute(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// The first bytes of a digest, as lower-case hexadecimal.
fn id(bytes: usize, parts: &[&str]) -> String {
    let digest =
        parts.iter().fold(Sha256::new(), |d, p| d.chain_update(p.len().to_le_bytes()).chain_update(p)).finalize();
    digest.iter().take(bytes).map(|b| format!("{b:02x}")).collect()
}

fn scope(run: &Run, trial: &Trial) -> Option<Value> {
    if trial.entries.is_empty() {
        return None;
    }
    let at = axis(run, trial);
    let began = run.began.map_or(0, |b| b.unix_ns).to_string();
    let trace = id(16, &[&run.suite, &began, &trial.name]);
    let root = id(8, &[&trace]);
    let span = |span_id: &str,
                parent: &str,
                name: &str,
                (from, to),
                error: Option<&str>,
                attributes: &[Value],
                events: &[Value]| {
        let status = error.map_or(json!({"code": OK}), |why| json!({"code": ERROR, "message": why}));
        json!({"traceId": trace, "spanId": span_id, "parentSpanId": parent, "name": name, "kind": INTERNAL,
            "startTimeUnixNano": at(from).to_string(), "endTimeUnixNano": at(to).to_string(),
            "attributes": attributes, "events": events, "status": status})
    };
    let (from, to) = (begin(trial), end(trial));
    let why = trial.verdict.why().map(|(step, why)| format!("{step}: {why}"));
    let error = (!["passed", "skipped"].contains(&trial.verdict.word())).then(|| why.unwrap_or_default());
    let of_trial = [
        ("podlab.verdict", trial.verdict.word()),
        ("podlab.intent", trial.intent.trim()),
        ("podlab.world", &trial.world),
    ];
    let attributes: Vec<Value> = of_trial.iter().map(|(k, v)| attribute(k, v)).collect();
    let mut out = vec![span(&root, "", &trial.name, (from, to), error.as_deref(), &attributes, &[])];
    let all = instants(trial);
    let mut pods = Vec::new();
    for key in trial.timelines.keys().filter(|k| !k.uid.is_empty()) {
        let pod = id(8, &[&trace, &key.namespace, &key.name, &key.uid]);
        let mine: Vec<&Instant> = all.iter().filter(|i| i.pod == *key).collect();
        let times = mine.iter().map(|i| i.at);
        let (from, to) = (times.clone().min().unwrap_or(from), times.max().unwrap_or(to));
        let events: Vec<Value> = mine.iter().map(|i| event(i, at(i.at))).collect();
        let attributes = [
            attribute("k8s.namespace.name", &key.namespace),
            attribute("k8s.pod.name", &key.name),
            attribute("k8s.pod.uid", &key.uid),
        ];
        out.push(span(&pod, &root, &format!("Pod {}", key.name), (from, to), None, &attributes, &events));
        pods.push((key.clone(), pod));
    }
    for (n, s) in spans(trial).iter().enumerate() {
        let parent = s.pod.as_ref().and_then(|p| pods.iter().find(|(k, _)| k == p)).map_or(&root, |(_, id)| id);
        let attributes: Vec<Value> = s.more.iter().map(|(k, v)| attribute(&format!("podlab.{k}"), v)).collect();
        out.push(span(
            &id(8, &[&trace, &n.to_string()]),
            parent,
            &named(s),
            (s.start, s.end),
            s.error.as_deref(),
            &attributes,
            &[],
        ));
    }
    Some(json!({"scope": {"name": "podlab"}, "spans": out}))
}

/// `cri RunPodSandbox`, `phases sandbox`, `then[1]`.
fn named(s: &Span) -> String {
    match s.row.split_once(": ") {
        Some((_, lane)) => format!("{lane} {}", s.name),
        None => s.name.clone(),
    }
}

fn event(i: &Instant, ns: u64) -> Value {
    let attributes: Vec<Value> = i.more.iter().map(|(k, v)| attribute(&format!("k8s.event.{k}"), v)).collect();
    json!({"timeUnixNano": ns.to_string(), "name": i.name, "attributes": attributes})
}
