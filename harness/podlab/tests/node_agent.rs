//! What a node agent does for its node, on real containers: static Pods and their mirrors, limits on local storage,
//! disk pressure, graceful shutdown.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use podlab_api::{
    Object,
    core::{Node, Pod},
};
use podlab_client::{
    Client, DeleteOptions, ListOptions,
    http::HttpApi,
    kubeconfig,
    reflector::{Cache, Delta, reflector},
};
use podlab_clock::Clock;
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Longer than any state takes to come about.
const LIMIT: Duration = Duration::from_secs(40);
const NAME: &str = "nodeagent";
const CONFIG: &str = "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
evictionPressureTransitionPeriod: 5s
evictionHard: {nodefs.available: 3700Mi}
shutdownGracePeriod: 4s
shutdownGracePeriodCriticalPods: 2s
";
const STATIC: &str = "apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: 'registry.test/testimage:1', args: [serve]}]
";

struct World {
    state: std::path::PathBuf,
    client: Client,
    clock: Clock,
    pods: Cache<Pod>,
    deltas: mpsc::Receiver<Delta<Pod>>,
}

fn podlab(state: &Path, args: &[&str], input: &str) -> String {
    let program = env!("CARGO_BIN_EXE_podlab");
    let mut child = Command::new(program)
        .args(args)
        .env("PODLAB_STATE", state)
        .current_dir(state)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

impl World {
    /// Runs a program in the node.
    fn inside(&self, command: &[&str], input: &str) -> String {
        let args = [&["enter", "--name", NAME, "--node", "node-1", "--"][..], command].concat();
        podlab(&self.state, &args, input)
    }

    fn verb(&self, args: &[&str]) {
        podlab(&self.state, args, "");
    }

    fn pod(&self, name: &str) -> Option<Value> {
        self.pods.get("default", name).map(|p| serde_json::to_value(&*p).unwrap())
    }

    /// Waits for a state of the Pods.
    async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let clock = self.clock;
        let wait = async {
            while !done(self) {
                self.deltas.recv().await.expect("the reflector outlives the test");
            }
        };
        assert!(clock.timeout(LIMIT, wait).await.is_some(), "waited in vain for {what}: {:?}", self.pods.list());
    }

    async fn create(&self, name: &str, spec: Value) {
        let tree = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        let pod: Pod = Object(tree).to_typed().unwrap();
        self.client.namespaced::<Pod>("default").create(&pod).await.unwrap();
    }

    async fn condition(&self, kind: &str) -> String {
        let node: Node = self.client.all::<Node>().get("node-1").await.unwrap();
        let all = node.status.unwrap().conditions.unwrap();
        all.iter().find(|c| c.type_ == kind).unwrap().status.clone()
    }
}

fn ready(w: &World, name: &str) -> bool {
    let all = w.pod(name).map(|p| p["status"]["conditions"].clone()).unwrap_or_default();
    all.as_array().into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

fn phase(w: &World, name: &str) -> String {
    w.pod(name).and_then(|p| p["status"]["phase"].as_str().map(str::to_owned)).unwrap_or_default()
}

fn with_volume(limit: Option<&str>) -> Value {
    let source = limit.map_or(json!({}), |l| json!({"sizeLimit": l}));
    json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "c", "image": "registry.test/testimage:1", "args": ["serve"],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "emptyDir": source}],
    })
}

/// Writes mebibytes into a Pod's volume, as the node sees it.
fn fill(w: &World, pod: &str, mebibytes: u32) {
    let uid = w.pod(pod).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let file = format!("of=/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/v/filler");
    w.inside(&["dd", "if=/dev/zero", &file, "bs=1M", &format!("count={mebibytes}")], "");
}

#[test]
fn a_node_agent_keeps_its_node_in_order() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("kubelet.yaml"), CONFIG).unwrap();
    let up = ["up", "--name", NAME, "--kubelet-config", "kubelet.yaml", "--kubelet-flag", "max-pods=9"];
    podlab(dir.path(), &up, "");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let state = dir.path().to_owned();
    let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(play(&state))));
    podlab(dir.path(), &["down", "--name", NAME], "");
    if let Err(panic) = played {
        std::panic::resume_unwind(panic);
    }
}

