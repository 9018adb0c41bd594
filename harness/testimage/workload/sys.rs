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
    fn sigprocmask(how: i32, set: *const SignalSet, old: *mut SignalSet) -> i32;
    fn sigwait(set: *const SignalSet, number: *mut i32) -> i32;
    fn siginterrupt(number: i32, flag: i32) -> i32;
    fn nanosleep(wanted: *const [i64; 2], left: *mut [i64; 2]) -> i32;
}

/// `sigset_t` of Linux: bit n - 1 stands for signal n.
type SignalSet = [u64; 16];

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

fn set_of(numbers: &[i32]) -> SignalSet {
    let mut set = [0; 16];
    set[0] = numbers.iter().fold(0, |bits, n| bits | 1 << (n - 1));
    set
}

/// Keeps signals pending for [`wait_for`] instead of delivering them. Call before threads are started: they inherit it,
/// and a signal that any thread takes is one nobody waits for.
pub fn block(numbers: &[i32]) {
    // SAFETY: 0 is SIG_BLOCK; the set outlives the call; the old one is not asked for.
    unsafe { sigprocmask(0, &set_of(numbers), std::ptr::null_mut()) };
}

/// Waits for one of the signals that were blocked; also for one that came before the call. Works as PID 1, for which the
/// kernel drops signals that have neither a handler nor a waiter only while they are not blocked.
pub fn wait_for(numbers: &[i32]) -> i32 {
    let mut number = 0;
    // SAFETY: both pointers are valid for the call.
    unsafe { sigwait(&set_of(numbers), &mut number) };
    number
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
