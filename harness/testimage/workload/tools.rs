//! The tools. Each takes its arguments with its own name first and returns an exit code.

use std::{
    fs,
    io::{self, BufRead, Read, Seek, Write},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process::Command,
};

use crate::{http, sh, sys};

/// Runs a tool; `None` when there is none of that name.
pub fn run(argv: &[String]) -> Option<i32> {
    let args = &argv[1..];
    let done = |r: io::Result<()>| match r {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("{}: {e}", argv[0]);
            1
        }
    };
    Some(match argv[0].as_str() {
        "sh" => sh::main(argv),
        "serve" => http::serve(args),
        "fetch" | "wget" => http::fetch(args),
        "nc" => http::nc(args),
        "dns" | "nslookup" => http::dns(args),
        "true" => 0,
        "false" => 1,
        "exit" => args.first().and_then(|a| a.parse().ok()).unwrap_or(0),
        "sleep" => sleep(args),
        "pause" => {
            // As the first process it has to ask for the signals that end it, as upstream's pause does.
            sys::block(&[2, 15]);
            sys::wait_for(&[2, 15]);
            0
        }
        "oom" => oom(args),
        "write" => write_file(args),
        "signal-trap" => signal_trap(args),
        "log" => log(args),
        "cat" => done(cat(args)),
        "touch" => done(plain(args).try_for_each(|p| fs::File::options().create(true).append(true).open(p).map(drop))),
        "rm" => done(plain(args).try_for_each(|p| remove(p, args))),
        "mkdir" => done(plain(args).try_for_each(|p| if has(args, 'p') { fs::create_dir_all(p) } else { fs::create_dir(p) })),
        "ln" => done(link(args)),
        "chmod" => done(chmod(args)),
        "test" => i32::from(!test(args)),
        "[" => i32::from(!test(&args[..args.len().max(1) - 1])),
        "kill" => kill(args),
        "stat" => stat(args),
        "tail" => done(tail(args)),
        "head" => done(head(args)),
        "wc" => done(wc(args)),
        "grep" => grep(args),
        "id" => id(args),
        "ls" => done(ls(args)),
        "hostname" => done(hostname(args)),
        "echo" => echo(args),
        "printf" => printf(args),
        "env" => env(args),
        "pwd" => done(std::env::current_dir().map(|d| println!("{}", d.display()))),
        "date" => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            println!("{}.{:09}", now.as_secs(), now.subsec_nanos());
            0
        }
        "seq" => {
            let n: Vec<i64> = args.iter().filter_map(|a| a.parse().ok()).collect();
            let (from, to) = if n.len() > 1 { (n[0], n[1]) } else { (1, n.first().copied().unwrap_or(0)) };
            (from..=to).for_each(|i| println!("{i}"));
            0
        }
        "ps" => ps(),
        "mount" => done(fs::read_to_string("/proc/mounts").map(|m| print!("{m}"))),
        _ => return None,
    })
}

fn plain(args: &[String]) -> impl Iterator<Item = &String> {
    args.iter().filter(|a| !a.starts_with('-'))
}

fn has(args: &[String], flag: char) -> bool {
    args.iter().any(|a| a.starts_with('-') && a.contains(flag))
}

/// `sleep SECONDS…` (fractions, `s`, `m`, `h`, `infinity`).
fn sleep(args: &[String]) -> i32 {
    let mut total = 0.0;
    for a in args {
        let (number, unit) = a.split_at(a.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(a.len()));
        let factor = match unit {
            "" | "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "ms" => 0.001,
            "infinity" | "inf" => f64::INFINITY,
            _ => -1.0,
        };
        match number.parse::<f64>() {
            _ if factor.is_infinite() => total = f64::INFINITY,
            Ok(n) if factor > 0.0 && n >= 0.0 => total += n * factor,
            _ => {
                eprintln!("sleep: invalid number '{a}'");
                return 1;
            }
        }
    }
    sys::sleep(total);
    0
}

/// `oom [MIB_PER_STEP]`: takes and touches memory until something stops it.
fn oom(args: &[String]) -> i32 {
    let step = args.first().and_then(|a| a.parse::<usize>().ok()).unwrap_or(8) << 20;
    let mut held = Vec::new();
    loop {
        held.push(vec![1_u8; step]);
        eprintln!("oom: holding {} MiB", held.len() * step >> 20);
    }
}

