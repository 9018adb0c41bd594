//! WebSocket (RFC 6455), the server's side: handshake, frames, and the channel protocols over it.

use std::io;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::{Bytes, BytesMut};
use sha1::{Digest, Sha1};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf},
    sync::mpsc,
};

use super::peer::{ErrorFormat, Out, Peer, RESIZE, STDIN, parse_size};

/// Largest message taken.
const MAX_MESSAGE: usize = 4 << 20;

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Channel protocols, the best first.
const PROTOCOLS: [&str; 5] =
    ["v5.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io", "base64.channel.k8s.io", "channel.k8s.io"];

/// The answer to a client's key.
pub(crate) fn accept_key(key: &str) -> String {
    let mut hash = Sha1::new();
    hash.update(key.as_bytes());
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(hash.finalize())
}

/// The protocol to speak, of those a client offers; `Some("")` when it names none, `None` when it names only others.
pub(crate) fn choose<'p>(offered: &str, supported: &[&'p str]) -> Option<&'p str> {
    let offered: Vec<&str> = offered.split(',').map(str::trim).filter(|p| !p.is_empty()).collect();
    if offered.is_empty() {
        return Some("");
    }
    supported.iter().find(|p| offered.contains(p)).copied()
}

/// The channel protocol for exec and attach.
pub(crate) fn choose_channel(offered: &str) -> Option<&'static str> {
    choose(offered, &PROTOCOLS)
}

/// One message, fragments joined. `None` at the end. Pings are answered through `control`.
pub(crate) async fn read_message<R: AsyncRead + Unpin>(
    reader: &mut R,
    control: &mpsc::Sender<(u8, Bytes)>,
) -> io::Result<Option<(u8, Bytes)>> {
    let mut message = BytesMut::new();
    let mut kind = 0;
    loop {
        let mut head = [0; 2];
        if let Err(e) = reader.read_exact(&mut head).await {
            return if e.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(e) };
        }
        let (fin, opcode, masked) = (head[0] & 0x80 != 0, head[0] & 0x0f, head[1] & 0x80 != 0);
        let length = match head[1] & 0x7f {
            126 => u64::from(reader.read_u16().await?),
            127 => reader.read_u64().await?,
            n => u64::from(n),
        };
        let length = usize::try_from(length)
            .ok()
            .filter(|n| message.len() + n <= MAX_MESSAGE)
            .ok_or_else(|| io::Error::other("message too large"))?;
        let mut mask = [0; 4];
        if masked {
            reader.read_exact(&mut mask).await?;
        }
        let mut payload = vec![0; length];
        reader.read_exact(&mut payload).await?;
        if masked {
            payload.iter_mut().enumerate().for_each(|(i, b)| *b ^= mask[i % 4]);
        }
        match opcode {
            PING => drop(control.send((PONG, payload.into())).await),
            PONG => {}
            CLOSE => return Ok(None),
            0 | TEXT | BINARY => {
                if opcode != 0 {
                    kind = opcode;
                }
                message.extend_from_slice(&payload);
                if fin {
                    return Ok(Some((kind, message.freeze())));
                }
            }
            _ => return Err(io::Error::other("unknown frame")),
        }
    }
}

