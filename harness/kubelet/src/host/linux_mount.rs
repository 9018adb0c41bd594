//! Mounting on Linux.

use std::{
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use nix::{
    fcntl::{AtFlags, OFlag, open, openat},
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::stat::{Mode, fchmod, fstatat, mkdirat},
};

use super::Tmpfs;

/// How often a busy unmount is retried lazily before it is given up.
const LAYERS: usize = 16;

pub(super) fn tmpfs(target: &Path, options: Tmpfs) -> io::Result<()> {
    let mut data = format!("mode={:o}", options.mode);
    if let Some(size) = options.size {
        data.push_str(&format!(",size={size}"));
    }
    mount(Some("tmpfs"), target, Some("tmpfs"), MsFlags::empty(), Some(data.as_str()))?;
    Ok(())
}

pub(super) fn bind(source: &Path, target: &Path) -> io::Result<()> {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?;
    Ok(())
}

/// Resolves `relative` below `base`, walks the result component by component with `O_NOFOLLOW`, so that a link planted by
/// the container meanwhile cannot lead outside, and binds the opened file through `/proc/self/fd`. A link that stays
/// inside the volume is followed: the files of a ConfigMap's volume are such.
/// Source: k/k pkg/volume/util/subpath/subpath_linux.go.
pub(super) fn bind_subpath(base: &Path, relative: &Path, target: &Path, mode: u32) -> io::Result<()> {
    let (base, relative) = resolved(base, relative)?;
    let fd = open_below(&base, &relative, mode)?;
    let source = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let is_dir = fs::metadata(&source)?.is_dir();
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    if is_dir {
        fs::create_dir_all(target)?;
    } else if !target.exists() {
        fs::File::create(target)?;
    }
    bind(&source, target)
}

/// The volume's real path, and the subpath's below it. A subpath that is not there yet stays as it is.
fn resolved(base: &Path, relative: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let real_base = fs::canonicalize(base)?;
    let real = match fs::canonicalize(base.join(relative)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((real_base, relative.to_owned())),
        other => other?,
    };
    let outside = |_| io::Error::other(format!("subpath {} is not within its volume", relative.display()));
    let below = real.strip_prefix(&real_base).map(Path::to_owned).map_err(outside)?;
    Ok((real_base, below))
}

fn open_below(base: &Path, relative: &Path, mode: u32) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let mut at = open(base, flags | OFlag::O_DIRECTORY, Mode::empty())?;
    for part in relative.components() {
        let name = match part {
            Component::Normal(name) => name,
            Component::CurDir => continue,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "subpath leaves its volume"));
            }
        };
        if fstatat(&at, name, AtFlags::AT_SYMLINK_NOFOLLOW) == Err(nix::errno::Errno::ENOENT) {
            match mkdirat(&at, name, Mode::from_bits_truncate(mode)) {
                Ok(()) => {
                    let made = openat(
                        &at,
                        name,
                        OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
                        Mode::empty(),
                    )?;
                    fchmod(&made, Mode::from_bits_truncate(mode))?;
                }
                Err(nix::errno::Errno::EEXIST) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let next = openat(&at, name, flags | OFlag::O_NOFOLLOW, Mode::empty())?;
        let link = fs::symlink_metadata(format!("/proc/self/fd/{}", next.as_raw_fd()))
            .and_then(|_| fs::metadata(format!("/proc/self/fd/{}", next.as_raw_fd())));
        if fstatat(&next, "", AtFlags::AT_EMPTY_PATH).map(|s| s.st_mode & libc::S_IFMT == libc::S_IFLNK)?
            || link.is_err()
        {
            return Err(io::Error::other(format!("subpath goes through the symbolic link {}", name.to_string_lossy())));
        }
        at = next;
    }
    Ok(at)
}

pub(super) fn unmount(target: &Path) -> io::Result<()> {
    for _ in 0..LAYERS {
        match umount2(target, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_DETACH) {
            Ok(()) => {}
            Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
    Err(io::Error::other(format!("{} is mounted over and over", target.display())))
}

pub(super) fn under(prefix: &Path) -> io::Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let mut out: Vec<PathBuf> =
        table.lines().filter_map(|l| l.split(' ').nth(4)).map(unescape).filter(|p| p.starts_with(prefix)).collect();
    out.sort();
    out.reverse();
    Ok(out)
}

/// Undoes the octal escapes of mountinfo.
fn unescape(s: &str) -> PathBuf {
    let mut out = Vec::with_capacity(s.len());
    let bytes = s.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        let code = bytes
            .get(i + 1..i + 4)
            .and_then(|d| std::str::from_utf8(d).ok())
            .and_then(|d| u8::from_str_radix(d, 8).ok());
        match (bytes[i], code) {
            (b'\\', Some(code)) => {
                out.push(code);
                i += 4;
            }
            (b, _) => {
                out.push(b);
                i += 1;
            }
        }
    }
    PathBuf::from(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_inside_the_volume_is_followed_and_one_that_leaves_it_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        fs::create_dir_all(volume.join("..data-1")).unwrap();
        fs::write(volume.join("..data-1/key"), "x").unwrap();
        fs::write(&outside, "secret").unwrap();
        symlink("..data-1", volume.join("..data")).unwrap();
        symlink("..data/key", volume.join("key")).unwrap();
        symlink(&outside, volume.join("bad")).unwrap();
        symlink("nowhere", volume.join("dangling")).unwrap();
        let open = |relative: &str| {
            let (base, below) = resolved(&volume, Path::new(relative))?;
            open_below(&base, &below, 0o755).map(|fd| fs::read_to_string(format!("/proc/self/fd/{}", fd.as_raw_fd())))
        };
        assert_eq!(open("key").unwrap().unwrap(), "x");
        assert!(open("bad").unwrap_err().to_string().contains("is not within its volume"));
        assert!(open("dangling").unwrap_err().to_string().contains("symbolic link"));
        assert!(open("new/dir").is_ok() && volume.join("new/dir").is_dir());
    }
}
