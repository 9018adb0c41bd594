//! What a registry holds: blobs by digest, manifests by repository and reference.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::{Arc, RwLock},
};

use bytes::Bytes;
use podlab_testimage::{Image, digest};

/// Why something could not be stored.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The bytes are not what their digest says.
    #[error("digest {claimed} does not match the content ({actual})")]
    Digest {
        /// What was claimed.
        claimed: String,
        /// What it is.
        actual: String,
    },
    /// A name or reference is malformed.
    #[error("invalid name {0:?}")]
    Name(String),
    /// The disk failed.
    #[error("write {path}")]
    Disk {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// A manifest with its media type.
#[derive(Debug, Clone)]
pub(crate) struct Manifest {
    pub(crate) media_type: String,
    pub(crate) bytes: Bytes,
}

#[derive(Debug, Default)]
struct State {
    blobs: BTreeMap<String, Bytes>,
    manifests: BTreeMap<(String, String), Manifest>,
}

/// Shared, thread-safe contents of one registry.
#[derive(Debug, Clone, Default)]
pub struct Storage {
    state: Arc<RwLock<State>>,
    dir: Option<PathBuf>,
    suffixes: bool,
}

impl Storage {
    /// An empty registry in memory.
    pub fn in_memory() -> Self {
        Self::default()
    }

    /// With `true`, a tag that is not there and has a dot in it means what stands before the last dot: `1.anything` is `1`.
    /// So an image can have a name that no node has yet, as often as one likes.
    #[must_use]
    pub fn with_suffixes(mut self, suffixes: bool) -> Self {
        self.suffixes = suffixes;
        self
    }

    /// A registry kept in a directory; what is there already is loaded.
    ///
    /// # Errors
    /// [`StorageError::Disk`] when the directory cannot be made or read.
    pub fn in_dir(dir: &Path) -> Result<Self, StorageError> {
        let storage = Self { state: Arc::default(), dir: Some(dir.to_owned()), suffixes: false };
        let disk = |path: &Path| {
            let path = path.to_owned();
            move |source| StorageError::Disk { path, source }
        };
        for sub in ["blobs", "manifests"] {
            fs::create_dir_all(dir.join(sub)).map_err(disk(dir))?;
        }
        for entry in fs::read_dir(dir.join("blobs")).map_err(disk(dir))?.flatten() {
            let bytes = fs::read(entry.path()).map_err(disk(&entry.path()))?;
            storage.write().blobs.insert(digest(&bytes), bytes.into());
        }
        for entry in fs::read_dir(dir.join("manifests")).map_err(disk(dir))?.flatten() {
            let text = fs::read(entry.path()).map_err(disk(&entry.path()))?;
            // repository, reference and media type on a line each, then the manifest.
            let mut parts = text.splitn(4, |b| *b == b'\n').map(<[u8]>::to_vec);
            let mut line = || String::from_utf8_lossy(&parts.next().unwrap_or_default()).into_owned();
            let (repository, reference, media_type) = (line(), line(), line());
            let bytes = parts.next().unwrap_or_default().into();
            storage.write().manifests.insert((repository, reference), Manifest { media_type, bytes });
        }
        Ok(storage)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Stores an image under `repository:tag`.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn put_image(&self, repository: &str, tag: &str, image: &Image) -> Result<(), StorageError> {
        for blob in image.blobs() {
            self.put_blob(&blob.digest, blob.bytes.clone().into())?;
        }
        self.put_manifest(repository, tag, image.manifest.media_type, image.manifest.bytes.clone().into()).map(drop)
    }

    /// Stores a blob after checking its digest.
    ///
    /// # Errors
    /// [`StorageError::Digest`] or [`StorageError::Disk`].
    pub fn put_blob(&self, claimed: &str, bytes: Bytes) -> Result<(), StorageError> {
        let actual = digest(&bytes);
        if actual != claimed {
            return Err(StorageError::Digest { claimed: claimed.to_owned(), actual });
        }
        self.persist("blobs", &actual, &bytes)?;
        self.write().blobs.insert(actual, bytes);
        Ok(())
    }

    /// Stores a manifest under a tag or digest, and under its digest; returns the digest.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn put_manifest(
        &self,
        repository: &str,
        reference: &str,
        media_type: &str,
        bytes: Bytes,
    ) -> Result<String, StorageError> {
        let word = |c: char| c.is_ascii_alphanumeric() || "._-/:".contains(c);
        if repository.is_empty()
            || !repository.chars().all(word)
            || repository.contains("..")
            || !reference.chars().all(word)
        {
            return Err(StorageError::Name(format!("{repository}:{reference}")));
        }
        let actual = digest(&bytes);
        if reference.starts_with("sha256:") && reference != actual {
            return Err(StorageError::Digest { claimed: reference.to_owned(), actual });
        }
        for key in [reference, actual.as_str()] {
            let mut record = format!("{repository}\n{key}\n{media_type}\n").into_bytes();
            record.extend_from_slice(&bytes);
            self.persist("manifests", &format!("{repository}@{key}"), &record)?;
            let manifest = Manifest { media_type: media_type.to_owned(), bytes: bytes.clone() };
            self.write().manifests.insert((repository.to_owned(), key.to_owned()), manifest);
        }
        Ok(actual)
    }

    fn persist(&self, kind: &str, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let path = dir.join(kind).join(name.replace('/', "+"));
        fs::write(&path, bytes).map_err(|source| StorageError::Disk { path, source })
    }

    /// A blob's bytes.
    pub fn blob(&self, digest: &str) -> Option<Bytes> {
        self.read().blobs.get(digest).cloned()
    }

    pub(crate) fn manifest(&self, repository: &str, reference: &str) -> Option<Manifest> {
        let state = self.read();
        let find = |reference: &str| state.manifests.get(&(repository.to_owned(), reference.to_owned())).cloned();
        find(reference).or_else(|| find(reference.rsplit_once('.').filter(|_| self.suffixes)?.0))
    }

    /// The tags of a repository; `None` when there is no such repository.
    pub fn tags(&self, repository: &str) -> Option<Vec<String>> {
        let state = self.read();
        let mut mine = state.manifests.keys().filter(|(r, _)| r == repository).peekable();
        mine.peek()?;
        Some(mine.map(|(_, t)| t.clone()).filter(|t| !t.starts_with("sha256:")).collect())
    }

    /// All repositories.
    pub fn repositories(&self) -> Vec<String> {
        self.read().manifests.keys().map(|(r, _)| r.clone()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Deletes a manifest; false when it was not there.
    pub fn delete_manifest(&self, repository: &str, reference: &str) -> bool {
        if let Some(dir) = &self.dir {
            let _ = fs::remove_file(dir.join("manifests").join(format!("{repository}@{reference}").replace('/', "+")));
        }
        self.write().manifests.remove(&(repository.to_owned(), reference.to_owned())).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suffix_of_a_tag_means_nothing_where_that_is_wanted_and_another_tag_elsewhere() {
        let plain = Storage::in_memory();
        plain.put_image("testimage", "1", &Image::testimage()).unwrap();
        let loose = plain.clone().with_suffixes(true);
        let same = |tag: &str| loose.manifest("testimage", tag).map(|m| digest(&m.bytes));
        assert!(same("1").is_some());
        assert_eq!(same("1.run-7"), same("1"));
        for absent in ["2", "2.run-7", "nope", "1.a.b", ".", ""] {
            assert_eq!(same(absent), None, "{absent:?}");
        }
        assert!(plain.manifest("testimage", "1.run-7").is_none());
    }
}