/// One unfragmented frame.
pub(crate) async fn write_frame<W: AsyncWrite + Unpin>(writer: &mut W, opcode: u8, parts: &[&[u8]]) -> io::Result<()> {
    let length: usize = parts.iter().map(|p| p.len()).sum();
    let mut frame = BytesMut::with_capacity(length + 10);
    frame.extend_from_slice(&[0x80 | opcode]);
    match length {
        0..126 => frame.extend_from_slice(&[length.to_le_bytes()[0]]),
        126..=0xffff => {
            frame.extend_from_slice(&[126]);
            frame.extend_from_slice(&u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes());
        }
        _ => {
            frame.extend_from_slice(&[127]);
            frame.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    parts.iter().for_each(|p| frame.extend_from_slice(p));
    writer.write_all(&frame).await?;
    writer.flush().await
}

/// Turns a connection that speaks a channel protocol into a [`Peer`]; the future carries the bytes. `open` are the
/// channels the session writes to: a client takes a frame on any other for an error.
pub(crate) fn channels<S: AsyncRead + AsyncWrite + Send + 'static>(
    stream: S,
    protocol: &str,
    open: Vec<u8>,
) -> (Peer, impl Future<Output = ()> + Send) {
    let (reader, writer) = tokio::io::split(stream);
    let (out, out_rx) = mpsc::channel(64);
    let (stdin_tx, stdin) = mpsc::channel(64);
    let (resize_tx, resize) = mpsc::channel(8);
    let (control, control_rx) = mpsc::channel(8);
    let base64 = protocol.contains("base64");
    let format = if protocol.starts_with('v') { ErrorFormat::Status } else { ErrorFormat::Text };
    let task = async move {
        let read = read_channels(reader, base64, control, stdin_tx, resize_tx);
        // The writer's end is the session's end; a reader that ends (the client has gone) only closes stdin.
        let write = write_channels(writer, base64, &open, out_rx, control_rx);
        let mut read = std::pin::pin!(read);
        let mut write = std::pin::pin!(write);
        tokio::select! {
            () = &mut write => {}
            () = &mut read => {}
        }
    };
    (Peer { out, stdin, resize, format }, task)
}

async fn read_channels<R: AsyncRead + Unpin>(
    mut reader: R,
    base64: bool,
    control: mpsc::Sender<(u8, Bytes)>,
    stdin: mpsc::Sender<Bytes>,
    resize: mpsc::Sender<super::peer::Size>,
) {
    let mut stdin = Some(stdin);
    while let Ok(Some((_, message))) = read_message(&mut reader, &control).await {
        let Some((&channel, payload)) = message.split_first() else { continue };
        let (channel, payload) = if base64 {
            (channel.wrapping_sub(b'0'), STANDARD.decode(payload).unwrap_or_default().into())
        } else {
            (channel, message.slice_ref(payload))
        };
        match channel {
            STDIN => {
                if let Some(to) = stdin.as_ref().filter(|_| !payload.is_empty()) {
                    let _ = to.send(payload).await;
                }
            }
            RESIZE => {
                if let Some(size) = parse_size(&payload) {
                    let _ = resize.send(size).await;
                }
            }
            // Version 5: the client will send no more on the channel it names.
            255 if payload.first() == Some(&STDIN) => stdin = None,
            _ => {}
        }
    }
}

async fn write_channels<W: AsyncWrite + Unpin>(
    mut writer: W,
    base64: bool,
    open: &[u8],
    mut out: mpsc::Receiver<Out>,
    mut control: mpsc::Receiver<(u8, Bytes)>,
) {
    let kind = if base64 { TEXT } else { BINARY };
    // An empty frame on each tells the client that its channels are there.
    for channel in open {
        let byte = if base64 { b'0' + channel } else { *channel };
        if write_frame(&mut writer, kind, &[&[byte]]).await.is_err() {
            return;
        }
    }
    loop {
        let wrote = tokio::select! {
            Some((opcode, payload)) = control.recv() => write_frame(&mut writer, opcode, &[&payload]).await,
            message = out.recv() => match message {
                Some(Out::Data(channel, data)) if base64 => write_frame(&mut writer, kind, &[&[b'0' + channel], STANDARD.encode(&data).as_bytes()]).await,
                Some(Out::Data(channel, data)) => write_frame(&mut writer, kind, &[&[channel], &data]).await,
                Some(Out::End) | None => {
                    let _ = write_frame(&mut writer, CLOSE, &[&1000u16.to_be_bytes()]).await;
                    let _ = writer.shutdown().await;
                    return;
                }
            },
        };
        if wrote.is_err() {
            return;
        }
    }
}

/// Turns binary messages into a stream of bytes, for a session tunnelled through a WebSocket; the future carries them.
pub(crate) fn tunnel<S: AsyncRead + AsyncWrite + Send + 'static>(
    stream: S,
) -> (DuplexStream, impl Future<Output = ()> + Send) {
    let (near, far) = tokio::io::duplex(256 << 10);
    let (reader, writer) = tokio::io::split(stream);
    let (far_read, far_write) = tokio::io::split(far);
    let (control, control_rx) = mpsc::channel(8);
    let task = async move {
        tokio::select! {
            () = from_socket(reader, far_write, control) => {}
            () = to_socket(far_read, writer, control_rx) => {}
        }
    };
    (near, task)
}

