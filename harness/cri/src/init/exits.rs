//! Exits that nobody has acknowledged yet, in memory and in a file.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Write},
    path::Path,
};

/// How one process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Grows by one with each exit.
    pub seq: u64,
    /// Which process.
    pub pid: i32,
    /// Its start time, which with the pid names it for good.
    pub start: u64,
    /// What it was registered as; empty when it was not.
    pub key: String,
    /// Exit code, or 128 + signal.
    pub code: i32,
    /// The signal that ended it, or 0.
    pub signal: i32,
    /// When it was reaped, nanoseconds since the epoch.
    pub wall_ns: i64,
}

/// Exits of processes that were never registered are kept only this long a queue: most are orphans nobody asks about.
const MAX_UNREGISTERED: usize = 256;

impl Exit {
    /// One line: `exit SEQ PID START CODE SIGNAL WALL KEY`.
    pub fn line(&self) -> String {
        let Self { seq, pid, start, key, code, signal, wall_ns } = self;
        format!("exit {seq} {pid} {start} {code} {signal} {wall_ns} {key}")
    }

    /// The inverse of [`Exit::line`].
    pub fn parse(line: &str) -> Option<Self> {
        let mut f = line.strip_prefix("exit ")?.splitn(7, ' ');
        Some(Self {
            seq: f.next()?.parse().ok()?,
            pid: f.next()?.parse().ok()?,
            start: f.next()?.parse().ok()?,
            code: f.next()?.parse().ok()?,
            signal: f.next()?.parse().ok()?,
            wall_ns: f.next()?.parse().ok()?,
            key: f.next()?.to_owned(),
        })
    }
}

/// The queue. The file is a record for whoever looks after init itself has died; it is emptied when the queue is.
#[derive(Debug)]
pub struct Exits {
    queue: VecDeque<Exit>,
    file: Option<File>,
    next_seq: u64,
}

impl Exits {
    /// Opens the file in `run_dir`. What an earlier init left is taken over; its processes are gone, their codes are not.
    pub fn open(run_dir: &Path) -> io::Result<Self> {
        let path = run_dir.join("exits");
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        let queue: VecDeque<Exit> = old.lines().filter_map(Exit::parse).collect();
        let next_seq = queue.iter().map(|e| e.seq).max().map_or(1, |s| s + 1);
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Self { queue, file: Some(file), next_seq })
    }

    /// Records an exit. A file that cannot be written (disk full) does not stop the queue in memory.
    pub fn push(&mut self, mut exit: Exit) {
        exit.seq = self.next_seq;
        self.next_seq += 1;
        if let Some(file) = &mut self.file {
            let _ = file.write_all(format!("{}\n", exit.line()).as_bytes());
        }
        self.queue.push_back(exit);
        if self.queue.iter().filter(|e| e.key.is_empty()).count() > MAX_UNREGISTERED
            && let Some(oldest) = self.queue.iter().position(|e| e.key.is_empty())
        {
            self.queue.remove(oldest);
        }
    }

    /// Gives a process that ended before it was registered its key. `true` when there was such an exit.
    pub fn name(&mut self, pid: i32, start: u64, key: &str) -> bool {
        let Some(found) = self.queue.iter_mut().find(|e| e.pid == pid && e.start == start) else { return false };
        key.clone_into(&mut found.key);
        // It counts as new: subscribers have seen it without its key.
        found.seq = self.next_seq;
        self.next_seq += 1;
        let exit = found.clone();
        self.queue.retain(|e| !(e.pid == pid && e.start == start));
        self.queue.push_back(exit);
        true
    }

    /// Whether this end is in the queue.
    pub fn has(&self, pid: i32, start: u64) -> bool {
        self.queue.iter().any(|e| e.pid == pid && e.start == start)
    }

    /// Forgets an exit that was taken note of.
    pub fn acknowledge(&mut self, pid: i32, start: u64) {
        self.queue.retain(|e| !(e.pid == pid && e.start == start));
        if self.queue.is_empty()
            && let Some(file) = &self.file
        {
            let _ = file.set_len(0);
        }
    }

    /// The first exit after `seq`.
    pub fn after(&self, seq: u64) -> Option<&Exit> {
        self.queue.iter().filter(|e| e.seq > seq).min_by_key(|e| e.seq)
    }

    /// How many registered ones are waiting.
    pub fn registered(&self) -> usize {
        self.queue.iter().filter(|e| !e.key.is_empty()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(pid: i32, key: &str) -> Exit {
        Exit { seq: 0, pid, start: 9, key: key.into(), code: 3, signal: 0, wall_ns: 7 }
    }

    #[test]
    fn exits_survive_the_process_that_recorded_them_until_acknowledged() {
        let dir = tempfile::tempdir().unwrap();
        let mut e = Exits::open(dir.path()).unwrap();
        e.push(exit(4, "a b"));
        e.push(exit(5, ""));
        drop(e);
        let mut e = Exits::open(dir.path()).unwrap();
        assert_eq!(e.after(0).unwrap().key, "a b");
        assert_eq!(e.after(1).unwrap().pid, 5);
        assert!(e.name(5, 9, "late") && !e.name(6, 9, "never"));
        assert_eq!(e.after(2).unwrap().key, "late", "a late name is announced again");
        e.acknowledge(4, 9);
        e.acknowledge(5, 9);
        assert!(Exits::open(dir.path()).unwrap().after(0).is_none());
    }

    #[test]
    fn orphans_are_bounded_and_never_push_out_a_registered_exit() {
        let dir = tempfile::tempdir().unwrap();
        let mut e = Exits::open(dir.path()).unwrap();
        e.push(exit(1, "kept"));
        for pid in 2..600 {
            e.push(exit(pid, ""));
        }
        assert_eq!((e.registered(), e.queue.len()), (1, MAX_UNREGISTERED + 1));
        assert_eq!(e.after(0).unwrap().key, "kept");
    }
}
