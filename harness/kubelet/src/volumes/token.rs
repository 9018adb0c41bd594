//! Service account tokens of Pods: asked for once, kept until most of their life is over.
//! Source: k/k pkg/kubelet/token/token_manager.go.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use podlab_api::{
    ApiError,
    core::{Pod, ServiceAccount},
    jiff::Timestamp,
};
use podlab_client::Client;
use podlab_clock::{Clock, Rng};
use podlab_lifecycle::{backoff, spec};
use serde_json::json;

/// Tokens are renewed after a day at the latest.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// Renewals of Pods started together are spread over this time.
const JITTER_MS: u64 = 10_000;

struct Token {
    text: String,
    renew_at: Timestamp,
}

/// Pod UID; account, audience and lifetime.
type Key = (String, String);

/// Tokens by Pod, account and audience.
pub(super) struct Tokens {
    client: Client,
    clock: Clock,
    rng: Rng,
    all: Mutex<BTreeMap<Key, Token>>,
    /// One request at a time per token: whoever needs it meanwhile waits for that one.
    asking: Mutex<BTreeMap<Key, Arc<tokio::sync::Mutex<()>>>>,
}

impl Tokens {
    pub(super) fn new(client: Client, clock: Clock, rng: Rng) -> Self {
        Self { client, clock, rng, all: Mutex::default(), asking: Mutex::default() }
    }

    /// A token of the Pod's service account.
    ///
    /// # Errors
    /// The API server's, unless an older token is still good.
    pub(super) async fn get(&self, pod: &Pod, audience: Option<&str>, seconds: i64) -> Result<String, ApiError> {
        let m = &pod.metadata;
        let uid = m.uid.clone().unwrap_or_default();
        let account =
            spec::pod_spec(pod).service_account_name.as_deref().filter(|a| !a.is_empty()).unwrap_or("default");
        let key = (uid.clone(), format!("{account}/{}/{seconds}", audience.unwrap_or_default()));
        let turn = self.asking.lock().entry(key.clone()).or_default().clone();
        let _turn = turn.lock().await;
        let now = self.clock.wall();
        let old = self.all.lock().get(&key).map(|t| (t.text.clone(), t.renew_at));
        if let Some((text, renew_at)) = &old
            && now < *renew_at
        {
            return Ok(text.clone());
        }
        let audiences: Vec<&str> = audience.filter(|a| !a.is_empty()).into_iter().collect();
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {
                "audiences": audiences, "expirationSeconds": seconds,
                "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": m.name, "uid": uid},
            },
        });
        let accounts = self.client.namespaced::<ServiceAccount>(m.namespace.as_deref().unwrap_or_default());
        let answer = match (accounts.create_sub(account, "token", body).await, old) {
            (Ok(a), _) => a,
            (Err(_), Some((text, _))) => return Ok(text),
            (Err(e), None) => return Err(e),
        };
        let text = answer.str_at(&["status", "token"]).unwrap_or_default().to_owned();
        let expires = answer.str_at(&["status", "expirationTimestamp"]).and_then(|t| t.parse().ok());
        let life = expires.map_or(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)), |e| backoff::since(e, now));
        let age = life.mul_f64(0.8).min(MAX_AGE).saturating_sub(Duration::from_millis(self.rng.below(JITTER_MS)));
        self.all.lock().insert(key, Token { text: text.clone(), renew_at: backoff::plus(now, age) });
        Ok(text)
    }

    /// Forgets a Pod's tokens.
    pub(super) fn forget(&self, uid: &str) {
        self.all.lock().retain(|(u, _), _| u != uid);
        self.asking.lock().retain(|(u, _), _| u != uid);
    }
}
