//! Resources of a whole Pod, as limit ranges and quotas count them.
//! Source: k/k staging/src/k8s.io/component-helpers/resource/helpers.go.

use std::collections::BTreeMap;

use podlab_api::{ApiError, parse_milli};
use serde_json::Value;

use crate::{
    errors::forbidden,
    kinds::{Kind, registry},
    server::ApiServer,
    tree::{at, entries, list, text},
};

/// Thousandths by resource name.
pub(super) type Amounts = BTreeMap<String, i128>;

/// A map of quantities.
pub(super) fn amounts(map: &Value) -> Amounts {
    let entries = map.as_object().into_iter().flatten();
    entries.filter_map(|(k, v)| Some((k.clone(), parse_milli(v.as_str()?).ok()?))).collect()
}

fn add(into: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        *into.entry(name.clone()).or_default() += amount;
    }
}

fn raise(into: &mut Amounts, at_least: &Amounts) {
    for (name, amount) in at_least {
        let slot = into.entry(name.clone()).or_default();
        *slot = (*slot).max(*amount);
    }
}

/// Requests or limits of a Pod: the sum of its containers and sidecars, or the largest init container if that is more,
/// plus the overhead.
pub(super) fn of_pod(pod: &Value, which: &str) -> Amounts {
    let of = |c: &Value| amounts(at(c, "resources").get(which).unwrap_or(&Value::Null));
    let mut total = Amounts::new();
    list(pod, "spec.containers").iter().for_each(|c| add(&mut total, &of(c)));
    let (mut sidecars, mut init) = (Amounts::new(), Amounts::new());
    for container in list(pod, "spec.initContainers") {
        if text(container, "restartPolicy") == "Always" {
            add(&mut sidecars, &of(container));
            raise(&mut init, &sidecars);
        } else {
            let mut with = of(container);
            add(&mut with, &sidecars);
            raise(&mut init, &with);
        }
    }
    add(&mut total, &sidecars);
    raise(&mut total, &init);
    let pod_level = amounts(at(pod, "spec.resources").get(which).unwrap_or(&Value::Null));
    for (name, amount) in pod_level {
        total.insert(name, amount);
    }
    if entries(pod, "spec.overhead").next().is_some() {
        add(&mut total, &amounts(at(pod, "spec.overhead")));
    }
    total
}

impl ApiServer {
    /// A resize to more than the Pod's node could ever give is refused here, where the client sees it.
    /// Source: a real cluster's answer; k/k plugin/pkg/admission.
    ///
    /// # Errors
    /// 403.
    pub(super) fn check_resize_fits(&self, kind: &Kind, pod: &Value) -> Result<(), ApiError> {
        let node = self.store.get(&registry().core("nodes").key(None, text(pod, "spec.nodeName")));
        let Some(node) = node else { return Ok(()) };
        let allocatable = amounts(at(&node.object.0, "status.allocatable"));
        let wanted = of_pod(pod, "requests");
        for (name, unit) in [("cpu", 1), ("memory", 1000)] {
            let (asked, there) = (wanted.get(name).copied().unwrap_or(0), allocatable.get(name).copied().unwrap_or(0));
            if asked > there {
                let why = format!(
                    "node didn't have enough allocatable resources: {name}, requested: {}, allocatable: {}",
                    asked / unit,
                    there / unit
                );
                return Err(forbidden(kind, text(pod, "metadata.name"), &why));
            }
        }
        Ok(())
    }
}

/// Thousandths as a quantity.
pub(super) fn show(milli: i128) -> String {
    let text = format!("{milli}m");
    crate::normalize::canonical_quantity(&text).unwrap_or(text)
}

/// Thousandths as a quantity in the style of `like`: binary suffixes stay binary.
pub(super) fn show_like(milli: i128, like: &str) -> String {
    if like.ends_with('i') && milli % 1000 == 0 {
        let mut units = milli / 1000;
        let mut step = 0;
        while units != 0 && units % 1024 == 0 && step < 6 {
            units /= 1024;
            step += 1;
        }
        return format!("{units}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][step]);
    }
    show(milli)
}
