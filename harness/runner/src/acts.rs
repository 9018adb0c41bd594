//! Steps that change objects of the API.

use std::time::Duration;

use podlab_api::{
    ApiError, Object, ResourceRef,
    core::{Node, Pod},
};
use podlab_client::{Collection, ListOptions, PatchKind, Target};
use podlab_scenario::{Debug, Drain, Evict, Patch, PatchType, Refused, Resize, Scale, Step, Subresource, Taint};
use serde_json::{Value, json};

use crate::{
    apply, kept,
    steps::{Done, Stage, StepError},
};

/// Between two attempts to evict a Pod that a budget protects. Source: k/k kubectl/pkg/drain/drain.go waits five seconds; a
/// scenario has no reason to.
const EVICT_AGAIN: Duration = Duration::from_secs(1);
/// A list has no condition to wait for.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

impl Stage<'_> {
    /// Does one of these steps.
    pub(crate) async fn act(&mut self, step: &Step) -> Done {
        match step {
            Step::Patch(p) => self.patch(p).await,
            Step::Scale(s) => self.scale(s).await,
            Step::Evict(e) => self.evict(&self.namespace, &e.pod, e).await.map_err(StepError::from),
            Step::Cordon(node) => self.cordon(node, true).await,
            Step::Uncordon(node) => self.cordon(node, false).await,
            Step::Drain(d) => self.drain(d).await,
            Step::Taint(t) => self.taint(t).await,
            Step::Resize(r) => self.resize(r).await,
            Step::Debug(d) => self.debug(d).await,
            Step::Refused(r) => self.refused(r).await,
            _ => Err(StepError::Broken("this step is not one of the API's".into())),
        }
    }

    fn target(&self, kind: &str, name: &str, subresource: Option<&'static str>) -> Result<Target, StepError> {
        let resource =
            apply::resource(kind).ok_or_else(|| StepError::Broken(format!("kind {kind} is not known here")))?;
        let namespace = resource.namespaced.then(|| self.namespace.clone());
        Ok(Target { collection: Collection { resource, namespace }, name: name.to_owned(), subresource })
    }

    async fn patch(&self, p: &Patch) -> Done {
        let subresource = p.subresource.map(|s| match s {
            Subresource::Status => "status",
            Subresource::Resize => "resize",
            Subresource::Ephemeralcontainers => "ephemeralcontainers",
        });
        let how = match p.how {
            PatchType::Merge => PatchKind::Merge,
            PatchType::Strategic => PatchKind::Strategic,
            PatchType::Json => PatchKind::Json,
        };
        let target = self.target(&format!("{:?}", p.kind), &p.name, subresource)?;
        let kept = self.client.raw().patch(&target, &how, &p.with).await?;
        let dropped = match p.how {
            // Its operations name whole places, and one that cannot be done is refused.
            PatchType::Json => None,
            PatchType::Merge | PatchType::Strategic => {
                kept::dropped(&p.with, &kept.0, p.subresource == Some(Subresource::Status))
            }
        };
        match dropped {
            None => Ok(()),
            Some(field) => Err(StepError::Failed(format!(
                "{:?} {}: the API did not keep {field}; is it misspelled?",
                p.kind, p.name
            ))),
        }
    }

    async fn scale(&self, s: &Scale) -> Done {
        let target = self.target(&format!("{:?}", s.kind), &s.name, Some("scale"))?;
        let body = json!({"spec": {"replicas": s.replicas}});
        self.client.raw().patch(&target, &PatchKind::Merge, &body).await?;
        Ok(())
    }

    async fn evict(&self, namespace: &str, pod: &str, e: &Evict) -> Result<(), ApiError> {
        let mut eviction =
            json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}});
        if let Some(grace) = e.grace {
            eviction["deleteOptions"] = json!({"gracePeriodSeconds": grace.0.as_secs()});
        }
        let pods = Collection { resource: ResourceRef::of::<Pod>(), namespace: Some(namespace.to_owned()) };
        self.client.raw().create(&pods, Some((pod, "eviction")), Object(eviction)).await.map(drop)
    }

    async fn cordon(&self, node: &str, yes: bool) -> Done {
        let body = json!({"spec": {"unschedulable": if yes { Value::Bool(true) } else { Value::Null }}});
        self.client.all::<Node>().patch(node, &PatchKind::Merge, &body).await?;
        Ok(())
    }

    /// Pods of a node that a drain removes: `(namespace, name, uid)`.
    async fn drained(&self, node: &str) -> Result<Vec<(String, String, String)>, ApiError> {
        let everywhere = Collection { resource: ResourceRef::of::<Pod>(), namespace: None };
        let all = self.client.raw().list(&everywhere, &ListOptions::default()).await?;
        let stays = |pod: &Object| {
            let owners = pod.at(&["metadata", "ownerReferences"]).and_then(Value::as_array);
            owners.into_iter().flatten().any(|o| o.get("kind").and_then(Value::as_str) == Some("DaemonSet"))
                || pod.at(&["metadata", "annotations", "kubernetes.io/config.mirror"]).is_some()
        };
        let mine = all.items.iter().filter(|p| p.str_at(&["spec", "nodeName"]) == Some(node) && !stays(p));
        let text = |p: &Object, key: &str| p.str_at(&["metadata", key]).unwrap_or_default().to_owned();
        Ok(mine.map(|p| (text(p, "namespace"), text(p, "name"), text(p, "uid"))).collect())
    }

    async fn drain(&self, d: &Drain) -> Done {
        self.cordon(&d.node, true).await?;
        let deadline = self.clock.now().after(d.within.0);
        let late =
            |what: String| Err(StepError::Failed(format!("{} is not drained within {:?}: {what}", d.node, d.within.0)));
        for (namespace, name, _) in self.drained(&d.node).await? {
            let plain = Evict { pod: name.clone(), grace: None };
            loop {
                match self.evict(&namespace, &name, &plain).await {
                    Ok(()) => break,
                    Err(e) if e.code == 404 => break,
                    Err(e) if e.code == 429 && self.clock.now() < deadline => self.clock.sleep(EVICT_AGAIN).await,
                    Err(e) if e.code == 429 => return late(format!("Pod {name}: {}", e.message)),
                    Err(e) => return Err(e.into()),
                }
            }
        }
        loop {
            let left = self.drained(&d.node).await?;
            if left.is_empty() {
                return Ok(());
            }
            if self.clock.now() >= deadline {
                let names: Vec<&str> = left.iter().map(|(_, name, _)| name.as_str()).collect();
                return late(format!("left are {}", names.join(", ")));
            }
            self.clock.sleep(LOOK_AGAIN).await;
        }
    }

    async fn taint(&self, t: &Taint) -> Done {
        let target = self.target("Node", &t.node, None)?;
        let node = self.client.raw().get(&target).await?;
        let effect = format!("{:?}", t.effect);
        let is = |v: &Value, key: &str, text: &str| v.get(key).and_then(Value::as_str) == Some(text);
        let mut taints = node.at(&["spec", "taints"]).and_then(Value::as_array).cloned().unwrap_or_default();
        let before = taints.len();
        taints.retain(|v| !(is(v, "key", &t.key) && is(v, "effect", &effect)));
        if t.remove && taints.len() == before {
            return Err(StepError::Failed(format!("{} has no taint {}:{effect}", t.node, t.key)));
        }
        if !t.remove {
            let mut taint = json!({"key": t.key, "effect": effect});
            if !t.value.is_empty() {
                taint["value"] = t.value.as_str().into();
            }
            taints.push(taint);
        }
        let body = json!({"spec": {"taints": taints}});
        self.client.raw().patch(&target, &PatchKind::Merge, &body).await?;
        Ok(())
    }

    async fn resize(&self, r: &Resize) -> Done {
        let target = self.target("Pod", &r.pod, Some("resize"))?;
        let mut resources = json!({});
        for (what, of) in [("requests", &r.requests), ("limits", &r.limits)] {
            if !of.is_empty() {
                resources[what] = json!(of);
            }
        }
        let body = json!({"spec": {"containers": [{"name": r.container, "resources": resources}]}});
        self.client.raw().patch(&target, &PatchKind::Strategic, &body).await?;
        Ok(())
    }

    async fn debug(&self, d: &Debug) -> Done {
        let target = self.target("Pod", &d.pod, Some("ephemeralcontainers"))?;
        let mut container = json!({"name": d.name, "image": d.image});
        if !d.command.is_empty() {
            container["command"] = json!(d.command);
        }
        if let Some(of) = &d.target {
            container["targetContainerName"] = of.as_str().into();
        }
        let body = json!({"spec": {"ephemeralContainers": [container]}});
        self.client.raw().patch(&target, &PatchKind::Strategic, &body).await?;
        Ok(())
    }

    /// A refusal that is wanted. What goes wrong in another way is no refusal.
    async fn refused(&mut self, r: &Refused) -> Done {
        let wanted =
            |e: &ApiError| e.code == r.code && r.contains.as_ref().is_none_or(|text| e.message.contains(text.as_str()));
        let text = r.contains.as_ref().map(|c| format!(" and {c:?}")).unwrap_or_default();
        match Box::pin(self.run(&r.step)).await {
            Ok(()) => Err(StepError::Failed(format!("expected a refusal with {}{text}, but the API did it", r.code))),
            Err(StepError::Answered { error, .. }) if wanted(&error) => Ok(()),
            Err(StepError::Answered { error, .. }) => Err(StepError::Failed(format!(
                "expected a refusal with {}{text}, actual {}: {}",
                r.code, error.code, error.message
            ))),
            Err(other) => Err(other),
        }
    }
}
