//! Runs what the test image's grammar read. Pipelines, subshells and background lists are child processes.

use std::{collections::BTreeMap, sync::Arc};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use podlab_testimage::grammar::{Kind, Node, Parser, Part, Redirect, Word};
use tokio::task::JoinSet;

use super::{Proc, Sink, tools};

/// Commands one shell may run before it counts as a runaway; a loop without a wait would otherwise stop virtual time.
const MAX_COMMANDS: u64 = 1_000_000;

#[derive(Clone, Copy, PartialEq)]
enum Flow {
    Go,
    Break,
    Continue,
    Exit,
}

struct Shell {
    p: Proc,
    args: Vec<String>,
    traps: BTreeMap<i32, String>,
    status: i32,
    background: JoinSet<i32>,
    flow: Flow,
    exit_on_error: bool,
    commands: u64,
}

/// `sh [-e] -c TEXT [NAME ARG…]` or `sh FILE [ARG…]`.
pub(super) async fn main(p: Proc, argv: &[String]) -> i32 {
    let mut rest = &argv[1..];
    let mut exit_on_error = false;
    while let Some(flag) = rest.first().filter(|a| a.starts_with('-') && a.len() > 1) {
        exit_on_error |= flag.contains('e');
        rest = &rest[1..];
        if flag.ends_with('c') {
            let Some((text, args)) = rest.split_first() else {
                p.complain("sh: -c needs an argument");
                return 2;
            };
            let args = if args.is_empty() { vec!["sh".to_owned()] } else { args.to_vec() };
            return Shell::new(p, args, exit_on_error).run(text).await;
        }
    }
    match rest.first() {
        Some(file) => match p.files.read(&p.at(file)) {
            Ok(text) => {
                let text = String::from_utf8_lossy(&text).into_owned();
                Shell::new(p, rest.to_vec(), exit_on_error).run(&text).await
            }
            Err(e) => {
                p.complain(&format!("sh: {file}: {e}"));
                127
            }
        },
        None => {
            let text: Vec<u8> = p.input.lock().drain(..).collect();
            Shell::new(p, vec!["sh".into()], exit_on_error).run(&String::from_utf8_lossy(&text)).await
        }
    }
}

impl Shell {
    fn new(p: Proc, args: Vec<String>, exit_on_error: bool) -> Self {
        let (traps, background) = (BTreeMap::new(), JoinSet::new());
        Self { p, args, traps, status: 0, background, flow: Flow::Go, exit_on_error, commands: 0 }
    }

    async fn run(&mut self, text: &str) -> i32 {
        self.text(text).await;
        self.run_traps().await;
        if let Some(text) = self.traps.remove(&0) {
            let status = self.status;
            self.flow = Flow::Go;
            self.text(&text).await;
            self.status = status;
        }
        self.status
    }

    async fn text(&mut self, text: &str) {
        match Parser::new(text).program() {
            Ok(node) => self.node(&node, text).await,
            Err(e) => {
                self.p.complain(&format!("sh: {e}"));
                self.status = 2;
            }
        }
    }

