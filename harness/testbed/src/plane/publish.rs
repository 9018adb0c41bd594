//! Published ports: connections to a loopback port of the host continue at the same port of `node-1`.

use std::{io, net::TcpListener};

use tokio::{io::copy_bidirectional, net::TcpStream, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::spec::address;

/// Forwards until `shutdown`.
pub(super) async fn forward(listener: TcpListener, shutdown: CancellationToken) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    loop {
        let mut inbound = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => continue,
            },
        };
        connections.spawn(async move {
            if let Ok(mut outbound) = TcpStream::connect((address::node(1), port)).await {
                // Either side's end is the connection's end; there is nobody to tell more.
                let _ = copy_bidirectional(&mut inbound, &mut outbound).await;
            }
        });
    }
}
