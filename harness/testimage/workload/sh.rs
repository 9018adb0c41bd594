//! Runs what [`crate::parse`] read. Pipelines, subshells and background lists run as further `sh -c` processes.

use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::process::ExitStatusExt,
    process::{Child, Command, Stdio},
};

use crate::{
    parse::{Kind, Node, Parser, Part, Redirect, Word},
    sys, tools,
};

pub struct Shell {
    vars: BTreeMap<String, String>,
    args: Vec<String>,
    traps: BTreeMap<i32, String>,
    status: i32,
    background: Vec<Child>,
    last_background: u32,
    flow: Flow,
    exit_on_error: bool,
}

/// What interrupts the normal order of commands.
#[derive(Clone, Copy, PartialEq)]
enum Flow {
    Go,
    Break,
    Continue,
    Exit,
}

/// `sh -c TEXT [NAME ARG…]`, or `sh FILE [ARG…]`, or commands on standard input.
pub fn main(args: &[String]) -> i32 {
    let mut rest = &args[1..];
    let mut exit_on_error = false;
    while let Some(flag) = rest.first().filter(|a| a.starts_with('-') && a.as_str() != "-c" && a.len() > 1) {
        exit_on_error |= flag.contains('e');
        rest = &rest[1..];
        if flag.ends_with('c') {
            return run_text(rest, exit_on_error);
        }
    }
    match rest.first().map(String::as_str) {
        Some("-c") => run_text(&rest[1..], exit_on_error),
        Some(file) => match std::fs::read_to_string(file) {
            Ok(text) => Shell::new(rest.to_vec(), exit_on_error).run(&text),
            Err(e) => {
                eprintln!("sh: {file}: {e}");
                127
            }
        },
        None => interactive(),
    }
}

fn run_text(rest: &[String], exit_on_error: bool) -> i32 {
    match rest.split_first() {
        None => {
            eprintln!("sh: -c needs an argument");
            2
        }
        Some((text, args)) => {
            let args = if args.is_empty() { vec!["sh".to_owned()] } else { args.to_vec() };
            Shell::new(args, exit_on_error).run(text)
        }
    }
}

/// Reads lines and runs each; enough for `kubectl exec -it … -- sh`.
fn interactive() -> i32 {
    let mut shell = Shell::new(vec!["sh".into()], false);
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).is_ok_and(|n| n > 0) {
        shell.run(&line);
        if shell.flow == Flow::Exit {
            break;
        }
        line.clear();
    }
    shell.status
}

impl Shell {
    fn new(args: Vec<String>, exit_on_error: bool) -> Self {
        Self {
            vars: std::env::vars_os().map(|(k, v)| (k.to_string_lossy().into(), v.to_string_lossy().into())).collect(),
            args,
            traps: BTreeMap::new(),
            status: 0,
            background: Vec::new(),
            last_background: 0,
            flow: Flow::Go,
            exit_on_error,
        }
    }

    fn run(&mut self, text: &str) -> i32 {
        match Parser::new(text).program() {
            Ok(node) => self.node(&node, text),
            Err(e) => {
                eprintln!("sh: {e}");
                self.status = 2;
            }
        }
        self.run_traps();
        if let Some(text) = self.traps.remove(&0) {
            let status = self.status;
            self.flow = Flow::Go;
            self.run(&text);
            self.status = status;
        }
        self.status
    }

    fn run_traps(&mut self) {
        while let Some(number) = sys::take_pending() {
            if let Some(text) = self.traps.get(&number).cloned()
                && let Ok(node) = Parser::new(&text).program()
            {
                let status = self.status;
                self.node(&node, &text);
                if self.flow != Flow::Exit {
                    self.status = status;
                }
            }
        }
    }

