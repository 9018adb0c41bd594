//! The Pods of the mix. Each container counts its own starts in a volume and says the number in its termination message,
//! so that a restart count can be held against what really happened.

use std::time::Duration;

use podlab_clock::Rng;
use serde_json::{Value, json};

/// How a Pod shall end.
#[derive(Debug, Clone)]
pub(super) enum End {
    /// By itself; then it is deleted.
    Finishes {
        /// `Succeeded` or `Failed`.
        phase: &'static str,
        /// Of its container's last run.
        code: i32,
        /// Starts of its container, where that is certain.
        starts: Option<i32>,
    },
    /// It serves for a time from when it is Ready, untouched by any kill, and is deleted.
    Serves(Duration),
    /// It is deleted after a time, whatever it has come to.
    Early(Duration),
}

/// One Pod and what shall become of it.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) pod: Value,
    /// A claim made before the Pod and deleted after it.
    pub(super) claim: Option<Value>,
    pub(super) end: End,
    /// Of the deletion; `None` leaves it to the Pod.
    pub(super) grace: Option<Duration>,
    /// Starts of the first init container, where there is one that counts.
    pub(super) init_starts: Option<i32>,
}

/// Notes a start and tells the number of them.
const NOTE: &str = "echo x >> /data/starts; n=$(cat /data/starts | wc -l); echo $n > /dev/termination-log";

fn spec(restart: &str, container: Value) -> Value {
    let mut container = container;
    if let Some(map) = container.as_object_mut() {
        map.insert("name".into(), "c".into());
        map.insert("image".into(), "registry.test/testimage:1".into());
        let mounts = map.entry("volumeMounts").or_insert_with(|| json!([]));
        if let Some(mounts) = mounts.as_array_mut() {
            mounts.push(json!({"name": "data", "mountPath": "/data"}));
        }
    }
    json!({"restartPolicy": restart, "containers": [container], "volumes": [{"name": "data", "emptyDir": {}}]})
}

fn sh(text: &str) -> Value {
    json!(["sh", "-c", format!("{NOTE}; {text}")])
}

fn push(spec: &mut Value, list: &str, item: Value) {
    if let Some(map) = spec.as_object_mut()
        && let Some(list) = map.entry(list).or_insert_with(|| json!([])).as_array_mut()
    {
        list.push(item);
    }
}

const OK: End = End::Finishes { phase: "Succeeded", code: 0, starts: Some(1) };

/// The `n`th Pod.
pub(super) fn draw(n: usize, rng: &Rng) -> Plan {
    let pick = |of: u64| usize::try_from(rng.below(of)).unwrap_or(0);
    let seconds = format!("{}.{}", rng.below(3), rng.below(10));
    let (kind, pod, end): (_, Value, _) = match rng.below(20) {
        0..=2 => ("succeeds", spec("Never", json!({"command": sh(&format!("sleep {seconds}"))})), OK),
        3 | 4 => (
            "fails",
            spec("Never", json!({"command": sh(&format!("sleep {seconds}; exit 7"))})),
            End::Finishes { phase: "Failed", code: 7, starts: Some(1) },
        ),
        5 | 6 => (
            "crash-loops",
            spec("OnFailure", json!({"command": sh("sleep 0.3; test $n -ge 3 || exit 3")})),
            End::Finishes { phase: "Succeeded", code: 0, starts: Some(3) },
        ),
        7 => return inits(n, rng, &seconds),
        8 | 9 => ("sidecar", sidecar(&seconds), OK),
        10 | 11 => ("volumes", volumes(), OK),
        12 => return claim(n, rng),
        13 => (
            "unhealthy",
            spec(
                "OnFailure",
                json!({"command": sh("test $n -ge 3 || sleep 1000"),
                "livenessProbe": {"exec": {"command": ["false"]}, "initialDelaySeconds": 1, "periodSeconds": 1,
                    "failureThreshold": 1, "terminationGracePeriodSeconds": 1}}),
            ),
            // The probe may hit the third start before it has ended.
            End::Finishes { phase: "Succeeded", code: 0, starts: None },
        ),
        14 | 15 => ("serves", serves(), End::Serves(Duration::from_millis(1000 + rng.below(7000)))),
        16 => (
            "hooks",
            spec(
                "Always",
                json!({"command": sh("sleep 1000"), "lifecycle": {
                "postStart": {"exec": {"command": ["touch", "/data/started"]}},
                "preStop": {"exec": {"command": ["sh", "-c", "sleep 0.5; touch /data/stopped"]}}}}),
            ),
            End::Serves(Duration::from_millis(rng.below(3000))),
        ),
        17 => (
            "stubborn",
            spec("Always", json!({"command": sh("trap '' TERM; while true; do sleep 0.2; done")})),
            End::Serves(Duration::from_millis(rng.below(4000))),
        ),
        _ => ("early", serves(), End::Early(Duration::from_millis(rng.below(1200)))),
    };
    let grace = match kind {
        // A process that ignores TERM would make everybody wait for the half minute that is the default.
        "stubborn" => [Some(0), Some(1), Some(3)][pick(3)],
        _ => [None, Some(0), Some(1), Some(5)][pick(4)],
    };
    let plan = Plan {
        kind,
        name: format!("{kind}-{n}"),
        pod,
        claim: None,
        end,
        grace: grace.map(Duration::from_secs),
        init_starts: None,
    };
    named(plan)
}

