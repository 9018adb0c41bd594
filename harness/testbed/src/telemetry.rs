//! Logs and randomness of a component process.

use podlab_clock::Rng;
use tracing_subscriber::EnvFilter;

/// Sends `tracing` to standard error, which the process has pointed at its log file. `PODLAB_LOG` sets the filter.
pub(crate) fn init() {
    let filter = EnvFilter::try_from_env("PODLAB_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // A second call in one process (tests) keeps the first subscriber.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).try_init();
}

/// The random stream of a component: of the run's seed, or of the kernel when nobody asked for a replay.
pub(crate) fn rng(seed: u64, component: &str) -> Rng {
    if seed == 0 { Rng::from_entropy() } else { Rng::seeded(seed).fork(component) }
}
