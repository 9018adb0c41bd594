//! A node's disk: a bounded tmpfs that outlives the node's crash, as a disk does.

use std::{fs, io};

use nix::mount::{MsFlags, mount};

use crate::{spec::ClusterSpec, state::StateDir};

/// Mounts the disk of a node in the capsule's mount namespace; the host never sees it.
pub(crate) fn mount_disk(state: &StateDir, spec: &ClusterSpec, node: &str) -> io::Result<()> {
    let at = state.join("nodes").join(node).join("disk");
    fs::create_dir_all(&at)?;
    let options = format!("size={},mode=755", spec.node_disk);
    mount(Some("disk"), &at, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))?;
    Ok(())
}
