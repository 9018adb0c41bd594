//! Where trials are played, from the command line's words.

use std::{path::Path, sync::Arc};

use anyhow::{Context, Result, anyhow, bail};
use podlab_runner::place::{ContainerPlace, KindOptions, KindPlace, KubeconfigOptions, KubeconfigPlace, Place};

use super::image::write_test_image;
use crate::cli::{Backend, ClusterAt};

/// Connects to the place. `out` takes the files a backend needs for itself.
pub(crate) async fn connect(backend: Backend, at: &ClusterAt, out: &Path) -> Result<Place> {
    Ok(match backend {
        Backend::Embedded => Place::Embedded,
        Backend::Container => Place::Container(Arc::new(ContainerPlace::connect().await.map_err(|e| anyhow!(e))?)),
        Backend::Kubeconfig => {
            let Some(file) = at.kubeconfig.clone() else {
                bail!("--backend kubeconfig needs --kubeconfig FILE, or $KUBECONFIG");
            };
            let options =
                KubeconfigOptions { file, context: at.context.clone(), images: at.image.clone(), has: at.has.clone() };
            Place::Kubeconfig(Arc::new(KubeconfigPlace::connect(&options).await.map_err(|e| anyhow!(e))?))
        }
        Backend::Kind => {
            std::fs::create_dir_all(out).with_context(|| format!("make {}", out.display()))?;
            let archive = out.join("testimage.tar");
            write_test_image(&archive, "registry.test/testimage:1")?;
            let options = KindOptions {
                dir: out.to_owned(),
                node_image: at.node_image.clone(),
                nodes: at.kind_nodes,
                archives: vec![archive],
                images: at.image.clone(),
            };
            Place::Kind(Arc::new(KindPlace::create(&options).await?))
        }
    })
}
