//! A cluster of upstream's own components, made by the `kind` program for this run and deleted after it. What is played
//! there is played as on any cluster given by a kubeconfig.

use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::{ImageRule, KubeconfigOptions, KubeconfigPlace, owner};

/// Beginning of the names of our clusters; what follows is the pid of the runner and when it began.
const PREFIX: &str = "podlab-";

/// How to make the cluster.
#[derive(Debug, Clone, Default)]
pub struct KindOptions {
    /// Folder for kubeconfig and configuration; it must be there.
    pub dir: PathBuf,
    /// Image of the nodes; kind's own choice when absent.
    pub node_image: Option<String>,
    /// Number of nodes.
    pub nodes: u8,
    /// Archives of images to put on every node.
    pub archives: Vec<PathBuf>,
    /// What stands there for images of the scenarios.
    pub images: Vec<ImageRule>,
}

/// A cluster that kind made.
#[derive(Debug)]
pub struct KindPlace {
    name: String,
    kubeconfig: PathBuf,
    place: KubeconfigPlace,
}

/// Why kind could not do what it was asked, in one sentence where the cause is a known one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KindError {
    /// No such program.
    #[error("the program kind is not on PATH; `go install sigs.k8s.io/kind@latest` gets it")]
    Missing,
    /// No Docker engine.
    #[error("kind finds no Docker engine that answers ({0}); start one, or name it by DOCKER_HOST")]
    NoEngine(String),
    /// No image of a node.
    #[error("kind cannot get its node image ({0}); `docker load` one and name it by --node-image")]
    NoNodeImage(String),
    /// The program `docker` is missing.
    #[error("kind needs the program docker on PATH")]
    NoDocker,
    /// Something else.
    #[error("kind {what}: {why}")]
    Other {
        /// What was asked of it.
        what: String,
        /// The end of what it said.
        why: String,
    },
    /// The cluster it made cannot be used.
    #[error("the cluster kind made: {0}")]
    Cluster(String),
    /// A file could not be written.
    #[error("{0}")]
    File(String),
}

/// What the program's complaint means.
fn cause(what: &str, said: &str) -> KindError {
    let line = |found: &str| {
        let line = said.lines().find(|l| l.contains(found)).unwrap_or(found).trim();
        line.trim_start_matches("Command Output: ").trim_start_matches("ERROR: failed to create cluster: ").to_owned()
    };
    let any = |words: &[&str]| words.iter().find(|w| said.contains(**w)).map(|w| line(w));
    if any(&["executable file not found"]).is_some() {
        return KindError::NoDocker;
    }
    if let Some(line) = any(&[
        "Cannot connect to the Docker daemon",
        "Is the docker daemon running",
        "failed to connect to the docker API",
    ]) {
        return KindError::NoEngine(line);
    }
    if let Some(line) = any(&["failed to pull image", "No such image", "pull access denied"]) {
        return KindError::NoNodeImage(line);
    }
    let lines: Vec<&str> = said.lines().filter(|l| !l.trim().is_empty()).collect();
    KindError::Other { what: what.to_owned(), why: lines[lines.len().saturating_sub(3)..].join("; ") }
}

