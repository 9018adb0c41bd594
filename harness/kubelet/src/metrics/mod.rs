//! The agent's own metrics, under upstream's names. Counted where things happen; rendered when somebody asks.
//! Source: k/k pkg/kubelet/metrics/metrics.go, pkg/kubelet/prober/prober_manager.go.

mod measured;
mod table;

use std::{collections::BTreeMap, fmt::Write, time::Duration};

pub(crate) use measured::Measured;
use parking_lot::Mutex;
use table::{Kind, TABLE};

/// Most series of one metric; what comes beyond is dropped, so that names of Pods cannot fill the memory.
const MAX_SERIES: usize = 4096;

type Labels = Vec<(&'static str, String)>;

#[derive(Debug, Clone, Default)]
struct Histogram {
    counts: Vec<u64>,
    sum: f64,
    count: u64,
}

#[derive(Debug, Default)]
struct State {
    numbers: BTreeMap<&'static str, BTreeMap<Labels, f64>>,
    histograms: BTreeMap<&'static str, BTreeMap<Labels, Histogram>>,
}

/// Counters, gauges and histograms of one agent.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<State>);

impl Metrics {
    /// Adds one to a counter.
    pub(crate) fn inc(&self, name: &'static str, labels: &[(&'static str, &str)]) {
        debug_assert!(table::find(name).is_some_and(|r| r.kind == Kind::Counter), "{name} is no counter of the table");
        let mut state = self.0.lock();
        let series = state.numbers.entry(name).or_default();
        if let Some(n) = slot(series, labels) {
            *n += 1.0;
        }
    }

    /// Adds a duration to a histogram.
    pub(crate) fn observe(&self, name: &'static str, labels: &[(&'static str, &str)], took: Duration) {
        debug_assert!(
            table::find(name).is_some_and(|r| r.kind == Kind::Histogram),
            "{name} is no histogram of the table"
        );
        let buckets = table::find(name).map_or(&[][..], |row| row.buckets);
        let seconds = took.as_secs_f64();
        let mut state = self.0.lock();
        let series = state.histograms.entry(name).or_default();
        if let Some(h) = slot(series, labels) {
            h.counts.resize(buckets.len(), 0);
            for (count, bound) in h.counts.iter_mut().zip(buckets) {
                *count += u64::from(seconds <= *bound);
            }
            h.sum += seconds;
            h.count += 1;
        }
    }

    /// An eviction for a signal.
    pub(crate) fn evicted(&self, signal: &str) {
        self.inc("kubelet_evictions", &[("eviction_signal", signal)]);
    }

    /// An image that garbage collection removed.
    pub(crate) fn image_removed(&self, reason: &str) {
        self.inc("kubelet_image_garbage_collected_total", &[("reason", reason)]);
    }

    /// Drops every series of a Pod.
    pub(crate) fn forget_pod(&self, uid: &str) {
        let mut state = self.0.lock();
        for series in state.numbers.values_mut() {
            series.retain(|labels, _| !labels.iter().any(|(k, v)| *k == "pod_uid" && v == uid));
        }
    }

    /// Everything whose name `wanted` picks, in the text format; `gauges` are values of this moment.
    pub(crate) fn render(&self, wanted: impl Fn(&str) -> bool, gauges: &[Gauge]) -> String {
        let mut out = String::new();
        let state = self.0.lock();
        for row in TABLE.iter().filter(|r| wanted(r.name)) {
            let now: Vec<&Gauge> = gauges.iter().filter(|g| g.name == row.name).collect();
            let numbers = state.numbers.get(row.name);
            let histograms = state.histograms.get(row.name);
            if now.is_empty() && numbers.is_none() && histograms.is_none() {
                continue;
            }
            head(&mut out, row.name, row.help, row.kind.as_str());
            for g in now {
                line(&mut out, row.name, &g.labels, g.value);
            }
            for (labels, value) in numbers.into_iter().flatten() {
                line(&mut out, row.name, labels, *value);
            }
            for (labels, h) in histograms.into_iter().flatten() {
                histogram(&mut out, row.name, row.buckets, labels, h);
            }
        }
        out
    }

    /// Whether a metric of the table is a probe's.
    pub(crate) fn is_probe(name: &str) -> bool {
        name.starts_with("prober_")
    }
}

