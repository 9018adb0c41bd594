//! Unpacking a layer: gzip or plain tar into a directory, digests checked on the way. Nothing is ever created outside
//! that directory: parents are opened by the kernel with the directory as root, and everything else is relative to them.
#![expect(unsafe_code, reason = "mknodat, utimensat and setxattr on descriptors")]

use std::{
    ffi::CString,
    fs, io,
    io::{BufReader, Read},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Component, Path, PathBuf},
};

use bytes::{Buf, Bytes};
use nix::{
    fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2},
    sys::stat::{Mode, mkdirat},
    unistd::{Gid, Uid, UnlinkatFlags, fchown, fchownat, linkat, symlinkat, unlinkat},
};
use sha2::{Digest, Sha256};
use tar::EntryType;
use tokio::sync::mpsc;

use super::{ImageError, store::hex};

const MAX_ENTRIES: u64 = 2_000_000;
const MAX_BYTES: u64 = 32 << 30;
const MAX_PATH: usize = 4096;

/// What a layer must turn out to be.
#[derive(Debug, Default)]
pub(crate) struct LayerCheck {
    /// Of the stream as it comes; `None`: not known.
    pub digest: Option<String>,
    /// Of the tar archive inside.
    pub diff_id: String,
    /// Length of the stream.
    pub size: Option<u64>,
}

/// Reads what an async task sends.
pub(crate) struct ChannelReader {
    rx: mpsc::Receiver<io::Result<Bytes>>,
    current: Bytes,
}

impl ChannelReader {
    pub fn new(rx: mpsc::Receiver<io::Result<Bytes>>) -> Self {
        Self { rx, current: Bytes::new() }
    }
}

impl Read for ChannelReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.rx.blocking_recv() {
                Some(next) => self.current = next?,
                None => return Ok(0),
            }
        }
        let n = buf.len().min(self.current.len());
        self.current.copy_to_slice(&mut buf[..n]);
        Ok(n)
    }
}

/// Hashes and counts what passes.
struct Hashing<R> {
    inner: R,
    hash: Sha256,
    bytes: u64,
    limit: u64,
}

impl<R: Read> Hashing<R> {
    fn new(inner: R, limit: u64) -> Self {
        Self { inner, hash: Sha256::new(), bytes: 0, limit }
    }

    fn digest(&self) -> String {
        format!("sha256:{}", hex(&self.hash.clone().finalize()))
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.hash.update(&buf[..n]);
        self.bytes += n as u64;
        if self.bytes > self.limit {
            return Err(io::Error::other(format!("layer exceeds the limit of {} bytes", self.limit)));
        }
        Ok(n)
    }
}

/// Unpacks one layer into `target` and checks it. `parents` are the layers below, topmost first: directories that the
/// archive does not mention get the mode and owner they have there.
pub(crate) fn unpack_layer(
    source: impl Read,
    target: &Path,
    parents: &[PathBuf],
    check: &LayerCheck,
) -> Result<(), ImageError> {
    let limit = check.size.unwrap_or(MAX_BYTES).min(MAX_BYTES);
    let mut packed = Hashing::new(source, limit);
    let mut magic = [0; 4];
    let got = read_up_to(&mut packed, &mut magic).map_err(ImageError::io("read layer"))?;
    let head = io::Cursor::new(magic[..got].to_vec());
    let diff_id = {
        let whole = Read::chain(head, &mut packed);
        if magic[..got].starts_with(&[0x1f, 0x8b]) {
            unpack_tar(flate2::read::MultiGzDecoder::new(BufReader::with_capacity(64 << 10, whole)), target, parents)?
        } else if magic == [0x28, 0xb5, 0x2f, 0xfd] {
            return Err(ImageError::Malformed("layers compressed with zstd are not supported".into()));
        } else {
            unpack_tar(whole, target, parents)?
        }
    };
    io::copy(&mut packed, &mut io::sink()).map_err(ImageError::io("read layer"))?;
    let packed_digest = packed.digest();
    for (want, got) in [(check.digest.as_ref(), &packed_digest), (Some(&check.diff_id), &diff_id)] {
        if let Some(want) = want.filter(|w| *w != got) {
            return Err(ImageError::Digest { got: got.clone(), want: want.clone() });
        }
    }
    Ok(())
}

