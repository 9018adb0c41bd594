//! Rows of core kinds beside Pods. Source: k/k pkg/printers/internalversion/printers.go.

use serde_json::Value;

use super::{Table, age::age, since, storage::count};
use crate::{
    machine::selector_text,
    tree::{at, entries, has, int, list, text, yes},
};

fn none(value: &str) -> Value {
    if value.is_empty() { "<none>".into() } else { value.into() }
}

fn name(o: &Value) -> Value {
    at(o, "metadata.name").clone()
}

pub(crate) const NAMESPACES: Table = Table {
    columns: &[("Name", "string", 0), ("Status", "string", 0), ("Age", "string", 0)],
    cells: |o, now| vec![name(o), text(o, "status.phase").into(), age(o, now)],
};

pub(crate) const CONFIG_MAPS: Table = Table {
    columns: &[("Name", "string", 0), ("Data", "integer", 0), ("Age", "string", 0)],
    cells: |o, now| vec![name(o), (count(o, "data") + count(o, "binaryData")).into(), age(o, now)],
};

pub(crate) const SECRETS: Table = Table {
    columns: &[("Name", "string", 0), ("Type", "string", 0), ("Data", "integer", 0), ("Age", "string", 0)],
    cells: |o, now| vec![name(o), text(o, "type").into(), count(o, "data").into(), age(o, now)],
};

pub(crate) const SERVICE_ACCOUNTS: Table =
    Table { columns: &[("Name", "string", 0), ("Age", "string", 0)], cells: |o, now| vec![name(o), age(o, now)] };

pub(crate) const QUOTAS: Table = Table {
    columns: &[("Name", "string", 0), ("Request", "string", 0), ("Limit", "string", 0), ("Age", "string", 0)],
    cells: |o, now| {
        let part = |limits: bool| {
            let hard = entries(o, "status.hard").filter(|(k, _)| k.starts_with("limits.") == limits);
            hard.map(|(k, v)| {
                let used = at(o, "status.used").get(k).and_then(Value::as_str).unwrap_or("0");
                format!("{k}: {used}/{}", v.as_str().unwrap_or_default())
            })
            .collect::<Vec<_>>()
            .join(", ")
        };
        vec![name(o), part(false).into(), part(true).into(), age(o, now)]
    },
};

pub(crate) const NODES: Table = Table {
    columns: &[
        ("Name", "string", 0),
        ("Status", "string", 0),
        ("Roles", "string", 0),
        ("Age", "string", 0),
        ("Version", "string", 0),
        ("Internal-IP", "string", 1),
        ("External-IP", "string", 1),
        ("OS-Image", "string", 1),
        ("Kernel-Version", "string", 1),
        ("Container-Runtime", "string", 1),
    ],
    cells: |o, now| {
        let ready = list(o, "status.conditions").iter().find(|c| text(c, "type") == "Ready");
        let mut status = match ready.map(|c| text(c, "status")) {
            Some("True") => "Ready".to_owned(),
            Some(_) => "NotReady".into(),
            None => "Unknown".into(),
        };
        if yes(o, "spec.unschedulable") {
            status.push_str(",SchedulingDisabled");
        }
        let mut roles: Vec<&str> = entries(o, "metadata.labels")
            .filter_map(|(k, v)| match k.strip_prefix("node-role.kubernetes.io/") {
                Some(role) if !role.is_empty() => Some(role),
                _ if k == "kubernetes.io/role" => v.as_str(),
                _ => None,
            })
            .collect();
        roles.sort_unstable();
        roles.dedup();
        let address = |kind: &str| {
            list(o, "status.addresses").iter().find(|a| text(a, "type") == kind).map_or("", |a| text(a, "address"))
        };
        let unknown = |s: &str| Value::from(if s.is_empty() { "<unknown>" } else { s });
        let kernel = match (text(o, "status.nodeInfo.kernelVersion"), text(o, "status.nodeInfo.architecture")) {
            ("", _) => "<unknown>".to_owned(),
            (kernel, "") => kernel.into(),
            (kernel, arch) => format!("{kernel} ({arch})"),
        };
        vec![
            name(o),
            status.into(),
            none(&roles.join(",")),
            age(o, now),
            text(o, "status.nodeInfo.kubeletVersion").into(),
            none(address("InternalIP")),
            none(address("ExternalIP")),
            unknown(text(o, "status.nodeInfo.osImage")),
            kernel.into(),
            unknown(text(o, "status.nodeInfo.containerRuntimeVersion")),
        ]
    },
};

pub(crate) const LEASES: Table = Table {
    columns: &[("Name", "string", 0), ("Holder", "string", 0), ("Age", "string", 0)],
    cells: |o, now| vec![name(o), text(o, "spec.holderIdentity").into(), age(o, now)],
};

pub(crate) const RUNTIME_CLASSES: Table = Table {
    columns: &[("Name", "string", 0), ("Handler", "string", 0), ("Age", "string", 0)],
    cells: |o, now| vec![name(o), text(o, "handler").into(), age(o, now)],
};