/// Runs the program; its standard output.
async fn kind(arguments: &[&str]) -> Result<String, KindError> {
    let run = Command::new("kind").args(arguments).kill_on_drop(true).output().await;
    let output = match run {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(KindError::Missing),
        Err(e) => return Err(KindError::Other { what: arguments.join(" "), why: e.to_string() }),
        Ok(output) => output,
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(cause(&arguments.join(" "), &(text(&output.stdout) + &text(&output.stderr))))
}

/// One control plane that takes Pods, and workers up to the number of nodes.
fn configuration(nodes: u8) -> String {
    let workers = "- role: worker\n".repeat(usize::from(nodes.saturating_sub(1)));
    format!("kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes:\n- role: control-plane\n{workers}")
}

impl KindPlace {
    /// Removes clusters of dead runs, makes a new one, puts the images on its nodes and connects to it.
    ///
    /// # Errors
    /// [`KindError`]. What was made until then is deleted.
    pub async fn create(options: &KindOptions) -> Result<Self, KindError> {
        for dead in kind(&["get", "clusters"]).await?.lines().filter(|c| is_dead(c)) {
            kind(&["delete", "cluster", "--name", dead]).await?;
        }
        let owner = owner::this();
        let words: Vec<&str> = owner.split(' ').skip(1).collect();
        let name = format!("{PREFIX}{}", words.join("-"));
        let (kubeconfig, config) = (options.dir.join("kind.kubeconfig"), options.dir.join("kind.yaml"));
        std::fs::write(&config, configuration(options.nodes))
            .map_err(|e| KindError::File(format!("{}: {e}", config.display())))?;
        let (kubeconfig_text, config_text) = (kubeconfig.display().to_string(), config.display().to_string());
        let mut create =
            vec!["create", "cluster", "--name", &name, "--kubeconfig", &kubeconfig_text, "--config", &config_text];
        create.extend(["--wait", "180s"]);
        if let Some(image) = &options.node_image {
            create.extend(["--image", image]);
        }
        let made = async {
            kind(&create).await?;
            for archive in &options.archives {
                kind(&["load", "image-archive", &archive.display().to_string(), "--name", &name]).await?;
            }
            let options = KubeconfigOptions {
                file: kubeconfig.clone(),
                images: options.images.clone(),
                ..KubeconfigOptions::default()
            };
            KubeconfigPlace::connect(&options).await.map_err(KindError::Cluster)
        };
        match made.await {
            Ok(place) => Ok(Self { name, kubeconfig, place }),
            Err(e) => {
                // A cluster that came up halfway is no use to anybody; the first trouble is the one to tell of.
                let _ = delete(&name, &kubeconfig).await;
                Err(e)
            }
        }
    }

    /// The cluster as any other.
    pub fn cluster(&self) -> &KubeconfigPlace {
        &self.place
    }

    /// Deletes the cluster.
    pub(crate) async fn end(&self) {
        // The next run deletes it when this one cannot.
        let _ = delete(&self.name, &self.kubeconfig).await;
    }
}

async fn delete(name: &str, kubeconfig: &Path) -> Result<(), KindError> {
    let done = kind(&["delete", "cluster", "--name", name, "--kubeconfig", &kubeconfig.display().to_string()]).await;
    let _ = std::fs::remove_file(kubeconfig);
    done.map(drop)
}

/// Whether a cluster is one of ours whose runner has ended.
fn is_dead(cluster: &str) -> bool {
    let Some((pid, began)) = cluster.trim().strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    let number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let this = owner::this();
    let host = this.split(' ').next().unwrap_or_default();
    number(pid) && number(began) && owner::lives(&format!("{host} {pid} {began}")) == Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kind_complains_of_is_said_in_one_sentence() {
        let engine = "ERROR: failed to list clusters: command \"docker ps -a\" failed with error: exit status 1\n\
                      Command Output: Cannot connect to the Docker daemon at unix:///x.sock. Is the docker daemon running?\n";
        assert!(matches!(cause("get clusters", engine), KindError::NoEngine(why) if why.contains("unix:///x.sock")));
        let image = "Creating cluster \"a\" ...\n ✗ Ensuring node image (kindest/node:v1.36.1)\n\
                     ERROR: failed to create cluster: failed to pull image \"kindest/node:v1.36.1\": command failed\n";
        assert!(matches!(cause("create", image), KindError::NoNodeImage(why) if why.contains("kindest/node:v1.36.1")));
        assert_eq!(cause("x", "ERROR: exec: \"docker\": executable file not found in $PATH"), KindError::NoDocker);
        let other = cause("create", "a\nb\n\nc\nd\n");
        assert_eq!(other.to_string(), "kind create: b; c; d");
    }

    #[test]
    fn only_clusters_of_dead_runs_of_ours_are_deleted() {
        let this = owner::this();
        let words: Vec<&str> = this.split(' ').collect();
        assert!(!is_dead(&format!("podlab-{}-{}", words[1], words[2])), "this process lives");
        assert!(is_dead(&format!("podlab-{}-1", words[1])), "another process had this pid");
        for foreign in ["kind", "podlab-", "podlab-mine", "podlab-1", "podlab-x-y", "podlab-1-"] {
            assert!(!is_dead(foreign), "{foreign}");
        }
    }

    #[test]
    fn a_cluster_of_k_nodes_has_one_control_plane_and_the_rest_workers() {
        assert_eq!(configuration(1).matches("role").count(), 1);
        assert_eq!(configuration(3).matches("role: worker").count(), 2);
    }
}
