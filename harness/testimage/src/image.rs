//! An OCI image in memory: one gzip layer, a configuration and a manifest.

use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{BINARY, TOOLS};

/// A blob with its media type and digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// Media type as manifests name it.
    pub media_type: &'static str,
    /// `sha256:…` of the bytes.
    pub digest: String,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// An image: what a registry serves and an archive holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The manifest.
    pub manifest: Blob,
    /// The configuration.
    pub config: Blob,
    /// The layers, lowest first.
    pub layers: Vec<Blob>,
}

/// `sha256:…` of some bytes.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold("sha256:".to_owned(), |text, b| format!("{text}{b:02x}"))
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

impl Blob {
    fn new(media_type: &'static str, bytes: Vec<u8>) -> Self {
        Self { media_type, digest: digest(&bytes), bytes }
    }

    fn descriptor(&self) -> Value {
        json!({"mediaType": self.media_type, "digest": self.digest, "size": self.bytes.len()})
    }
}

impl Image {
    /// The test image. Its default command serves HTTP on port 8080.
    ///
    /// # Panics
    /// Never: packing into memory cannot fail.
    pub fn testimage() -> Self {
        Self::pack(&json!({"Cmd": ["serve"], "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], "WorkingDir": "/"}))
            .expect("writing to memory does not fail")
    }

    /// The test image with another runtime configuration (`Cmd`, `Entrypoint`, `User`, `StopSignal`, …), which gives it
    /// another id.
    ///
    /// # Errors
    /// Only when memory writes fail.
    pub fn pack(runtime_config: &Value) -> std::io::Result<Self> {
        let tar = layer_tar()?;
        let diff_id = digest(&tar);
        let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
        gz.write_all(&tar)?;
        let layer = Blob::new(LAYER, gz.finish()?);
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }, "os": "linux",
            "created": "1970-01-01T00:00:00Z", "config": runtime_config,
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "podlab"}],
        });
        let config = Blob::new(CONFIG, config.to_string().into_bytes());
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config.descriptor(), "layers": [layer.descriptor()],
        });
        let manifest = Blob::new(MANIFEST, manifest.to_string().into_bytes());
        Ok(Self { manifest, config, layers: vec![layer] })
    }

    /// All blobs but the manifest.
    pub fn blobs(&self) -> impl Iterator<Item = &Blob> {
        self.layers.iter().chain([&self.config])
    }
}

/// The layer: the program, a link per tool, and the few files and folders programs expect.
fn layer_tar() -> std::io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let header = |kind: tar::EntryType, mode: u32, size: u64| {
        let mut h = tar::Header::new_ustar();
        h.set_entry_type(kind);
        h.set_mode(mode);
        h.set_size(size);
        h.set_uid(0);
        h.set_gid(0);
        h.set_mtime(0);
        h
    };
    for (dir, mode) in
        [("bin/", 0o755), ("etc/", 0o755), ("tmp/", 0o1777), ("home/", 0o755), ("root/", 0o700), ("var/", 0o755)]
    {
        tar.append_data(&mut header(tar::EntryType::Directory, mode, 0), dir, std::io::empty())?;
    }
    let size = |bytes: &[u8]| u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    for (path, mode, bytes) in [
        ("bin/testimage", 0o755, BINARY),
        ("etc/passwd", 0o644, &b"root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/home:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"[..]),
        ("etc/group", 0o644, &b"root:x:0:\napp:x:1000:\nextra:x:2000:app\nnogroup:x:65534:\n"[..]),
        ("etc/nsswitch.conf", 0o644, &b"hosts: files dns\n"[..]),
    ] {
        tar.append_data(&mut header(tar::EntryType::Regular, mode, size(bytes)), path, bytes)?;
    }
    for tool in TOOLS {
        tar.append_link(&mut header(tar::EntryType::Symlink, 0o777, 0), format!("bin/{tool}"), "testimage")?;
    }
    tar.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_twice_gives_the_same_digests_and_another_config_another_id() {
        let (a, b) = (Image::testimage(), Image::testimage());
        assert_eq!(a, b);
        let other = Image::pack(&json!({"Cmd": ["sleep", "1"]})).unwrap();
        assert_ne!(a.config.digest, other.config.digest);
        assert_eq!(a.layers, other.layers);
    }

    /// The program on disk, ready to run.
    fn program(dir: &std::path::Path) -> std::path::PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let program = dir.join("testimage");
        std::fs::write(&program, BINARY).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        program
    }

    #[test]
    fn every_linked_tool_is_one_the_program_knows() {
        let dir = tempfile::tempdir().unwrap();
        let output = std::process::Command::new(program(dir.path())).arg("--list").output().unwrap();
        let known = String::from_utf8(output.stdout).unwrap();
        for tool in TOOLS {
            assert!(known.lines().any(|l| l == *tool), "{tool}");
        }
    }

    #[test]
    fn a_server_obeys_term_however_early_it_comes() {
        use std::{
            io::{BufRead, BufReader},
            process::{Command, Stdio},
        };
        let dir = tempfile::tempdir().unwrap();
        let program = program(dir.path());
        for _ in 0..20 {
            let mut command = Command::new(&program);
            command.args(["serve", "--port", "0", "--bind", "127.0.0.1"]).stdout(Stdio::piped());
            let mut server = command.spawn().unwrap();
            let mut line = String::new();
            BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert!(line.starts_with("serving"), "{line}");
            let kill = Command::new(&program).args(["kill", "-s", "TERM", &server.id().to_string()]).status().unwrap();
            assert!(kill.success());
            assert_eq!(server.wait().unwrap().code(), Some(0));
        }
    }
}
