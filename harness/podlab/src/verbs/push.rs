//! Sending traces to a collector the user names: OTLP over HTTP, in JSON.

use std::{
    io::{Read, Write},
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

use anyhow::{Context, Result, bail};

/// How long a collector may take to be reached, and to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Of an answer, this much is looked at.
const MAX_ANSWER: u64 = 16 << 10;

/// Where traces go: `http://HOST[:PORT][/PATH]`. As OTLP has it, the path of traces follows what is given, and the port is 4318
/// where none is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    host: String,
    port: u16,
    path: String,
}

impl std::str::FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text
            .strip_prefix("http://")
            .ok_or("must begin with http://; a collector beside this program takes it on to where it must be https")?;
        let (place, path) = rest.split_once('/').map_or((rest, ""), |(place, path)| (place, path));
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| format!("{port:?} is no port"))?)
            }
            _ => (place, 4318),
        };
        if host.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err("names no host".to_owned());
        }
        Ok(Self {
            host: host.to_owned(),
            port,
            path: format!("/{path}").trim_end_matches('/').to_owned() + "/v1/traces",
        })
    }
}

/// Sends requests one after the other; the first that is refused ends it.
pub(crate) fn push(to: &Endpoint, bodies: &[String]) -> Result<()> {
    for body in bodies {
        send(to, body).with_context(|| format!("send traces to {}:{}{}", to.host, to.port, to.path))?;
    }
    Ok(())
}

fn send(to: &Endpoint, body: &str) -> Result<()> {
    let bare = to.host.trim_matches(['[', ']']);
    let mut tried = None;
    for address in (bare, to.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return speak(stream, to, body),
            Err(e) => tried = Some(e),
        }
    }
    match tried {
        Some(e) => Err(e.into()),
        None => bail!("{} has no address", to.host),
    }
}

fn speak(mut stream: TcpStream, to: &Endpoint, body: &str) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        to.path,
        to.host,
        to.port,
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.lines().next().unwrap_or_default();
    match status.split(' ').nth(1).and_then(|code| code.parse::<u16>().ok()) {
        Some(200..=299) => Ok(()),
        Some(_) => bail!("it answered {status}: {}", answer.lines().last().unwrap_or_default()),
        None => bail!("it does not speak HTTP"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_host_with_the_port_and_the_path_of_otlp() {
        let of = |text: &str| text.parse::<Endpoint>().map(|e| format!("{} {} {}", e.host, e.port, e.path));
        assert_eq!(of("http://localhost").as_deref(), Ok("localhost 4318 /v1/traces"));
        assert_eq!(of("http://[::1]:80/otlp/").as_deref(), Ok("[::1] 80 /otlp/v1/traces"));
        for bad in ["https://x", "http://", "http://a:b", "http://a\r\nb", "x"] {
            assert!(of(bad).is_err(), "{bad:?}");
        }
    }
}
