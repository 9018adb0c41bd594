//! Exponential back-off per key, for crash loops and image pulls.
//!
//! ```text
//! (none) ──next──► 10 s ──next──► 20 s ──► … ──► 300 s ──next──► 300 s
//!    ▲                                             │ idle for longer than the reset time
//!    └─────────────────────────────────────────────┘
//! ```
//! Source: k/k staging/src/k8s.io/client-go/util/flowcontrol/backoff.go.

use std::{collections::BTreeMap, time::Duration};

use podlab_api::jiff::{SignedDuration, Timestamp};
use podlab_mutant::{self as mutant, Mutant};

/// First delay of crash loops and image pulls.
pub const INITIAL: Duration = Duration::from_secs(10);
/// Longest delay of both.
pub const MAX: Duration = Duration::from_secs(300);
/// A crash loop is forgotten when the container lived this long past the entry's last update.
pub const CRASH_RESET: Duration = Duration::from_secs(600);

/// When an entry is forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// After twice the longest delay (image pulls).
    TwiceMax,
    /// After a fixed time (crash loops).
    After(Duration),
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    delay: Duration,
    updated: Timestamp,
}

/// Delays by key.
#[derive(Debug, Clone)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    reset: Reset,
    entries: BTreeMap<String, Entry>,
}

impl Backoff {
    /// A back-off that doubles from `initial` to `max`.
    pub fn new(initial: Duration, max: Duration, reset: Reset) -> Self {
        Self { initial, max, reset, entries: BTreeMap::new() }
    }

    /// Crash-loop back-off; `max` comes from `crashLoopBackOff.maxContainerRestartPeriod`.
    pub fn crash_loop(max: Duration) -> Self {
        Self::new(INITIAL.min(max), max, Reset::After(CRASH_RESET))
    }

    /// Image-pull back-off.
    pub fn image_pull() -> Self {
        Self::new(INITIAL, MAX, Reset::TwiceMax)
    }

    /// The current delay of a key; zero when it has none.
    pub fn delay(&self, key: &str) -> Duration {
        self.entries.get(key).map_or(Duration::ZERO, |e| e.delay)
    }

    /// Raises the delay of a key after another failure that happened at `event` and is acted upon `now`.
    pub fn next(&mut self, key: &str, event: Timestamp, now: Timestamp) {
        let fresh = self.entries.get(key).filter(|e| !self.expired(event, e)).copied();
        let factor = if mutant::is(Mutant::BackoffStays) { 1 } else { 2 };
        let delay = fresh.map_or(self.initial, |e| (e.delay * factor).min(self.max));
        self.entries.insert(key.to_owned(), Entry { delay, updated: now });
    }

    /// When the key may be tried again, if `now` is still inside the delay counted from `event`.
    pub fn waits_until(&self, key: &str, event: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let e = self.entries.get(key).filter(|e| !self.expired(event, e))?;
        let until = plus(event, e.delay);
        (now < until).then_some(until)
    }

    /// When the key may be tried again, counted from the last failure; `None` when it may be tried now.
    pub fn waits_since_update(&self, key: &str, now: Timestamp) -> Option<Timestamp> {
        let e = self.entries.get(key).filter(|e| !self.expired(now, e))?;
        let until = plus(e.updated, e.delay);
        (now < until).then_some(until)
    }

    /// Forgets a key.
    pub fn forget(&mut self, key: &str) {
        self.entries.remove(key);
    }

    /// Drops every entry that nobody can be waiting for any more.
    pub fn collect(&mut self, now: Timestamp) {
        let keep = self.max * 2;
        self.entries.retain(|_, e| since(now, e.updated) <= keep || mutant::is(Mutant::BackoffNeverResets));
    }

    fn expired(&self, event: Timestamp, e: &Entry) -> bool {
        let limit = match self.reset {
            Reset::TwiceMax => self.max * 2,
            Reset::After(d) => d,
        };
        since(event, e.updated) > limit && !mutant::is(Mutant::BackoffNeverResets)
    }
}

/// A time plus a duration; saturates.
pub fn plus(t: Timestamp, d: Duration) -> Timestamp {
    let span = SignedDuration::try_from(d).unwrap_or(SignedDuration::MAX);
    t.saturating_add(span).unwrap_or(Timestamp::MAX)
}

/// Time from `earlier` to `later`; zero when reversed.
pub fn since(later: Timestamp, earlier: Timestamp) -> Duration {
    Duration::try_from(later.duration_since(earlier)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(s: i64) -> Timestamp {
        Timestamp::from_second(s).unwrap()
    }

    #[test]
    fn a_crash_loop_doubles_from_ten_seconds_to_five_minutes() {
        let mut b = Backoff::crash_loop(MAX);
        let mut seen = Vec::new();
        let mut at = 0;
        for _ in 0..7 {
            b.next("k", t(at), t(at));
            seen.push(b.delay("k").as_secs());
            at += i64::try_from(b.delay("k").as_secs()).unwrap();
        }
        assert_eq!(seen, [10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn a_container_that_lived_ten_minutes_starts_over() {
        let mut b = Backoff::crash_loop(MAX);
        b.next("k", t(0), t(0));
        b.next("k", t(10), t(10));
        assert_eq!(b.waits_until("k", t(20), t(25)), Some(t(40)));
        assert_eq!(b.waits_until("k", t(611), t(612)), None);
        b.next("k", t(611), t(611));
        assert_eq!(b.delay("k").as_secs(), 10);
    }

    #[test]
    fn image_pulls_reset_after_twice_the_cap() {
        let mut b = Backoff::image_pull();
        b.next("k", t(0), t(0));
        assert_eq!(b.waits_since_update("k", t(9)), Some(t(10)));
        assert_eq!(b.waits_since_update("k", t(10)), None);
        b.next("k", t(600), t(600));
        assert_eq!(b.delay("k").as_secs(), 20);
        b.next("k", t(1201), t(1201));
        assert_eq!(b.delay("k").as_secs(), 10);
    }
}
