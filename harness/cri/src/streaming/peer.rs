//! The far end of an exec or attach, whatever it speaks: channels in, channels out, an error channel at the end.

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Channel numbers of `channel.k8s.io`.
pub(crate) const STDIN: u8 = 0;
pub(crate) const STDOUT: u8 = 1;
pub(crate) const STDERR: u8 = 2;
pub(crate) const ERROR: u8 = 3;
pub(crate) const RESIZE: u8 = 4;

/// What goes to the far end.
#[derive(Debug)]
pub(crate) enum Out {
    /// Bytes for a channel.
    Data(u8, Bytes),
    /// Nothing more: send what is queued, then close.
    End,
}

/// A terminal's size: columns, rows.
pub(crate) type Size = (u16, u16);

/// How the error channel is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorFormat {
    /// A `metav1.Status` (protocol v4 and later).
    Status,
    /// A sentence, and nothing on success.
    Text,
}

/// The far end.
#[derive(Debug)]
pub(crate) struct Peer {
    /// To the far end. Fails when it has gone.
    pub out: mpsc::Sender<Out>,
    /// Ends when the far end half-closes it or goes.
    pub stdin: mpsc::Receiver<Bytes>,
    /// Ends when the far end goes.
    pub resize: mpsc::Receiver<Size>,
    pub format: ErrorFormat,
}

/// How a session ended.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The process, with its exit code.
    Exit(i32),
    /// Something else.
    Error(String),
}

impl Verdict {
    /// What the error channel carries.
    pub fn encode(&self, format: ErrorFormat) -> Option<Bytes> {
        let failure = |reason: &str, message: String, details: Value| json!({"metadata": {}, "status": "Failure", "message": message, "reason": reason, "details": details, "code": 500});
        let status = match (self, format) {
            (Self::Exit(0), ErrorFormat::Text) => return None,
            (Self::Exit(0), ErrorFormat::Status) => json!({"metadata": {}, "status": "Success"}),
            (Self::Exit(n), ErrorFormat::Text) => return Some(Bytes::from(exit_message(*n))),
            (Self::Exit(n), ErrorFormat::Status) => {
                let mut status = failure(
                    "NonZeroExitCode",
                    exit_message(*n),
                    json!({"causes": [{"reason": "ExitCode", "message": n.to_string()}]}),
                );
                drop(status.as_object_mut().map(|s| s.remove("code")));
                status
            }
            (Self::Error(message), ErrorFormat::Text) => return Some(Bytes::from(message.clone())),
            (Self::Error(message), ErrorFormat::Status) => failure(
                "InternalError",
                // Wrapped twice upstream, where it arises and where it is written.
                format!("Internal error occurred: Internal error occurred: {message}"),
                json!({"causes": [{"message": message}]}),
            ),
        };
        Some(Bytes::from(status.to_string()))
    }
}

fn exit_message(code: i32) -> String {
    format!("command terminated with non-zero exit code: error executing command, exit code {code}")
}

/// A resize message: `{"Width":w,"Height":h}`.
pub(crate) fn parse_size(json: &[u8]) -> Option<Size> {
    let v: Value = serde_json::from_slice(json).ok()?;
    let field = |name: &str| v.get(name).and_then(Value::as_u64).and_then(|n| u16::try_from(n).ok());
    Some((field("Width")?, field("Height")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_travels_as_a_status_from_version_4_and_as_a_sentence_before() {
        let s: Value = serde_json::from_slice(&Verdict::Exit(3).encode(ErrorFormat::Status).unwrap()).unwrap();
        assert_eq!(
            (&s["status"], &s["reason"], &s["details"]["causes"][0]),
            (&json!("Failure"), &json!("NonZeroExitCode"), &json!({"reason": "ExitCode", "message": "3"}))
        );
        assert!(Verdict::Exit(0).encode(ErrorFormat::Status).unwrap().starts_with(b"{"));
        assert_eq!(Verdict::Exit(0).encode(ErrorFormat::Text), None);
        assert!(String::from_utf8_lossy(&Verdict::Exit(3).encode(ErrorFormat::Text).unwrap()).contains("exit code"));
    }

    #[test]
    fn sizes_out_of_range_are_ignored() {
        assert_eq!(parse_size(br#"{"Width":80,"Height":24}"#), Some((80, 24)));
        assert_eq!(parse_size(br#"{"Width":80000,"Height":24}"#), None);
        assert_eq!(parse_size(b"x"), None);
    }
}
