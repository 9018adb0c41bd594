//! A pull: resolve, check, download, unpack, record. The same image pulled twice at once is downloaded once.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use http::{StatusCode, header};
use http_body_util::BodyExt;
use podlab_clock::Clock;
use tokio::sync::{Mutex, mpsc};

use super::{
    Credentials, ImageError, ImageRecord, Reference, Store,
    auth::Challenge,
    http::{Http, Reply},
    manifest::{ACCEPT, ConfigFile, Descriptor, Manifest},
    store::{chain_ids, digest_of},
    unpack::{ChannelReader, LayerCheck, unpack_layer},
};
use crate::config::RegistryConfig;

const MAX_MANIFEST: usize = 4 << 20;
const MAX_CONFIG: usize = 8 << 20;
const MAX_TOKEN: usize = 1 << 20;
/// A layer from which nothing comes for this long is given up.
const STALL: Duration = Duration::from_secs(300);

/// Pulls images into a store.
#[derive(Debug)]
pub struct Puller {
    store: Arc<Store>,
    http: Http,
    clock: Clock,
    /// One lock a layer (chain id) or image being fetched.
    busy: parking_lot::Mutex<BTreeMap<String, Arc<Mutex<()>>>>,
}

/// One pull's way to talk to one repository.
struct Session<'p> {
    puller: &'p Puller,
    base: String,
    credentials: Credentials,
    authorization: parking_lot::Mutex<Option<String>>,
}

impl Puller {
    /// A puller for `store`.
    pub fn new(store: Arc<Store>, registries: RegistryConfig, clock: Clock) -> Self {
        Self { store, http: Http::new(registries, clock), clock, busy: parking_lot::Mutex::default() }
    }

    /// Pulls an image and records it under the name it was asked for. Dropping the future abandons the pull; content
    /// that is not complete is never used.
    ///
    /// # Errors
    /// [`ImageError::Pull`] around what happened.
    pub async fn pull(&self, reference: &Reference, credentials: Credentials) -> Result<Arc<ImageRecord>, ImageError> {
        let image = reference.to_string();
        self.pull_inner(reference, credentials).await.map_err(|e| ImageError::Pull { image, source: Box::new(e) })
    }

    async fn pull_inner(
        &self,
        reference: &Reference,
        credentials: Credentials,
    ) -> Result<Arc<ImageRecord>, ImageError> {
        let host = if reference.domain == "docker.io" { "registry-1.docker.io" } else { &reference.domain };
        let base = format!("{}://{host}/v2/{}", self.http.scheme(host), reference.path);
        let authorization =
            (!credentials.registry_token.is_empty()).then(|| format!("Bearer {}", credentials.registry_token));
        let session = Session { puller: self, base, credentials, authorization: authorization.into() };

        let resolve = |e| ImageError::Resolve { source: Box::new(e) };
        let (digest, manifest) = session.resolve(reference).await.map_err(resolve)?;
        let (Some(config), Some(layers)) = (&manifest.config, &manifest.layers) else {
            return Err(ImageError::Malformed("the manifest has no config or no layers".into()));
        };
        if let Some(present) = self.store.get(&config.digest).filter(|i| i.id == config.digest) {
            return self.record((*present).clone(), reference, &digest);
        }
        let json = session.blob(config, MAX_CONFIG).await?;
        let file = ConfigFile::parse(&json)?;
        if file.rootfs.diff_ids.len() != layers.len() {
            return Err(ImageError::Malformed("the config and the manifest differ in their number of layers".into()));
        }
        let chain = chain_ids(&file.rootfs.diff_ids);
        for (at, layer) in layers.iter().enumerate() {
            session.layer(layer, &file.rootfs.diff_ids[at], &chain[..=at]).await?;
        }
        let size = config.size + layers.iter().map(|l| l.size).sum::<u64>();
        let record = ImageRecord {
            id: config.digest.clone(),
            size,
            layers: chain,
            config: file.config,
            ..ImageRecord::default()
        };
        self.record(record, reference, &digest)
    }

