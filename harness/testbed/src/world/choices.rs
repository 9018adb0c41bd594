//! The choices of a virtual run: which of several legal orders, how long a call takes, where an agent crashes.
//!
//! A choice has a name, e.g. `agent node-1: cri.StartContainer a/c #1`, and its value follows from the seed and that name
//! alone. So leaving one choice out changes no other, a run can be repeated with any subset of its choices, and a search
//! can shrink a failing run to the few that matter.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use podlab_clock::Rng;

/// What may differ from run to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Disturbance {
    /// Calls and events take time, drawn from a distribution, instead of none.
    pub latency: bool,
    /// At most this many crashes of agents.
    pub crashes: u32,
    /// Only these choices are made, the others take their ordinary value; `None` makes all of them.
    pub only: Option<BTreeSet<String>>,
}

/// One choice that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Others ran this many turns first.
    Yield(u32),
    /// It took this long.
    Delay(Duration),
    /// The agent was killed, before the call or after it, and stayed away for this long.
    Crash {
        /// After the call took effect.
        after: bool,
        /// Until the next agent starts.
        down: Duration,
    },
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Yield(n) => write!(f, "{n} turns of others first"),
            Self::Delay(d) => write!(f, "takes {d:?}"),
            Self::Crash { after, down } => {
                write!(f, "the agent is killed {} it, for {down:?}", if *after { "after" } else { "before" })
            }
        }
    }
}

#[derive(Debug, Default)]
struct State {
    seen: BTreeMap<String, u64>,
    made: BTreeMap<String, Choice>,
    crashes: u32,
}

/// The choices of one run. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Choices(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    seed: u64,
    how: Disturbance,
    state: Mutex<State>,
}

/// What one call meets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Drawn {
    pub(super) turns: u32,
    pub(super) delay: Duration,
    pub(super) crash: Option<(bool, Duration)>,
}

/// One agent call in so many is a crash point.
const CRASH_ONE_IN: u64 = 60;

impl Choices {
    /// The choices of a seed.
    pub fn new(seed: u64, how: Disturbance) -> Self {
        Self(Arc::new(Inner { seed, how, state: Mutex::default() }))
    }

    /// Everything that was chosen and was not the ordinary value.
    pub fn made(&self) -> BTreeMap<String, Choice> {
        self.0.state.lock().made.clone()
    }

    /// Draws for the next call at a site; `may_crash` says that an agent makes it.
    pub(super) fn draw(&self, site: &str, may_crash: bool) -> Drawn {
        let inner = &*self.0;
        let mut state = inner.state.lock();
        let n = state.seen.entry(site.to_owned()).or_default();
        *n += 1;
        let name = format!("{site} #{n}");
        let value = |aspect: &str| Rng::seeded(inner.seed).fork(&name).fork(aspect).next_u64();
        let wanted = |key: &String| inner.how.only.as_ref().is_none_or(|only| only.contains(key));
        let mut drawn = Drawn::default();
        let turns = u32::try_from(value("turns") % 8).unwrap_or(0).saturating_sub(4);
        let key = format!("{name}: turns");
        if turns > 0 && wanted(&key) {
            drawn.turns = turns;
            state.made.insert(key, Choice::Yield(turns));
        }
        let delay = if inner.how.latency { latency(value("delay")) } else { Duration::ZERO };
        let key = format!("{name}: delay");
        if !delay.is_zero() && wanted(&key) {
            drawn.delay = delay;
            state.made.insert(key, Choice::Delay(delay));
        }
        let dice = value("crash");
        let key = format!("{name}: crash");
        if may_crash && state.crashes < inner.how.crashes && dice % CRASH_ONE_IN == 0 && wanted(&key) {
            let (after, down) = (dice & (1 << 40) != 0, Duration::from_millis((dice >> 8) % 3000));
            state.crashes += 1;
            drawn.crash = Some((after, down));
            state.made.insert(key, Choice::Crash { after, down });
        }
        drawn
    }
}

/// Mostly quick, sometimes slow, rarely very slow; whole milliseconds.
fn latency(value: u64) -> Duration {
    let (kind, amount) = (value % 100, value >> 16);
    Duration::from_millis(match kind {
        0..60 => 0,
        60..92 => 1 + amount % 20,
        92..99 => 50 + amount % 450,
        _ => 1000 + amount % 2000,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shaken() -> Disturbance {
        Disturbance { latency: true, crashes: 3, only: None }
    }

    #[test]
    fn a_choice_follows_from_the_seed_and_its_name_whatever_came_before() {
        let (a, b) = (Choices::new(7, shaken()), Choices::new(7, shaken()));
        for i in 0..50 {
            b.draw(&format!("other {i}"), false);
        }
        let first: Vec<_> = (0..50).map(|_| a.draw("x", false)).collect();
        assert_eq!(first, (0..50).map(|_| b.draw("x", false)).collect::<Vec<_>>());
        let other = Choices::new(8, shaken());
        assert_ne!(first, (0..50).map(|_| other.draw("x", false)).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_left_out_takes_its_ordinary_value_and_the_rest_stays() {
        let all = Choices::new(7, shaken());
        for _ in 0..400 {
            all.draw("x", true);
        }
        let made = all.made();
        assert!(made.len() > 100 && made.values().any(|c| matches!(c, Choice::Crash { .. })));
        let (key, choice) = made.iter().nth(made.len() / 2).unwrap();
        let one = Choices::new(7, Disturbance { only: Some([key.clone()].into()), ..shaken() });
        for _ in 0..400 {
            one.draw("x", true);
        }
        assert_eq!(one.made(), [(key.clone(), *choice)].into());
    }
}
