//! Seccomp filters: the default profile (a deny list that follows the container's capabilities) and profiles that users
//! write in the OCI format, both compiled to classic BPF. Filters are compared call by call: simple, and a few hundred
//! comparisons cost less than one of the calls they guard.

use serde::Deserialize;

use super::{caps::Caps, syscalls::number};

/// `SECCOMP_RET_ALLOW`.
const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
const KILL_PROCESS: u32 = 0x8000_0000;
/// More instructions than the kernel takes (`BPF_MAXINSNS`).
const MAX_PROGRAM: usize = 4096;

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;

/// A compiled filter. Instructions are laid out as the kernel wants them.
#[derive(Debug, Clone, Default)]
pub struct Filter(Vec<libc::sock_filter>);

/// A profile in the format of the OCI runtime specification.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    default_action: String,
    default_errno_ret: Option<u32>,
    #[serde(default)]
    syscalls: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    #[serde(default)]
    names: Vec<String>,
    name: Option<String>,
    action: String,
    errno_ret: Option<u32>,
    #[serde(default)]
    args: Option<Vec<Arg>>,
    #[serde(default)]
    includes: Condition,
    #[serde(default)]
    excludes: Condition,
}

#[derive(Debug, Default, Deserialize)]
struct Condition {
    #[serde(default)]
    caps: Option<Vec<String>>,
    #[serde(default)]
    arches: Option<Vec<String>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Arg {
    index: u32,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// Not the JSON of a profile.
    #[error("decoding seccomp profile failed: {0}")]
    Decode(#[from] serde_json::Error),
    /// An action nobody knows.
    #[error("unknown seccomp action {0:?}")]
    Action(String),
    /// A comparison nobody knows, or an argument that does not exist.
    #[error("unknown seccomp argument rule {0:?}")]
    Argument(String),
    /// The program would not fit.
    #[error("seccomp profile compiles to {0} instructions, the kernel takes 4096")]
    TooLong(usize),
}

impl Filter {
    /// The instructions.
    pub fn program(&self) -> &[libc::sock_filter] {
        &self.0
    }

    /// What containers get with `RuntimeDefault`: calls that reach outside a container fail with EPERM unless the
    /// container has the capability they are meant for.
    pub fn runtime_default(caps: Caps) -> Self {
        let mut b = Builder::new(ALLOW);
        for (cap, names) in DENIED {
            if cap.is_empty() || !caps.has(cap) {
                for name in *names {
                    b.rule(name, ERRNO | 1, &[]);
                }
            }
        }
        if !caps.has("SYS_ADMIN") {
            // New namespaces only with privilege; clone3 hides its flags in memory, so it must not exist.
            let flags = Arg { index: 0, value: NAMESPACE_FLAGS, value_two: 0, op: "ANY_OF".into() };
            b.rule("clone", ERRNO | 1, std::slice::from_ref(&flags));
            b.rule("unshare", ERRNO | 1, &[flags]);
            b.rule("clone3", ERRNO | libc::ENOSYS.unsigned_abs(), &[]);
        }
        Self(b.finish())
    }

    /// Compiles a user's profile.
    ///
    /// # Errors
    /// [`SeccompError`].
    pub fn from_json(json: &[u8], caps: Caps) -> Result<Self, SeccompError> {
        let profile: Profile = serde_json::from_slice(json)?;
        let mut b = Builder::new(action(&profile.default_action, profile.default_errno_ret)?);
        for rule in &profile.syscalls {
            if !rule.applies(caps) {
                continue;
            }
            let act = action(&rule.action, rule.errno_ret)?;
            let args = rule.args.as_deref().unwrap_or_default();
            if let Some(bad) = args.iter().find(|a| a.index > 5 || !OPS.contains(&a.op.as_str())) {
                return Err(SeccompError::Argument(bad.op.clone()));
            }
            for name in rule.names.iter().chain(&rule.name) {
                b.rule(name, act, args);
            }
        }
        let program = b.finish();
        if program.len() > MAX_PROGRAM { Err(SeccompError::TooLong(program.len())) } else { Ok(Self(program)) }
    }
}

const NAMESPACE_FLAGS: u64 = 0x7e02_0080;

const OPS: [&str; 7] =
    ["SCMP_CMP_EQ", "SCMP_CMP_NE", "SCMP_CMP_LT", "SCMP_CMP_LE", "SCMP_CMP_GT", "SCMP_CMP_GE", "SCMP_CMP_MASKED_EQ"];

/// Calls the default profile denies to a container without the capability; without one named, to all.
const DENIED: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "add_key",
            "request_key",
            "keyctl",
            "kexec_load",
            "kexec_file_load",
            "create_module",
            "get_kernel_syms",
            "query_module",
            "nfsservctl",
            "uselib",
            "ustat",
            "sysfs",
            "_sysctl",
            "userfaultfd",
            "io_uring_setup",
            "io_uring_enter",
            "io_uring_register",
            "move_pages",
            "swapon",
            "swapoff",
            "vserver",
        ],
    ),
    (
        "SYS_ADMIN",
        &[
            "mount",
            "umount2",
            "pivot_root",
            "setns",
            "fsopen",
            "fsconfig",
            "fsmount",
            "fspick",
            "move_mount",
            "open_tree",
            "mount_setattr",
            "quotactl",
            "quotactl_fd",
            "lookup_dcookie",
            "fanotify_init",
        ],
    ),
    ("BPF", &["bpf"]),
    ("PERFMON", &["perf_event_open"]),
    ("SYS_BOOT", &["reboot"]),
    ("SYS_MODULE", &["init_module", "finit_module", "delete_module"]),
    ("SYS_PACCT", &["acct"]),
    ("SYS_RAWIO", &["iopl", "ioperm"]),
    ("SYS_TIME", &["settimeofday", "stime", "clock_settime", "clock_settime64"]),
    ("SYS_TTY_CONFIG", &["vhangup"]),
    ("SYS_NICE", &["mbind", "set_mempolicy", "migrate_pages"]),
    ("DAC_READ_SEARCH", &["open_by_handle_at"]),
    ("SYS_PTRACE", &["kcmp"]),
    ("SYSLOG", &["syslog"]),
    ("SYS_CHROOT", &["chroot"]),
];

