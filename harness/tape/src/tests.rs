//! Recorder, replay and fake against each other.

use std::{fs::File, path::PathBuf, time::Duration};

use podlab_clock::Clock;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    Answer, Call, Patience, Recorder, Replayed, Seam, SocketTarget, Tape, TapeError,
    methods::{Side, decode, encode},
    record, replay, serve,
};

fn call(method: &str, request: Value, answer: Answer) -> Call {
    // Filled up with what the message has besides.
    let path = Seam::Csi.path(method).unwrap();
    let whole = |side, value: &Value| decode(&path, side, &encode(&path, side, value).unwrap()).unwrap().unwrap();
    let answer = match answer {
        Answer::Reply(reply) => Answer::Reply(whole(Side::Reply, &reply)),
        error => error,
    };
    Call { method: method.into(), at_us: 0, took_us: 0, request: whole(Side::Request, &request), answer }
}

fn tape(id: &str) -> Tape {
    let make = json!({"name": "pvc-1", "secrets": {"user": "u"}});
    let made = json!({"volume": {"volume_id": id, "capacity_bytes": 5}});
    let gone = Answer::Error { code: 5, message: "no volume".into() };
    Tape {
        seam: Seam::Csi,
        calls: vec![
            call("CreateVolume", make, Answer::Reply(made)),
            call("NodeUnpublishVolume", json!({"volume_id": id, "target_path": "/t"}), gone),
            call("DeleteVolume", json!({"volume_id": id}), Answer::Reply(json!({}))),
        ],
    }
}

struct Stage {
    dir: tempfile::TempDir,
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl Stage {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), tasks: JoinSet::new(), stop: CancellationToken::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn fake(&mut self, name: &str, mut tape: Tape) -> PathBuf {
        let (path, stop) = (self.path(name), self.stop.clone());
        // What a recorder would have left out is left out here as well.
        tape.calls.iter_mut().for_each(|c| crate::redact::redact(&mut c.request));
        let at = path.clone();
        self.tasks.spawn(async move { serve(tape, &at, stop).await.unwrap() });
        path
    }
}

const QUICK: Patience = Patience { longest: Duration::from_millis(50), pause: Duration::from_millis(5) };

async fn played(tape: &Tape, socket: &std::path::Path) -> Replayed {
    let target = SocketTarget::new(socket, tape.seam).unwrap();
    replay(tape, &target, None, Clock::real(), QUICK).await
}

#[tokio::test]
async fn what_passes_a_recorder_can_be_replayed_and_secrets_are_not_on_the_tape() {
    let mut stage = Stage::new();
    let plugin = stage.fake("plugin.sock", tape("volume-one"));
    let (proxy, file) = (stage.path("proxy.sock"), stage.path("tape.jsonl"));
    let recorder = Recorder::begin(File::create(&file).unwrap(), &file, Seam::Csi, Clock::real()).unwrap();
    let (listen, stop) = (proxy.clone(), stage.stop.clone());
    stage.tasks.spawn(async move { record(&listen, &plugin, recorder, stop).await.unwrap() });
    let through = played(&tape("volume-one"), &proxy).await;
    assert_eq!((through.calls, &*through.differences), (3, &[][..]));

    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("<redacted>") && !text.contains("\"u\""), "{text}");
    let recorded = Tape::read(&file).unwrap();
    let methods: Vec<&str> = recorded.calls.iter().map(|c| c.method.as_str()).collect();
    assert_eq!(methods, ["CreateVolume", "NodeUnpublishVolume", "DeleteVolume"]);
    let again = stage.fake("again.sock", recorded.clone());
    let done = played(&recorded, &again).await;
    assert_eq!((done.calls, &*done.differences), (3, &[][..]));
}

#[tokio::test]
async fn a_plugin_with_other_ids_plays_the_same_and_one_with_another_answer_does_not() {
    let mut stage = Stage::new();
    let other = stage.fake("other.sock", tape("volume-two"));
    let done = played(&tape("volume-one"), &other).await;
    assert_eq!(done.differences, []);
    let mut wrong = tape("volume-two");
    wrong.calls[1].answer = Answer::Reply(json!({}));
    wrong.calls[2].answer = Answer::Error { code: 13, message: "busy".into() };
    let wrong = stage.fake("wrong.sock", wrong);
    let done = played(&tape("volume-one"), &wrong).await;
    let numbers: Vec<usize> = done.differences.iter().map(|d| d.call).collect();
    assert_eq!(numbers, [2, 3], "{done:?}");
    let nobody = played(&tape("v"), &stage.path("nobody.sock")).await;
    assert_eq!(nobody.differences.len(), 3, "a plugin that is not there answers nothing");
}

#[test]
fn a_tape_of_a_killed_recorder_is_read_to_its_last_whole_line_and_a_wrong_one_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.jsonl");
    let read = |text: &str| {
        std::fs::write(&path, text).unwrap();
        Tape::read(&path)
    };
    let good = |t: &Tape| {
        let mut out = crate::format::head_line(t.seam);
        t.calls.iter().for_each(|c| out.extend(crate::format::line(c)));
        String::from_utf8(out).unwrap()
    };
    let whole = good(&tape("v"));
    assert_eq!(read(&whole).unwrap(), tape("v"));
    assert_eq!(read(&whole[..whole.len() - 10]).unwrap().calls.len(), 2);
    for (text, words) in [
        (String::new(), "line 1: no head"),
        ("{}\n".to_owned(), "line 1: no head"),
        (whole.replace("\"tape\":1", "\"tape\":2"), "line 1: version 2"),
        (whole.replace("DeleteVolume", "LoseVolume"), "line 4: csi has no method"),
        (whole.replacen("atUs", "at", 1), "line 2"),
    ] {
        let error = read(&text).unwrap_err();
        assert!(matches!(error, TapeError::Line { .. }) && error.to_string().contains(words), "{error}");
    }
}
