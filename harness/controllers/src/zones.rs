//! How fast Pods may be driven off nodes that went silent: by zone, and not at all when no node of the cluster is left.
//!
//! ```text
//! zone: Normal, or down while others are up ──► a node each 10 s, the first at once
//!       more than two nodes and 55 % of it down ──► a node each 100 s; none in a zone of up to 50 nodes
//! every zone down ──► none, and the taints that are there go: it is this controller that is cut off
//! ```
//! Source: k/k pkg/controller/nodelifecycle/node_lifecycle_controller.go handleDisruption, scheduler/rate_limited_queue.go;
//! cmd/kube-controller-manager/app/options/nodelifecyclecontroller.go for the numbers.

use std::{collections::BTreeMap, time::Duration};

use podlab_api::core::Node;
use podlab_clock::Mono;

/// Time between two nodes of a zone.
const EACH: Duration = Duration::from_secs(10);
/// The same in a large zone of which most is down.
const EACH_SLOWLY: Duration = Duration::from_secs(100);
/// A zone of more nodes than this is large.
const LARGE: usize = 50;
/// From this share of nodes down a zone is disrupted, in hundredths.
const UNHEALTHY_PERCENT: usize = 55;

/// How a zone is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Normal,
    Partial,
    Down,
}

/// When the next node of a zone may be tainted.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Between two; none at all when `None`.
    each: Option<Duration>,
    next: Mono,
}

/// All zones, as last looked at.
#[derive(Debug, Default)]
pub(crate) struct Zones {
    paces: BTreeMap<String, Pace>,
    all_down: bool,
}

/// Whether a node may be tainted `NoExecute`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Now.
    Now,
    /// After this time.
    After(Duration),
    /// Not as things are.
    Never,
}

/// The zone of a node.
pub(crate) fn zone_of(node: &Node) -> String {
    let label = |key: &str| node.metadata.labels.as_ref().and_then(|l| l.get(key)).cloned().unwrap_or_default();
    format!("{}:{}", label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone"))
}

fn health(ready: usize, not_ready: usize) -> Health {
    if ready == 0 && not_ready > 0 {
        Health::Down
    } else if not_ready > 2 && not_ready * 100 >= UNHEALTHY_PERCENT * (ready + not_ready) {
        Health::Partial
    } else {
        Health::Normal
    }
}

impl Zones {
    /// Whether no node of the cluster is Ready.
    pub(crate) fn all_down(&self) -> bool {
        self.all_down
    }

    /// Takes note of every node's zone and whether it is Ready. True when the cluster has come back from being down as
    /// a whole: then nobody has been silent for longer than this controller has been cut off.
    pub(crate) fn observe(&mut self, nodes: impl Iterator<Item = (String, bool)>, now: Mono) -> bool {
        let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for (zone, ready) in nodes {
            let (up, down) = counts.entry(zone).or_default();
            *(if ready { up } else { down }) += 1;
        }
        let was_down = self.all_down;
        self.all_down = !counts.is_empty() && counts.values().all(|(up, down)| health(*up, *down) == Health::Down);
        self.paces.retain(|zone, _| counts.contains_key(zone));
        for (zone, (up, down)) in counts {
            let each = match health(up, down) {
                _ if self.all_down => None,
                Health::Normal | Health::Down => Some(EACH),
                Health::Partial if up + down > LARGE => Some(EACH_SLOWLY),
                Health::Partial => None,
            };
            let pace = self.paces.entry(zone).or_insert(Pace { each, next: now });
            if pace.each != each {
                // A turn that has just been taken is not given again at another pace.
                let taken = pace.next > now || pace.each.is_none();
                let next = each.filter(|_| taken).map_or(now, |each| now.after(each));
                *pace = Pace { each, next };
            }
        }
        was_down && !self.all_down
    }

    /// Takes the turn of a zone, if it is due.
    pub(crate) fn take(&mut self, zone: &str, now: Mono) -> Turn {
        let Some(pace) = self.paces.get_mut(zone) else { return Turn::Never };
        match pace.each {
            None => Turn::Never,
            Some(each) if pace.next <= now => {
                pace.next = now.after(each);
                Turn::Now
            }
            Some(_) => Turn::After(pace.next.since(now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Mono {
        Mono(s * 1_000_000_000)
    }

    fn zone(up: usize, down: usize) -> Vec<(String, bool)> {
        let of = |n: usize, ready| std::iter::repeat_n(("z".to_owned(), ready), n);
        of(up, true).chain(of(down, false)).collect()
    }

    #[test]
    fn a_node_goes_at_once_and_the_next_ten_seconds_later() {
        let mut zones = Zones::default();
        zones.observe(zone(3, 2).into_iter(), at(0));
        assert_eq!(zones.take("z", at(60)), Turn::Now);
        assert_eq!(zones.take("z", at(60)), Turn::After(Duration::from_secs(10)));
        assert_eq!(zones.take("z", at(69)), Turn::After(Duration::from_secs(1)));
        assert_eq!(zones.take("z", at(70)), Turn::Now);
    }

    #[test]
    fn most_of_a_small_zone_down_stops_it_and_of_a_large_one_slows_it() {
        let mut zones = Zones::default();
        zones.observe(zone(2, 3).into_iter(), at(0));
        assert_eq!(zones.take("z", at(0)), Turn::Never);
        let mut zones = Zones::default();
        zones.observe(zone(20, 31).into_iter(), at(0));
        assert_eq!(zones.take("z", at(0)), Turn::Now);
        assert_eq!(zones.take("z", at(0)), Turn::After(Duration::from_secs(100)));
        zones.observe(zone(49, 2).into_iter(), at(1));
        assert_eq!(zones.take("z", at(1)), Turn::After(Duration::from_secs(10)), "another pace, no turn for free");
    }

    #[test]
    fn two_nodes_of_two_down_is_nobodys_turn_until_one_is_back() {
        let mut zones = Zones::default();
        zones.observe(zone(2, 0).into_iter(), at(0));
        assert!(!zones.observe(zone(0, 2).into_iter(), at(50)));
        assert!(zones.all_down());
        assert_eq!(zones.take("z", at(50)), Turn::Never);
        assert!(zones.observe(zone(1, 1).into_iter(), at(90)), "back from being cut off");
        assert_eq!(zones.take("z", at(100)), Turn::Now);
    }

    #[test]
    fn one_zone_of_two_that_is_down_goes_at_the_usual_pace() {
        let mut zones = Zones::default();
        let nodes = [("a", true), ("b", false), ("b", false)];
        zones.observe(nodes.map(|(z, r)| (z.to_owned(), r)).into_iter(), at(0));
        assert_eq!(zones.take("b", at(0)), Turn::Now);
        assert_eq!(zones.take("b", at(0)), Turn::After(Duration::from_secs(10)));
    }
}
