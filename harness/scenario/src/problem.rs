//! What is wrong with a file: where, in words, with a suggestion; all of it in one go.

use std::{collections::BTreeSet, fmt::Write, path::PathBuf};

/// A place in one of the files a scenario is made of. Lines and columns count from 1; 0 means unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// Which file: 0 is the scenario, the others are the libraries it uses.
    pub file: usize,
    /// Line.
    pub line: u64,
    /// Column.
    pub column: u64,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Where.
    pub at: Mark,
    /// What, and what would be right.
    pub text: String,
}

impl Problem {
    pub(crate) fn new(at: Mark, text: impl Into<String>) -> Self {
        Self { at, text: text.into() }
    }
}

/// The files read for one scenario.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) all: Vec<(PathBuf, String)>,
}

impl Files {
    /// `path:line:column: text`, and below it the line itself with a mark under the column.
    pub(crate) fn render(&self, p: &Problem) -> String {
        let Some((path, source)) = self.all.get(p.at.file) else { return p.text.clone() };
        let mut out = format!("{}:{}:{}: {}", path.display(), p.at.line, p.at.column, p.text);
        let line = usize::try_from(p.at.line).unwrap_or(0).checked_sub(1).and_then(|n| source.lines().nth(n));
        if let Some(line) = line {
            let before = usize::try_from(p.at.column.saturating_sub(1)).unwrap_or(0).min(200);
            let shown: String = line.chars().take(200).collect();
            let _ = write!(out, "\n  {shown}\n  {}^", " ".repeat(before));
        }
        out
    }

    /// All problems in order of their place, each once.
    pub(crate) fn render_all(&self, problems: &BTreeSet<Problem>) -> String {
        problems.iter().map(|p| self.render(p)).collect::<Vec<_>>().join("\n")
    }
}

/// The known word that is meant, when one is close.
pub fn near<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (d, k) = known.into_iter().map(|k| (distance(word, k), k)).min()?;
    (d <= 2 && d * 3 <= word.chars().count()).then_some(k)
}

/// `; did you mean "x"?`, or the list of what there is when nothing is close.
pub(crate) fn suggest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let close = known.iter().map(|k| (distance(word, k), *k)).min();
    match close {
        Some((d, k)) if d <= 2 || d * 3 <= word.chars().count() => format!("; did you mean {k:?}?"),
        _ if known.is_empty() => String::new(),
        _ => format!("; there is {}", known.join(", ")),
    }
}

/// Edits between two words, without regard to case. Long words are cut: nobody mistypes a hundred letters.
fn distance(a: &str, b: &str) -> usize {
    let letters = |s: &str| s.to_lowercase().chars().take(64).collect::<Vec<_>>();
    let (a, b) = (letters(a), letters(b));
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_word_is_suggested_and_else_what_there_is() {
        assert_eq!(suggest("eventualy", ["eventually", "holds"]), "; did you mean \"eventually\"?");
        assert_eq!(suggest("Podd", ["pod"]), "; did you mean \"pod\"?");
        assert_eq!(suggest("zebra", ["pod", "event"]), "; there is pod, event");
    }

    #[test]
    fn the_line_is_shown_with_a_mark_under_the_column() {
        let files = Files { all: vec![("a.yaml".into(), "x: 1\nyy: 2\n".into())] };
        let p = Problem::new(Mark { file: 0, line: 2, column: 5 }, "no");
        assert_eq!(files.render(&p), "a.yaml:2:5: no\n  yy: 2\n      ^");
    }
}
