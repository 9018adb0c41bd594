//! The registry over real sockets on loopback.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};

use podlab_registry::{Access, Registry, Storage, archive};
use podlab_testimage::Image;
use tokio_util::sync::CancellationToken;

fn start(storage: Storage, access: Access) -> (SocketAddr, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let token = stop.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(Registry::new(storage, access, listener).run(token)).unwrap();
    });
    (address, stop)
}

fn ask(to: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    write!(stream, "{request}").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(to: SocketAddr, path: &str, headers: &str) -> String {
    ask(to, &format!("GET {path} HTTP/1.1\r\nHost: r\r\nConnection: close\r\n{headers}\r\n"))
}

#[test]
fn a_manifest_is_found_by_tag_and_by_digest_and_a_missing_tag_is_404() {
    let (storage, image) = (Storage::in_memory(), Image::testimage());
    storage.put_image("testimage", "1", &image).unwrap();
    let (to, stop) = start(storage, Access::Open);
    for reference in ["1", image.manifest.digest.as_str()] {
        let answer = get(to, &format!("/v2/testimage/manifests/{reference}"), "");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(&image.config.digest), "{answer}");
    }
    let missing = get(to, "/v2/testimage/manifests/2", "");
    assert!(missing.starts_with("HTTP/1.1 404") && missing.contains("MANIFEST_UNKNOWN"), "{missing}");
    let part = get(to, &format!("/v2/testimage/blobs/{}", image.config.digest), "Range: bytes=1-3\r\n");
    assert!(part.contains("206") && part.ends_with(std::str::from_utf8(&image.config.bytes[1..4]).unwrap()), "{part}");
    stop.cancel();
}

#[test]
fn without_the_password_everything_is_401_with_a_challenge() {
    let (to, stop) = start(Storage::in_memory(), Access::Basic { user: "bench".into(), password: "s3cret".into() });
    let refused = get(to, "/v2/", "");
    assert!(
        refused.starts_with("HTTP/1.1 401") && refused.to_lowercase().contains("www-authenticate: basic"),
        "{refused}"
    );
    let allowed = get(to, "/v2/", "Authorization: Basic YmVuY2g6czNjcmV0\r\n");
    assert!(allowed.starts_with("HTTP/1.1 200"), "{allowed}");
    stop.cancel();
}

#[test]
fn a_pushed_blob_must_match_its_digest() {
    let (to, stop) = start(Storage::in_memory(), Access::Open);
    let push = |digest: &str| {
        let path = format!("/v2/x/blobs/uploads/?digest={digest}");
        ask(to, &format!("POST {path} HTTP/1.1\r\nHost: r\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"))
    };
    let good = podlab_testimage::digest(b"hi");
    assert!(push(&good).starts_with("HTTP/1.1 201"));
    assert!(push(&podlab_testimage::digest(b"ho")).starts_with("HTTP/1.1 400"));
    stop.cancel();
}

#[test]
fn an_archive_is_pushed_and_survives_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (tar, root) = (dir.path().join("i.tar"), dir.path().join("registry"));
    Image::testimage().write_archive(&tar, "registry.test/app:1").unwrap();
    archive::push(&Storage::in_dir(&root).unwrap(), &tar, "app", "1").unwrap();
    let again = Storage::in_dir(&root).unwrap();
    assert_eq!(again.tags("app"), Some(vec!["1".to_owned()]));
    assert!(again.blob(&Image::testimage().config.digest).is_some());
    std::fs::write(&tar, b"this is no archive").unwrap();
    assert!(archive::push(&again, &tar, "app", "2").is_err());
}
