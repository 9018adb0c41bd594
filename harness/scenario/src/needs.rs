//! What a scenario needs of the place it is played in: the words it lists, and what its steps and manifests show by
//! themselves. A place that lacks one of them skips the scenario with that reason.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::{Apply, Cel, Moment, Scenario, Step, Worlds, lint::facts};

macro_rules! capabilities {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal,)*) => {
        /// What a scenario can need of the place it is played in.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, JsonSchema)]
        pub enum Capability {
            $($(#[doc = $doc])+ #[serde(rename = $word)] $name,)*
        }

        impl Capability {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// As scenarios write it.
            pub fn word(self) -> &'static str {
                match self { $(Self::$name => $word),* }
            }
        }
    };
}

capabilities! {
    /// Two nodes.
    TwoNodes = "nodes.2",
    /// Faults at the CNI seam.
    FaultCni = "fault.cni",
    /// Faults at the CRI seam.
    FaultCri = "fault.cri",
    /// Faults at the CSI seam, in the node service of a driver.
    FaultCsi = "fault.csi",
    /// Killing and starting a node's agent.
    NodeAgent = "node.agent",
    /// Taking a whole node down and up.
    NodePower = "node.power",
    /// Memory limits that kill.
    KernelOom = "kernel.oom",
    /// Faults at the API.
    FaultApi = "fault.api",
    /// Time that passes at once.
    ClockVirtual = "clock.virtual",
    /// Time that passes as it does, and real containers.
    ClockReal = "clock.real",
    /// Calls at the CRI seam, and image pulls, in the run log.
    TapCri = "tap.cri",
    /// Calls at the CNI seam in the run log.
    TapCni = "tap.cni",
    /// Calls at the CSI seam in the run log.
    TapCsi = "tap.csi",
    /// What the components themselves say in the run log: probes, API requests, scheduling.
    TapParts = "tap.parts",
    /// A look at what the nodes hold for Pods.
    NodeHoldings = "node.holdings",
    /// Nodes that have exactly the CPU the scenario asks for, and nobody else's Pods on them.
    NodeSize = "node.size",
    /// Files of the node at the places where ours keep them, such as the folder of static Pods.
    NodeFiles = "node.files",
    /// Claims of the classes `standard` (default) and `standard-immediate`.
    Storage = "storage",
    /// Services that reach their Pods, and cluster DNS.
    Services = "services",
    /// `private.registry.test`, which wants a password.
    PrivateRegistry = "registry.private",
    /// Nodes that have no image but what was pulled since they were made.
    FreshImages = "images.fresh",
    /// A network that gives a Pod the address its Calico annotation names.
    StaticAddress = "cni.static-address",
}

impl std::str::FromStr for Capability {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|c| c.word() == word).copied();
        let all = || Self::ALL.iter().map(|c| c.word()).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| format!("{word:?} is no capability; there is {}", all()))
    }
}

/// The tap a call `<lane>.<method>` is seen at.
fn tap(call: &str) -> Capability {
    match call.split('.').next() {
        Some("cri" | "image") => Capability::TapCri,
        Some("cni") => Capability::TapCni,
        Some("csi") => Capability::TapCsi,
        _ => Capability::TapParts,
    }
}

/// Where the image of the annotation is named.
const STATIC_ADDRESS: &str = "cni.projectcalico.org/ipAddrs";

impl Scenario {
    /// Everything it needs, each with where that comes from: `requires`, the path of a step, `cluster`, `faults`.
    pub fn needs(&self) -> BTreeMap<Capability, String> {
        let mut needs: BTreeMap<Capability, String> = BTreeMap::new();
        let mut need = |capability, why: &str| {
            needs.entry(capability).or_insert_with(|| why.to_owned());
        };
        self.requires.iter().for_each(|c| need(*c, "requires"));
        if self.clock == Worlds::Virtual {
            need(Capability::ClockVirtual, "clock");
        }
        if self.cluster.nodes > 1 {
            need(Capability::TwoNodes, "cluster.nodes");
        }
        for fault in &self.faults {
            match fault.at.seam() {
                "cni" => need(Capability::FaultCni, "faults"),
                "cri" => need(Capability::FaultCri, "faults"),
                "csi" => need(Capability::FaultCsi, "faults"),
                _ => need(Capability::FaultApi, "faults"),
            }
        }
        self.walk(&mut |path, step| {
            for capability in of_step(step) {
                need(capability, path);
            }
        });
        for object in self.applied() {
            for capability in of_object(&object) {
                need(capability, "a manifest");
            }
        }
        needs
    }

    /// The objects it applies, as far as they are known before it is played.
    fn applied(&self) -> Vec<Value> {
        let mut all = Vec::new();
        self.walk(&mut |_, step| {
            let Step::Apply(apply) = step else { return };
            let text = match apply {
                Apply::Yaml(text) => Some(text.clone()),
                Apply::File(file) => self.beside(file),
            };
            let documents = format!("\n{}", text.unwrap_or_default()).replace("\n---\n", "\n\u{0}");
            all.extend(documents.split('\u{0}').filter_map(|d| serde_saphyr::from_str::<Value>(d).ok()));
        });
        all
    }
}

