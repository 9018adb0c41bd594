//! Known-bad changes to the components, each caught by a scenario that is named here: they show that the scenarios notice.
//!
//! A component asks [`is`] at the place where the change would be. Builds without debug assertions answer no at compile
//! time, so nothing of this is in a release. A mutant is on for the whole process (a node's agent, the plane) or for the
//! calling thread (a virtual world, which lives on one).
#![deny(missing_docs)]

mod list;

use std::{
    cell::Cell,
    marker::PhantomData,
    sync::atomic::{AtomicU8, Ordering},
};

pub use list::{Component, Mutant};

/// Nothing is on.
const SOUND: u8 = 0;

static OF_PROCESS: AtomicU8 = AtomicU8::new(SOUND);

thread_local! {
    static OF_THREAD: Cell<u8> = const { Cell::new(SOUND) };
}

/// Whether this build can be told to misbehave.
pub const fn carried() -> bool {
    cfg!(debug_assertions)
}

/// Whether a mutant is on where this is called.
#[inline]
pub fn is(mutant: Mutant) -> bool {
    carried() && (OF_THREAD.get() == number(mutant) || OF_PROCESS.load(Ordering::Relaxed) == number(mutant))
}

/// Switches a mutant on for this process, for good, and for those it forks.
pub fn for_process(mutant: Option<Mutant>) {
    OF_PROCESS.store(mutant.map_or(SOUND, number), Ordering::Relaxed);
}

/// Switches a mutant on for the calling thread until what is returned is dropped.
#[must_use]
pub fn on_thread(mutant: Option<Mutant>) -> OnThread {
    OnThread { before: OF_THREAD.replace(mutant.map_or(SOUND, number)), here: PhantomData }
}

/// A mutant that is on for this thread; dropping it brings back what was before.
#[derive(Debug)]
pub struct OnThread {
    before: u8,
    /// It speaks of its thread and must not leave it.
    here: PhantomData<*const ()>,
}

impl Drop for OnThread {
    fn drop(&mut self) {
        OF_THREAD.set(self.before);
    }
}

/// Counted from 1.
fn number(mutant: Mutant) -> u8 {
    mutant as u8 + 1
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_mutant_is_on_for_its_thread_alone_and_until_it_is_dropped() {
        let (a, b) = (Mutant::BackoffStays, Mutant::PullsTogether);
        assert!(!is(a));
        {
            let _outer = on_thread(Some(a));
            assert!(is(a) && !is(b));
            {
                let _inner = on_thread(Some(b));
                assert!(is(b) && !is(a));
            }
            assert!(is(a));
            assert!(!std::thread::spawn(move || is(a)).join().unwrap());
        }
        assert!(!is(a));
    }

    #[test]
    fn there_are_twenty_mutants_or_more_with_names_of_their_own_and_scenarios_that_catch_them() {
        let names: BTreeSet<&str> = Mutant::ALL.iter().map(|m| m.name()).collect();
        assert_eq!(names.len(), Mutant::ALL.len());
        assert!(names.len() >= 20, "{}", names.len());
        for m in Mutant::ALL {
            assert_eq!(Mutant::of(m.name()), Some(*m));
            assert!(!m.caught_by().is_empty() && !m.wrong().is_empty(), "{}", m.name());
        }
        for c in [Component::NodeAgent, Component::Scheduler, Component::Cri, Component::Cni, Component::Csi] {
            assert!(Mutant::ALL.iter().any(|m| m.component() == c), "{c:?}");
        }
    }
}
