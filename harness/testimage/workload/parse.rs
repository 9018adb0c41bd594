//! A small POSIX-like shell grammar: words with quotes and expansions, simple commands with redirections, pipelines,
//! `&&`, `||`, `;`, `&`, `!`, groups, subshells, `if`, `while`, `until`, `for`.

/// A piece of a word.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Text as it is; `quoted` text is never split.
    Text { text: String, quoted: bool },
    /// `$NAME`, `${NAME}`, `${NAME:-default}`, `$?`, `$$`, `$1`, `$@`.
    Var { name: String, default: Option<String>, quoted: bool },
    /// `$(…)` or backquotes.
    Command { text: String, quoted: bool },
    /// `$((…))`.
    Arithmetic(String),
}

/// A word is a run of parts.
pub type Word = Vec<Part>;

/// Where output or input goes.
#[derive(Debug, Clone, PartialEq)]
pub enum Redirect {
    Out { fd: u8, append: bool, to: Word },
    In(Word),
    Dup { fd: u8, to: u8 },
}

/// A command with its place in the source, so that it can be handed to another shell process.
#[derive(Debug, Clone)]
pub struct Node {
    pub kind: Kind,
    pub span: (usize, usize),
}

#[derive(Debug, Clone)]
pub enum Kind {
    Simple { assigns: Vec<(String, Word)>, words: Vec<Word>, redirects: Vec<Redirect> },
    Pipe(Vec<Node>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    Not(Box<Node>),
    Seq(Vec<(Node, bool)>),
    If { branches: Vec<(Node, Node)>, otherwise: Option<Box<Node>> },
    While { until: bool, condition: Box<Node>, body: Box<Node> },
    For { name: String, words: Vec<Word>, body: Box<Node> },
    Group { body: Box<Node>, redirects: Vec<Redirect> },
    Subshell { text: String, redirects: Vec<Redirect> },
}

pub struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

type Parsed<T> = Result<T, String>;

impl<'a> Parser<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    pub fn program(mut self) -> Parsed<Node> {
        let node = self.list(&[])?;
        if self.at < self.text.len() {
            return Err(format!("syntax error near {:?}", self.rest().chars().take(10).collect::<String>()));
        }
        Ok(node)
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn blanks(&mut self) {
        loop {
            let trimmed = self.rest().trim_start_matches([' ', '\t', '\r']);
            self.at = self.text.len() - trimmed.len();
            if trimmed.starts_with('#') {
                self.at += trimmed.find('\n').unwrap_or(trimmed.len());
            } else if trimmed.starts_with("\\\n") {
                self.at += 2;
            } else {
                return;
            }
        }
    }

    fn newlines(&mut self) {
        loop {
            self.blanks();
            if !self.eat("\n") {
                return;
            }
        }
    }

    fn eat(&mut self, s: &str) -> bool {
        let yes = self.rest().starts_with(s);
        if yes {
            self.at += s.len();
        }
        yes
    }

