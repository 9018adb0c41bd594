//! Logs and randomness of a component process.

use std::{
    fmt,
    io::{self, Write},
};

use podlab_clock::Rng;
use tracing_subscriber::EnvFilter;

/// Standard error whose failures are nobody's: it is a file on a disk that may be full, and neither a log line nor the
/// complaint about a lost one may end the process.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A line on standard error before or without `tracing`, in place of `eprintln!`, which panics on a full disk.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let _ = Stderr.write(format!("{line}\n").as_bytes());
}

/// Sends `tracing` to standard error, which the process has pointed at its log file. `PODLAB_LOG` sets the filter.
pub(crate) fn init() {
    let filter = EnvFilter::try_from_env("PODLAB_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // A second call in one process (tests) keeps the first subscriber.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Stderr).with_ansi(false).try_init();
}

/// The random stream of a component: of the run's seed, or of the kernel when nobody asked for a replay.
pub(crate) fn rng(seed: u64, component: &str) -> Rng {
    if seed == 0 { Rng::from_entropy() } else { Rng::seeded(seed).fork(component) }
}
