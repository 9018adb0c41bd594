//! `image load|push`.

use std::process::ExitCode;

use anyhow::Result;
use podlab_testbed::Cluster;

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
        ImageAction::Push { archive, reference, name } => {
            Cluster::attach(&name.name)?.push_image(&archive, &reference)?;
            say!("pushed {reference}");
        }
    }
    Ok(ExitCode::SUCCESS)
}
