//! `image load|push|archive`.

use std::{path::Path, process::ExitCode};

use anyhow::{Context, Result};
use podlab_testbed::Cluster;
use podlab_testimage::Image;

use crate::cli::ImageAction;
use crate::out::say;

pub(crate) fn act(action: ImageAction) -> Result<ExitCode> {
    match action {
        ImageAction::Load { archives, name } => {
            let cluster = Cluster::attach(&name.name)?;
            for image in cluster.load_images(&archives)? {
                say!("loaded {image}");
            }
        }
        ImageAction::Archive { file, name } => {
            write_test_image(&file, &name)?;
            say!("wrote {name} to {}", file.display());
        }
        ImageAction::Push { archive, reference, name } => {
            Cluster::attach(&name.name)?.push_image(&archive, &reference)?;
            say!("pushed {reference}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the test image as an archive that `docker load`, `kind load` and `ctr images import` take.
pub(crate) fn write_test_image(file: &Path, name: &str) -> Result<()> {
    Image::testimage().write_archive(file, name).with_context(|| format!("write {}", file.display()))
}
