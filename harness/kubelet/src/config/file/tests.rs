//! Files and flags, taken and refused.
use podlab_lifecycle::eviction::Signal;

use super::*;

fn read(body: &str) -> Result<(KubeletConfig, Vec<&'static str>), ConfigFileError> {
    let mut config = KubeletConfig::new("n", Vec::new());
    let text = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{body}");
    config.apply_file(&text).map(|others| (config, others))
}

#[test]
fn what_a_file_says_is_taken_over_and_the_rest_keeps_its_default() {
    let (c, others) = read(
        "maxPods: 7\npodsPerCore: 2\nevictionHard: {memory.available: 1Gi}\nimageGCHighThresholdPercent: 50\n\
         imageGCLowThresholdPercent: 40\ncontainerLogMaxSize: 1Mi\ncontainerLogMaxFiles: 2\n\
         shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\nserializeImagePulls: false\n\
         maxParallelImagePulls: 3\nstaticPodPath: /m\nkubeReserved: {cpu: 100m}\nsystemReserved: {cpu: 50m}\n\
         registerWithTaints: [{key: a, effect: NoSchedule}]\ncgroupDriver: systemd\n",
    )
    .unwrap();
    assert_eq!(others, ["cgroupDriver"]);
    assert_eq!((c.pod_capacity(2000), c.pod_capacity(8000)), (4, 7));
    let signals: Vec<Signal> = c.eviction.thresholds.iter().map(|t| t.signal).collect();
    assert_eq!(signals, [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable]);
    assert_eq!((c.image_gc.high, c.image_gc.low), (50, 40));
    assert_eq!((c.container_log_max_size, c.container_log_max_files), (1 << 20, 2));
    assert_eq!(c.image_pulls, ImagePulls::Parallel(Some(3)));
    assert_eq!(c.reserved["cpu"], 150);
    assert_eq!(c.taints[0].key, "a");
    let shutdown: Vec<_> = c.shutdown.iter().map(|g| (g.priority, g.grace.as_secs())).collect();
    assert_eq!(shutdown, [(0, 20), (CRITICAL_PRIORITY, 10)]);
    assert_eq!(c.node_status_period, Duration::from_secs(10));
}

#[test]
fn what_upstream_does_not_know_is_an_error_that_says_where() {
    let text = read("maxPods: 7\nmaxPodz: 8\n").unwrap_err().to_string();
    assert!(text.contains("maxPodz") && text.contains('4'), "{text}");
    let other = KubeletConfig::new("n", Vec::new()).apply_file("apiVersion: v1\nkind: Pod\n").unwrap_err();
    assert!(matches!(other, ConfigFileError::Kind { .. }), "{other}");
}

#[test]
fn values_that_make_no_sense_are_refused_and_change_nothing() {
    for bad in [
        "maxPods: many",
        "maxPods: -1",
        "syncFrequency: soon",
        "syncFrequency: 0s",
        "evictionHard: {memory.free: 1Mi}",
        "evictionSoft: {memory.available: 1Mi}",
        "imageGCLowThresholdPercent: 90",
        "containerLogMaxFiles: 1",
        "maxParallelImagePulls: 0",
        "serializeImagePulls: true\nmaxParallelImagePulls: 5",
        "shutdownGracePeriodCriticalPods: 10s",
        "shutdownGracePeriod: 10s\nshutdownGracePeriodByPodPriority: []",
        "systemReserved: {goats: 1}",
        "crashLoopBackOff: {maxContainerRestartPeriod: 0s}",
    ] {
        let mut c = KubeletConfig::new("n", Vec::new());
        let text = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 3\n{bad}");
        assert!(c.apply_file(&text).is_err(), "{bad}");
        assert_eq!(c.max_pods, 110, "{bad}");
    }
}

#[test]
fn flags_say_the_same_as_the_file() {
    let (file, _) = read(concat!(
        "maxPods: 7\nevictionHard: {memory.available: 1Gi, nodefs.available: 5%}\nserializeImagePulls: false\n",
        "registerWithTaints: [{key: a, value: b, effect: NoSchedule}]\nsystemReserved: {cpu: 50m}\n",
    ))
    .unwrap();
    let mut c = KubeletConfig::new("n", Vec::new());
    let flags = [
        "--max-pods=7",
        "eviction-hard=memory.available<1Gi,nodefs.available<5%",
        "serialize-image-pulls=false",
        "register-with-taints=a=b:NoSchedule",
        "system-reserved=cpu=50m",
    ];
    c.apply_flags(&flags.map(str::to_owned)).unwrap();
    assert_eq!((c.max_pods, &c.eviction, c.image_pulls), (file.max_pods, &file.eviction, file.image_pulls));
    assert_eq!((&c.taints, &c.reserved), (&file.taints, &file.reserved));
    for bad in ["max-podz=1", "max-pods=many", "eviction-hard=x", "register-with-taints=a"] {
        assert!(c.apply_flags(&[bad.to_owned()]).is_err(), "{bad}");
    }
}

#[test]
fn one_hard_threshold_switches_the_others_defaults_off_unless_they_are_merged() {
    let merged = "evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true\n";
    assert_eq!(read(merged).unwrap().0.eviction.thresholds.len(), 6);
    let soft = "evictionSoft: {pid.available: 5%}\nevictionSoftGracePeriod: {pid.available: 1m}\n";
    assert_eq!(read(soft).unwrap().0.eviction.thresholds.len(), 7);
}