/// `write FILE TEXT`: writes a line.
fn write_file(args: &[String]) -> i32 {
    let [file, text @ ..] = args else {
        eprintln!("usage: write FILE TEXT");
        return 2;
    };
    match fs::write(file, text.join(" ") + "\n") {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("write: {file}: {e}");
            1
        }
    }
}

/// `signal-trap [--ignore] [--delay SECONDS] [--exit N] [--file F]`: says which signal came; TERM ends it unless ignored.
fn signal_trap(args: &[String]) -> i32 {
    let value = |key: &str| args.iter().position(|a| a == key).and_then(|i| args.get(i + 1));
    let ignore = args.iter().any(|a| a == "--ignore");
    for number in [1, 2, 10, 12, 15] {
        sys::catch(number);
    }
    println!("waiting for signals");
    loop {
        while let Some(number) = sys::take_pending() {
            let line = format!("got SIG{}", sys::signal_name(number));
            println!("{line}");
            if let Some(file) = value("--file") {
                let _ = fs::write(file, &line);
            }
            if number == 15 && !ignore {
                sys::sleep(value("--delay").and_then(|d| d.parse().ok()).unwrap_or(0.0));
                return value("--exit").and_then(|e| e.parse().ok()).unwrap_or(0);
            }
        }
        // A signal between the check and the wait is seen at the next tick.
        sys::sleep(0.05);
    }
}

/// `log [--lines N] [--size BYTES] [--every SECONDS] [--stderr]`: numbered lines.
fn log(args: &[String]) -> i32 {
    let number = |key: &str, default: f64| {
        args.iter().position(|a| a == key).and_then(|i| args.get(i + 1)?.parse::<f64>().ok()).unwrap_or(default)
    };
    let (lines, size, every) = (number("--lines", 10.0) as u64, number("--size", 0.0) as usize, number("--every", 0.0));
    let to_stderr = args.iter().any(|a| a == "--stderr");
    for i in 0..lines {
        let mut line = format!("line {i}");
        while line.len() < size {
            line.push('.');
        }
        let result = if to_stderr { writeln!(io::stderr(), "{line}") } else { writeln!(io::stdout(), "{line}") };
        if result.is_err() {
            return 1;
        }
        if every > 0.0 {
            sys::sleep(every);
        }
    }
    0
}

fn open(path: &str) -> io::Result<Box<dyn Read>> {
    if path == "-" {
        return Ok(Box::new(io::stdin()));
    }
    let file = fs::File::open(path).map_err(|e| io::Error::new(e.kind(), format!("can't open '{path}': {e}")))?;
    Ok(Box::new(file))
}

fn inputs(args: &[String]) -> Vec<String> {
    let files: Vec<String> = plain(args).cloned().collect();
    if files.is_empty() { vec!["-".into()] } else { files }
}

fn cat(args: &[String]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    inputs(args).iter().try_for_each(|f| io::copy(&mut open(f)?, &mut out).map(drop))?;
    out.flush()
}

fn remove(path: &str, args: &[String]) -> io::Result<()> {
    let recursive = has(args, 'r') && Path::new(path).is_dir();
    match if recursive { fs::remove_dir_all(path) } else { fs::remove_file(path) } {
        Err(e) if e.kind() == io::ErrorKind::NotFound && has(args, 'f') => Ok(()),
        other => other,
    }
}

fn link(args: &[String]) -> io::Result<()> {
    let names: Vec<&String> = plain(args).collect();
    let [from, to] = names[..] else { return Err(io::Error::other("usage: ln [-s] TARGET NAME")) };
    if has(args, 's') { std::os::unix::fs::symlink(from, to) } else { fs::hard_link(from, to) }
}

fn chmod(args: &[String]) -> io::Result<()> {
    let mode = args.first().and_then(|m| u32::from_str_radix(m, 8).ok()).ok_or_else(|| io::Error::other("mode must be octal"))?;
    args[1..].iter().try_for_each(|p| fs::set_permissions(p, fs::Permissions::from_mode(mode)))
}

