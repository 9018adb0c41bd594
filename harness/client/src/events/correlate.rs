//! Deciding what becomes of an event: created, counted onto an earlier one, aggregated, or dropped as spam. Pure.

use std::{collections::BTreeMap, time::Duration};

use podlab_clock::Mono;

use super::{EventRequest, Family};

/// Distinct messages of one kind of event inside [`AGGREGATE_WINDOW`] before they are combined.
const AGGREGATE_MAX: usize = 10;
const AGGREGATE_WINDOW: Duration = Duration::from_secs(600);
/// Token bucket per source and object: this many at once…
const SPAM_BURST: f64 = 25.0;
/// …and one more every this many seconds.
const SPAM_REFILL: f64 = 300.0;
/// Keys kept; the least recently used go first.
const CACHE: usize = 4096;

/// What to do with an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Write a new one with this message.
    Create { message: String },
    /// Raise the count of an earlier one.
    Patch { name: String, count: u32, message: String },
    /// Remember the repeat, write nothing yet (series family).
    CountOnly,
    /// Too many: write nothing.
    Drop,
}

struct Seen {
    name: Option<String>,
    count: u32,
    used: Mono,
}

struct Group {
    messages: Vec<String>,
    last: Mono,
}

struct Bucket {
    tokens: f64,
    at: Mono,
}

/// The memory of one recorder.
pub(super) struct Correlator {
    family: Family,
    seen: BTreeMap<String, Seen>,
    groups: BTreeMap<String, Group>,
    buckets: BTreeMap<String, Bucket>,
}

impl Correlator {
    pub(super) fn new(family: Family) -> Self {
        Self { family, seen: BTreeMap::new(), groups: BTreeMap::new(), buckets: BTreeMap::new() }
    }

    /// Decides about one event; the key identifies it in a later [`Correlator::created`].
    pub(super) fn decide(&mut self, component: &str, host: &str, r: &EventRequest, now: Mono) -> (String, Decision) {
        let o = &r.regarding;
        let object = format!(
            "{}/{}/{}/{}/{}",
            o.kind.as_deref().unwrap_or_default(),
            o.namespace.as_deref().unwrap_or_default(),
            o.name.as_deref().unwrap_or_default(),
            o.uid.as_deref().unwrap_or_default(),
            o.api_version.as_deref().unwrap_or_default()
        );
        if self.family == Family::Series {
            let rv = o.resource_version.as_deref().unwrap_or_default();
            let key = format!("{}|{}|{}|{component}|{object}|{rv}", r.kind.as_str(), r.action, r.reason);
            return (key.clone(), self.series(&key, &r.message, now));
        }
        if !self.spend(&format!("{component}|{host}|{object}|{}", r.kind.as_str()), now) {
            return (String::new(), Decision::Drop);
        }
        let field = o.field_path.as_deref().unwrap_or_default();
        let base = format!("{component}|{host}|{object}|{}|{}", r.kind.as_str(), r.reason);
        let (key, message) = match self.aggregate(&base, &r.message, now) {
            true => (base, format!("(combined from similar events): {}", r.message)),
            false => (format!("{base}|{field}|{}", r.message), r.message.clone()),
        };
        (key.clone(), self.count(&key, message, now))
    }

    /// Remembers under which name an event was written.
    pub(super) fn created(&mut self, key: &str, name: &str) {
        if let Some(seen) = self.seen.get_mut(key) {
            seen.name = Some(name.to_owned());
        }
    }

    fn count(&mut self, key: &str, message: String, now: Mono) -> Decision {
        self.evict();
        let seen = self.seen.entry(key.to_owned()).or_insert(Seen { name: None, count: 0, used: now });
        seen.count += 1;
        seen.used = now;
        match &seen.name {
            Some(name) => Decision::Patch { name: name.clone(), count: seen.count, message },
            None => Decision::Create { message },
        }
    }

    /// The first repeat turns the event into a series; later ones are only counted until it is refreshed.
    fn series(&mut self, key: &str, message: &str, now: Mono) -> Decision {
        match self.count(key, message.to_owned(), now) {
            Decision::Patch { count, .. } if count > 2 => Decision::CountOnly,
            other => other,
        }
    }

