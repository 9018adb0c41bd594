//! Trials on clusters that are not made for them: a cluster given by a kubeconfig (here one of our own, which plays the
//! foreign one), kind as far as it goes without an image of a node, and what is said when there is no engine.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where it stopped")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::Arc,
};

use podlab_api::{Object, ResourceRef, core::Namespace};
use podlab_client::{Api, Collection, ListOptions, http::HttpApi, kubeconfig};
use serde_json::json;

const PODLAB: &str = env!("CARGO_BIN_EXE_podlab");
const POD: &str = "when:\n- apply: {yaml: '{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: \"registry.test/testimage:1\", command: [serve]}]}}'}\n";

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut c = Command::new(PODLAB);
    c.args(args).env("PODLAB_STATE", dir.join("state")).env_remove("KUBECONFIG").current_dir(dir);
    c
}

fn run(dir: &Path, args: &[&str]) -> Output {
    command(dir, args).output().unwrap()
}

fn said(o: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr))
}

/// A cluster that was there before any trial, with a scenario folder beside it.
struct There {
    dir: tempfile::TempDir,
}

impl There {
    fn up(scenarios: &[(&str, String)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("s/t")).unwrap();
        for (name, text) in scenarios {
            let head = "apiVersion: podlab/v1\nkind: Scenario\n";
            fs::write(dir.path().join(format!("s/t/{name}.yaml")), format!("{head}{text}")).unwrap();
        }
        let o = run(dir.path(), &["up", "--name", "there", "--kubeconfig", "there.kubeconfig"]);
        assert!(o.status.success(), "{}", said(&o));
        Self { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn e2e(&self, more: &[&str]) -> Output {
        let mut args = vec![
            "e2e",
            "--backend",
            "kubeconfig",
            "--kubeconfig",
            "there.kubeconfig",
            "--scenarios",
            "s",
            "--out",
            "out",
        ];
        args.extend(more);
        run(self.path(), &args)
    }

    fn report(&self) -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(self.path().join("out/report.json")).unwrap()).unwrap()
    }

    fn api<T>(&self, ask: impl AsyncFnOnce(Arc<HttpApi>) -> T) -> T {
        let access = kubeconfig::load(&self.path().join("there.kubeconfig")).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { ask(Arc::new(HttpApi::new(&access).unwrap())).await })
    }

    /// Namespaces that are there, except those every cluster has.
    fn namespaces(&self) -> Vec<String> {
        self.api(async |api| {
            let all = Collection { resource: ResourceRef::of::<Namespace>(), namespace: None };
            let list = api.list(&all, &ListOptions::default()).await.unwrap();
            let own = |n: &&Arc<Object>| n.name() != "default" && !n.name().starts_with("kube-");
            list.items.iter().filter(own).map(|n| n.name().to_owned()).collect()
        })
    }

    fn create(&self, resource: ResourceRef, object: serde_json::Value) {
        self.api(async |api| {
            api.create(&Collection { resource, namespace: None }, None, Object(object)).await.unwrap();
        });
    }
}

impl Drop for There {
    fn drop(&mut self) {
        run(self.path(), &["down", "--name", "there"]);
    }
}

const CLASSES: ResourceRef = ResourceRef {
    group: "scheduling.k8s.io",
    version: "v1",
    plural: "priorityclasses",
    kind: "PriorityClass",
    namespaced: false,
};