fn test(args: &[String]) -> bool {
    let a: Vec<&str> = args.iter().map(String::as_str).collect();
    let number = |s: &str| s.parse::<i64>().unwrap_or(0);
    let meta = |p: &str| fs::metadata(p).ok();
    match a[..] {
        [] => false,
        ["!", ..] => !test(&args[1..]),
        ["-f", p] => meta(p).is_some_and(|m| m.is_file()),
        ["-d", p] => meta(p).is_some_and(|m| m.is_dir()),
        ["-e", p] => meta(p).is_some(),
        ["-s", p] => meta(p).is_some_and(|m| m.len() > 0),
        ["-L" | "-h", p] => fs::symlink_metadata(p).is_ok_and(|m| m.is_symlink()),
        ["-x", p] => meta(p).is_some_and(|m| m.mode() & 0o111 != 0),
        ["-r", p] => fs::File::open(p).is_ok(),
        ["-w", p] => fs::File::options().append(true).open(p).is_ok(),
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

fn kill(args: &[String]) -> i32 {
    let mut number = 15;
    let mut failed = false;
    let mut args = args.iter();
    while let Some(a) = args.next() {
        match a.strip_prefix('-') {
            Some("s") => number = args.next().and_then(|s| sys::signal_number(s)).unwrap_or(15),
            Some(name) if sys::signal_number(name).is_some() => number = sys::signal_number(name).unwrap_or(15),
            _ => match a.parse() {
                Ok(pid) if sys::send(pid, number) => {}
                _ => {
                    eprintln!("kill: can't kill pid {a}");
                    failed = true;
                }
            },
        }
    }
    i32::from(failed)
}

/// `stat [-L] -c FORMAT FILE…` with `%a %u %g %s %n %F`.
fn stat(args: &[String]) -> i32 {
    let flag = args.iter().position(|a| a.starts_with('-') && a.ends_with('c'));
    let format = flag.and_then(|i| args.get(i + 1)).map_or("%n %s %a", String::as_str);
    let follow = has(args, 'L');
    let files = args.iter().enumerate().filter(|(i, a)| !a.starts_with('-') && Some(*i) != flag.map(|f| f + 1));
    let mut code = 0;
    for (_, file) in files {
        match if follow { fs::metadata(file) } else { fs::symlink_metadata(file) } {
            Ok(m) => {
                let kind = if m.is_dir() { "directory" } else if m.is_symlink() { "symbolic link" } else { "regular file" };
                println!(
                    "{}",
                    format
                        .replace("%a", &format!("{:o}", m.mode() & 0o7777))
                        .replace("%u", &m.uid().to_string())
                        .replace("%g", &m.gid().to_string())
                        .replace("%s", &m.size().to_string())
                        .replace("%F", kind)
                        .replace("%n", file)
                );
            }
            Err(e) => {
                eprintln!("stat: can't stat '{file}': {e}");
                code = 1;
            }
        }
    }
    code
}

/// The count after `-n`, or of `-N`.
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
    (n, if files.is_empty() { vec!["-".into()] } else { files })
}

fn tail(args: &[String]) -> io::Result<()> {
    let (n, files) = count(args);
    let mut text = Vec::new();
    open(&files[0])?.read_to_end(&mut text)?;
    let lines: Vec<&[u8]> = text.split_inclusive(|b| *b == b'\n').collect();
    let mut out = io::stdout();
    lines[lines.len().saturating_sub(n)..].iter().try_for_each(|l| out.write_all(l))?;
    out.flush()?;
    if has(args, 'f') && files[0] != "-" {
        let mut file = fs::File::open(&files[0])?;
        file.seek(io::SeekFrom::End(0))?;
        loop {
            io::copy(&mut file, &mut out)?;
            out.flush()?;
            sys::sleep(0.1);
        }
    }
    Ok(())
}

fn head(args: &[String]) -> io::Result<()> {
    let (n, files) = count(args);
    let mut out = io::stdout();
    io::BufReader::new(open(&files[0])?).split(b'\n').take(n).try_for_each(|l| {
        let line = l?;
        out.write_all(&line)?;
        out.write_all(b"\n")
    })
}

fn wc(args: &[String]) -> io::Result<()> {
    for file in inputs(args) {
        let mut text = Vec::new();
        open(&file)?.read_to_end(&mut text)?;
        let lines = text.iter().filter(|b| **b == b'\n').count();
        match (has(args, 'l'), has(args, 'c')) {
            (true, _) => println!("{lines}"),
            (_, true) => println!("{}", text.len()),
            _ => println!("{lines} {} {}", String::from_utf8_lossy(&text).split_whitespace().count(), text.len()),
        }
    }
    Ok(())
}

/// `grep [-q] [-v] [-c] TEXT [FILE…]`: fixed text only.
fn grep(args: &[String]) -> i32 {
    let Some(pattern) = plain(args).next() else { return 2 };
    let files: Vec<&String> = plain(args).skip(1).collect();
    let all = if files.is_empty() { vec!["-".to_owned()] } else { files.into_iter().cloned().collect() };
    let mut hits = 0;
    for file in all {
        let Ok(reader) = open(&file) else { return 2 };
        for line in io::BufReader::new(reader).lines().map_while(Result::ok) {
            if line.contains(pattern.as_str()) != has(args, 'v') {
                hits += 1;
                if !has(args, 'q') && !has(args, 'c') {
                    println!("{line}");
                }
            }
        }
    }
    if has(args, 'c') {
        println!("{hits}");
    }
    i32::from(hits == 0)
}

fn id(args: &[String]) -> i32 {
    let (uid, euid, gid) = sys::ids();
    let mut groups = vec![gid];
    groups.extend(sys::groups().into_iter().filter(|g| *g != gid));
    let list = groups.iter().map(ToString::to_string).collect::<Vec<_>>();
    match args.first().map(String::as_str) {
        Some("-u") => println!("{euid}"),
        Some("-g") => println!("{gid}"),
        Some("-G") => println!("{}", list.join(" ")),
        _ => println!("uid={uid} gid={gid} groups={}", list.join(",")),
    }
    0
}

fn ls(args: &[String]) -> io::Result<()> {
    let dirs: Vec<String> = plain(args).cloned().collect();
    for dir in if dirs.is_empty() { vec![".".to_owned()] } else { dirs } {
        let found = |e: io::Error| io::Error::new(e.kind(), format!("{dir}: {e}"));
        let meta = fs::symlink_metadata(&dir).map_err(found)?;
        let mut names = if meta.is_dir() || Path::new(&dir).is_dir() {
            fs::read_dir(&dir)?.map(|e| e.map(|e| e.file_name().to_string_lossy().into_owned())).collect::<Result<Vec<_>, _>>()?
        } else {
            vec![dir.clone()]
        };
        if has(args, 'a') && Path::new(&dir).is_dir() {
            names.extend([".".to_owned(), "..".to_owned()]);
        }
        names.sort();
        for name in names.iter().filter(|n| has(args, 'a') || !n.starts_with('.')) {
            if has(args, 'l') {
                let m = fs::symlink_metadata(Path::new(&dir).join(name)).or_else(|_| fs::symlink_metadata(name))?;
                println!("{:o} {} {} {} {name}", m.mode(), m.uid(), m.gid(), m.size());
            } else {
                println!("{name}");
            }
        }
    }
    Ok(())
}

/// `hostname [-f]`: the fully qualified name comes from /etc/hosts, as the resolver would give it.
fn hostname(args: &[String]) -> io::Result<()> {
    let name = sys::hostname();
    if has(args, 'f') {
        let hosts = fs::read_to_string("/etc/hosts").unwrap_or_default();
        let line = hosts.lines().find(|l| l.split_whitespace().skip(1).any(|w| w == name));
        if let Some(first) = line.and_then(|l| l.split_whitespace().nth(1)) {
            println!("{first}");
            return Ok(());
        }
    }
    println!("{name}");
    Ok(())
}

fn echo(args: &[String]) -> i32 {
    let newline = args.first().map(String::as_str) != Some("-n");
    let text = args[usize::from(!newline)..].join(" ");
    let mut out = io::stdout();
    let result = if newline { writeln!(out, "{text}") } else { write!(out, "{text}") };
    i32::from(result.and_then(|()| out.flush()).is_err())
}

/// `printf FORMAT ARG…` with `%s`, `%d`, `\n`, `\t`.
fn printf(args: &[String]) -> i32 {
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
    let mut stdout = io::stdout();
    i32::from(stdout.write_all(out.as_bytes()).and_then(|()| stdout.flush()).is_err())
}

fn env(args: &[String]) -> i32 {
    let assigns: Vec<_> = args.iter().take_while(|a| a.contains('=')).filter_map(|a| a.split_once('=')).collect();
    if let Some((program, rest)) = args[assigns.len()..].split_first() {
        use std::os::unix::process::CommandExt;
        let e = Command::new(program).args(rest).envs(assigns).exec();
        eprintln!("env: {program}: {e}");
        return 127;
    }
    let mut all: Vec<_> = std::env::vars().collect();
    all.sort();
    all.iter().for_each(|(k, v)| println!("{k}={v}"));
    0
}

fn ps() -> i32 {
    let mut pids: Vec<u32> = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    for pid in pids {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        println!("{pid:5} {}", String::from_utf8_lossy(&line).replace('\0', " "));
    }
    0
}
