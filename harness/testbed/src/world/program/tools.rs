//! The tools that read, print, wait and end. Each takes its arguments with its own name first.

use std::{io, path::Path, time::Duration};

use podlab_kubelet::FileKind;

use super::{Proc, TERM};

/// Runs a tool to its end; 127 when there is none of that name.
pub(super) async fn run(p: &Proc, argv: &[String]) -> i32 {
    let args = argv.get(1..).unwrap_or_default();
    let done = |r: io::Result<()>| match r {
        Ok(()) => 0,
        Err(e) => {
            p.complain(&format!("{}: {e}", argv[0]));
            1
        }
    };
    match argv[0].as_str() {
        "true" => 0,
        "false" => 1,
        "exit" => args.first().and_then(|a| a.parse().ok()).unwrap_or(0),
        "sleep" => sleep(p, args).await,
        "pause" => {
            // As the first process it has to ask for the signals that end it.
            [2, TERM].into_iter().for_each(|n| p.signals.catch(n));
            p.signals.wait().await;
            0
        }
        "oom" => oom(p, args).await,
        "write" => match args {
            [file, text @ ..] => done(p.files.write(&p.at(file), format!("{}\n", text.join(" ")).as_bytes())),
            [] => 2,
        },
        "signal-trap" => signal_trap(p, args).await,
        "log" => log(p, args).await,
        "cat" => done(inputs(p, args).map(|t| p.write(&p.out, &t))),
        "touch" => done(plain(args).try_for_each(|f| p.files.append(&p.at(f), b""))),
        "rm" => done(plain(args).try_for_each(|f| match p.files.remove(&p.at(f), has(args, 'r')) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && has(args, 'f') => Ok(()),
            other => other,
        })),
        "mkdir" => done(plain(args).try_for_each(|d| p.files.make_dir(&p.at(d), has(args, 'p')))),
        "ln" => match plain(args).collect::<Vec<_>>()[..] {
            [from, to] => done(p.files.symlink(Path::new(from), &p.at(to))),
            _ => 1,
        },
        "chmod" => match args.split_first().and_then(|(m, rest)| Some((u32::from_str_radix(m, 8).ok()?, rest))) {
            Some((mode, rest)) => done(rest.iter().try_for_each(|f| p.files.chmod(&p.at(f), mode))),
            None => 1,
        },
        "test" => i32::from(!test(p, args)),
        "[" => i32::from(!test(p, &args[..args.len().max(1) - 1])),
        "kill" => kill(p, args),
        "stat" => stat(p, args),
        "tail" => tail(p, args).await,
        "head" => done(head(p, args)),
        "wc" => done(wc(p, args)),
        "grep" => grep(p, args),
        "id" => id(p, args),
        "ls" => done(ls(p, args)),
        "hostname" => {
            p.print(&format!("{}\n", p.hostname));
            0
        }
        "echo" => {
            let newline = args.first().map(String::as_str) != Some("-n");
            let text = args[usize::from(!newline)..].join(" ");
            p.print(&if newline { format!("{text}\n") } else { text });
            0
        }
        "printf" => printf(p, args),
        "env" => {
            p.env.iter().for_each(|(k, v)| p.print(&format!("{k}={v}\n")));
            0
        }
        "pwd" => {
            p.print(&format!("{}\n", p.cwd.display()));
            0
        }
        "date" => {
            let ns = p.clock.wall().as_nanosecond();
            p.print(&format!("{}.{:09}\n", ns / 1_000_000_000, ns % 1_000_000_000));
            0
        }
        "seq" => {
            let n: Vec<i64> = args.iter().filter_map(|a| a.parse().ok()).collect();
            let (from, to) = if n.len() > 1 { (n[0], n[1]) } else { (1, n.first().copied().unwrap_or(0)) };
            (from..=to.min(from.saturating_add(100_000))).for_each(|i| p.print(&format!("{i}\n")));
            0
        }
        other => {
            p.complain(&format!("sh: {other}: not found"));
            127
        }
    }
}

fn plain(args: &[String]) -> impl Iterator<Item = &String> {
    args.iter().filter(|a| !a.starts_with('-'))
}

