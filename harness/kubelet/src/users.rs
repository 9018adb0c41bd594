//! User namespaces of Pods that ask for one: each gets a range of ids of its own, which a file in its directory remembers.
//! Source: k/k pkg/kubelet/userns/userns_manager.go.

use std::{collections::BTreeMap, path::PathBuf};

use parking_lot::Mutex;
use podlab_api::core::Pod;
use podlab_cri::v1;
use podlab_lifecycle::spec;
use serde::{Deserialize, Serialize};

use crate::host::Host;

/// Ids of one Pod, and where the first range begins: the node's own ids are nobody's.
const LENGTH: u32 = 65_536;
/// The file in a Pod's directory.
const FILE: &str = "userns";
/// Longest file that is read.
const MAX_FILE: usize = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

/// As upstream writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

impl File {
    fn of(slot: u32) -> Self {
        let mapping = Mapping { host_id: slot.saturating_mul(LENGTH), container_id: 0, length: LENGTH };
        Self { uid_mappings: vec![mapping.clone()], gid_mappings: vec![mapping] }
    }

    /// The range it gives away; `None` when it is not one of ours.
    fn slot(&self) -> Option<u32> {
        let first = self.uid_mappings.first()?;
        let slot = first.host_id / LENGTH;
        (slot > 0 && *self == Self::of(slot)).then_some(slot)
    }
}

/// Who has which range.
#[derive(Debug, Default)]
pub(crate) struct UserRanges {
    by_pod: Mutex<BTreeMap<String, u32>>,
}

impl UserRanges {
    /// Reads what Pods of an earlier agent have. `pods` is the directory of their directories.
    pub(crate) fn load(host: &dyn Host, pods: PathBuf) -> Self {
        let mut by_pod = BTreeMap::new();
        for uid in host.list(&pods).unwrap_or_default() {
            let Ok(bytes) = host.read_at(&pods.join(&uid).join(FILE), 0, MAX_FILE) else { continue };
            match serde_json::from_slice::<File>(&bytes).ok().and_then(|f| f.slot()) {
                Some(slot) => drop(by_pod.insert(uid, slot)),
                None => tracing::warn!(uid, "user namespace file not understood"),
            }
        }
        Self { by_pod: Mutex::new(by_pod) }
    }

    /// The mapping of a Pod that asks for a user namespace; the first time it gets the lowest range that is free, and
    /// `dir`, its directory, remembers it.
    ///
    /// # Errors
    /// A sentence: all of the `max` ranges are taken, or the file cannot be written.
    pub(crate) fn of(
        &self,
        host: &dyn Host,
        pod: &Pod,
        dir: PathBuf,
        max: u32,
    ) -> Result<Option<v1::UserNamespace>, String> {
        if spec::pod_spec(pod).host_users != Some(false) {
            return Ok(None);
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let mut by_pod = self.by_pod.lock();
        let slot = match by_pod.get(&uid) {
            Some(slot) => *slot,
            None => {
                let free = (1..=max).find(|slot| !by_pod.values().any(|taken| taken == slot));
                let slot = free.ok_or("could not find an empty slot to allocate a user namespace")?;
                let text = serde_json::to_vec(&File::of(slot)).map_err(|e| e.to_string())?;
                let write = host.create_dir_all(&dir, 0o750).and_then(|()| host.write(&dir.join(FILE), &text, 0o600));
                write.map_err(|e| format!("create user namespace: {e}"))?;
                by_pod.insert(uid, slot);
                slot
            }
        };
        let mapping = v1::IdMapping { host_id: slot.saturating_mul(LENGTH), container_id: 0, length: LENGTH };
        Ok(Some(v1::UserNamespace { mode: v1::NamespaceMode::Pod.into(), uids: vec![mapping], gids: vec![mapping] }))
    }

    /// Gives a Pod's range back; its processes have ended.
    pub(crate) fn release(&self, uid: &str) {
        self.by_pod.lock().remove(uid);
    }
}

/// Puts a Pod's sandbox into its user namespace.
pub(crate) fn enter_sandbox(config: &mut v1::PodSandboxConfig, users: &v1::UserNamespace) {
    let options = config.linux.as_mut().and_then(|l| l.security_context.as_mut()?.namespace_options.as_mut());
    if let Some(options) = options {
        options.userns_options = Some(users.clone());
    }
}

/// Puts a container into its Pod's user namespace; what it mounts is shown with the Pod's ids.
pub(crate) fn enter_container(config: &mut v1::ContainerConfig, users: &v1::UserNamespace) {
    let options = config.linux.as_mut().and_then(|l| l.security_context.as_mut()?.namespace_options.as_mut());
    if let Some(options) = options {
        options.userns_options = Some(users.clone());
    }
    for mount in &mut config.mounts {
        mount.uid_mappings.clone_from(&users.uids);
        mount.gid_mappings.clone_from(&users.gids);
    }
}

#[cfg(test)]
mod tests {
    use podlab_clock::Clock;
    use serde_json::json;

    use super::*;
    use crate::{Machine, fake::MemoryHost};

    fn pod(uid: &str, host_users: bool) -> Pod {
        let tree = json!({"metadata": {"uid": uid}, "spec": {"hostUsers": host_users, "containers": []}});
        serde_json::from_value(tree).unwrap()
    }

    #[test]
    fn each_pod_has_a_range_of_its_own_that_outlives_the_agent() {
        let host = MemoryHost::new(Clock::real(), Machine::default());
        let root = PathBuf::from("/var/lib/kubelet/pods");
        let first = |ranges: &UserRanges, uid: &str| {
            let found = ranges.of(host.as_ref(), &pod(uid, false), root.join(uid), 2);
            found.map(|u| u.unwrap().uids[0].host_id)
        };
        let ranges = UserRanges::load(host.as_ref(), root.clone());
        assert_eq!(ranges.of(host.as_ref(), &pod("x", true), root.join("x"), 2), Ok(None));
        assert_eq!(
            (first(&ranges, "a"), first(&ranges, "b"), first(&ranges, "a")),
            (Ok(65_536), Ok(131_072), Ok(65_536))
        );
        assert!(first(&ranges, "c").is_err(), "two are all there are");
        let later = UserRanges::load(host.as_ref(), root.clone());
        assert_eq!(first(&later, "b"), Ok(131_072));
        later.release("a");
        assert_eq!(first(&later, "c"), Ok(65_536));
    }
}
