//! The few system calls the standard library has no words for.

use std::sync::atomic::{AtomicU64, Ordering};

unsafe extern "C" {
    fn signal(number: i32, handler: usize) -> usize;
    fn kill(pid: i32, number: i32) -> i32;
    fn getuid() -> u32;
    fn getgid() -> u32;
    fn geteuid() -> u32;
    fn getgroups(size: i32, list: *mut u32) -> i32;
    fn gethostname(name: *mut u8, len: usize) -> i32;
    fn pause() -> i32;
    fn siginterrupt(number: i32, flag: i32) -> i32;
    fn nanosleep(wanted: *const [i64; 2], left: *mut [i64; 2]) -> i32;
}

static PENDING: AtomicU64 = AtomicU64::new(0);

const NAMES: [(&str, i32); 18] = [
    ("HUP", 1), ("INT", 2), ("QUIT", 3), ("ILL", 4), ("TRAP", 5), ("ABRT", 6), ("BUS", 7), ("FPE", 8), ("KILL", 9),
    ("USR1", 10), ("SEGV", 11), ("USR2", 12), ("PIPE", 13), ("ALRM", 14), ("TERM", 15), ("CHLD", 17), ("CONT", 18), ("STOP", 19),
];

/// The number of a signal given as `TERM`, `SIGTERM` or `15`.
pub fn signal_number(text: &str) -> Option<i32> {
    let bare = text.strip_prefix("SIG").unwrap_or(text);
    NAMES.iter().find(|(name, _)| *name == bare).map(|(_, n)| *n).or_else(|| text.parse().ok().filter(|n| (0..65).contains(n)))
}

/// The name of a signal number.
pub fn signal_name(number: i32) -> &'static str {
    NAMES.iter().find(|(_, n)| *n == number).map_or("?", |(name, _)| name)
}

extern "C" fn remember(number: i32) {
    PENDING.fetch_or(1 << number, Ordering::SeqCst);
}

/// Undoes what the standard library changes: a closed pipe and a sent SEGV or BUS end the process, as other tools do.
pub fn default_signals() {
    for number in [7, 11, 13] {
        default(number);
    }
}

/// Remembers a signal for [`take_pending`] instead of dying of it; blocking calls return early.
pub fn catch(number: i32) {
    // SAFETY: the handler only touches an atomic.
    unsafe {
        signal(number, remember as *const () as usize);
        siginterrupt(number, 1);
    }
}

/// Ignores a signal.
pub fn ignore(number: i32) {
    // SAFETY: 1 is SIG_IGN.
    unsafe { signal(number, 1) };
}

/// Restores what the kernel does with a signal.
pub fn default(number: i32) {
    // SAFETY: 0 is SIG_DFL.
    unsafe { signal(number, 0) };
}

/// Takes the lowest caught signal.
pub fn take_pending() -> Option<i32> {
    let bits = PENDING.load(Ordering::SeqCst);
    (bits != 0).then(|| {
        let number = bits.trailing_zeros() as i32;
        PENDING.fetch_and(!(1 << number), Ordering::SeqCst);
        number
    })
}

/// Whether a caught signal waits.
pub fn has_pending() -> bool {
    PENDING.load(Ordering::SeqCst) != 0
}

/// Sends a signal.
pub fn send(pid: i32, number: i32) -> bool {
    // SAFETY: no memory is involved.
    unsafe { kill(pid, number) == 0 }
}

/// Waits for any signal.
pub fn wait_for_signal() {
    // SAFETY: no memory is involved.
    unsafe { pause() };
}

/// Sleeps; a caught signal ends it early.
pub fn sleep(seconds: f64) {
    let whole = seconds.clamp(0.0, 1e12);
    let wanted = [whole as i64, (whole.fract() * 1e9) as i64];
    // SAFETY: both point to two 64-bit numbers, which is timespec's shape.
    unsafe { nanosleep(&wanted, &mut [0, 0]) };
}

/// Real user, effective user and group id.
pub fn ids() -> (u32, u32, u32) {
    // SAFETY: no memory is involved.
    unsafe { (getuid(), geteuid(), getgid()) }
}

/// Supplementary group ids.
pub fn groups() -> Vec<u32> {
    let mut list = [0_u32; 256];
    // SAFETY: the list has room for the 256 entries announced.
    let n = unsafe { getgroups(256, list.as_mut_ptr()) };
    list[..usize::try_from(n).unwrap_or(0)].to_vec()
}

/// The host name.
pub fn hostname() -> String {
    let mut name = [0_u8; 256];
    // SAFETY: the buffer has the length announced.
    unsafe { gethostname(name.as_mut_ptr(), name.len() - 1) };
    String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned()
}
