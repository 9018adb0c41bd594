//! Putting image archives (`docker save`, OCI layout) into a registry's storage.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
};

use base64::Engine;
use bytes::Bytes;
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use podlab_testimage::digest;
use serde_json::{Value, json};

use crate::{Storage, StorageError};

/// Why an archive could not be taken in.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The file could not be read.
    #[error("read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is not an image archive, or one that contradicts itself.
    #[error("{path} is not an image archive: {why}")]
    Invalid {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The registry's answer to a push.
    #[error("the registry answered: {0}")]
    Refused(String),
    /// The storage refused a part.
    #[error("store image")]
    Store(#[from] StorageError),
}

/// Larger archives are refused.
const MAX_ARCHIVE: u64 = 8 << 30;

/// An image read from an archive, ready to be stored.
struct Loaded {
    manifest: Bytes,
    media_type: String,
    blobs: Vec<Bytes>,
}

/// Stores the (first) image of an archive under `repository:tag`.
///
/// # Errors
/// [`ArchiveError`].
pub fn push(storage: &Storage, tar: &Path, repository: &str, tag: &str) -> Result<(), ArchiveError> {
    let loaded = load(tar)?;
    for blob in loaded.blobs {
        storage.put_blob(&digest(&blob), blob)?;
    }
    storage.put_manifest(repository, tag, &loaded.media_type, loaded.manifest)?;
    Ok(())
}

/// Pushes the (first) image of an archive to a registry over plain HTTP. Blocking.
///
/// # Errors
/// [`ArchiveError`]; [`ArchiveError::Refused`] with the registry's answer.
pub fn push_http(
    to: SocketAddr,
    credentials: Option<(&str, &str)>,
    tar: &Path,
    repository: &str,
    tag: &str,
) -> Result<(), ArchiveError> {
    let loaded = load(tar)?;
    let send = |method: &str, path: &str, kind: &str, body: &[u8]| -> Result<(), ArchiveError> {
        let net = |source| ArchiveError::Read { path: to.to_string().into(), source };
        let auth = credentials.map(|(user, password)| {
            let text = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
            format!("Authorization: Basic {text}\r\n")
        });
        let mut stream = TcpStream::connect(to).map_err(net)?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: registry\r\nConnection: close\r\n{}Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            auth.unwrap_or_default(),
            body.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).map_err(net)?;
        let mut answer = Vec::new();
        stream.take(1 << 20).read_to_end(&mut answer).map_err(net)?;
        let text = String::from_utf8_lossy(&answer).into_owned();
        let status = text.split_whitespace().nth(1).unwrap_or_default();
        if status.starts_with('2') {
            Ok(())
        } else {
            Err(ArchiveError::Refused(text.lines().last().unwrap_or(status).to_owned()))
        }
    };
    for blob in &loaded.blobs {
        let path = format!("/v2/{repository}/blobs/uploads/?digest={}", digest(blob));
        send("POST", &path, "application/octet-stream", blob)?;
    }
    send("PUT", &format!("/v2/{repository}/manifests/{tag}"), &loaded.media_type, &loaded.manifest)
}

fn load(path: &Path) -> Result<Loaded, ArchiveError> {
    let read = |source| ArchiveError::Read { path: path.to_owned(), source };
    let invalid = |why: &str| ArchiveError::Invalid { path: path.to_owned(), why: why.to_owned() };
    let mut file = File::open(path).map_err(read)?;
    let mut magic = [0; 2];
    file.read_exact(&mut magic).map_err(read)?;
    let file = File::open(path).map_err(read)?;
    let reader: Box<dyn Read> = if magic == [0x1f, 0x8b] { Box::new(GzDecoder::new(file)) } else { Box::new(file) };
    let mut files: BTreeMap<String, Bytes> = BTreeMap::new();
    let mut archive = tar::Archive::new(reader.take(MAX_ARCHIVE));
    for entry in archive.entries().map_err(read)? {
        let mut entry = entry.map_err(read)?;
        let name = entry.path().map_err(read)?.to_string_lossy().trim_start_matches("./").to_owned();
        if entry.header().entry_type().is_file() {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).map_err(read)?;
            files.insert(name, bytes.into());
        } else if let Ok(Some(target)) = entry.link_name() {
            // docker save links a layer that two images share.
            let base = Path::new(&name).parent().unwrap_or_else(|| Path::new("")).join(target);
            let wanted = normalise(&base);
            if let Some(bytes) = files.get(&wanted).cloned() {
                files.insert(name, bytes);
            }
        }
    }
    let parse = |name: &str| files.get(name).and_then(|b| serde_json::from_slice::<Value>(b).ok());
    if let Some(index) = parse("index.json") {
        return oci(&index, &files).map_err(|why| invalid(&why));
    }
    let manifest = parse("manifest.json").ok_or_else(|| invalid("neither index.json nor manifest.json"))?;
    docker(&manifest, &files).map_err(|why| invalid(&why))
}