fn has(args: &[String], flag: char) -> bool {
    args.iter().any(|a| a.starts_with('-') && a.contains(flag))
}

fn value<'a>(args: &'a [String], key: &str) -> Option<&'a String> {
    args.iter().position(|a| a == key).and_then(|i| args.get(i + 1))
}

/// What a tool that takes files or its input reads.
fn inputs(p: &Proc, args: &[String]) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut any = false;
    for file in plain(args) {
        any = true;
        let text = p.files.read(&p.at(file));
        out.extend(text.map_err(|e| io::Error::new(e.kind(), format!("can't open '{file}': {e}")))?);
    }
    if !any {
        out.extend(p.input.lock().drain(..));
    }
    Ok(out)
}

async fn sleep(p: &Proc, args: &[String]) -> i32 {
    let mut total = 0.0;
    for a in args {
        let (number, unit) = a.split_at(a.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(a.len()));
        let factor = match unit {
            "" | "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "ms" => 0.001,
            "infinity" | "inf" => 1e9,
            _ => -1.0,
        };
        match number.parse::<f64>() {
            _ if factor >= 1e9 => total = 1e9,
            Ok(n) if factor > 0.0 && n >= 0.0 => total += n * factor,
            _ => {
                p.complain(&format!("sleep: invalid number '{a}'"));
                return 1;
            }
        }
    }
    p.sleep(Duration::from_secs_f64(total.min(1e9))).await;
    0
}

/// Takes memory until something stops it.
async fn oom(p: &Proc, args: &[String]) -> i32 {
    let step = args.first().and_then(|a| a.parse::<u64>().ok()).unwrap_or(8) << 20;
    while p.memory.take(step) {
        p.complain(&format!("oom: holding {} MiB", p.memory.used() >> 20));
        p.clock.sleep(Duration::from_millis(10)).await;
    }
    // The kernel's SIGKILL.
    137
}

async fn signal_trap(p: &Proc, args: &[String]) -> i32 {
    let ignore = args.iter().any(|a| a == "--ignore");
    for number in [1, 2, 10, 12, TERM] {
        p.signals.catch(number);
    }
    p.print("waiting for signals\n");
    loop {
        p.signals.wait().await;
        while let Some(number) = p.signals.take() {
            let line = format!("got SIG{}", signal_name(number));
            p.print(&format!("{line}\n"));
            if let Some(file) = value(args, "--file") {
                // A file that cannot be written is the scenario's to notice.
                let _ = p.files.write(&p.at(file), line.as_bytes());
            }
            if number == TERM && !ignore {
                let delay = value(args, "--delay").and_then(|d| d.parse().ok()).unwrap_or(0.0_f64);
                p.sleep(Duration::from_secs_f64(delay.clamp(0.0, 1e9))).await;
                return value(args, "--exit").and_then(|e| e.parse().ok()).unwrap_or(0);
            }
        }
    }
}

async fn log(p: &Proc, args: &[String]) -> i32 {
    let number = |key: &str, default: f64| value(args, key).and_then(|v| v.parse::<f64>().ok()).unwrap_or(default);
    let (lines, every) = (number("--lines", 10.0), number("--every", 0.0));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to a small range")]
    let (lines, size) = (lines.clamp(0.0, 1e6) as u64, number("--size", 0.0).clamp(0.0, 65_536.0) as usize);
    let sink = if args.iter().any(|a| a == "--stderr") { &p.err } else { &p.out };
    for i in 0..lines {
        let line = format!("line {i}");
        p.write(sink, format!("{line:.<size$}\n").as_bytes());
        if every > 0.0 {
            p.sleep(Duration::from_secs_f64(every)).await;
        }
    }
    0
}