    fn run_traps(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            while let Some(number) = self.p.signals.take() {
                if let Some(text) = self.traps.get(&number).cloned()
                    && let Ok(node) = Parser::new(&text).program()
                {
                    let status = self.status;
                    self.node(&node, &text).await;
                    if self.flow != Flow::Exit {
                        self.status = status;
                    }
                }
            }
        })
    }

    fn node<'a>(&'a mut self, node: &'a Node, text: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.run_traps().await;
            if self.flow != Flow::Go {
                return;
            }
            match &node.kind {
                Kind::Seq(items) => self.sequence(items, text).await,
                Kind::And(a, b) => {
                    self.node(a, text).await;
                    if self.status == 0 {
                        self.node(b, text).await;
                    }
                }
                Kind::Or(a, b) => {
                    self.node(a, text).await;
                    if self.status != 0 {
                        self.node(b, text).await;
                    }
                }
                Kind::Not(a) => {
                    self.node(a, text).await;
                    self.status = i32::from(self.status == 0);
                }
                Kind::If { branches, otherwise } => {
                    for (condition, body) in branches {
                        self.node(condition, text).await;
                        if self.flow != Flow::Go {
                            return;
                        }
                        if self.status == 0 {
                            return self.node(body, text).await;
                        }
                    }
                    self.status = 0;
                    if let Some(body) = otherwise {
                        self.node(body, text).await;
                    }
                }
                Kind::While { until, condition, body } => loop {
                    self.node(condition, text).await;
                    if self.flow != Flow::Go || (self.status == 0) == *until {
                        if self.flow == Flow::Go {
                            self.status = 0;
                        }
                        return;
                    }
                    self.node(body, text).await;
                    if self.leave_loop() {
                        return;
                    }
                },
                Kind::For { name, words, body } => {
                    for value in self.expand_all(words).await {
                        self.p.env.insert(name.clone(), value);
                        self.node(body, text).await;
                        if self.leave_loop() {
                            return;
                        }
                    }
                }
                Kind::Pipe(stages) => self.pipe(stages, text).await,
                Kind::Group { body, redirects } if redirects.is_empty() => self.node(body, text).await,
                Kind::Group { body, redirects } => {
                    self.sub(&text[body.span.0..body.span.1], redirects).await;
                }
                Kind::Subshell { text, redirects } => self.sub(text, redirects).await,
                Kind::Simple { assigns, words, redirects } => self.simple(assigns, words, redirects).await,
            }
        })
    }

    async fn sequence(&mut self, items: &[(Node, bool)], text: &str) {
        for (item, background) in items {
            if *background {
                let (p, source) = (self.p.child(), text[item.span.0..item.span.1].to_owned());
                let args = self.args.clone();
                self.background.spawn(async move { Shell::new(p, args, false).run(&source).await });
                self.status = 0;
            } else {
                self.node(item, text).await;
                let plain = matches!(item.kind, Kind::Simple { .. } | Kind::Pipe(_));
                if self.exit_on_error && self.status != 0 && self.flow == Flow::Go && plain {
                    self.flow = Flow::Exit;
                }
            }
            if self.flow != Flow::Go {
                return;
            }
        }
    }

    /// Handles `break` and `continue` at the end of a loop's body; says whether the loop ends.
    fn leave_loop(&mut self) -> bool {
        let leave = matches!(self.flow, Flow::Break | Flow::Exit);
        if self.flow != Flow::Exit {
            self.flow = Flow::Go;
        }
        leave
    }

    async fn sub(&mut self, source: &str, redirects: &[Redirect]) {
        let Some(p) = self.redirected(self.p.child(), redirects).await else { return };
        self.status = Shell::new(p, self.args.clone(), self.exit_on_error).run(source).await;
    }

    async fn pipe(&mut self, stages: &[Node], text: &str) {
        let mut input = self.p.input.clone();
        for (i, stage) in stages.iter().enumerate() {
            let buffer = Arc::new(Mutex::new(Vec::new()));
            let mut p = Proc { input, ..self.p.child() };
            if i + 1 < stages.len() {
                p.out = Sink::Buffer(buffer.clone());
            }
            let source = &text[stage.span.0..stage.span.1];
            self.status = Shell::new(p, self.args.clone(), false).run(source).await;
            let bytes = std::mem::take(&mut *buffer.lock());
            input = Arc::new(Mutex::new(bytes.into()));
        }
    }

    async fn simple(&mut self, assigns: &[(String, Word)], words: &[Word], redirects: &[Redirect]) {
        self.commands += 1;
        if self.commands > MAX_COMMANDS {
            self.p.complain("sh: too many commands");
            (self.flow, self.status) = (Flow::Exit, 125);
            return;
        }
        let mut local = Vec::new();
        for (name, word) in assigns {
            local.push((name.clone(), self.expand(word).await.join(" ")));
        }
        let argv = self.expand_all(words).await;
        let Some(name) = argv.first().cloned() else {
            self.p.env.extend(local);
            if self.redirected(self.p.child(), redirects).await.is_some() {
                self.status = 0;
            }
            return;
        };
        if redirects.is_empty() && self.builtin(&argv).await {
            return;
        }
        if !super::exists(&name) {
            self.p.complain(&format!("sh: {name}: not found"));
            self.status = 127;
            return;
        }
        // Tools that run inside the shell are interrupted by its signals; others are children.
        let inside = redirects.is_empty()
            && matches!(name.as_str(), "true" | "false" | "test" | "[" | "echo" | "sleep" | "printf");
        if inside {
            self.status = tools::run(&self.p, &argv).await;
            return;
        }
        let Some(mut p) = self.redirected(self.p.child(), redirects).await else { return };
        p.env.extend(local);
        self.status = super::run(p, argv).await;
    }

    /// Applies redirections; `None` (and status 1) when a file does not open.
    async fn redirected(&mut self, mut p: Proc, redirects: &[Redirect]) -> Option<Proc> {
        for r in redirects {
            let opened = match r {
                Redirect::In(word) => {
                    let name = self.expand(word).await.join(" ");
                    let path = self.p.at(&name);
                    self.p.files.read(&path).map(|bytes| p.input = Arc::new(Mutex::new(bytes.into())))
                }
                Redirect::Out { fd, append, to } => {
                    let name = self.expand(to).await.join(" ");
                    let path = self.p.at(&name);
                    let made = if *append { self.p.files.append(&path, b"") } else { self.p.files.write(&path, b"") };
                    made.map(|()| match fd {
                        1 => p.out = Sink::File(path),
                        2 => p.err = Sink::File(path),
                        _ => {}
                    })
                }
                Redirect::Dup { fd, to } => {
                    let source = if *to == 2 { p.err.clone() } else { p.out.clone() };
                    match fd {
                        1 => p.out = source,
                        2 => p.err = source,
                        _ => {}
                    }
                    Ok(())
                }
            };
            if let Err(e) = opened {
                self.p.complain(&format!("sh: {e}"));
                self.status = 1;
                return None;
            }
        }
        Some(p)
    }

    /// Commands that change the shell itself; false when `argv` is none of them.
    async fn builtin(&mut self, argv: &[String]) -> bool {
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
            "cd" => {
                self.p.cwd = self.p.at(arg(1).unwrap_or("/"));
                0
            }
            "export" | "local" => {
                for (k, v) in argv[1..].iter().filter_map(|pair| pair.split_once('=')) {
                    self.p.env.insert(k.to_owned(), v.to_owned());
                }
                0
            }
            "unset" => {
                argv[1..].iter().for_each(|k| drop(self.p.env.remove(k)));
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
                let code = super::run(self.p.clone(), argv[1..].to_vec()).await;
                self.flow = Flow::Exit;
                code
            }
            "wait" => {
                let mut last = 0;
                while let Some(ended) = self.background.join_next().await {
                    last = ended.unwrap_or(137);
                    self.run_traps().await;
                }
                if self.flow == Flow::Exit { self.status } else { last }
            }
            "read" => {
                let line: Vec<u8> = {
                    let mut input = self.p.input.lock();
                    let end = input.iter().position(|b| *b == b'\n').map_or(input.len(), |i| i + 1);
                    input.drain(..end).collect()
                };
                let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
                self.p.env.insert(arg(1).unwrap_or("REPLY").to_owned(), text);
                i32::from(line.is_empty())
            }
            _ => return false,
        };
        true
    }

    fn trap(&mut self, action: &str, signals: &[String]) {
        for name in signals {
            let number = if name == "EXIT" { Some(0) } else { tools::signal_number(name) };
            match (number, action) {
                (None, _) => self.p.complain(&format!("sh: trap: {name}: bad signal")),
                (Some(0), text) => drop(self.traps.insert(0, text.to_owned())),
                (Some(n), "" | "-") => {
                    self.traps.remove(&n);
                    self.p.signals.reset(n);
                }
                (Some(n), text) => {
                    self.traps.insert(n, text.to_owned());
                    self.p.signals.catch(n);
                }
            }
        }
    }

    async fn expand_all(&mut self, words: &[Word]) -> Vec<String> {
        let mut out = Vec::new();
        for w in words {
            out.extend(self.expand(w).await);
        }
        out
    }

    /// A word after expansion and splitting; no pathname expansion.
    async fn expand(&mut self, word: &Word) -> Vec<String> {
        let mut fields: Vec<String> = Vec::new();
        let mut open = false;
        for part in word {
            let (value, quoted) = match part {
                Part::Text { text, quoted } => (text.clone(), *quoted || !text.is_empty()),
                Part::Var { name, default, quoted } => {
                    let value = self.variable(name).filter(|v| default.is_none() || !v.is_empty());
                    (value.or_else(|| default.clone()).unwrap_or_default(), *quoted)
                }
                Part::Command { text, quoted } => (self.substitute(text).await, *quoted),
                Part::Arithmetic(text) => (self.arithmetic(text), true),
            };
            let pieces: Vec<&str> = if quoted { vec![&value] } else { value.split([' ', '\t', '\n']).collect() };
            for (i, piece) in pieces.into_iter().enumerate() {
                if i > 0 {
                    open = false;
                }
                if piece.is_empty() && !quoted {
                    continue;
                }
                match fields.last_mut().filter(|_| open) {
                    Some(last) => last.push_str(piece),
                    None => fields.push(piece.to_owned()),
                }
                open = true;
            }
        }
        fields
    }

    fn variable(&self, name: &str) -> Option<String> {
        match name {
            "?" => Some(self.status.to_string()),
            "$" | "!" => Some("1".into()),
            "#" => Some((self.args.len().max(1) - 1).to_string()),
            "@" | "*" => Some(self.args.get(1..).unwrap_or_default().join(" ")),
            n => match n.parse::<usize>() {
                Ok(i) => self.args.get(i).cloned(),
                Err(_) => self.p.env.get(n).cloned(),
            },
        }
    }

    fn substitute<'a>(&'a mut self, text: &'a str) -> BoxFuture<'a, String> {
        Box::pin(async move {
            let buffer = Arc::new(Mutex::new(Vec::new()));
            let p = Proc { out: Sink::Buffer(buffer.clone()), ..self.p.child() };
            self.status = Shell::new(p, self.args.clone(), false).run(text).await;
            let bytes = std::mem::take(&mut *buffer.lock());
            String::from_utf8_lossy(&bytes).trim_end_matches('\n').to_owned()
        })
    }

    /// Left-to-right integer arithmetic with `+ - * / %`.
    fn arithmetic(&self, text: &str) -> String {
        let spaced: String =
            text.chars().map(|c| if "+-*/%".contains(c) { format!(" {c} ") } else { c.into() }).collect();
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
