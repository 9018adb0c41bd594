//! Compiles `workload/` into one static executable with the toolchain at hand, independent of the workspace's profile.

use std::{env, path::PathBuf, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=workload");
    println!("cargo::rerun-if-changed=build.rs");
    let var = |key: &str| env::var(key).unwrap_or_else(|_| panic!("cargo sets {key} for build scripts"));
    let out = PathBuf::from(var("OUT_DIR")).join("testimage");
    let run = Command::new(var("RUSTC"))
        .args(["--edition=2024", "--crate-name=workload", "--target", &var("TARGET")])
        .args(["-Ctarget-feature=+crt-static", "-Copt-level=z", "-Cpanic=abort", "-Cstrip=symbols", "-Clto=fat"])
        .arg("-o")
        .arg(&out)
        .arg("workload/main.rs")
        .output();
    match run {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!(
            "the static test program did not build; it needs the C library's libc.a (Debian: libc6-dev, Fedora: glibc-static)\n{}",
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(e) => panic!("rustc could not be started: {e}"),
    }
}
