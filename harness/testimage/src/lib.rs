//! The test image: one static program with the tools scenarios need, packed as an OCI image without any registry.
//!
//! [`BINARY`] is the program; [`Image::testimage`] packs it with a link per tool; [`Image::write_archive`] writes an
//! archive that is an OCI layout and a `docker save` file at once. Packing is deterministic: same program, same digests.
#![deny(missing_docs)]

mod archive;
/// The shell's grammar, as the test program itself reads it: for those who run its programs without a process.
#[path = "../workload/parse.rs"]
#[expect(missing_docs, reason = "written for the program, which documents what is not plain")]
pub mod grammar;
mod image;

pub use archive::ArchiveError;
pub use image::{Blob, Image, digest};

/// The static executable.
pub static BINARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/testimage"));

/// Names the image links to the program in `/bin`.
pub const TOOLS: &[&str] = &[
    "sh",
    "serve",
    "sleep",
    "exit",
    "oom",
    "fetch",
    "dns",
    "write",
    "signal-trap",
    "log",
    "cat",
    "touch",
    "test",
    "[",
    "kill",
    "nc",
    "stat",
    "tail",
    "head",
    "id",
    "ls",
    "hostname",
    "rm",
    "mkdir",
    "echo",
    "printf",
    "true",
    "false",
    "env",
    "pwd",
    "wc",
    "date",
    "seq",
    "pause",
    "grep",
    "ln",
    "wget",
    "nslookup",
    "chmod",
    "ps",
    "mount",
];
