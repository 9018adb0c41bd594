//! The configuration in force, in the shape of a `KubeletConfiguration`. Source: k/k pkg/kubelet/server/server.go /configz.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{ImagePulls, KubeletConfig, go_duration::print};

impl KubeletConfig {
    /// What `/configz` answers.
    pub(crate) fn show(&self) -> Value {
        let e = &self.eviction;
        let bounds = |hard: bool| -> BTreeMap<&str, String> {
            let mine = e.thresholds.iter().filter(|t| t.is_hard() == hard);
            mine.filter(|t| t.signal.as_str() != "allocatableMemory.available")
                .map(|t| (t.signal.as_str(), t.value.to_string()))
                .collect()
        };
        let grace: BTreeMap<&str, String> =
            e.thresholds.iter().filter(|t| !t.is_hard()).map(|t| (t.signal.as_str(), print(t.grace))).collect();
        let (serial, parallel) = match self.image_pulls {
            ImagePulls::Serial => (true, None),
            ImagePulls::Parallel(n) => (false, n),
        };
        let shutdown: Vec<Value> = self
            .shutdown
            .iter()
            .map(|g| json!({"priority": g.priority, "shutdownGracePeriodSeconds": g.grace.as_secs()}))
            .collect();
        let mut out = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "staticPodPath": self.static_pod_path, "podLogsDir": self.pod_logs_dir,
            "syncFrequency": print(self.sync_period), "fileCheckFrequency": print(self.file_check_period),
            "clusterDomain": self.cluster_domain, "clusterDNS": self.cluster_dns,
            "nodeStatusUpdateFrequency": print(self.node_status_period),
            "nodeStatusReportFrequency": print(self.node_report_period),
            "nodeLeaseDurationSeconds": self.lease_duration.as_secs(), "nodeStatusMaxImages": self.node_status_max_images,
            "imageMinimumGCAge": print(self.image_gc.min_age), "imageMaximumGCAge": print(self.image_gc.max_age),
            "imageGCHighThresholdPercent": self.image_gc.high, "imageGCLowThresholdPercent": self.image_gc.low,
            "maxPods": self.max_pods, "podsPerCore": self.pods_per_core, "podPidsLimit": self.pod_pids_limit,
            "resolvConf": self.resolv_conf,
            "serializeImagePulls": serial, "maxParallelImagePulls": parallel,
            "evictionHard": bounds(true), "evictionSoft": bounds(false), "evictionSoftGracePeriod": grace,
            "evictionPressureTransitionPeriod": print(e.transition), "evictionMaxPodGracePeriod": e.max_pod_grace,
            "localStorageCapacityIsolation": e.local_storage,
            "containerLogMaxSize": podlab_lifecycle::eviction::binary_si(
                i64::try_from(self.container_log_max_size).unwrap_or(i64::MAX)
            ),
            "containerLogMaxFiles": self.container_log_max_files,
            "containerLogMonitorInterval": print(self.container_log_monitor_period),
            "allowedUnsafeSysctls": self.allowed_unsafe_sysctls, "seccompDefault": self.seccomp_default,
            "registerNode": self.register_node, "registerWithTaints": self.taints,
            "shutdownGracePeriodByPodPriority": shutdown,
            "crashLoopBackOff": {"maxContainerRestartPeriod": print(self.max_restart_period)},
            "enforceNodeAllocatable": ["pods"], "cgroupsPerQOS": self.cgroup_root.is_some(),
        });
        if let Some(map) = out.as_object_mut() {
            map.retain(|_, v| !v.is_null() && *v != json!([]) && *v != json!({}));
        }
        json!({"kubeletconfig": out})
    }
}
