//! Clusters: the one crate that knows all components. It boots them in a capsule of namespaces, hands them their
//! clocks, randomness, transports and sockets, and acts on them from outside.
//!
//! Call [`early_main`] first thing in `main`: it answers when this program is exec'ed as a CNI plugin, and forks the
//! [`Zygote`] that capsules are made from.
#![deny(missing_docs)]
#![deny(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "they panic when a log file lies on a full disk: telemetry::say"
)]

mod api_tap;
mod capsule;
mod cgroup;
mod cluster;
mod cost;
mod effects;
mod holdings;
mod host;
mod inside;
mod node;
mod plane;
mod process;
pub mod spec;
mod state;
mod telemetry;
pub mod world;
mod zygote;

pub use capsule::control::Control;
pub use cluster::{Cluster, ClusterError, ClusterInfo, copy_kubeconfig, takes_pods};
pub use cost::Cost;
pub use holdings::{Held, Holding};
pub use host::{Fingerprint, Lack, diagnose};
pub use inside::NodeInside;
pub use plane::LocalApi;
pub use podlab_api::{parse_milli, parse_quantity};
pub use podlab_cri::init::AgentCommand;
pub use podlab_kubelet::ConfigFileError;
pub use spec::{ClusterSpec, Durability, Planted, Tapes, Tracing};
pub use state::{StateDir, StateError, collect_garbage, root as state_root};
pub use zygote::Zygote;

/// Must run before anything else of a program that boots clusters. Does not return when the program was exec'ed as a
/// CNI plugin.
///
/// # Errors
/// When the zygote cannot be forked.
pub fn early_main() -> std::io::Result<Zygote> {
    answer_as_cni_plugin();
    Zygote::start()
}

/// Tries a cluster's configuration of node agents; returns the names of fields that change nothing here.
///
/// # Errors
/// What is wrong with it.
pub fn check_kubelet(spec: &ClusterSpec) -> Result<Vec<&'static str>, ConfigFileError> {
    node::configure(&mut podlab_kubelet::KubeletConfig::new("", Vec::new()), spec)
}

/// Runs and exits when this program was exec'ed under the name of a bundled CNI plugin.
pub fn answer_as_cni_plugin() {
    let called = std::env::args_os().next().map(std::path::PathBuf::from);
    let name = called.as_deref().and_then(|p| p.file_name()).and_then(|n| n.to_str()).unwrap_or_default();
    if podlab_cni::plugins::NAMES.contains(&name) && std::env::var_os("CNI_COMMAND").is_some() {
        std::process::exit(podlab_cni::skel::main(name));
    }
}
