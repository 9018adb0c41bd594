//! The scenarios of this repository as tests: `cargo test`, `cargo test -- start --list`.

use podlab_runner::library::Suite;

fn main() -> std::process::ExitCode {
    Suite::at(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios")).run()
}
