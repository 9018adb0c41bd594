//! What every namespace gets: the `default` ServiceAccount and the `kube-root-ca.crt` ConfigMap.
//! Source: k/k pkg/controller/serviceaccount, pkg/controller/certificates/rootcacertpublisher.

use async_trait::async_trait;
use podlab_api::{
    ApiError,
    core::{ConfigMap, Namespace, ServiceAccount},
    meta::ObjectMeta,
};
use podlab_client::Client;

use crate::work::{Again, Key, Reconcile};

const ROOT_CA: &str = "kube-root-ca.crt";

/// The controller.
pub(crate) struct Seeder {
    pub(crate) client: Client,
    /// The cluster's CA, PEM.
    pub(crate) ca: String,
}

#[async_trait]
impl Reconcile for Seeder {
    fn name(&self) -> &'static str {
        "namespace-seed"
    }

    async fn reconcile(&self, (_, name): &Key) -> Result<Again, ApiError> {
        let Some(namespace) = self.client.all::<Namespace>().get_opt(name).await? else { return Ok(Again::OnChange) };
        if namespace.metadata.deletion_timestamp.is_some() {
            return Ok(Again::OnChange);
        }
        let accounts = self.client.namespaced::<ServiceAccount>(name);
        if accounts.get_opt("default").await?.is_none() {
            let metadata = ObjectMeta { name: Some("default".into()), ..ObjectMeta::default() };
            ignore_existing(accounts.create(&ServiceAccount { metadata, ..ServiceAccount::default() }).await)?;
        }
        let maps = self.client.namespaced::<ConfigMap>(name);
        let data = [("ca.crt".to_owned(), self.ca.clone())].into();
        match maps.get_opt(ROOT_CA).await? {
            None => {
                let note = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the \
                            internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";
                let annotations = Some([("kubernetes.io/description".to_owned(), note.to_owned())].into());
                let metadata = ObjectMeta { name: Some(ROOT_CA.into()), annotations, ..ObjectMeta::default() };
                ignore_existing(maps.create(&ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }).await)?;
            }
            Some(map) if map.data.as_ref() != Some(&data) => {
                maps.update(&ConfigMap { data: Some(data), ..map }).await?;
            }
            Some(_) => {}
        }
        Ok(Again::OnChange)
    }
}

/// Somebody else was faster, or the namespace began to end: both are fine.
fn ignore_existing<T>(result: Result<T, ApiError>) -> Result<(), ApiError> {
    match result {
        Err(e) if !e.is_already_exists() && e.reason != podlab_api::Reason::Forbidden => Err(e),
        _ => Ok(()),
    }
}
