//! Building and reading netlink messages: header, fixed part, nested attributes. Source: Linux uapi/linux/netlink.h.

/// A message under construction. Lengths are patched in when an attribute or the message is closed.
#[derive(Debug, Clone)]
pub struct Message {
    bytes: Vec<u8>,
    open: Vec<usize>,
}

/// Set on every nested attribute of nfnetlink.
const NLA_F_NESTED: u16 = 0x8000;

impl Message {
    /// Starts a message with its fixed part (`ifinfomsg`, `nfgenmsg`, …).
    pub fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&0_u32.to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(fixed);
        let mut message = Self { bytes, open: Vec::new() };
        message.pad();
        message
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn head(&mut self, kind: u16) -> usize {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0, 0]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        at
    }

    fn close(&mut self, at: usize) {
        let len = u16::try_from(self.bytes.len() - at).expect("attributes built here stay far below 64 KiB");
        self.bytes[at..at + 2].copy_from_slice(&len.to_ne_bytes());
        self.pad();
    }

    /// Appends an attribute with a value.
    #[must_use]
    pub fn attr(mut self, kind: u16, value: &[u8]) -> Self {
        let at = self.head(kind);
        self.bytes.extend_from_slice(value);
        self.close(at);
        self
    }

    /// Appends a NUL-terminated string.
    #[must_use]
    pub fn text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attr(kind, &bytes)
    }

    /// Appends a number in host order, as rtnetlink wants.
    #[must_use]
    pub fn u32(self, kind: u16, value: u32) -> Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    /// Appends a number in network order, as nfnetlink wants.
    #[must_use]
    pub fn be32(self, kind: u16, value: u32) -> Self {
        self.attr(kind, &value.to_be_bytes())
    }

    /// Opens a nested attribute.
    #[must_use]
    pub fn begin(mut self, kind: u16) -> Self {
        let at = self.head(kind | NLA_F_NESTED);
        self.open.push(at);
        self
    }

    /// Closes the innermost nested attribute.
    ///
    /// # Panics
    /// When none is open: a bug in the caller.
    #[must_use]
    pub fn end(mut self) -> Self {
        let at = self.open.pop().expect("end() follows a begin()");
        self.close(at);
        self
    }

    /// Appends raw bytes to the open attribute (a fixed header inside an attribute, as veth's peer has).
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Applies a builder step, for attributes made by a function or in a loop.
    #[must_use]
    pub fn with(self, f: impl FnOnce(Self) -> Self) -> Self {
        f(self)
    }

    /// The finished bytes, with a sequence number.
    pub fn finish(mut self, sequence: u32) -> Vec<u8> {
        let len = u32::try_from(self.bytes.len()).expect("messages built here stay far below 4 GiB");
        self.bytes[0..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// One received message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_seq`.
    pub sequence: u32,
    /// Everything after the header.
    pub body: Vec<u8>,
}

/// Cuts a datagram into messages; a malformed tail is dropped.
pub fn split(mut data: &[u8]) -> Vec<Received> {
    let mut out = Vec::new();
    while data.len() >= 16 {
        let len = u32::from_ne_bytes([data[0], data[1], data[2], data[3]]) as usize;
        if len < 16 || len > data.len() {
            break;
        }
        out.push(Received {
            kind: u16::from_ne_bytes([data[4], data[5]]),
            sequence: u32::from_ne_bytes([data[8], data[9], data[10], data[11]]),
            body: data[16..len].to_vec(),
        });
        data = &data[len.next_multiple_of(4).min(data.len())..];
    }
    out
}

/// The attributes in a byte range, in order; a malformed tail is dropped.
pub fn attributes(mut data: &[u8]) -> Vec<(u16, &[u8])> {
    let mut out = Vec::new();
    while data.len() >= 4 {
        let len = usize::from(u16::from_ne_bytes([data[0], data[1]]));
        if len < 4 || len > data.len() {
            break;
        }
        out.push((u16::from_ne_bytes([data[2], data[3]]) & 0x3fff, &data[4..len]));
        data = &data[len.next_multiple_of(4).min(data.len())..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_is_read_back() {
        let bytes = Message::new(16, 5, &[1; 16]).u32(3, 7).begin(18).text(1, "veth").end().finish(9);
        let got = split(&bytes);
        assert_eq!((got.len(), got[0].kind, got[0].sequence), (1, 16, 9));
        let attrs = attributes(&got[0].body[16..]);
        assert_eq!(attrs[0], (3, &7_u32.to_ne_bytes()[..]));
        assert_eq!(attributes(attrs[1].1), vec![(1, &b"veth\0"[..])]);
    }

    #[test]
    fn malformed_bytes_are_dropped_without_panic() {
        for data in [&[][..], &[1, 2, 3], &[255; 40], &[16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]] {
            let _ = split(data);
            let _ = attributes(data);
        }
    }
}