/// Resolves `..` without touching the disk.
fn normalise(path: &Path) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(parts.pop()),
            std::path::Component::Normal(p) => parts.push(p.to_string_lossy().into_owned()),
            _ => {}
        }
    }
    parts.join("/")
}

fn blob_of(descriptor: &Value, files: &BTreeMap<String, Bytes>) -> Result<Bytes, String> {
    let text = descriptor.get("digest").and_then(Value::as_str).ok_or("descriptor without digest")?;
    let bytes = files
        .get(&format!("blobs/{}", text.replacen(':', "/", 1)))
        .cloned()
        .ok_or(format!("blob {text} is missing"))?;
    if digest(&bytes) == text { Ok(bytes) } else { Err(format!("blob {text} has another digest")) }
}

fn oci(index: &Value, files: &BTreeMap<String, Bytes>) -> Result<Loaded, String> {
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let mut descriptor = index.pointer("/manifests/0").cloned().ok_or("index without manifests")?;
    // An index may point to another index with one manifest per platform.
    for _ in 0..3 {
        let bytes = blob_of(&descriptor, files)?;
        let tree: Value = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
        if let Some(list) = tree.get("manifests").and_then(Value::as_array) {
            let fits = |d: &&Value| d.pointer("/platform/architecture").is_none_or(|a| a == architecture);
            descriptor = list.iter().find(fits).cloned().ok_or("no manifest for this platform")?;
            continue;
        }
        let config = tree.get("config").ok_or("manifest without config")?;
        let layers = tree.get("layers").and_then(Value::as_array).ok_or("manifest without layers")?;
        let blobs = layers.iter().chain([config]).map(|d| blob_of(d, files)).collect::<Result<_, _>>()?;
        let kind = tree.get("mediaType").or_else(|| descriptor.get("mediaType")).and_then(Value::as_str);
        let media_type = kind.unwrap_or("application/vnd.oci.image.manifest.v1+json").to_owned();
        return Ok(Loaded { manifest: bytes, media_type, blobs });
    }
    Err("indexes are nested too deeply".into())
}

/// A `docker save` archive holds uncompressed layers; the manifest is made here.
fn docker(manifest: &Value, files: &BTreeMap<String, Bytes>) -> Result<Loaded, String> {
    let image = manifest.get(0).ok_or("manifest.json is empty")?;
    let file = |v: Option<&Value>| {
        let name = v.and_then(Value::as_str).ok_or("manifest.json names no file")?;
        files.get(name).cloned().ok_or(format!("{name} is missing"))
    };
    let config = file(image.get("Config"))?;
    let mut blobs = Vec::new();
    let mut layers = Vec::new();
    for layer in image.get("Layers").and_then(Value::as_array).into_iter().flatten() {
        let raw = file(Some(layer))?;
        let packed = if raw.starts_with(&[0x1f, 0x8b]) {
            raw
        } else {
            let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
            std::io::copy(&mut &raw[..], &mut gz).map_err(|e| e.to_string())?;
            gz.finish().map_err(|e| e.to_string())?.into()
        };
        layers.push(json!({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest(&packed), "size": packed.len()}));
        blobs.push(packed);
    }
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let tree = json!({
        "schemaVersion": 2, "mediaType": media_type, "layers": layers,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(&config), "size": config.len()},
    });
    blobs.push(config);
    Ok(Loaded { manifest: tree.to_string().into_bytes().into(), media_type: media_type.to_owned(), blobs })
}
