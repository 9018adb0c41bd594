//! Small clients of the streaming protocols, written from their specifications and not from our server.

use std::collections::BTreeMap;

use flate2::{Compress, Compression, FlushCompress};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};

fn split(url: &str) -> (String, String) {
    let rest = url.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    (host.to_owned(), format!("/{path}"))
}

/// Sends the upgrade; returns the connection and the head of the answer.
async fn upgrade(url: &str, method: &str, headers: &str) -> (TcpStream, String) {
    let (host, path) = split(url);
    let mut tcp = TcpStream::connect(&host).await.unwrap();
    tcp.write_all(
        format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\n{headers}\r\n").as_bytes(),
    )
    .await
    .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tcp.read_u8().await.unwrap());
    }
    (tcp, String::from_utf8(head).unwrap())
}

fn websocket_headers(protocol: &str) -> String {
    format!(
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {protocol}\r\n"
    )
}

/// Whether a URL is no good (any more).
pub async fn refused(url: &str) -> bool {
    upgrade(url, "GET", &websocket_headers("v4.channel.k8s.io")).await.1.starts_with("HTTP/1.1 404")
}

async fn send_message<W: AsyncWrite + Unpin>(w: &mut W, payload: &[u8]) {
    let mut frame = vec![0x82, 0x80 | 126];
    frame.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
    let mask = [7, 8, 9, 10];
    frame.extend(mask);
    frame.extend(payload.iter().enumerate().map(|(i, b)| b ^ mask[i % 4]));
    w.write_all(&frame).await.unwrap();
}

async fn read_message<R: AsyncRead + Unpin>(r: &mut R) -> Option<Vec<u8>> {
    let first = r.read_u8().await.ok()?;
    let length = match r.read_u8().await.ok()? {
        126 => usize::from(r.read_u16().await.ok()?),
        127 => usize::try_from(r.read_u64().await.ok()?).unwrap(),
        n => usize::from(n),
    };
    let mut payload = vec![0; length];
    r.read_exact(&mut payload).await.ok()?;
    (first & 0x0f != 8).then_some(payload)
}

/// Sends messages; returns what each channel carried until the end.
pub async fn websocket(url: &str, protocol: &str, messages: &[&[u8]]) -> BTreeMap<u8, String> {
    let (mut tcp, head) = upgrade(url, "GET", &websocket_headers(protocol)).await;
    assert!(
        head.starts_with("HTTP/1.1 101")
            && head.to_lowercase().contains(&format!("sec-websocket-protocol: {protocol}")),
        "{head}"
    );
    for message in messages {
        send_message(&mut tcp, message).await;
    }
    let mut got: BTreeMap<u8, String> = BTreeMap::new();
    while let Some(message) = read_message(&mut tcp).await {
        *got.entry(message[0]).or_default() += &String::from_utf8_lossy(&message[1..]);
    }
    got
}

/// A SPDY client: opens streams, sends data, collects.
struct Spdy {
    deflate: Compress,
    frames: Vec<u8>,
}

impl Spdy {
    fn new() -> Self {
        let mut deflate = Compress::new(Compression::default(), true);
        // Only its checksum matters to the decoder of what we send, and that the server knows the same.
        deflate.set_dictionary(&dictionary()).unwrap();
        Self { deflate, frames: Vec::new() }
    }

    fn open(&mut self, id: u32, headers: &[(&str, &str)]) {
        let mut block = u32::try_from(headers.len()).unwrap().to_be_bytes().to_vec();
        for (k, v) in headers {
            for s in [k, v] {
                block.extend(u32::try_from(s.len()).unwrap().to_be_bytes());
                block.extend(s.as_bytes());
            }
        }
        let mut out = Vec::with_capacity(1024);
        self.deflate.compress_vec(&block, &mut out, FlushCompress::Sync).unwrap();
        self.frames.extend([0x80, 3, 0, 1]);
        self.frames.extend(u32::try_from(10 + out.len()).unwrap().to_be_bytes());
        self.frames.extend(id.to_be_bytes());
        self.frames.extend([0; 6]);
        self.frames.extend(out);
    }

    fn data(&mut self, id: u32, data: &[u8], fin: bool) {
        self.frames.extend(id.to_be_bytes());
        self.frames.extend((u32::from(fin) << 24 | u32::try_from(data.len()).unwrap()).to_be_bytes());
        self.frames.extend(data);
    }

