//! The write-ahead log: a file of frames, each `length, crc32, JSON record`, little endian.
//!
//! The first record names the base revision. Records up to the base are a snapshot of the objects alive then; later
//! ones are the writes since, in order. A torn tail (a frame cut by a crash) is cut off when the log is opened. When
//! the log has grown far beyond what is alive it is rewritten beside itself and renamed into place.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

const FRAME_HEADER: u64 = 8;
/// No object is larger than a request body (3 MiB) plus what defaulting adds; more is a damaged length.
const MAX_RECORD: u32 = 64 << 20;

/// First record of a file.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    v: u8,
    base: u64,
}

/// One write: revision, key, object (`null` for a deletion).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record<'a> {
    pub r: u64,
    #[serde(borrow)]
    pub k: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    pub o: &'a RawValue,
}

/// An open log, positioned at its end.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    path: PathBuf,
    len: u64,
    /// Size of the last snapshot; rotation waits until the log is a multiple of it.
    snapshot_len: u64,
    /// The file may hold a half-written frame after `len`, which must be cut before anything is appended.
    dirty: bool,
    sync: bool,
    rotate_bytes: u64,
}

impl Log {
    /// Opens or creates the log in `dir` and hands every record to `replay` as `(record, base revision)`.
    ///
    /// Returns the log and its base revision.
    pub fn open(
        dir: &Path,
        sync: bool,
        rotate_bytes: u64,
        mut replay: impl FnMut(Record<'_>, u64) -> io::Result<()>,
    ) -> io::Result<(Self, u64)> {
        std::fs::create_dir_all(dir)?;
        let path = dir.join("store.wal");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another process has the log open"));
            }
            Err(TryLockError::Error(e)) => return Err(e),
        }
        let total = file.metadata()?.len();
        let mut log = Self { file, path, len: 0, snapshot_len: 0, dirty: false, sync, rotate_bytes };
        let mut base = None;
        let mut reader = BufReader::with_capacity(1 << 18, log.file.try_clone()?);
        let mut payload = Vec::new();
        while let Some(size) = next_frame(&mut reader, total - log.len, &mut payload)? {
            match base {
                None => match serde_json::from_slice::<Head>(&payload) {
                    Ok(head) if head.v == 1 => base = Some(head.base),
                    Ok(head) => return Err(bad_data(format!("log version {} is not known", head.v))),
                    Err(_) => break,
                },
                Some(base) => {
                    let Ok(record) = serde_json::from_slice::<Record<'_>>(&payload) else { break };
                    let in_snapshot = record.r <= base;
                    replay(record, base)?;
                    if in_snapshot {
                        log.snapshot_len = log.len + size;
                    }
                }
            }
            log.len += size;
        }
        if log.len < total {
            tracing::warn!(path = %log.path.display(), cut = total - log.len, "cut a torn tail off the log");
            log.file.set_len(log.len)?;
        }
        log.file.seek(SeekFrom::Start(log.len))?;
        let base = match base {
            Some(base) => base,
            None => {
                let mut frame = Vec::new();
                push_frame(&mut frame, &encode(&Head { v: 1, base: 0 })?)?;
                log.append(&frame)?;
                0
            }
        };
        Ok((log, base))
    }

    /// Appends whole frames. On an error nothing of them remains in the log.
    pub fn append(&mut self, frames: &[u8]) -> io::Result<()> {
        if self.dirty {
            self.cut()?;
        }
        self.dirty = true;
        let written = self.file.write_all(frames).and_then(|()| if self.sync { self.file.sync_data() } else { Ok(()) });
        if let Err(e) = written {
            // When even the cut fails the log stays dirty and the next append tries again first.
            let _ = self.cut();
            return Err(e);
        }
        self.dirty = false;
        self.len += frames.len() as u64;
        Ok(())
    }

    fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(self.len)?;
        self.file.seek(SeekFrom::Start(self.len))?;
        self.dirty = false;
        Ok(())
    }

    /// Whether a rewrite would save enough to be worth its pause.
    pub fn wants_rotation(&self) -> bool {
        self.len > self.rotate_bytes && self.len > self.snapshot_len.saturating_mul(3)
    }

    /// Rewrites the log as a snapshot at `base`. On an error the old log stays in use.
    pub fn rotate<'a>(&mut self, base: u64, live: impl Iterator<Item = (u64, &'a str, &'a [u8])>) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        let result = self.write_snapshot(&fresh, base, live);
        if result.is_err() {
            // Try again only after the log has grown by as much once more.
            self.snapshot_len = self.len;
            let _ = std::fs::remove_file(&fresh);
        }
        result
    }

    fn write_snapshot<'a>(
        &mut self,
        fresh: &Path,
        base: u64,
        live: impl Iterator<Item = (u64, &'a str, &'a [u8])>,
    ) -> io::Result<()> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(fresh)?;
        file.lock()?;
        let mut buffer = Vec::with_capacity(1 << 20);
        let mut len = 0;
        push_frame(&mut buffer, &encode(&Head { v: 1, base })?)?;
        for (revision, key, json) in live {
            push_record(&mut buffer, revision, key, Some(json))?;
            if buffer.len() > 1 << 20 {
                file.write_all(&buffer)?;
                len += buffer.len() as u64;
                buffer.clear();
            }
        }
        file.write_all(&buffer)?;
        len += buffer.len() as u64;
        file.sync_all()?;
        std::fs::rename(fresh, &self.path)?;
        if let Some(dir) = self.path.parent() {
            File::open(dir)?.sync_all()?;
        }
        (self.file, self.len, self.snapshot_len, self.dirty) = (file, len, len, false);
        Ok(())
    }
}

