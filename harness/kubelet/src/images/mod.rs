//! Getting a container's image onto the node: pull policies, back-off, credentials, one pull at a time or several.
//!
//! Source: k/k pkg/kubelet/images/image_manager.go.

mod gc;
mod keyring;
mod records;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use podlab_api::core::{Container, Pod};
use podlab_clock::Clock;
use podlab_cri::v1;
use podlab_lifecycle::{
    backoff::Backoff,
    container::StartFailure,
    image::{PullPolicy, with_default_tag},
    spec::{self, ContainerKind},
    words::WaitingReason,
};
use podlab_mutant::{self as mutant, Mutant};
use podlab_timeline::{Lane, Outcome, Recorder};
use tokio::sync::Semaphore;

pub(crate) use gc::{ImageAges, remove_unused, run as collect_garbage};
pub(crate) use keyring::{Credential, Keyring};
use records::PullRecords;

use crate::{
    config::{ImagePulls, KubeletConfig},
    container::security::ImageUser,
    host::Host,
    runtime::{Images, RuntimeError},
    say::Say,
    status::key_of,
};

/// An image that is on the node.
#[derive(Debug, Clone)]
pub(crate) struct Present {
    /// What to create the container with.
    pub(crate) spec: v1::ImageSpec,
    /// Whom it runs as by default.
    pub(crate) user: ImageUser,
}

/// Why the image is not usable now, and when a back-off ends if that is why.
#[derive(Debug, Clone)]
pub(crate) struct NotPresent {
    pub(crate) failure: StartFailure,
    pub(crate) until: Option<podlab_api::jiff::Timestamp>,
}

/// What asks for an image.
pub(crate) struct Request<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) kind: ContainerKind,
    pub(crate) container: &'a Container,
    pub(crate) keyring: &'a Keyring,
    pub(crate) sandbox: &'a v1::PodSandboxConfig,
}

/// The image side of the node agent.
pub(crate) struct ImageManager {
    images: Arc<dyn Images>,
    clock: Clock,
    say: Say,
    recorder: Recorder,
    turns: Option<Semaphore>,
    state: Mutex<State>,
    records: PullRecords,
}

struct State {
    backoff: Backoff,
    errors: BTreeMap<String, String>,
    /// Images looked up while their Pod's sandbox was being made, by Pod UID and name; each is used once.
    peeked: BTreeMap<(String, String), v1::Image>,
}

/// Images of a Pod looked up ahead.
const MAX_PEEKS: usize = 8;

impl ImageManager {
    pub(crate) fn new(
        config: &KubeletConfig,
        images: Arc<dyn Images>,
        host: Arc<dyn Host>,
        clock: Clock,
        say: Say,
        recorder: &Recorder,
    ) -> Self {
        let turns = match config.image_pulls {
            ImagePulls::Serial => Some(1),
            ImagePulls::Parallel(n) => n,
        };
        Self {
            images,
            clock,
            say,
            recorder: recorder.lane(Lane::Image),
            turns: turns.map(Semaphore::new),
            state: Mutex::new(State {
                backoff: Backoff::image_pull(),
                errors: BTreeMap::new(),
                peeked: BTreeMap::new(),
            }),
            records: PullRecords::new(host, config.root_dir.join("image_manager")),
        }
    }

