//! `cargo xtask`: builds the one binary and starts it, and runs the checks of this repository.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod checks;
mod conformance;
mod flags;
mod out;
mod tidy;

use std::process::ExitCode;

use crate::out::complain;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match flags::run(&args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            complain!("xtask: {error}");
            ExitCode::from(2)
        }
    }
}
