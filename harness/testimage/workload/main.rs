//! The program inside the test image: one static executable with the tools that scenarios need, chosen by the name it
//! is called by or by its first argument. No dependency but the standard library and the C library's system calls.

mod http;
mod parse;
mod sh;
mod sys;
mod tools;

use std::{env, path::Path};

/// Every name the image links to this program.
pub const TOOLS: &[&str] = &[
    "sh", "serve", "sleep", "exit", "oom", "fetch", "dns", "write", "signal-trap", "log", "cat", "touch", "test", "[",
    "kill", "nc", "stat", "tail", "head", "id", "ls", "hostname", "rm", "mkdir", "echo", "printf", "true", "false", "env",
    "pwd", "wc", "date", "seq", "pause", "grep", "ln", "wget", "nslookup", "chmod", "ps", "mount", "busybox",
];

fn main() {
    sys::default_signals();
    let mut args: Vec<String> = env::args_os().map(|a| a.to_string_lossy().into_owned()).collect();
    let called = args.first().and_then(|a| Path::new(a).file_name()?.to_str().map(str::to_owned)).unwrap_or_default();
    if !TOOLS.contains(&called.as_str()) || called == "busybox" {
        args.remove(0);
    } else {
        args[0] = called;
    }
    if args.first().map(String::as_str) == Some("--list") {
        println!("{}", TOOLS.join("\n"));
        return;
    }
    if args.is_empty() {
        args.push("serve".into());
    }
    std::process::exit(tools::run(&args).unwrap_or_else(|| {
        eprintln!("testimage: no tool {:?}; there are: {}", args[0], TOOLS.join(" "));
        127
    }));
}