#[test]
fn trials_on_a_cluster_that_was_there_see_their_own_names_and_leave_it_as_it_was() {
    let class = "when:\n- apply: {yaml: '{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: NAME}, value: 7}'}\n";
    let ready = "- eventually: {match: {pod: a, condition: Ready}, within: 60s}\n";
    let scheduled = "- eventually: {match: {pod: a, event: {reason: Scheduled, message: Successfully assigned default/a to node-1}}, within: 9s}\n";
    let there = There::up(&[
        (
            "a",
            format!(
                "intent: A Pod becomes Ready where others live.\nclock: both\n{POD}then:\n{ready}{scheduled}snapshot: {{timeline: [a]}}\n"
            ),
        ),
        (
            "b",
            format!(
                "intent: A class of its own goes with the trial.\n{}{}then:\n{ready}",
                class.replace("NAME", "mine"),
                &POD[6..]
            ),
        ),
        (
            "c",
            format!(
                "intent: A class of somebody else stays as it is.\n{}{}then:\n{ready}",
                class.replace("NAME", "theirs"),
                &POD[6..]
            ),
        ),
        ("d", format!("intent: A look at the nodes is not to be had here.\n{POD}then:\n{ready}- leakFree: [ips]\n")),
        ("e", format!("intent: A day passes at once, which is not so here.\nclock: virtual\n{POD}then:\n{ready}")),
    ]);
    there.create(CLASSES, json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "theirs"}, "value": 1}));
    // What a runner that is no more left behind, and what one that may still live on another machine has.
    let label = |run: &str, runner: &str| {
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": format!("podlab-{run}"),
            "labels": {"podlab.dev/run": run}, "annotations": {"podlab.dev/runner": runner}}})
    };
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    there.create(ResourceRef::of::<Namespace>(), label("dead", &format!("{} 1 1", host.trim())));
    there.create(ResourceRef::of::<Namespace>(), label("far", "elsewhere 1 1"));

    let o = there.e2e(&[]);
    assert!(there.path().join("out/report.json").exists(), "{}", said(&o));
    let report = there.report();
    let verdict = |name: &str| {
        let all = report["trials"].as_array().unwrap();
        let one = all.iter().find(|t| t["name"] == format!("t/{name}")).unwrap();
        (one["verdict"].as_str().unwrap().to_owned(), one.to_string())
    };
    for (name, word, why) in [
        ("a", "passed", ""),
        ("b", "passed", ""),
        ("c", "failed", "PriorityClass theirs is somebody else's"),
        ("d", "skipped", "node.holdings (then[2])"),
        ("e", "skipped", "clock.virtual"),
    ] {
        let (was, whole) = verdict(name);
        assert!(was == word && whole.contains(why), "{name}: {whole}\n{}", said(&o));
    }
    assert_eq!(o.status.code(), Some(1), "{}", said(&o));
    assert_eq!(there.namespaces(), ["podlab-far"], "{}", said(&o));
    let classes = there.api(async |api| {
        let list = api.list(&Collection { resource: CLASSES, namespace: None }, &ListOptions::default()).await.unwrap();
        list.items
            .iter()
            .filter(|c| !c.name().starts_with("system-"))
            .map(|c| (c.name().to_owned(), c.0["value"].clone()))
            .collect::<Vec<_>>()
    });
    assert_eq!(classes, [("theirs".to_owned(), json!(1))]);

    // The same scenario in two places: what a watcher saw is the same, whatever the places call things.
    let parity = [
        "parity",
        "t/a",
        "--on",
        "virtual",
        "--on",
        "kubeconfig",
        "--kubeconfig",
        "there.kubeconfig",
        "--scenarios",
        "s",
        "--out",
        "par",
    ];
    let o = run(there.path(), &parity);
    // The image is on the node by now, which is no secret.
    assert!(said(&o).contains("already present on machine") && o.status.code() == Some(1), "{}", said(&o));
    let o = run(there.path(), &["parity", "--from", "out", "--from", "out"]);
    assert!(said(&o).contains("is the same in 2 and differs in 0") && o.status.success(), "{}", said(&o));
}

/// A program `kind` that writes down what it is asked, and hands out the kubeconfig of a cluster that is there.
fn fake_kind(there: &There) -> PathBuf {
    let bin = there.path().join("bin");
    fs::create_dir_all(&bin).unwrap();
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> {dir}/asked\ncase $1 in\nget) echo podlab-1-1; echo somebody;;\ncreate) while [ $# -gt 1 ]; do if [ \"$1\" = --kubeconfig ]; then cp {dir}/there.kubeconfig \"$2\"; fi; shift; done;;\nesac\n",
        dir = there.path().display()
    );
    let path = bin.join("kind");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    bin
}