fn of_step(step: &Step) -> Vec<Capability> {
    let mut out = Vec::new();
    match step {
        Step::Agent(_) => out.push(Capability::NodeAgent),
        Step::Node(_) => out.push(Capability::NodePower),
        Step::LeakFree(_) => out.push(Capability::NodeHoldings),
        Step::Rpc(calls) => out.extend(calls.keys().map(|c| tap(c))),
        Step::Never(n) => out.extend(n.of.iter().filter_map(of_moment).chain(n.that.iter().flat_map(of_expression))),
        Step::Expect(e) => out.extend(of_expression(&e.that)),
        Step::If(i) => out.extend(of_expression(&i.that)),
        Step::ForEach(f) => out.extend(of_expression(&f.list)),
        Step::Repeat(r) => out.extend(r.until.iter().flat_map(of_expression)),
        Step::Bind(names) => out.extend(names.values().flat_map(of_expression)),
        Step::Events(e) => {
            // Whether an image is pulled or found is told of.
            out.extend(e.are.iter().any(|e| e.reason == "Pulling").then_some(Capability::FreshImages))
        }
        _ => {}
    }
    out.extend(facts::moments_of(step).iter().filter_map(of_moment));
    out
}

fn of_moment(moment: &Moment) -> Option<Capability> {
    moment.call.as_deref().map(tap)
}

/// The taps of the calls an expression counts: all of them when it does not name one.
fn of_expression(e: &Cel) -> Vec<Capability> {
    if !e.free().is_ok_and(|free| free.contains("calls")) {
        return Vec::new();
    }
    let named = |text: &str| tap(text.trim_start_matches(['[', '"', '\'']));
    e.0.split("calls").skip(1).map(named).collect()
}

fn of_object(object: &Value) -> Vec<Capability> {
    let mut out = Vec::new();
    match object["kind"].as_str().unwrap_or_default() {
        "PersistentVolumeClaim" => out.push(Capability::Storage),
        "StatefulSet" if object["spec"]["volumeClaimTemplates"].is_array() => out.push(Capability::Storage),
        "Service" => out.push(Capability::Services),
        _ => {}
    }
    look(object, "", &mut |key, value| match (key, value.as_str()) {
        ("image", Some(image)) if image.starts_with("private.registry.test/") => {
            out.push(Capability::PrivateRegistry);
        }
        ("imagePullPolicy", Some("Never")) => out.push(Capability::FreshImages),
        (STATIC_ADDRESS, _) => out.push(Capability::StaticAddress),
        ("requests", _) if value.get("cpu").is_some() => out.push(Capability::NodeSize),
        ("hostPath", _) => out.push(Capability::NodeFiles),
        ("ephemeral", _) if value.get("volumeClaimTemplate").is_some() => out.push(Capability::Storage),
        _ => {}
    });
    out
}

fn look(tree: &Value, key: &str, each: &mut dyn FnMut(&str, &Value)) {
    each(key, tree);
    match tree {
        Value::Object(map) => map.iter().for_each(|(k, v)| look(v, k, each)),
        Value::Array(list) => list.iter().for_each(|v| look(v, key, each)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn needs(body: &str) -> Vec<&'static str> {
        let text = format!("apiVersion: podlab/v1\nkind: Scenario\nintent: Something holds.\n{body}");
        let s = crate::parse(&text, Path::new("x.yaml")).unwrap_or_else(|e| panic!("{e}"));
        s.needs().keys().map(|c| c.word()).collect()
    }

    fn pod(spec: &str) -> String {
        format!(
            "when:\n- apply: {{yaml: '{{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {{\"name\": \"a\"}}, \"spec\": {spec}}}'}}\n\
             then:\n- eventually: {{match: {{pod: a, phase: Running}}, within: 1s}}\n"
        )
    }

    #[test]
    fn every_word_of_a_capability_means_one_and_is_what_scenarios_write() {
        for c in Capability::ALL {
            assert_eq!(c.word().parse::<Capability>().as_ref(), Ok(c));
            let written: Capability = serde_json::from_value(c.word().into()).unwrap();
            assert_eq!(written, *c);
        }
        assert!("fault.cnj".parse::<Capability>().unwrap_err().contains("fault.cni"));
    }

    #[test]
    fn what_steps_and_manifests_need_is_known_without_being_listed() {
        assert_eq!(needs(&pod(r#"{"containers": [{"name": "c", "image": "registry.test/testimage:1"}]}"#)), [""; 0]);
        assert_eq!(
            needs(&pod(
                r#"{"containers": [{"name": "c", "image": "private.registry.test/a:1", "imagePullPolicy": "Never", "resources": {"requests": {"cpu": "1"}}}]}"#
            )),
            ["node.size", "registry.private", "images.fresh"]
        );
        assert_eq!(needs("then:\n- leakFree: [ips]\n- rpc: {cni.ADD: {exactly: 3}}\n"), ["tap.cni", "node.holdings"]);
        assert_eq!(
            needs("clock: virtual\nthen:\n- times: {of: {call: probe.Liveness}, atLeast: 1}\n"),
            ["clock.virtual", "tap.parts"]
        );
        assert_eq!(
            needs("then:\n- expect: {that: 'calls[\"cri.RunPodSandbox\"] == 1'}\n- expect: {that: size(calls) == 1}\n"),
            ["tap.cri", "tap.parts"]
        );
        assert_eq!(
            needs(
                "requires: [node.agent]\ncluster: {nodes: 2}\nwhen:\n- agent: {restart: node-1}\nthen:\n- leakFree: [ips]\n"
            ),
            ["nodes.2", "node.agent", "node.holdings"]
        );
    }
}
