//! Images on disk.
//!
//! ```text
//! CONTENT/layers/<chain id>/fs   one unpacked layer; several bridges may share this tree
//! CONTENT/tmp/…                  layers being unpacked; renamed when their digests are right
//! RECORDS/<image id>.json        one image: names, size, config, layers
//! ```
//! Records are written by any process and read by all: the directory's change time says when to read again.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use podlab_clock::{Clock, Rng};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{ImageConfig, ImageError, Reference};

/// One image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// Digest of its configuration.
    pub id: String,
    /// `name:tag`.
    pub tags: BTreeSet<String>,
    /// `name@digest`.
    pub digests: BTreeSet<String>,
    /// Bytes of its content as packed.
    pub size: u64,
    /// Chain ids, bottom layer first.
    pub layers: Vec<String>,
    /// What it says of its processes.
    pub config: ImageConfig,
    /// Never collected.
    #[serde(default)]
    pub pinned: bool,
}

/// The images of one node.
#[derive(Debug)]
pub struct Store {
    records: PathBuf,
    content: PathBuf,
    shared: bool,
    clock: Clock,
    rng: Rng,
    cache: Mutex<Cache>,
    /// Held while records are written, so that a merge is not lost.
    write: Mutex<()>,
}

#[derive(Debug, Default)]
struct Cache {
    seen: Option<i128>,
    images: BTreeMap<String, Arc<ImageRecord>>,
}

/// A directory changed less than this ago may change again without its change time moving.
const RACY_NS: i128 = 50_000_000;

impl Store {
    /// Opens the store, making its directories.
    ///
    /// # Errors
    /// [`ImageError::Io`].
    pub fn open(records: &Path, content: &Path, shared: bool, clock: Clock, rng: Rng) -> Result<Self, ImageError> {
        for dir in [records, &content.join("layers"), &content.join("tmp")] {
            fs::create_dir_all(dir).map_err(ImageError::io(format!("make {}", dir.display())))?;
        }
        let (records, content) = (records.to_owned(), content.to_owned());
        Ok(Self { records, content, shared, clock, rng, cache: Mutex::default(), write: Mutex::default() })
    }

    /// All images, by id.
    pub fn list(&self) -> Vec<Arc<ImageRecord>> {
        self.with(|images| images.values().cloned().collect())
    }

    /// An image by id, unique id prefix, tag or digest, normalised.
    pub fn get(&self, name: &str) -> Option<Arc<ImageRecord>> {
        let id = name.strip_prefix("sha256:").unwrap_or(name);
        let hex = id.len() >= 6 && id.bytes().all(|b| b.is_ascii_hexdigit());
        self.with(|images| {
            if hex {
                let mut found = images.values().filter(|i| i.id["sha256:".len()..].starts_with(id));
                if let (Some(one), None) = (found.next(), found.next()) {
                    return Some(Arc::clone(one));
                }
            }
            let reference = Reference::parse(name).ok()?;
            let wanted = match &reference.digest {
                Some(digest) => format!("{}@{digest}", reference.name()),
                None => reference.to_string(),
            };
            images.values().find(|i| i.tags.contains(&wanted) || i.digests.contains(&wanted)).cloned()
        })
    }

    /// Layer directories of an image, topmost first. An image without layers gets an empty one.
    ///
    /// # Errors
    /// [`ImageError::Io`] when a layer is gone.
    pub fn layer_dirs(&self, image: &ImageRecord) -> Result<Vec<PathBuf>, ImageError> {
        if image.layers.is_empty() {
            let empty = self.content.join("layers/empty/fs");
            fs::create_dir_all(&empty).map_err(ImageError::io("make the empty layer"))?;
            return Ok(vec![empty]);
        }
        Ok(image.layers.iter().rev().map(|chain| self.layer_dir(chain)).collect())
    }

    /// Where a layer lies once it is unpacked.
    pub(crate) fn layer_dir(&self, chain: &str) -> PathBuf {
        self.content.join("layers").join(chain.trim_start_matches("sha256:")).join("fs")
    }

    /// A fresh directory for content that is not complete yet.
    pub(crate) fn scratch(&self) -> Result<PathBuf, ImageError> {
        let dir = self.content.join("tmp").join(format!("{:016x}", self.rng.next_u64()));
        fs::create_dir_all(&dir).map_err(ImageError::io("make a scratch directory"))?;
        Ok(dir)
    }

