//! A container's environment. Source: k/k pkg/kubelet/kubelet_pods.go makeEnvironmentVariables, pkg/kubelet/envvars.

use std::collections::BTreeMap;

use podlab_api::core::{ConfigMap, Container, EnvVarSource, Pod, Secret, Service};

use super::{
    config::ConfigError,
    downward::{Addresses, Allocatable},
    expand::expand,
    pod_field, resource_field,
};
use crate::objects::Objects;

/// Service of the API server, offered to every Pod.
const API_SERVICE: (&str, &str) = ("default", "kubernetes");

/// What references in an environment resolve against.
pub(crate) struct EnvInputs<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a Container,
    pub(crate) addresses: Addresses<'a>,
    pub(crate) allocatable: Allocatable,
    pub(crate) services: Vec<std::sync::Arc<Service>>,
}

/// The environment, sorted by name, and a lookup for expanding commands.
pub(crate) async fn environment(
    inputs: &EnvInputs<'_>,
    objects: &Objects,
) -> Result<BTreeMap<String, String>, ConfigError> {
    let namespace = inputs.pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut services = service_variables(inputs);
    let mut own: BTreeMap<String, String> = BTreeMap::new();
    for from in inputs.container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        if let Some(r) = &from.config_map_ref
            && let Some(map) = found(objects.config_map(namespace, &r.name).await, r.optional)?
        {
            own.extend(map.data.iter().flatten().map(|(k, v)| (format!("{prefix}{k}"), v.clone())));
        }
        if let Some(r) = &from.secret_ref
            && let Some(secret) = found(objects.secret(namespace, &r.name).await, r.optional)?
        {
            own.extend(secret.data.iter().flatten().map(|(k, v)| (format!("{prefix}{k}"), utf8(&v.0))));
        }
    }
    for var in inputs.container.env.iter().flatten() {
        let value = match (&var.value, &var.value_from) {
            (Some(v), _) if !v.is_empty() => {
                let lookup = |n: &str| own.get(n).or_else(|| services.get(n)).cloned();
                expand(v, &lookup)
            }
            (_, Some(source)) => match resolve(inputs, source, namespace, objects).await? {
                Some(v) => v,
                None => continue,
            },
            _ => String::new(),
        };
        own.insert(var.name.clone(), value);
    }
    services.append(&mut own);
    Ok(services)
}

async fn resolve(
    inputs: &EnvInputs<'_>,
    source: &EnvVarSource,
    namespace: &str,
    objects: &Objects,
) -> Result<Option<String>, ConfigError> {
    if let Some(f) = &source.field_ref {
        return Ok(Some(pod_field(inputs.pod, &f.field_path, inputs.addresses)?));
    }
    if let Some(r) = &source.resource_field_ref {
        return Ok(Some(resource_field(inputs.pod, Some(inputs.container), r, inputs.allocatable)?));
    }
    if let Some(r) = &source.config_map_key_ref {
        let Some(map) = found(objects.config_map(namespace, &r.name).await, r.optional)? else { return Ok(None) };
        return key_of(config_value(&map, &r.key), r.optional, || ConfigError::Key {
            kind: "ConfigMap",
            key: r.key.clone(),
            object: format!("{namespace}/{}", r.name),
        });
    }
    if let Some(r) = &source.secret_key_ref {
        let Some(secret) = found(objects.secret(namespace, &r.name).await, r.optional)? else { return Ok(None) };
        return key_of(secret_value(&secret, &r.key), r.optional, || ConfigError::Key {
            kind: "Secret",
            key: r.key.clone(),
            object: format!("{namespace}/{}", r.name),
        });
    }
    Ok(Some(String::new()))
}

fn config_value(map: &ConfigMap, key: &str) -> Option<String> {
    map.data.as_ref()?.get(key).cloned()
}

fn secret_value(secret: &Secret, key: &str) -> Option<String> {
    secret.data.as_ref()?.get(key).map(|v| utf8(&v.0))
}

fn utf8(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An absent object is an error unless the reference is optional.
fn found<T>(result: Result<T, podlab_api::ApiError>, optional: Option<bool>) -> Result<Option<T>, ConfigError> {
    match result {
        Ok(v) => Ok(Some(v)),
        Err(e) if e.is_not_found() && optional == Some(true) => Ok(None),
        Err(e) => Err(ConfigError::Object(e)),
    }
}

fn key_of(
    value: Option<String>,
    optional: Option<bool>,
    error: impl FnOnce() -> ConfigError,
) -> Result<Option<String>, ConfigError> {
    match value {
        Some(v) => Ok(Some(v)),
        None if optional == Some(true) => Ok(None),
        None => Err(error()),
    }
}

/// Variables of the services a Pod can see.
fn service_variables(inputs: &EnvInputs<'_>) -> BTreeMap<String, String> {
    let namespace = inputs.pod.metadata.namespace.as_deref().unwrap_or_default();
    let links = podlab_lifecycle::spec::pod_spec(inputs.pod).enable_service_links.unwrap_or(true);
    let mut out = BTreeMap::new();
    let meta =
        |s: &Service| (s.metadata.namespace.clone().unwrap_or_default(), s.metadata.name.clone().unwrap_or_default());
    // The Pod's own namespace wins over `default/kubernetes`.
    let master = inputs.services.iter().filter(|s| meta(s) == (API_SERVICE.0.to_owned(), API_SERVICE.1.to_owned()));
    let own = inputs.services.iter().filter(|s| links && meta(s).0 == namespace);
    for service in master.chain(own) {
        variables_of(service, &mut out);
    }
    out
}

fn variables_of(service: &Service, out: &mut BTreeMap<String, String>) {
    let Some(spec) = &service.spec else { return };
    let Some(ip) = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None") else { return };
    let prefix = variable_name(service.metadata.name.as_deref().unwrap_or_default());
    let ports = spec.ports.as_deref().unwrap_or_default();
    out.insert(format!("{prefix}_SERVICE_HOST"), ip.to_owned());
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
    for (i, p) in ports.iter().enumerate() {
        if i == 0 {
            out.insert(format!("{prefix}_SERVICE_PORT"), p.port.to_string());
        }
        if let Some(name) = p.name.as_deref().filter(|n| !n.is_empty()) {
            out.insert(format!("{prefix}_SERVICE_PORT_{}", variable_name(name)), p.port.to_string());
        }
        let protocol = p.protocol.as_deref().unwrap_or("TCP");
        let url = format!("{}://{host}:{}", protocol.to_lowercase(), p.port);
        if i == 0 {
            out.insert(format!("{prefix}_PORT"), url.clone());
        }
        let link = format!("{prefix}_PORT_{}_{}", p.port, protocol.to_uppercase());
        out.insert(format!("{link}_PROTO"), protocol.to_lowercase());
        out.insert(format!("{link}_PORT"), p.port.to_string());
        out.insert(format!("{link}_ADDR"), ip.to_owned());
        out.insert(link, url);
    }
}

fn variable_name(s: &str) -> String {
    s.replace('-', "_").to_uppercase()
}

/// A command with only literal variables of the container expanded, as exec probes and hooks see them.
/// Source: k/k pkg/kubelet/container/helpers.go ExpandContainerCommandOnlyStatic.
pub(crate) fn expand_static(command: &[String], c: &Container) -> Vec<String> {
    let mut env: BTreeMap<&str, &str> = BTreeMap::new();
    for v in c.env.iter().flatten() {
        if let (Some(value), None) = (&v.value, &v.value_from) {
            env.insert(&v.name, value);
        }
    }
    command.iter().map(|a| expand(a, &|n| env.get(n).map(|v| (*v).to_owned()))).collect()
}
