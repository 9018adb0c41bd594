//! The HTTP side: tokens, upgrades, and which protocol a client is given.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use podlab_clock::Clock;
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};

use super::{
    StreamRequest,
    peer::{ERROR, ErrorFormat, Out, Peer, RESIZE, STDERR, STDIN, STDOUT, parse_size},
    ports::Target,
    process::{self, Wanted},
    spdy, websocket,
};
use crate::{error::Error, runtime::Runtime};

/// How long a client may take to open all streams of a session.
const CREATION: Duration = Duration::from_secs(30);
const PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// Remote command protocols over SPDY, the best first.
const SPDY_PROTOCOLS: [&str; 4] = ["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

type Answer = Response<Full<Bytes>>;

/// Serves connections for outstanding requests until the listener fails.
pub(crate) async fn serve(runtime: Arc<Runtime>, listener: TcpListener) -> Result<(), Error> {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted.map_err(Error::io("accept a streaming connection"))?;
                let _ = stream.set_nodelay(true);
                connections.spawn(connection(Arc::clone(&runtime), stream));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// One connection: a request, then perhaps a session in its place.
async fn connection(runtime: Arc<Runtime>, stream: tokio::net::TcpStream) {
    let (sessions, mut begun) = mpsc::channel::<(OnUpgrade, Plan)>(1);
    let http = {
        let runtime = Arc::clone(&runtime);
        let service = service_fn(move |mut request: Request<Incoming>| {
            let (runtime, sessions) = (Arc::clone(&runtime), sessions.clone());
            async move {
                let answer = match plan(&runtime, &request) {
                    Ok((answer, plan)) => {
                        let _ = sessions.send((hyper::upgrade::on(&mut request), plan)).await;
                        answer
                    }
                    Err(answer) => answer,
                };
                Ok::<_, std::convert::Infallible>(answer)
            }
        });
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades()
    };
    let session = async {
        if let Some((upgrade, plan)) = begun.recv().await
            && let Ok(upgraded) = upgrade.await
        {
            play(runtime, TokioIo::new(upgraded), plan).await;
        }
    };
    let _ = tokio::join!(http, session);
}

/// What was agreed with a client.
struct Plan {
    request: StreamRequest,
    wire: Wire,
    /// From the query, for the old WebSocket port forward.
    ports: Vec<u16>,
}

enum Wire {
    WebSocket(&'static str),
    Spdy(&'static str),
}

#[expect(clippy::result_large_err, reason = "an answer that ends the exchange is as good as an error")]
fn plan(runtime: &Arc<Runtime>, request: &Request<Incoming>) -> Result<(Answer, Plan), Answer> {
    let mut path = request.uri().path().trim_matches('/').splitn(2, '/');
    let (kind, token) = (path.next().unwrap_or_default(), path.next().unwrap_or_default());
    if !matches!(*request.method(), Method::GET | Method::POST) {
        return Err(plain(StatusCode::METHOD_NOT_ALLOWED, "method not allowed"));
    }
    let wanted = runtime.tokens.take(token).filter(|r| match r {
        StreamRequest::Exec { .. } => kind == "exec",
        StreamRequest::Attach { .. } => kind == "attach",
        StreamRequest::PortForward { .. } => kind == "portforward",
    });
    let wanted = wanted.ok_or_else(|| plain(StatusCode::NOT_FOUND, "404 page not found"))?;
    let forward = matches!(wanted, StreamRequest::PortForward { .. });
    let headers = request.headers();
    let ports = query_ports(request.uri().query().unwrap_or_default());
    let upgrade = header_text(headers, &header::UPGRADE).to_ascii_lowercase();
    let (wire, extra) = if upgrade == "websocket" {
        let offered = header_text(headers, &header::SEC_WEBSOCKET_PROTOCOL);
        let chosen = if forward {
            websocket::choose(&offered, &[TUNNEL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io"])
        } else {
            websocket::choose_channel(&offered)
        };
        let protocol = chosen.ok_or_else(|| plain(StatusCode::BAD_REQUEST, "no supported WebSocket protocol"))?;
        let key = websocket::accept_key(&header_text(headers, &header::SEC_WEBSOCKET_KEY));
        let mut extra = vec![(header::SEC_WEBSOCKET_ACCEPT, key)];
        if !protocol.is_empty() {
            extra.push((header::SEC_WEBSOCKET_PROTOCOL, protocol.to_owned()));
        }
        (Wire::WebSocket(protocol), extra)
    } else if upgrade.starts_with("spdy/3.1") {
        let supported: &[&'static str] = if forward { &["portforward.k8s.io"] } else { &SPDY_PROTOCOLS };
        let offered = header_text(headers, &PROTOCOL);
        let Some(protocol) = websocket::choose(&offered, supported) else {
            let mut answer = plain(
                StatusCode::FORBIDDEN,
                &format!(
                    "unable to upgrade: unable to negotiate protocol: client supports [{offered}], server supports {supported:?}"
                ),
            );
            for p in supported {
                answer.headers_mut().append("x-accepted-stream-protocol-versions", HeaderValue::from_static(p));
            }
            return Err(answer);
        };
        let extra = if protocol.is_empty() { Vec::new() } else { vec![(PROTOCOL, protocol.to_owned())] };
        (Wire::Spdy(protocol), extra)
    } else {
        return Err(plain(StatusCode::BAD_REQUEST, "unable to upgrade: missing upgrade headers in request"));
    };
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let name = if matches!(wire, Wire::Spdy(_)) { "SPDY/3.1" } else { "websocket" };
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    answer.headers_mut().insert(header::UPGRADE, HeaderValue::from_static(name));
    for (name, value) in extra {
        if let Ok(value) = HeaderValue::from_str(&value) {
            answer.headers_mut().insert(name, value);
        }
    }
    Ok((answer, Plan { request: wanted, wire, ports }))
}

fn plain(status: StatusCode, text: &str) -> Answer {
    let mut answer = Response::new(Full::from(Bytes::from(format!("{text}\n"))));
    *answer.status_mut() = status;
    answer
}

/// All values of a header, joined.
fn header_text(headers: &HeaderMap, name: &HeaderName) -> String {
    let values: Vec<&str> = headers.get_all(name).iter().filter_map(|v| v.to_str().ok()).collect();
    values.join(",")
}

fn query_ports(query: &str) -> Vec<u16> {
    let pairs = query.split('&').filter_map(|p| p.split_once('='));
    pairs
        .filter(|(k, _)| matches!(*k, "port" | "ports"))
        .flat_map(|(_, v)| v.split("%2C").flat_map(|v| v.split(',')))
        .filter_map(|v| v.parse().ok())
        .collect()
}

/// Carries a session out.
async fn play(runtime: Arc<Runtime>, io: TokioIo<hyper::upgrade::Upgraded>, plan: Plan) {
    let (request, wire) = (plan.request, plan.wire);
    if let StreamRequest::PortForward { sandbox, ports } = request {
        let Ok(target) = Target::of(&runtime, &sandbox) else { return };
        match wire {
            Wire::Spdy(_) => target.serve_spdy(io).await,
            Wire::WebSocket(TUNNEL) => {
                let (near, carrier) = websocket::tunnel(io);
                tokio::join!(target.serve_spdy(near), carrier);
            }
            Wire::WebSocket(_) => {
                let asked: Vec<u16> = ports.iter().filter_map(|p| u16::try_from(*p).ok()).collect();
                target.serve_channels(io, if plan.ports.is_empty() { &asked } else { &plan.ports }).await;
            }
        }
        return;
    }
    let wanted = wanted_of(&request);
    match wire {
        Wire::WebSocket(protocol) => {
            let (peer, carrier) = websocket::channels(io, protocol, wanted.channels());
            tokio::join!(run(runtime, request, wanted, peer), carrier);
        }
        Wire::Spdy(protocol) => {
            let (session, carrier) = spdy::session(io);
            let clock = runtime.clock;
            let play = async move {
                if let Some((peer, relay)) = spdy_peer(clock, session, protocol, wanted).await {
                    tokio::join!(run(runtime, request, wanted, peer), relay);
                }
            };
            let mut carrier = std::pin::pin!(carrier);
            let mut play = std::pin::pin!(play);
            tokio::select! {
                // The last frames leave after the session itself is done.
                () = &mut play => carrier.await,
                // The client has gone: its channels are closed, and the session notices.
                () = &mut carrier => play.await,
            }
        }
    }
}

fn wanted_of(request: &StreamRequest) -> Wanted {
    match *request {
        StreamRequest::Exec { tty, stdin, stdout, stderr, .. }
        | StreamRequest::Attach { tty, stdin, stdout, stderr, .. } => Wanted { tty, stdin, stdout, stderr },
        StreamRequest::PortForward { .. } => Wanted { tty: false, stdin: false, stdout: false, stderr: false },
    }
}

async fn run(runtime: Arc<Runtime>, request: StreamRequest, wanted: Wanted, peer: Peer) {
    match request {
        StreamRequest::Exec { container, command, .. } => {
            process::exec(runtime, &container, command, wanted, peer).await
        }
        StreamRequest::Attach { container, .. } => process::attach(runtime, &container, wanted, peer).await,
        StreamRequest::PortForward { .. } => {}
    }
}

/// Waits for the streams of a session and makes a peer of them; the future relays until the session has ended.
async fn spdy_peer(
    clock: Clock,
    mut session: spdy::Session,
    protocol: &'static str,
    wanted: Wanted,
) -> Option<(Peer, impl Future<Output = ()>)> {
    let resizes = wanted.tty && !matches!(protocol, "" | "channel.k8s.io" | "v2.channel.k8s.io");
    let expected = 1
        + usize::from(wanted.stdin)
        + usize::from(wanted.stdout)
        + usize::from(wanted.stderr && !wanted.tty)
        + usize::from(resizes);
    let mut streams = Vec::new();
    let gather = async {
        while streams.len() < expected {
            streams.push(session.streams.recv().await?);
        }
        Some(())
    };
    clock.timeout(CREATION, gather).await.flatten()?;
    let (out, mut out_rx) = mpsc::channel(64);
    let (stdin_tx, stdin) = mpsc::channel::<Bytes>(64);
    let (resize_tx, resize) = mpsc::channel(8);
    let format = if protocol == "v4.channel.k8s.io" { ErrorFormat::Status } else { ErrorFormat::Text };
    let mut ids = [None; 5];
    let (mut input, mut sizes) = (None, None);
    for stream in streams {
        let channel = match stream.headers.get("streamtype").map(String::as_str) {
            Some("stdin") => STDIN,
            Some("stdout") => STDOUT,
            Some("stderr") => STDERR,
            Some("resize") => RESIZE,
            _ => ERROR,
        };
        ids[usize::from(channel)] = Some(stream.id);
        match channel {
            STDIN => input = Some(stream.data),
            RESIZE => sizes = Some(stream.data),
            _ => {}
        }
    }
    let forward = async move {
        if let Some(mut input) = input {
            while let Some(data) = input.recv().await {
                if stdin_tx.send(data).await.is_err() {
                    break;
                }
            }
        }
    };
    let resized = async move {
        if let Some(mut sizes) = sizes {
            while let Some(data) = sizes.recv().await {
                for line in data.split(|b| *b == b'\n') {
                    if let Some(size) = parse_size(line) {
                        let _ = resize_tx.send(size).await;
                    }
                }
            }
        }
    };
    let send = session.send.clone();
    let output = async move {
        // Keeps the accepting side open: a session whose streams nobody awaits would end.
        let _accepting = session.streams;
        while let Some(Out::Data(channel, data)) = out_rx.recv().await {
            if let Some(id) = ids.get(usize::from(channel)).copied().flatten()
                && send.send(spdy::Send::Data(id, data)).await.is_err()
            {
                return;
            }
        }
        for id in [STDOUT, STDERR, ERROR].into_iter().filter_map(|c| ids[usize::from(c)]) {
            let _ = send.send(spdy::Send::Fin(id)).await;
        }
        let _ = send.send(spdy::Send::End).await;
    };
    let relay = async move {
        let others = async { tokio::join!(forward, resized) };
        tokio::select! {
            () = output => {}
            () = async { others.await; std::future::pending().await } => {}
        }
    };
    Some((Peer { out, stdin, resize, format }, relay))
}
