//! Port forward: connections made inside a sandbox's network, over SPDY streams or WebSocket channels.

use std::{collections::BTreeMap, io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
    task::JoinSet,
};

use super::{
    spdy::{self, Send, Session, Stream},
    websocket,
};
use crate::{error::Error, runtime::Runtime};

/// How long the second stream of a pair may take. Source: k/k cri-streaming portforward/httpstream.go.
const PAIR: Duration = Duration::from_secs(30);
const DIAL: Duration = Duration::from_secs(30);
const MAX_PAIRS: usize = 256;

/// A sandbox to connect into.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    runtime: Arc<Runtime>,
    sandbox: String,
    uid: String,
    netns: Option<PathBuf>,
}

impl Target {
    pub fn of(runtime: &Arc<Runtime>, sandbox: &str) -> Result<Self, Error> {
        let found = runtime.sandbox(sandbox)?;
        let record = found.record.lock();
        let uid = record.config.metadata.as_ref().map(|m| m.uid.clone()).unwrap_or_default();
        Ok(Self { runtime: Arc::clone(runtime), sandbox: record.id.clone(), uid, netns: record.netns.clone() })
    }

    /// Connects to a port on the sandbox's loopback, IPv4 first; the error is the text for the error stream.
    async fn dial(&self, port: u16) -> Result<TcpStream, String> {
        let netns = self.netns.clone();
        // A thread of its own: it changes its network namespace and is not used again.
        let (tx, rx) = tokio::sync::oneshot::channel();
        let thread =
            std::thread::Builder::new().name("portforward".into()).spawn(move || drop(tx.send(connect(netns, port))));
        let connected = match thread {
            Ok(_) => rx.await.unwrap_or_else(|_| Err((io::Error::other("the dialler died"), None))),
            Err(e) => Err((e, None)),
        };
        let stream = connected.and_then(|s| TcpStream::from_std(s).map_err(|e| (e, None)));
        stream.map_err(|(v4, v6)| {
            let path = self.netns.as_ref().map(|p| p.display().to_string()).unwrap_or_default();
            let v6 = v6.map(|e| e.to_string()).unwrap_or_default();
            format!(
                "error forwarding port {port} to pod {id}, uid {uid}: failed to execute portforward in network namespace {path:?}: \
                 failed to connect to localhost:{port} inside namespace {id:?}, IPv4: {v4} IPv6 {v6} ",
                id = self.sandbox, uid = self.uid,
            )
        })
    }

