//! A node's root: a small tmpfs with the host's programs bound read-only, an `/etc` of its own, its disk at `/var`.
//! Nothing of the host can be written, and nothing but programs and libraries can be read.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::stat::{Mode, SFlag, makedev, mknod},
};

use super::{RUN_DIR, agent::CONTENT};
use crate::{capsule::Capsule, spec::address};

/// Where `host-local` keeps the addresses it has given away, a folder for each network.
const CNI_NETWORKS: &str = "/run/cni/networks";
/// The same for the network of Pods.
pub(crate) const POD_NETWORK: &str = "/run/cni/networks/podlab";

const NONE: Option<&str> = None;
/// Where the node keeps our own program, for the CNI plugins and `podlab enter`.
pub(crate) const PROGRAM: &str = "/opt/podlab/bin/podlab";
/// Where the bundled CNI plugins are, as links to [`PROGRAM`].
pub(crate) const CNI_BIN: &str = "/opt/cni/bin";

fn tmpfs(at: &Path, flags: MsFlags, options: &str) -> io::Result<()> {
    fs::create_dir_all(at)?;
    mount(Some("tmpfs"), at, Some("tmpfs"), flags, Some(options))?;
    Ok(())
}

fn bind(from: &Path, to: &Path, read_only: bool) -> io::Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
    } else {
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::File::options().create(true).append(true).open(to)?;
    }
    mount(Some(from), to, NONE, MsFlags::MS_BIND, NONE)?;
    if read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(NONE, to, NONE, flags, NONE)?;
    }
    Ok(())
}

/// Builds the root of a node and pivots into it. Runs in the node's own mount, pid and cgroup namespaces.
/// `hierarchies` are the v1 cgroup hierarchies in which the node has a group of its own; none on a v2 host.
pub(crate) fn enter(capsule: &Capsule, node: &str, hierarchies: &[String]) -> io::Result<()> {
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE)?;
    let base = capsule.state.join("nodes").join(node);
    let root = base.join("root");
    tmpfs(&root, MsFlags::empty(), "size=64m,mode=755")?;
    for name in ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        let host = Path::new("/").join(name);
        match fs::symlink_metadata(&host) {
            Ok(m) if m.is_symlink() => symlink(fs::read_link(&host)?, root.join(name))?,
            Ok(_) => bind(&host, &root.join(name), true)?,
            Err(_) => {}
        }
    }
    for dir in ["etc", "var", "run", "tmp", "root", "home", "mnt", "opt", "proc", "sys", "dev", "srv", "old"] {
        fs::create_dir_all(root.join(dir))?;
    }
    bind(&base.join("disk"), &root.join("var"), false)?;
    for dir in ["var/lib", "var/log/pods", "var/log/containers", "var/tmp", "var/cache"] {
        fs::create_dir_all(root.join(dir))?;
    }
    let cache = crate::state::image_cache()?;
    bind(&cache, &root.join(CONTENT.trim_start_matches('/')), false)?;
    symlink("../run", root.join("var/run")).or_else(exists)?;
    tmpfs(&root.join("run"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, "size=256m,mode=755")?;
    tmpfs(&root.join("tmp"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, "size=256m,mode=1777")?;
    bind(&base.join("run"), &root.join(RUN_DIR.trim_start_matches('/')), false)?;
    bind(&fs::read_link("/proc/self/exe")?, &root.join(PROGRAM.trim_start_matches('/')), true)?;
    write_etc(&root)?;
    write_cni(&root, node)?;
    devices(&root.join("dev"))?;
    let proc_flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), &root.join("proc"), Some("proc"), proc_flags, NONE)?;
    mount(Some("sysfs"), &root.join("sys"), Some("sysfs"), proc_flags, NONE)?;
    cgroups(&root.join("sys/fs/cgroup"), hierarchies)?;
    // A node's mounts are shared, as systemd makes them, so that mount propagation into containers can work.
    mount(Some(&root), &root, NONE, MsFlags::MS_BIND | MsFlags::MS_REC, NONE)?;
    nix::unistd::chdir(&root)?;
    nix::unistd::pivot_root(".", "old")?;
    umount2("/old", MntFlags::MNT_DETACH)?;
    fs::remove_dir("/old")?;
    nix::unistd::chdir("/")?;
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_SHARED, NONE)?;
    Ok(())
}

fn exists(e: io::Error) -> io::Result<()> {
    if e.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(e) }
}

fn write_etc(root: &Path) -> io::Result<()> {
    let hosts = format!(
        "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{} registry.test\n{} private.registry.test\n",
        address::REGISTRY,
        address::PRIVATE_REGISTRY
    );
    for (name, text) in [
        ("passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"),
        ("group", "root:x:0:\nnogroup:x:65534:\n"),
        ("nsswitch.conf", "hosts: files dns\n"),
        ("hosts", hosts.as_str()),
        ("resolv.conf", format!("nameserver {}\n", address::DNS).as_str()),
        ("os-release", "ID=podlab\nNAME=\"Podlab node\"\nPRETTY_NAME=\"Podlab node\"\n"),
        ("machine-id", ""),
    ] {
        fs::write(root.join("etc").join(name), text)?;
    }
    Ok(())
}