    /// Looks a Pod's images up ahead, so that its containers do not wait for the answer one by one.
    pub(crate) async fn peek(&self, pod: &Pod) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let all = spec::init_containers(pod).iter().chain(spec::containers(pod));
        let mut names: Vec<(String, String)> =
            all.filter_map(|c| Some((with_default_tag(c.image.as_deref()?).ok()?, c.image.clone()?))).collect();
        names.sort();
        names.dedup();
        names.truncate(MAX_PEEKS);
        let looks = names.into_iter().map(|(name, image)| async move {
            let wanted = v1::ImageSpec { image: name.clone(), user_specified_image: image, ..Default::default() };
            (name, self.images.image_status(wanted).await)
        });
        for (name, found) in futures::future::join_all(looks).await {
            if let Ok(Some(image)) = found {
                self.state.lock().peeked.insert((uid.clone(), name), image);
            }
        }
    }

    /// Forgets what was looked up for a Pod.
    pub(crate) fn forget(&self, uid: &str) {
        self.state.lock().peeked.retain(|(u, _), _| u != uid);
    }

    /// Makes sure the image of a container is on the node and the Pod may use it. Dropping it midway abandons a pull.
    pub(crate) async fn ensure(&self, r: &Request<'_>) -> Result<Present, NotPresent> {
        let image = r.container.image.as_deref().unwrap_or_default();
        let policy = PullPolicy::parse(r.container.image_pull_policy.as_deref());
        let name = match with_default_tag(image) {
            Ok(name) => name,
            Err(e) => {
                let message = format!(
                    "Failed to apply default image tag \"{image}\": couldn't parse image name \"{image}\": {e}"
                );
                self.warn(r, "InspectFailed", &message);
                return Err(failed(WaitingReason::InvalidImageName, message));
            }
        };
        let wanted =
            v1::ImageSpec { image: name.clone(), user_specified_image: image.to_owned(), ..Default::default() };
        let uid = r.pod.metadata.uid.clone().unwrap_or_default();
        let peeked = self.state.lock().peeked.remove(&(uid, name.clone()));
        let looked = match peeked {
            Some(image) => Ok(Some(image)),
            None => self.images.image_status(wanted.clone()).await,
        };
        let present = match looked {
            Ok(found) => found,
            Err(e) => {
                let message = format!("Failed to inspect image \"{image}\": {e}");
                self.warn(r, "InspectFailed", &message);
                return Err(failed(WaitingReason::ImageInspectError, message));
            }
        };
        let credentials = r.keyring.lookup(&name);
        let usable = present.as_ref().is_some_and(|i| self.records.may_use(&i.id, &credentials));
        match (policy.decide(present.is_some()), &present) {
            (None, _) => {
                let message = format!("Container image \"{image}\" is not present with pull policy of Never");
                self.warn(r, "ErrImageNeverPull", &message);
                Err(failed(WaitingReason::ErrImageNeverPull, message))
            }
            (Some(false), Some(found)) if usable => {
                let message =
                    format!("Container image \"{image}\" already present on machine and can be accessed by the pod");
                self.say.container(r.pod, r.kind, &r.container.name, "Pulled", message);
                Ok(describe(found, image))
            }
            (Some(false), _) if policy == PullPolicy::Never => {
                let message = format!("Container image \"{image}\" is not present with pull policy of Never");
                self.warn(r, "ErrImageNeverPull", &message);
                Err(failed(WaitingReason::ErrImageNeverPull, message))
            }
            (Some(_), _) => self.pull(r, image, wanted, &credentials).await,
        }
    }

    async fn pull(
        &self,
        r: &Request<'_>,
        image: &str,
        wanted: v1::ImageSpec,
        credentials: &[Credential],
    ) -> Result<Present, NotPresent> {
        let uid = r.pod.metadata.uid.as_deref().unwrap_or_default();
        let key = format!("{uid}_{}", wanted.image);
        if let Some(wait) = self.backing_off(&key, image) {
            self.say.container(
                r.pod,
                r.kind,
                &r.container.name,
                "BackOff",
                format!("Back-off pulling image \"{image}\""),
            );
            return Err(wait);
        }
        self.say.container(r.pod, r.kind, &r.container.name, "Pulling", format!("Pulling image \"{image}\""));
        let asked = self.clock.now();
        let turn = match &self.turns {
            // The semaphore is never closed.
            Some(turns) if !mutant::is(Mutant::PullsTogether) => turns.acquire().await.ok(),
            Some(_) | None => None,
        };
        let began = self.clock.now();
        let result = self.try_credentials(r, &wanted, credentials).await;
        drop(turn);
        let outcome = result.as_ref().map_or_else(|e| Outcome::Error(e.to_string()), |_| Outcome::Ok);
        self.recorder.call(Some(&key_of(r.pod)), "pull", image, began, outcome);
        match result {
            Ok((reference, used)) => {
                let found = self.images.image_status(wanted.clone()).await.ok().flatten();
                let found = found.unwrap_or_else(|| v1::Image { id: reference.clone(), ..Default::default() });
                self.records.pulled(&found.id, used.as_ref());
                let end = self.clock.now();
                let message = format!(
                    "Successfully pulled image \"{image}\" in {} ({} including waiting). Image size: {} bytes.",
                    go_millis(end.since(began)),
                    go_millis(end.since(asked)),
                    found.size
                );
                self.say.container(r.pod, r.kind, &r.container.name, "Pulled", message);
                let mut state = self.state.lock();
                state.errors.remove(&key);
                state.backoff.collect(self.clock.wall());
                Ok(describe(&found, image))
            }
            Err(e) => {
                self.warn(r, "Failed", &format!("Failed to pull image \"{image}\": {e}"));
                let (reason, message) = classify(image, &e);
                let mut state = self.state.lock();
                let now = self.clock.wall();
                state.backoff.next(&key, now, now);
                state.errors.insert(key, format!("{reason}: {message}"));
                Err(failed(reason, message))
            }
        }
    }

    async fn try_credentials(
        &self,
        r: &Request<'_>,
        wanted: &v1::ImageSpec,
        credentials: &[Credential],
    ) -> Result<(String, Option<Credential>), RuntimeError> {
        if credentials.is_empty() {
            let reference = self.images.pull_image(wanted.clone(), None, r.sandbox.clone()).await?;
            return Ok((reference, None));
        }
        let mut last = None;
        for c in credentials {
            match self.images.pull_image(wanted.clone(), Some(c.auth()), r.sandbox.clone()).await {
                Ok(reference) => return Ok((reference, Some(c.clone()))),
                Err(e) => last = Some(e),
            }
        }
        Err(last.unwrap_or_else(|| RuntimeError::new(tonic::Code::Internal, "no credential was tried")))
    }

    fn backing_off(&self, key: &str, image: &str) -> Option<NotPresent> {
        let state = self.state.lock();
        let until = state.backoff.waits_since_update(key, self.clock.wall())?;
        let mut message = format!("Back-off pulling image \"{image}\"");
        if let Some(e) = state.errors.get(key) {
            message.push_str(": ");
            message.push_str(e);
        }
        Some(NotPresent {
            failure: StartFailure { reason: WaitingReason::ImagePullBackOff, message },
            until: Some(until),
        })
    }

    fn warn(&self, r: &Request<'_>, reason: &'static str, message: &str) {
        self.say.container_warn(r.pod, r.kind, &r.container.name, reason, message);
    }
}

