//! Archives of images: what `docker save` writes and OCI layouts, packed or not in gzip.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{
    ImageError, ImageRecord, Reference, Store,
    manifest::{ConfigFile, Descriptor, Manifest},
    store::{chain_ids, digest_of},
    unpack::{LayerCheck, unpack_layer},
};

const MAX_FILES: usize = 4096;
const MAX_BYTES: u64 = 64 << 30;
const MAX_JSON: u64 = 8 << 20;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// An archive's files, spread out in a scratch directory under numbers; names are only keys.
struct Archive {
    dir: PathBuf,
    files: BTreeMap<String, PathBuf>,
    links: BTreeMap<String, String>,
}

impl Drop for Archive {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Store {
    /// Imports every image of an archive file under the names it gives them; returns those names. Safe beside a
    /// running bridge, which sees the images at once.
    ///
    /// # Errors
    /// [`ImageError`]; images of the archive that came before the failure stay.
    pub fn import(&self, archive: &Path) -> Result<Vec<String>, ImageError> {
        let file = fs::File::open(archive).map_err(ImageError::io(format!("open {}", archive.display())))?;
        self.import_from(file)
    }

    /// As [`Store::import`], from a reader.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn import_from(&self, reader: impl Read) -> Result<Vec<String>, ImageError> {
        let mut head = [0; 2];
        let mut reader = BufReader::with_capacity(64 << 10, reader);
        reader.read_exact(&mut head).map_err(ImageError::io("read archive"))?;
        let whole = io::Cursor::new(head).chain(reader);
        let dir = self.scratch()?;
        let archive = if head == [0x1f, 0x8b] {
            Archive::read(flate2::read::MultiGzDecoder::new(BufReader::new(whole)), dir)?
        } else {
            Archive::read(whole, dir)?
        };
        if archive.has("manifest.json") {
            self.import_saved(&archive)
        } else if archive.has("index.json") {
            self.import_layout(&archive)
        } else {
            Err(ImageError::Malformed("neither manifest.json nor index.json: not an image archive".into()))
        }
    }

    /// The format of `docker save`. Newer Dockers write an OCI layout beside it, which gives the manifest's digest.
    fn import_saved(&self, archive: &Archive) -> Result<Vec<String>, ImageError> {
        let list: Vec<Saved> = serde_json::from_slice(&archive.json("manifest.json")?)
            .map_err(|e| ImageError::Malformed(format!("unreadable manifest.json: {e}")))?;
        let manifests = archive.layout_manifests();
        let mut names = Vec::new();
        for saved in list {
            let config = archive.json(&saved.config)?;
            let id = digest_of(&config);
            let tags: Vec<Reference> =
                saved.repo_tags.unwrap_or_default().iter().map(|t| Reference::parse(t)).collect::<Result<_, _>>()?;
            let layers: Vec<(String, Option<String>)> = saved.layers.into_iter().map(|l| (l, None)).collect();
            let digest = manifests.get(&id).cloned();
            names.extend(self.import_image(archive, &config, &layers, &tags, digest.as_deref())?);
        }
        Ok(names)
    }

    fn import_layout(&self, archive: &Archive) -> Result<Vec<String>, ImageError> {
        let index = Manifest::parse(&archive.json("index.json")?)?;
        let mut names = Vec::new();
        for entry in index.manifests.iter().flatten() {
            let Some((digest, manifest)) = archive.manifest_of(entry, 0)? else { continue };
            let (Some(config), Some(layers)) = (manifest.config, manifest.layers) else { continue };
            let tags: Vec<Reference> = ["io.containerd.image.name", "org.opencontainers.image.ref.name"]
                .iter()
                .filter_map(|k| entry.annotations.get(*k).filter(|n| n.contains('/')))
                .take(1)
                .map(|n| Reference::parse(n))
                .collect::<Result<_, _>>()?;
            let json = archive.blob(&config)?;
            let layers: Vec<(String, Option<String>)> =
                layers.into_iter().map(|l| (blob_path(&l.digest), Some(l.digest))).collect();
            names.extend(self.import_image(archive, &json, &layers, &tags, Some(&digest))?);
        }
        Ok(names)
    }

