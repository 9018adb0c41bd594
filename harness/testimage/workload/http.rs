//! A small HTTP/1.1 server and client, a TCP netcat and a DNS query.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream, ToSocketAddrs, UdpSocket},
    path::Path,
    thread,
    time::Duration,
};

use crate::sys;

/// `serve [--port N]… [--bind IP] [--unhealthy-file F]`: answers every path with the host name; `/health`, `/healthz` and
/// `/ready` answer 500 while the file (default /tmp/unhealthy) exists; `/status/N` answers N; `/exit/N` ends the process.
pub fn serve(args: &[String]) -> i32 {
    let value = |key: &str| args.iter().position(|a| a == key).and_then(|i| args.get(i + 1));
    let mut ports: Vec<u16> = Vec::new();
    for (i, a) in args.iter().enumerate() {
        if a == "--port" {
            match args.get(i + 1).and_then(|p| p.parse().ok()) {
                Some(p) => ports.push(p),
                None => {
                    eprintln!("serve: --port needs a number");
                    return 2;
                }
            }
        }
    }
    if ports.is_empty() {
        ports.push(std::env::var("PORT").ok().and_then(|p| p.parse().ok()).unwrap_or(8080));
    }
    let bind = value("--bind").cloned().unwrap_or_else(|| "0.0.0.0".into());
    let unhealthy = value("--unhealthy-file").cloned().unwrap_or_else(|| "/tmp/unhealthy".into());
    // As the first process it has to ask for the signal that ends it.
    sys::block(&[15]);
    for port in &ports {
        let listener = match TcpListener::bind((bind.as_str(), *port)) {
            Ok(l) => l,
            Err(e) => {
                eprintln!("serve: port {port}: {e}");
                return 1;
            }
        };
        let unhealthy = unhealthy.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let unhealthy = unhealthy.clone();
                thread::spawn(move || answer(stream, &unhealthy));
            }
        });
    }
    println!("serving on {ports:?}");
    sys::wait_for(&[15]);
    0
}

fn answer(stream: TcpStream, unhealthy: &str) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(30)));
    let Ok(clone) = stream.try_clone() else { return };
    let mut reader = BufReader::new(clone.take(1 << 20));
    let mut out = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let path = line.split_whitespace().nth(1).unwrap_or("/").to_owned();
        let (mut length, mut close) = (0_usize, !line.contains("HTTP/1.1"));
        let mut headers = String::new();
        loop {
            let mut header = String::new();
            if reader.read_line(&mut header).unwrap_or(0) == 0 {
                return;
            }
            let lower = header.to_ascii_lowercase();
            if let Some(n) = lower.strip_prefix("content-length:") {
                length = n.trim().parse().unwrap_or(0).min(1 << 20);
            }
            close |= lower.starts_with("connection:") && lower.contains("close");
            if header.trim().is_empty() {
                break;
            }
            headers.push_str(&header);
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let bare = path.split('?').next().unwrap_or("/");
        let (status, text) = match bare {
            "/health" | "/healthz" | "/ready" => {
                if Path::new(unhealthy).exists() { (500, "unhealthy\n".to_owned()) } else { (200, "ok\n".to_owned()) }
            }
            "/headers" => (200, headers),
            "/echo" => (200, String::from_utf8_lossy(&body).into_owned()),
            p => match (p.strip_prefix("/status/").map(str::parse), p.strip_prefix("/exit/").map(str::parse::<i32>)) {
                (Some(Ok(code)), _) => (code, String::new()),
                (_, Some(Ok(code))) => std::process::exit(code),
                _ => (200, format!("{} {path}\n", sys::hostname())),
            },
        };
        let connection = if close { "close" } else { "keep-alive" };
        let head = format!("HTTP/1.1 {status} X\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: {connection}\r\n\r\n", text.len());
        if out.write_all(head.as_bytes()).and_then(|()| out.write_all(text.as_bytes())).is_err() || close {
            return;
        }
    }
}

/// `fetch [-O FILE] [-T SECONDS] [-H HEADER]… [--retry N] URL`: GETs a plain HTTP URL; exit 0 only for a 2xx answer.
pub fn fetch(args: &[String]) -> i32 {
    let (mut file, mut url, mut headers, mut seconds, mut retries) = (None, None, String::new(), 10, 0);
    let mut it = args.iter();
    while let Some(a) = it.next() {
        match a.as_str() {
            "-O" | "-o" => file = it.next().cloned(),
            "-T" => seconds = it.next().and_then(|s| s.parse().ok()).unwrap_or(10),
            "-H" => headers.push_str(&it.next().map(|h| format!("{h}\r\n")).unwrap_or_default()),
            "--retry" => retries = it.next().and_then(|s| s.parse().ok()).unwrap_or(0),
            "-q" | "-s" => {}
            _ => url = Some(a.clone()),
        }
    }
    let Some(url) = url else {
        eprintln!("usage: fetch [-O FILE] [-T SECONDS] [-H HEADER] [--retry N] URL");
        return 2;
    };
    for attempt in 0..=retries {
        match get(&url, &headers, Duration::from_secs(seconds)) {
            Ok((status, body)) if (200..300).contains(&status) => {
                let written = match file.as_deref() {
                    None | Some("-") => std::io::stdout().write_all(&body),
                    Some(path) => std::fs::write(path, &body),
                };
                return match written {
                    Ok(()) => 0,
                    Err(e) => {
                        eprintln!("fetch: {e}");
                        1
                    }
                };
            }
            Ok((status, _)) => eprintln!("fetch: {url}: HTTP {status}"),
            Err(e) => eprintln!("fetch: {url}: {e}"),
        }
        if attempt < retries {
            sys::sleep(0.2);
        }
    }
    1
}