/// A value read when somebody asks.
#[derive(Debug, Clone)]
pub(crate) struct Gauge {
    name: &'static str,
    labels: Labels,
    value: f64,
}

/// A gauge without or with labels.
pub(crate) fn gauge(name: &'static str, labels: &[(&'static str, &str)], value: usize) -> Gauge {
    #[expect(clippy::cast_precision_loss, reason = "metrics are floating point")]
    let value = value as f64;
    Gauge { name, labels: owned(labels), value }
}

fn owned(labels: &[(&'static str, &str)]) -> Labels {
    labels.iter().map(|(k, v)| (*k, (*v).to_owned())).collect()
}

fn slot<'m, V: Default>(series: &'m mut BTreeMap<Labels, V>, labels: &[(&'static str, &str)]) -> Option<&'m mut V> {
    let key = owned(labels);
    if series.len() >= MAX_SERIES && !series.contains_key(&key) {
        return None;
    }
    Some(series.entry(key).or_default())
}

/// `# HELP` and `# TYPE`.
pub(crate) fn head(out: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// A label's value, escaped.
pub(crate) fn quoted(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn shown(labels: &Labels, extra: Option<(&str, &str)>) -> String {
    let own = labels.iter().map(|(k, v)| (*k, v.as_str()));
    let all: Vec<String> = own.chain(extra).map(|(k, v)| format!("{k}=\"{}\"", quoted(v))).collect();
    if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
}

fn line(out: &mut String, name: &str, labels: &Labels, value: f64) {
    let _ = writeln!(out, "{name}{} {value}", shown(labels, None));
}

fn histogram(out: &mut String, name: &str, buckets: &[f64], labels: &Labels, h: &Histogram) {
    for (bound, count) in buckets.iter().zip(&h.counts) {
        let _ = writeln!(out, "{name}_bucket{} {count}", shown(labels, Some(("le", &bound.to_string()))));
    }
    let _ = writeln!(out, "{name}_bucket{} {}", shown(labels, Some(("le", "+Inf"))), h.count);
    let _ = writeln!(out, "{name}_sum{} {}", shown(labels, None), h.sum);
    let _ = writeln!(out, "{name}_count{} {}", shown(labels, None), h.count);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_histograms_render_in_the_text_format() {
        let m = Metrics::default();
        m.inc("kubelet_evictions", &[("eviction_signal", "memory.available")]);
        m.inc("kubelet_evictions", &[("eviction_signal", "memory.available")]);
        m.observe(
            "kubelet_runtime_operations_duration_seconds",
            &[("operation_type", "status")],
            Duration::from_millis(7),
        );
        let text = m.render(|_| true, &[gauge("kubelet_running_pods", &[], 3)]);
        for want in [
            "# TYPE kubelet_evictions counter\nkubelet_evictions{eviction_signal=\"memory.available\"} 2\n",
            "kubelet_running_pods 3\n",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"status\",le=\"0.005\"} 0\n",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"status\",le=\"0.0125\"} 1\n",
            "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"status\",le=\"+Inf\"} 1\n",
            "kubelet_runtime_operations_duration_seconds_count{operation_type=\"status\"} 1\n",
        ] {
            assert!(text.contains(want), "{want} is not in\n{text}");
        }
    }

    #[test]
    fn series_without_bound_are_cut_and_labels_escaped() {
        let m = Metrics::default();
        for i in 0..MAX_SERIES + 10 {
            m.inc("kubelet_evictions", &[("eviction_signal", &i.to_string())]);
        }
        assert_eq!(m.0.lock().numbers["kubelet_evictions"].len(), MAX_SERIES);
        assert_eq!(quoted("a\"b\\c\n"), "a\\\"b\\\\c\\n");
    }
}
