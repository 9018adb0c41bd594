//! Logs and randomness of a component process.

use std::{
    fmt, fs,
    io::{self, Write},
    path::Path,
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

/// The random stream of a component: of the run's seed, or of the kernel when nobody asked for a replay. A component that
/// is started again draws from another stream of that seed: names and ids it gave in an earlier life belong to what is
/// still there. How often it was started stands in `dir`, which has to outlive what it named.
///
/// # Errors
/// When the count cannot be kept.
pub(crate) fn rng(seed: u64, component: &str, dir: &Path) -> io::Result<Rng> {
    if seed == 0 {
        return Ok(Rng::from_entropy());
    }
    fs::create_dir_all(dir)?;
    let count = dir.join("lives");
    let lives: u64 = fs::read_to_string(&count).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    fs::write(&count, (lives + 1).to_string())?;
    let first = Rng::seeded(seed).fork(component);
    Ok(if lives == 0 { first } else { first.fork(&format!("life {lives}")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_every_life_of_a_component_ids_of_its_own_and_every_run_the_same() {
        let run = || {
            let dir = tempfile::tempdir().unwrap();
            let life = || rng(7, "node-1", dir.path()).unwrap().next_u64();
            [life(), life(), life()]
        };
        let [a, b, c] = run();
        assert!(a != b && b != c && a != c, "{a} {b} {c}");
        assert_eq!(run(), [a, b, c]);
    }
}
