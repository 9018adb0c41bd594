//! The life of one volume of one Pod on the node.
//!
//! ```text
//! Wanted ──attach needed──► Attaching ──attached──► Attached ─┐
//!   └──────────no attach──────────────────────────────────────┤
//!                                             stage (CSI only)│
//!                                                             ▼
//!                             Mounted ◄──publish/set up── Staged
//!                                │ Pod gone
//!                                ▼
//!                            Unmounting ──► Gone
//! any failure: stays, retried after 0.5 s, 1 s, 2 s … 122 s
//! ```
//! Source: k/k pkg/volume/util/operationexecutor, pkg/util/goroutinemap/exponentialbackoff.

use std::time::Duration;

/// First delay after a failed operation on a volume.
pub const RETRY_FIRST: Duration = Duration::from_millis(500);
/// Longest delay.
pub const RETRY_MAX: Duration = Duration::from_secs(122);
/// How long a sync waits for all volumes before it gives up and is tried again.
pub const MOUNT_TIMEOUT: Duration = Duration::from_secs(123);

/// Where a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumeState {
    /// The Pod asks for it.
    Wanted,
    /// Waiting for the controller to attach it.
    Attaching,
    /// The device is on the node.
    Attached,
    /// Staged once for all Pods of the node.
    Staged,
    /// In the Pod's directory.
    Mounted,
    /// Being taken away.
    Unmounting,
    /// Nothing is left of it.
    Gone,
}

/// What happened to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeEvent {
    /// It must be attached first.
    NeedsAttach,
    /// The node has the device, or needs none.
    Attached,
    /// The driver staged it, or has no staging.
    Staged,
    /// It is in the Pod's directory.
    Mounted,
    /// An operation failed; what was reached stays.
    Failed,
    /// The Pod no longer needs it.
    Unwanted,
    /// It is gone from the Pod's directory.
    Unmounted,
}

/// An event that cannot happen in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Illegal(pub VolumeState, pub VolumeEvent);

/// The next state.
///
/// # Errors
/// [`Illegal`] when the event cannot happen there.
pub fn step(state: VolumeState, event: VolumeEvent) -> Result<VolumeState, Illegal> {
    use VolumeEvent as E;
    use VolumeState as S;
    Ok(match (state, event) {
        (S::Wanted, E::NeedsAttach) => S::Attaching,
        (S::Wanted | S::Attaching | S::Attached, E::Attached) => S::Attached,
        (S::Attached | S::Staged, E::Staged) => S::Staged,
        (S::Staged | S::Mounted, E::Mounted) => S::Mounted,
        (s, E::Failed) => s,
        (S::Gone, E::Unwanted | E::Unmounted) => S::Gone,
        (_, E::Unwanted) => S::Unmounting,
        (S::Unmounting, E::Unmounted) => S::Gone,
        (s, e @ (E::NeedsAttach | E::Attached | E::Staged | E::Mounted | E::Unmounted)) => return Err(Illegal(s, e)),
    })
}

/// Delay before try number `failures + 1`.
pub fn retry_delay(failures: u32) -> Duration {
    if failures == 0 {
        return Duration::ZERO;
    }
    RETRY_FIRST.saturating_mul(1 << (failures - 1).min(16)).min(RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_mount_is_retried_after_half_a_second_doubling_to_two_minutes() {
        let ms: Vec<u128> = (1..=10).map(|n| retry_delay(n).as_millis()).collect();
        assert_eq!(ms, [500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 122_000, 122_000]);
    }

    #[test]
    fn gone_stays_gone_and_mounting_needs_staging() {
        assert_eq!(step(VolumeState::Gone, VolumeEvent::Unwanted), Ok(VolumeState::Gone));
        assert!(step(VolumeState::Wanted, VolumeEvent::Mounted).is_err());
        assert!(step(VolumeState::Gone, VolumeEvent::Mounted).is_err());
    }
}