fn read_up_to(reader: &mut impl Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut n = 0;
    while n < buf.len() {
        match reader.read(&mut buf[n..])? {
            0 => break,
            m => n += m,
        }
    }
    Ok(n)
}

/// Returns the digest of the archive.
fn unpack_tar(source: impl Read, target: &Path, parents: &[PathBuf]) -> Result<String, ImageError> {
    fs::create_dir_all(target).map_err(ImageError::io("make the layer directory"))?;
    // The root of a layer is the container's "/": take the mode and owner of the layer below.
    let root = fs::File::open(target).map_err(ImageError::io("open the layer directory"))?;
    let mut unpacker = Unpacker { root: root.into(), parents: parents.to_vec(), last: None, times: Vec::new() };
    copy_attributes(parents, Path::new("."), &unpacker.root).map_err(ImageError::io("set up the layer directory"))?;
    let mut archive = tar::Archive::new(Hashing::new(source, MAX_BYTES));
    let mut count = 0;
    for entry in archive.entries().map_err(ImageError::io("read layer"))? {
        let mut entry = entry.map_err(ImageError::io("read layer"))?;
        count += 1;
        if count > MAX_ENTRIES {
            return Err(ImageError::TooLarge("the number of files in a layer", MAX_ENTRIES));
        }
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        unpacker.put(&mut entry).map_err(ImageError::io(format!("unpack {name:?}")))?;
    }
    unpacker.set_times();
    let mut rest = archive.into_inner();
    io::copy(&mut rest, &mut io::sink()).map_err(ImageError::io("read layer"))?;
    Ok(rest.digest())
}

struct Unpacker {
    root: OwnedFd,
    parents: Vec<PathBuf>,
    /// The directory last written to.
    last: Option<(PathBuf, OwnedFd)>,
    /// Directory times are set at the end: filling a directory changes them.
    times: Vec<(PathBuf, i64)>,
}

