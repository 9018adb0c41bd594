//! The network tools: a server that probes can ask, a client, a port check, a name lookup.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{Proc, TERM};
use crate::world::network::{Answer, Listener};

/// A `serve` that listens.
struct Serving {
    proc: Proc,
    unhealthy: PathBuf,
    exit: watch::Sender<Option<i32>>,
}

impl Listener for Serving {
    fn get(&self, path: &str) -> Answer {
        let bare = path.split('?').next().unwrap_or("/");
        let (status, body) = match bare {
            "/health" | "/healthz" | "/ready" => match self.proc.files.stat(&self.unhealthy) {
                Ok(_) => (500, "unhealthy\n".to_owned()),
                Err(_) => (200, "ok\n".to_owned()),
            },
            p => match (p.strip_prefix("/status/").map(str::parse), p.strip_prefix("/exit/").map(str::parse::<i32>)) {
                (Some(Ok(code)), _) => (code, String::new()),
                (_, Some(Ok(code))) => {
                    self.exit.send_replace(Some(code));
                    (200, String::new())
                }
                _ => (200, format!("{} {path}\n", self.proc.hostname)),
            },
        };
        Answer { status, body: body.into_bytes() }
    }
}

/// `serve [--port N]… [--unhealthy-file F]`.
pub(super) async fn serve(p: &Proc, args: &[String]) -> i32 {
    let value = |key: &str| args.iter().position(|a| a == key).and_then(|i| args.get(i + 1));
    let mut ports = Vec::new();
    for (i, _) in args.iter().enumerate().filter(|(_, a)| *a == "--port") {
        match args.get(i + 1).and_then(|p| p.parse::<u16>().ok()) {
            Some(port) => ports.push(port),
            None => {
                p.complain("serve: --port needs a number");
                return 2;
            }
        }
    }
    if ports.is_empty() {
        ports.push(p.env.get("PORT").and_then(|p| p.parse().ok()).unwrap_or(8080));
    }
    let unhealthy = p.at(value("--unhealthy-file").map_or("/tmp/unhealthy", String::as_str));
    p.signals.catch(TERM);
    let (exit, mut exited) = watch::channel(None);
    let serving = Arc::new(Serving { proc: p.clone(), unhealthy, exit });
    // Dropping a guard closes its port.
    let mut guards = Vec::new();
    for port in &ports {
        match p.net.listen(*port, serving.clone()) {
            Some(guard) => guards.push(guard),
            None => {
                p.complain(&format!("serve: port {port}: Address in use (os error 98)"));
                return 1;
            }
        }
    }
    p.print(&format!("serving on {ports:?}\n"));
    tokio::select! {
        biased;
        () = p.signals.wait() => 0,
        code = exited.wait_for(Option::is_some) => code.ok().and_then(|c| *c).unwrap_or(0),
    }
}

/// `fetch [-O FILE] [-T SECONDS] [--retry N] URL`: exit 0 only for a 2xx answer.
pub(super) async fn fetch(p: &Proc, args: &[String]) -> i32 {
    let (mut file, mut url, mut retries) = (None, None, 0_u32);
    let mut it = args.iter();
    while let Some(a) = it.next() {
        match a.as_str() {
            "-O" | "-o" => file = it.next().cloned(),
            "-T" | "-H" => drop(it.next()),
            "--retry" => retries = it.next().and_then(|s| s.parse().ok()).unwrap_or(0),
            "-q" | "-s" => {}
            _ => url = Some(a.clone()),
        }
    }
    let Some(url) = url else {
        p.complain("usage: fetch [-O FILE] [-T SECONDS] [-H HEADER] [--retry N] URL");
        return 2;
    };
    for attempt in 0..=retries {
        match get(p, &url).await {
            Ok(a) if (200..300).contains(&a.status) => match file.as_deref() {
                None | Some("-") => {
                    p.write(&p.out, &a.body);
                    return 0;
                }
                Some(path) => match p.files.write(&p.at(path), &a.body) {
                    Ok(()) => return 0,
                    Err(e) => {
                        p.complain(&format!("fetch: {e}"));
                        return 1;
                    }
                },
            },
            Ok(a) => p.complain(&format!("fetch: {url}: HTTP {}", a.status)),
            Err(e) => p.complain(&format!("fetch: {url}: {e}")),
        }
        if attempt < retries {
            p.sleep(Duration::from_millis(200)).await;
        }
    }
    1
}

async fn get(p: &Proc, url: &str) -> Result<Answer, String> {
    let rest = url.strip_prefix("http://").unwrap_or(url);
    if rest.contains("://") {
        return Err("only http is spoken here".into());
    }
    let (authority, path) = rest.split_once('/').map_or((rest, "/".to_owned()), |(a, p)| (a, format!("/{p}")));
    let (host, port) = match authority.rsplit_once(':').and_then(|(h, n)| Some((h, n.parse::<u16>().ok()?))) {
        Some((host, port)) => (host, port),
        None => (authority, 80),
    };
    let ips = p.net.lookup(host).await?;
    let ip = ips.first().ok_or("no address")?;
    p.net.get(ip, port, &path).await
}

/// `nc -z HOST PORT`: whether a port answers.
pub(super) async fn nc(p: &Proc, args: &[String]) -> i32 {
    let plain: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let [host, port] = plain[..] else {
        p.complain("nc: only -z HOST PORT in the virtual world");
        return 2;
    };
    let Ok(port) = port.parse::<u16>() else { return 2 };
    let dialed = match p.net.lookup(host).await {
        Ok(ips) => match ips.first() {
            Some(ip) => p.net.dial(ip, port).await,
            None => Err("no address".to_owned()),
        },
        Err(e) => Err(e),
    };
    match dialed {
        Ok(()) => 0,
        Err(e) => {
            p.complain(&format!("nc: {e}"));
            1
        }
    }
}

/// `dns NAME`: its addresses.
pub(super) async fn dns(p: &Proc, args: &[String]) -> i32 {
    let Some(name) = args.iter().rfind(|a| !a.starts_with('-')) else {
        p.complain("usage: dns [-s SERVER] NAME");
        return 2;
    };
    match p.net.lookup(name).await {
        Ok(ips) if !ips.is_empty() => {
            p.print(&format!("{}\n", ips.join("\n")));
            0
        }
        Ok(_) => {
            p.complain(&format!("dns: {name}: no address"));
            1
        }
        Err(e) => {
            p.complain(&format!("dns: {name}: {e}"));
            1
        }
    }
}
