//! The names of a trial and those it has on a foreign cluster. What is sent gets theirs, what comes back gets ours, so that
//! scenario, assertions and timeline see the names that stand in the file.

use podlab_api::Object;
use serde_json::{Value, json};

/// The namespace scenarios name.
pub(crate) const OURS: &str = "default";
/// The label of everything a trial makes on a foreign cluster that is not inside one of its namespaces, and of those.
pub(crate) const RUN_LABEL: &str = "podlab.dev/run";
/// Where a node says its name to selectors.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// An image of the scenarios and what stands for it there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRule {
    /// As scenarios name it.
    pub from: String,
    /// As the cluster can pull it; `{trial}` is another word in each trial, so that no node has it yet.
    pub to: String,
}

impl std::str::FromStr for ImageRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((from, to)) if !from.is_empty() && !to.is_empty() => {
                Ok(Self { from: from.to_owned(), to: to.to_owned() })
            }
            _ => Err("write it as FROM=TO, such as registry.test/testimage:1=registry.example/testimage:1".into()),
        }
    }
}

/// One trial's names.
#[derive(Debug, Clone)]
pub(crate) struct Mapping {
    /// The namespace that is `default` to the scenario.
    pub(crate) namespace: String,
    /// What everything the trial makes is labelled with.
    pub(crate) run: String,
    /// Nodes: theirs, ours.
    pub(crate) nodes: Vec<(String, String)>,
    /// Whether the cluster has more nodes than the scenario asks for, so that Pods are kept on these.
    pub(crate) pinned: bool,
    /// Images: ours, theirs.
    pub(crate) images: Vec<(String, String)>,
}

impl Mapping {
    /// The namespace a request goes to.
    pub(crate) fn namespace_out(&self, namespace: &str) -> String {
        if namespace == OURS { self.namespace.clone() } else { namespace.to_owned() }
    }

    /// A node's name there.
    pub(crate) fn node_out(&self, node: &str) -> String {
        self.nodes.iter().find(|(_, ours)| ours == node).map_or(node, |(theirs, _)| theirs).to_owned()
    }

    /// A node's name here; `None` for one the trial has not.
    pub(crate) fn node_back(&self, node: &str) -> Option<&str> {
        self.nodes.iter().find(|(theirs, _)| theirs == node).map(|(_, ours)| ours.as_str())
    }

    /// An object to send.
    pub(crate) fn out(&self, object: &Value) -> Value {
        let mut object = object.clone();
        self.walk_out(&mut object, "");
        if self.pinned {
            for path in ["/spec", "/spec/template/spec", "/spec/jobTemplate/spec/template/spec"] {
                if let Some(spec) = object.pointer_mut(path).filter(|s| s["containers"].is_array()) {
                    self.pin(spec);
                }
            }
        }
        object
    }

    fn walk_out(&self, value: &mut Value, key: &str) {
        match value {
            Value::Object(map) => map.iter_mut().for_each(|(k, v)| self.walk_out(v, k)),
            Value::Array(list) => list.iter_mut().for_each(|v| self.walk_out(v, key)),
            Value::String(text) => {
                let mapped = match key {
                    "namespace" | "namespaces" => self.namespace_out(text),
                    "nodeName" | "values" | HOSTNAME => self.node_out(text),
                    "image" | "reference" => self.image_out(text),
                    _ => return,
                };
                *text = mapped;
            }
            _ => {}
        }
    }

    fn image_out(&self, image: &str) -> String {
        self.images.iter().find(|(ours, _)| ours == image).map_or(image, |(_, theirs)| theirs).to_owned()
    }

    /// Keeps a Pod on the nodes of the trial, beside whatever it asks for itself.
    fn pin(&self, spec: &mut Value) {
        let names: Vec<&str> = self.nodes.iter().map(|(theirs, _)| theirs.as_str()).collect();
        let on = json!({"key": HOSTNAME, "operator": "In", "values": names});
        let Some(spec) = spec.as_object_mut() else { return };
        let path = ["affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
        let Some(required) = path.iter().try_fold(spec, |at, key| {
            let next = at.entry(*key).or_insert_with(|| json!({}));
            next.as_object_mut()
        }) else {
            return;
        };
        let terms = required.entry("nodeSelectorTerms").or_insert_with(|| json!([{}]));
        for term in terms.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            let all = term.entry("matchExpressions").or_insert_with(|| json!([]));
            all.as_array_mut().into_iter().for_each(|all| all.push(on.clone()));
        }
    }

    /// An object that came back.
    pub(crate) fn back(&self, object: &Object) -> Object {
        let mut value = object.0.clone();
        let node = value["kind"] == "Node";
        self.walk_back(&mut value, "", node);
        Object(value)
    }

    fn walk_back(&self, value: &mut Value, key: &str, node: bool) {
        match value {
            Value::Object(map) => map.iter_mut().for_each(|(k, v)| self.walk_back(v, k, node)),
            Value::Array(list) => list.iter_mut().for_each(|v| self.walk_back(v, key, node)),
            Value::String(text) => {
                let mut mapped = self.text_back(text);
                let named = matches!(key, "nodeName" | "host" | "values" | HOSTNAME) || node && key == "name";
                if named && let Some(ours) = self.node_back(&mapped) {
                    mapped = ours.to_owned();
                } else if key == "message" {
                    mapped = self.nodes.iter().fold(mapped, |text, (theirs, ours)| whole_words(&text, theirs, ours));
                }
                *text = mapped;
            }
            _ => {}
        }
    }

