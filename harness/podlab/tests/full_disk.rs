//! A full disk under the API server's store: writes fail with a clear error, reads go on, and nothing that was
//! acknowledged is lost when there is room again.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    process::Command,
    sync::Arc,
    time::Duration,
};

use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use podlab_api::{core::ConfigMap, meta::ObjectMeta};
use podlab_client::{Client, ListOptions, http::HttpApi, kubeconfig};
use podlab_clock::Clock;

const NONE: Option<&str> = None;
/// Longer than any answer takes; what takes longer hangs.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_full_disk_is_an_error_of_each_write_and_of_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    // The small disk is mounted for this thread and its children alone.
    let played = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).unwrap();
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).unwrap();
        mount(Some("small"), &path, Some("tmpfs"), MsFlags::empty(), Some("size=32m")).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let up = podlab(&["up", "--name", "full"], &path);
        let outcome = up.and_then(|()| runtime.block_on(play(&path)));
        let down = podlab(&["down", "--name", "full"], &path);
        outcome.and(down)
    });
    played.join().unwrap().unwrap();
}

fn podlab(args: &[&str], state: &Path) -> Result<(), String> {
    let program = env!("CARGO_BIN_EXE_podlab");
    let out = Command::new(program).args(args).env("PODLAB_STATE", state).current_dir(state).output().unwrap();
    if out.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&out.stderr).into_owned()) }
}

fn named(name: &str) -> ConfigMap {
    let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    let data = [("key".to_owned(), "v".repeat(8 << 10))].into();
    ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }
}

async fn play(state: &Path) -> Result<(), String> {
    let clock = Clock::real();
    let access = kubeconfig::load(&state.join("podlab.kubeconfig")).map_err(|e| e.to_string())?;
    let client = Client::new(Arc::new(HttpApi::new(&access).map_err(|e| e.to_string())?));
    let maps = client.namespaced::<ConfigMap>("default");
    let filler = state.join("filler");
    fill(&filler);
    let mut acknowledged = Vec::new();
    let mut refused = None;
    for i in 0..64 {
        let map = named(&format!("m-{i}"));
        match clock.timeout(LIMIT, maps.create(&map)).await.ok_or("a write hangs")? {
            Ok(_) => acknowledged.push(i),
            Err(e) => refused = Some(e.to_string()),
        }
    }
    let said = refused.ok_or("no write was refused on a full disk")?;
    if !said.contains("No space left on device") {
        return Err(format!("the error does not say what is wrong: {said}"));
    }
    let list = clock.timeout(LIMIT, maps.list(&ListOptions::default())).await.ok_or("a read hangs")?;
    list.map_err(|e| format!("a read fails on a full disk: {e}"))?;
    fs::remove_file(&filler).map_err(|e| e.to_string())?;
    let again = clock.timeout(LIMIT, maps.create(&named("after"))).await.ok_or("a write hangs once there is room")?;
    again.map_err(|e| format!("a write fails although there is room: {e}"))?;
    for i in acknowledged {
        maps.get(&format!("m-{i}")).await.map_err(|e| format!("acknowledged m-{i} is lost: {e}"))?;
    }
    Ok(())
}

/// Writes until the disk takes nothing more.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    let mut block = vec![0; 1 << 20];
    while !block.is_empty() {
        if file.write_all(&block).is_err() {
            block.truncate(block.len() / 2);
        }
    }
}