/// The bundled network: bridge with host-local addresses from the node's Pod network, host ports.
fn write_cni(root: &Path, node: &str) -> io::Result<()> {
    let bin = root.join(CNI_BIN.trim_start_matches('/'));
    fs::create_dir_all(&bin)?;
    for plugin in podlab_cni::plugins::NAMES {
        symlink(PROGRAM, bin.join(plugin))?;
    }
    let index: u8 = node.trim_start_matches("node-").parse().unwrap_or(1);
    let list = serde_json::json!({"cniVersion": "1.1.0", "name": "podlab", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true,
         "capabilities": {"io.kubernetes.cri.pod-annotations": true, "ips": true},
         "ipam": {"type": "host-local", "subnet": format!("{}/24", address::pod_network(index)), "dataDir": CNI_NETWORKS}},
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]});
    let dir = root.join("etc/cni/net.d");
    fs::create_dir_all(&dir)?;
    fs::create_dir_all(root.join("etc/kubernetes/manifests"))?;
    fs::write(dir.join("10-podlab.conflist"), list.to_string())
}

fn devices(dev: &Path) -> io::Result<()> {
    tmpfs(dev, MsFlags::MS_NOSUID, "size=1m,mode=755")?;
    for (name, major, minor, mode) in [
        ("null", 1, 3, 0o666),
        ("zero", 1, 5, 0o666),
        ("full", 1, 7, 0o666),
        ("random", 1, 8, 0o666),
        ("urandom", 1, 9, 0o666),
        ("tty", 5, 0, 0o666),
    ] {
        let path = dev.join(name);
        mknod(&path, SFlag::S_IFCHR, Mode::from_bits_truncate(mode), makedev(major, minor))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    for (target, name) in [
        ("/proc/self/fd", "fd"),
        ("/proc/self/fd/0", "stdin"),
        ("/proc/self/fd/1", "stdout"),
        ("/proc/self/fd/2", "stderr"),
        ("pts/ptmx", "ptmx"),
    ] {
        symlink(target, dev.join(name))?;
    }
    fs::create_dir_all(dev.join("pts"))?;
    mount(
        Some("devpts"),
        &dev.join("pts"),
        Some("devpts"),
        MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC,
        Some("newinstance,ptmxmode=0666,mode=0620"),
    )?;
    tmpfs(&dev.join("shm"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, "mode=1777")?;
    fs::create_dir_all(dev.join("mqueue"))?;
    mount(
        Some("mqueue"),
        &dev.join("mqueue"),
        Some("mqueue"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
        NONE,
    )?;
    Ok(())
}

/// Names of the v1 hierarchies in which this process is in a group of the cluster. Asked before the process gets a
/// cgroup namespace of its own: in the others it is in the host's root group, which a node must not see.
pub(crate) fn own_hierarchies(cluster_group: &str) -> io::Result<Vec<String>> {
    let text = fs::read_to_string("/proc/self/cgroup")?;
    let own = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let ours = !controllers.is_empty() && path.split('/').any(|p| p == cluster_group);
        ours.then(|| controllers.to_owned())
    };
    Ok(text.lines().filter_map(own).collect())
}

/// Mounts the node's cgroup hierarchies, seen from its cgroup namespace: its own group is their root.
fn cgroups(at: &Path, hierarchies: &[String]) -> io::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    if hierarchies.is_empty() {
        mount(Some("cgroup2"), at, Some("cgroup2"), flags, NONE)?;
        return leave_root(at);
    }
    tmpfs(at, flags, "size=1m,mode=755")?;
    for controllers in hierarchies {
        let dir = at.join(controllers);
        fs::create_dir_all(&dir)?;
        mount(Some("cgroup"), &dir, Some("cgroup"), flags, Some(controllers.as_str()))?;
        for single in controllers.split(',').filter(|c| c != controllers) {
            symlink(controllers, at.join(single)).or_else(exists)?;
        }
    }
    Ok(())
}

/// v2 lets a group have either processes or children with controllers: node init moves out of the way.
fn leave_root(at: &Path) -> io::Result<()> {
    let leaf = at.join("init.scope");
    fs::create_dir_all(&leaf)?;
    fs::write(leaf.join("cgroup.procs"), "0")?;
    for controller in fs::read_to_string(at.join("cgroup.controllers"))?.split_whitespace() {
        // A controller the host does not hand down is simply not there.
        let _ = fs::write(at.join("cgroup.subtree_control"), format!("+{controller}"));
    }
    Ok(())
}
