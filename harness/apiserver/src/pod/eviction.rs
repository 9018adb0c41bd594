//! The eviction subresource: delete, if the disruption budgets allow it.
//! Source: k/k pkg/registry/core/pod/storage/eviction.go.

use podlab_api::{ApiError, Object, Reason};
use podlab_store::{StoreError, Stored};
use serde_json::{Value, json};
use std::sync::Arc;

use super::{binding::success, is_ready, set_condition};
use crate::{
    context::Context,
    errors::{from_store, not_found},
    kinds::{Kind, registry},
    machine::DeleteRequest,
    selector::LabelSelector,
    server::ApiServer,
    tree::{at, has, int, map_at, put, text},
};

/// A budget remembers at most this many evictions that have not been seen yet.
const MAX_DISRUPTED: usize = 2000;

impl ApiServer {
    /// Evicts a Pod. Dropping the future may still evict it.
    ///
    /// # Errors
    /// 404, 429 while a budget allows no disruption, 409 for preconditions that do not hold.
    pub(crate) async fn evict_pod(
        &self,
        cx: &Context,
        kind: &Kind,
        namespace: Option<&str>,
        name: &str,
        eviction: &Value,
    ) -> Result<Value, ApiError> {
        let given = text(eviction, "metadata.name");
        if !given.is_empty() && given != name {
            return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
        }
        let options = at(eviction, "deleteOptions");
        let request = DeleteRequest {
            grace: int(options, "gracePeriodSeconds"),
            uid: at(options, "preconditions.uid").as_str().map(str::to_owned),
            revision: at(options, "preconditions.resourceVersion").as_str().map(str::to_owned),
            propagation: at(options, "propagationPolicy").as_str().map(str::to_owned),
        };
        let pod = self.get_object(kind, namespace, name)?;
        let phase = text(&pod.object.0, "status.phase");
        let free =
            matches!(phase, "Succeeded" | "Failed" | "Pending") || has(&pod.object.0, "metadata.deletionTimestamp");
        if !free {
            self.spend_budget(cx, namespace, &pod.object.0).await?;
        }
        if cx.dry_run {
            return Ok(success());
        }
        if !free {
            self.mark_disrupted(kind, namespace, name).await?;
        }
        // A resourceVersion precondition was about the Pod before it was marked.
        let request = DeleteRequest { revision: request.revision.filter(|_| free), ..request };
        match self.delete_object(cx, kind, namespace, name, &request).await {
            Ok(_) => Ok(success()),
            Err(e) if e.is_not_found() && !free => Ok(success()),
            Err(e) => Err(e),
        }
    }

    /// Takes one disruption from the budget that covers the Pod.
    async fn spend_budget(&self, cx: &Context, namespace: Option<&str>, pod: &Value) -> Result<(), ApiError> {
        let Some(budgets) = registry().by_plural("policy", "v1", "poddisruptionbudgets") else { return Ok(()) };
        loop {
            let listing =
                self.store.list(&budgets.prefix_of(namespace), None).map_err(|e| from_store(budgets, "", e))?;
            let mut matching = listing.items.into_iter().map(|(_, stored)| stored).filter(|budget| {
                let selector = LabelSelector::from_object(at(&budget.object.0, "spec.selector"));
                selector.is_some_and(|s| s.matches(pod))
            });
            let Some(budget) = matching.next() else { return Ok(()) };
            if matching.next().is_some() {
                let why =
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
                return Err(ApiError::new(Reason::InternalError, why));
            }
            if !is_ready(pod) && unhealthy_may_go(&budget.object.0) {
                return Ok(());
            }
            check(&budget)?;
            let mut new = budget.object.0.clone();
            let left = int(&new, "status.disruptionsAllowed").unwrap_or(0) - 1;
            put(&mut new, "status.disruptionsAllowed", left);
            let disrupted = map_at(&mut new, "status.disruptedPods");
            disrupted.insert(text(pod, "metadata.name").into(), self.now_text().into());
            if disrupted.len() > MAX_DISRUPTED {
                let why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
                return Err(crate::errors::forbidden(budgets, budget.object.name(), why));
            }
            if cx.dry_run {
                return Ok(());
            }
            let (ns, name) = (budget.object.namespace(), budget.object.name());
            match self.store.update(&budgets.key(ns, name), budget.revision, Object(new)).await {
                Ok(_) => return Ok(()),
                Err(StoreError::Conflict { .. }) => {}
                Err(e) => return Err(from_store(budgets, name, e)),
            }
        }
    }

    /// Says on the Pod why it goes.
    async fn mark_disrupted(&self, kind: &Kind, namespace: Option<&str>, name: &str) -> Result<(), ApiError> {
        let key = kind.key(namespace, name);
        loop {
            let current = self.store.get(&key).ok_or_else(|| not_found(kind, name))?;
            let mut new = current.object.0.clone();
            let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting", "lastProbeTime": null});
            set_condition(&mut new, condition, &self.now_text());
            match self.store.update(&key, current.revision, Object(new)).await {
                Ok(_) => return Ok(()),
                Err(StoreError::Conflict { .. }) => {}
                Err(e) => return Err(from_store(kind, name, e)),
            }
        }
    }
}

fn unhealthy_may_go(budget: &Value) -> bool {
    let healthy = int(budget, "status.currentHealthy").unwrap_or(0);
    let desired = int(budget, "status.desiredHealthy").unwrap_or(0);
    text(budget, "spec.unhealthyPodEvictionPolicy") == "AlwaysAllow" || (healthy >= desired && desired > 0)
}

fn check(budget: &Arc<Stored>) -> Result<(), ApiError> {
    let (b, name) = (&budget.object.0, budget.object.name());
    let observed = int(b, "status.observedGeneration").unwrap_or(0);
    if observed < int(b, "metadata.generation").unwrap_or(0) {
        let why = format!("The disruption budget {name} is still being processed by the server.");
        return Err(too_many(&why, Some(10)));
    }
    if int(b, "status.disruptionsAllowed").unwrap_or(0) <= 0 {
        let desired = int(b, "status.desiredHealthy").unwrap_or(0);
        let current = int(b, "status.currentHealthy").unwrap_or(0);
        let why = format!("The disruption budget {name} needs {desired} healthy pods and has {current} currently");
        return Err(too_many(&why, None));
    }
    Ok(())
}

fn too_many(why: &str, retry: Option<u32>) -> ApiError {
    let message = "Cannot evict pod as it would violate the pod's disruption budget.";
    let mut error = ApiError::new(Reason::TooManyRequests, message);
    let mut details = json!({"causes": [{"reason": "DisruptionBudget", "message": why}]});
    if let Some(seconds) = retry {
        details["retryAfterSeconds"] = seconds.into();
    }
    error.details = Some(details);
    error
}
