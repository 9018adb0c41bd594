//! What the server does by itself while it serves: events go after their time, quotas are recounted.

use std::{sync::Arc, time::Duration};

use podlab_api::{Object, jiff::Timestamp};
use tokio_util::sync::CancellationToken;

use crate::{
    kinds::registry,
    server::ApiServer,
    tree::{at, put, text},
};

const SWEEP_EVERY: Duration = Duration::from_secs(60);
const RECONCILE_EVERY: Duration = Duration::from_secs(10);
const RECOUNT_EVERY: Duration = Duration::from_secs(1);

impl ApiServer {
    /// Does all of it until `shutdown`. [`ApiServer::serve`] does it too; this is for servers nobody reaches by a socket.
    pub async fn upkeep(self: Arc<Self>, shutdown: CancellationToken) {
        futures::join!(
            self.clone().expire_events(shutdown.clone()),
            self.clone().recount_quotas(shutdown.clone()),
            self.clone().keep_kubernetes_service(shutdown),
        );
    }

    /// Removes events that are older than their time to live. Source: kube-apiserver --event-ttl.
    pub(crate) async fn expire_events(self: Arc<Self>, shutdown: CancellationToken) {
        let kind = registry().core("events");
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = self.clock.sleep(SWEEP_EVERY) => {}
            }
            let ttl = i64::try_from(self.config.event_ttl.as_secs()).unwrap_or(i64::MAX);
            let oldest = self.clock.wall().as_second().saturating_sub(ttl);
            let Ok(listing) = self.store.list(&kind.prefix, None) else { continue };
            for (key, stored) in listing.items {
                // A repeated event is written again; its last write is what counts.
                let event = &stored.object.0;
                let times = ["lastTimestamp", "eventTime", "metadata.creationTimestamp"];
                let last = times.iter().filter_map(|p| text(event, p).parse::<Timestamp>().ok()).max();
                if last.is_some_and(|t| t.as_second() < oldest) {
                    // Lost to a concurrent write: the event is fresh again.
                    let _ = self.store.delete(&key, Some(stored.revision)).await;
                }
            }
        }
    }

    /// Puts the `kubernetes` Service back when somebody deleted it. Source: k/k pkg/controlplane/controller/kubernetesservice.
    pub(crate) async fn keep_kubernetes_service(self: Arc<Self>, shutdown: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = self.clock.sleep(RECONCILE_EVERY) => {}
            }
            if let Err(e) = self.ensure_kubernetes_service().await {
                tracing::warn!(error = %e, "the kubernetes Service could not be put back");
            }
        }
    }

    /// Writes what quotas say is used, once a second where it changed. Admission counts for itself and never waits.
    pub(crate) async fn recount_quotas(self: Arc<Self>, shutdown: CancellationToken) {
        let kind = registry().core("resourcequotas");
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = self.clock.sleep(RECOUNT_EVERY) => {}
            }
            let Ok(listing) = self.store.list(&kind.prefix, None) else { continue };
            for (key, stored) in listing.items {
                let quota = &stored.object.0;
                let status = self.quota_status(quota);
                if *at(quota, "status") == status {
                    continue;
                }
                let mut new = quota.clone();
                put(&mut new, "status", status);
                // Lost to a concurrent write: the next round sees the new state.
                let _ = self.store.update(&key, stored.revision, Object(new)).await;
            }
        }
    }
}
