//! The attacher: answers VolumeAttachments of a driver whose Controller does not publish. Such a driver needs no
//! attaching, but its CSIDriver object may ask for it; then every attachment is attached at once.
//! Source: kubernetes-csi/external-attacher, pkg/controller/trivial_handler.go.

use podlab_api::{ApiError, storage::VolumeAttachment};
use podlab_client::{Client, ListOptions, PatchKind, reflector::reflector};
use podlab_clock::Clock;
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Deltas on their way; beyond this the watch waits.
const BUFFER: usize = 64;

/// The attacher of one driver.
#[derive(Debug)]
pub struct Attacher {
    driver: String,
    client: Client,
    clock: Clock,
}

impl Attacher {
    /// An attacher for the driver of this name.
    pub fn new(driver: &str, client: Client, clock: Clock) -> Self {
        Self { driver: driver.to_owned(), client, clock }
    }

    /// Marks attachments as attached until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut tasks = JoinSet::new();
        let (r, cache, mut deltas) =
            reflector::<VolumeAttachment>(&self.client, None, ListOptions::default(), self.clock, BUFFER);
        tasks.spawn(r.run(shutdown.clone()));
        let mut again = false;
        loop {
            let retry = async {
                match again {
                    true => self.clock.sleep(std::time::Duration::from_secs(1)).await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                delta = deltas.recv() => if delta.is_none() { break },
                () = retry => {}
            }
            again = false;
            let ours = cache.list().into_iter().filter(|a| a.spec.attacher == self.driver);
            for attachment in ours.filter(|a| a.status.as_ref().is_none_or(|s| !s.attached)) {
                if let Err(error) = self.attach(&attachment).await {
                    tracing::info!(%error, "attachment to be tried again");
                    again = true;
                }
            }
        }
    }

    async fn attach(&self, attachment: &VolumeAttachment) -> Result<(), ApiError> {
        let name = attachment.metadata.name.as_deref().unwrap_or_default();
        let body = json!({"status": {"attached": true}});
        match self.client.all::<VolumeAttachment>().patch_status(name, &PatchKind::Merge, &body).await {
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }
}
