//! Cluster DNS: Services, headless Services, Pods and the names the cluster itself has, over UDP and TCP.
//! Source: kubernetes/dns docs/specification.md (schema 1.1.0).

mod message;
mod names;
#[cfg(test)]
mod tests;

use std::{
    io,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    sync::Arc,
    time::Duration,
};

use podlab_api::{core::Service, discovery::EndpointSlice};
use podlab_client::{Client, ListOptions, reflector::reflector};
use podlab_clock::Clock;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use names::Zone;

/// A TCP client that says nothing for this long is dropped.
const IDLE: Duration = Duration::from_secs(10);
/// TCP connections served at a time.
const MAX_CONNECTIONS: usize = 256;

/// The server.
#[derive(Debug)]
pub struct Dns {
    client: Client,
    clock: Clock,
    domain: String,
    hosts: Vec<(String, Ipv4Addr)>,
    udp: UdpSocket,
    tcp: TcpListener,
}

impl Dns {
    /// A server for a cluster domain on bound sockets. `hosts` are names outside the domain it also knows.
    pub fn new(
        client: Client,
        clock: Clock,
        domain: &str,
        hosts: Vec<(String, Ipv4Addr)>,
        udp: UdpSocket,
        tcp: TcpListener,
    ) -> Self {
        Self { client, clock, domain: domain.to_owned(), hosts, udp, tcp }
    }

    /// Serves until `shutdown`.
    ///
    /// # Errors
    /// When the sockets cannot be used.
    pub async fn run(self, shutdown: CancellationToken) -> io::Result<()> {
        let mut tasks = JoinSet::new();
        let (r, services, rx) = reflector::<Service>(&self.client, None, ListOptions::default(), self.clock, 1);
        drop(rx);
        tasks.spawn(r.run(shutdown.clone()));
        let (r, slices, rx) = reflector::<EndpointSlice>(&self.client, None, ListOptions::default(), self.clock, 1);
        drop(rx);
        tasks.spawn(r.run(shutdown.clone()));
        let zone = Arc::new(Zone { domain: self.domain, hosts: self.hosts, services, slices });
        self.udp.set_nonblocking(true)?;
        self.tcp.set_nonblocking(true)?;
        let udp = tokio::net::UdpSocket::from_std(self.udp)?;
        let tcp = tokio::net::TcpListener::from_std(self.tcp)?;
        let mut connections = JoinSet::new();
        let mut buffer = [0; 4096];
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                received = udp.recv_from(&mut buffer) => {
                    if let Ok((n, from)) = received
                        && let Some(answer) = message::answer(&buffer[..n], &zone, message::UDP_LIMIT)
                    {
                        // A client that went away is no trouble of the server's.
                        let _ = udp.send_to(&answer, from).await;
                    }
                }
                accepted = tcp.accept(), if connections.len() < MAX_CONNECTIONS => {
                    if let Ok((stream, _)) = accepted {
                        connections.spawn(serve_tcp(stream, zone.clone(), self.clock));
                    }
                }
            }
        }
    }
}

async fn serve_tcp(mut stream: tokio::net::TcpStream, zone: Arc<Zone>, clock: Clock) {
    while let Some(Ok(len)) = clock.timeout(IDLE, stream.read_u16()).await {
        let mut query = vec![0; usize::from(len)];
        if !matches!(clock.timeout(IDLE, stream.read_exact(&mut query)).await, Some(Ok(_))) {
            return;
        }
        let Some(answer) = message::answer(&query, &zone, usize::from(u16::MAX)) else { return };
        let len = u16::try_from(answer.len()).unwrap_or(u16::MAX);
        if stream.write_u16(len).await.is_err() || stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}
