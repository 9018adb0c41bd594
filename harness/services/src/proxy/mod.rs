//! The Service proxy of a node: follows Services and EndpointSlices and keeps one nftables table in step.
//!
//! The table is replaced whole in one transaction: a packet sees the old rules or the new ones. Source for the semantics:
//! k/k pkg/proxy/nftables/proxier.go.

mod rules;
mod table;
#[cfg(test)]
mod tests;

use std::time::Duration;

use podlab_api::{core::Service, discovery::EndpointSlice};
use podlab_client::{Client, ListOptions, reflector::reflector};
use podlab_clock::Clock;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use table::Table;

const BUFFER: usize = 256;
/// Changes within this time are written together: a transaction costs the kernel a grace period.
const GATHER: Duration = Duration::from_millis(5);
/// How soon a refused transaction is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The proxy.
#[derive(Debug)]
pub struct Proxy {
    client: Client,
    clock: Clock,
    node: String,
}

impl Proxy {
    /// A proxy for a node. Writes rules into the network namespace of the calling process.
    pub fn new(client: Client, clock: Clock, node: &str) -> Self {
        Self { client, clock, node: node.to_owned() }
    }

    /// Runs until `shutdown`; the rules stay, as connections do.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut tasks = JoinSet::new();
        let (r, services, mut service_deltas) =
            reflector::<Service>(&self.client, None, ListOptions::default(), self.clock, BUFFER);
        tasks.spawn(r.run(shutdown.clone()));
        let (r, slices, mut slice_deltas) =
            reflector::<EndpointSlice>(&self.client, None, ListOptions::default(), self.clock, BUFFER);
        tasks.spawn(r.run(shutdown.clone()));
        let synced = async { tokio::join!(services.wait_synced(), slices.wait_synced()) };
        if shutdown.run_until_cancelled(synced).await.is_none() {
            return;
        }
        let mut written = None;
        loop {
            while service_deltas.try_recv().is_ok() || slice_deltas.try_recv().is_ok() {}
            let table = Table::compute(&services.list(), &slices.list(), &self.node);
            let mut pause = None;
            if written.as_ref() != Some(&table) {
                let rules = table.clone();
                match tokio::task::spawn_blocking(move || rules::write(&rules)).await {
                    Ok(Ok(())) => written = Some(table),
                    Ok(Err(error)) => {
                        tracing::warn!(%error, "service rules not written");
                        pause = Some(RETRY);
                    }
                    Err(error) => tracing::warn!(%error, "service rules not written"),
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                Some(_) = service_deltas.recv() => self.clock.sleep(GATHER).await,
                Some(_) = slice_deltas.recv() => self.clock.sleep(GATHER).await,
                () = self.clock.sleep(pause.unwrap_or(Duration::from_secs(3600))) => {}
            }
        }
    }
}