pub(crate) const SERVICES: Table = Table {
    columns: &[
        ("Name", "string", 0),
        ("Type", "string", 0),
        ("Cluster-IP", "string", 0),
        ("External-IP", "string", 0),
        ("Port(s)", "string", 0),
        ("Age", "string", 0),
        ("Selector", "string", 1),
    ],
    cells: |o, now| {
        let kind = text(o, "spec.type");
        let external: Vec<&str> = list(o, "spec.externalIPs").iter().filter_map(Value::as_str).collect();
        let ingress: Vec<&str> = list(o, "status.loadBalancer.ingress")
            .iter()
            .map(|i| if text(i, "ip").is_empty() { text(i, "hostname") } else { text(i, "ip") })
            .chain(external.iter().copied())
            .collect();
        let external = match kind {
            "ExternalName" => text(o, "spec.externalName").to_owned(),
            "LoadBalancer" if ingress.is_empty() => "<pending>".into(),
            "LoadBalancer" => ingress.join(","),
            _ if external.is_empty() => "<none>".into(),
            _ => external.join(","),
        };
        let ports: Vec<String> = list(o, "spec.ports")
            .iter()
            .map(|p| {
                let (port, protocol) = (int(p, "port").unwrap_or(0), text(p, "protocol"));
                match int(p, "nodePort").unwrap_or(0) {
                    0 => format!("{port}/{protocol}"),
                    node => format!("{port}:{node}/{protocol}"),
                }
            })
            .collect();
        vec![
            name(o),
            kind.into(),
            none(text(o, "spec.clusterIP")),
            external.into(),
            none(&ports.join(",")),
            age(o, now),
            none(&selector_text(at(o, "spec.selector"))),
        ]
    },
};

pub(crate) const ENDPOINTS: Table = Table {
    columns: &[("Name", "string", 0), ("Endpoints", "string", 0), ("Age", "string", 0)],
    cells: |o, now| {
        let mut all = Vec::new();
        for subset in list(o, "subsets") {
            for address in list(subset, "addresses") {
                let ports = list(subset, "ports");
                if ports.is_empty() {
                    all.push(text(address, "ip").to_owned());
                }
                all.extend(ports.iter().map(|p| format!("{}:{}", text(address, "ip"), int(p, "port").unwrap_or(0))));
            }
        }
        vec![name(o), some_of(&all).into(), age(o, now)]
    },
};

/// The first three, and how many more there are.
fn some_of(all: &[String]) -> String {
    match all.len() {
        0 => "<none>".into(),
        n if n > 3 => format!("{} + {} more...", all[..3].join(","), n - 3),
        _ => all.join(","),
    }
}

pub(crate) const ENDPOINT_SLICES: Table = Table {
    columns: &[
        ("Name", "string", 0),
        ("AddressType", "string", 0),
        ("Ports", "string", 0),
        ("Endpoints", "string", 0),
        ("Age", "string", 0),
    ],
    cells: |o, now| {
        let ports: Vec<String> =
            list(o, "ports").iter().map(|p| int(p, "port").map_or_else(|| "*".into(), |n| n.to_string())).collect();
        let ports = if ports.is_empty() { "<unset>".into() } else { some_of(&ports) };
        let endpoints: Vec<String> = list(o, "endpoints")
            .iter()
            .flat_map(|e| list(e, "addresses"))
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect();
        let endpoints = if endpoints.is_empty() { "<unset>".into() } else { some_of(&endpoints) };
        vec![name(o), text(o, "addressType").into(), ports.into(), endpoints.into(), age(o, now)]
    },
};

pub(crate) const NETWORK_POLICIES: Table = Table {
    columns: &[("Name", "string", 0), ("Pod-Selector", "string", 0), ("Age", "string", 0)],
    cells: |o, now| vec![name(o), none(&selector_text(at(o, "spec.podSelector"))), age(o, now)],
};

pub(crate) const INGRESSES: Table = Table {
    columns: &[
        ("Name", "string", 0),
        ("Class", "string", 0),
        ("Hosts", "string", 0),
        ("Address", "string", 0),
        ("Ports", "string", 0),
        ("Age", "string", 0),
    ],
    cells: |o, now| {
        let hosts: Vec<&str> =
            list(o, "spec.rules").iter().map(|r| text(r, "host")).filter(|h| !h.is_empty()).collect();
        let hosts = if hosts.is_empty() { "*".to_owned() } else { hosts.join(",") };
        let addresses: Vec<&str> = list(o, "status.loadBalancer.ingress").iter().map(|i| text(i, "ip")).collect();
        let ports = if list(o, "spec.tls").is_empty() { "80" } else { "80, 443" };
        vec![
            name(o),
            none(text(o, "spec.ingressClassName")),
            hosts.into(),
            addresses.join(",").into(),
            ports.into(),
            age(o, now),
        ]
    },
};