    /// A text that came back: namespaces and images are unmistakable wherever they stand.
    pub(crate) fn text_back(&self, text: &str) -> String {
        let text = if text.contains(&self.namespace) { text.replace(&self.namespace, OURS) } else { text.to_owned() };
        self.images.iter().filter(|(ours, theirs)| ours != theirs).fold(text, |t, (ours, theirs)| {
            // The name that stands for an image has had the namespace in it replaced, if it was made of it.
            let made = theirs.replace(&self.namespace, OURS);
            t.replace(theirs, ours).replace(&made, ours)
        })
    }
}

/// Replaces a name where it is not part of a longer one.
fn whole_words(text: &str, from: &str, to: &str) -> String {
    if from == to || from.is_empty() {
        return text.to_owned();
    }
    let part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(from) {
        let (before, after) = (&rest[..at], &rest[at + from.len()..]);
        // A full stop that ends a sentence is no part of a name.
        let goes_on = |s: &str| {
            let mut chars = s.chars();
            match (chars.next(), chars.next()) {
                (Some('.'), next) => next.is_some_and(part),
                (first, _) => first.is_some_and(part),
            }
        };
        let longer = out.chars().chain(before.chars()).next_back().is_some_and(part) || goes_on(after);
        out.push_str(before);
        out.push_str(if longer { from } else { to });
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(pinned: bool) -> Mapping {
        Mapping {
            namespace: "podlab-7-0".into(),
            run: "7".into(),
            nodes: vec![("worker".into(), "node-1".into())],
            pinned,
            images: vec![("registry.test/testimage:1".into(), "r.example/t:podlab-7-0".into())],
        }
    }

    #[test]
    fn what_is_sent_has_their_names_and_what_comes_back_has_ours() {
        let m = mapping(false);
        let pod = json!({"kind": "Pod", "metadata": {"name": "default", "namespace": "default"}, "spec": {
            "nodeName": "node-1", "containers": [{"name": "c", "image": "registry.test/testimage:1"}]}});
        let out = m.out(&pod);
        assert_eq!(
            out["metadata"],
            json!({"name": "default", "namespace": "podlab-7-0"}),
            "a Pod may be called default"
        );
        assert_eq!(
            (&out["spec"]["nodeName"], &out["spec"]["containers"][0]["image"]),
            (&json!("worker"), &json!("r.example/t:podlab-7-0"))
        );
        assert_eq!(m.back(&Object(out)).0, pod);
    }

    #[test]
    fn events_speak_of_the_namespace_the_image_and_the_node_of_the_scenario() {
        let m = mapping(false);
        let event = json!({"kind": "Event", "metadata": {"namespace": "podlab-7-0"}, "source": {"host": "worker"},
            "message": "Successfully assigned podlab-7-0/a to worker"});
        let back = m.back(&Object(event)).0;
        assert_eq!(back["message"], "Successfully assigned default/a to node-1");
        assert_eq!((&back["source"]["host"], &back["metadata"]["namespace"]), (&json!("node-1"), &json!("default")));
        assert_eq!(
            m.text_back("Pulling image \"r.example/t:podlab-7-0\""),
            "Pulling image \"registry.test/testimage:1\""
        );
    }

    #[test]
    fn a_name_inside_another_is_left_alone() {
        assert_eq!(
            whole_words("on worker, not worker-2, my-worker or worker.x; worker.", "worker", "n"),
            "on n, not worker-2, my-worker or worker.x; n."
        );
        assert_eq!(whole_words("a a a", "a", "a"), "a a a");
    }

    #[test]
    fn a_pod_is_kept_on_the_nodes_of_the_trial_beside_what_it_asks_for() {
        let m = mapping(true);
        let out = m.out(&json!({"kind": "Pod", "spec": {"containers": []}}));
        let required =
            |v: &Value| v["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"].clone();
        let on = json!({"key": HOSTNAME, "operator": "In", "values": ["worker"]});
        assert_eq!(required(&out["spec"]), json!({"nodeSelectorTerms": [{"matchExpressions": [on]}]}));
        let own = json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Exists"}]}, {"matchFields": []}]});
        let job = json!({"kind": "Job", "spec": {"template": {"spec": {"containers": [], "affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": own}}}}}});
        let terms = required(&m.out(&job)["spec"]["template"]["spec"])["nodeSelectorTerms"].clone();
        assert_eq!(terms[0]["matchExpressions"].as_array().map(Vec::len), Some(2), "a term must hold as a whole");
        assert_eq!(terms[1]["matchExpressions"], json!([on]), "and one of them is enough");
    }

    #[test]
    fn an_image_rule_names_both_sides() {
        let rule: ImageRule = "registry.test/testimage:1=r/t:1.{trial}".parse().unwrap();
        assert_eq!((rule.from.as_str(), rule.to.as_str()), ("registry.test/testimage:1", "r/t:1.{trial}"));
        assert!("registry.test/testimage:1".parse::<ImageRule>().is_err());
    }
}
