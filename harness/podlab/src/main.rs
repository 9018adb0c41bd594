//! `podlab`: one binary for everything. Exit codes: 0 passed, 1 failed, 2 could not run.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod cli;
mod out;
mod verbs;

use clap::Parser;

use crate::out::complain;

fn main() -> std::process::ExitCode {
    // Before anything else: this program may have been exec'ed as a CNI plugin, and capsules are forked from a process
    // that has no threads yet.
    podlab_testbed::answer_as_cni_plugin();
    let cli = cli::Cli::parse();
    match verbs::run(cli) {
        Ok(code) => code,
        Err(error) => {
            complain!("podlab: {error:#}");
            std::process::ExitCode::from(2)
        }
    }
}