fn failed(reason: WaitingReason, message: String) -> NotPresent {
    NotPresent { failure: StartFailure { reason, message }, until: None }
}

/// Prefixes of the runtime's message that are reasons of their own.
fn classify(image: &str, e: &RuntimeError) -> (WaitingReason, String) {
    if let Some(rest) = e.message.strip_prefix("RegistryUnavailable") {
        let why = rest.trim_start_matches([':', ' ']);
        return (
            WaitingReason::RegistryUnavailable,
            format!("image pull failed for {image} because the registry is unavailable: {why}"),
        );
    }
    if let Some(rest) = e.message.strip_prefix("SignatureValidationFailed") {
        let why = rest.trim_start_matches([':', ' ']);
        return (
            WaitingReason::SignatureValidationFailed,
            format!("image pull failed for {image} because the signature validation failed: {why}"),
        );
    }
    (WaitingReason::ErrImagePull, e.to_string())
}

fn describe(found: &v1::Image, image: &str) -> Present {
    let spec = v1::ImageSpec { image: found.id.clone(), user_specified_image: image.to_owned(), ..Default::default() };
    Present { spec, user: ImageUser { uid: found.uid.as_ref().map(|u| u.value), username: found.username.clone() } }
}

/// Go's print of a duration truncated to milliseconds.
pub(crate) fn go_millis(d: Duration) -> String {
    let ms = d.as_millis();
    if ms == 0 {
        return "0s".to_owned();
    }
    if ms < 1000 {
        return format!("{ms}ms");
    }
    let (minutes, rest) = (ms / 60_000, ms % 60_000);
    let fraction = format!("{}.{:03}", rest / 1000, rest % 1000);
    let seconds = fraction.trim_end_matches('0').trim_end_matches('.');
    if minutes == 0 { format!("{seconds}s") } else { format!("{minutes}m{seconds}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_print_as_go_prints_them() {
        for (ms, expect) in
            [(0, "0s"), (31, "31ms"), (1000, "1s"), (1234, "1.234s"), (62_500, "1m2.5s"), (600_000, "10m0s")]
        {
            assert_eq!(go_millis(Duration::from_millis(ms)), expect);
        }
    }
}
