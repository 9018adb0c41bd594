//! Time and randomness as arguments. The only crate that reads the machine's clocks or entropy.
//!
//! A [`Clock`] has two faces: a monotonic one for durations (rides on tokio's time, so a paused runtime makes it
//! virtual) and a wall one for timestamps that people read. An [`Rng`] is a seeded stream; components fork their own
//! from one seed so that a run replays.
#![deny(missing_docs)]
#![expect(clippy::disallowed_methods, reason = "this crate is the one place that reads the clocks it hands out")]

mod rng;

use std::{future::Future, time::Duration};

use jiff::Timestamp;
pub use rng::Rng;
use tokio::time::Instant;

/// A point on the monotonic clock: nanoseconds of `CLOCK_MONOTONIC` in the real world, so that processes of one run
/// agree; nanoseconds since the clock was made in the virtual one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Mono(pub u64);

impl Mono {
    /// Time from `earlier` to here; zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This point plus a duration, saturating.
    #[must_use]
    pub fn after(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Where "now" comes from. Cheap to copy.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Source);

#[derive(Debug, Clone, Copy)]
enum Source {
    Real,
    Virtual { origin: Instant, wall: Timestamp },
}

impl Clock {
    /// The machine's clocks.
    pub fn real() -> Self {
        Self(Source::Real)
    }

    /// A clock that follows tokio's (paused) time of the current runtime, starting at `wall`.
    pub fn virtual_from(wall: Timestamp) -> Self {
        Self(Source::Virtual { origin: Instant::now(), wall })
    }

    /// Now, for durations.
    pub fn now(&self) -> Mono {
        match self.0 {
            Source::Real => {
                let mut ts = std::mem::MaybeUninit::<Timespec>::uninit();
                // SAFETY: clock_gettime fills the struct it is given; CLOCK_MONOTONIC (1) always exists on Linux.
                #[expect(unsafe_code, reason = "std::time::Instant hides the value that processes must share")]
                let ts = unsafe {
                    clock_gettime(1, ts.as_mut_ptr());
                    ts.assume_init()
                };
                Mono(ts.sec.unsigned_abs() * 1_000_000_000 + ts.nsec.unsigned_abs())
            }
            Source::Virtual { origin, .. } => Mono(u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX)),
        }
    }

    /// Now, for timestamps that people read.
    pub fn wall(&self) -> Timestamp {
        match self.0 {
            Source::Real => Timestamp::now(),
            Source::Virtual { origin, wall } => wall.saturating_add(origin.elapsed()).unwrap_or(wall),
        }
    }

    /// Now, cut to whole seconds as Kubernetes writes `metav1.Time`.
    pub fn wall_secs(&self) -> Timestamp {
        Timestamp::from_second(self.wall().as_second()).unwrap_or_default()
    }

    /// Waits for `d`. Dropping the future is safe.
    pub async fn sleep(&self, d: Duration) {
        tokio::time::sleep(d).await;
    }

    /// Waits until `at`; returns at once when it has passed. Dropping the future is safe.
    pub async fn sleep_until(&self, at: Mono) {
        let now = self.now();
        if at > now {
            tokio::time::sleep(at.since(now)).await;
        }
    }

    /// Runs `future` for at most `d`; `None` when the time ran out and the future was dropped.
    pub async fn timeout<F: Future>(&self, d: Duration, future: F) -> Option<F::Output> {
        tokio::time::timeout(d, future).await.ok()
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Timespec {
    sec: i64,
    nsec: i64,
}
#[expect(unsafe_code, reason = "one libc symbol; a libc dependency for it would be larger than this line")]
unsafe extern "C" {
    fn clock_gettime(id: i32, ts: *mut Timespec) -> i32;
}
