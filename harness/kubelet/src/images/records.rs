//! Who may use an image that is on the node: what was pulled with a secret is for Pods that have it.
//! Source: k/k pkg/kubelet/images/pullmanager (policy NeverVerifyPreloadedImages).

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Credential;
use crate::host::Host;

/// Largest record file read back.
const MAX_FILE: usize = 1 << 20;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Record {
    /// It was pulled without credentials: everybody may use it.
    anyone: bool,
    /// Hashes of the credentials it was pulled with.
    credentials: Vec<String>,
}

/// Pull records by image id, kept in one file.
pub(super) struct PullRecords {
    host: Arc<dyn Host>,
    dir: PathBuf,
    all: Mutex<Option<BTreeMap<String, Record>>>,
}

impl PullRecords {
    pub(super) fn new(host: Arc<dyn Host>, dir: PathBuf) -> Self {
        Self { host, dir, all: Mutex::new(None) }
    }

    /// Whether a Pod with these credentials may use an image that is there. Images nobody pulled here are preloaded.
    pub(super) fn may_use(&self, id: &str, credentials: &[Credential]) -> bool {
        let mut all = self.all.lock();
        match self.load(&mut all).get(id) {
            None => true,
            Some(r) => r.anyone || credentials.iter().any(|c| r.credentials.contains(&c.hash())),
        }
    }

    /// Remembers a pull.
    pub(super) fn pulled(&self, id: &str, with: Option<&Credential>) {
        let mut all = self.all.lock();
        let record = self.load(&mut all).entry(id.to_owned()).or_default();
        let before = record.clone();
        match with {
            None => record.anyone = true,
            Some(c) => {
                let hash = c.hash();
                if !record.credentials.contains(&hash) {
                    record.credentials.push(hash);
                }
            }
        }
        if before.anyone == record.anyone && before.credentials == record.credentials {
            return;
        }
        let bytes = all.as_ref().and_then(|a| serde_json::to_vec(a).ok()).unwrap_or_default();
        let tmp = self.dir.join("pulled.tmp");
        let save = || {
            self.host.create_dir_all(&self.dir, 0o700)?;
            self.host.write(&tmp, &bytes, 0o600)?;
            self.host.rename(&tmp, &self.dir.join("pulled"))
        };
        if let Err(error) = save() {
            tracing::warn!(%error, "pull records not saved");
        }
    }

    fn load<'a>(&self, all: &'a mut Option<BTreeMap<String, Record>>) -> &'a mut BTreeMap<String, Record> {
        all.get_or_insert_with(|| {
            let bytes = self.host.read_at(&self.dir.join("pulled"), 0, MAX_FILE).unwrap_or_default();
            serde_json::from_slice(&bytes).unwrap_or_default()
        })
    }
}
