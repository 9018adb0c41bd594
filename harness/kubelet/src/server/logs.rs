//! `/containerLogs`: which container's log is meant, and reading it. Source: k/k pkg/kubelet/kubelet_pods.go
//! validateContainerLogStatus, staging/src/k8s.io/cri-client/pkg/logs/logs.go.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use podlab_api::{
    core::{ContainerStatus, Pod, PodStatus},
    jiff::Timestamp,
};
use podlab_lifecycle::spec;
use tokio::sync::mpsc;

use super::route::{Body, Query, full, text};
use crate::{agent::Agent, crilog, prober::raw_id};

/// Read at a time.
const CHUNK: usize = 256 * 1024;
/// Chunks on their way to a slow client.
const BUFFER: usize = 8;
/// How long after its last line a follower notices that the container has ended.
const CHECK: Duration = Duration::from_millis(250);
/// Longest line kept together; a longer one is passed on in pieces.
const MAX_LINE: usize = 1 << 20;

/// What a client asks for.
#[derive(Debug, Clone, Default)]
struct Options {
    follow: bool,
    timestamps: bool,
    previous: bool,
    tail: Option<u64>,
    since: Option<Timestamp>,
    limit: Option<u64>,
}

fn options(agent: &Agent, q: &Query) -> Result<Options, String> {
    let number = |name: &str| match q.get(name) {
        None => Ok(None),
        Some(v) => v.parse::<u64>().map(Some).map_err(|_| format!("invalid value for {name}: {v}")),
    };
    let mut since = match q.get("sinceTime") {
        None => None,
        Some(t) => Some(t.parse().map_err(|_| format!("invalid value for sinceTime: {t}"))?),
    };
    if let Some(s) = number("sinceSeconds")? {
        since = agent
            .clock
            .wall()
            .checked_sub(podlab_api::jiff::SignedDuration::from_secs(i64::try_from(s).unwrap_or(i64::MAX)))
            .ok();
    }
    Ok(Options {
        follow: q.on(&["follow"]),
        timestamps: q.on(&["timestamps"]),
        previous: q.on(&["previous"]),
        tail: number("tailLines")?,
        since,
        limit: number("limitBytes")?,
    })
}

/// The id of the container whose log is meant, or upstream's words for why there is none.
///
/// # Errors
/// Those words, as the API passes them on.
pub fn choose(pod: &str, container: &str, status: &PodStatus, previous: bool) -> Result<String, String> {
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let found: Option<&ContainerStatus> = lists.into_iter().flatten().flatten().find(|s| s.name == container);
    let place = format!("container \"{container}\" in pod \"{pod}\"");
    let Some(s) = found else { return Err(format!("{place} is not available")) };
    let last = s
        .last_state
        .as_ref()
        .and_then(|l| l.terminated.as_ref())
        .and_then(|t| t.container_id.clone())
        .filter(|id| !id.is_empty());
    let has_last = s.last_state.as_ref().is_some_and(|l| l.terminated.is_some());
    if previous {
        return last.ok_or_else(|| format!("previous terminated {place} not found"));
    }
    let state = s.state.clone().unwrap_or_default();
    if state.running.is_some() {
        return Ok(s.container_id.clone().unwrap_or_default());
    }
    if let Some(t) = state.terminated {
        let own = t.container_id.filter(|id| !id.is_empty());
        return own.or(last).ok_or_else(|| format!("{place} is terminated"));
    }
    if has_last {
        return last.ok_or_else(|| format!("{place} is terminated"));
    }
    match state.waiting {
        Some(w) => Err(match w.reason.as_deref().unwrap_or_default() {
            "ErrImagePull" => format!("{place} is waiting to start: image can't be pulled"),
            "ImagePullBackOff" => format!("{place} is waiting to start: trying and failing to pull image"),
            reason => format!("{place} is waiting to start: {reason}"),
        }),
        None => Err(format!("{place} is waiting to start - no logs yet")),
    }
}

/// Answers a request for a container's log.
pub(super) async fn answer(agent: &Arc<Agent>, pod: &Pod, container: &str, q: &Query) -> Response<Body> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    if spec::find(pod, container).is_none() {
        return text(StatusCode::NOT_FOUND, format!("container \"{container}\" not found in pod \"{name}\"\n"));
    }
    let options = match options(agent, q) {
        Ok(o) => o,
        Err(e) => return text(StatusCode::BAD_REQUEST, e),
    };
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let status = agent.status.get(uid).or_else(|| pod.status.clone()).unwrap_or_default();
    let id = match choose(name, container, &status, options.previous) {
        Ok(id) => id,
        Err(e) => return text(StatusCode::BAD_REQUEST, e),
    };
    let path = match agent.runtime.container_status(raw_id(&id)).await {
        Ok(s) => PathBuf::from(s.log_path),
        // The container was collected; upstream says so in the body of a successful answer.
        Err(_) => return plain(full(format!("unable to retrieve container logs for {id}"))),
    };
    let (tx, mut rx) = mpsc::channel::<Bytes>(BUFFER);
    let reader = Log { agent: agent.clone(), id: raw_id(&id).to_owned(), path, options, tx };
    let shutdown = agent.shutdown.clone();
    agent.tasks.spawn(async move {
        let _ = shutdown.run_until_cancelled(reader.copy()).await;
    });
    let stream = futures::stream::poll_fn(move |cx| {
        rx.poll_recv(cx).map(|b| b.map(|b| Ok::<_, std::io::Error>(Frame::data(b))))
    });
    plain(StreamBody::new(stream).boxed())
}

fn plain(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain"));
    response
}