    /// One image: its config, and its layers as (file, digest of that file).
    fn import_image(
        &self,
        archive: &Archive,
        config: &[u8],
        layers: &[(String, Option<String>)],
        tags: &[Reference],
        digest: Option<&str>,
    ) -> Result<Vec<String>, ImageError> {
        let file = ConfigFile::parse(config)?;
        if file.rootfs.diff_ids.len() != layers.len() {
            return Err(ImageError::Malformed("the config and the manifest differ in their number of layers".into()));
        }
        let chain = chain_ids(&file.rootfs.diff_ids);
        let mut size = config.len() as u64;
        for (at, (name, digest)) in layers.iter().enumerate() {
            let path = archive.path(name)?;
            size += fs::metadata(path).map_or(0, |m| m.len());
            if self.layer_dir(&chain[at]).is_dir() {
                continue;
            }
            let scratch = self.scratch()?;
            let parents: Vec<PathBuf> = chain[..at].iter().rev().map(|c| self.layer_dir(c)).collect();
            let check = LayerCheck { digest: digest.clone(), diff_id: file.rootfs.diff_ids[at].clone(), size: None };
            let source = fs::File::open(path).map_err(ImageError::io(format!("open layer {name}")))?;
            if let Err(e) = unpack_layer(source, &scratch.join("fs"), &parents, &check) {
                let _ = fs::remove_dir_all(&scratch);
                return Err(e);
            }
            self.commit_layer(&scratch, &chain[at])?;
        }
        let tagged: BTreeSet<String> =
            tags.iter().map(|r| format!("{}:{}", r.name(), r.tag.as_deref().unwrap_or("latest"))).collect();
        let digests = digest.map(|d| tags.iter().map(|r| format!("{}@{d}", r.name())).collect()).unwrap_or_default();
        let names = tagged.iter().cloned().collect();
        self.put(ImageRecord {
            id: digest_of(config),
            tags: tagged,
            digests,
            size,
            layers: chain,
            config: file.config,
            pinned: false,
        })?;
        Ok(names)
    }
}

impl Archive {
    fn read(reader: impl Read, dir: PathBuf) -> Result<Self, ImageError> {
        let mut this = Self { dir, files: BTreeMap::new(), links: BTreeMap::new() };
        let mut tar = tar::Archive::new(reader.take(MAX_BYTES));
        for entry in tar.entries().map_err(ImageError::io("read archive"))? {
            let mut entry = entry.map_err(ImageError::io("read archive"))?;
            let name = String::from_utf8_lossy(&entry.path_bytes()).trim_start_matches("./").to_owned();
            if this.files.len() + this.links.len() > MAX_FILES {
                return Err(ImageError::TooLarge("the number of files in an archive", MAX_FILES as u64));
            }
            if entry.header().entry_type().is_file() {
                let path = this.dir.join(this.files.len().to_string());
                let mut file = fs::File::create(&path).map_err(ImageError::io("write to the image store"))?;
                io::copy(&mut entry, &mut file).map_err(ImageError::io("read archive"))?;
                this.files.insert(name, path);
            } else if let Some(to) = entry.link_name_bytes() {
                let to = String::from_utf8_lossy(&to).into_owned();
                this.links.insert(name, to);
            }
        }
        Ok(this)
    }

    fn has(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    /// A file by its name in the archive; one level of links, which older Dockers use for layers that occur twice.
    fn path(&self, name: &str) -> Result<&Path, ImageError> {
        let linked = || {
            let to = self.links.get(name)?;
            let beside = Path::new(name).parent()?.join(to);
            let mut clean = PathBuf::new();
            for part in beside.components() {
                match part {
                    std::path::Component::ParentDir => drop(clean.pop()),
                    other => clean.push(other),
                }
            }
            self.files.get(clean.to_str()?).or_else(|| self.files.get(to))
        };
        let found = self.files.get(name).or_else(linked);
        found.map(PathBuf::as_path).ok_or_else(|| ImageError::Malformed(format!("the archive lacks {name}")))
    }

    fn json(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        let path = self.path(name)?;
        if fs::metadata(path).is_ok_and(|m| m.len() > MAX_JSON) {
            return Err(ImageError::TooLarge("a JSON file of the archive", MAX_JSON));
        }
        fs::read(path).map_err(ImageError::io(format!("read {name}")))
    }

    /// A small blob of a layout, checked.
    fn blob(&self, what: &Descriptor) -> Result<Vec<u8>, ImageError> {
        let bytes = self.json(&blob_path(&what.digest))?;
        let got = digest_of(&bytes);
        if got == what.digest { Ok(bytes) } else { Err(ImageError::Digest { got, want: what.digest.clone() }) }
    }

    /// The manifest an index entry leads to, through an index for several platforms if need be.
    fn manifest_of(&self, entry: &Descriptor, depth: usize) -> Result<Option<(String, Manifest)>, ImageError> {
        let manifest = Manifest::parse(&self.blob(entry)?)?;
        if manifest.manifests.is_none() {
            return Ok(Some((entry.digest.clone(), manifest)));
        }
        match manifest.for_here() {
            Some(here) if depth < 2 && self.has(&blob_path(&here.digest)) => {
                let inner = self.manifest_of(here, depth + 1)?;
                // The name stands for the index, so its digest is the one to record.
                Ok(inner.map(|(_, m)| (entry.digest.clone(), m)))
            }
            _ => Ok(None),
        }
    }

    /// Image id → manifest digest, from a layout beside `manifest.json`.
    fn layout_manifests(&self) -> BTreeMap<String, String> {
        let index = self.json("index.json").ok().and_then(|j| Manifest::parse(&j).ok()).unwrap_or_default();
        let entries = index.manifests.unwrap_or_default();
        let found = entries.iter().filter_map(|e| {
            let (digest, manifest) = self.manifest_of(e, 0).ok()??;
            Some((manifest.config?.digest, digest))
        });
        found.collect()
    }
}

fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}
