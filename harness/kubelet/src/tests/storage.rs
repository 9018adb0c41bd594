//! Volumes of Pods, from stage to unstage, on the host in memory.
use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use podlab_api::{
    Object,
    core::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Secret},
    storage::{CSIDriver, CSINode},
};
use serde_json::{Value, json};

use super::{World, is_ready, one, run};
use crate::{CsiError, CsiNode, CsiNodeInfo, NodeCapabilities, PluginInfo, Plugins, PublishRequest, StageRequest};

/// A driver that writes down what it is asked.
#[derive(Default)]
struct Driver {
    calls: Mutex<Vec<String>>,
}

#[async_trait]
impl CsiNode for Arc<Driver> {
    async fn info(&self) -> Result<CsiNodeInfo, CsiError> {
        Ok(CsiNodeInfo { node_id: "n1".into(), ..CsiNodeInfo::default() })
    }
    async fn capabilities(&self) -> Result<NodeCapabilities, CsiError> {
        Ok(NodeCapabilities { stage_unstage: true, ..NodeCapabilities::default() })
    }
    async fn stage(&self, r: StageRequest) -> Result<(), CsiError> {
        self.calls.lock().push(format!("stage {}", r.volume_id));
        Ok(())
    }
    async fn unstage(&self, id: &str, _: &Path) -> Result<(), CsiError> {
        self.calls.lock().push(format!("unstage {id}"));
        Ok(())
    }
    async fn publish(&self, r: PublishRequest) -> Result<(), CsiError> {
        let pod = r.target_path.display().to_string().contains("/pods/");
        self.calls.lock().push(format!("publish {} {pod}", r.volume_id));
        Ok(())
    }
    async fn unpublish(&self, id: &str, _: &Path) -> Result<(), CsiError> {
        self.calls.lock().push(format!("unpublish {id}"));
        Ok(())
    }
}

#[async_trait]
impl Plugins for Arc<Driver> {
    async fn info(&self, _: &Path) -> Result<PluginInfo, CsiError> {
        Ok(PluginInfo {
            kind: "CSIPlugin".into(),
            name: "d.test".into(),
            endpoint: String::new(),
            versions: vec!["1.0.0".into()],
        })
    }
    async fn notify(&self, _: &Path, error: &str) -> Result<(), CsiError> {
        self.calls.lock().push(format!("registered {}", error.is_empty()));
        Ok(())
    }
    async fn connect(&self, _: &Path) -> Result<Arc<dyn CsiNode>, CsiError> {
        Ok(Arc::new(self.clone()))
    }
}

async fn create<K: podlab_api::KubeType>(w: &World, namespace: Option<&str>, tree: Value) {
    let object: K = Object(tree).to_typed().unwrap();
    let all = match namespace {
        Some(n) => w.client.namespaced::<K>(n),
        None => w.client.all::<K>(),
    };
    all.create(&object).await.unwrap();
}

#[test]
fn a_csi_volume_is_staged_once_and_taken_down_with_its_last_pod() {
    run(async {
        let driver = Arc::new(Driver::default());
        let w = World::with(Some(Arc::new(driver.clone()))).await;
        w.host.socket(Path::new("/var/lib/kubelet/plugins_registry/d.test-reg.sock"));
        create::<CSIDriver>(&w, None, json!({"metadata": {"name": "d.test"}, "spec": {"attachRequired": false}})).await;
        let claim = json!({"metadata": {"name": "data", "uid": "u1"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}});
        create::<PersistentVolumeClaim>(&w, Some("ns"), claim).await;
        let volume = json!({"metadata": {"name": "pv"}, "spec": {"accessModes": ["ReadWriteOnce"], "claimRef": {"uid": "u1"}, "csi": {"driver": "d.test", "volumeHandle": "h1"}}});
        create::<PersistentVolume>(&w, None, volume).await;
        w.until("registered", |_| driver.calls.lock().contains(&"registered true".to_owned())).await;
        let node: CSINode = w.client.all::<CSINode>().get("node-1").await.unwrap();
        assert_eq!((node.spec.drivers[0].name.as_str(), node.spec.drivers[0].node_id.as_str()), ("d.test", "n1"));

        let mut spec = one("sleep", json!({"volumeMounts": [{"name": "d", "mountPath": "/d"}]}));
        spec["volumes"] = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]);
        for name in ["a", "b"] {
            w.create(name, spec.clone()).await;
            w.until("Ready", |w| is_ready(w, name)).await;
        }
        let in_use = |w: &World| w.api.all("nodes")[0].0["status"]["volumesInUse"].clone();
        assert_eq!(
            in_use(&w),
            json!(["kubernetes.io/csi/d.test^h1"]),
            "shown as soon as it is so, not at the next turn"
        );
        for name in ["a", "b"] {
            w.delete(name).await;
            w.until("gone", |w| w.pod(name).is_none()).await;
        }
        let calls = driver.calls.lock().clone();
        let expect = [
            "registered true",
            "stage h1",
            "publish h1 true",
            "publish h1 true",
            "unpublish h1",
            "unpublish h1",
            "unstage h1",
        ];
        assert_eq!(calls, expect);
        w.until("let go", |w| in_use(w).is_null()).await;
        w.end().await;
    });
}

#[test]
fn a_missing_secret_holds_the_pod_back_without_a_sandbox_until_it_comes() {
    run(async {
        let w = World::new().await;
        let mut spec = one("sleep", json!({"volumeMounts": [{"name": "s", "mountPath": "/s"}]}));
        spec["volumes"] = json!([{"name": "s", "secret": {"secretName": "sec"}}]);
        w.create("a", spec).await;
        let message = "FailedMount: MountVolume.SetUp failed for volume \"s\" : secret \"sec\" not found".to_owned();
        w.until("FailedMount", |w| w.events().contains(&message)).await;
        assert_eq!(w.runtime.counts(), (0, 0));
        create::<Secret>(&w, Some("ns"), json!({"metadata": {"name": "sec"}, "data": {"k": "dg=="}})).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        assert!(w.host.mounts().iter().any(|m| m.ends_with("kubernetes.io~secret/s")));
        w.end().await;
    });
}

#[test]
fn a_changed_config_map_reaches_the_volume_in_one_swap() {
    run(async {
        let w = World::new().await;
        let map = |v: &str| json!({"metadata": {"name": "cm", "namespace": "ns"}, "data": {"k": v}});
        create::<ConfigMap>(&w, Some("ns"), map("one")).await;
        let mut spec = one("sleep", json!({"volumeMounts": [{"name": "c", "mountPath": "/c"}]}));
        spec["volumes"] = json!([{"name": "c", "configMap": {"name": "cm"}}]);
        w.create("a", spec).await;
        w.until("Ready", |w| is_ready(w, "a")).await;
        let uid = w.pod("a").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        let file = Path::new("/var/lib/kubelet/pods").join(uid).join("volumes/kubernetes.io~configmap/c/k");
        assert_eq!(w.host.text(&file).as_deref(), Some("one"));
        let changed: ConfigMap = Object(map("two")).to_typed().unwrap();
        w.client.namespaced::<ConfigMap>("ns").update(&changed).await.unwrap();
        w.until("update", |w| w.host.text(&file).as_deref() == Some("two")).await;
        w.end().await;
    });
}