    /// Reads until the session ends, or until both ends of `until` are finished.
    async fn collect<R: AsyncRead + Unpin>(r: &mut R, until: &[u32]) -> BTreeMap<u32, String> {
        let mut got: BTreeMap<u32, String> = BTreeMap::new();
        let mut finished = Vec::new();
        loop {
            let mut head = [0; 8];
            if r.read_exact(&mut head).await.is_err() {
                return got;
            }
            let mut body = vec![0; u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize];
            r.read_exact(&mut body).await.unwrap();
            if head[0] & 0x80 != 0 {
                if head[3] == 7 {
                    return got;
                }
                continue;
            }
            let id = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
            *got.entry(id).or_default() += &String::from_utf8_lossy(&body);
            if head[4] & 1 != 0 {
                finished.push(id);
                if !until.is_empty() && until.iter().all(|u| finished.contains(u)) {
                    return got;
                }
            }
        }
    }
}

/// Exec with these streams; what stdin is given is sent at once and closed.
pub async fn spdy_exec(url: &str, streams: &[&str], stdin: &[u8]) -> BTreeMap<String, String> {
    let (mut tcp, head) = upgrade(url, "POST", "Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\nX-Stream-Protocol-Version: v3.channel.k8s.io\r\n").await;
    assert!(
        head.starts_with("HTTP/1.1 101")
            && head.to_lowercase().contains("x-stream-protocol-version: v4.channel.k8s.io"),
        "{head}"
    );
    let mut spdy = Spdy::new();
    let id = |n: usize| u32::try_from(n * 2 + 1).unwrap();
    for (n, kind) in streams.iter().enumerate() {
        spdy.open(id(n), &[("streamType", kind)]);
        if *kind == "stdin" {
            spdy.data(id(n), stdin, true);
        }
    }
    tcp.write_all(&spdy.frames).await.unwrap();
    let got = Spdy::collect(&mut tcp, &[]).await;
    streams
        .iter()
        .enumerate()
        .map(|(n, kind)| ((*kind).to_owned(), got.get(&id(n)).cloned().unwrap_or_default()))
        .collect()
}

/// One forwarded connection, directly or tunnelled through a WebSocket.
pub async fn spdy_forward(url: &str, tunnel: bool, port: u16, data: &[u8]) -> BTreeMap<String, String> {
    let port = port.to_string();
    let mut spdy = Spdy::new();
    spdy.open(1, &[("streamType", "error"), ("port", &port), ("requestID", "0")]);
    spdy.data(1, b"", true);
    spdy.open(3, &[("streamType", "data"), ("port", &port), ("requestID", "0")]);
    spdy.data(3, data, false);
    let got = if tunnel {
        let (tcp, head) = upgrade(url, "GET", &websocket_headers("SPDY/3.1+portforward.k8s.io")).await;
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        let (mut r, mut w) = tokio::io::split(tcp);
        send_message(&mut w, &spdy.frames).await;
        let (mut near, mut far) = tokio::io::duplex(1 << 20);
        let carry = async {
            while let Some(message) = read_message(&mut r).await {
                near.write_all(&message).await.unwrap();
            }
            drop(near);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            got = Spdy::collect(&mut far, &[1, 3]) => got,
            () = carry => unreachable!(),
        }
    } else {
        let (mut tcp, head) =
            upgrade(url, "POST", "Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: portforward.k8s.io\r\n").await;
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        tcp.write_all(&spdy.frames).await.unwrap();
        Spdy::collect(&mut tcp, &[1, 3]).await
    };
    let of = |id| got.get(&id).cloned().unwrap_or_default();
    BTreeMap::from([("error".to_owned(), of(1)), ("data".to_owned(), of(3))])
}

/// The header dictionary of SPDY/3.
fn dictionary() -> Vec<u8> {
    let words = "options,head,post,put,delete,trace,accept,accept-charset,accept-encoding,accept-language,accept-ranges,age,allow,authorization,\
        cache-control,connection,content-base,content-encoding,content-language,content-length,content-location,content-md5,content-range,\
        content-type,date,etag,expect,expires,from,host,if-match,if-modified-since,if-none-match,if-range,if-unmodified-since,last-modified,\
        location,max-forwards,pragma,proxy-authenticate,proxy-authorization,range,referer,retry-after,server,te,trailer,transfer-encoding,\
        upgrade,user-agent,vary,via,warning,www-authenticate,method,get,status,200 OK,version,HTTP/1.1,url,public,set-cookie,keep-alive,origin";
    let mut all = Vec::new();
    for word in words.split(',') {
        all.extend(u32::try_from(word.len()).unwrap().to_be_bytes());
        all.extend(word.as_bytes());
    }
    all.extend(
        b"100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative Information\
204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented\
503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,\
image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdch\
charset=utf-8charset=iso-8859-1,utf-,*,enq=0.",
    );
    all
}