    /// Puts a complete layer (a scratch directory that holds `fs`) in place; one that is already there stays.
    pub(crate) fn commit_layer(&self, scratch: &Path, chain: &str) -> Result<(), ImageError> {
        let dir = self.layer_dir(chain);
        let home = dir.parent().unwrap_or(&dir);
        match fs::rename(scratch, home) {
            Ok(()) => Ok(()),
            Err(_) if dir.is_dir() => {
                let _ = fs::remove_dir_all(scratch);
                Ok(())
            }
            Err(e) => Err(ImageError::io(format!("put layer {chain} in place"))(e)),
        }
    }

    /// Adds an image, or its names to one that is there. A tag that another image had moves.
    ///
    /// # Errors
    /// [`ImageError::Io`].
    pub fn put(&self, mut record: ImageRecord) -> Result<Arc<ImageRecord>, ImageError> {
        let _guard = self.write.lock();
        for other in self.list() {
            if other.id == record.id {
                record.tags.extend(other.tags.iter().cloned());
                record.digests.extend(other.digests.iter().cloned());
                record.pinned |= other.pinned;
            } else if other.tags.intersection(&record.tags).next().is_some() {
                let mut other = (*other).clone();
                other.tags.retain(|t| !record.tags.contains(t));
                self.write_record(&other)?;
            }
        }
        self.write_record(&record)?;
        Ok(Arc::new(record))
    }

    fn write_record(&self, record: &ImageRecord) -> Result<(), ImageError> {
        let path = self.record_path(&record.id);
        let write = || -> io::Result<()> {
            let temporary = path.with_extension(format!("{:08x}", self.rng.next_u64() & 0xffff_ffff));
            fs::write(&temporary, serde_json::to_vec_pretty(record)?)?;
            fs::rename(temporary, &path)
        };
        write().map_err(ImageError::io(format!("write {}", path.display())))?;
        self.cache.lock().seen = None;
        Ok(())
    }

    fn record_path(&self, id: &str) -> PathBuf {
        self.records.join(id.trim_start_matches("sha256:")).with_extension("json")
    }

    /// Removes an image with all its names, and layers that no other image here has. Absent is success.
    ///
    /// # Errors
    /// [`ImageError::Io`].
    pub fn remove(&self, name: &str) -> Result<(), ImageError> {
        let _guard = self.write.lock();
        let Some(image) = self.get(name) else { return Ok(()) };
        match fs::remove_file(self.record_path(&image.id)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(ImageError::io("remove an image record")(e)),
            _ => self.cache.lock().seen = None,
        }
        if self.shared {
            return Ok(());
        }
        let used: BTreeSet<String> = self.list().iter().flat_map(|i| i.layers.clone()).collect();
        for chain in image.layers.iter().filter(|c| !used.contains(*c)) {
            let dir = self.layer_dir(chain);
            let home = dir.parent().unwrap_or(&dir);
            // Away at once by a rename, then at leisure.
            let dead = self.content.join("tmp").join(format!("dead-{:016x}", self.rng.next_u64()));
            if fs::rename(home, &dead).is_ok() {
                let _ = fs::remove_dir_all(dead);
            }
        }
        Ok(())
    }

    /// Where images lie, the bytes they take and their number of files.
    pub fn usage(&self) -> (PathBuf, u64, u64) {
        let (mut bytes, mut inodes) = (0, 0);
        let mut seen = BTreeSet::new();
        for image in self.list() {
            for chain in &image.layers {
                if seen.insert(chain.clone()) {
                    let (b, i) = self.layer_usage(chain);
                    bytes += b;
                    inodes += i;
                }
            }
        }
        (self.content.clone(), bytes, inodes)
    }

    /// Measured once a layer, then read from a file beside it.
    fn layer_usage(&self, chain: &str) -> (u64, u64) {
        let dir = self.layer_dir(chain);
        let note = dir.with_file_name("usage");
        if let Ok(text) = fs::read_to_string(&note)
            && let Some((b, i)) = text.split_once(' ')
            && let (Ok(b), Ok(i)) = (b.parse(), i.trim().parse())
        {
            return (b, i);
        }
        let usage = disk_usage(&dir);
        let _ = fs::write(note, format!("{} {}", usage.0, usage.1));
        usage
    }