    fn keyword(&self) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c: char| c.is_whitespace() || ";&|()<>\"'$`".contains(c)).unwrap_or(rest.len());
        &rest[..end]
    }

    fn expect(&mut self, word: &str) -> Parsed<()> {
        self.newlines();
        if self.keyword() == word || (word.len() == 1 && self.rest().starts_with(word)) {
            self.at += word.len();
            Ok(())
        } else {
            Err(format!("syntax error: expected {word:?}"))
        }
    }

    fn list(&mut self, stop: &[&str]) -> Parsed<Node> {
        self.depth += 1;
        if self.depth > 100 {
            return Err("nested too deeply".into());
        }
        let start = self.at;
        let mut items = Vec::new();
        loop {
            self.newlines();
            let rest = self.rest();
            if rest.is_empty() || rest.starts_with(')') || stop.contains(&self.keyword()) {
                break;
            }
            let node = self.and_or()?;
            self.blanks();
            let background = !self.rest().starts_with("&&") && self.eat("&");
            items.push((node, background));
            self.blanks();
            if !background && !self.eat(";") && !self.rest().starts_with('\n') {
                self.newlines();
                let rest = self.rest();
                if rest.is_empty() || rest.starts_with(')') || stop.contains(&self.keyword()) {
                    break;
                }
                return Err(format!("syntax error near {:?}", rest.chars().take(10).collect::<String>()));
            }
        }
        self.depth -= 1;
        Ok(Node { kind: Kind::Seq(items), span: (start, self.at) })
    }

    fn and_or(&mut self) -> Parsed<Node> {
        self.blanks();
        let start = self.at;
        let mut left = self.pipeline()?;
        loop {
            self.blanks();
            let and = self.rest().starts_with("&&");
            if !and && !self.rest().starts_with("||") {
                return Ok(left);
            }
            self.at += 2;
            self.newlines();
            let right = Box::new(self.pipeline()?);
            let kind = if and { Kind::And(Box::new(left), right) } else { Kind::Or(Box::new(left), right) };
            left = Node { kind, span: (start, self.at) };
        }
    }

    fn pipeline(&mut self) -> Parsed<Node> {
        self.blanks();
        let start = self.at;
        if self.keyword() == "!" {
            self.at += 1;
            let inner = Box::new(self.pipeline()?);
            return Ok(Node { kind: Kind::Not(inner), span: (start, self.at) });
        }
        let mut stages = vec![self.command()?];
        loop {
            self.blanks();
            if self.rest().starts_with("||") || !self.eat("|") {
                break;
            }
            self.newlines();
            stages.push(self.command()?);
        }
        if stages.len() == 1 {
            return Ok(stages.remove(0));
        }
        Ok(Node { kind: Kind::Pipe(stages), span: (start, self.at) })
    }

    fn command(&mut self) -> Parsed<Node> {
        self.blanks();
        let start = self.at;
        let kind = match self.keyword() {
            "if" => {
                self.at += 2;
                self.if_command()?
            }
            word @ ("while" | "until") => {
                self.at += 5;
                let condition = Box::new(self.list(&["do"])?);
                self.expect("do")?;
                let body = Box::new(self.list(&["done"])?);
                self.expect("done")?;
                Kind::While { until: word == "until", condition, body }
            }
            "for" => {
                self.at += 3;
                self.for_command()?
            }
            "{" => {
                self.at += 1;
                let body = Box::new(self.list(&["}"])?);
                self.expect("}")?;
                Kind::Group { body, redirects: self.redirects()? }
            }
            _ if self.rest().starts_with('(') => {
                self.at += 1;
                let from = self.at;
                self.list(&[])?;
                let text = self.text[from..self.at].to_owned();
                self.expect(")")?;
                Kind::Subshell { text, redirects: self.redirects()? }
            }
            _ => self.simple()?,
        };
        // Compound commands may be redirected as a whole.
        let kind = match kind {
            k @ (Kind::If { .. } | Kind::While { .. } | Kind::For { .. }) => {
                let body = Box::new(Node { kind: k, span: (start, self.at) });
                let redirects = self.redirects()?;
                if redirects.is_empty() { body.kind } else { Kind::Group { body, redirects } }
            }
            k => k,
        };
        Ok(Node { kind, span: (start, self.at) })
    }

    fn if_command(&mut self) -> Parsed<Kind> {
        let mut branches = Vec::new();
        loop {
            let condition = self.list(&["then"])?;
            self.expect("then")?;
            let body = self.list(&["elif", "else", "fi"])?;
            branches.push((condition, body));
            match self.keyword() {
                "elif" => self.at += 4,
                "else" => {
                    self.at += 4;
                    let otherwise = Some(Box::new(self.list(&["fi"])?));
                    self.expect("fi")?;
                    return Ok(Kind::If { branches, otherwise });
                }
                _ => {
                    self.expect("fi")?;
                    return Ok(Kind::If { branches, otherwise: None });
                }
            }
        }
    }

    fn for_command(&mut self) -> Parsed<Kind> {
        self.blanks();
        let name = self.keyword().to_owned();
        self.at += name.len();
        self.newlines();
        let mut words = Vec::new();
        if self.keyword() == "in" {
            self.at += 2;
            self.blanks();
            while let Some(word) = self.word()? {
                words.push(word);
                self.blanks();
            }
        } else {
            words.push(vec![Part::Var { name: "@".into(), default: None, quoted: false }]);
        }
        self.blanks();
        self.eat(";");
        self.expect("do")?;
        let body = Box::new(self.list(&["done"])?);
        self.expect("done")?;
        Ok(Kind::For { name, words, body })
    }

    fn redirects(&mut self) -> Parsed<Vec<Redirect>> {
        let mut all = Vec::new();
        loop {
            self.blanks();
            match self.redirect()? {
                Some(r) => all.push(r),
                None => return Ok(all),
            }
        }
    }

    fn redirect(&mut self) -> Parsed<Option<Redirect>> {
        let rest = self.rest();
        let digit = rest.starts_with(['0', '1', '2']) && rest[1..].starts_with(['<', '>']);
        let fd = if digit { Some(rest.as_bytes()[0] - b'0') } else { None };
        let operator = &rest[usize::from(digit)..];
        if !operator.starts_with(['<', '>']) {
            return Ok(None);
        }
        self.at += usize::from(digit);
        if self.eat("<") {
            self.blanks();
            let from = self.word()?.ok_or("redirection needs a file")?;
            return Ok(Some(Redirect::In(from)));
        }
        self.eat(">");
        let append = self.eat(">");
        if self.eat("&") {
            let to = self.rest().bytes().next().filter(u8::is_ascii_digit).ok_or("bad descriptor")?;
            self.at += 1;
            return Ok(Some(Redirect::Dup { fd: fd.unwrap_or(1), to: to - b'0' }));
        }
        self.blanks();
        let to = self.word()?.ok_or("redirection needs a file")?;
        Ok(Some(Redirect::Out { fd: fd.unwrap_or(1), append, to }))
    }

    fn simple(&mut self) -> Parsed<Kind> {
        let (mut assigns, mut words, mut redirects) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            self.blanks();
            if let Some(r) = self.redirect()? {
                redirects.push(r);
                continue;
            }
            if words.is_empty()
                && let Some((name, _)) = self.keyword().split_once('=')
                && !name.is_empty()
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            {
                let name = name.to_owned();
                self.at += name.len() + 1;
                assigns.push((name, self.word()?.unwrap_or_default()));
                continue;
            }
            match self.word()? {
                Some(word) => words.push(word),
                None if words.is_empty() && assigns.is_empty() && redirects.is_empty() => {
                    return Err(format!("syntax error near {:?}", self.rest().chars().take(10).collect::<String>()));
                }
                None => return Ok(Kind::Simple { assigns, words, redirects }),
            }
        }
    }

    /// One word, or `None` where none begins.
    fn word(&mut self) -> Parsed<Option<Word>> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut any = false;
        loop {
            let rest = self.rest();
            let Some(c) = rest.chars().next() else { break };
            if c.is_whitespace() || ";&|()<>".contains(c) {
                break;
            }
            any = true;
            self.at += c.len_utf8();
            match c {
                '\\' => {
                    if let Some(next) = self.rest().chars().next() {
                        self.at += next.len_utf8();
                        flush(&mut parts, &mut plain, false);
                        parts.push(Part::Text { text: next.to_string(), quoted: true });
                    }
                }
                '\'' => {
                    flush(&mut parts, &mut plain, false);
                    let end = self.rest().find('\'').ok_or("unterminated quoted string")?;
                    parts.push(Part::Text { text: self.rest()[..end].to_owned(), quoted: true });
                    self.at += end + 1;
                }
                '"' => {
                    flush(&mut parts, &mut plain, false);
                    self.double_quoted(&mut parts)?;
                }
                '$' | '`' => {
                    flush(&mut parts, &mut plain, false);
                    parts.push(self.expansion(c, false)?);
                }
                c => plain.push(c),
            }
        }
        flush(&mut parts, &mut plain, false);
        Ok(any.then_some(parts))
    }

    fn double_quoted(&mut self, parts: &mut Vec<Part>) -> Parsed<()> {
        let mut text = String::new();
        parts.push(Part::Text { text: String::new(), quoted: true });
        loop {
            let c = self.rest().chars().next().ok_or("unterminated quoted string")?;
            self.at += c.len_utf8();
            match c {
                '"' => {
                    flush(parts, &mut text, true);
                    return Ok(());
                }
                '\\' => {
                    let next = self.rest().chars().next().ok_or("unterminated quoted string")?;
                    self.at += next.len_utf8();
                    if !"$`\"\\\n".contains(next) {
                        text.push('\\');
                    }
                    text.push(next);
                }
                '$' | '`' => {
                    flush(parts, &mut text, true);
                    parts.push(self.expansion(c, true)?);
                }
                c => text.push(c),
            }
        }
    }

    fn until(&mut self, open: char, close: char) -> Parsed<String> {
        let (from, mut depth, mut quote) = (self.at, 1, None);
        for (i, c) in self.rest().char_indices() {
            match quote {
                Some(q) if c == q => quote = None,
                Some(_) => {}
                None if c == '\'' || c == '"' => quote = Some(c),
                None if c == close => {
                    depth -= 1;
                    if depth == 0 {
                        let text = self.text[from..from + i].to_owned();
                        self.at = from + i + close.len_utf8();
                        return Ok(text);
                    }
                }
                None if c == open => depth += 1,
                None => {}
            }
        }
        Err(format!("missing {close:?}"))
    }

    fn expansion(&mut self, lead: char, quoted: bool) -> Parsed<Part> {
        if lead == '`' {
            let text = self.until('\0', '`')?;
            return Ok(Part::Command { text, quoted });
        }
        if self.eat("((") {
            let text = self.until('(', ')')?;
            self.expect(")")?;
            return Ok(Part::Arithmetic(text));
        }
        if self.eat("(") {
            return Ok(Part::Command { text: self.until('(', ')')?, quoted });
        }
        if self.eat("{") {
            let text = self.until('{', '}')?;
            let (name, default) = match text.split_once(":-") {
                Some((name, default)) => (name.to_owned(), Some(default.to_owned())),
                None => (text, None),
            };
            return Ok(Part::Var { name, default, quoted });
        }
        let rest = self.rest();
        let len = match rest.chars().next() {
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())
            }
            Some(c) if "?$#@*!0123456789".contains(c) => 1,
            _ => 0,
        };
        if len == 0 {
            return Ok(Part::Text { text: "$".into(), quoted });
        }
        self.at += len;
        Ok(Part::Var { name: rest[..len].to_owned(), default: None, quoted })
    }
}

fn flush(parts: &mut Vec<Part>, text: &mut String, quoted: bool) {
    if !text.is_empty() {
        parts.push(Part::Text { text: std::mem::take(text), quoted });
    }
}
