//! Requests that wait for their connection. Source: k/k staging/src/k8s.io/cri-streaming/pkg/streaming/request_cache.go.

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use podlab_clock::{Clock, Mono, Rng};

use crate::error::Error;

const MAX: usize = 1000;
const LIFE: Duration = Duration::from_secs(60);

/// What a URL stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamRequest {
    /// A command in a container.
    Exec { container: String, command: Vec<String>, tty: bool, stdin: bool, stdout: bool, stderr: bool },
    /// The container's own streams.
    Attach { container: String, tty: bool, stdin: bool, stdout: bool, stderr: bool },
    /// Ports of a sandbox; an empty list allows any.
    PortForward { sandbox: String, ports: Vec<i32> },
}

/// The outstanding requests.
#[derive(Debug)]
pub(crate) struct Tokens {
    clock: Clock,
    rng: Rng,
    waiting: Mutex<BTreeMap<String, (Mono, StreamRequest)>>,
}

impl Tokens {
    pub fn new(clock: Clock, rng: Rng) -> Self {
        Self { clock, rng, waiting: Mutex::default() }
    }

    /// Keeps a request and returns its token.
    pub fn insert(&self, request: StreamRequest) -> Result<String, Error> {
        let mut waiting = self.waiting.lock();
        let now = self.clock.now();
        waiting.retain(|_, (since, _)| now.since(*since) < LIFE);
        if waiting.len() >= MAX {
            return Err(Error::Exhausted("maximum number of in-flight requests exceeded".into()));
        }
        let token = URL_SAFE_NO_PAD.encode(&self.rng.next_u64().to_le_bytes()[..6]);
        waiting.insert(token.clone(), (now, request));
        Ok(token)
    }

    /// Gives the request up; a second time there is nothing.
    pub fn take(&self, token: &str) -> Option<StreamRequest> {
        let (since, request) = self.waiting.lock().remove(token)?;
        (self.clock.now().since(since) < LIFE).then_some(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_is_good_once_for_a_minute_and_there_are_not_too_many() {
        let clock = Clock::virtual_from(jiff::Timestamp::UNIX_EPOCH);
        let t = Tokens::new(clock, Rng::seeded(3));
        let request = StreamRequest::PortForward { sandbox: "s".into(), ports: vec![] };
        let token = t.insert(request.clone()).unwrap();
        assert_eq!(token.len(), 8);
        assert_eq!((t.take(&token), t.take(&token)), (Some(request.clone()), None));
        let late = t.insert(request.clone()).unwrap();
        clock.sleep(Duration::from_secs(61)).await;
        assert_eq!(t.take(&late), None);
        for _ in 0..MAX {
            t.insert(request.clone()).unwrap();
        }
        assert!(matches!(t.insert(request), Err(Error::Exhausted(_))));
    }
}
