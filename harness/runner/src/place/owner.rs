//! Who made something outside this process, in a form another run can ask about: host, pid, and when the process began.

use std::fs;

/// This process.
pub(crate) fn this() -> String {
    let pid = std::process::id();
    format!("{} {pid} {}", host(), began(pid).unwrap_or_default())
}

fn host() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// When a process began, in the kernel's ticks: a pid that has come to mean somebody else has another.
fn began(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19).map(str::to_owned)
}

/// Whether the maker lives; `None` when it was a process of another host, of which nothing is known here.
pub(crate) fn lives(owner: &str) -> Option<bool> {
    let words: Vec<&str> = owner.split_whitespace().collect();
    let [at, pid, since] = words[..] else { return Some(false) };
    (at == host()).then(|| pid.parse().ok().and_then(began).as_deref() == Some(since))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maker_lives_as_long_as_its_process_and_not_as_long_as_its_pid() {
        let own = this();
        assert_eq!(lives(&own), Some(true));
        let words: Vec<&str> = own.split(' ').collect();
        assert_eq!(lives(&format!("{} {} 1", words[0], words[1])), Some(false), "another process of that pid");
        assert_eq!(lives(&format!("elsewhere {} {}", words[1], words[2])), None);
        for odd in ["", "x", "a b c d", &format!("{} x y", words[0])] {
            assert_eq!(lives(odd), Some(false), "{odd:?}");
        }
    }
}
