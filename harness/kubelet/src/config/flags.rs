//! Flags of the same names as upstream's: each sets the field of the configuration file it stands for.
//! Source: k/k cmd/kubelet/app/options/options.go AddKubeletConfigFlags.

use serde_json::{Map, Value};

use super::ConfigFileError;

/// How the value of a flag is written.
#[derive(Clone, Copy)]
enum FlagKind {
    Text,
    Number,
    Bool,
    /// `a<1,b<2`
    Bounds,
    /// `a=1,b=2`
    Pairs,
    /// `a,b`
    List,
    /// `key=value:effect,…`
    Taints,
}

/// Flags and the fields they set.
const FLAGS: [(&str, &str, FlagKind); 36] = {
    use FlagKind::{Bool, Bounds, List, Number, Pairs, Taints, Text};
    [
        ("allowed-unsafe-sysctls", "allowedUnsafeSysctls", List),
        ("cluster-dns", "clusterDNS", List),
        ("cluster-domain", "clusterDomain", Text),
        ("container-log-max-files", "containerLogMaxFiles", Number),
        ("container-log-max-size", "containerLogMaxSize", Text),
        ("cpu-cfs-quota", "cpuCFSQuota", Bool),
        ("eviction-hard", "evictionHard", Bounds),
        ("eviction-max-pod-grace-period", "evictionMaxPodGracePeriod", Number),
        ("eviction-minimum-reclaim", "evictionMinimumReclaim", Pairs),
        ("eviction-pressure-transition-period", "evictionPressureTransitionPeriod", Text),
        ("eviction-soft", "evictionSoft", Bounds),
        ("eviction-soft-grace-period", "evictionSoftGracePeriod", Pairs),
        ("file-check-frequency", "fileCheckFrequency", Text),
        ("image-gc-high-threshold", "imageGCHighThresholdPercent", Number),
        ("image-gc-low-threshold", "imageGCLowThresholdPercent", Number),
        ("kube-reserved", "kubeReserved", Pairs),
        ("local-storage-capacity-isolation", "localStorageCapacityIsolation", Bool),
        ("max-parallel-image-pulls", "maxParallelImagePulls", Number),
        ("max-pods", "maxPods", Number),
        ("minimum-image-ttl-duration", "imageMinimumGCAge", Text),
        ("node-status-max-images", "nodeStatusMaxImages", Number),
        ("node-status-update-frequency", "nodeStatusUpdateFrequency", Text),
        ("pod-manifest-path", "staticPodPath", Text),
        ("pod-max-pids", "podPidsLimit", Number),
        ("pods-per-core", "podsPerCore", Number),
        ("provider-id", "providerID", Text),
        ("register-node", "registerNode", Bool),
        ("register-with-taints", "registerWithTaints", Taints),
        ("resolv-conf", "resolvConf", Text),
        ("seccomp-default", "seccompDefault", Bool),
        ("serialize-image-pulls", "serializeImagePulls", Bool),
        ("sync-frequency", "syncFrequency", Text),
        ("system-reserved", "systemReserved", Pairs),
        ("shutdown-grace-period", "shutdownGracePeriod", Text),
        ("shutdown-grace-period-critical-pods", "shutdownGracePeriodCriticalPods", Text),
        ("pod-log-dir", "podLogsDir", Text),
    ]
};

fn flag_value(name: &str, kind: FlagKind, text: &str) -> Result<Value, ConfigFileError> {
    let bad = || invalid(format!("--{name}: {text:?}"));
    let parts = || text.split(',').filter(|p| !p.is_empty());
    let pairs = |between: char| -> Result<Value, ConfigFileError> {
        let one = |p: &str| p.split_once(between).map(|(k, v)| (k.to_owned(), Value::from(v))).ok_or_else(bad);
        parts().map(one).collect::<Result<Map<_, _>, _>>().map(Value::Object)
    };
    Ok(match kind {
        FlagKind::Text => text.into(),
        FlagKind::Number => text.parse::<i64>().map_err(|_| bad())?.into(),
        FlagKind::Bool => text.parse::<bool>().map_err(|_| bad())?.into(),
        FlagKind::Bounds => pairs('<')?,
        FlagKind::Pairs => pairs('=')?,
        FlagKind::List => parts().collect::<Vec<_>>().into(),
        FlagKind::Taints => {
            let one = |p: &str| {
                let (pair, effect) = p.split_once(':').ok_or_else(bad)?;
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                Ok(serde_json::json!({"key": key, "value": value, "effect": effect}))
            };
            parts().map(one).collect::<Result<Vec<_>, ConfigFileError>>()?.into()
        }
    })
}

/// The fields that flags set, each `name=value` (with or without leading dashes; a bare name is `true`).
pub(super) fn fields(flags: &[String]) -> Result<Map<String, Value>, ConfigFileError> {
    let mut tree = Map::new();
    for flag in flags {
        let (name, value) = flag.split_once('=').unwrap_or((flag, "true"));
        let name = name.trim_start_matches('-');
        let known = FLAGS.iter().find(|(n, ..)| *n == name);
        let (_, field, kind) = known.ok_or_else(|| invalid(format!("unknown flag: --{name}")))?;
        tree.insert((*field).to_owned(), flag_value(name, *kind, value)?);
    }
    Ok(tree)
}

fn invalid(text: String) -> ConfigFileError {
    ConfigFileError::Value(text)
}
