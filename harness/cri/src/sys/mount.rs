//! Mounts by descriptor: `open_tree`, `move_mount`, `mount_setattr`. Sources are opened as detached trees in the node's
//! view; targets are paths inside the container's root after the pivot, so an image cannot lead a mount astray.
#![expect(unsafe_code, reason = "nix has no wrappers for the mount API of Linux 5.2")]

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use super::raw;

/// `MOUNT_ATTR_RDONLY`.
pub const RDONLY: u64 = 1;
/// `MOUNT_ATTR_NOSUID`.
pub const NOSUID: u64 = 2;
/// `MOUNT_ATTR_NODEV`.
pub const NODEV: u64 = 4;
/// `MOUNT_ATTR_NOEXEC`.
pub const NOEXEC: u64 = 8;
const IDMAP: u64 = 0x10_0000;

const OPEN_TREE_CLONE: u32 = 1;
const AT_RECURSIVE: u32 = 0x8000;
const EMPTY: &std::ffi::CStr = c"";

#[repr(C)]
#[derive(Default)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

/// A path as the C string a system call wants.
pub fn cpath(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn fd_of(n: usize) -> io::Result<OwnedFd> {
    let n = i32::try_from(n).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(n) })
}

/// Clones the mount tree at `path` (with everything below it when `recursive`) into a detached tree.
pub fn clone_tree(path: &Path, recursive: bool) -> io::Result<OwnedFd> {
    let path = cpath(path)?;
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC.unsigned_abs() | if recursive { AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a C string that lives through the call.
    unsafe {
        raw::checked(libc::SYS_open_tree, [raw::int(libc::AT_FDCWD), raw::addr(path.as_ptr()), flags as usize, 0, 0, 0])
    }
    .and_then(fd_of)
}

/// Attaches a detached tree at `target`.
pub fn attach(tree: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    const F_EMPTY_PATH: usize = 4;
    const T_SYMLINKS: usize = 0x10;
    let target = cpath(target)?;
    // SAFETY: both paths are C strings that live through the call.
    unsafe {
        raw::checked(
            libc::SYS_move_mount,
            [
                raw::int(tree.as_raw_fd()),
                raw::addr(EMPTY.as_ptr()),
                raw::int(libc::AT_FDCWD),
                raw::addr(target.as_ptr()),
                F_EMPTY_PATH | T_SYMLINKS,
                0,
            ],
        )
    }
    .map(drop)
}

fn setattr(tree: BorrowedFd<'_>, attr: &MountAttr, recursive: bool) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH.unsigned_abs() | if recursive { AT_RECURSIVE } else { 0 };
    // SAFETY: the struct is what the kernel expects, and its size is given.
    unsafe {
        raw::checked(
            libc::SYS_mount_setattr,
            [
                raw::int(tree.as_raw_fd()),
                raw::addr(EMPTY.as_ptr()),
                flags as usize,
                raw::addr(attr),
                size_of::<MountAttr>(),
                0,
            ],
        )
    }
    .map(drop)
}

/// Sets attributes (`RDONLY`, `NOSUID`, …) on a tree.
pub fn restrict(tree: BorrowedFd<'_>, attrs: u64, recursive: bool) -> io::Result<()> {
    setattr(tree, &MountAttr { set: attrs, ..MountAttr::default() }, recursive)
}

/// Sets the propagation (`MS_PRIVATE`, `MS_SLAVE`, `MS_SHARED`) of a tree and all below it.
pub fn propagate(tree: BorrowedFd<'_>, kind: u64) -> io::Result<()> {
    setattr(tree, &MountAttr { propagation: kind, ..MountAttr::default() }, true)
}

/// Shifts the owners of a tree by the mapping of a user namespace.
pub fn idmap(tree: BorrowedFd<'_>, userns: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
    let userns_fd = u64::try_from(userns.as_raw_fd()).map_err(io::Error::other)?;
    setattr(tree, &MountAttr { set: IDMAP, userns_fd, ..MountAttr::default() }, recursive)
}

/// Plain `mount(2)` of a new file system.
pub fn mount_fs(kind: &str, source: &str, target: &Path, flags: libc::c_ulong, data: &str) -> io::Result<()> {
    let flags = nix::mount::MsFlags::from_bits_retain(flags);
    let data = (!data.is_empty()).then_some(data);
    nix::mount::mount(Some(source), target, Some(kind), flags, data).map_err(io::Error::from)
}

/// Makes every mount of the caller's namespace private.
pub fn make_private() -> io::Result<()> {
    let flags = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
    nix::mount::mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).map_err(io::Error::from)
}

/// Makes the mount at `new_root` the root of the caller's mount namespace and lets the old one go, or keeps it stacked
/// on the new one, out of reach of paths, and returns it.
pub fn pivot(new_root: &Path, keep: bool) -> io::Result<Option<OwnedFd>> {
    let old: OwnedFd = std::fs::File::open("/")?.into();
    nix::unistd::chdir(new_root)?;
    nix::unistd::pivot_root(".", ".")?;
    if !keep {
        nix::mount::umount2(".", nix::mount::MntFlags::MNT_DETACH)?;
    }
    nix::unistd::chdir("/")?;
    Ok(keep.then_some(old))
}

/// Whether the mount that holds `path` propagates, as `/proc/self/mountinfo` says: (shared, slave).
pub fn propagation_of(path: &Path) -> io::Result<(bool, bool)> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let real = std::fs::canonicalize(path)?;
    let mut best = (0, (false, false));
    for line in table.lines() {
        let mut fields = line.split(' ').skip(4);
        let Some(point) = fields.next() else { continue };
        let options: Vec<&str> = fields.skip(1).take_while(|f| *f != "-").collect();
        if real.starts_with(point) && point.len() >= best.0 {
            let has = |p: &str| options.iter().any(|o| o.starts_with(p));
            best = (point.len(), (has("shared:"), has("master:")));
        }
    }
    Ok(best.1)
}