impl Unpacker {
    fn put<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>) -> io::Result<()> {
        let path = clean(&entry.path()?)?;
        let (Some(name), parent) = (path.file_name(), path.parent().unwrap_or(Path::new(""))) else {
            return self.set_owner_and_mode_of_root(entry);
        };
        let (name, parent) = (name.to_owned(), parent.to_owned());
        let dir = self.directory(&parent)?;
        if let Some(hidden) = name.as_bytes().strip_prefix(b".wh.") {
            return whiteout(&dir, hidden);
        }
        let c_name = CString::new(name.as_bytes())?;
        let header = entry.header();
        let (uid, gid) = (id(header.uid()?)?, id(header.gid()?)?);
        let mode = header.mode()? & 0o7777;
        let mtime = header.mtime().ok().and_then(|t| i64::try_from(t).ok()).unwrap_or(0);
        match header.entry_type() {
            EntryType::Directory => {
                if mkdirat(&dir, c_name.as_c_str(), Mode::from_bits_truncate(0o700)).is_err() {
                    let is_dir = open_dir(&dir, Path::new(&name)).is_ok_and(|_| true) && !is_symlink(&dir, &c_name);
                    if !is_dir {
                        remove(&dir, &c_name)?;
                        mkdirat(&dir, c_name.as_c_str(), Mode::from_bits_truncate(0o700))?;
                    }
                }
                self.last = None;
                own(&dir, &c_name, uid, gid)?;
                chmod(&dir, &c_name, mode)?;
                if self.times.len() < 1 << 20 {
                    self.times.push((path, mtime));
                }
                return Ok(());
            }
            EntryType::Symlink => {
                let to = entry.link_name()?.ok_or_else(|| io::Error::other("a link without a target"))?.into_owned();
                remove(&dir, &c_name)?;
                symlinkat(to.as_path(), &dir, c_name.as_c_str())?;
                own(&dir, &c_name, uid, gid)?;
            }
            EntryType::Link => {
                let to = clean(&entry.link_name()?.ok_or_else(|| io::Error::other("a link without a target"))?)?;
                let (Some(to_name), to_parent) = (to.file_name(), to.parent().unwrap_or(Path::new(""))) else {
                    return Err(io::Error::other("a link to the root"));
                };
                let to_dir = open_dir(&self.root, to_parent)?;
                remove(&dir, &c_name)?;
                linkat(&to_dir, to_name, &dir, c_name.as_c_str(), AtFlags::empty())?;
                return Ok(());
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                let kind = match header.entry_type() {
                    EntryType::Char => libc::S_IFCHR,
                    EntryType::Block => libc::S_IFBLK,
                    _ => libc::S_IFIFO,
                };
                let rdev = libc::makedev(header.device_major()?.unwrap_or(0), header.device_minor()?.unwrap_or(0));
                remove(&dir, &c_name)?;
                // SAFETY: a descriptor we own and a C string.
                nix::errno::Errno::result(unsafe {
                    libc::mknodat(dir.as_raw_fd(), c_name.as_ptr(), kind | 0o600, rdev)
                })?;
                own(&dir, &c_name, uid, gid)?;
                chmod(&dir, &c_name, mode)?;
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                remove(&dir, &c_name)?;
                let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                let mut file: fs::File =
                    openat(&dir, c_name.as_c_str(), flags, Mode::from_bits_truncate(0o600))?.into();
                io::copy(entry, &mut file)?;
                fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
                nix::sys::stat::fchmod(&file, Mode::from_bits_truncate(mode))?;
            }
            _ => return Ok(()),
        }
        set_time(&dir, &c_name, mtime);
        Ok(())
    }

    fn set_owner_and_mode_of_root<R: Read>(&self, entry: &tar::Entry<'_, R>) -> io::Result<()> {
        let header = entry.header();
        fchown(&self.root, Some(Uid::from_raw(id(header.uid()?)?)), Some(Gid::from_raw(id(header.gid()?)?)))?;
        nix::sys::stat::fchmod(&self.root, Mode::from_bits_truncate(header.mode()? & 0o7777))?;
        Ok(())
    }

    /// A directory of the layer, made with its parents when the archive has not mentioned it.
    fn directory(&mut self, path: &Path) -> io::Result<OwnedFd> {
        if let Some((last, fd)) = &self.last
            && last == path
        {
            return fd.try_clone();
        }
        let fd = match open_dir(&self.root, path) {
            Ok(fd) => fd,
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.make_directories(path)?,
            Err(e) => return Err(e),
        };
        self.last = Some((path.to_owned(), fd.try_clone()?));
        Ok(fd)
    }

    fn make_directories(&self, path: &Path) -> io::Result<OwnedFd> {
        let mut fd = self.root.try_clone()?;
        let mut so_far = PathBuf::new();
        for step in path.components() {
            so_far.push(step);
            fd = match open_dir(&self.root, &so_far) {
                Ok(next) => next,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    mkdirat(&fd, Path::new(step.as_os_str()), Mode::from_bits_truncate(0o755))?;
                    let next = open_dir(&self.root, &so_far)?;
                    copy_attributes(&self.parents, &so_far, &next)?;
                    next
                }
                Err(e) => return Err(e),
            };
        }
        Ok(fd)
    }

    fn set_times(&self) {
        for (path, mtime) in self.times.iter().rev() {
            if let (Some(name), parent) = (path.file_name(), path.parent().unwrap_or(Path::new("")))
                && let Ok(dir) = open_dir(&self.root, parent)
                && let Ok(name) = CString::new(name.as_bytes())
            {
                set_time(&dir, &name, *mtime);
            }
        }
    }
}

/// The path relative to the layer's root; `..` is refused.
fn clean(path: &Path) -> io::Result<PathBuf> {
    let mut out = PathBuf::new();
    if path.as_os_str().len() > MAX_PATH {
        return Err(io::Error::other("the path is too long"));
    }
    for part in path.components() {
        match part {
            Component::Normal(p) => out.push(p),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return Err(io::Error::other("the path leaves the layer")),
        }
    }
    Ok(out)
}

fn id(n: u64) -> io::Result<u32> {
    u32::try_from(n).map_err(|_| io::Error::other("an owner out of range"))
}

fn open_dir(at: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(at, path, how).map_err(io::Error::from)
}