/// Appends the frame of one write to `out`.
pub(crate) fn push_record(out: &mut Vec<u8>, revision: u64, key: &str, json: Option<&[u8]>) -> io::Result<()> {
    let mut payload = Vec::with_capacity(json.map_or(4, <[u8]>::len) + key.len() + 48);
    write!(payload, "{{\"r\":{revision},\"k\":")?;
    serde_json::to_writer(&mut payload, key)?;
    payload.extend_from_slice(b",\"o\":");
    payload.extend_from_slice(json.unwrap_or(b"null"));
    payload.push(b'}');
    push_frame(out, &payload)
}

fn push_frame(out: &mut Vec<u8>, payload: &[u8]) -> io::Result<()> {
    let len = u32::try_from(payload.len()).ok().filter(|n| *n <= MAX_RECORD);
    let len = len.ok_or_else(|| bad_data(format!("a record of {} bytes is too large", payload.len())))?;
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&crc32(payload).to_le_bytes());
    out.extend_from_slice(payload);
    Ok(())
}

/// Reads the next whole frame into `payload` and returns its size on disk; `None` at the end or at a damaged frame.
fn next_frame(reader: &mut impl Read, left: u64, payload: &mut Vec<u8>) -> io::Result<Option<u64>> {
    if left < FRAME_HEADER {
        return Ok(None);
    }
    let (mut len, mut crc) = ([0; 4], [0; 4]);
    reader.read_exact(&mut len)?;
    reader.read_exact(&mut crc)?;
    let len = u32::from_le_bytes(len);
    if len > MAX_RECORD || u64::from(len) > left - FRAME_HEADER {
        return Ok(None);
    }
    payload.resize(len as usize, 0);
    reader.read_exact(payload)?;
    Ok((crc32(payload) == u32::from_le_bytes(crc)).then_some(FRAME_HEADER + u64::from(len)))
}

fn encode(value: &impl Serialize) -> io::Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(io::Error::other)
}

fn bad_data(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// CRC-32 (IEEE 802.3, reflected), a byte at a time.
fn crc32(data: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let (mut c, mut bit) = (i as u32, 0);
            while bit < 8 {
                c = if c & 1 == 1 { 0xEDB8_8320 ^ (c >> 1) } else { c >> 1 };
                bit += 1;
            }
            table[i] = c;
            i += 1;
        }
        table
    };
    !data.iter().fold(!0, |crc, byte| TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize] ^ (crc >> 8))
}
