//! What must survive: the host, whatever is run on it and however it ends; acknowledged writes, exit codes, logs and
//! running containers, whatever is killed. `PODLAB_KILLS` sets how many kills (5 when absent, 50 nightly), `PODLAB_SOAK` the
//! Pods of the soak (50 when absent, 500 nightly).

mod host;
mod kills;
mod pods;
mod soak;

use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};

fn main() -> std::process::ExitCode {
    let zygote = match podlab_testbed::early_main() {
        Ok(zygote) => Arc::new(zygote),
        Err(e) => {
            eprintln!("robustness: {e}");
            return std::process::ExitCode::from(2);
        }
    };
    if let Some(name) = std::env::var_os("PODLAB_VICTIM") {
        host::be_the_victim(&zygote, &name.to_string_lossy());
    }
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let trial = |name: &str, f: fn(&podlab_testbed::Zygote) -> Result<(), libtest_mimic::Failed>| {
        let zygote = zygote.clone();
        Trial::test(name, move || f(&zygote))
    };
    let trials = vec![
        trial("the_host_is_the_same_after_a_run", host::after_a_run),
        trial("the_host_is_the_same_after_the_runner_is_killed", host::after_sigkill),
        trial("kills_lose_no_write_no_exit_no_line_and_touch_no_container", kills::run),
        trial("short_pods_come_to_their_end_and_leave_nothing_whoever_is_killed", soak::run),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}
