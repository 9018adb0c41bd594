//! What xtask prints. Who reads it may have gone (`cargo xtask tidy | head`): that is no failure, see podlab's own `out`.

use std::{
    fmt::Arguments,
    io::{self, ErrorKind, Write},
};

/// A line on standard output.
macro_rules! say {
    ($($arg:tt)*) => { $crate::out::line(format_args!($($arg)*)) };
}

/// A line on standard error.
macro_rules! complain {
    ($($arg:tt)*) => { $crate::out::complaint(format_args!($($arg)*)) };
}

pub(crate) use {complain, say};

/// A reader that has gone is content with what it had.
fn unless_gone(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

fn whole(text: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    unless_gone(out.write_all(text).and_then(|()| out.flush()))
}

/// A line of news; what cannot be printed is said on standard error.
pub(crate) fn line(text: Arguments<'_>) {
    if let Err(e) = whole(format!("{text}\n").as_bytes()) {
        complaint(format_args!("xtask: print: {e}"));
    }
}

/// A line for whoever looks at standard error, if anybody does.
pub(crate) fn complaint(text: Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
