//! Capability sets: names as CRI writes them, the default set of containers, and what this process may give away.

use std::{fs, io};

/// A set of capabilities, bit n = capability n.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Caps(pub u64);

const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What a container has unless told otherwise. Source: containerd pkg/oci/spec.go.
const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

impl Caps {
    /// Every capability this list knows.
    pub const ALL: Self = Self((1 << NAMES.len()) - 1);

    /// The default set of containers.
    pub fn container_default() -> Self {
        DEFAULT.iter().fold(Self::default(), |set, name| set.with(bit(name)))
    }

    /// The bounding set of this process: nothing beyond it can be given to a container.
    pub fn bounding() -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let hex = status.lines().find_map(|l| l.strip_prefix("CapBnd:")).map(str::trim);
        hex.and_then(|h| u64::from_str_radix(h, 16).ok())
            .map(Self)
            .ok_or_else(|| io::Error::other("no CapBnd in status"))
    }

    fn with(self, bit: Option<u32>) -> Self {
        Self(self.0 | bit.map_or(0, |b| 1 << b))
    }

    /// Adds and drops by CRI's rule: `ALL` first, then single names; a drop of one name wins over `ALL` added and an
    /// added name over `ALL` dropped. Unknown names are an error.
    ///
    /// # Errors
    /// The name that is not a capability.
    pub fn adjusted(self, add: &[String], drop: &[String]) -> Result<Self, String> {
        let is_all = |n: &String| n.trim_start_matches("CAP_").eq_ignore_ascii_case("ALL");
        let mut set = self;
        if add.iter().any(is_all) {
            set = Self::ALL;
        }
        if drop.iter().any(is_all) {
            set = Self::default();
        }
        for name in add.iter().filter(|n| !is_all(n)) {
            set.0 |= 1 << bit(name).ok_or_else(|| name.clone())?;
        }
        for name in drop.iter().filter(|n| !is_all(n)) {
            set.0 &= !(1 << bit(name).ok_or_else(|| name.clone())?);
        }
        Ok(set)
    }

    /// The part of this set that is also in `other`.
    #[must_use]
    pub fn within(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether the named capability is in.
    pub fn has(self, name: &str) -> bool {
        bit(name).is_some_and(|b| self.0 & (1 << b) != 0)
    }
}

fn bit(name: &str) -> Option<u32> {
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
    NAMES.iter().position(|n| *n == bare).and_then(|n| u32::try_from(n).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn all_comes_first_and_single_names_win() {
        let base = Caps::container_default();
        assert_eq!(base.adjusted(&set(&["NET_ADMIN"]), &[]).unwrap().0, base.0 | 1 << 12);
        assert_eq!(base.adjusted(&set(&["ALL"]), &set(&["CHOWN"])).unwrap().0, Caps::ALL.0 & !1);
        assert_eq!(base.adjusted(&set(&["CAP_CHOWN"]), &set(&["all"])).unwrap().0, 1);
        assert_eq!(base.adjusted(&set(&["NOPE"]), &[]), Err("NOPE".to_owned()));
    }

    #[test]
    fn the_default_set_is_the_one_of_containerd() {
        assert_eq!(Caps::container_default().0, 0xa804_25fb);
    }
}
