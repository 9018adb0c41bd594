//! The downward API: what a Pod may learn about itself. Source: k/k pkg/fieldpath/fieldpath.go, pkg/api/v1/resource/helpers.go.

use podlab_api::{
    core::{Container, Pod, ResourceFieldSelector},
    parse_milli,
};
use podlab_lifecycle::{
    resources::{Side, amount},
    spec,
};

/// A reference that names nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FieldError {
    /// Not a field that may be referenced.
    #[error("unsupported fieldPath: {0}")]
    Field(String),
    /// Not a resource that may be referenced.
    #[error("unsupported container resource : {0}")]
    Resource(String),
    /// The container of a resource reference does not exist.
    #[error("container {0} not found")]
    Container(String),
}

/// Addresses the spec does not have.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Addresses<'a> {
    /// The node's.
    pub(crate) host: &'a [String],
    /// The Pod's.
    pub(crate) pod: &'a [String],
}

/// The value of a field of the Pod; maps come out as `key="value"` lines, as in files.
pub(crate) fn pod_field(pod: &Pod, path: &str, addresses: Addresses<'_>) -> Result<String, FieldError> {
    let meta = &pod.metadata;
    let text = |v: &Option<String>| v.clone().unwrap_or_default();
    if let Some((map, key)) = subscript(path) {
        let map = match map {
            "metadata.labels" => &meta.labels,
            "metadata.annotations" => &meta.annotations,
            _ => return Err(FieldError::Field(path.to_owned())),
        };
        return Ok(map.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    let s = spec::pod_spec(pod);
    Ok(match path {
        "metadata.name" => text(&meta.name),
        "metadata.namespace" => text(&meta.namespace),
        "metadata.uid" => text(&meta.uid),
        "metadata.labels" => lines(meta.labels.as_ref()),
        "metadata.annotations" => lines(meta.annotations.as_ref()),
        "spec.nodeName" => text(&s.node_name),
        "spec.serviceAccountName" => text(&s.service_account_name),
        "status.hostIP" => addresses.host.first().cloned().unwrap_or_default(),
        "status.hostIPs" => addresses.host.join(","),
        "status.podIP" => addresses.pod.first().cloned().unwrap_or_default(),
        "status.podIPs" => addresses.pod.join(","),
        _ => return Err(FieldError::Field(path.to_owned())),
    })
}

/// `a['k']` → (`a`, `k`).
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, rest) = path.split_once("['")?;
    Some((map, rest.strip_suffix("']")?))
}

fn lines(map: Option<&std::collections::BTreeMap<String, String>>) -> String {
    let all: Vec<String> = map.into_iter().flatten().map(|(k, v)| format!("{k}={}", quoted(v))).collect();
    all.join("\n")
}

/// Go's `%q`.
fn quoted(s: &str) -> String {
    let mut out = String::from("\"");
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// What a limit defaults to: the node's allocatable resources.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Allocatable {
    /// Thousandths.
    pub(crate) cpu_milli: i64,
    /// Bytes.
    pub(crate) memory: i64,
    /// Bytes.
    pub(crate) ephemeral_storage: i64,
}

/// The value of a resource reference. `own` is the container it stands in, for references that name none.
pub(crate) fn resource_field(
    pod: &Pod,
    own: Option<&Container>,
    r: &ResourceFieldSelector,
    node: Allocatable,
) -> Result<String, FieldError> {
    let named = r.container_name.as_deref().filter(|n| !n.is_empty());
    let found = named.and_then(|n| spec::find(pod, n).map(|(_, c)| c));
    let container = match (named, &found, own) {
        (Some(_), Some(c), _) | (None, _, Some(c)) => c,
        (Some(n), None, _) => return Err(FieldError::Container(n.to_owned())),
        (None, _, None) => return Err(FieldError::Container(String::new())),
    };
    let (side, key) = match r.resource.split_once('.') {
        Some(("limits", key)) => (Side::Limits, key),
        Some(("requests", key)) => (Side::Requests, key),
        _ => return Err(FieldError::Resource(r.resource.clone())),
    };
    let own_amount = amount(container.resources.as_ref(), side, key).filter(|v| *v != 0);
    let value = match (key, side) {
        ("cpu", Side::Limits) => own_amount.unwrap_or(node.cpu_milli),
        ("memory", Side::Limits) => own_amount.unwrap_or(node.memory),
        ("ephemeral-storage", Side::Limits) => own_amount.unwrap_or(node.ephemeral_storage),
        ("cpu" | "memory" | "ephemeral-storage", Side::Requests) => own_amount.unwrap_or(0),
        (k, _) if k.starts_with("hugepages-") => own_amount.unwrap_or(0),
        _ => return Err(FieldError::Resource(r.resource.clone())),
    };
    let divisor = r.divisor.as_ref().and_then(|d| parse_milli(&d.0).ok()).filter(|d| *d > 0).unwrap_or(1000);
    // CPU is in thousandths already, the others in units.
    let milli = if key == "cpu" { i128::from(value) } else { i128::from(value) * 1000 };
    Ok(((milli + divisor - 1) / divisor).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_come_out_quoted_and_single_values_bare() {
        let mut pod = Pod::default();
        pod.metadata.labels = Some([("l".to_owned(), "m\"x".to_owned()), ("a".to_owned(), "b".to_owned())].into());
        let none = Addresses::default();
        assert_eq!(pod_field(&pod, "metadata.labels", none).unwrap(), "a=\"b\"\nl=\"m\\\"x\"");
        assert_eq!(pod_field(&pod, "metadata.labels['a']", none).unwrap(), "b");
        assert!(pod_field(&pod, "spec.containers", none).is_err());
    }

    #[test]
    fn resources_round_up_by_the_divisor_and_default_to_the_node() {
        let c = Container { name: "c".into(), ..Container::default() };
        let r = |resource: &str, divisor: &str| ResourceFieldSelector {
            resource: resource.into(),
            divisor: Some(podlab_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity(divisor.into())),
            ..ResourceFieldSelector::default()
        };
        let node = Allocatable { cpu_milli: 1500, memory: 3 << 20, ephemeral_storage: 0 };
        for (res, div, expect) in [
            ("limits.cpu", "1", "2"),
            ("limits.cpu", "1m", "1500"),
            ("limits.memory", "1Mi", "3"),
            ("requests.cpu", "0", "0"),
        ] {
            assert_eq!(resource_field(&Pod::default(), Some(&c), &r(res, div), node).unwrap(), expect);
        }
    }
}
