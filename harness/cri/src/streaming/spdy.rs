//! SPDY/3.1 as Kubernetes uses it, the server's side: streams that the client opens, with headers; no flow control
//! (neither side of that world implements it), no pushes. Source: SPDY draft 3.1; moby/spdystream.

use std::{collections::BTreeMap, io};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::mpsc,
};

const MAX_FRAME: usize = 1 << 20;
const MAX_STREAMS: usize = 1024;
const MAX_HEADERS: usize = 64 << 10;
const FIN: u8 = 1;

/// A stream the client has opened.
#[derive(Debug)]
pub(crate) struct Stream {
    pub id: u32,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    /// What the client sends; ends when it closes its half.
    pub data: mpsc::Receiver<Bytes>,
}

/// What is sent to the client.
#[derive(Debug)]
pub(crate) enum Send {
    Data(u32, Bytes),
    /// Our half of the stream is done.
    Fin(u32),
    /// The stream is no good.
    Reset(u32),
    /// The session is over.
    End,
    Reply(u32),
    Pong(u32),
}

/// A session: accept streams, send frames.
#[derive(Debug)]
pub(crate) struct Session {
    pub streams: mpsc::Receiver<Stream>,
    pub send: mpsc::Sender<Send>,
}

/// Starts a session over a connection; the future carries its frames and ends with it.
pub(crate) fn session<S: AsyncRead + AsyncWrite + std::marker::Send + 'static>(
    stream: S,
) -> (Session, impl Future<Output = ()> + std::marker::Send) {
    let (reader, writer) = tokio::io::split(stream);
    let (streams_tx, streams) = mpsc::channel(16);
    let (send, send_rx) = mpsc::channel(64);
    let replies = send.clone();
    let task = async move {
        tokio::select! {
            r = read_frames(reader, streams_tx, replies) => if let Err(error) = r { tracing::debug!(%error, "SPDY session broke") },
            _ = write_frames(writer, send_rx) => {}
        }
    };
    (Session { streams, send }, task)
}

async fn read_frames<R: AsyncRead + Unpin>(
    mut reader: R,
    accept: mpsc::Sender<Stream>,
    send: mpsc::Sender<Send>,
) -> io::Result<()> {
    let mut inflate = Decompress::new(true);
    let mut open: BTreeMap<u32, mpsc::Sender<Bytes>> = BTreeMap::new();
    let mut head = [0; 8];
    while reader.read_exact(&mut head).await.is_ok() {
        let length = usize::try_from(u32::from_be_bytes([0, head[5], head[6], head[7]])).unwrap_or(MAX_FRAME);
        if length > MAX_FRAME {
            return Err(io::Error::other("frame too large"));
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).await?;
        let (flags, mut body) = (head[4], Bytes::from(body));
        if head[0] & 0x80 == 0 {
            let id = u32::from_be_bytes([head[0] & 0x7f, head[1], head[2], head[3]]);
            if let Some(to) = open.get(&id)
                && !body.is_empty()
                && to.send(body).await.is_err()
            {
                // Nobody reads this stream any more; the client learns it from our half's end.
                open.remove(&id);
            }
            if flags & FIN != 0 {
                open.remove(&id);
            }
            continue;
        }
        let need = |n: usize, body: &Bytes| if body.len() < n { Err(io::Error::other("short frame")) } else { Ok(()) };
        match u16::from_be_bytes([head[2], head[3]]) {
            1 => {
                need(10, &body)?;
                let id = body.get_u32() & 0x7fff_ffff;
                body.advance(6);
                let headers = parse_headers(&decompress(&mut inflate, &body)?)?;
                if open.len() >= MAX_STREAMS {
                    let _ = send.send(Send::Reset(id)).await;
                    continue;
                }
                let (tx, data) = mpsc::channel(256);
                if flags & FIN == 0 {
                    open.insert(id, tx);
                }
                let _ = send.send(Send::Reply(id)).await;
                if accept.send(Stream { id, headers, data }).await.is_err() {
                    return Ok(());
                }
            }
            3 => {
                need(8, &body)?;
                open.remove(&(body.get_u32() & 0x7fff_ffff));
            }
            6 => {
                need(4, &body)?;
                let _ = send.send(Send::Pong(body.get_u32())).await;
            }
            7 => return Ok(()),
            8 => {
                // Further headers carry nothing we use, but the compressor's state goes through them.
                need(4, &body)?;
                body.advance(4);
                decompress(&mut inflate, &body)?;
            }
            _ => {}
        }
    }
    Ok(())
}

