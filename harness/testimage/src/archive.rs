//! One tar that is an OCI layout and a `docker save` archive at once, so that every loader takes it.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use serde_json::json;

use crate::Image;

/// The archive could not be written.
#[derive(Debug, thiserror::Error)]
#[error("write image archive {path}")]
pub struct ArchiveError {
    path: PathBuf,
    #[source]
    source: std::io::Error,
}

impl Image {
    /// Writes the image under a name (`registry.test/testimage:1`) as an archive.
    ///
    /// # Errors
    /// [`ArchiveError`] when the file cannot be written.
    pub fn write_archive(&self, path: &Path, name: &str) -> Result<(), ArchiveError> {
        let write = || -> std::io::Result<()> {
            let mut tar = tar::Builder::new(File::create(path)?);
            let mut add = |name: &str, bytes: &[u8]| {
                let mut header = tar::Header::new_ustar();
                header.set_mode(0o644);
                header.set_size(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
                header.set_mtime(0);
                tar.append_data(&mut header, name, bytes)
            };
            let blob = |digest: &str| format!("blobs/sha256/{}", digest.trim_start_matches("sha256:"));
            add("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
            let index = json!({"schemaVersion": 2, "manifests": [{
                "mediaType": self.manifest.media_type, "digest": self.manifest.digest, "size": self.manifest.bytes.len(),
                "annotations": {"org.opencontainers.image.ref.name": name, "io.containerd.image.name": name},
            }]});
            add("index.json", index.to_string().as_bytes())?;
            let layers: Vec<String> = self.layers.iter().map(|l| blob(&l.digest)).collect();
            let docker = json!([{"Config": blob(&self.config.digest), "RepoTags": [name], "Layers": layers}]);
            add("manifest.json", docker.to_string().as_bytes())?;
            for b in self.blobs().chain([&self.manifest]) {
                add(&blob(&b.digest), &b.bytes)?;
            }
            tar.into_inner().map(drop)
        };
        write().map_err(|source| ArchiveError { path: path.to_owned(), source })
    }
}