/// Puts the name and what all have in common into the Pod.
fn named(mut plan: Plan) -> Plan {
    let mut spec = plan.pod.take();
    if let Some(map) = spec.as_object_mut() {
        map.insert("tolerations".into(), json!([{"operator": "Exists"}]));
    }
    plan.pod = json!({"metadata": {"name": plan.name, "labels": {"soak": plan.kind}}, "spec": spec});
    plan
}

/// The first init container fails once, the second finds what the first left.
fn inits(n: usize, rng: &Rng, seconds: &str) -> Plan {
    let mut pod =
        spec("OnFailure", json!({"command": sh(&format!("test -f /data/second || exit 9; sleep {seconds}"))}));
    let mount = json!([{"name": "data", "mountPath": "/data"}]);
    let image = "registry.test/testimage:1";
    let first = "echo x >> /data/first; n=$(cat /data/first | wc -l); echo $n > /dev/termination-log; test $n -ge 2";
    push(
        &mut pod,
        "initContainers",
        json!({"name": "first", "image": image, "volumeMounts": mount, "command": ["sh", "-c", first]}),
    );
    let second = "test -f /data/first && touch /data/second";
    push(
        &mut pod,
        "initContainers",
        json!({"name": "second", "image": image, "volumeMounts": mount, "command": ["sh", "-c", second]}),
    );
    let grace = [None, Some(Duration::ZERO)][usize::try_from(rng.below(2)).unwrap_or(0)];
    named(Plan { kind: "inits", name: format!("inits-{n}"), pod, claim: None, end: OK, grace, init_starts: Some(2) })
}

/// A sidecar serves the main container, which asks it.
fn sidecar(seconds: &str) -> Value {
    let ask = format!("fetch http://127.0.0.1:8080/ || exit 4; sleep {seconds}");
    let mut pod = spec("Never", json!({"command": sh(&ask)}));
    let sidecar = json!({"name": "side", "image": "registry.test/testimage:1", "restartPolicy": "Always",
        "command": ["serve", "--port", "8080"],
        "startupProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 30}});
    push(&mut pod, "initContainers", sidecar);
    pod
}

/// Every kind of volume that needs nobody else.
fn volumes() -> Value {
    let check = "test \"$(cat /conf/key)\" = value || exit 4; test \"$(cat /all/key)\" = value || exit 5; \
        test -s /all/name || exit 6; test -s /all/token || exit 7; touch /mem/x || exit 8; \
        test \"$(cat /one)\" = value || exit 9";
    let mounts = json!([{"name": "conf", "mountPath": "/conf"}, {"name": "all", "mountPath": "/all"},
        {"name": "mem", "mountPath": "/mem"}, {"name": "conf", "mountPath": "/one", "subPath": "key"}]);
    let mut pod = spec("Never", json!({"command": sh(check), "volumeMounts": mounts}));
    let projected = json!({"sources": [{"configMap": {"name": "shared"}}, {"serviceAccountToken": {"path": "token"}},
        {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}]});
    push(&mut pod, "volumes", json!({"name": "conf", "configMap": {"name": "shared"}}));
    push(&mut pod, "volumes", json!({"name": "all", "projected": projected}));
    push(&mut pod, "volumes", json!({"name": "mem", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}));
    pod
}

/// A claim of the default class, made for this Pod alone.
fn claim(n: usize, rng: &Rng) -> Plan {
    let name = format!("claim-{n}");
    let mount = json!([{"name": "claim", "mountPath": "/claim"}]);
    let command = sh("echo kept > /claim/file; test \"$(cat /claim/file)\" = kept || exit 4");
    let mut pod = spec("Never", json!({"command": command, "volumeMounts": mount}));
    push(&mut pod, "volumes", json!({"name": "claim", "persistentVolumeClaim": {"claimName": name}}));
    let claim = json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Mi"}}}});
    let grace = [None, Some(Duration::ZERO), Some(Duration::from_secs(1))][usize::try_from(rng.below(3)).unwrap_or(0)];
    named(Plan { kind: "claim", name, pod, claim: Some(claim), end: OK, grace, init_starts: None })
}

fn serves() -> Value {
    spec(
        "Always",
        json!({"command": ["serve", "--port", "8080"],
        "readinessProbe": {"httpGet": {"port": 8080}, "periodSeconds": 1},
        "livenessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 5}}),
    )
}
