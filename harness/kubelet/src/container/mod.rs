//! From a Pod's spec to CRI configuration: sandboxes, containers, their environment, mounts, identity and limits.

mod config;
pub(crate) mod dns;
pub(crate) mod downward;
mod env;
mod expand;
mod hosts;
mod mounts;
mod resources;
mod sandbox;
pub(crate) mod security;

pub(crate) use config::{ContainerInputs, container_config, spec_hash};
pub(crate) use dns::{DnsWarning, NodeDns, dns_config};
pub(crate) use downward::{FieldError, pod_field, resource_field};
pub(crate) use env::{environment, expand_static};
pub(crate) use hosts::hosts_file;
pub(crate) use mounts::MountSource;
pub(crate) use resources::linux_resources;
pub(crate) use sandbox::{QOS_CGROUPS, hostname_and_domain, pod_cgroup_path, qos_cgroup_path, sandbox_config};