    fn with<T>(&self, f: impl FnOnce(&BTreeMap<String, Arc<ImageRecord>>) -> T) -> T {
        let mut cache = self.cache.lock();
        let changed = fs::metadata(&self.records)
            .map(|m| i128::from(m.mtime()) * 1_000_000_000 + i128::from(m.mtime_nsec()))
            .ok();
        if changed.is_none() || cache.seen != changed {
            cache.images = self.read_records();
            let settled = changed.filter(|c| self.clock.wall().as_nanosecond() - c > RACY_NS);
            cache.seen = settled;
        }
        f(&cache.images)
    }

    fn read_records(&self) -> BTreeMap<String, Arc<ImageRecord>> {
        let mut images = BTreeMap::new();
        for entry in fs::read_dir(&self.records).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|e| e == "json")
                && let Ok(json) = fs::read(entry.path())
                && let Ok(record) = serde_json::from_slice::<ImageRecord>(&json)
                && super::reference::is_digest(&record.id)
                // A shared content tree may have been emptied behind our back.
                && record.layers.iter().all(|l| self.layer_dir(l).is_dir())
            {
                images.insert(record.id.clone(), Arc::new(record));
            }
        }
        images
    }
}

/// Bytes and files below a directory, not following links.
pub(crate) fn disk_usage(dir: &Path) -> (u64, u64) {
    let (mut bytes, mut inodes) = (0, 0);
    let mut stack = vec![dir.to_owned()];
    while let Some(dir) = stack.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if let Ok(meta) = entry.metadata() {
                bytes += meta.blocks() * 512;
                inodes += 1;
                if meta.is_dir() {
                    stack.push(entry.path());
                }
            }
        }
    }
    (bytes, inodes)
}

/// `sha256:…` of some bytes.
pub(crate) fn digest_of(data: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(data)))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

/// The id of a stack of layers: the first diff id, then the hash of "id below, space, diff id".
pub(crate) fn chain_ids(diff_ids: &[String]) -> Vec<String> {
    let mut chain: Vec<String> = Vec::with_capacity(diff_ids.len());
    for diff in diff_ids {
        chain.push(chain.last().map_or_else(|| diff.clone(), |below| digest_of(format!("{below} {diff}").as_bytes())));
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(dir: &Path) -> Store {
        Store::open(&dir.join("r"), &dir.join("c"), false, Clock::real(), Rng::seeded(1)).unwrap()
    }

    fn image(n: u8, tag: &str) -> ImageRecord {
        let id = digest_of(&[n]);
        ImageRecord {
            digests: [format!("r.test/a@{id}")].into(),
            id,
            tags: [tag.to_owned()].into(),
            ..ImageRecord::default()
        }
    }

    #[test]
    fn an_image_is_found_by_tag_digest_id_and_prefix_also_when_another_process_wrote_it() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (store(dir.path()), store(dir.path()));
        assert!(b.list().is_empty());
        let i = a.put(image(1, "r.test/a:1")).unwrap();
        for name in ["r.test/a:1", &format!("r.test/a@{}", i.id), &i.id, &i.id[7..], &i.id[7..20]] {
            assert_eq!(b.get(name).map(|f| f.id.clone()).as_ref(), Some(&i.id), "{name}");
        }
        assert!(b.get("r.test/a:2").is_none());
    }

    #[test]
    fn a_tag_moves_and_removal_by_one_name_removes_all() {
        let dir = tempfile::tempdir().unwrap();
        let s = store(dir.path());
        s.put(image(1, "r.test/a:1")).unwrap();
        s.put(image(1, "other.test/a:1")).unwrap();
        s.put(image(2, "r.test/a:1")).unwrap();
        assert_eq!(s.get(&digest_of(&[1])).unwrap().tags, ["other.test/a:1".to_owned()].into());
        s.remove("other.test/a:1").unwrap();
        s.remove("other.test/a:1").unwrap();
        assert_eq!(s.list().len(), 1);
    }

    #[test]
    fn chain_ids_follow_the_specification() {
        let d = [digest_of(b"a"), digest_of(b"b")];
        let c = chain_ids(&d);
        assert_eq!(c[0], d[0]);
        assert_eq!(c[1], digest_of(format!("{} {}", d[0], d[1]).as_bytes()));
    }
}
