//! How lists of the built-in kinds are merged: which are maps by a key, which are sets, which are replaced whole.
//! Source: the `patchStrategy`, `patchMergeKey`, `listType` and `listMapKey` marks of k/k staging/src/k8s.io/api.

/// How one list merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListMerge {
    /// Items are told apart by these fields; strategic merge looks at the first one only.
    Map(&'static [&'static str]),
    /// Items are scalars, each there once.
    Set,
    /// The list is one value.
    Atomic,
}

/// How the list `field` merges, inside `parent` (the field around it) of an object of `kind`.
pub(crate) fn list_merge(kind: &str, parent: &str, field: &str) -> ListMerge {
    use ListMerge::{Atomic, Map, Set};
    match field {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "imagePullSecrets"
        | "env"
        | "schedulingGates"
        | "resourceClaims"
        | "resourceClaimStatuses" => Map(&["name"]),
        "hostAliases" => Map(&["ip"]),
        "topologySpreadConstraints" => Map(&["topologyKey", "whenUnsatisfiable"]),
        "ports" if parent.ends_with("ontainers") => Map(&["containerPort", "protocol"]),
        "ports" if kind == "Service" => Map(&["port", "protocol"]),
        "volumeMounts" if parent.ends_with("ontainers") => Map(&["mountPath"]),
        "volumeDevices" => Map(&["devicePath"]),
        "conditions" => Map(&["type"]),
        "podIPs" | "hostIPs" => Map(&["ip"]),
        "addresses" if kind == "Node" => Map(&["type"]),
        "secrets" if kind == "ServiceAccount" => Map(&["name"]),
        "ownerReferences" => Map(&["uid"]),
        "finalizers" | "podCIDRs" => Set,
        _ => Atomic,
    }
}
