//! The image: the program that is running, the loader and libraries it was linked with if it was not linked statically,
//! and the empty folders things are mounted on. Nothing else is in it.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

/// Where the program is in the image.
pub const PROGRAM: &str = "/podlab/podlab";
/// Folders of the image.
const FOLDERS: [&str; 10] =
    ["proc", "sys", "dev", "etc", "run", "tmp", "podlab", "podlab/state", "podlab/run", "podlab/out"];
/// `PT_INTERP` of the ELF specification.
const PT_INTERP: u32 = 3;

/// What goes into an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    /// The program, on this machine.
    pub program: PathBuf,
    /// Loader and libraries: where they are here, and where they must be there.
    pub libraries: Vec<(PathBuf, PathBuf)>,
}

impl Parts {
    /// Those of the running program.
    ///
    /// # Errors
    /// The disk's, and that the program is no ELF file of 64 bits.
    pub fn of_this_program() -> io::Result<Self> {
        // What the link leads to, so that its name is one here: a deleted program cannot be packed.
        let program = std::fs::read_link("/proc/self/exe")?;
        let Some(loader) = interpreter(&program)? else {
            return Ok(Self { program, libraries: Vec::new() });
        };
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        let own = program.to_string_lossy().into_owned();
        let mut libraries: Vec<(PathBuf, PathBuf)> =
            mapped(&maps).into_iter().filter(|p| *p != own).map(|p| (PathBuf::from(&p), PathBuf::from(p))).collect();
        libraries.push((std::fs::canonicalize(&loader)?, loader));
        Ok(Self { program, libraries })
    }

    /// Sixteen hexadecimal digits that change when any part does.
    ///
    /// # Errors
    /// The disk's.
    pub fn digest(&self) -> io::Result<String> {
        let mut hash = Sha256::new();
        for (from, to) in self.files() {
            hash.update(to.as_os_str().as_encoded_bytes());
            io::copy(&mut File::open(from)?, &mut hash)?;
        }
        Ok(hash.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect())
    }

    /// Writes the file system of the image as a tar archive.
    ///
    /// # Errors
    /// The disk's.
    pub fn write_tar(&self, out: impl Write) -> io::Result<()> {
        let mut tar = tar::Builder::new(out);
        let mut made: BTreeSet<PathBuf> = BTreeSet::new();
        let mut folder = |tar: &mut tar::Builder<_>, path: &Path| -> io::Result<()> {
            let mut all: Vec<&Path> = path.ancestors().filter(|p| !p.as_os_str().is_empty()).collect();
            all.reverse();
            for dir in all {
                if made.insert(dir.to_owned()) {
                    let mut header = header(tar::EntryType::Directory, 0o755, 0);
                    tar.append_data(&mut header, dir, io::empty())?;
                }
            }
            Ok(())
        };
        for name in FOLDERS {
            folder(&mut tar, Path::new(name))?;
        }
        for (from, to) in self.files() {
            let inside = to.strip_prefix("/").unwrap_or(&to);
            folder(&mut tar, inside.parent().unwrap_or(Path::new("")))?;
            let file = File::open(&from)?;
            let mut header = header(tar::EntryType::Regular, 0o755, file.metadata()?.len());
            tar.append_data(&mut header, inside, file)?;
        }
        tar.into_inner()?.flush()
    }

    fn files(&self) -> Vec<(PathBuf, PathBuf)> {
        let program = (self.program.clone(), PathBuf::from(PROGRAM));
        std::iter::once(program).chain(self.libraries.iter().cloned()).collect()
    }
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header
}

/// Shared objects a process has mapped, from its `maps`.
fn mapped(maps: &str) -> BTreeSet<String> {
    let path = |line: &str| {
        let mut words = line.split_whitespace();
        let (rights, path) = (words.nth(1)?, words.nth(3)?);
        let file = path.rsplit('/').next()?;
        let shared = file.ends_with(".so") || file.contains(".so.");
        (rights.contains('x') && path.starts_with('/') && shared).then(|| path.to_owned())
    };
    maps.lines().filter_map(path).collect()
}

