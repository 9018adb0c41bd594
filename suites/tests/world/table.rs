//! Every number of the node agent and of recovery that a user can wait for, with where it is from and where it is shown.
//!
//! A reader checks completeness here; the test below checks that what is named exists and says the number. A number with
//! bounds is one that jitter decides.

use std::{fs, path::PathBuf};

use podlab_scenario::{Step, Worlds, load};

/// Where a number is shown.
enum Shown {
    /// A scenario of the virtual world, and a line of it.
    In(&'static str, &'static str),
    /// A test: its file, its function, and a part of its text.
    By(&'static str, &'static str, &'static str),
}

use Shown::{By, In};

/// What, how much, upstream's place, and where it is shown.
type Number = (&'static str, &'static str, &'static str, Shown);

const CLOCK: &str = "suites/tests/world/clockwork.rs";
const AGENT: &str = "harness/kubelet/src/tests/numbers.rs";
const ZONES: &str = "harness/controllers/src/zones.rs";
const WORKER: &str = "harness/lifecycle/src/worker.rs";

const LOOP: &str = "virtual/backoff/crash-loop-doubles-from-ten-seconds-to-five-minutes";
const PULL: &str = "virtual/backoff/image-pulls-double-from-ten-seconds-to-five-minutes";
const MOUNT: &str = "virtual/volumes/mounts-are-tried-again-from-half-a-second-to-two-minutes";

#[rustfmt::skip]
const NUMBERS: &[Number] = &[
    // Workers and loops of the node agent.
    ("resync of a healthy Pod", "60 s to 90 s", "pkg/kubelet/pod_workers.go completeWork, apis/config/v1beta1/defaults.go SyncFrequency", By(WORKER, "a_worker_comes_again_when_upstreams_would", "secs(60)")),
    ("retry of a failed sync", "10 s to 15 s", "pkg/kubelet/kubelet.go backOffPeriod, pod_workers.go workerBackOffPeriodJitterFactor", In("virtual/backoff/a-sandbox-that-fails-is-tried-again-after-ten-seconds", "nth: 2}, atLeast: 10s, atMost: 15s")),
    ("retry without a network", "1 s to 1.5 s", "pkg/kubelet/pod_workers.go backOffOnTransientErrorPeriod", By(WORKER, "a_worker_comes_again_when_upstreams_would", "ms(1500)")),
    ("retry without a network, as its Pod is told", "6 in 9 s", "pkg/kubelet/pod_workers.go completeWork", In("virtual/node/a-network-that-is-not-ready-is-asked-for-each-second", "count: 6")),
    ("housekeeping", "2 s", "pkg/kubelet/kubelet.go housekeepingPeriod", By(AGENT, "what_an_agent_finds_and_nobody_knows_is_stopped_at_the_first_housekeeping_after_two_seconds", "secs(2)")),
    ("status resync", "10 s", "pkg/kubelet/status/status_manager.go syncPeriod", By(AGENT, "a_status_that_somebody_else_wrote_over_is_put_right_each_ten_seconds", "secs(40)")),
    ("manifests looked for", "20 s", "apis/config/v1beta1/defaults.go FileCheckFrequency", By(AGENT, "manifests_are_looked_for_each_twenty_seconds", "secs(40)")),
    ("container garbage collection", "60 s", "pkg/kubelet/kubelet.go ContainerGCPeriod", By(AGENT, "garbage_is_collected_each_minute", "secs(60)")),
    ("image garbage collection", "5 m", "pkg/kubelet/kubelet.go ImageGCPeriod", By(AGENT, "unused_images_go_each_five_minutes_from_eighty_five_percent_on_down_to_eighty", "secs(300)")),
    ("image garbage collection thresholds", "85 %, 80 %", "apis/config/v1beta1/defaults.go ImageGCHighThresholdPercent, ImageGCLowThresholdPercent", By(AGENT, "unused_images_go_each_five_minutes_from_eighty_five_percent_on_down_to_eighty", "(170, 2)")),
    ("youngest image collected", "2 m", "apis/config/v1beta1/defaults.go ImageMinimumGCAge", By(AGENT, "unused_images_go_each_five_minutes_from_eighty_five_percent_on_down_to_eighty", "old:3")),
    ("log rotation looked at", "10 s", "apis/config/v1beta1/defaults.go ContainerLogMonitorInterval", By(AGENT, "logs_are_looked_at_each_ten_seconds", "secs(30)")),
    ("active deadline", "30 s from the Pod's start", "pkg/kubelet/active_deadline.go", In("virtual/termination/the-active-deadline-ends-a-pod", "atLeast: 29s, atMost: 30s")),
    // Probes.
    ("probe period", "10 s", "pkg/apis/core/v1/defaults.go SetDefaults_Probe", In("virtual/probes/three-failures-ten-seconds-apart-restart", "to: {call: probe.Liveness, nth: 2}, is: 10s")),
    ("failure threshold", "3", "pkg/apis/core/v1/defaults.go SetDefaults_Probe", In("virtual/probes/three-failures-ten-seconds-apart-restart", "{from: {call: probe.Liveness, nth: 3}, to: {call: cri.StopContainer, nth: 1}, is: 0s}")),
    ("startup probe of 30 failures", "290 s", "pkg/kubelet/prober/worker.go", In("virtual/probes/a-startup-probe-allows-thirty-failures", "is: 290s")),
    ("initial delay", "20 s", "pkg/kubelet/prober/worker.go doProbe", In("virtual/probes/the-first-probe-waits-for-its-initial-delay", "is: 20s")),
    ("success threshold", "of readiness", "pkg/kubelet/prober/worker.go doProbe", In("virtual/probes/readiness-takes-its-success-threshold", "atLeast: 7s, atMost: 14s")),
    ("probe timeout", "2 s", "pkg/probe/exec/exec.go", In("virtual/probes/an-exec-probe-is-cut-off-at-its-timeout", "is: 2s")),
    ("a probe's own grace period", "4 s", "pkg/kubelet/kuberuntime/kuberuntime_container.go setTerminationGracePeriod", In("virtual/probes/a-probe-brings-its-own-grace-period", "is: 4s")),
    ("first probe of a young agent", "0 to a period", "pkg/kubelet/prober/worker.go run", In("virtual/probes/a-young-agent-spreads-its-first-probes-over-a-period", "atMost: 30s")),
    ("tries of a probe that errs", "3 at once", "pkg/kubelet/prober/prober.go maxProbeRetries", In("virtual/probes/a-probe-that-cannot-be-made-is-tried-three-times-at-once", "nth: [1, 2]")),
    ("tries of a probe that errs, no more than", "3", "pkg/kubelet/prober/prober.go maxProbeRetries", In("virtual/probes/a-probe-that-errs-three-times-is-told-of-once", "is: 60s")),
    ("readiness right after the startup probe", "0 s", "pkg/kubelet/prober/prober_manager.go", In("virtual/probes/other-probes-begin-when-the-startup-probe-succeeds", "is: 0s")),
    // Restarts.
    ("first restart", "at once", "pkg/kubelet/kuberuntime/kuberuntime_manager.go doBackOff", In(LOOP, "nth: 2}, atMost: 1s")),
    ("restart back-off 1", "10 s", "pkg/kubelet/kubelet.go newCrashLoopBackOff", In(LOOP, "back-off 10s restarting")),
    ("restart back-off 2", "20 s", "client-go util/flowcontrol/backoff.go", In(LOOP, "back-off 20s restarting")),
    ("restart back-off 3", "40 s", "client-go util/flowcontrol/backoff.go", In(LOOP, "back-off 40s restarting")),
    ("restart back-off 4", "80 s", "client-go util/flowcontrol/backoff.go", In(LOOP, "back-off 1m20s restarting")),
    ("restart back-off 5", "160 s", "client-go util/flowcontrol/backoff.go", In(LOOP, "back-off 2m40s restarting")),
    ("restart back-off from 6 on", "300 s", "pkg/kubelet/kubelet.go MaxCrashLoopBackOff", In(LOOP, "back-off 5m0s restarting")),
    ("restart back-off, counted from the end before", "10 s", "pkg/kubelet/kuberuntime/kuberuntime_manager.go doBackOff", In(LOOP, "nth: 3}, atLeast: 10s, atMost: 15s")),
    ("restart back-off forgotten", "more than 600 s", "pkg/kubelet/kubelet.go newCrashLoopBackOff", In("virtual/backoff/a-container-that-lived-ten-minutes-starts-over", "is: 661s")),
    ("restart back-off of a node that is told so", "4 s", "pkg/kubelet/apis/config CrashLoopBackOffConfig.MaxContainerRestartPeriod", By(AGENT, "a_crash_loop_waits_no_longer_than_the_node_is_told", "maxContainerRestartPeriod: 4s")),
    ("restart back-off of init containers", "10 s, 20 s", "pkg/kubelet/kuberuntime/kuberuntime_manager.go doBackOff", In("virtual/init/a-failing-init-container-backs-off", "atLeast: 20s, atMost: 30s")),
    // Images.
    ("pull back-off 1", "10 s", "pkg/kubelet/images/image_manager.go", In(PULL, "atLeast: 10s, atMost: 15s")),
    ("pull back-off 2", "20 s", "pkg/kubelet/images/image_manager.go", In(PULL, "atLeast: 20s, atMost: 30s")),
    ("pull back-off 3", "40 s", "pkg/kubelet/images/image_manager.go", In(PULL, "atLeast: 40s, atMost: 60s")),
    ("pull back-off 4", "80 s", "pkg/kubelet/images/image_manager.go", In(PULL, "atLeast: 80s")),
    ("pull back-off 5", "160 s", "pkg/kubelet/images/image_manager.go", In(PULL, "atLeast: 160s")),
    ("pull back-off from 6 on", "300 s", "pkg/kubelet/kubelet.go MaxImageBackOff", In(PULL, "nth: 8}, atLeast: 300s")),
    ("pull back-off forgotten", "more than 2 × 300 s", "client-go util/flowcontrol/backoff.go hasExpired", In("virtual/backoff/image-pulls-start-over-after-ten-quiet-minutes", "nth: 5}, atLeast: 10s, atMost: 15s")),
    ("pull back-off not forgotten", "less than 2 × 300 s", "client-go util/flowcontrol/backoff.go hasExpired", In("virtual/backoff/image-pulls-remember-for-ten-minutes", "nth: 5}, atLeast: 40s, atMost: 60s")),
    ("one pull at a time", "serially", "apis/config/v1beta1/defaults.go SerializeImagePulls, pkg/kubelet/images/puller.go", In("virtual/images/pulls-wait-for-each-other", "nth: 2}, is: 20s")),
    // Termination.
    ("grace period", "30 s", "pkg/apis/core/v1/defaults.go SetDefaults_PodSpec", In("virtual/termination/thirty-seconds-are-the-default-grace", "is: 30s")),
    ("grace period of a deletion", "7 s", "pkg/registry/core/pod/strategy.go CheckGracefulDelete", In("virtual/termination/a-deletion-may-bring-its-own-grace", "is: 7s")),
    ("preStop counts against the grace period", "5 s of 20 s", "pkg/kubelet/kuberuntime/kuberuntime_container.go killContainer", In("virtual/termination/prestop-takes-from-the-grace-period", "is: 15s")),
    ("least there is after preStop", "2 s", "pkg/kubelet/kuberuntime/kuberuntime_container.go minimumGracePeriodInSeconds", In("virtual/termination/a-prestop-that-hangs-leaves-two-seconds", "is: 2s")),
    ("forced deletion, the object", "0 s", "pkg/registry/core/pod/strategy.go", In("virtual/termination/force-deletion-takes-the-object-at-once", "is: 0s")),
    ("forced deletion, the process", "2 s", "pkg/kubelet/kuberuntime/kuberuntime_container.go minimumGracePeriodInSeconds", In("virtual/termination/a-forced-deletion-gives-the-process-two-seconds", "is: 2s")),
    // Volumes.
    ("mount retry 1", "500 ms", "pkg/util/goroutinemap/exponentialbackoff initialDurationBeforeRetry", In(MOUNT, "nth: 2}, is: 500ms")),
    ("mount retry 2", "1 s", "pkg/util/goroutinemap/exponentialbackoff", In(MOUNT, "nth: 3}, is: 1s")),
    ("mount retry 3", "2 s", "pkg/util/goroutinemap/exponentialbackoff", In(MOUNT, "nth: 4}, is: 2s")),
    ("mount retry 4", "4 s", "pkg/util/goroutinemap/exponentialbackoff", In(MOUNT, "nth: 5}, is: 4s")),
    ("mount retry 5", "8 s", "pkg/util/goroutinemap/exponentialbackoff", In(MOUNT, "nth: 6}, is: 8s")),
    ("mount retry 6", "16 s", "pkg/util/goroutinemap/exponentialbackoff", In(MOUNT, "nth: 7}, is: 16s")),
    ("mount retry 7", "32 s", "pkg/util/goroutinemap/exponentialbackoff", In(MOUNT, "nth: 8}, is: 32s")),
    ("mount retry 8", "64 s", "pkg/util/goroutinemap/exponentialbackoff", In(MOUNT, "nth: 9}, is: 64s")),
    ("mount retry from 9 on", "122 s", "pkg/util/goroutinemap/exponentialbackoff maxDurationBeforeRetry", In(MOUNT, "nth: 10}, is: 122s")),
    ("detach by force", "6 m", "pkg/controller/volume/attachdetach/config ReconcilerMaxWaitForUnmountDuration", By(CLOCK, "a_volume_of_a_lost_node_is_detached_by_force_six_minutes_after_its_pod_is_gone", "secs(360)")),
    // The node.
    ("lease duration", "40 s", "apis/config/v1beta1/defaults.go NodeLeaseDurationSeconds", By(CLOCK, "a_lease_of_forty_seconds_is_renewed_each_ten", "Some(40)")),
    ("lease renewal", "10 s to 10.4 s", "pkg/kubelet/kubelet.go nodeLeaseRenewIntervalFraction, component-helpers/apimachinery/lease/controller.go", By(CLOCK, "a_lease_of_forty_seconds_is_renewed_each_ten", "secs(10)")),
    ("node status written", "5 m", "apis/config/v1beta1/defaults.go NodeStatusReportFrequency", By(CLOCK, "a_node_status_is_written_each_five_minutes_when_nothing_changes", "secs(300)")),
    ("node status looked at", "10 s to 10.4 s", "apis/config/v1beta1/defaults.go NodeStatusUpdateFrequency", By(CLOCK, "a_node_status_is_written_each_five_minutes_when_nothing_changes", "310_401")),
    ("silent node given up", "50 s", "pkg/controller/nodelifecycle/config/v1alpha1/defaults.go NodeMonitorGracePeriod", By(CLOCK, "a_node_is_given_up_fifty_seconds_after_its_last_sign_of_life", "secs(50)")),
    ("node that never spoke given up", "60 s", "pkg/controller/nodelifecycle/config/v1alpha1/defaults.go NodeStartupGracePeriod", By(CLOCK, "a_node_that_never_told_of_itself_is_given_up_after_sixty_seconds", "secs(60)")),
    ("nodes driven off", "0.1 a second", "pkg/controller/nodelifecycle/config/v1alpha1/defaults.go NodeEvictionRate", By(CLOCK, "of_nodes_lost_together_one_each_ten_seconds_has_its_pods_driven_off", "secs(10)")),
    ("nodes driven off in a large zone of which most is down", "0.01 a second", "SecondaryNodeEvictionRate, LargeClusterSizeThreshold, UnhealthyZoneThreshold", By(ZONES, "most_of_a_small_zone_down_stops_it_and_of_a_large_one_slows_it", "from_secs(100)")),
    ("nodes driven off when all are down", "none", "node_lifecycle_controller.go handleDisruption", By(CLOCK, "when_every_node_is_silent_nobody_is_driven_off", "secs(1200)")),
    ("toleration of a lost node", "300 s", "plugin/pkg/admission/defaulttolerationseconds", In("virtual/node/a-lost-node-is-noticed-and-its-pods-evicted-after-five-minutes", "atLeast: 300s")),
    ("toleration of one's own", "10 s", "pkg/controller/tainteviction/taint_eviction.go", In("virtual/node/a-toleration-of-ten-seconds-is-ten-seconds", "atLeast: 10s")),
    ("Pod of a deleted node", "40 s", "pkg/controller/podgc/gc_controller.go quarantineTime, gcCheckPeriod", By(CLOCK, "a_pod_whose_node_is_deleted_goes_forty_seconds_later", "secs(40)")),
    // Pressure.
    ("pressure looked for", "10 s", "pkg/kubelet/kubelet.go evictionMonitoringPeriod", By(AGENT, "pressure_is_looked_for_each_ten_seconds_and_shown_for_five_minutes_after_the_last_look_that_saw_it", "secs(20)")),
    ("pressure condition held", "5 m", "apis/config/v1beta1/defaults.go EvictionPressureTransitionPeriod", By(AGENT, "pressure_is_looked_for_each_ten_seconds_and_shown_for_five_minutes_after_the_last_look_that_saw_it", "secs(320)")),
    ("soft threshold", "its grace period", "pkg/kubelet/eviction/helpers.go thresholdsMetGracePeriod", By(AGENT, "a_soft_threshold_acts_after_its_grace_period_and_gives_the_pod_its_own", "secs(110)")),
    ("grace of a Pod evicted softly", "evictionMaxPodGracePeriod", "pkg/kubelet/eviction/eviction_manager.go", By(AGENT, "a_soft_threshold_acts_after_its_grace_period_and_gives_the_pod_its_own", "secs(117)")),
    ("grace of a Pod evicted at once", "1 s, which is 2 s", "pkg/kubelet/eviction/eviction_manager.go immediateEvictionGracePeriodSeconds", By(AGENT, "a_hard_threshold_acts_at_once_and_gives_two_seconds", "secs(22)")),
    ("wait for an evicted Pod", "30 s", "pkg/kubelet/eviction/eviction_manager.go podCleanupTimeout", By(AGENT, "the_next_pod_is_evicted_when_the_first_is_gone_or_after_thirty_seconds", "secs(60)")),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The text of a function: from its name to the next line that is a lone brace.
fn body<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let from = text.find(&format!("fn {name}()"))?;
    let rest = &text[from..];
    // A test stands at the margin, or one step in when it is in a module.
    let end = ["\n}\n", "\n    }\n"].iter().filter_map(|e| rest.find(e)).min()?;
    Some(&rest[..end])
}

#[test]
fn every_number_is_shown_where_the_table_says() {
    for (what, much, source, shown) in NUMBERS {
        assert!(!source.is_empty(), "{what}");
        match shown {
            In(name, line) => {
                let path = root().join("scenarios").join(format!("{name}.yaml"));
                let scenario = load(&path).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert!(scenario.clock == Worlds::Virtual, "{what}: {name} is not played under virtual time");
                assert!(scenario.source.is_some(), "{what}: {name} says no source");
                let text = fs::read_to_string(&path).unwrap();
                assert!(text.contains(line), "{what} ({much}): {name} does not say {line:?}");
                let demands = |s: &Step| matches!(s, Step::Elapsed(_) | Step::Eventually(_) | Step::Exactly(_));
                assert!(scenario.then.iter().any(demands), "{what}: {name} demands no time");
            }
            By(file, name, part) => {
                let text = fs::read_to_string(root().join(file)).unwrap();
                let test = body(&text, name).unwrap_or_else(|| panic!("{what}: there is no test {name} in {file}"));
                assert!(test.contains(part), "{what} ({much}): {name} does not say {part:?}");
            }
        }
    }
}

#[test]
fn no_number_is_listed_twice() {
    let mut names: Vec<&str> = NUMBERS.iter().map(|(what, ..)| *what).collect();
    names.sort_unstable();
    let n = names.len();
    names.dedup();
    assert_eq!(names.len(), n);
}
