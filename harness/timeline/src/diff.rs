//! What changed between two texts in normal form, told so that a person sees it at a glance: lines that came, lines that
//! went, and lines of one lane that say something else, with the words that differ marked.

use std::fmt::Write;

/// One line of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// In both.
    Same(String),
    /// Only in the first.
    Gone(String),
    /// Only in the second.
    New(String),
    /// The same lane says something else: the parts in order.
    Changed(Vec<Part>),
}

/// A piece of a changed line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// In both.
    Same(String),
    /// Only in the first.
    Gone(String),
    /// Only in the second.
    New(String),
}

/// Longest text compared line by line; beyond it everything is said to have changed. Keeps a hostile log from costing more
/// than a moment: the comparison takes the product of both.
const MAX_LINES: usize = 2000;

/// Compares two texts. Empty exactly when both are empty; without a difference every line is [`Line::Same`].
pub fn diff(before: &str, after: &str) -> Vec<Line> {
    let (a, b): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let mut out = Vec::new();
    let (mut gone, mut new) = (Vec::new(), Vec::new());
    for edit in edits(&a, &b) {
        match edit {
            Edit::Same(line) => {
                out.extend(joined(&mut gone, &mut new));
                out.push(Line::Same(line.to_owned()));
            }
            Edit::Gone(line) => gone.push(line),
            Edit::New(line) => new.push(line),
        }
    }
    out.extend(joined(&mut gone, &mut new));
    out
}

/// Whether a comparison found anything.
pub fn differs(lines: &[Line]) -> bool {
    lines.iter().any(|l| !matches!(l, Line::Same(_)))
}

/// As text: `- ` gone, `+ ` new, `~ ` changed with `[-gone-]` and `{+new+}` inside, and around each `context` lines of what is
/// the same. Empty without a difference.
pub fn render(lines: &[Line], context: usize) -> String {
    let near = |i: usize| {
        let (from, to) = (i.saturating_sub(context), (i + context + 1).min(lines.len()));
        differs(&lines[from..to])
    };
    let mut out = String::new();
    let mut left_out = false;
    for (i, line) in lines.iter().enumerate() {
        if !near(i) {
            left_out = true;
            continue;
        }
        if std::mem::take(&mut left_out) {
            out.push_str("  …\n");
        }
        let _ = match line {
            Line::Same(text) => writeln!(out, "  {text}"),
            Line::Gone(text) => writeln!(out, "- {text}"),
            Line::New(text) => writeln!(out, "+ {text}"),
            Line::Changed(parts) => {
                out.push_str("~ ");
                for part in parts {
                    let _ = match part {
                        Part::Same(text) => write!(out, "{text}"),
                        Part::Gone(text) => write!(out, "[-{text}-]"),
                        Part::New(text) => write!(out, "{{+{text}+}}"),
                    };
                }
                writeln!(out)
            }
        };
    }
    out
}

/// Lines that went and came in one place: those of one lane are one line that changed.
fn joined(gone: &mut Vec<&str>, new: &mut Vec<&str>) -> Vec<Line> {
    let mut out = Vec::new();
    for old in gone.drain(..) {
        match new.iter().position(|n| lane(n) == lane(old) && alike(old, n)) {
            Some(i) => {
                out.extend(new.drain(..i).map(|n| Line::New(n.to_owned())));
                out.push(Line::Changed(parts(old, new.remove(0))));
            }
            None => out.push(Line::Gone(old.to_owned())),
        }
    }
    out.extend(new.drain(..).map(|n| Line::New(n.to_owned())));
    out
}

/// What a line is about: all before its first colon (`watch phase`), or its first two words (`cni ADD`).
fn lane(line: &str) -> &str {
    match line.split_once(": ") {
        Some((lane, _)) => lane,
        None => line.match_indices(' ').nth(1).map_or(line, |(i, _)| &line[..i]),
    }
}

/// Whether marking words inside helps: more than a third of the shorter line is in both.
fn alike(a: &str, b: &str) -> bool {
    let same: usize = parts(a, b).iter().map(|p| if let Part::Same(t) = p { t.len() } else { 0 }).sum();
    same * 3 > a.len().min(b.len())
}

fn parts(a: &str, b: &str) -> Vec<Part> {
    let (wa, wb): (Vec<&str>, Vec<&str>) = (words(a), words(b));
    let mut out: Vec<Part> = Vec::new();
    for edit in edits(&wa, &wb) {
        match (edit, out.last_mut()) {
            (Edit::Same(t), Some(Part::Same(last))) | (Edit::Gone(t), Some(Part::Gone(last))) => last.push_str(t),
            (Edit::New(t), Some(Part::New(last))) => last.push_str(t),
            (Edit::Same(t), _) => out.push(Part::Same(t.to_owned())),
            (Edit::Gone(t), _) => out.push(Part::Gone(t.to_owned())),
            (Edit::New(t), _) => out.push(Part::New(t.to_owned())),
        }
    }
    out
}

