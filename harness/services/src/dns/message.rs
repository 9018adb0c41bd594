//! DNS messages: reading one question, writing its answer. Source: RFC 1035, RFC 2782.

use super::names::{Found, Record, Zone};

/// Largest answer over UDP; longer ones are cut and marked, so that the client asks over TCP.
pub(super) const UDP_LIMIT: usize = 1232;
const TTL: u32 = 5;

const A: u16 = 1;
const CNAME: u16 = 5;
const PTR: u16 = 12;
const SRV: u16 = 33;
const ANY: u16 = 255;

/// The name and type of the first question, and where it ends.
fn question(query: &[u8]) -> Option<(String, u16, usize)> {
    let mut at = 12;
    let mut labels: Vec<String> = Vec::new();
    loop {
        let len = usize::from(*query.get(at)?);
        at += 1;
        if len == 0 {
            break;
        }
        // A question has no reason to be compressed.
        if len > 63 || labels.len() > 40 {
            return None;
        }
        labels.push(String::from_utf8_lossy(query.get(at..at + len)?).to_lowercase());
        at += len;
    }
    let kind = u16::from_be_bytes([*query.get(at)?, *query.get(at + 1)?]);
    query.get(at + 3)?;
    Some((labels.join("."), kind, at + 4))
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    for label in name.trim_end_matches('.').split('.').filter(|l| !l.is_empty()) {
        let bytes = &label.as_bytes()[..label.len().min(63)];
        out.push(u8::try_from(bytes.len()).unwrap_or(63));
        out.extend_from_slice(bytes);
    }
    out.push(0);
}

fn put_record(out: &mut Vec<u8>, record: &Record) {
    // The owner is always the question's name, which stands at offset 12.
    out.extend_from_slice(&[0xc0, 12]);
    let (kind, data) = match record {
        Record::A(ip) => (A, ip.octets().to_vec()),
        Record::Cname(target) | Record::Ptr(target) => {
            let mut data = Vec::new();
            put_name(&mut data, target);
            (if matches!(record, Record::Cname(_)) { CNAME } else { PTR }, data)
        }
        Record::Srv(port, target) => {
            let mut data = vec![0, 0, 0, 100];
            data.extend_from_slice(&port.to_be_bytes());
            put_name(&mut data, target);
            (SRV, data)
        }
    };
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&[0, 1]);
    out.extend_from_slice(&TTL.to_be_bytes());
    out.extend_from_slice(&u16::try_from(data.len()).unwrap_or(0).to_be_bytes());
    out.extend_from_slice(&data);
}

fn is_kind(record: &Record, kind: u16) -> bool {
    let own = match record {
        Record::A(_) => A,
        Record::Cname(_) => return true,
        Record::Srv(..) => SRV,
        Record::Ptr(_) => PTR,
    };
    own == kind || kind == ANY
}

/// The answer to a query; `None` for what is not one.
pub(super) fn answer(query: &[u8], zone: &Zone, limit: usize) -> Option<Vec<u8>> {
    if query.len() < 12 || query[2] & 0x80 != 0 {
        return None;
    }
    let (name, kind, end) = question(query)?;
    let (code, records) = match zone.find(&name) {
        Found::Records(records) => (0, records.into_iter().filter(|r| is_kind(r, kind)).collect()),
        Found::Nothing | Found::Foreign => (3, Vec::new()),
    };
    let mut out = query[..2].to_vec();
    // An answer, authoritative, with the client's wish for recursion copied and recursion offered.
    out.extend_from_slice(&[0x84 | (query[2] & 1), 0x80 | code]);
    out.extend_from_slice(&[0, 1]);
    out.extend_from_slice(&u16::try_from(records.len()).unwrap_or(0).to_be_bytes());
    out.extend_from_slice(&[0, 0, 0, 0]);
    out.extend_from_slice(&query[12..end]);
    let head = out.len();
    records.iter().for_each(|r| put_record(&mut out, r));
    if out.len() > limit {
        out.truncate(head);
        out[2] |= 2;
        out[6..8].copy_from_slice(&[0, 0]);
    }
    Some(out)
}