    fn node(&mut self, node: &Node, text: &str) {
        self.run_traps();
        if self.flow != Flow::Go {
            return;
        }
        match &node.kind {
            Kind::Seq(items) => {
                for (item, background) in items {
                    if *background {
                        self.spawn_background(&text[item.span.0..item.span.1]);
                    } else {
                        self.node(item, text);
                        if self.exit_on_error && self.status != 0 && self.flow == Flow::Go && matches!(item.kind, Kind::Simple { .. } | Kind::Pipe(_)) {
                            self.flow = Flow::Exit;
                        }
                    }
                    if self.flow != Flow::Go {
                        return;
                    }
                }
            }
            Kind::And(a, b) => {
                self.node(a, text);
                if self.status == 0 {
                    self.node(b, text);
                }
            }
            Kind::Or(a, b) => {
                self.node(a, text);
                if self.status != 0 {
                    self.node(b, text);
                }
            }
            Kind::Not(a) => {
                self.node(a, text);
                self.status = i32::from(self.status == 0);
            }
            Kind::If { branches, otherwise } => {
                for (condition, body) in branches {
                    self.node(condition, text);
                    if self.flow != Flow::Go {
                        return;
                    }
                    if self.status == 0 {
                        return self.node(body, text);
                    }
                }
                self.status = 0;
                if let Some(body) = otherwise {
                    self.node(body, text);
                }
            }
            Kind::While { until, condition, body } => loop {
                self.node(condition, text);
                if self.flow != Flow::Go || (self.status == 0) == *until {
                    if self.flow == Flow::Go {
                        self.status = 0;
                    }
                    return;
                }
                self.node(body, text);
                if self.leave_loop() {
                    return;
                }
            },
            Kind::For { name, words, body } => {
                for value in self.expand_all(words) {
                    self.vars.insert(name.clone(), value);
                    self.node(body, text);
                    if self.leave_loop() {
                        return;
                    }
                }
            }
            Kind::Pipe(stages) => self.pipe(stages, text),
            Kind::Group { body, redirects } if redirects.is_empty() => self.node(body, text),
            Kind::Group { body, redirects } => {
                let source = text[body.span.0..body.span.1].to_owned();
                self.shell_process(&source, redirects);
            }
            Kind::Subshell { text, redirects } => self.shell_process(text, redirects),
            Kind::Simple { assigns, words, redirects } => self.simple(assigns, words, redirects),
        }
    }

    /// Handles `break` and `continue` at the end of a loop's body; says whether the loop ends.
    fn leave_loop(&mut self) -> bool {
        match self.flow {
            Flow::Go => false,
            Flow::Continue => {
                self.flow = Flow::Go;
                false
            }
            Flow::Break => {
                self.flow = Flow::Go;
                true
            }
            Flow::Exit => true,
        }
    }