fn test(p: &Proc, args: &[String]) -> bool {
    let a: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |s: &str| s.parse::<i64>().unwrap_or(0);
    let kind = |f: &str| p.files.stat(&p.at(f)).ok();
    match a[..] {
        [] => false,
        ["!", ..] => !test(p, &args[1..]),
        ["-f", f] => kind(f).is_some_and(|s| s.kind == FileKind::File),
        ["-d", f] => kind(f).is_some_and(|s| s.kind == FileKind::Dir),
        ["-e" | "-r", f] => kind(f).is_some(),
        ["-s", f] => kind(f).is_some_and(|s| s.size > 0),
        ["-L" | "-h", f] => p.files.lstat(&p.at(f)).is_ok_and(|s| s.kind == FileKind::Symlink),
        ["-x", f] => kind(f).is_some_and(|s| s.mode & 0o111 != 0),
        ["-w", f] => p.files.may_write(&p.at(f)),
        ["-n", s] => !s.is_empty(),
        ["-z", s] => s.is_empty(),
        [s] => !s.is_empty(),
        [x, "=" | "==", y] => x == y,
        [x, "!=", y] => x != y,
        [x, "-eq", y] => number(x) == number(y),
        [x, "-ne", y] => number(x) != number(y),
        [x, "-lt", y] => number(x) < number(y),
        [x, "-le", y] => number(x) <= number(y),
        [x, "-gt", y] => number(x) > number(y),
        [x, "-ge", y] => number(x) >= number(y),
        _ => false,
    }
}

/// Only the container's first process can be signalled here.
fn kill(p: &Proc, args: &[String]) -> i32 {
    let mut number = TERM;
    let mut failed = false;
    let mut args = args.iter();
    while let Some(a) = args.next() {
        match a.strip_prefix('-') {
            Some("s") => number = args.next().and_then(|s| signal_number(s)).unwrap_or(TERM),
            Some(name) => number = signal_number(name).unwrap_or(TERM),
            None if a == "1" => p.init_signals.send(number),
            None => {
                p.complain(&format!("kill: can't kill pid {a}"));
                failed = true;
            }
        }
    }
    i32::from(failed)
}

fn stat(p: &Proc, args: &[String]) -> i32 {
    let flag = args.iter().position(|a| a.starts_with('-') && a.ends_with('c'));
    let format = flag.and_then(|i| args.get(i + 1)).map_or("%n %s %a", String::as_str);
    let files = args.iter().enumerate().filter(|(i, a)| !a.starts_with('-') && Some(*i) != flag.map(|f| f + 1));
    let mut code = 0;
    for (_, file) in files {
        let path = p.at(file);
        match if has(args, 'L') { p.files.stat(&path) } else { p.files.lstat(&path) } {
            Ok(s) => {
                let kind = match s.kind {
                    FileKind::Dir => "directory",
                    FileKind::Symlink => "symbolic link",
                    _ => "regular file",
                };
                let text = format
                    .replace("%a", &format!("{:o}", s.mode & 0o7777))
                    .replace("%u", &s.uid.to_string())
                    .replace("%g", &s.gid.to_string())
                    .replace("%s", &s.size.to_string())
                    .replace("%F", kind)
                    .replace("%n", file);
                p.print(&format!("{text}\n"));
            }
            Err(e) => {
                p.complain(&format!("stat: can't stat '{file}': {e}"));
                code = 1;
            }
        }
    }
    code
}

/// The count after `-n`, or of `-N`, and the files.
fn count(args: &[String]) -> (usize, Vec<String>) {
    let (mut n, mut files) = (10, Vec::new());
    let mut it = args.iter();
    while let Some(a) = it.next() {
        if a == "-n" {
            n = it.next().and_then(|v| v.trim_start_matches(['-', '+']).parse().ok()).unwrap_or(10);
        } else if let Some(number) = a.strip_prefix('-').and_then(|v| v.trim_start_matches('n').parse().ok()) {
            n = number;
        } else if !a.starts_with('-') {
            files.push(a.clone());
        }
    }
    (n, files)
}

async fn tail(p: &Proc, args: &[String]) -> i32 {
    let (n, files) = count(args);
    let text = match inputs(p, &files) {
        Ok(text) => text,
        Err(e) => {
            p.complain(&format!("tail: {e}"));
            return 1;
        }
    };
    let lines: Vec<&[u8]> = text.split_inclusive(|b| *b == b'\n').collect();
    lines[lines.len().saturating_sub(n)..].iter().for_each(|l| p.write(&p.out, l));
    if !has(args, 'f') {
        return 0;
    }
    let mut at = text.len();
    loop {
        p.sleep(Duration::from_millis(100)).await;
        if let Ok(now) = inputs(p, &files)
            && now.len() > at
        {
            p.write(&p.out, &now[at..]);
            at = now.len();
        }
    }
}

