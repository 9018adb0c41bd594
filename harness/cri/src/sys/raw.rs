//! System calls without libc: no errno, no thread-local state, no allocation. This is what a child that shares our
//! memory may use between its clone and its exec, while its parent thread stands still.
#![expect(unsafe_code, reason = "a system call is an instruction")]

use std::{arch::asm, ffi::c_void, os::fd::RawFd};

use libc::c_long;

/// `CLONE_CLEAR_SIGHAND`: the child starts with default signal handlers.
pub const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
/// `CLONE_INTO_CGROUP`: the child is born in the cgroup (v2) whose directory is given.
pub const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// `struct clone_args` up to its `cgroup` field.
#[repr(C, align(8))]
#[derive(Debug, Default)]
pub struct CloneArgs {
    /// `CLONE_*`.
    pub flags: u64,
    /// Where the pidfd goes (`*mut i32`).
    pub pidfd: u64,
    /// `*mut pid_t` in the child.
    pub child_tid: u64,
    /// `*mut pid_t` in the parent.
    pub parent_tid: u64,
    /// Signal to the parent; 0 with `CLONE_PARENT`.
    pub exit_signal: u64,
    /// Lowest address of the child's stack.
    pub stack: u64,
    /// Its size.
    pub stack_size: u64,
    /// Unused.
    pub tls: u64,
    /// Unused.
    pub set_tid: u64,
    /// Unused.
    pub set_tid_size: u64,
    /// Directory descriptor for `CLONE_INTO_CGROUP`.
    pub cgroup: u64,
}

/// One system call; the kernel's result as it is (negative errno on failure).
///
/// # Safety
/// As unsafe as the call itself: pointers must be valid for what the kernel does with them.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn syscall(n: c_long, a: [usize; 6]) -> isize {
    let r: isize;
    // SAFETY: the caller answers for the arguments; the instruction clobbers rcx and r11 alone.
    unsafe {
        asm!("syscall", inlateout("rax") n as isize => r, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    r
}

/// One system call; the kernel's result as it is (negative errno on failure).
///
/// # Safety
/// As unsafe as the call itself: pointers must be valid for what the kernel does with them.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub unsafe fn syscall(n: c_long, a: [usize; 6]) -> isize {
    let r: isize;
    // SAFETY: the caller answers for the arguments.
    unsafe {
        asm!("svc 0", in("x8") n, inlateout("x0") a[0] => r, in("x1") a[1], in("x2") a[2], in("x3") a[3],
            in("x4") a[4], in("x5") a[5], options(nostack));
    }
    r
}

/// Clones, and runs `entry(arg)` in the child on the stack that `args` names. Returns the child's pid, or a negative
/// errno.
///
/// # Safety
/// `args` must give a stack of its own to a child that shares memory; `entry` must never return and must keep to what
/// is allowed between clone and exec; `arg` must stay valid until then.
pub unsafe fn clone3(args: &CloneArgs, entry: extern "C" fn(*mut c_void) -> !, arg: *mut c_void) -> isize {
    let r: isize;
    // SAFETY: in the child the new stack is current and 16-byte aligned, rbp/x29 ends the chain of frames, and the
    // call does not return; in the parent only the result register changes.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("syscall", "test rax, rax", "jnz 2f", "xor ebp, ebp", "mov rdi, r12", "call r13", "ud2", "2:",
            inlateout("rax") libc::SYS_clone3 as isize => r, in("rdi") std::ptr::from_ref(args), in("rsi") size_of::<CloneArgs>(),
            in("r12") arg, in("r13") entry, lateout("rcx") _, lateout("r11") _);
        #[cfg(target_arch = "aarch64")]
        asm!("svc 0", "cbnz x0, 2f", "mov x29, xzr", "mov x0, x9", "blr x10", "brk 1", "2:",
            in("x8") libc::SYS_clone3, inlateout("x0") std::ptr::from_ref(args) => r, in("x1") size_of::<CloneArgs>(),
            in("x9") arg, in("x10") entry);
    }
    r
}

/// An address as a system call argument.
pub fn addr<T>(p: *const T) -> usize {
    p as usize
}

/// A signed number as a system call argument.
#[expect(clippy::cast_sign_loss, reason = "registers have no sign")]
pub fn int(n: i32) -> usize {
    n as isize as usize
}

/// `write(2)`, unchecked by design: the child has nowhere to report to but this.
///
/// # Safety
/// `fd` must be the caller's to write to.
pub unsafe fn write(fd: RawFd, data: &[u8]) -> isize {
    // SAFETY: the slice is valid for its length.
    unsafe { syscall(libc::SYS_write, [int(fd), addr(data.as_ptr()), data.len(), 0, 0, 0]) }
}

/// Ends the calling process without running anything of ours.
pub fn exit(code: i32) -> ! {
    loop {
        // SAFETY: exit_group takes a number and does not return.
        unsafe { syscall(libc::SYS_exit_group, [int(code), 0, 0, 0, 0, 0]) };
    }
}

/// A system call of the ordinary world, as `io::Result`.
///
/// # Safety
/// As [`syscall`].
pub unsafe fn checked(n: c_long, a: [usize; 6]) -> std::io::Result<usize> {
    // SAFETY: the caller answers for the arguments.
    let r = unsafe { syscall(n, a) };
    if r < 0 {
        Err(std::io::Error::from_raw_os_error(i32::try_from(-r).unwrap_or(libc::EIO)))
    } else {
        Ok(r.unsigned_abs())
    }
}