    /// A further shell process that knows this one's variables.
    fn sub(&self, source: &str) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command.args(["sh", "-c", source]).args(&self.args).envs(&self.vars);
        command
    }

    fn shell_process(&mut self, source: &str, redirects: &[Redirect]) {
        let mut command = self.sub(source);
        if self.redirect(&mut command, redirects) {
            self.spawn_and_wait(command, "sh");
        }
    }

    fn spawn_background(&mut self, source: &str) {
        let mut command = self.sub(source);
        command.stdin(Stdio::null());
        match command.spawn() {
            Ok(child) => {
                self.last_background = child.id();
                self.background.push(child);
                self.status = 0;
            }
            Err(e) => self.fail("sh", &e),
        }
    }

    fn fail(&mut self, name: &str, e: &std::io::Error) {
        let missing = e.kind() == std::io::ErrorKind::NotFound;
        eprintln!("sh: {name}: {}", if missing { "not found".to_owned() } else { e.to_string() });
        self.status = if missing { 127 } else { 126 };
    }

    fn pipe(&mut self, stages: &[Node], text: &str) {
        let mut children = Vec::new();
        let mut input: Option<Stdio> = None;
        for (i, stage) in stages.iter().enumerate() {
            let mut command = self.sub(&text[stage.span.0..stage.span.1]);
            if let Some(input) = input.take() {
                command.stdin(input);
            }
            if i + 1 < stages.len() {
                command.stdout(Stdio::piped());
            }
            match command.spawn() {
                Ok(mut child) => {
                    input = child.stdout.take().map(Stdio::from);
                    children.push(child);
                }
                Err(e) => return self.fail("sh", &e),
            }
        }
        for mut child in children {
            self.status = wait(&mut child);
        }
    }

    fn simple(&mut self, assigns: &[(String, Word)], words: &[Word], redirects: &[Redirect]) {
        let mut local = Vec::new();
        for (name, word) in assigns {
            let value = self.expand(word).join(" ");
            local.push((name.clone(), value));
        }
        let argv = self.expand_all(words);
        let Some(name) = argv.first().cloned() else {
            self.vars.extend(local);
            let mut command = Command::new("/proc/self/exe");
            if self.redirect(&mut command, redirects) && self.status != 0 && words.is_empty() {
                self.status = 0;
            }
            return;
        };
        if redirects.is_empty() && self.builtin(&argv) {
            return;
        }
        // Tools of our own that only read and print run without a new process, unless output is redirected.
        if redirects.is_empty() && matches!(name.as_str(), "true" | "false" | "test" | "[" | "echo" | "sleep" | "printf") {
            self.status = tools::run(&argv).unwrap_or(127);
            return;
        }
        let mut command = Command::new(&name);
        command.args(&argv[1..]).envs(&self.vars).envs(local);
        if self.redirect(&mut command, redirects) {
            self.spawn_and_wait(command, &name);
        }
    }

    fn spawn_and_wait(&mut self, mut command: Command, name: &str) {
        match command.spawn() {
            Ok(mut child) => self.status = wait(&mut child),
            Err(e) => self.fail(name, &e),
        }
    }

    /// Applies redirections to a process about to start; false (and status 1) when a file does not open.
    fn redirect(&mut self, command: &mut Command, redirects: &[Redirect]) -> bool {
        let mut files: [Option<File>; 3] = [None, None, None];
        for r in redirects {
            let opened = match r {
                Redirect::In(word) => File::open(self.expand(word).join(" ")).map(|f| (0, f)),
                Redirect::Out { fd, append, to } => {
                    let path = self.expand(to).join(" ");
                    let mut options = File::options();
                    options.create(true).write(true).append(*append).truncate(!append);
                    options.open(path).map(|f| (usize::from(*fd), f))
                }
                Redirect::Dup { fd, to } => {
                    let source = match files.get(usize::from(*to)).and_then(Option::as_ref) {
                        Some(f) => f.try_clone(),
                        None => File::options().write(true).open(format!("/proc/self/fd/{to}")).or_else(|_| dup(*to)),
                    };
                    source.map(|f| (usize::from(*fd), f))
                }
            };
            match opened {
                Ok((fd, file)) if fd < 3 => files[fd] = Some(file),
                Ok(_) => {}
                Err(e) => {
                    eprintln!("sh: {e}");
                    self.status = 1;
                    return false;
                }
            }
        }
        let [input, output, error] = files;
        if let Some(f) = input {
            command.stdin(f);
        }
        if let Some(f) = output {
            command.stdout(f);
        }
        if let Some(f) = error {
            command.stderr(f);
        }
        true
    }

    /// Commands that change the shell itself; false when `argv` is none of them.
    fn builtin(&mut self, argv: &[String]) -> bool {
        let arg = |i: usize| argv.get(i).map(String::as_str);
        self.status = match argv[0].as_str() {
            ":" => 0,
            "exit" | "return" => {
                self.flow = Flow::Exit;
                arg(1).and_then(|s| s.parse::<i32>().ok()).unwrap_or(self.status) & 255
            }
            "break" => {
                self.flow = Flow::Break;
                0
            }
            "continue" => {
                self.flow = Flow::Continue;
                0
            }
            "cd" => match std::env::set_current_dir(arg(1).unwrap_or("/")) {
                Ok(()) => 0,
                Err(e) => {
                    eprintln!("sh: cd: {e}");
                    1
                }
            },
            "export" | "local" => {
                for pair in &argv[1..] {
                    if let Some((k, v)) = pair.split_once('=') {
                        self.vars.insert(k.to_owned(), v.to_owned());
                    }
                }
                0
            }
            "unset" => {
                argv[1..].iter().for_each(|k| drop(self.vars.remove(k)));
                0
            }
            "set" => {
                self.exit_on_error |= arg(1).is_some_and(|a| a.starts_with('-') && a.contains('e'));
                0
            }
            "trap" => {
                self.trap(arg(1).unwrap_or("-"), argv.get(2..).unwrap_or_default());
                0
            }
            "exec" if argv.len() > 1 => {
                use std::os::unix::process::CommandExt;
                let e = Command::new(&argv[1]).args(&argv[2..]).envs(&self.vars).exec();
                self.fail(&argv[1], &e);
                self.flow = Flow::Exit;
                self.status
            }
            "wait" => {
                let mut last = 0;
                for mut child in std::mem::take(&mut self.background) {
                    last = wait(&mut child);
                    self.run_traps();
                }
                if self.flow == Flow::Exit { self.status } else { last }
            }
            "read" => {
                let mut line = String::new();
                let got = std::io::stdin().read_line(&mut line).unwrap_or(0);
                self.vars.insert(arg(1).unwrap_or("REPLY").to_owned(), line.trim_end_matches('\n').to_owned());
                i32::from(got == 0)
            }
            _ => return false,
        };
        true
    }

    fn trap(&mut self, action: &str, signals: &[String]) {
        for name in signals {
            let number = if name == "EXIT" { Some(0) } else { sys::signal_number(name) };
            let Some(number) = number else {
                eprintln!("sh: trap: {name}: bad signal");
                continue;
            };
            match (number, action) {
                (0, text) => drop(self.traps.insert(0, text.to_owned())),
                (n, "") => sys::ignore(n),
                (n, "-") => {
                    self.traps.remove(&n);
                    sys::default(n);
                }
                (n, text) => {
                    self.traps.insert(n, text.to_owned());
                    sys::catch(n);
                }
            }
        }
    }

    fn expand_all(&mut self, words: &[Word]) -> Vec<String> {
        words.iter().flat_map(|w| self.expand(w)).collect()
    }

    /// A word after expansion and splitting; no pathname expansion.
    fn expand(&mut self, word: &Word) -> Vec<String> {
        let mut fields: Vec<String> = Vec::new();
        let mut open = false;
        for part in word {
            let (value, quoted) = match part {
                Part::Text { text, quoted } => (text.clone(), *quoted || !text.is_empty()),
                Part::Var { name, default, quoted } => {
                    let value = self.variable(name);
                    let value = value.filter(|v| default.is_none() || !v.is_empty()).or_else(|| default.clone());
                    (value.unwrap_or_default(), *quoted)
                }
                Part::Command { text, quoted } => (self.substitute(text), *quoted),
                Part::Arithmetic(text) => (self.arithmetic(text), true),
            };
            if quoted {
                if open {
                    fields.last_mut().expect("open means there is one").push_str(&value);
                } else {
                    fields.push(value);
                    open = true;
                }
                continue;
            }
            for (i, piece) in value.split([' ', '\t', '\n']).enumerate() {
                if i > 0 {
                    open = false;
                }
                if !piece.is_empty() {
                    if open {
                        fields.last_mut().expect("open means there is one").push_str(piece);
                    } else {
                        fields.push(piece.to_owned());
                        open = true;
                    }
                }
            }
        }
        fields
    }

    fn variable(&self, name: &str) -> Option<String> {
        match name {
            "?" => Some(self.status.to_string()),
            "$" => Some(std::process::id().to_string()),
            "!" => Some(self.last_background.to_string()),
            "#" => Some((self.args.len().max(1) - 1).to_string()),
            "@" | "*" => Some(self.args.get(1..).unwrap_or_default().join(" ")),
            n => match n.parse::<usize>() {
                Ok(i) => self.args.get(i).cloned(),
                Err(_) => self.vars.get(n).cloned(),
            },
        }
    }

    fn substitute(&mut self, text: &str) -> String {
        let mut command = self.sub(text);
        match command.stderr(Stdio::inherit()).output() {
            Ok(output) => {
                self.status = output.status.code().unwrap_or(1);
                String::from_utf8_lossy(&output.stdout).trim_end_matches('\n').to_owned()
            }
            Err(e) => {
                self.fail("sh", &e);
                String::new()
            }
        }
    }

    /// Left-to-right integer arithmetic with `+ - * / %`; enough for counters.
    fn arithmetic(&self, text: &str) -> String {
        let mut spaced = String::new();
        for c in text.chars() {
            if "+-*/%".contains(c) {
                spaced.extend([' ', c, ' ']);
            } else {
                spaced.push(c);
            }
        }
        let value = |word: &str| {
            let name = word.trim_start_matches('$');
            word.parse::<i64>().unwrap_or_else(|_| self.variable(name).and_then(|v| v.trim().parse().ok()).unwrap_or(0))
        };
        let mut words = spaced.split_whitespace();
        let mut total = words.next().map_or(0, value);
        while let (Some(operator), Some(operand)) = (words.next(), words.next()) {
            let n = value(operand);
            total = match operator {
                "+" => total.wrapping_add(n),
                "-" => total.wrapping_sub(n),
                "*" => total.wrapping_mul(n),
                "/" => total.checked_div(n).unwrap_or(0),
                _ => total.checked_rem(n).unwrap_or(0),
            };
        }
        total.to_string()
    }
}

fn dup(fd: u8) -> std::io::Result<File> {
    use std::os::fd::AsFd;
    let owned = match fd {
        0 => std::io::stdin().as_fd().try_clone_to_owned(),
        1 => std::io::stdout().as_fd().try_clone_to_owned(),
        _ => std::io::stderr().as_fd().try_clone_to_owned(),
    };
    owned.map(File::from)
}

/// Waits for a child; a caught signal does not end the wait, as in other shells its trap runs afterwards.
fn wait(child: &mut Child) -> i32 {
    match child.wait() {
        Ok(status) => status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        Err(_) => 127,
    }
}
