//! The metrics there are: name, kind, help, buckets.

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only grows.
    Counter,
    /// Read when somebody asks.
    Gauge,
    /// Durations by bucket.
    Histogram,
}

impl Kind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    pub(super) buckets: &'static [f64],
}

const fn row(name: &'static str, kind: Kind, help: &'static str) -> Row {
    Row { name, kind, help, buckets: &[] }
}

const fn times(name: &'static str, help: &'static str, buckets: &'static [f64]) -> Row {
    Row { name, kind: Kind::Histogram, help, buckets }
}

/// 5 ms times 2.5, fourteen of them.
const RUNTIME: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078125,
    0.1953125,
    0.48828125,
    1.220703125,
    3.0517578125,
    7.62939453125,
    19.073486328125,
    47.6837158203125,
    119.20928955078125,
    298.0232238769531,
    745.0580596923828,
];
/// Prometheus' own.
const USUAL: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Starts of Pods.
const STARTS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

use Kind::{Counter, Gauge};

/// All of them, by name.
#[rustfmt::skip]
pub(super) const TABLE: &[Row] = &[
    row("kubelet_active_pods", Gauge, "The number of pods the kubelet considers active and which are being considered when admitting new pods."),
    row("kubelet_admission_rejections_total", Counter, "Cumulative number pod admission rejections by the Kubelet."),
    row("kubelet_desired_pods", Gauge, "The number of pods the kubelet is being instructed to run."),
    row("kubelet_evictions", Counter, "Cumulative number of pod evictions by eviction signal"),
    row("kubelet_image_garbage_collected_total", Counter, "Total number of images garbage collected by the kubelet, whether through disk usage or image age."),
    row("kubelet_mirror_pods", Gauge, "The number of mirror pods the kubelet will try to create (one per admitted static pod)"),
    row("kubelet_node_name", Gauge, "The node's name. The count is always 1."),
    row("kubelet_orphaned_runtime_pods_total", Counter, "Number of pods that have been detected in the container runtime without being already known to the pod worker."),
    times("kubelet_pleg_relist_duration_seconds", "Duration in seconds for relisting pods in PLEG.", USUAL),
    times("kubelet_pod_start_duration_seconds", "Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run", STARTS),
    times("kubelet_pod_worker_duration_seconds", "Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync", USUAL),
    times("kubelet_run_podsandbox_duration_seconds", "Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.", USUAL),
    row("kubelet_run_podsandbox_errors_total", Counter, "Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler."),
    row("kubelet_running_containers", Gauge, "Number of containers currently running"),
    row("kubelet_running_pods", Gauge, "Number of pods that have a running pod sandbox"),
    times("kubelet_runtime_operations_duration_seconds", "Duration in seconds of runtime operations. Broken down by operation type.", RUNTIME),
    row("kubelet_runtime_operations_errors_total", Counter, "Cumulative number of runtime operation errors by operation type."),
    row("kubelet_runtime_operations_total", Counter, "Cumulative number of runtime operations by operation type."),
    row("kubelet_started_containers_errors_total", Counter, "Cumulative number of errors when starting containers"),
    row("kubelet_started_containers_total", Counter, "Cumulative number of containers started"),
    row("kubelet_started_pods_errors_total", Counter, "Cumulative number of errors when starting pods"),
    row("kubelet_started_pods_total", Counter, "Cumulative number of pods started"),
    row("kubelet_working_pods", Gauge, "Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static."),
    times("prober_probe_duration_seconds", "Duration in seconds for a probe response.", USUAL),
    row("prober_probe_total", Counter, "Cumulative number of a liveness, readiness or startup probe for a container by result."),
];

/// The row of a name.
pub(super) fn find(name: &str) -> Option<&'static Row> {
    TABLE.iter().find(|r| r.name == name)
}
