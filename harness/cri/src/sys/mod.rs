//! The kernel's interface where std and nix end: raw system calls that are safe after a `CLONE_VM` clone, the mount
//! API of Linux 5.2 and later, capability sets, seccomp programs, the user database of a root file system.

pub mod aio;
pub mod caps;
pub mod mount;
pub mod proc;
pub mod raw;
pub mod seccomp;
pub mod syscalls;
pub mod userdb;
