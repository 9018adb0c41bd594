//! The `KubeletConfiguration` file: strict, as upstream reads it. What upstream knows and this agent has no use for is
//! taken and named; everything else is an error with its line.
//!
//! Source: k/k staging/src/k8s.io/kubelet/config/v1beta1/types.go, pkg/kubelet/apis/config/v1beta1/defaults.go,
//! pkg/kubelet/apis/config/validation/validation.go.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use podlab_api::{core::Taint, parse_quantity};
use podlab_lifecycle::{eviction, resources::CRITICAL_PRIORITY};
use serde::Deserialize;
use serde_json::Value;

use super::{EvictionConfig, ImageGcConfig, ImagePulls, KubeletConfig, ShutdownGroup, flags, go_duration};

/// Largest file taken, bytes.
const MAX_FILE: usize = 1 << 20;

/// Why a configuration file is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// It does not parse, or names something unknown; the text says where.
    #[error("{0}")]
    Parse(String),
    /// It is of another kind or version.
    #[error("want kind KubeletConfiguration of kubelet.config.k8s.io/v1beta1, not {kind:?} of {version:?}")]
    Kind {
        /// Its kind.
        kind: String,
        /// Its version.
        version: String,
    },
    /// A value makes no sense; in upstream's words where it has some.
    #[error("invalid configuration: {0}")]
    Value(String),
    /// It is too large.
    #[error("a configuration file has at most {MAX_FILE} bytes")]
    TooLarge,
}