/// Words and the blanks between them, so that together they are the line again.
fn words(line: &str) -> Vec<&str> {
    line.split_inclusive(' ')
        .flat_map(|w| match w.strip_suffix(' ') {
            Some(word) => [word, " "],
            None => [w, ""],
        })
        .filter(|w| !w.is_empty())
        .collect()
}

enum Edit<'a> {
    Same(&'a str),
    Gone(&'a str),
    New(&'a str),
}

/// The shortest way from one list to the other (longest common subsequence); what goes is told before what comes.
fn edits<'a>(a: &[&'a str], b: &[&'a str]) -> Vec<Edit<'a>> {
    let head = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let tail = a[head..].iter().rev().zip(b[head..].iter().rev()).take_while(|(x, y)| x == y).count();
    let (ma, mb) = (&a[head..a.len() - tail], &b[head..b.len() - tail]);
    let mut out: Vec<Edit<'a>> = a[..head].iter().map(|s| Edit::Same(s)).collect();
    if ma.len() > MAX_LINES || mb.len() > MAX_LINES {
        out.extend(ma.iter().map(|s| Edit::Gone(s)));
        out.extend(mb.iter().map(|s| Edit::New(s)));
    } else {
        // common[i][j]: length of the longest common subsequence of what is left from i and j.
        let width = mb.len() + 1;
        let mut common = vec![0u16; (ma.len() + 1) * width];
        for i in (0..ma.len()).rev() {
            for j in (0..mb.len()).rev() {
                common[i * width + j] = if ma[i] == mb[j] {
                    common[(i + 1) * width + j + 1] + 1
                } else {
                    common[(i + 1) * width + j].max(common[i * width + j + 1])
                };
            }
        }
        let (mut i, mut j) = (0, 0);
        while i < ma.len() || j < mb.len() {
            if i < ma.len() && j < mb.len() && ma[i] == mb[j] {
                out.push(Edit::Same(ma[i]));
                (i, j) = (i + 1, j + 1);
            } else if i < ma.len() && (j == mb.len() || common[(i + 1) * width + j] >= common[i * width + j + 1]) {
                out.push(Edit::Gone(ma[i]));
                i += 1;
            } else {
                out.push(Edit::New(mb[j]));
                j += 1;
            }
        }
    }
    out.extend(a[a.len() - tail..].iter().map(|s| Edit::Same(s)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "pod web\nwatch phase: Pending > Running > Failed\nevent kubelet Normal Pulled: in <dur>\ncni ADD failed: ipam busy\ncni DEL\ncni ADD\n";

    #[test]
    fn a_lane_that_says_something_else_is_one_line_with_the_words_marked() {
        let after = BEFORE.replace("> Failed", "> Succeeded").replace("cni ADD\n", "cni ADD ×2\n");
        assert_eq!(
            render(&diff(BEFORE, &after), 1),
            "  pod web\n~ watch phase: Pending > Running > [-Failed-]{+Succeeded+}\n  event kubelet Normal Pulled: in <dur>\n  …\n  cni DEL\n~ cni ADD{+ ×2+}\n"
        );
    }

    #[test]
    fn a_line_that_came_or_went_is_told_as_such_and_nothing_is_told_of_equals() {
        let after = BEFORE.replace("cni DEL\n", "");
        assert_eq!(render(&diff(BEFORE, &after), 0), "  …\n- cni DEL\n");
        assert_eq!(render(&diff(&after, BEFORE), 0), "  …\n+ cni DEL\n");
        assert_eq!((render(&diff(BEFORE, BEFORE), 3), differs(&diff(BEFORE, BEFORE))), (String::new(), false));
    }

    /// Both texts can be read back from any comparison, so it can neither hide nor invent a line.
    #[test]
    fn both_texts_are_in_a_comparison() {
        let (mut seed, letters) = (7u64, ["watch a: x", "watch a: y z", "cni ADD", "event k N: m", ""]);
        let mut pick = |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(seed >> 33).unwrap() % n
        };
        for _ in 0..300 {
            let mut text = || (0..pick(9)).map(|_| letters[pick(5)].to_owned() + "\n").collect::<String>();
            let (a, b) = (text(), text());
            let (mut before, mut after) = (String::new(), String::new());
            for line in diff(&a, &b) {
                match line {
                    Line::Same(t) => [&mut before, &mut after].into_iter().for_each(|o| *o += &(t.clone() + "\n")),
                    Line::Gone(t) => before += &(t + "\n"),
                    Line::New(t) => after += &(t + "\n"),
                    Line::Changed(parts) => {
                        for part in parts {
                            match part {
                                Part::Same(t) => [&mut before, &mut after].into_iter().for_each(|o| *o += &t),
                                Part::Gone(t) => before += &t,
                                Part::New(t) => after += &t,
                            }
                        }
                        before.push('\n');
                        after.push('\n');
                    }
                }
            }
            assert_eq!((before, after), (a, b));
        }
    }
}
