//! Bind mounts, and what the kernel says is mounted.

use std::{
    fs, io,
    os::unix::{ffi::OsStringExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

const NONE: Option<&str> = None;

/// Mount options a volume may ask for; `None` when one is unknown.
pub(super) fn flags(options: &[String]) -> Option<MsFlags> {
    options.iter().try_fold(MsFlags::empty(), |all, option| {
        let flag = match option.as_str() {
            "rw" | "defaults" | "" => MsFlags::empty(),
            "ro" => MsFlags::MS_RDONLY,
            "nosuid" => MsFlags::MS_NOSUID,
            "nodev" => MsFlags::MS_NODEV,
            "noexec" => MsFlags::MS_NOEXEC,
            "noatime" => MsFlags::MS_NOATIME,
            "nodiratime" => MsFlags::MS_NODIRATIME,
            "relatime" => MsFlags::MS_RELATIME,
            _ => return None,
        };
        Some(all | flag)
    })
}

/// The mount at exactly this path: its options, or `None` when nothing is mounted there.
pub(super) fn mounted(path: &Path) -> io::Result<Option<Vec<String>>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(last_at(&table, path))
}

/// The last line of a mount table that is about `path`: later mounts cover earlier ones.
fn last_at(table: &str, path: &Path) -> Option<Vec<String>> {
    let mut lines = table.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(4);
        let (point, options) = (fields.next()?, fields.next()?);
        (unescape(point) == path).then(|| options.split(',').map(str::to_owned).collect())
    });
    lines.next_back()
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescape(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let (mut out, mut i) = (Vec::with_capacity(bytes.len()), 0);
    while i < bytes.len() {
        let octal = bytes.get(i + 1..i + 4).filter(|_| bytes[i] == b'\\').and_then(|d| std::str::from_utf8(d).ok());
        match octal.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(b) => {
                out.push(b);
                i += 4;
            }
            None => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

/// Whether two paths lead to the same directory.
pub(super) fn same(a: &Path, b: &Path) -> bool {
    let id = |p: &Path| fs::metadata(p).map(|m| (m.dev(), m.ino())).ok();
    id(a).is_some_and(|a| Some(a) == id(b))
}

/// Whether a directory is mounted anywhere else.
pub(super) fn in_use(directory: &Path) -> io::Result<bool> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    Ok(points.into_iter().any(|p| p != directory && same(&p, directory)))
}

/// Mounts `from` at `to`, which is made when missing.
pub(super) fn bind(from: &Path, to: &Path, options: MsFlags) -> io::Result<()> {
    match fs::create_dir(to) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    mount(Some(from), to, NONE, MsFlags::MS_BIND, NONE)?;
    if options.is_empty() {
        return Ok(());
    }
    mount(NONE, to, NONE, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | options, NONE).map_err(|e| {
        // Without its options the mount would allow too much.
        let _ = umount2(to, MntFlags::UMOUNT_NOFOLLOW);
        io::Error::from(e)
    })
}

/// Unmounts everything at exactly this path; nothing there is no error.
pub(super) fn unmount(path: &Path) -> io::Result<()> {
    while mounted(path)?.is_some() {
        umount2(path, MntFlags::UMOUNT_NOFOLLOW)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_mount_at_a_path_counts_and_blanks_are_escaped() {
        let table = "1 0 0:1 / / rw - ext4 a rw\n2 1 0:1 /v /mnt/a\\040b rw,noexec shared:1 - ext4 a rw\n3 2 0:1 /v /mnt/a\\040b ro - ext4 a rw\n";
        assert_eq!(last_at(table, Path::new("/mnt/a b")), Some(vec!["ro".to_owned()]));
        assert_eq!(last_at(table, Path::new("/mnt")), None);
    }

    #[test]
    fn an_unknown_mount_option_is_refused() {
        let of = |o: &[&str]| flags(&o.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["ro", "noexec"]), Some(MsFlags::MS_RDONLY | MsFlags::MS_NOEXEC));
        assert_eq!(of(&["ro", "dax"]), None);
    }
}
