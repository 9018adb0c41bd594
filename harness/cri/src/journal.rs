//! The records of sandboxes and containers on disk: one file to which each change appends a line. One small write a
//! change, which a kill cannot halve; the last line of an id is its state, `null` means gone. The file is written anew
//! when it is opened and when most of it is history. Readable by its owner alone: environments hold secrets.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

/// Below this the file is not rewritten.
const MIN_REWRITE: u64 = 4 << 20;

/// What a line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A `SandboxRecord`.
    Sandbox,
    /// A `ContainerRecord`.
    Container,
}

#[derive(Serialize, Deserialize)]
struct Line<'a> {
    kind: Kind,
    id: &'a str,
    #[serde(borrow)]
    record: Option<&'a RawValue>,
}

/// The open journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    length: u64,
    live: BTreeMap<(Kind, String), String>,
    live_bytes: u64,
}

impl Journal {
    /// Opens the file, dropping its history. A line that cannot be read (the last one, after a power loss) is skipped.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Self> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(e),
        };
        let mut live = BTreeMap::new();
        for line in text.lines() {
            let Ok(l) = serde_json::from_str::<Line<'_>>(line) else {
                tracing::warn!(path = %path.display(), "a line of the runtime's state cannot be read");
                continue;
            };
            let key = (l.kind, l.id.to_owned());
            match l.record {
                Some(_) => drop(live.insert(key, format!("{line}\n"))),
                None => drop(live.remove(&key)),
            }
        }
        let (file, length) = rewrite(path, &live)?;
        Ok(Self { path: path.to_owned(), state: Mutex::new(State { file, length, live, live_bytes: length }) })
    }

    /// Writes a record down.
    ///
    /// # Errors
    /// The system's; a full disk, say.
    pub fn write<T: Serialize>(&self, kind: Kind, id: &str, record: &T) -> io::Result<()> {
        let record = serde_json::value::to_raw_value(record)?;
        let mut line = serde_json::to_string(&Line { kind, id, record: Some(&record) })?;
        line.push('\n');
        let mut state = self.state.lock();
        state.append(&line)?;
        let old = state.live.insert((kind, id.to_owned()), line.clone()).map_or(0, |l| l.len());
        state.live_bytes = (state.live_bytes + line.len() as u64).saturating_sub(old as u64);
        self.trim(&mut state)
    }

    /// Writes down that something is gone.
    ///
    /// # Errors
    /// The system's.
    pub fn remove(&self, kind: Kind, id: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        let Some(old) = state.live.remove(&(kind, id.to_owned())) else { return Ok(()) };
        state.live_bytes = state.live_bytes.saturating_sub(old.len() as u64);
        let mut line = serde_json::to_string(&Line { kind, id, record: None })?;
        line.push('\n');
        state.append(&line)?;
        self.trim(&mut state)
    }

    fn trim(&self, state: &mut State) -> io::Result<()> {
        if state.length > MIN_REWRITE && state.length > 4 * state.live_bytes {
            (state.file, state.length) = rewrite(&self.path, &state.live)?;
        }
        Ok(())
    }

    /// All records of a kind that can be read, by id.
    pub fn read_all<T: DeserializeOwned>(&self, kind: Kind) -> BTreeMap<String, T> {
        let state = self.state.lock();
        let records = state.live.iter().filter(|((k, _), _)| *k == kind).filter_map(|((_, id), line)| {
            let record = serde_json::from_str::<Line<'_>>(line).ok()?.record?.get().to_owned();
            match serde_json::from_str(&record) {
                Ok(record) => Some((id.clone(), record)),
                Err(error) => {
                    tracing::warn!(id, %error, "a record of the runtime's state cannot be read");
                    None
                }
            }
        });
        records.collect()
    }
}

impl State {
    /// A write that fails halfway (disk full) is taken back, so that what follows is not glued to it.
    fn append(&mut self, line: &str) -> io::Result<()> {
        let written = self.file.write_all(line.as_bytes());
        if written.is_err() {
            let _ = self.file.set_len(self.length);
        } else {
            self.length += line.len() as u64;
        }
        written
    }
}

fn rewrite(path: &Path, live: &BTreeMap<(Kind, String), String>) -> io::Result<(File, u64)> {
    let temporary = path.with_extension("tmp");
    let all: String = live.values().map(String::as_str).collect();
    let mut file = File::options().create(true).write(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(all.as_bytes())?;
    fs::rename(&temporary, path)?;
    drop(file);
    Ok((File::options().append(true).open(path)?, all.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts_and_a_torn_line_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let j = Journal::open(&path).unwrap();
        j.write(Kind::Sandbox, "a", &1).unwrap();
        j.write(Kind::Sandbox, "a", &2).unwrap();
        j.write(Kind::Container, "a", &3).unwrap();
        j.write(Kind::Container, "b", &4).unwrap();
        j.remove(Kind::Container, "b").unwrap();
        drop(j);
        File::options()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(b"{\"kind\":\"sandbox\",\"id\":\"a\",\"rec")
            .unwrap();
        let j = Journal::open(&path).unwrap();
        assert_eq!(j.read_all::<i32>(Kind::Sandbox), BTreeMap::from([("a".into(), 2)]));
        assert_eq!(j.read_all::<i32>(Kind::Container), BTreeMap::from([("a".into(), 3)]));
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2, "opened without its history");
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&fs::metadata(&path).unwrap()) & 0o777, 0o600);
    }

    #[test]
    fn history_is_dropped_when_there_is_much_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j");
        let j = Journal::open(&path).unwrap();
        let big = "x".repeat(64 << 10);
        for _ in 0..200 {
            j.write(Kind::Sandbox, "a", &big).unwrap();
        }
        assert!(fs::metadata(&path).unwrap().len() < MIN_REWRITE + (1 << 20));
        assert_eq!(j.read_all::<String>(Kind::Sandbox)["a"], big);
    }
}
