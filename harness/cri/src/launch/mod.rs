//! Starting processes: sandboxes, containers, execs. No helper program and no shim.
//!
//! ```text
//! coordinator (blocking thread)          builder (fresh thread)                     child
//!   socketpair ── spawn ───────────────►  unshare fs, mounts; setns; build the root
//!                                         clone3(VM|VFORK|PARENT|…) ─────────────►  enter cgroup, stdio, close the rest
//!   pid ◄───────────────────────────────────────────────────────────────────────── "ready"
//!   persist, register with init                                (stands still)        proc, masks, limits
//!   "go" ──────────────────────────────────────────────────────────────────────►   user, caps, seccomp
//!   end of file = exec succeeded, or an error report ◄────────────────────────────  exec
//! ```
//! The builder may do anything a thread may; what needs the new pid namespace is left to the child, which shares our
//! memory and therefore only makes system calls over a [`child::Plan`] that was laid out before. When the bridge dies
//! before "go", the child reads the end of the socket and exits.

mod child;
mod error;
mod identity;
mod rootfs;
mod spawn;
mod userns;

pub use error::LaunchError;
pub use identity::{ProcessSpec, ResolvedProcess};
pub use rootfs::{BindMount, CgroupView, Device, MountSource, Propagation, RootfsSpec};
pub use spawn::{Job, Namespaces, PidMode, SandboxSpec, Setup, Stdio, launch, launch_sandbox, remove_netns};
pub use userns::{IdMaps, IdRange, UserNamespace};