fn is_symlink(dir: &OwnedFd, name: &CString) -> bool {
    nix::sys::stat::fstatat(dir, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
        .is_ok_and(|s| s.st_mode & libc::S_IFMT == libc::S_IFLNK)
}

/// Makes room for an entry; a directory in its way goes with all it holds.
fn remove(dir: &OwnedFd, name: &CString) -> io::Result<()> {
    match unlinkat(dir, name.as_c_str(), UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(nix::errno::Errno::ENOENT) => Ok(()),
        Err(nix::errno::Errno::EISDIR) => {
            let path = fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd()))?
                .join(std::ffi::OsStr::from_bytes(name.as_bytes()));
            fs::remove_dir_all(path)
        }
        Err(e) => Err(e.into()),
    }
}

fn own(dir: &OwnedFd, name: &CString, uid: u32, gid: u32) -> io::Result<()> {
    fchownat(dir, name.as_c_str(), Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::AT_SYMLINK_NOFOLLOW)
        .map_err(io::Error::from)
}

fn chmod(dir: &OwnedFd, name: &CString, mode: u32) -> io::Result<()> {
    nix::sys::stat::fchmodat(
        dir,
        name.as_c_str(),
        Mode::from_bits_truncate(mode),
        nix::sys::stat::FchmodatFlags::FollowSymlink,
    )
    .map_err(io::Error::from)
}

fn set_time(dir: &OwnedFd, name: &CString, mtime: i64) {
    let t = libc::timespec { tv_sec: mtime, tv_nsec: 0 };
    // SAFETY: a descriptor we own, a C string and two structs. Times are not worth failing for.
    unsafe { libc::utimensat(dir.as_raw_fd(), name.as_ptr(), [t, t].as_ptr(), libc::AT_SYMLINK_NOFOLLOW) };
}

/// What `.wh.NAME` becomes in a layer of an overlay: a character device 0:0, or an opaque directory.
fn whiteout(dir: &OwnedFd, hidden: &[u8]) -> io::Result<()> {
    if hidden == b".wh..opq" {
        let path = CString::new(format!("/proc/self/fd/{}", dir.as_raw_fd()))?;
        let set = |name: &std::ffi::CStr| {
            // SAFETY: C strings, and a value of one byte.
            unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), c"y".as_ptr().cast(), 1, 0) }
        };
        // Both, for a store that is shared between bridges with and without all privileges.
        let r = set(c"trusted.overlay.opaque");
        let r = if set(c"user.overlay.opaque") == 0 { 0 } else { r };
        return nix::errno::Errno::result(r).map(drop).map_err(io::Error::from);
    }
    if hidden.is_empty() || hidden.starts_with(b".wh.") {
        return Ok(()); // Notes of other tools.
    }
    let name = CString::new(hidden)?;
    remove(dir, &name)?;
    // SAFETY: a descriptor we own and a C string.
    nix::errno::Errno::result(unsafe { libc::mknodat(dir.as_raw_fd(), name.as_ptr(), libc::S_IFCHR, 0) })
        .map(drop)
        .map_err(io::Error::from)
}