async fn write_frames<W: AsyncWrite + Unpin>(mut writer: W, mut send: mpsc::Receiver<Send>) -> io::Result<()> {
    let mut deflate = Compress::new(Compression::fast(), true);
    deflate.set_dictionary(&dictionary()).map_err(io::Error::other)?;
    while let Some(what) = send.recv().await {
        let mut frame = BytesMut::new();
        let last = matches!(what, Send::End);
        match what {
            Send::Data(id, data) => {
                for part in data.chunks(64 << 10) {
                    frame.put_u32(id);
                    frame.put_u32(u32::try_from(part.len()).unwrap_or(0));
                    frame.extend_from_slice(part);
                }
            }
            Send::Fin(id) => {
                frame.put_u32(id);
                frame.put_u32(u32::from(FIN) << 24);
            }
            Send::Reply(id) => {
                let block = compress(&mut deflate, &0u32.to_be_bytes())?;
                control(&mut frame, 2, 0, 4 + block.len());
                frame.put_u32(id);
                frame.extend_from_slice(&block);
            }
            Send::Reset(id) => {
                control(&mut frame, 3, 0, 8);
                frame.put_u32(id);
                frame.put_u32(3);
            }
            Send::Pong(id) => {
                control(&mut frame, 6, 0, 4);
                frame.put_u32(id);
            }
            Send::End => {
                control(&mut frame, 7, 0, 8);
                frame.put_u32(0);
                frame.put_u32(0);
            }
        }
        writer.write_all(&frame).await?;
        writer.flush().await?;
        if last {
            return writer.shutdown().await;
        }
    }
    Ok(())
}

fn control(frame: &mut BytesMut, kind: u16, flags: u8, length: usize) {
    frame.put_u16(0x8003);
    frame.put_u16(kind);
    frame.put_u32(u32::from(flags) << 24 | u32::try_from(length).unwrap_or(0));
}

fn compress(deflate: &mut Compress, data: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(data.len() + 64);
    deflate.compress_vec(data, &mut out, FlushCompress::Sync).map_err(io::Error::other)?;
    Ok(out)
}

fn decompress(inflate: &mut Decompress, data: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(4096);
    let before = inflate.total_in();
    loop {
        let used = usize::try_from(inflate.total_in() - before).unwrap_or(data.len());
        if out.len() == out.capacity() {
            out.reserve(4096);
        }
        if out.len() > MAX_HEADERS {
            return Err(io::Error::other("headers too large"));
        }
        let grown = out.len();
        match inflate.decompress_vec(&data[used..], &mut out, FlushDecompress::Sync) {
            Ok(_) => {
                let now = usize::try_from(inflate.total_in() - before).unwrap_or(data.len());
                if now >= data.len() && out.len() < out.capacity() || now == used && out.len() == grown {
                    return Ok(out);
                }
            }
            Err(e) if e.needs_dictionary().is_some() => {
                inflate.set_dictionary(&dictionary()).map_err(io::Error::other)?;
            }
            Err(e) => return Err(io::Error::other(e)),
        }
    }
}

fn parse_headers(mut block: &[u8]) -> io::Result<BTreeMap<String, String>> {
    let short = || io::Error::other("short header block");
    let text = |block: &mut &[u8]| -> io::Result<String> {
        let n = usize::try_from(block.try_get_u32().map_err(|_| short())?).unwrap_or(usize::MAX);
        let (head, tail) = block.split_at_checked(n).ok_or_else(short)?;
        *block = tail;
        Ok(String::from_utf8_lossy(head).into_owned())
    };
    let count = block.try_get_u32().map_err(|_| short())?;
    let mut headers = BTreeMap::new();
    for _ in 0..count.min(256) {
        let name = text(&mut block)?.to_ascii_lowercase();
        // Several values of one name are joined by zero bytes; the first is the one that counts here.
        let value = text(&mut block)?.split('\0').next().unwrap_or_default().to_owned();
        headers.insert(name, value);
    }
    Ok(headers)
}