impl Rule {
    fn applies(&self, caps: Caps) -> bool {
        let here = if cfg!(target_arch = "x86_64") { ["amd64", "x86_64"] } else { ["arm64", "aarch64"] };
        let caps_all = |c: &Condition| c.caps.as_ref().is_none_or(|l| l.iter().all(|n| caps.has(n)));
        let caps_any = |c: &Condition| c.caps.as_ref().is_some_and(|l| l.iter().any(|n| caps.has(n)));
        let arch_in = |c: &Condition| c.arches.as_ref().map(|l| l.iter().any(|a| here.contains(&a.as_str())));
        caps_all(&self.includes)
            && arch_in(&self.includes) != Some(false)
            && !caps_any(&self.excludes)
            && arch_in(&self.excludes) != Some(true)
    }
}

fn action(name: &str, errno: Option<u32>) -> Result<u32, SeccompError> {
    let errno = errno.unwrap_or(1) & 0xffff;
    Ok(match name {
        "SCMP_ACT_ALLOW" => ALLOW,
        "SCMP_ACT_ERRNO" => ERRNO | errno,
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => 0,
        "SCMP_ACT_KILL_PROCESS" => KILL_PROCESS,
        "SCMP_ACT_TRAP" => 0x0003_0000,
        "SCMP_ACT_TRACE" => 0x7ff0_0000 | errno,
        "SCMP_ACT_LOG" => 0x7ffc_0000,
        other => return Err(SeccompError::Action(other.to_owned())),
    })
}

/// Emits BPF. The accumulator holds the call's number whenever a rule begins.
struct Builder {
    code: Vec<libc::sock_filter>,
    default: u32,
}

const LD_W_ABS: u16 = 0x20;
const JEQ: u16 = 0x15;
const JGT: u16 = 0x25;
const JGE: u16 = 0x35;
const JSET: u16 = 0x45;
const AND: u16 = 0x54;
const RET: u16 = 0x06;

impl Builder {
    fn new(default: u32) -> Self {
        let mut b = Self { code: Vec::new(), default };
        b.op(LD_W_ABS, 0, 0, 4);
        b.op(JEQ, 1, 0, ARCH);
        b.op(RET, 0, 0, KILL_PROCESS);
        b.op(LD_W_ABS, 0, 0, 0);
        b
    }

    fn op(&mut self, code: u16, jt: u8, jf: u8, k: u32) {
        self.code.push(libc::sock_filter { code, jt, jf, k });
    }