/// Gives `to` the mode and owner that `path` has in the nearest layer below.
fn copy_attributes(parents: &[PathBuf], path: &Path, to: &OwnedFd) -> io::Result<()> {
    let meta = parents.iter().find_map(|p| {
        let root: OwnedFd = fs::File::open(p).ok()?.into();
        open_dir(&root, path).ok().and_then(|fd| fs::File::from(fd).metadata().ok())
    });
    match meta {
        Some(m) => {
            fchown(to, Some(Uid::from_raw(m.uid())), Some(Gid::from_raw(m.gid())))?;
            nix::sys::stat::fchmod(to, Mode::from_bits_truncate(m.mode() & 0o7777))?;
        }
        None => nix::sys::stat::fchmod(to, Mode::from_bits_truncate(0o755))?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::store::digest_of;

    struct Layer(tar::Builder<Vec<u8>>);

    impl Layer {
        fn new() -> Self {
            Self(tar::Builder::new(Vec::new()))
        }

        fn add(mut self, kind: EntryType, path: &str, link: &str, mode: u32, data: &[u8]) -> Self {
            let mut h = tar::Header::new_ustar();
            // set_path refuses what an attacker would write, so write the bytes.
            h.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            h.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
            h.set_entry_type(kind);
            h.set_mode(mode);
            h.set_uid(0);
            h.set_gid(0);
            h.set_mtime(1_000_000);
            h.set_size(data.len() as u64);
            h.set_cksum();
            self.0.append(&h, data).unwrap();
            self
        }

        fn file(self, path: &str, data: &str) -> Self {
            self.add(EntryType::Regular, path, "", 0o644, data.as_bytes())
        }

        fn bytes(self) -> Vec<u8> {
            self.0.into_inner().unwrap()
        }
    }

    fn unpack(bytes: &[u8], target: &Path, parents: &[PathBuf]) -> Result<(), ImageError> {
        unpack_layer(bytes, target, parents, &LayerCheck { diff_id: digest_of(bytes), ..LayerCheck::default() })
    }

    #[test]
    fn links_stay_inside_the_layer_and_dots_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        let l = Layer::new()
            .add(EntryType::Symlink, "abs", "/outside", 0o777, b"")
            .add(EntryType::Symlink, "up", "../../outside", 0o777, b"")
            .add(EntryType::Directory, "outside/", "", 0o750, b"")
            .file("abs/a", "1")
            .file("up/b", "2");
        let fs_dir = dir.path().join("x/fs");
        unpack(&l.bytes(), &fs_dir, &[]).unwrap();
        assert_eq!(fs::read(fs_dir.join("outside/a")).unwrap(), b"1");
        assert_eq!(fs::read(fs_dir.join("outside/b")).unwrap(), b"2");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        for path in ["../e", "a/../../e"] {
            assert!(unpack(&Layer::new().file(path, "x").bytes(), &dir.path().join("y"), &[]).is_err(), "{path}");
        }
        let l = Layer::new().add(EntryType::Link, "h", "../../etc/passwd", 0o644, b"");
        assert!(unpack(&l.bytes(), &dir.path().join("z"), &[]).is_err());
    }

    #[test]
    fn directories_nobody_mentions_look_as_in_the_layer_below() {
        let dir = tempfile::tempdir().unwrap();
        let (base, top) = (dir.path().join("base"), dir.path().join("top"));
        unpack(&Layer::new().add(EntryType::Directory, "var/tmp/", "", 0o1777, b"").bytes(), &base, &[]).unwrap();
        unpack(&Layer::new().file("var/tmp/f", "x").bytes(), &top, &[base]).unwrap();
        assert_eq!(fs::metadata(top.join("var/tmp")).unwrap().mode() & 0o7777, 0o1777);
        assert_eq!(fs::metadata(top.join("var")).unwrap().mode() & 0o7777, 0o755);
        assert_eq!(fs::metadata(top.join("var/tmp/f")).unwrap().mtime(), 1_000_000);
    }

    #[test]
    fn a_later_entry_replaces_an_earlier_one_and_hard_links_share() {
        let dir = tempfile::tempdir().unwrap();
        let l = Layer::new()
            .file("a/f", "old")
            .add(EntryType::Link, "h", "a/f", 0o644, b"")
            .file("a/f", "new")
            .file("h2/x", "1")
            .file("h2", "2");
        unpack(&l.bytes(), dir.path(), &[]).unwrap();
        assert_eq!(fs::read(dir.path().join("h")).unwrap(), b"old");
        assert_eq!(fs::read(dir.path().join("a/f")).unwrap(), b"new");
        assert_eq!(fs::read(dir.path().join("h2")).unwrap(), b"2");
    }

    #[test]
    fn content_that_is_not_what_was_promised_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = Layer::new().file("f", "x").bytes();
        let check = |digest: Option<String>, diff_id: String, size| LayerCheck { digest, diff_id, size };
        let go = |c| unpack_layer(bytes.as_slice(), dir.path(), &[], &c);
        assert!(matches!(go(check(None, digest_of(b"other"), None)), Err(ImageError::Digest { .. })));
        assert!(matches!(
            go(check(Some(digest_of(b"other")), digest_of(&bytes), None)),
            Err(ImageError::Digest { .. })
        ));
        assert!(go(check(None, digest_of(&bytes), Some(100))).is_err(), "longer than promised");
        assert!(
            unpack_layer(&b"\x28\xb5\x2f\xfd...."[..], dir.path(), &[], &check(None, String::new(), None)).is_err()
        );
    }
}