pub(crate) const INGRESS_CLASSES: Table = Table {
    columns: &[("Name", "string", 0), ("Controller", "string", 0), ("Parameters", "string", 0), ("Age", "string", 0)],
    cells: |o, now| {
        let parameters = at(o, "spec.parameters");
        let shown = if parameters.is_null() {
            String::new()
        } else {
            format!("{}/{}", text(parameters, "kind"), text(parameters, "name"))
        };
        vec![name(o), text(o, "spec.controller").into(), none(&shown), age(o, now)]
    },
};

pub(crate) const BUDGETS: Table = Table {
    columns: &[
        ("Name", "string", 0),
        ("Min Available", "string", 0),
        ("Max Unavailable", "string", 0),
        ("Allowed Disruptions", "integer", 0),
        ("Age", "string", 0),
    ],
    cells: |o, now| {
        let shown = |path: &str| match at(o, path) {
            Value::Null => "N/A".to_owned(),
            Value::String(s) => s.clone(),
            other => other.to_string(),
        };
        vec![
            name(o),
            shown("spec.minAvailable").into(),
            shown("spec.maxUnavailable").into(),
            int(o, "status.disruptionsAllowed").unwrap_or(0).into(),
            age(o, now),
        ]
    },
};

pub(crate) const PRIORITY_CLASSES: Table = Table {
    columns: &[
        ("Name", "string", 0),
        ("Value", "integer", 0),
        ("Global-Default", "boolean", 0),
        ("Age", "string", 0),
        ("PreemptionPolicy", "string", 0),
    ],
    cells: |o, now| {
        vec![
            name(o),
            int(o, "value").unwrap_or(0).into(),
            yes(o, "globalDefault").into(),
            age(o, now),
            text(o, "preemptionPolicy").into(),
        ]
    },
};

pub(crate) const ROLE_BINDINGS: Table = Table {
    columns: &[
        ("Name", "string", 0),
        ("Role", "string", 0),
        ("Age", "string", 0),
        ("Users", "string", 1),
        ("Groups", "string", 1),
        ("ServiceAccounts", "string", 1),
    ],
    cells: |o, now| {
        let subjects = |kind: &str| {
            let found = list(o, "subjects").iter().filter(|s| text(s, "kind") == kind);
            found
                .map(|s| match kind {
                    "ServiceAccount" => format!("{}/{}", text(s, "namespace"), text(s, "name")),
                    _ => text(s, "name").to_owned(),
                })
                .collect::<Vec<_>>()
                .join(", ")
        };
        vec![
            name(o),
            format!("{}/{}", text(o, "roleRef.kind"), text(o, "roleRef.name")).into(),
            age(o, now),
            subjects("User").into(),
            subjects("Group").into(),
            subjects("ServiceAccount").into(),
        ]
    },
};

const EVENT_COLUMNS: &[super::Column] = &[
    ("Last Seen", "string", 0),
    ("Type", "string", 0),
    ("Reason", "string", 0),
    ("Object", "string", 0),
    ("Subobject", "string", 1),
    ("Source", "string", 1),
    ("Message", "string", 0),
    ("First Seen", "string", 1),
    ("Count", "string", 1),
    ("Name", "string", 1),
];

pub(crate) const EVENTS: Table = Table { columns: EVENT_COLUMNS, cells: event_cells };
pub(crate) const EVENTS_V1: Table =
    Table { columns: EVENT_COLUMNS, cells: |o, now| event_cells(&crate::kinds::event_to_storage(o), now) };

fn event_cells(o: &Value, now: super::Now) -> Vec<Value> {
    let time = |paths: &[&str]| paths.iter().map(|p| text(o, p)).find(|t| !t.is_empty()).unwrap_or_default();
    let first = time(&["firstTimestamp", "eventTime"]);
    let last = if has(o, "series") {
        text(o, "series.lastObservedTime")
    } else {
        time(&["lastTimestamp", "firstTimestamp", "eventTime"])
    };
    let count = int(o, "series.count").or_else(|| int(o, "count")).filter(|n| *n > 0).unwrap_or(1);
    let object = match text(o, "involvedObject.name") {
        "" => text(o, "involvedObject.kind").to_lowercase(),
        name => format!("{}/{name}", text(o, "involvedObject.kind").to_lowercase()),
    };
    let component = match text(o, "source.component") {
        "" => text(o, "reportingComponent"),
        component => component,
    };
    let host = match text(o, "source.host") {
        "" => text(o, "reportingInstance"),
        host => host,
    };
    let source = if host.is_empty() { component.to_owned() } else { format!("{component}, {host}") };
    vec![
        since(last, now).into(),
        text(o, "type").into(),
        text(o, "reason").into(),
        object.into(),
        text(o, "involvedObject.fieldPath").into(),
        source.into(),
        text(o, "message").trim().into(),
        since(first, now).into(),
        count.into(),
        name(o),
    ]
}
