//! The engine: that it answers, that it has our image, and that nothing of dead runs is left in it.

use std::{collections::HashMap, sync::Arc};

use bollard::{
    Docker,
    query_parameters::{
        CreateImageOptionsBuilder, ListContainersOptionsBuilder, ListImagesOptionsBuilder,
        RemoveContainerOptionsBuilder, RemoveImageOptionsBuilder,
    },
};
use bytes::Bytes;
use futures::StreamExt;

use crate::{ContainerError, Parts, chain};

/// The label of our containers; its value says which process made one.
pub(crate) const OWNER_LABEL: &str = "dev.podlab.owner";
/// The label of our images.
const IMAGE_LABEL: &str = "dev.podlab.image";
/// Repository of our images.
pub(crate) const REPOSITORY: &str = "podlab/self";
/// Where an engine listens when nobody says otherwise.
const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";

/// A process as others can ask for it.
#[derive(Clone)]
pub struct Owner {
    /// What stands on the containers it makes.
    pub name: String,
    /// Whether the process of such a name still lives.
    pub lives: Arc<dyn Fn(&str) -> bool + Send + Sync>,
}

/// A Docker engine that answers and has our image.
#[derive(Clone)]
pub struct Engine {
    pub(crate) docker: Docker,
    pub(crate) tag: String,
    pub(crate) owner: Owner,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Docker engine with {REPOSITORY}:{}", self.tag)
    }
}

fn broken(e: &bollard::errors::Error) -> ContainerError {
    ContainerError::Image(chain(e))
}

impl Engine {
    /// Finds the engine, removes what dead runs left in it, and makes the image of `parts` if it is not there yet.
    ///
    /// # Errors
    /// [`ContainerError::Remote`], [`ContainerError::Engine`], [`ContainerError::Image`].
    pub async fn prepare(parts: &Parts, owner: Owner) -> Result<Self, ContainerError> {
        let at = std::env::var("DOCKER_HOST").ok().filter(|h| !h.is_empty()).unwrap_or_else(|| DEFAULT_HOST.to_owned());
        if !at.starts_with("unix://") {
            return Err(ContainerError::Remote(at));
        }
        let dead = |e: &bollard::errors::Error| ContainerError::Engine { at: at.clone(), why: chain(e) };
        let docker = Docker::connect_with_unix_defaults().map_err(|e| dead(&e))?;
        let docker = docker.negotiate_version().await.map_err(|e| dead(&e))?;
        let tag = parts.digest().map_err(|e| ContainerError::Image(e.to_string()))?;
        let engine = Self { docker, tag, owner };
        engine.sweep().await.map_err(|e| dead(&e))?;
        engine.import(parts).await?;
        Ok(engine)
    }

    /// Removes containers whose makers are dead; returns their names.
    async fn sweep(&self) -> Result<Vec<String>, bollard::errors::Error> {
        let ours = HashMap::from([("label", vec![OWNER_LABEL])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&ours).build();
        let mut gone = Vec::new();
        for container in self.docker.list_containers(Some(options)).await? {
            let owner =
                container.labels.as_ref().and_then(|l| l.get(OWNER_LABEL)).map(String::as_str).unwrap_or_default();
            let Some(id) = container.id.filter(|_| !(self.owner.lives)(owner)) else { continue };
            self.remove(&id).await?;
            gone.push(id);
        }
        Ok(gone)
    }

    /// Removes a container with what it runs; one that is gone already is no error.
    pub(crate) async fn remove(&self, id: &str) -> Result<(), bollard::errors::Error> {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        match self.docker.remove_container(id, Some(options)).await {
            // 409: somebody else is removing it.
            Err(bollard::errors::Error::DockerResponseServerError { status_code: 404 | 409, .. }) => Ok(()),
            other => other,
        }
    }

    async fn import(&self, parts: &Parts) -> Result<(), ContainerError> {
        let name = format!("{REPOSITORY}:{}", self.tag);
        if self.docker.inspect_image(&name).await.is_ok() {
            return Ok(());
        }
        let mut tar = Vec::new();
        parts.write_tar(&mut tar).map_err(|e| ContainerError::Image(e.to_string()))?;
        let options = CreateImageOptionsBuilder::default()
            .from_src("-")
            .repo(REPOSITORY)
            .tag(&self.tag)
            .changes(vec![format!("LABEL {IMAGE_LABEL}=1"), "ENV PODLAB_STATE=/podlab/state".to_owned()])
            .build();
        let mut progress = self.docker.create_image(Some(options), Some(bollard::body_full(Bytes::from(tar))), None);
        while let Some(step) = progress.next().await {
            step.map_err(|e| broken(&e))?;
        }
        self.docker.inspect_image(&name).await.map_err(|e| broken(&e))?;
        self.forget_older(&name).await;
        Ok(())
    }

    /// Images of programs that were built over since: each is as large as the program. One that is in use stays.
    async fn forget_older(&self, name: &str) {
        let ours = HashMap::from([("label", vec![IMAGE_LABEL])]);
        let options = ListImagesOptionsBuilder::default().filters(&ours).build();
        let Ok(images) = self.docker.list_images(Some(options)).await else { return };
        for old in images.iter().flat_map(|i| &i.repo_tags).filter(|t| t.starts_with(REPOSITORY) && *t != name) {
            // A container that uses it keeps it, and the next import tries again.
            let options = RemoveImageOptionsBuilder::default().build();
            let _ = self.docker.remove_image(old, Some(options), None).await;
        }
    }
}