    fn record(
        &self,
        mut record: ImageRecord,
        reference: &Reference,
        digest: &str,
    ) -> Result<Arc<ImageRecord>, ImageError> {
        if reference.digest.is_none()
            && let Some(tag) = &reference.tag
        {
            record.tags.insert(format!("{}:{tag}", reference.name()));
        }
        record.digests.insert(format!("{}@{digest}", reference.name()));
        self.store.put(record)
    }

    fn lock(&self, key: &str) -> Arc<Mutex<()>> {
        let mut busy = self.busy.lock();
        busy.retain(|_, l| Arc::strong_count(l) > 1);
        Arc::clone(busy.entry(key.to_owned()).or_default())
    }
}

impl Session<'_> {
    /// The digest that the name stands for, and the manifest for this machine.
    async fn resolve(&self, reference: &Reference) -> Result<(String, Manifest), ImageError> {
        let shown = reference.to_string();
        let bytes = self.manifest(reference.target(), &shown).await?;
        let digest = digest_of(&bytes);
        check(reference.digest.as_deref().unwrap_or(&digest), &digest)?;
        let mut manifest = Manifest::parse(&bytes)?;
        for _ in 0..2 {
            if manifest.manifests.is_none() {
                break;
            }
            let here = manifest.for_here().ok_or(ImageError::Platform)?.digest.clone();
            let bytes = self.manifest(&here, &shown).await?;
            check(&here, &digest_of(&bytes))?;
            manifest = Manifest::parse(&bytes)?;
        }
        Ok((digest, manifest))
    }

    async fn manifest(&self, target: &str, shown: &str) -> Result<bytes::Bytes, ImageError> {
        let reply = self.get(&format!("manifests/{target}"), ACCEPT).await?;
        match reply.status() {
            StatusCode::OK => reply.bytes(MAX_MANIFEST).await,
            StatusCode::NOT_FOUND => Err(ImageError::NotFound(shown.to_owned())),
            _ => Err(reply.unexpected()),
        }
    }

    /// A small blob, checked.
    async fn blob(&self, what: &Descriptor, limit: usize) -> Result<bytes::Bytes, ImageError> {
        let reply = self.get(&format!("blobs/{}", what.digest), "*/*").await?;
        if reply.status() != StatusCode::OK {
            return Err(reply.unexpected());
        }
        let bytes = reply.bytes(limit).await?;
        check(&what.digest, &digest_of(&bytes))?;
        Ok(bytes)
    }

    /// One layer, unless it is there. `chain` ends with its own id.
    async fn layer(&self, what: &Descriptor, diff_id: &str, chain: &[String]) -> Result<(), ImageError> {
        let (store, Some((id, below))) = (&self.puller.store, chain.split_last()) else { return Ok(()) };
        let lock = self.puller.lock(id);
        let _guard = lock.lock().await;
        if store.layer_dir(id).is_dir() {
            return Ok(());
        }
        let reply = self.get(&format!("blobs/{}", what.digest), "*/*").await?;
        if reply.status() != StatusCode::OK {
            return Err(reply.unexpected());
        }
        let parents = below.iter().rev().map(|c| store.layer_dir(c)).collect();
        let scratch = store.scratch()?;
        let check = LayerCheck {
            digest: Some(what.digest.clone()),
            diff_id: diff_id.to_owned(),
            size: Some(what.size).filter(|s| *s > 0),
        };
        let result = self.stream(reply, &scratch, parents, check).await;
        if result.is_err() {
            let _ = std::fs::remove_dir_all(&scratch);
        }
        result?;
        store.commit_layer(&scratch, id)
    }

    /// Feeds a body to the unpacker, which runs where blocking is fine.
    async fn stream(
        &self,
        reply: Reply,
        scratch: &Path,
        parents: Vec<std::path::PathBuf>,
        check: LayerCheck,
    ) -> Result<(), ImageError> {
        let (tx, rx) = mpsc::channel(16);
        let target = scratch.join("fs");
        let unpack =
            tokio::task::spawn_blocking(move || unpack_layer(ChannelReader::new(rx), &target, &parents, &check));
        let url = reply.url.clone();
        let mut reply = reply;
        let fail = |reason: String| ImageError::Request { method: "Get", url: url.clone(), reason };
        let feed = async {
            loop {
                let frame = self.puller.clock.timeout(STALL, reply.response.body_mut().frame()).await;
                let frame = frame.ok_or_else(|| fail("no progress for 5 minutes".into()))?;
                let Some(frame) = frame else { return Ok(()) };
                let frame = frame.map_err(|e| fail(format!("unexpected EOF: {e}")))?;
                if let Ok(data) = frame.into_data()
                    && tx.send(Ok(data)).await.is_err()
                {
                    return Ok(());
                }
            }
        };
        let fed: Result<(), ImageError> = feed.await;
        if let Err(e) = &fed {
            // The unpacker must not take a broken stream for a whole one.
            let _ = tx.send(Err(std::io::Error::other(e.to_string()))).await;
        }
        drop(tx);
        let unpacked = unpack.await.unwrap_or_else(|e| Err(ImageError::Malformed(format!("unpacking failed: {e}"))));
        fed.and(unpacked)
    }

    /// GET below the repository, answering a challenge once.
    async fn get(&self, path: &str, accept: &str) -> Result<Reply, ImageError> {
        let url = format!("{}/{path}", self.base);
        let known = self.authorization.lock().clone();
        let reply = self.puller.http.get(&url, accept, known.as_deref()).await?;
        if reply.status() != StatusCode::UNAUTHORIZED {
            return Ok(reply);
        }
        let challenges: Vec<Challenge> = reply
            .response
            .headers()
            .get_all(header::WWW_AUTHENTICATE)
            .iter()
            .filter_map(|h| h.to_str().ok().and_then(Challenge::parse))
            .collect();
        drop(reply);
        let answer = self.answer(&challenges).await?;
        let reply = self.puller.http.get(&url, accept, Some(&answer)).await?;
        if matches!(reply.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Err(ImageError::Denied("authorization failed: unauthorized: authentication required".into()));
        }
        *self.authorization.lock() = Some(answer);
        Ok(reply)
    }

    async fn answer(&self, challenges: &[Challenge]) -> Result<String, ImageError> {
        for challenge in challenges {
            match challenge {
                Challenge::Bearer { realm, service, scope } => {
                    return self.token(realm, service, scope).await.map(|t| format!("Bearer {t}"));
                }
                Challenge::Basic => {
                    if let Some(basic) = self.credentials.basic() {
                        return Ok(basic);
                    }
                }
            }
        }
        Err(ImageError::Denied("authorization failed: no basic auth credentials".into()))
    }

    async fn token(&self, realm: &str, service: &str, scope: &str) -> Result<String, ImageError> {
        let reply = if self.credentials.identity_token.is_empty() {
            let url = format!(
                "{realm}{}service={}&scope={}",
                if realm.contains('?') { '&' } else { '?' },
                escape(service),
                escape(scope)
            );
            self.puller.http.get(&url, "application/json", self.credentials.basic().as_deref()).await?
        } else {
            let token = escape(&self.credentials.identity_token);
            let form = format!(
                "grant_type=refresh_token&client_id=podlab&service={}&scope={}&refresh_token={token}",
                escape(service),
                escape(scope)
            );
            self.puller.http.post_form(realm, form).await?
        };
        match reply.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(ImageError::Denied(format!(
                    "authorization failed: failed to fetch oauth token: {}",
                    reply.unexpected()
                )));
            }
            _ => return Err(reply.unexpected()),
        }
        let json: serde_json::Value = serde_json::from_slice(&reply.bytes(MAX_TOKEN).await?)
            .map_err(|e| ImageError::Malformed(format!("unreadable token: {e}")))?;
        let token = json.get("token").or_else(|| json.get("access_token")).and_then(serde_json::Value::as_str);
        token.map(ToOwned::to_owned).ok_or_else(|| ImageError::Malformed("the token endpoint gave no token".into()))
    }
}

fn check(want: &str, got: &str) -> Result<(), ImageError> {
    if want == got { Ok(()) } else { Err(ImageError::Digest { got: got.to_owned(), want: want.to_owned() }) }
}

fn escape(s: &str) -> String {
    s.bytes().fold(String::new(), |mut out, b| {
        if b.is_ascii_alphanumeric() || b"-._~/:,".contains(&b) {
            out.push(char::from(b))
        } else {
            out.push_str(&format!("%{b:02X}"))
        }
        out
    })
}