/// The loader an ELF file asks for; `None` when it is linked statically.
fn interpreter(program: &Path) -> io::Result<Option<PathBuf>> {
    let mut head = Vec::new();
    // Headers and the loader's name stand at the beginning of whatever linkers make.
    File::open(program)?.take(1 << 16).read_to_end(&mut head)?;
    let broken = || io::Error::other(format!("{} is no 64-bit ELF program", program.display()));
    let at = |offset: usize, len: usize| head.get(offset..offset.checked_add(len)?);
    let number = |offset: usize, len: usize| -> io::Result<usize> {
        let bytes = at(offset, len).ok_or_else(broken)?;
        let value = bytes.iter().rev().fold(0u64, |n, b| (n << 8) | u64::from(*b));
        usize::try_from(value).map_err(|_| broken())
    };
    if at(0, 6) != Some(b"\x7fELF\x02\x01") {
        return Err(broken());
    }
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for i in 0..count {
        let entry = size.checked_mul(i).and_then(|n| table.checked_add(n)).ok_or_else(broken)?;
        if number(entry, 4)? == PT_INTERP as usize {
            let name = at(number(entry + 8, 8)?, number(entry + 32, 8)?).ok_or_else(broken)?;
            let name = name.split(|b| *b == 0).next().unwrap_or_default();
            return Ok(Some(String::from_utf8_lossy(name).into_owned().into()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_packed_with_what_it_is_linked_with() {
        let parts = Parts::of_this_program().unwrap();
        let mut bytes = Vec::new();
        parts.write_tar(&mut bytes).unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let names: Vec<(String, bool)> = archive
            .entries()
            .unwrap()
            .map(|e| {
                let e = e.unwrap();
                (e.path().unwrap().to_string_lossy().into_owned(), e.header().entry_type().is_dir())
            })
            .collect();
        let file = |name: &str| names.contains(&(name.to_owned(), false));
        assert!(file("podlab/podlab"));
        match interpreter(&parts.program).unwrap() {
            None => assert_eq!(parts.libraries, []),
            Some(loader) => {
                assert!(file(loader.strip_prefix("/").unwrap().to_str().unwrap()), "{names:?}");
                assert!(names.iter().any(|(n, _)| n.contains("libc.so")), "{names:?}");
            }
        }
        let folders: Vec<&String> = names.iter().filter(|(_, dir)| *dir).map(|(n, _)| n).collect();
        let once: BTreeSet<&&String> = folders.iter().collect();
        assert_eq!(folders.len(), once.len(), "each folder is made once, before what is in it");
        assert_eq!(parts.digest().unwrap().len(), 16);
        assert_eq!(parts.digest().unwrap(), parts.digest().unwrap());
    }

    #[test]
    fn only_code_that_is_shared_counts_as_a_library() {
        let maps = "7f0-7f1 r-xp 00000000 fe:00 1 /usr/lib/libc.so.6\n7f1-7f2 r--p 00000000 fe:00 1 /usr/lib/libm.so.6\n\
                    7f2-7f3 r-xp 00000000 fe:00 1 /usr/bin/podlab\n7f3-7f4 r-xp 00000000 00:00 0 [vdso]\n";
        assert_eq!(mapped(maps), BTreeSet::from(["/usr/lib/libc.so.6".to_owned()]));
    }

    #[test]
    fn what_is_no_program_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in [("text", &b"#!/bin/sh\n"[..]), ("cut", b"\x7fELF\x02\x01"), ("empty", b"")] {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            assert!(interpreter(&path).is_err(), "{name}");
        }
        let mut wild = b"\x7fELF\x02\x01".to_vec();
        wild.resize(64, 0xff);
        let path = dir.path().join("wild");
        std::fs::write(&path, wild).unwrap();
        assert!(interpreter(&path).is_err());
    }
}