macro_rules! file {
    (acts { $($field:ident: $type:ty = $name:literal,)* } without { $($other:ident = $other_name:literal,)* }) => {
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        struct File {
            #[serde(rename = "apiVersion")]
            api_version: String,
            kind: String,
            $(#[serde(rename = $name)] $field: Option<$type>,)*
            $(#[serde(rename = $other_name)] $other: Option<Value>,)*
        }

        impl File {
            /// Fields that are set and change nothing here.
            fn without_effect(&self) -> Vec<&'static str> {
                let mut out = Vec::new();
                $(if self.$other.is_some() { out.push($other_name); })*
                out
            }
        }
    };
}

type Words = BTreeMap<String, String>;

file! {
    acts {
        static_pod_path: String = "staticPodPath",
        pod_logs_dir: String = "podLogsDir",
        sync_frequency: String = "syncFrequency",
        file_check_frequency: String = "fileCheckFrequency",
        cluster_domain: String = "clusterDomain",
        cluster_dns: Vec<String> = "clusterDNS",
        node_status_update_frequency: String = "nodeStatusUpdateFrequency",
        node_status_report_frequency: String = "nodeStatusReportFrequency",
        node_lease_duration_seconds: u32 = "nodeLeaseDurationSeconds",
        node_status_max_images: i64 = "nodeStatusMaxImages",
        image_minimum_gc_age: String = "imageMinimumGCAge",
        image_maximum_gc_age: String = "imageMaximumGCAge",
        image_gc_high: u8 = "imageGCHighThresholdPercent",
        image_gc_low: u8 = "imageGCLowThresholdPercent",
        max_pods: i64 = "maxPods",
        pods_per_core: i64 = "podsPerCore",
        pod_pids_limit: i64 = "podPidsLimit",
        resolv_conf: String = "resolvConf",
        serialize_image_pulls: bool = "serializeImagePulls",
        max_parallel_image_pulls: usize = "maxParallelImagePulls",
        eviction_hard: Words = "evictionHard",
        eviction_soft: Words = "evictionSoft",
        eviction_soft_grace: Words = "evictionSoftGracePeriod",
        eviction_transition: String = "evictionPressureTransitionPeriod",
        eviction_max_pod_grace: i64 = "evictionMaxPodGracePeriod",
        eviction_minimum_reclaim: Words = "evictionMinimumReclaim",
        merge_default_eviction: bool = "mergeDefaultEvictionSettings",
        container_log_max_size: String = "containerLogMaxSize",
        container_log_max_files: usize = "containerLogMaxFiles",
        container_log_monitor_interval: String = "containerLogMonitorInterval",
        system_reserved: Words = "systemReserved",
        kube_reserved: Words = "kubeReserved",
        allowed_unsafe_sysctls: Vec<String> = "allowedUnsafeSysctls",
        provider_id: String = "providerID",
        shutdown_grace: String = "shutdownGracePeriod",
        shutdown_grace_critical: String = "shutdownGracePeriodCriticalPods",
        shutdown_by_priority: Vec<ByPriority> = "shutdownGracePeriodByPodPriority",
        seccomp_default: bool = "seccompDefault",
        register_with_taints: Vec<Taint> = "registerWithTaints",
        register_node: bool = "registerNode",
        local_storage: bool = "localStorageCapacityIsolation",
        crash_loop: CrashLoop = "crashLoopBackOff",
    }
    without {
        enable_server = "enableServer",
        http_check_frequency = "httpCheckFrequency",
        static_pod_url = "staticPodURL",
        static_pod_url_header = "staticPodURLHeader",
        address = "address",
        port = "port",
        read_only_port = "readOnlyPort",
        tls_cert_file = "tlsCertFile",
        tls_private_key_file = "tlsPrivateKeyFile",
        tls_cipher_suites = "tlsCipherSuites",
        tls_curve_preferences = "tlsCurvePreferences",
        tls_min_version = "tlsMinVersion",
        rotate_certificates = "rotateCertificates",
        server_tls_bootstrap = "serverTLSBootstrap",
        authentication = "authentication",
        authorization = "authorization",
        registry_pull_qps = "registryPullQPS",
        registry_burst = "registryBurst",
        credentials_verification = "imagePullCredentialsVerificationPolicy",
        preloaded_allowlist = "preloadedImagesVerificationAllowlist",
        event_record_qps = "eventRecordQPS",
        event_burst = "eventBurst",
        enable_debugging_handlers = "enableDebuggingHandlers",
        enable_contention_profiling = "enableContentionProfiling",
        healthz_port = "healthzPort",
        healthz_bind_address = "healthzBindAddress",
        oom_score_adj = "oomScoreAdj",
        streaming_idle_timeout = "streamingConnectionIdleTimeout",
        volume_stats_agg_period = "volumeStatsAggPeriod",
        kubelet_cgroups = "kubeletCgroups",
        system_cgroups = "systemCgroups",
        cgroup_root = "cgroupRoot",
        cgroups_per_qos = "cgroupsPerQOS",
        cgroup_driver = "cgroupDriver",
        cpu_manager_policy = "cpuManagerPolicy",
        cpu_manager_policy_options = "cpuManagerPolicyOptions",
        cpu_manager_reconcile_period = "cpuManagerReconcilePeriod",
        single_process_oom_kill = "singleProcessOOMKill",
        memory_manager_policy = "memoryManagerPolicy",
        topology_manager_policy = "topologyManagerPolicy",
        topology_manager_scope = "topologyManagerScope",
        topology_manager_policy_options = "topologyManagerPolicyOptions",
        qos_reserved = "qosReserved",
        runtime_request_timeout = "runtimeRequestTimeout",
        hairpin_mode = "hairpinMode",
        pod_cidr = "podCIDR",
        run_once = "runOnce",
        cpu_cfs_quota = "cpuCFSQuota",
        cpu_cfs_quota_period = "cpuCFSQuotaPeriod",
        max_open_files = "maxOpenFiles",
        content_type = "contentType",
        kube_api_qps = "kubeAPIQPS",
        kube_api_burst = "kubeAPIBurst",
        enable_controller_attach_detach = "enableControllerAttachDetach",
        protect_kernel_defaults = "protectKernelDefaults",
        make_iptables_util_chains = "makeIPTablesUtilChains",
        iptables_masquerade_bit = "iptablesMasqueradeBit",
        iptables_drop_bit = "iptablesDropBit",
        feature_gates = "featureGates",
        fail_swap_on = "failSwapOn",
        memory_swap = "memorySwap",
        container_log_max_workers = "containerLogMaxWorkers",
        change_detection = "configMapAndSecretChangeDetectionStrategy",
        reserved_system_cpus = "reservedSystemCPUs",
        show_hidden_metrics = "showHiddenMetricsForVersion",
        system_reserved_cgroup = "systemReservedCgroup",
        kube_reserved_cgroup = "kubeReservedCgroup",
        enforce_node_allocatable = "enforceNodeAllocatable",
        volume_plugin_dir = "volumePluginDir",
        kernel_memcg_notification = "kernelMemcgNotification",
        logging = "logging",
        enable_system_log_handler = "enableSystemLogHandler",
        enable_system_log_query = "enableSystemLogQuery",
        reserved_memory = "reservedMemory",
        enable_profiling_handler = "enableProfilingHandler",
        enable_debug_flags_handler = "enableDebugFlagsHandler",
        memory_throttling_factor = "memoryThrottlingFactor",
        memory_reservation_policy = "memoryReservationPolicy",
        tracing = "tracing",
        container_runtime_endpoint = "containerRuntimeEndpoint",
        image_service_endpoint = "imageServiceEndpoint",
        fail_cgroup_v1 = "failCgroupV1",
        user_namespaces = "userNamespaces",
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ByPriority {
    priority: i32,
    shutdown_grace_period_seconds: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct CrashLoop {
    max_container_restart_period: Option<String>,
}

fn invalid(text: impl Into<String>) -> ConfigFileError {
    ConfigFileError::Value(text.into())
}

fn duration(name: &str, text: &str) -> Result<Duration, ConfigFileError> {
    go_duration::parse(text).ok_or_else(|| invalid(format!("{name}: time: invalid duration \"{text}\"")))
}

impl KubeletConfig {
    /// Takes over flags, each `name=value` (with or without leading dashes; a bare name is `true`), over what is
    /// configured so far.
    ///
    /// # Errors
    /// [`ConfigFileError`] when a flag is unknown or its value makes no sense; `self` is unchanged then.
    pub fn apply_flags(&mut self, flags: &[String]) -> Result<Vec<&'static str>, ConfigFileError> {
        if flags.is_empty() {
            return Ok(Vec::new());
        }
        let tree = flags::fields(flags)?;
        let file: File =
            serde_json::from_value(Value::Object(tree)).map_err(|e| ConfigFileError::Parse(e.to_string()))?;
        let without_effect = file.without_effect();
        let mut next = self.clone();
        next.take(file)?;
        *self = next;
        Ok(without_effect)
    }

    /// Takes over what a `KubeletConfiguration` file says; returns the names of its fields that change nothing here.
    ///
    /// # Errors
    /// [`ConfigFileError`] when it is not such a file or a value makes no sense; `self` is unchanged then.
    pub fn apply_file(&mut self, text: &str) -> Result<Vec<&'static str>, ConfigFileError> {
        if text.len() > MAX_FILE {
            return Err(ConfigFileError::TooLarge);
        }
        let file: File = serde_saphyr::from_str(text).map_err(|e| ConfigFileError::Parse(e.to_string()))?;
        if file.kind != "KubeletConfiguration" || file.api_version != "kubelet.config.k8s.io/v1beta1" {
            return Err(ConfigFileError::Kind { kind: file.kind, version: file.api_version });
        }
        let without_effect = file.without_effect();
        let mut next = self.clone();
        next.take(file)?;
        *self = next;
        Ok(without_effect)
    }

    fn take(&mut self, f: File) -> Result<(), ConfigFileError> {
        fn set<T>(to: &mut T, from: Option<T>) {
            if let Some(v) = from {
                *to = v;
            }
        }
        let set_time = |to: &mut Duration, name: &str, from: &Option<String>| -> Result<(), ConfigFileError> {
            if let Some(text) = from {
                *to = duration(name, text)?;
            }
            Ok(())
        };
        set_time(&mut self.sync_period, "syncFrequency", &f.sync_frequency)?;
        set_time(&mut self.file_check_period, "fileCheckFrequency", &f.file_check_frequency)?;
        set_time(&mut self.node_status_period, "nodeStatusUpdateFrequency", &f.node_status_update_frequency)?;
        // Upstream reports as often as it looks, once only the latter is given.
        if f.node_status_update_frequency.is_some() {
            self.node_report_period = self.node_status_period;
        }
        set_time(&mut self.node_report_period, "nodeStatusReportFrequency", &f.node_status_report_frequency)?;
        set_time(
            &mut self.container_log_monitor_period,
            "containerLogMonitorInterval",
            &f.container_log_monitor_interval,
        )?;
        for (name, period) in [
            ("syncFrequency", self.sync_period),
            ("fileCheckFrequency", self.file_check_period),
            ("nodeStatusUpdateFrequency", self.node_status_period),
            ("containerLogMonitorInterval", self.container_log_monitor_period),
        ] {
            if period.is_zero() {
                return Err(invalid(format!("{name} must be greater than 0")));
            }
        }
        if let Some(path) = f.static_pod_path.as_ref() {
            self.static_pod_path = Some(PathBuf::from(path)).filter(|p| !p.as_os_str().is_empty());
        }
        set(&mut self.pod_logs_dir, f.pod_logs_dir.as_ref().map(PathBuf::from));
        set(&mut self.resolv_conf, f.resolv_conf.as_ref().map(PathBuf::from));
        set(&mut self.cluster_domain, f.cluster_domain.clone());
        set(&mut self.cluster_dns, f.cluster_dns.clone());
        set(&mut self.seccomp_default, f.seccomp_default);
        set(&mut self.register_node, f.register_node);
        set(&mut self.taints, f.register_with_taints.clone());
        set(&mut self.allowed_unsafe_sysctls, f.allowed_unsafe_sysctls.clone());
        set(&mut self.pod_pids_limit, f.pod_pids_limit);
        set(&mut self.max_pods, f.max_pods);
        set(&mut self.pods_per_core, f.pods_per_core);
        if self.max_pods < 0 || self.pods_per_core < 0 {
            return Err(invalid("maxPods and podsPerCore must not be a negative number"));
        }
        if let Some(s) = f.node_lease_duration_seconds {
            if s == 0 {
                return Err(invalid("nodeLeaseDurationSeconds must be greater than 0"));
            }
            self.lease_duration = Duration::from_secs(u64::from(s));
        }
        if let Some(n) = f.node_status_max_images {
            self.node_status_max_images = usize::try_from(n).unwrap_or(usize::MAX);
        }
        set(&mut self.provider_id, f.provider_id.clone().filter(|p| !p.is_empty()).map(Some));
        if let Some(period) = f.crash_loop.as_ref().and_then(|c| c.max_container_restart_period.as_ref()) {
            let d = duration("crashLoopBackOff.maxContainerRestartPeriod", period)?;
            if !(Duration::from_secs(1)..=Duration::from_secs(300)).contains(&d) {
                return Err(invalid("crashLoopBackOff.maxContainerRestartPeriod must be between 1s and 300s"));
            }
            self.max_restart_period = d;
        }
        self.take_pulls(&f)?;
        self.take_logs(&f)?;
        self.take_reserved(&f)?;
        self.take_eviction(&f)?;
        self.take_shutdown(&f)
    }

    fn take_pulls(&mut self, f: &File) -> Result<(), ConfigFileError> {
        let serial = f.serialize_image_pulls.unwrap_or(f.max_parallel_image_pulls.is_none_or(|n| n < 2));
        match f.max_parallel_image_pulls {
            Some(0) => return Err(invalid("maxParallelImagePulls must be a positive number")),
            Some(n) if serial && n > 1 => {
                return Err(invalid(
                    "maxParallelImagePulls cannot be larger than 1 unless serializeImagePulls is false",
                ));
            }
            _ => {}
        }
        if f.serialize_image_pulls.is_some() || f.max_parallel_image_pulls.is_some() {
            self.image_pulls =
                if serial { ImagePulls::Serial } else { ImagePulls::Parallel(f.max_parallel_image_pulls) };
        }
        Ok(())
    }

    fn take_logs(&mut self, f: &File) -> Result<(), ConfigFileError> {
        if let Some(text) = &f.container_log_max_size {
            let size = parse_quantity(text).map_err(|e| invalid(format!("containerLogMaxSize: {e}")))?;
            self.container_log_max_size = u64::try_from(size).unwrap_or(u64::MAX);
        }
        match f.container_log_max_files {
            Some(n) if n < 2 => Err(invalid("containerLogMaxFiles must be greater than 1")),
            Some(n) => {
                self.container_log_max_files = n;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn take_reserved(&mut self, f: &File) -> Result<(), ConfigFileError> {
        if f.system_reserved.is_none() && f.kube_reserved.is_none() {
            return Ok(());
        }
        self.reserved.clear();
        for (name, text) in f.system_reserved.iter().chain(&f.kube_reserved).flatten() {
            if !matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage" | "pid") {
                return Err(invalid(format!("cannot reserve {name} resource")));
            }
            let n = if name == "cpu" { podlab_api::parse_milli(text) } else { parse_quantity(text) };
            let n = n.map_err(|e| invalid(format!("reserved {name}: {e}")))?;
            *self.reserved.entry(name.clone()).or_default() += i64::try_from(n).unwrap_or(i64::MAX);
        }
        Ok(())
    }

    fn take_eviction(&mut self, f: &File) -> Result<(), ConfigFileError> {
        let gc = &mut self.image_gc;
        if let Some(text) = &f.image_minimum_gc_age {
            gc.min_age = duration("imageMinimumGCAge", text)?;
        }
        if let Some(text) = &f.image_maximum_gc_age {
            gc.max_age = duration("imageMaximumGCAge", text)?;
            if !gc.max_age.is_zero() && gc.max_age <= gc.min_age {
                return Err(invalid("imageMaximumGCAge must be greater than imageMinimumGCAge"));
            }
        }
        *gc = ImageGcConfig { high: f.image_gc_high.unwrap_or(gc.high), low: f.image_gc_low.unwrap_or(gc.low), ..*gc };
        if gc.high > 100 || gc.low >= gc.high {
            return Err(invalid(
                "imageGCLowThresholdPercent must be less than imageGCHighThresholdPercent, which is at most 100",
            ));
        }
        let e = &mut self.eviction;
        if let Some(text) = &f.eviction_transition {
            e.transition = duration("evictionPressureTransitionPeriod", text)?;
        }
        e.max_pod_grace = f.eviction_max_pod_grace.unwrap_or(e.max_pod_grace);
        e.local_storage = f.local_storage.unwrap_or(e.local_storage);
        let any = [&f.eviction_hard, &f.eviction_soft, &f.eviction_soft_grace, &f.eviction_minimum_reclaim];
        if any.iter().all(|m| m.is_none()) {
            return Ok(());
        }
        let defaults = || EvictionConfig::HARD.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned()));
        // Naming one hard threshold switches the others' defaults off, unless they are to be merged.
        let hard: Words = match &f.eviction_hard {
            None => defaults().collect(),
            Some(own) if f.merge_default_eviction == Some(true) => defaults().chain(own.clone()).collect(),
            Some(own) => own.clone(),
        };
        let mut grace = BTreeMap::new();
        for (signal, text) in f.eviction_soft_grace.iter().flatten() {
            grace.insert(signal.clone(), duration(&format!("evictionSoftGracePeriod {signal}"), text)?);
        }
        let empty = Words::new();
        let soft = f.eviction_soft.as_ref().unwrap_or(&empty);
        let reclaim = f.eviction_minimum_reclaim.as_ref().unwrap_or(&empty);
        e.thresholds = eviction::thresholds(&hard, soft, &grace, reclaim).map_err(|e| invalid(e.to_string()))?;
        Ok(())
    }

    fn take_shutdown(&mut self, f: &File) -> Result<(), ConfigFileError> {
        let time = |name: &str, t: &Option<String>| t.as_ref().map_or(Ok(Duration::ZERO), |t| duration(name, t));
        let all = time("shutdownGracePeriod", &f.shutdown_grace)?;
        let critical = time("shutdownGracePeriodCriticalPods", &f.shutdown_grace_critical)?;
        if critical > all {
            return Err(invalid("shutdownGracePeriodCriticalPods must be less than or equal to shutdownGracePeriod"));
        }
        match &f.shutdown_by_priority {
            Some(_) if !all.is_zero() => {
                return Err(invalid(
                    "cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time",
                ));
            }
            Some(groups) => {
                self.shutdown = groups
                    .iter()
                    .map(|g| ShutdownGroup {
                        priority: g.priority,
                        grace: Duration::from_secs(g.shutdown_grace_period_seconds),
                    })
                    .collect();
                self.shutdown.sort_by_key(|g| g.priority);
            }
            None if !all.is_zero() => {
                self.shutdown = vec![
                    ShutdownGroup { priority: 0, grace: all.saturating_sub(critical) },
                    ShutdownGroup { priority: CRITICAL_PRIORITY, grace: critical },
                ];
            }
            None => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
