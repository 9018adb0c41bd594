//! The table of volumes and the directories behind it.
//!
//! ```text
//! <root>/<id>/volume.json   what was asked for
//! <root>/<id>/data          what is mounted
//! <root>/.new-<id>, .gone-<id>   half made, half removed; cleared when the driver starts
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use nix::sys::statvfs::{Statvfs, statvfs};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tonic::Status;

/// Most bytes of a `volume.json`.
const MAX_RECORD: u64 = 64 * 1024;

/// What is remembered of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Record {
    pub(super) name: String,
    pub(super) capacity: i64,
    pub(super) parameters: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
struct Table {
    volumes: BTreeMap<String, Record>,
    busy: BTreeSet<String>,
}

/// All volumes of the node.
#[derive(Debug)]
pub(super) struct Volumes {
    root: PathBuf,
    table: Mutex<Table>,
}

/// The right to work on a volume; given back when dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    volumes: &'a Volumes,
    id: String,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.volumes.table.lock().busy.remove(&self.id);
    }
}

/// The id a volume of this name has: the same on every try.
pub(super) fn id_of(name: &str) -> String {
    let digest = Sha256::digest(name.as_bytes());
    let hex: String = digest.iter().take(16).map(|b| format!("{b:02x}")).collect();
    format!("vol-{hex}")
}

impl Volumes {
    /// Reads what is there and clears what was left half done.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        let mut volumes = BTreeMap::new();
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(".new-") || name.starts_with(".gone-") {
                fs::remove_dir_all(entry.path())?;
            } else if let Some(record) = read(&entry.path().join("volume.json")) {
                volumes.insert(name, record);
            }
        }
        Ok(Self { root: root.to_owned(), table: Mutex::new(Table { volumes, busy: BTreeSet::new() }) })
    }

    /// Whether the directory is still there.
    pub(super) fn healthy(&self) -> io::Result<()> {
        fs::metadata(&self.root).map(drop)
    }

    /// Takes a volume for one operation.
    pub(super) fn turn(&self, id: &str) -> Result<Turn<'_>, Status> {
        if self.table.lock().busy.insert(id.to_owned()) {
            Ok(Turn { volumes: self, id: id.to_owned() })
        } else {
            Err(Status::aborted(format!("an operation on volume {id} is pending")))
        }
    }

    pub(super) fn get(&self, id: &str) -> Option<Record> {
        self.table.lock().volumes.get(id).cloned()
    }

    /// The volume, or `NOT_FOUND`.
    pub(super) fn find(&self, id: &str) -> Result<Record, Status> {
        self.get(id).ok_or_else(|| Status::not_found(format!("volume {id} not found")))
    }

    /// All volumes by id, from `after` on.
    pub(super) fn list(&self, after: Option<&str>) -> Vec<(String, Record)> {
        let table = self.table.lock();
        let later = table.volumes.iter().filter(|(id, _)| after.is_none_or(|a| id.as_str() > a));
        later.map(|(id, r)| (id.clone(), r.clone())).collect()
    }

    /// The directory that is mounted.
    pub(super) fn data(&self, id: &str) -> PathBuf {
        self.root.join(id).join("data")
    }

    /// Makes a volume. Its directory appears whole or not at all.
    pub(super) fn create(&self, id: &str, record: Record) -> io::Result<()> {
        let making = self.root.join(format!(".new-{id}"));
        let _ = fs::remove_dir_all(&making);
        let data = making.join("data");
        fs::create_dir_all(&data)?;
        fs::set_permissions(&data, fs::Permissions::from_mode(0o755))?;
        write(&making.join("volume.json"), &record)?;
        fs::rename(&making, self.root.join(id))?;
        self.table.lock().volumes.insert(id.to_owned(), record);
        Ok(())
    }

    /// Sets a volume's size.
    pub(super) fn resize(&self, id: &str, capacity: i64) -> io::Result<()> {
        let Some(mut record) = self.get(id) else { return Ok(()) };
        record.capacity = capacity;
        write(&self.root.join(id).join("volume.json"), &record)?;
        self.table.lock().volumes.insert(id.to_owned(), record);
        Ok(())
    }

    /// Removes a volume and all it holds; one that is not there is no error.
    pub(super) fn remove(&self, id: &str) -> io::Result<()> {
        let going = self.root.join(format!(".gone-{id}"));
        match fs::rename(self.root.join(id), &going) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        self.table.lock().volumes.remove(id);
        match fs::remove_dir_all(&going) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Removes what a volume holds: what a driver must never do by itself, see `podlab_mutant`.
    pub(super) fn clear(&self, id: &str) -> io::Result<()> {
        for entry in fs::read_dir(self.data(id))? {
            let path = entry?.path();
            if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
        Ok(())
    }

    /// The file system below the volumes.
    pub(super) fn usage(&self) -> io::Result<Statvfs> {
        Ok(statvfs(&self.root)?)
    }
}

fn read(path: &Path) -> Option<Record> {
    let small = fs::metadata(path).is_ok_and(|m| m.len() <= MAX_RECORD);
    let text = small.then(|| fs::read(path).ok()).flatten()?;
    serde_json::from_slice(&text).ok()
}

fn write(path: &Path, record: &Record) -> io::Result<()> {
    let text = serde_json::to_vec(record).map_err(io::Error::other)?;
    let next = path.with_extension("next");
    fs::write(&next, text)?;
    fs::rename(next, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_found_again_and_half_made_ones_are_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = Volumes::open(dir.path()).unwrap();
        let record = Record { name: "a".into(), capacity: 5, parameters: BTreeMap::new() };
        volumes.create("vol-a", record.clone()).unwrap();
        volumes.resize("vol-a", 7).unwrap();
        fs::create_dir(dir.path().join(".new-vol-b")).unwrap();
        fs::create_dir(dir.path().join(".gone-vol-c")).unwrap();
        let again = Volumes::open(dir.path()).unwrap();
        assert_eq!(again.list(None), [("vol-a".to_owned(), Record { capacity: 7, ..record })]);
        assert!(!dir.path().join(".new-vol-b").exists() && !dir.path().join(".gone-vol-c").exists());
        again.remove("vol-a").unwrap();
        again.remove("vol-a").unwrap();
        assert!(again.get("vol-a").is_none() && !dir.path().join("vol-a").exists());
    }

    #[test]
    fn a_second_operation_on_a_volume_is_aborted_until_the_first_ends() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = Volumes::open(dir.path()).unwrap();
        let turn = volumes.turn("v").unwrap();
        assert_eq!(volumes.turn("v").unwrap_err().code(), tonic::Code::Aborted);
        assert!(volumes.turn("w").is_ok());
        drop(turn);
        assert!(volumes.turn("v").is_ok());
    }
}