    /// Whether this event falls into an aggregate of similar ones.
    fn aggregate(&mut self, base: &str, message: &str, now: Mono) -> bool {
        let group = self.groups.entry(base.to_owned()).or_insert(Group { messages: Vec::new(), last: now });
        if now.since(group.last) > AGGREGATE_WINDOW {
            group.messages.clear();
        }
        group.last = now;
        if !group.messages.iter().any(|m| m == message) {
            group.messages.push(message.to_owned());
        }
        let many = group.messages.len() >= AGGREGATE_MAX;
        if many {
            // Upstream keeps the set at its limit by dropping an arbitrary member; the oldest is as good.
            group.messages.remove(0);
        }
        many
    }

    fn spend(&mut self, key: &str, now: Mono) -> bool {
        let bucket = self.buckets.entry(key.to_owned()).or_insert(Bucket { tokens: SPAM_BURST, at: now });
        bucket.tokens = (bucket.tokens + now.since(bucket.at).as_secs_f64() / SPAM_REFILL).min(SPAM_BURST);
        bucket.at = now;
        let enough = bucket.tokens >= 1.0;
        if enough {
            bucket.tokens -= 1.0;
        }
        enough
    }

    fn evict(&mut self) {
        if self.seen.len() >= CACHE
            && let Some(oldest) = self.seen.iter().min_by_key(|(_, s)| s.used).map(|(k, _)| k.clone())
        {
            self.seen.remove(&oldest);
        }
        // These two are only limits; forgetting them all now and then is harmless.
        if self.groups.len() >= CACHE {
            self.groups.clear();
        }
        if self.buckets.len() >= CACHE {
            self.buckets.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use podlab_api::core::ObjectReference;

    use super::*;
    use crate::events::EventType;

    fn request(message: &str) -> EventRequest {
        EventRequest {
            regarding: ObjectReference { name: Some("a".into()), ..Default::default() },
            kind: EventType::Warning,
            reason: "BackOff",
            action: "",
            message: message.into(),
            annotations: BTreeMap::new(),
            at: podlab_api::jiff::Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_repeat_is_counted_onto_the_first() {
        let mut c = Correlator::new(Family::Legacy);
        let (key, first) = c.decide("kubelet", "n", &request("m"), Mono(0));
        assert_eq!(first, Decision::Create { message: "m".into() });
        c.created(&key, "a.1");
        let (_, second) = c.decide("kubelet", "n", &request("m"), Mono(1));
        assert_eq!(second, Decision::Patch { name: "a.1".into(), count: 2, message: "m".into() });
    }

    #[test]
    fn the_tenth_distinct_message_is_combined() {
        let mut c = Correlator::new(Family::Legacy);
        for i in 0..9 {
            let (_, d) = c.decide("k", "n", &request(&format!("m{i}")), Mono(0));
            assert_eq!(d, Decision::Create { message: format!("m{i}") });
        }
        let (_, d) = c.decide("k", "n", &request("m9"), Mono(0));
        assert_eq!(d, Decision::Create { message: "(combined from similar events): m9".into() });
    }

    #[test]
    fn the_twenty_sixth_in_a_row_is_dropped_and_one_more_comes_back_after_five_minutes() {
        let mut c = Correlator::new(Family::Legacy);
        for _ in 0..25 {
            let (key, d) = c.decide("k", "n", &request("m"), Mono(0));
            assert_ne!(d, Decision::Drop);
            c.created(&key, "x");
        }
        assert_eq!(c.decide("k", "n", &request("m"), Mono(0)).1, Decision::Drop);
        assert_ne!(c.decide("k", "n", &request("m"), Mono(300_000_000_000)).1, Decision::Drop);
    }

    #[test]
    fn a_series_is_patched_once_and_then_only_counted() {
        let mut c = Correlator::new(Family::Series);
        let (key, _) = c.decide("s", "", &request("m"), Mono(0));
        c.created(&key, "x");
        assert!(matches!(c.decide("s", "", &request("other"), Mono(1)).1, Decision::Patch { count: 2, .. }));
        assert_eq!(c.decide("s", "", &request("m"), Mono(2)).1, Decision::CountOnly);
    }
}