/// The dictionary both sides compress headers with: words with their lengths, then a tail of common values.
fn dictionary() -> Vec<u8> {
    const WORDS: &str = "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow \
        authorization cache-control connection content-base content-encoding content-language content-length content-location \
        content-md5 content-range content-type date etag expect expires from host if-match if-modified-since if-none-match if-range \
        if-unmodified-since last-modified location max-forwards pragma proxy-authenticate proxy-authorization range referer \
        retry-after server te trailer transfer-encoding upgrade user-agent vary via warning www-authenticate method get status \
        200_OK version HTTP/1.1 url public set-cookie keep-alive origin";
    const TAIL: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
        203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden\
        404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable\
        Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT\
        chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,\
        publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";
    let mut all = Vec::with_capacity(1423);
    for word in WORDS.split_ascii_whitespace() {
        let word = word.replace('_', " ");
        all.put_u32(u32::try_from(word.len()).unwrap_or(0));
        all.extend_from_slice(word.as_bytes());
    }
    all.extend_from_slice(TAIL.as_bytes());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adler(data: &[u8]) -> u32 {
        let (a, b) = data
            .iter()
            .fold((1u32, 0u32), |(a, b), x| ((a + u32::from(*x)) % 65521, (b + (a + u32::from(*x)) % 65521) % 65521));
        b << 16 | a
    }

    #[test]
    fn the_dictionary_is_the_one_of_the_draft() {
        assert_eq!((dictionary().len(), adler(&dictionary())), (1423, 0xe3c6_a7c2));
    }

    fn block(headers: &[(&str, &str)]) -> Vec<u8> {
        let mut b = Vec::new();
        b.put_u32(u32::try_from(headers.len()).unwrap());
        for (k, v) in headers {
            for s in [k, v] {
                b.put_u32(u32::try_from(s.len()).unwrap());
                b.extend_from_slice(s.as_bytes());
            }
        }
        b
    }

    #[tokio::test]
    async fn streams_open_with_their_headers_carry_data_and_close() {
        let (client, server) = tokio::io::duplex(1 << 16);
        let (mut session, task) = session(server);
        let client = async move {
            let (mut r, mut w) = tokio::io::split(client);
            let mut deflate = Compress::new(Compression::default(), true);
            deflate.set_dictionary(&dictionary()).unwrap();
            for (id, kind) in [(1u32, "error"), (3, "stdin")] {
                let headers = compress(&mut deflate, &block(&[("Streamtype", kind)])).unwrap();
                let mut f = BytesMut::new();
                control(&mut f, 1, 0, 10 + headers.len());
                f.put_u32(id);
                f.put_u32(0);
                f.put_u16(0);
                f.extend_from_slice(&headers);
                w.write_all(&f).await.unwrap();
            }
            w.write_all(&[0, 0, 0, 3, FIN, 0, 0, 2, b'h', b'i']).await.unwrap();
            let mut all = Vec::new();
            r.read_to_end(&mut all).await.unwrap();
            all
        };
        let test = async move {
            let first = session.streams.recv().await.unwrap();
            let mut second = session.streams.recv().await.unwrap();
            assert_eq!(
                (first.headers["streamtype"].as_str(), second.headers["streamtype"].as_str()),
                ("error", "stdin")
            );
            assert_eq!(second.data.recv().await.unwrap(), "hi");
            assert_eq!(second.data.recv().await, None);
            session.send.send(Send::Data(1, "bye".into())).await.unwrap();
            session.send.send(Send::Fin(1)).await.unwrap();
            session.send.send(Send::End).await.unwrap();
            std::future::pending::<()>().await;
        };
        let all = tokio::select! {
            (all, ()) = async { tokio::join!(client, task) } => all,
            () = test => Vec::new(),
        };
        assert!(all.windows(11).any(|w| w == [0, 0, 0, 1, 0, 0, 0, 3, b'b', b'y', b'e']), "{all:?}");
    }
}