struct Log {
    agent: Arc<Agent>,
    id: String,
    path: PathBuf,
    options: Options,
    tx: mpsc::Sender<Bytes>,
}

impl Log {
    /// Copies the log to the client until its end, its limit, or the client's.
    async fn copy(self) {
        let host = self.agent.host.as_ref();
        // Begun before the first read, so that a line written in between wakes it.
        let mut changes =
            self.options.follow.then(|| host.watch(self.path.parent().unwrap_or(std::path::Path::new("/"))));
        let mut at = match self.options.tail {
            Some(lines) => crilog::tail_offset(host, &self.path, lines).unwrap_or(0),
            None => 0,
        };
        let mut left = self.options.limit.unwrap_or(u64::MAX);
        let mut rest: Vec<u8> = Vec::new();
        let mut in_partial = false;
        loop {
            // Asked before reading: what is written between the last read and the end would be lost otherwise.
            let ended = self.options.follow && !self.runs().await;
            let mut moved = false;
            loop {
                let size = host.stat(&self.path).map_or(at, |s| s.size);
                if size < at {
                    at = 0;
                }
                let chunk = host.read_at(&self.path, at, CHUNK).unwrap_or_default();
                if chunk.is_empty() {
                    break;
                }
                moved = true;
                at += chunk.len() as u64;
                rest.extend_from_slice(&chunk);
                let mut out = Vec::new();
                self.render(&mut rest, &mut in_partial, &mut out);
                if u64::try_from(out.len()).unwrap_or(u64::MAX) > left {
                    out.truncate(usize::try_from(left).unwrap_or(0));
                }
                left -= out.len() as u64;
                if !out.is_empty() && self.tx.send(Bytes::from(out)).await.is_err() {
                    return;
                }
                if left == 0 {
                    return;
                }
            }
            if !self.options.follow || (ended && !moved) {
                return;
            }
            if !moved && let Some(changes) = &mut changes {
                tokio::select! {
                    biased;
                    () = self.tx.closed() => return,
                    () = changes.next(CHECK) => {}
                }
            }
        }
    }

    async fn runs(&self) -> bool {
        match self.agent.runtime.container_status(&self.id).await {
            Ok(s) => s.state() == podlab_cri::v1::ContainerState::ContainerRunning,
            Err(_) => false,
        }
    }

    /// Turns the complete lines of `rest` into what the client sees.
    fn render(&self, rest: &mut Vec<u8>, in_partial: &mut bool, out: &mut Vec<u8>) {
        let mut begin = 0;
        while let Some(len) = rest[begin..].iter().position(|b| *b == b'\n') {
            if let Some(line) = crilog::parse(&rest[begin..begin + len]) {
                let late = self.options.since.is_none_or(|s| line.time >= s);
                if late {
                    if self.options.timestamps && !*in_partial {
                        out.extend_from_slice(stamp(line.time).as_bytes());
                        out.push(b' ');
                    }
                    out.extend_from_slice(line.text);
                    if !line.partial {
                        out.push(b'\n');
                    }
                    *in_partial = line.partial;
                }
            }
            begin += len + 1;
        }
        rest.drain(..begin);
        if rest.len() > MAX_LINE {
            rest.clear();
        }
    }
}

/// RFC 3339 with nine digits, as upstream prints it.
fn stamp(t: Timestamp) -> String {
    format!("{t:.9}")
}

#[cfg(test)]
mod tests {
    use podlab_api::core::{ContainerState, ContainerStateTerminated, ContainerStateWaiting};

    use super::*;

    fn status(state: ContainerState, last: Option<&str>) -> PodStatus {
        let last = last.map(|id| ContainerState {
            terminated: Some(ContainerStateTerminated { container_id: Some(id.into()), ..Default::default() }),
            ..Default::default()
        });
        let s = ContainerStatus {
            name: "c".into(),
            container_id: Some("podlab://now".into()),
            state: Some(state),
            last_state: last,
            ..Default::default()
        };
        PodStatus { container_statuses: Some(vec![s]), ..Default::default() }
    }

    fn waiting(reason: &str) -> ContainerState {
        ContainerState {
            waiting: Some(ContainerStateWaiting { reason: Some(reason.into()), message: None }),
            ..Default::default()
        }
    }

    #[test]
    fn the_container_is_chosen_and_refused_in_upstreams_words() {
        let terminated = ContainerState {
            terminated: Some(ContainerStateTerminated {
                container_id: Some("podlab://t".into()),
                ..Default::default()
            }),
            ..Default::default()
        };
        assert_eq!(choose("p", "c", &status(terminated, Some("podlab://l")), false), Ok("podlab://t".into()));
        assert_eq!(
            choose("p", "c", &status(waiting("CrashLoopBackOff"), Some("podlab://l")), false),
            Ok("podlab://l".into())
        );
        assert_eq!(choose("p", "c", &status(waiting("x"), Some("podlab://l")), true), Ok("podlab://l".into()));
        for (reason, expect) in [
            ("ContainerCreating", "container \"c\" in pod \"p\" is waiting to start: ContainerCreating"),
            ("ErrImagePull", "container \"c\" in pod \"p\" is waiting to start: image can't be pulled"),
            ("ImagePullBackOff", "container \"c\" in pod \"p\" is waiting to start: trying and failing to pull image"),
        ] {
            assert_eq!(choose("p", "c", &status(waiting(reason), None), false), Err(expect.into()));
        }
        assert_eq!(
            choose("p", "c", &status(waiting("x"), None), true),
            Err("previous terminated container \"c\" in pod \"p\" not found".into())
        );
        assert_eq!(
            choose("p", "d", &status(waiting("x"), None), false),
            Err("container \"d\" in pod \"p\" is not available".into())
        );
    }
}
