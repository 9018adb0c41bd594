//! `ci`: every check, all failures listed.

use crate::out::{complain, say};
use crate::{
    flags::{cargo, example},
    tidy,
};

/// Runs everything; 0 only when all of it passed.
pub(crate) fn ci() -> Result<u8, String> {
    let mut failed = Vec::new();
    let mut check = |name: &'static str, result: Result<u8, String>| {
        say!("== {name}: {}", if result == Ok(0) { "ok" } else { "FAILED" });
        if let Err(e) = &result {
            complain!("{e}");
        }
        if result != Ok(0) {
            failed.push(name);
        }
    };
    check("tidy", tidy::run());
    check("clippy", cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"], &[]));
    check("test", cargo(&["test", "--workspace", "--no-fail-fast"], &[]));
    check("example", example());
    if failed.is_empty() {
        return Ok(0);
    }
    say!("failed: {}", failed.join(", "));
    Ok(1)
}