    fn rule(&mut self, name: &str, action: u32, args: &[Arg]) {
        let Some(nr) = number(name) else { return };
        if action == self.default {
            return;
        }
        if args.is_empty() {
            self.op(JEQ, 0, 1, nr);
            self.op(RET, 0, 0, action);
            return;
        }
        // Each condition is laid out to fall through when it holds and to jump to `end` when it does not.
        let mut body: Vec<(libc::sock_filter, Jump)> = Vec::new();
        for arg in args {
            condition(arg, &mut body);
        }
        let len = u8::try_from(body.len() + 1).unwrap_or(u8::MAX);
        self.op(JEQ, 0, len + 1, nr);
        for (at, (mut op, jump)) in body.iter().copied().enumerate() {
            let to_end = u8::try_from(body.len() - at).unwrap_or(u8::MAX);
            let skip = |n: u8| n;
            match jump {
                Jump::None => {}
                Jump::FailIfFalse => op.jf = to_end,
                Jump::FailIfTrue => op.jt = to_end,
                Jump::PassIfTrue(n) => op.jt = skip(n),
                Jump::PassIfTrueElseFail(n) => (op.jt, op.jf) = (skip(n), to_end),
            }
            self.code.push(op);
        }
        self.op(RET, 0, 0, action);
        self.op(LD_W_ABS, 0, 0, 0);
    }

    fn finish(mut self) -> Vec<libc::sock_filter> {
        let default = self.default;
        self.op(RET, 0, 0, default);
        self.code
    }
}

#[derive(Clone, Copy)]
enum Jump {
    None,
    FailIfFalse,
    FailIfTrue,
    /// Skip so many instructions when true, else go on.
    PassIfTrue(u8),
    PassIfTrueElseFail(u8),
}