async fn from_socket<S: AsyncRead>(
    mut reader: ReadHalf<S>,
    mut to: WriteHalf<DuplexStream>,
    control: mpsc::Sender<(u8, Bytes)>,
) {
    while let Ok(Some((_, message))) = read_message(&mut reader, &control).await {
        if to.write_all(&message).await.is_err() {
            return;
        }
    }
}

async fn to_socket<S: AsyncWrite>(
    mut from: ReadHalf<DuplexStream>,
    mut writer: WriteHalf<S>,
    mut control: mpsc::Receiver<(u8, Bytes)>,
) {
    let mut buffer = vec![0; 32 << 10];
    loop {
        let wrote = tokio::select! {
            Some((opcode, payload)) = control.recv() => write_frame(&mut writer, opcode, &[&payload]).await,
            n = from.read(&mut buffer) => match n {
                Ok(n) if n > 0 => write_frame(&mut writer, BINARY, &[&buffer[..n]]).await,
                _ => {
                    let _ = write_frame(&mut writer, CLOSE, &[&1000u16.to_be_bytes()]).await;
                    return;
                }
            },
        };
        if wrote.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streaming::peer::{ERROR, STDERR, STDOUT};

    #[test]
    fn the_handshake_is_the_one_of_the_rfc() {
        assert_eq!(accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(choose_channel("v4.channel.k8s.io, v5.channel.k8s.io"), Some("v5.channel.k8s.io"));
        assert_eq!((choose_channel(""), choose_channel("mqtt")), (Some(""), None));
    }

    fn masked(opcode: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [1, 2, 3, 4];
        let mut frame = vec![0x80 | opcode, 0x80 | u8::try_from(payload.len()).unwrap()];
        frame.extend(mask);
        frame.extend(payload.iter().enumerate().map(|(i, b)| b ^ mask[i % 4]));
        frame
    }

    #[tokio::test]
    async fn stdin_ends_with_the_close_channel_of_version_5_and_pings_are_answered() {
        let (mut client, server) = tokio::io::duplex(4096);
        let (mut peer, task) = channels(server, "v5.channel.k8s.io", vec![STDOUT, ERROR]);
        let test = async {
            client.write_all(&masked(PING, b"x")).await.unwrap();
            client.write_all(&masked(BINARY, b"\0hi")).await.unwrap();
            client.write_all(&masked(BINARY, b"\x04{\"Width\":1,\"Height\":2}")).await.unwrap();
            client.write_all(&masked(BINARY, b"\xff\0")).await.unwrap();
            assert_eq!(peer.stdin.recv().await.unwrap(), "hi");
            assert_eq!(peer.resize.recv().await, Some((1, 2)));
            assert_eq!(peer.stdin.recv().await, None);
            peer.out.send(Out::Data(STDOUT, "yes".into())).await.unwrap();
            peer.out.send(Out::End).await.unwrap();
        };
        tokio::join!(test, task);
        let mut all = Vec::new();
        client.read_to_end(&mut all).await.unwrap();
        let text = String::from_utf8_lossy(&all).into_owned();
        assert!(text.contains("\x01yes"), "{text:?}");
        let on_stderr = all.windows(3).any(|w| w == [0x82, 1, STDERR]);
        assert!(!on_stderr, "a channel the session does not have stays silent: {all:?}");
        assert!(all.windows(3).any(|w| w == [0x8a, 1, b'x']), "a pong");
    }
}
