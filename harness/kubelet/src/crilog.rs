//! The CRI log format: `<RFC3339Nano> <stdout|stderr> <F|P>[:tags] <text>`, one line per write, `P` for a line that goes on.
//!
//! Source: k/k staging/src/k8s.io/cri-client/pkg/logs/logs.go.

use std::path::Path;

use podlab_api::jiff::Timestamp;

use crate::host::Host;

/// How much is read at a time when looking for the end of a file.
const CHUNK: usize = 64 * 1024;

/// One line of a log file, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// When it was written.
    pub(crate) time: Timestamp,
    /// The time as written.
    pub(crate) stamp: &'a str,
    /// `stdout` or `stderr`.
    pub(crate) stream: &'a str,
    /// Whether the text goes on in the next line.
    pub(crate) partial: bool,
    /// What was written, without a newline.
    pub(crate) text: &'a [u8],
}

/// Takes one line (without its newline) apart; `None` when it is not of the format.
pub(crate) fn parse(line: &[u8]) -> Option<Line<'_>> {
    let mut parts = line.splitn(4, |b| *b == b' ');
    let stamp = std::str::from_utf8(parts.next()?).ok()?;
    let stream = std::str::from_utf8(parts.next()?).ok().filter(|s| matches!(*s, "stdout" | "stderr"))?;
    let tags = std::str::from_utf8(parts.next()?).ok()?;
    let text = parts.next().unwrap_or_default();
    let time = stamp.parse().ok()?;
    Some(Line { time, stamp, stream, partial: tags.split(':').next() == Some("P"), text })
}

/// Offset where the last `lines` lines of a file begin.
pub(crate) fn tail_offset(host: &dyn Host, path: &Path, lines: u64) -> std::io::Result<u64> {
    let size = host.stat(path)?.size;
    if lines == 0 {
        return Ok(size);
    }
    let mut end = size;
    let mut found = 0;
    while end > 0 {
        let begin = end.saturating_sub(CHUNK as u64);
        let bytes = host.read_at(path, begin, usize::try_from(end - begin).unwrap_or(CHUNK))?;
        for (i, b) in bytes.iter().enumerate().rev() {
            let at = begin + i as u64;
            // The newline that ends the file ends the last line; it does not begin one.
            if *b == b'\n' && at + 1 < size {
                found += 1;
                if found == lines {
                    return Ok(at + 1);
                }
            }
        }
        end = begin;
    }
    Ok(0)
}

/// The text of the last lines of a log, at most `max` bytes; empty when it cannot be read.
pub(crate) fn last(host: &dyn Host, path: &Path, lines: usize, max: usize) -> Vec<u8> {
    let read = || -> std::io::Result<Vec<u8>> {
        let begin = tail_offset(host, path, lines as u64)?;
        let raw = host.read_at(path, begin, max.saturating_mul(16).max(CHUNK))?;
        let mut out = Vec::new();
        for line in raw.split(|b| *b == b'\n').filter_map(parse) {
            out.extend_from_slice(line.text);
            if !line.partial {
                out.push(b'\n');
            }
        }
        Ok(out)
    };
    let text = read().unwrap_or_default();
    text[text.len().saturating_sub(max)..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_format_are_taken_apart_and_others_refused() {
        let l = parse(b"2026-01-02T03:04:05.123456789Z stdout P hello world").unwrap();
        assert_eq!((l.stream, l.partial, l.text), ("stdout", true, &b"hello world"[..]));
        assert_eq!(parse(b"2026-01-02T03:04:05Z stderr F ").unwrap().text, b"");
        assert!(!parse(b"2026-01-02T03:04:05Z stderr F").unwrap().partial);
        for bad in [&b""[..], b"x stdout F a", b"2026-01-02T03:04:05Z other F a", b"\xff\xff"] {
            assert!(parse(bad).is_none());
        }
    }
}
