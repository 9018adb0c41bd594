//! LimitRanger. Source: k/k plugin/pkg/admission/limitranger/admission.go.

use std::sync::Arc;

use podlab_api::{ApiError, parse_milli};
use podlab_store::Stored;
use serde_json::Value;

use super::resources::{Amounts, amounts, of_pod};
use crate::{
    errors::forbidden,
    kinds::{Kind, registry},
    server::ApiServer,
    tree::{at, each_mut, entries, list, map_at, text},
};

impl ApiServer {
    fn limit_ranges(&self, namespace: Option<&str>) -> Vec<Arc<Stored>> {
        let kind = registry().core("limitranges");
        let listing = self.store.list(&kind.prefix_of(namespace), None);
        listing.map(|l| l.items.into_iter().map(|(_, s)| s).collect()).unwrap_or_default()
    }

    /// Fills requests and limits that a Pod leaves open.
    pub(super) fn default_limits(
        &self,
        _kind: &Kind,
        namespace: Option<&str>,
        pod: &mut Value,
    ) -> Result<(), ApiError> {
        for range in self.limit_ranges(namespace) {
            let mut set = Vec::new();
            for item in list(&range.object.0, "spec.limits").iter().filter(|i| text(i, "type") == "Container") {
                for (field, noun) in [("spec.containers", "container"), ("spec.initContainers", "init container")] {
                    for container in each_mut(pod, field) {
                        let name = text(container, "name").to_owned();
                        for (from, to, word) in
                            [("defaultRequest", "requests", "request"), ("default", "limits", "limit")]
                        {
                            let mut filled = Vec::new();
                            for (resource, quantity) in entries(item, from) {
                                let held = map_at(container, &format!("resources.{to}"));
                                if !held.contains_key(resource) {
                                    held.insert(resource.clone(), quantity.clone());
                                    filled.push(resource.clone());
                                }
                            }
                            if !filled.is_empty() {
                                set.push(format!("{} {word} for {noun} {name}", filled.join(", ")));
                            }
                        }
                    }
                }
            }
            if !set.is_empty() {
                let text = format!("LimitRanger plugin set: {}", set.join("; "));
                map_at(pod, "metadata.annotations").insert("kubernetes.io/limit-ranger".into(), text.into());
            }
        }
        Ok(())
    }

    /// Refuses a Pod outside a range.
    pub(super) fn check_limits(&self, kind: &Kind, namespace: Option<&str>, pod: &Value) -> Result<(), ApiError> {
        let mut broken = Vec::new();
        for range in self.limit_ranges(namespace) {
            for item in list(&range.object.0, "spec.limits") {
                match text(item, "type") {
                    "Container" => {
                        for container in list(pod, "spec.containers").iter().chain(list(pod, "spec.initContainers")) {
                            let requests = amounts(at(container, "resources.requests"));
                            let limits = amounts(at(container, "resources.limits"));
                            check(item, "Container", &requests, &limits, &mut broken);
                        }
                    }
                    "Pod" => check(item, "Pod", &of_pod(pod, "requests"), &of_pod(pod, "limits"), &mut broken),
                    _ => {}
                }
            }
        }
        refuse(kind, pod, &broken)
    }

    /// Refuses a claim outside a range.
    pub(super) fn check_claim_limits(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        claim: &Value,
    ) -> Result<(), ApiError> {
        let requests = amounts(at(claim, "spec.resources.requests"));
        let mut broken = Vec::new();
        for range in self.limit_ranges(namespace) {
            let items = list(&range.object.0, "spec.limits").iter();
            for item in items.filter(|i| text(i, "type") == "PersistentVolumeClaim") {
                check(item, "PersistentVolumeClaim", &requests, &Amounts::new(), &mut broken);
            }
        }
        refuse(kind, claim, &broken)
    }
}

fn refuse(kind: &Kind, object: &Value, broken: &[String]) -> Result<(), ApiError> {
    let why = match broken {
        [] => return Ok(()),
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    };
    Err(forbidden(kind, text(object, "metadata.name"), &why))
}

fn check(item: &Value, what: &str, requests: &Amounts, limits: &Amounts, broken: &mut Vec<String>) {
    let milli = |v: &Value| v.as_str().and_then(|s| parse_milli(s).ok());
    let show = super::resources::show_like;
    for (name, least) in entries(item, "min") {
        let (Some(bound), shown) = (milli(least), least.as_str().unwrap_or_default()) else { continue };
        match (requests.get(name), limits.get(name)) {
            (None, _) => broken.push(format!("minimum {name} usage per {what} is {shown}.  No request is specified")),
            (Some(request), _) if *request < bound => {
                broken.push(format!(
                    "minimum {name} usage per {what} is {shown}, but request is {}",
                    show(*request, shown)
                ));
            }
            (_, Some(limit)) if *limit < bound => {
                broken
                    .push(format!("minimum {name} usage per {what} is {shown}, but limit is {}", show(*limit, shown)));
            }
            _ => {}
        }
    }
    for (name, most) in entries(item, "max") {
        let (Some(bound), shown) = (milli(most), most.as_str().unwrap_or_default()) else { continue };
        match (limits.get(name), requests.get(name)) {
            (None, None) if what == "PersistentVolumeClaim" => {}
            (None, _) if what != "PersistentVolumeClaim" => {
                broken.push(format!("maximum {name} usage per {what} is {shown}.  No limit is specified"));
            }
            (Some(limit), _) if *limit > bound => {
                broken
                    .push(format!("maximum {name} usage per {what} is {shown}, but limit is {}", show(*limit, shown)));
            }
            (_, Some(request)) if *request > bound => {
                broken.push(format!(
                    "maximum {name} usage per {what} is {shown}, but request is {}",
                    show(*request, shown)
                ));
            }
            _ => {}
        }
    }
    for (name, ratio) in entries(item, "maxLimitRequestRatio") {
        let (Some(bound), shown) = (milli(ratio), ratio.as_str().unwrap_or_default()) else { continue };
        match (requests.get(name), limits.get(name)) {
            (Some(request), Some(limit)) if *request > 0 => {
                #[expect(clippy::cast_precision_loss, reason = "a ratio is printed with six digits")]
                let given = *limit as f64 / *request as f64;
                if limit * 1000 > bound * request {
                    broken.push(format!(
                        "{name} max limit to request ratio per {what} is {shown}, but provided ratio is {given:.6}"
                    ));
                }
            }
            (None, _) => broken.push(format!(
                "{name} max limit to request ratio per {what} is {shown}, but no request is specified or request is 0"
            )),
            (_, None) => broken.push(format!(
                "{name} max limit to request ratio per {what} is {shown}, but no limit is specified or limit is 0"
            )),
            _ => {}
        }
    }
}