#[test]
fn kind_makes_a_cluster_gets_the_image_and_is_told_to_delete_it() {
    let there = There::up(&[(
        "a",
        format!(
            "intent: A Pod becomes Ready on kind.\n{POD}then:\n- eventually: {{match: {{pod: a, condition: Ready}}, within: 60s}}\n"
        ),
    )]);
    let bin = fake_kind(&there);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let args =
        ["e2e", "--backend", "kind", "--node-image", "node:1", "--kind-nodes", "2", "--scenarios", "s", "--out", "out"];
    let o = command(there.path(), &args).env("PATH", path).output().unwrap();
    assert!(o.status.success(), "{}", said(&o));
    let asked = fs::read_to_string(there.path().join("asked")).unwrap();
    let lines: Vec<&str> = asked.lines().collect();
    assert_eq!(lines.len(), 5, "{asked}");
    assert_eq!(lines[0], "get clusters");
    assert_eq!(lines[1], "delete cluster --name podlab-1-1", "of a run that is no more; not of somebody else");
    let name = lines[2].strip_prefix("create cluster --name ").unwrap().split(' ').next().unwrap();
    assert_eq!(
        lines[2],
        format!(
            "create cluster --name {name} --kubeconfig out/kind.kubeconfig --config out/kind.yaml --wait 180s --image node:1"
        )
    );
    assert_eq!(lines[3], format!("load image-archive out/testimage.tar --name {name}"));
    assert_eq!(lines[4], format!("delete cluster --name {name} --kubeconfig out/kind.kubeconfig"));
    assert!(
        fs::read_to_string(there.path().join("out/kind.yaml"))
            .unwrap()
            .ends_with("- role: control-plane\n- role: worker\n")
    );
    assert!(there.path().join("out/testimage.tar").exists());
    assert!(!there.path().join("out/kind.kubeconfig").exists(), "keys do not stay among reports");
}

#[test]
fn a_place_that_cannot_be_had_is_said_in_one_sentence_and_nothing_is_played() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("s/t")).unwrap();
    let text = format!(
        "apiVersion: podlab/v1\nkind: Scenario\nintent: A Pod becomes Ready.\n{POD}then:\n- eventually: {{match: {{pod: a, condition: Ready}}, within: 60s}}\n"
    );
    fs::write(dir.path().join("s/t/a.yaml"), text).unwrap();
    fs::write(dir.path().join("odd.kubeconfig"), "current-context: a\ncontexts: []\nclusters: []\nusers: []\n")
        .unwrap();
    for (backend, more, host, why) in [
        (
            "container",
            &[][..],
            "unix:///nowhere/docker.sock",
            "the Docker engine at unix:///nowhere/docker.sock does not answer",
        ),
        ("container", &[], "tcp://192.0.2.1:2375", "must be on this machine"),
        ("kind", &[], "", "the program kind is not on PATH"),
        ("kubeconfig", &[], "", "needs --kubeconfig FILE"),
        ("kubeconfig", &["--kubeconfig", "none"], "", "read none"),
        ("kubeconfig", &["--kubeconfig", "odd.kubeconfig"], "", "has no context \"a\""),
        ("kubeconfig", &["--kubeconfig", "odd.kubeconfig", "--has", "wings"], "", "\"wings\" is no capability"),
        ("container", &["--world", "virtual"], "", "leave out --backend"),
    ] {
        let mut args = vec!["e2e", "--backend", backend, "--scenarios", "s", "--out", "out"];
        args.extend(more);
        let o = command(dir.path(), &args).env("PATH", "/nowhere").env("DOCKER_HOST", host).output().unwrap();
        assert!(o.status.code() == Some(2) && said(&o).contains(why), "{backend} {more:?}: {}", said(&o));
        assert!(!dir.path().join("out/session.jsonl").exists());
    }
}

#[test]
fn a_cluster_in_the_foreground_outlives_those_who_look_at_it_and_ends_with_its_process() {
    use std::io::{BufRead, BufReader};
    let dir = tempfile::tempdir().unwrap();
    let mut up =
        command(dir.path(), &["up", "--name", "front", "--foreground"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(up.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("is ready"), "{line}");
    for _ in 0..2 {
        let o = run(dir.path(), &["node", "holdings", "node-1", "--name", "front"]);
        assert_eq!(said(&o), "[]");
    }
    assert!(up.try_wait().unwrap().is_none(), "who came to look must not end it");
    let asked = Command::new("kill").args(["-TERM", &up.id().to_string()]).status().unwrap();
    assert!(asked.success() && up.wait().unwrap().success());
    assert!(!said(&run(dir.path(), &["ps"])).contains("front"));
}
