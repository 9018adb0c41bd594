//! What every page has: its head, its bar, its style and script, and how text gets into it.

use std::fmt::Write;

use base64::{Engine, prelude::BASE64_STANDARD};
use sha2::{Digest, Sha256};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("page.js");

/// Makes text safe inside HTML, as content or between quotes. What a terminal or a browser would act on instead of showing is
/// shown as what it is.
pub(crate) fn escape(s: &str) -> String {
    s.chars().fold(String::with_capacity(s.len()), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
        out
    })
}

/// A link to a page of this file.
pub(super) fn link(name: &str, text: &str) -> String {
    format!("<a href=\"#{}\">{}</a>", escape(&anchor(name)), escape(text))
}

/// A trial's name as the part of an address after `#`. What has a meaning in addresses is encoded; the slashes stay.
pub(super) fn anchor(name: &str) -> String {
    name.bytes().fold(String::new(), |mut out, b| {
        if b.is_ascii_alphanumeric() || b"/-_.@=,:".contains(&b) {
            out.push(char::from(b));
        } else {
            let _ = write!(out, "%{b:02X}");
        }
        out
    })
}

/// A verdict as a mark and a word, so that its colour is never all that tells it.
pub(super) fn chip(word: &str) -> String {
    let mark = match word {
        "passed" => "✓",
        "failed" => "✗",
        "broken" => "!",
        "invalid" => "?",
        "flaky" => "~",
        "quarantined" => "☣",
        _ => "–",
    };
    format!("<span class=\"chip {0}\"><span aria-hidden=\"true\">{mark}</span> {0}</span>", escape(word))
}

/// A whole file.
pub(super) fn page(name: &str, title: &str, body: &str) -> String {
    let hash = BASE64_STANDARD.encode(Sha256::digest(SCRIPT));
    let policy = format!("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hash}'");
    let (name, title) = (escape(name), escape(title));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\
<title>{title}</title><style>{STYLE}</style></head><body>\
<a class=\"skip\" href=\"#main\">Skip to the content</a>\
<header class=\"bar\"><a class=\"home\" href=\"#\"><span class=\"logo\" aria-hidden=\"true\"></span>podlab <b>{name}</b></a><span class=\"grow\"></span>\
<button type=\"button\" id=\"theme\" class=\"needs-js\" aria-live=\"polite\">Theme: auto</button>\
<button type=\"button\" id=\"help\" class=\"needs-js\" aria-haspopup=\"dialog\">Keys</button></header>\
<main id=\"main\" tabindex=\"-1\">{body}</main>\
<dialog id=\"keys\" aria-labelledby=\"keys-title\"><h2 id=\"keys-title\">Keys</h2><dl>\
<dt><kbd>/</kbd></dt><dd>filter</dd><dt><kbd>j</kbd> <kbd>k</kbd></dt><dd>next, previous trial</dd>\
<dt><kbd>n</kbd> <kbd>p</kbd></dt><dd>next, previous trial that did not pass</dd><dt><kbd>Enter</kbd></dt><dd>open it</dd>\
<dt><kbd>u</kbd></dt><dd>up to all trials</dd><dt><kbd>?</kbd></dt><dd>this</dd></dl>\
<label><input type=\"checkbox\" id=\"single\" checked> keys of one letter work</label>\
<form method=\"dialog\"><button>Close</button></form></dialog>\
<script>{SCRIPT}</script></body></html>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_something_to_a_browser_is_shown_instead() {
        assert_eq!(escape("<a href=\"x\">&'\u{1b}[31m"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;\u{fffd}[31m");
        assert_eq!(anchor("a/b[k=v w]"), "a/b%5Bk=v%20w%5D");
    }
}