fn head(p: &Proc, args: &[String]) -> io::Result<()> {
    let (n, files) = count(args);
    let text = inputs(p, &files)?;
    text.split_inclusive(|b| *b == b'\n').take(n).for_each(|l| p.write(&p.out, l));
    Ok(())
}

fn wc(p: &Proc, args: &[String]) -> io::Result<()> {
    let text = inputs(p, args)?;
    let lines = text.iter().filter(|b| **b == b'\n').count();
    p.print(&match (has(args, 'l'), has(args, 'c')) {
        (true, _) => format!("{lines}\n"),
        (_, true) => format!("{}\n", text.len()),
        _ => format!("{lines} {} {}\n", String::from_utf8_lossy(&text).split_whitespace().count(), text.len()),
    });
    Ok(())
}

fn grep(p: &Proc, args: &[String]) -> i32 {
    let Some(pattern) = plain(args).next() else { return 2 };
    let files: Vec<String> = plain(args).skip(1).cloned().collect();
    let Ok(text) = inputs(p, &files) else { return 2 };
    let text = String::from_utf8_lossy(&text).into_owned();
    let hits: Vec<&str> = text.lines().filter(|l| l.contains(pattern.as_str()) != has(args, 'v')).collect();
    if has(args, 'c') {
        p.print(&format!("{}\n", hits.len()));
    } else if !has(args, 'q') {
        hits.iter().for_each(|l| p.print(&format!("{l}\n")));
    }
    i32::from(hits.is_empty())
}

fn id(p: &Proc, args: &[String]) -> i32 {
    let u = &p.user;
    let mut groups = vec![u.gid];
    groups.extend(u.groups.iter().filter(|g| **g != u.gid));
    let list: Vec<String> = groups.iter().map(ToString::to_string).collect();
    p.print(&match args.first().map(String::as_str) {
        Some("-u") => format!("{}\n", u.uid),
        Some("-g") => format!("{}\n", u.gid),
        Some("-G") => format!("{}\n", list.join(" ")),
        _ => format!("uid={} gid={} groups={}\n", u.uid, u.gid, list.join(",")),
    });
    0
}

fn ls(p: &Proc, args: &[String]) -> io::Result<()> {
    let dirs: Vec<String> = plain(args).cloned().collect();
    for dir in if dirs.is_empty() { vec![".".to_owned()] } else { dirs } {
        let stat = p.files.stat(&p.at(&dir)).map_err(|e| io::Error::new(e.kind(), format!("{dir}: {e}")))?;
        let names = if stat.kind == FileKind::Dir { p.files.list(&p.at(&dir))? } else { vec![dir.clone()] };
        for name in names.iter().filter(|n| has(args, 'a') || !n.starts_with('.')) {
            p.print(&format!("{name}\n"));
        }
    }
    Ok(())
}

fn printf(p: &Proc, args: &[String]) -> i32 {
    let Some(format) = args.first() else { return 2 };
    let mut rest = args[1..].iter();
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '%' || c == '\\' { chars.next() } else { None }) {
            ('%', Some('s' | 'd')) => out.push_str(rest.next().map_or("", |s| s)),
            ('%', Some('%')) => out.push('%'),
            ('\\', Some('n')) => out.push('\n'),
            ('\\', Some('t')) => out.push('\t'),
            (_, Some(other)) => out.extend([c, other]),
            (_, None) => out.push(c),
        }
    }
    p.print(&out);
    0
}

const SIGNALS: [(&str, i32); 12] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", TERM),
    ("CHLD", 17),
];

/// The number of a signal given as `TERM`, `SIGTERM` or `15`.
pub(in crate::world) fn signal_number(text: &str) -> Option<i32> {
    let bare = text.strip_prefix("SIG").unwrap_or(text);
    let named = SIGNALS.iter().find(|(name, _)| *name == bare).map(|(_, n)| *n);
    named.or_else(|| text.parse().ok().filter(|n| (0..65).contains(n)))
}

fn signal_name(number: i32) -> &'static str {
    SIGNALS.iter().find(|(_, n)| *n == number).map_or("?", |(name, _)| name)
}