/// The comparison of one 64-bit argument, in halves.
#[expect(clippy::cast_possible_truncation, reason = "the halves of a 64-bit value")]
fn condition(arg: &Arg, out: &mut Vec<(libc::sock_filter, Jump)>) {
    let (lo_at, hi_at) = (16 + arg.index * 8, 20 + arg.index * 8);
    let (hi, lo) = ((arg.value >> 32) as u32, arg.value as u32);
    let mut op = |code: u16, k: u32, jump: Jump| out.push((libc::sock_filter { code, jt: 0, jf: 0, k }, jump));
    match arg.op.as_str() {
        "SCMP_CMP_EQ" => {
            op(LD_W_ABS, hi_at, Jump::None);
            op(JEQ, hi, Jump::FailIfFalse);
            op(LD_W_ABS, lo_at, Jump::None);
            op(JEQ, lo, Jump::FailIfFalse);
        }
        "SCMP_CMP_NE" => {
            op(LD_W_ABS, hi_at, Jump::None);
            // A differing high half passes past the low half's two instructions.
            op(JEQ, hi, Jump::PassIfTrue(1));
            op(0x05, 2, Jump::None);
            op(LD_W_ABS, lo_at, Jump::None);
            op(JEQ, lo, Jump::FailIfTrue);
        }
        "SCMP_CMP_GT" | "SCMP_CMP_GE" => {
            op(LD_W_ABS, hi_at, Jump::None);
            op(JGT, hi, Jump::PassIfTrue(3));
            op(JEQ, hi, Jump::FailIfFalse);
            op(LD_W_ABS, lo_at, Jump::None);
            op(if arg.op.ends_with("GT") { JGT } else { JGE }, lo, Jump::FailIfFalse);
        }
        "SCMP_CMP_LT" | "SCMP_CMP_LE" => {
            op(LD_W_ABS, hi_at, Jump::None);
            op(JGT, hi, Jump::FailIfTrue);
            op(JEQ, hi, Jump::PassIfTrue(1));
            op(0x05, 2, Jump::None);
            op(LD_W_ABS, lo_at, Jump::None);
            op(if arg.op.ends_with("LT") { JGE } else { JGT }, lo, Jump::FailIfTrue);
        }
        "SCMP_CMP_MASKED_EQ" => {
            let (want_hi, want_lo) = ((arg.value_two >> 32) as u32, arg.value_two as u32);
            op(LD_W_ABS, hi_at, Jump::None);
            op(AND, hi, Jump::None);
            op(JEQ, want_hi, Jump::FailIfFalse);
            op(LD_W_ABS, lo_at, Jump::None);
            op(AND, lo, Jump::None);
            op(JEQ, want_lo, Jump::FailIfFalse);
        }
        // Ours: any of the low half's bits is set.
        _ => {
            op(LD_W_ABS, lo_at, Jump::None);
            op(JSET, lo, Jump::PassIfTrueElseFail(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tiny interpreter: what would the kernel answer?
    fn run(filter: &Filter, nr: u32, args: [u64; 6]) -> u32 {
        let mut data = [0u8; 64];
        data[0..4].copy_from_slice(&nr.to_le_bytes());
        data[4..8].copy_from_slice(&ARCH.to_le_bytes());
        for (i, a) in args.iter().enumerate() {
            data[16 + i * 8..24 + i * 8].copy_from_slice(&a.to_le_bytes());
        }
        let (mut pc, mut acc) = (0usize, 0u32);
        loop {
            let i = filter.0[pc];
            pc += 1;
            let jump = |yes: bool| usize::from(if yes { i.jt } else { i.jf });
            match i.code {
                LD_W_ABS => acc = u32::from_le_bytes(data[i.k as usize..i.k as usize + 4].try_into().unwrap()),
                JEQ => pc += jump(acc == i.k),
                JGT => pc += jump(acc > i.k),
                JGE => pc += jump(acc >= i.k),
                JSET => pc += jump(acc & i.k != 0),
                AND => acc &= i.k,
                0x05 => pc += i.k as usize,
                RET => return i.k,
                other => panic!("opcode {other}"),
            }
        }
    }

    fn nr(name: &str) -> u32 {
        number(name).unwrap()
    }

    #[test]
    fn the_default_profile_follows_the_capabilities() {
        let plain = Filter::runtime_default(Caps::container_default());
        let admin = Filter::runtime_default(Caps::ALL);
        for (name, args, denied) in [
            ("mount", 0, true),
            ("read", 0, false),
            ("clone", 0x2000_0000, true),
            ("clone", 0x11, false),
            ("unshare", 0x200, false),
            ("chroot", 0, false),
            ("bpf", 0, true),
        ] {
            assert_eq!(run(&plain, nr(name), [args, 0, 0, 0, 0, 0]) != ALLOW, denied, "{name}");
            assert_eq!(run(&admin, nr(name), [args, 0, 0, 0, 0, 0]), ALLOW, "{name} with all capabilities");
        }
        assert_eq!(run(&plain, nr("keyctl"), [0; 6]), ERRNO | 1);
        assert_eq!(run(&admin, nr("keyctl"), [0; 6]), ERRNO | 1);
    }

    #[test]
    fn every_comparison_of_a_profile_means_what_it_says() {
        for (op, value, two, passes, fails) in [
            ("SCMP_CMP_EQ", 5u64 << 32 | 7, 0, vec![5 << 32 | 7], vec![7, 5 << 32]),
            ("SCMP_CMP_NE", 5u64 << 32 | 7, 0, vec![7, 5 << 32, 0], vec![5 << 32 | 7]),
            ("SCMP_CMP_LT", 1u64 << 32, 0, vec![0, 0xffff_ffff], vec![1 << 32, u64::MAX]),
            ("SCMP_CMP_LE", 9, 0, vec![9, 8], vec![10, 1 << 32]),
            ("SCMP_CMP_GT", 9, 0, vec![10, 1 << 32], vec![9, 0]),
            ("SCMP_CMP_GE", 1u64 << 32 | 3, 0, vec![1 << 32 | 3, 2 << 32], vec![1 << 32 | 2, 3]),
            ("SCMP_CMP_MASKED_EQ", 0xf0, 0x20, vec![0x2f, 0xf_0000_0020], vec![0x30]),
        ] {
            let json = serde_json::json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
                {"names": ["personality", "no_such_call"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38,
                 "args": [{"index": 1, "value": value, "valueTwo": two, "op": op}]},
                {"names": ["sethostname"], "action": "SCMP_ACT_KILL"}]});
            let f = Filter::from_json(json.to_string().as_bytes(), Caps::default()).unwrap();
            for (list, want) in [(passes, ERRNO | 38), (fails, ALLOW)] {
                for v in list {
                    assert_eq!(run(&f, nr("personality"), [0, v, 0, 0, 0, 0]), want, "{op} {v:#x}");
                }
            }
            assert_eq!(run(&f, nr("sethostname"), [0; 6]), 0);
            assert_eq!(run(&f, nr("read"), [0; 6]), ALLOW);
        }
    }

    #[test]
    fn a_profile_that_makes_no_sense_is_an_error() {
        for bad in [
            "{",
            r#"{"defaultAction":"X"}"#,
            r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["read"],"action":"SCMP_ACT_LOG","args":[{"index":6,"value":0,"op":"SCMP_CMP_EQ"}]}]}"#,
        ] {
            assert!(Filter::from_json(bad.as_bytes(), Caps::default()).is_err(), "{bad}");
        }
    }
}
