//! Playing a tape against a plugin alone: the same calls in the same order, the answers compared in normal form.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;
use podlab_clock::Clock;
use serde_json::Value;
use tonic::Status;

use crate::{
    diff::{Names, answers},
    format::{Answer, Call, Tape},
    methods::{Seam, Side, decode, encode},
    wire::{Plugin, WireError},
};

/// How long a read is repeated until it is answered as it was: what a caller sees of a process takes its time.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// At most this long.
    pub longest: Duration,
    /// Between two tries.
    pub pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { longest: Duration::from_secs(5), pause: Duration::from_millis(20) }
    }
}

/// An answer that is not the recorded one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Number of the call on the tape, from 1.
    pub call: usize,
    /// Its method.
    pub method: String,
    /// Where the answers differ.
    pub what: Vec<String>,
}

/// What a replay came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Calls that were made.
    pub calls: usize,
    /// Those that were answered differently.
    pub differences: Vec<Difference>,
}

/// Methods that change nothing.
const READS: [&str; 17] = [
    "Version",
    "Status",
    "RuntimeConfig",
    "PodSandboxStatus",
    "ListPodSandbox",
    "ListContainers",
    "ContainerStatus",
    "ImageStatus",
    "ListImages",
    "GetPluginInfo",
    "GetPluginCapabilities",
    "Probe",
    "ListVolumes",
    "ControllerGetCapabilities",
    "ValidateVolumeCapabilities",
    "NodeGetInfo",
    "NodeGetCapabilities",
];

/// An error as an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("error {code} ({message})")]
pub struct Refused {
    /// gRPC status code.
    pub code: i32,
    /// Message.
    pub message: String,
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        Self { code: status.code() as i32, message: status.message().to_owned() }
    }
}

/// A plugin that calls of a tape can be made to.
#[async_trait]
pub trait Target: Send + Sync {
    /// Answers a call, message for message as the protocol's field names have it.
    ///
    /// # Errors
    /// The plugin's own; `INTERNAL` for what is no such message.
    async fn answer(&self, method: &str, request: &Value) -> Result<Value, Refused>;
}

/// A plugin behind a unix socket.
#[derive(Debug, Clone)]
pub struct SocketTarget {
    plugin: Plugin,
    seam: Seam,
}

impl SocketTarget {
    /// Prepares the client; nothing is sent yet. Must be called inside a runtime.
    ///
    /// # Errors
    /// A path that makes no URI.
    pub fn new(socket: &Path, seam: Seam) -> Result<Self, WireError> {
        Ok(Self { plugin: Plugin::at(socket)?, seam })
    }
}

#[async_trait]
impl Target for SocketTarget {
    async fn answer(&self, method: &str, request: &Value) -> Result<Value, Refused> {
        let odd = |why: String| Status::internal(why);
        let path = self.seam.path(method).ok_or_else(|| odd(format!("there is no method {method}")))?;
        let bytes = encode(&path, Side::Request, request).map_err(|e| odd(format!("no request of {method}: {e}")))?;
        let answer = self.plugin.unary(&path, bytes).await?;
        let decoded = decode(&path, Side::Reply, &answer);
        Ok(decoded.and_then(Result::ok).ok_or_else(|| odd("the answer is no message".into()))?)
    }
}

/// Plays a tape against a plugin. Paths of the tape that begin with the first of `moved` begin with the second there; what
/// a caller prepares below it (directories to mount on) is prepared. Dropping it midway leaves the plugin as the calls so
/// far made it.
pub async fn replay(
    tape: &Tape,
    target: &dyn Target,
    moved: Option<&(PathBuf, PathBuf)>,
    clock: Clock,
    patience: Patience,
) -> Replayed {
    let mut player = Player { target, names: Names::default(), moved, clock, patience };
    let mut done = Replayed::default();
    for (i, call) in tape.calls.iter().enumerate() {
        done.calls += 1;
        let what = player.play(call).await;
        if !what.is_empty() {
            done.differences.push(Difference { call: i + 1, method: call.method.clone(), what });
        }
    }
    done
}

struct Player<'a> {
    target: &'a dyn Target,
    names: Names,
    moved: Option<&'a (PathBuf, PathBuf)>,
    clock: Clock,
    patience: Patience,
}

impl Player<'_> {
    async fn play(&mut self, call: &Call) -> Vec<String> {
        let mut request = self.names.translate(&call.request);
        if let Some((from, to)) = self.moved {
            move_paths(&mut request, &from.to_string_lossy(), &to.to_string_lossy());
            if let Err(e) = prepare(&request, to) {
                return vec![format!("prepare for the call: {e}")];
            }
        }
        let end = self.clock.now().after(self.patience.longest);
        loop {
            let answer = self.target.answer(&call.method, &request).await;
            let what = self.judge(call, answer);
            if what.is_empty() || !READS.contains(&call.method.as_str()) || self.clock.now() >= end {
                return what;
            }
            self.clock.sleep(self.patience.pause).await;
        }
    }

    fn judge(&mut self, call: &Call, answer: Result<Value, Refused>) -> Vec<String> {
        match (&call.answer, answer) {
            (Answer::Reply(recorded), Ok(mut actual)) => {
                if let Some((from, to)) = self.moved {
                    move_paths(&mut actual, &to.to_string_lossy(), &from.to_string_lossy());
                }
                answers(&call.method, recorded, &actual, &mut self.names)
            }
            // The words of an error are the plugin's own; its code is the contract.
            (Answer::Error { code, .. }, Err(e)) if *code == e.code => Vec::new(),
            (Answer::Error { code, message }, Err(e)) => vec![format!("recorded error {code} ({message}), now {e}")],
            (Answer::Error { code, message }, Ok(_)) => vec![format!("recorded error {code} ({message}), now a reply")],
            (Answer::Reply(_), Err(e)) => vec![format!("recorded a reply, now {e}")],
        }
    }
}

fn move_paths(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::String(text) => {
            if let Some(rest) = text.strip_prefix(from)
                && (rest.is_empty() || rest.starts_with('/'))
            {
                *text = format!("{to}{rest}");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|v| move_paths(v, from, to)),
        Value::Object(fields) => fields.values_mut().for_each(|v| move_paths(v, from, to)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// What a caller has made before such a call, below `to` alone.
fn prepare(request: &Value, to: &Path) -> io::Result<()> {
    let below = |name: &str| {
        let text = request.get(name)?.as_str()?;
        // A tape is not trusted to stay inside.
        (Path::new(text).starts_with(to) && !text.split('/').any(|part| part == "..")).then(|| PathBuf::from(text))
    };
    if let Some(staging) = below("staging_target_path") {
        fs::create_dir_all(staging)?;
    }
    match below("target_path").as_deref().and_then(Path::parent) {
        Some(parent) => fs::create_dir_all(parent),
        None => Ok(()),
    }
}