fn get(url: &str, headers: &str, limit: Duration) -> std::io::Result<(u16, Vec<u8>)> {
    let other = |text: &str| std::io::Error::other(text.to_owned());
    let rest = url.strip_prefix("http://").unwrap_or(url);
    if rest.contains("://") {
        return Err(other("only http is spoken here"));
    }
    let (authority, path) = rest.split_once('/').map_or((rest, String::from("/")), |(a, p)| (a, format!("/{p}")));
    let target = if authority.rsplit_once(':').is_some_and(|(_, p)| p.parse::<u16>().is_ok()) { authority.to_owned() } else { format!("{authority}:80") };
    let address = target.to_socket_addrs()?.next().ok_or_else(|| other("no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {authority}\r\n{headers}Connection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(256 << 20).read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").ok_or_else(|| other("not an HTTP answer"))?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split_whitespace().nth(1).and_then(|s| s.parse().ok()).ok_or_else(|| other("not an HTTP answer"))?;
    Ok((status, answer.split_off(end + 4)))
}

/// `nc [-l] [-p PORT] [-z] [-w SECONDS] [HOST] [PORT]`: connects or listens once; copies input and output.
pub fn nc(args: &[String]) -> i32 {
    let has = |flag: char| args.iter().any(|a| a.starts_with('-') && !a.starts_with("--") && a.contains(flag));
    let port_flag = args.iter().position(|a| a.starts_with('-') && a.ends_with('p')).and_then(|i| args.get(i + 1));
    let plain: Vec<&String> = args.iter().filter(|a| !a.starts_with('-') && Some(*a) != port_flag).collect();
    let run = || -> std::io::Result<()> {
        let stream = if has('l') {
            let port = port_flag.or(plain.last().copied()).and_then(|p| p.parse::<u16>().ok()).unwrap_or(0);
            TcpListener::bind(("0.0.0.0", port))?.accept()?.0
        } else {
            let (host, port) = (plain.first().map_or("", |s| s), plain.get(1).and_then(|p| p.parse::<u16>().ok()).unwrap_or(0));
            let address = (host, port).to_socket_addrs()?.next().ok_or_else(|| std::io::Error::other("no address"))?;
            TcpStream::connect_timeout(&address, Duration::from_secs(5))?
        };
        if has('z') {
            return Ok(());
        }
        let mut write = stream.try_clone()?;
        thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut write);
            let _ = write.shutdown(std::net::Shutdown::Write);
        });
        std::io::copy(&mut &stream, &mut std::io::stdout()).map(drop)
    };
    match run() {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("nc: {e}");
            1
        }
    }
}

/// `dns NAME`: the addresses the system resolver gives; `dns -s SERVER NAME` asks a server for A records directly.
pub fn dns(args: &[String]) -> i32 {
    let server = args.iter().position(|a| a == "-s").and_then(|i| args.get(i + 1));
    let Some(name) = args.iter().rfind(|a| !a.starts_with('-') && Some(*a) != server) else {
        eprintln!("usage: dns [-s SERVER] NAME");
        return 2;
    };
    let found = match server {
        Some(server) => query(server, name),
        None => (name.as_str(), 0).to_socket_addrs().map(|all| {
            let mut ips: Vec<String> = all.map(|a| a.ip().to_string()).collect();
            ips.sort();
            ips.dedup();
            ips
        }),
    };
    match found {
        Ok(ips) if !ips.is_empty() => {
            println!("{}", ips.join("\n"));
            0
        }
        Ok(_) => {
            eprintln!("dns: {name}: no address");
            1
        }
        Err(e) => {
            eprintln!("dns: {name}: {e}");
            1
        }
    }
}

fn query(server: &str, name: &str) -> std::io::Result<Vec<String>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(Duration::from_secs(3)))?;
    let mut packet = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.trim_end_matches('.').split('.') {
        packet.push(u8::try_from(label.len()).unwrap_or(63).min(63));
        packet.extend_from_slice(&label.as_bytes()[..label.len().min(63)]);
    }
    packet.extend_from_slice(&[0, 0, 1, 0, 1]);
    socket.send_to(&packet, (server, 53))?;
    let mut answer = [0; 1500];
    let n = socket.recv(&mut answer)?;
    let mut ips = Vec::new();
    // Answers with compressed names, type A, class IN, length 4.
    let mut at = packet.len();
    while at + 12 <= n {
        let skip = if answer[at] & 0xc0 == 0xc0 { 2 } else { answer[at..n].iter().position(|b| *b == 0).unwrap_or(0) + 1 };
        at += skip;
        if at + 10 > n {
            break;
        }
        let (kind, len) = (u16::from_be_bytes([answer[at], answer[at + 1]]), usize::from(u16::from_be_bytes([answer[at + 8], answer[at + 9]])));
        at += 10;
        if kind == 1 && len == 4 && at + 4 <= n {
            ips.push(format!("{}.{}.{}.{}", answer[at], answer[at + 1], answer[at + 2], answer[at + 3]));
        }
        at += len;
    }
    Ok(ips)
}