async fn play(state: &Path) {
    let clock = Clock::real();
    let access = kubeconfig::load(&state.join("podlab.kubeconfig")).unwrap();
    let client = Client::new(Arc::new(HttpApi::new(&access).unwrap()));
    let (run, pods, deltas) = reflector::<Pod>(&client, Some("default"), ListOptions::default(), clock, 1024);
    let mut tasks = JoinSet::new();
    tasks.spawn(run.run(CancellationToken::new()));
    let mut w = World { state: state.to_owned(), client, clock, pods, deltas };

    let node: Node = w.client.all::<Node>().get("node-1").await.unwrap();
    assert_eq!(node.status.unwrap().capacity.unwrap()["pods"].0, "9");

    static_pod(&mut w).await;
    storage(&mut w).await;
    shutdown(&mut w).await;
    tasks.shutdown().await;
}

async fn static_pod(w: &mut World) {
    w.inside(&["tee", "/etc/kubernetes/manifests/web.yaml"], STATIC);
    w.until("static Pod", |w| ready(w, "web-node-1")).await;
    let shown = |w: &World| {
        let p = w.pod("web-node-1").unwrap();
        (p["metadata"]["uid"].clone(), p["status"]["containerStatuses"][0]["containerID"].clone())
    };
    let (mirror, container) = shown(w);
    w.client.namespaced::<Pod>("default").delete("web-node-1", &DeleteOptions::default()).await.unwrap();
    w.until("a new mirror", |w| ready(w, "web-node-1") && shown(w).0 != mirror).await;
    assert_eq!(shown(w).1, container, "the container does not notice");
    w.verb(&["node", "kill", "node-1", "--name", NAME]);
    w.verb(&["node", "start", "node-1", "--name", NAME]);
    // A Pod that becomes Ready proves that the agent is at work again.
    w.create("after", json!({"containers": [{"name": "c", "image": "registry.test/testimage:1", "args": ["serve"]}]}))
        .await;
    w.until("the agent is back", |w| ready(w, "after")).await;
    assert_eq!(shown(w).1, container, "nor does it notice a new agent");
    w.inside(&["rm", "/etc/kubernetes/manifests/web.yaml"], "");
    w.until("gone", |w| w.pod("web-node-1").is_none()).await;
}

async fn storage(w: &mut World) {
    w.create("limited", with_volume(Some("1Mi"))).await;
    w.create("filler", with_volume(None)).await;
    w.until("Pods", |w| ready(w, "limited") && ready(w, "filler")).await;
    fill(w, "limited", 2);
    w.until("eviction", |w| phase(w, "limited") == "Failed").await;
    let p = w.pod("limited").unwrap();
    assert_eq!(p["status"]["reason"], "Evicted");
    assert_eq!(p["status"]["message"], "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ");
    // The disk has 4 GiB, and is memory: most of it must stay free, so that the test itself puts no pressure on its machine.
    fill(w, "filler", 400);
    w.until("eviction", |w| phase(w, "filler") == "Failed").await;
    let p = w.pod("filler").unwrap();
    let message = p["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("The node was low on resource: ephemeral-storage. Threshold quantity: "), "{message}");
    let conditions = p["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|c| c["type"] == "DisruptionTarget" && c["reason"] == "TerminationByKubelet"));
    assert_eq!(w.condition("DiskPressure").await, "True");
    assert!(ready(w, "after"), "whoever uses nothing stays: {}", w.pod("after").unwrap_or_default()["status"]);
}

async fn shutdown(w: &mut World) {
    w.inside(&["mkdir", "-p", "/run/systemd/shutdown"], "");
    w.inside(&["tee", "/run/systemd/shutdown/scheduled"], "MODE=poweroff\n");
    w.until("the end", |w| phase(w, "after") == "Failed").await;
    let p = w.pod("after").unwrap();
    assert_eq!(p["status"]["reason"], "Terminated");
    assert_eq!(p["status"]["message"], "Pod was terminated in response to imminent node shutdown.");
    assert_eq!(w.condition("Ready").await, "False");
}