    /// Serves a SPDY session: pairs of streams with the same `requestID`.
    pub async fn serve_spdy(&self, stream: impl AsyncRead + AsyncWrite + std::marker::Send + 'static) {
        let (mut session, carrier) = spdy::session(stream);
        let mut carrier = Box::pin(carrier);
        let mut connections = JoinSet::new();
        let mut halves: BTreeMap<String, Stream> = BTreeMap::new();
        let mut oldest = None;
        loop {
            let expiry = async {
                match oldest {
                    Some(at) => self.runtime.clock.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = &mut carrier => return,
                Some(stream) = session.streams.recv() => {
                    let id = stream.headers.get("requestid").cloned().unwrap_or_else(|| pair_id(&stream));
                    match halves.remove(&id) {
                        Some(other) => self.begin(&session, stream, other, &mut connections),
                        None if halves.len() < MAX_PAIRS => drop(halves.insert(id, stream)),
                        None => drop(session.send.send(Send::Reset(stream.id)).await),
                    }
                    oldest = (!halves.is_empty()).then(|| self.runtime.clock.now().after(PAIR));
                }
                Some(_) = connections.join_next() => {}
                () = expiry => {
                    for stream in std::mem::take(&mut halves).into_values() {
                        let _ = session.send.send(Send::Reset(stream.id)).await;
                    }
                    oldest = None;
                }
            }
        }
    }

    fn begin(&self, session: &Session, a: Stream, b: Stream, connections: &mut JoinSet<()>) {
        let is_error = |s: &Stream| s.headers.get("streamtype").is_some_and(|t| t == "error");
        let (error, data) = if is_error(&a) { (a, b) } else { (b, a) };
        let port = data.headers.get("port").and_then(|p| p.parse().ok());
        let (target, send) = (self.clone(), session.send.clone());
        connections.spawn(async move {
            let failed = match port {
                Some(port) => target.dial(port).await,
                None => Err("invalid port".into()),
            };
            match failed {
                Ok(tcp) => copy(tcp, data.data, |bytes| Send::Data(data.id, bytes), &send).await,
                Err(text) => drop(send.send(Send::Data(error.id, text.into())).await),
            }
            let _ = send.send(Send::Fin(data.id)).await;
            let _ = send.send(Send::Fin(error.id)).await;
        });
    }

    /// Serves the old WebSocket protocol: for the n-th port, channel 2n carries data and 2n+1 errors; each begins with
    /// the port.
    pub async fn serve_channels(
        &self,
        stream: impl AsyncRead + AsyncWrite + std::marker::Send + 'static,
        ports: &[u16],
    ) {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let (control, mut control_rx) = mpsc::channel::<(u8, Bytes)>(8);
        let (out, mut out_rx) = mpsc::channel::<(u8, Bytes)>(64);
        let mut inputs = Vec::new();
        let mut connections = JoinSet::new();
        for (n, port) in ports.iter().take(64).copied().enumerate() {
            let channel = u8::try_from(n * 2).unwrap_or(u8::MAX - 1);
            for c in [channel, channel + 1] {
                let _ = out.send((c, Bytes::copy_from_slice(&port.to_le_bytes()))).await;
            }
            let (tx, rx) = mpsc::channel(64);
            inputs.push(tx);
            let (target, out) = (self.clone(), out.clone());
            connections.spawn(async move {
                match target.dial(port).await {
                    Ok(tcp) => copy(tcp, rx, |bytes| (channel, bytes), &out).await,
                    Err(text) => drop(out.send((channel + 1, text.into())).await),
                }
            });
        }
        drop(out);
        let read = async {
            while let Ok(Some((_, message))) = websocket::read_message(&mut reader, &control).await {
                if let Some(&channel) = message.first()
                    && channel % 2 == 0
                    && let Some(to) = inputs.get(usize::from(channel / 2))
                {
                    let _ = to.send(message.slice(1..)).await;
                }
            }
        };
        let write = async {
            loop {
                let wrote = tokio::select! {
                    Some((opcode, payload)) = control_rx.recv() => websocket::write_frame(&mut writer, opcode, &[&payload]).await,
                    message = out_rx.recv() => match message {
                        Some((channel, data)) => websocket::write_frame(&mut writer, 2, &[&[channel], &data]).await,
                        None => return drop(websocket::write_frame(&mut writer, 8, &[&1000u16.to_be_bytes()]).await),
                    },
                };
                if wrote.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = read => {}
            () = write => {}
        }
    }
}

/// Clients from before `requestID` open the error stream first, so its data stream has the next number.
fn pair_id(stream: &Stream) -> String {
    let is_error = stream.headers.get("streamtype").is_some_and(|t| t == "error");
    (if is_error { stream.id } else { stream.id.saturating_sub(2) }).to_string()
}

/// Both directions until both have ended.
async fn copy<T>(
    tcp: TcpStream,
    mut from_peer: mpsc::Receiver<Bytes>,
    wrap: impl Fn(Bytes) -> T,
    to_peer: &mpsc::Sender<T>,
) {
    let _ = tcp.set_nodelay(true);
    let (mut read, mut write) = tcp.into_split();
    let up = async {
        while let Some(data) = from_peer.recv().await {
            if write.write_all(&data).await.is_err() {
                break;
            }
        }
        let _ = write.shutdown().await;
        // What still comes is taken and dropped, so that it does not hold up the session.
        while from_peer.recv().await.is_some() {}
    };
    let down = async {
        let mut buffer = vec![0; 32 << 10];
        while let Ok(n) = read.read(&mut buffer).await {
            if n == 0 || to_peer.send(wrap(Bytes::copy_from_slice(&buffer[..n]))).await.is_err() {
                break;
            }
        }
    };
    let (mut up, mut down) = (std::pin::pin!(up), std::pin::pin!(down));
    let mut up_done = false;
    loop {
        tokio::select! {
            // The server's end ends the connection, as containerd has it.
            () = &mut down => return,
            () = &mut up, if !up_done => up_done = true,
        }
    }
}

type Refused = (io::Error, Option<io::Error>);

fn connect(netns: Option<PathBuf>, port: u16) -> Result<std::net::TcpStream, Refused> {
    let alone = |e: io::Error| (e, None);
    if let Some(path) = netns {
        let file = std::fs::File::open(path).map_err(alone)?;
        nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).map_err(|e| alone(e.into()))?;
    }
    let dial = |address: SocketAddr| {
        let stream = std::net::TcpStream::connect_timeout(&address, DIAL)?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    };
    dial(SocketAddr::from(([127, 0, 0, 1], port)))
        .or_else(|v4: io::Error| dial(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port))).map_err(|v6| (v4, Some(v6))))
}
