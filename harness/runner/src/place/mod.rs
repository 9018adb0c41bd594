//! Where trials are played: on an embedded cluster of their own, in a container, on a cluster that is already there. A
//! place says what it has; a trial that needs more is skipped with the reason, and counted.

mod container;
mod kind;
mod kubeconfig;
mod mapped;
mod mapping;
mod owner;

use std::{collections::BTreeSet, path::Path, sync::Arc};

use podlab_scenario::{Capability, Scenario};

pub use container::ContainerPlace;
pub use kind::{KindError, KindOptions, KindPlace};
pub use kubeconfig::{KubeconfigOptions, KubeconfigPlace};
pub use mapping::ImageRule;

use crate::{PlayOptions, Trial};

/// A place for trials of the real world.
#[derive(Debug, Clone, Default)]
pub enum Place {
    /// An embedded cluster for each trial.
    #[default]
    Embedded,
    /// An embedded cluster in a container for each trial.
    Container(Arc<ContainerPlace>),
    /// Namespaces of a cluster that is already there.
    Kubeconfig(Arc<KubeconfigPlace>),
    /// Namespaces of a cluster that kind made for this run.
    Kind(Arc<KindPlace>),
}

/// What the virtual world has.
pub fn virtual_capabilities() -> BTreeSet<Capability> {
    // Its node keeps no files of its own, and nobody sees its static Pods.
    all_but(&[Capability::ClockReal, Capability::NodeFiles])
}

/// What our own nodes have where containers are real.
fn own_capabilities() -> BTreeSet<Capability> {
    all_but(&[Capability::ClockVirtual])
}

fn all_but(lacks: &[Capability]) -> BTreeSet<Capability> {
    Capability::ALL.iter().copied().filter(|c| !lacks.contains(c)).collect()
}

impl Place {
    /// As `--backend` names it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Container(_) => "container",
            Self::Kubeconfig(_) => "kubeconfig",
            Self::Kind(_) => "kind",
        }
    }

    /// What it has.
    pub fn capabilities(&self) -> BTreeSet<Capability> {
        match self {
            Self::Embedded | Self::Container(_) => own_capabilities(),
            Self::Kubeconfig(place) => place.capabilities().clone(),
            Self::Kind(place) => place.cluster().capabilities().clone(),
        }
    }

    /// Why a scenario cannot be played here: what it needs that this place has not.
    pub fn lacks(&self, scenario: &Scenario) -> Option<String> {
        lacking(scenario, &self.capabilities(), self.name()).or_else(|| match self {
            Self::Embedded | Self::Container(_) => None,
            Self::Kubeconfig(place) => place.too_small(scenario),
            Self::Kind(place) => place.cluster().too_small(scenario),
        })
    }

    /// Whether it needs a process to boot embedded clusters from.
    pub fn boots(&self) -> bool {
        matches!(self, Self::Embedded)
    }

    /// Plays one there, if it is not the embedded one.
    pub(crate) async fn play(
        &self,
        name: &str,
        path: &Path,
        scenario: &Scenario,
        options: &PlayOptions,
    ) -> Option<Trial> {
        match self {
            Self::Embedded => None,
            Self::Container(place) => Some(place.play(name, path, scenario, options).await),
            Self::Kubeconfig(place) => Some(place.play(name, path, scenario, options).await),
            Self::Kind(place) => Some(place.cluster().play(name, path, scenario, options).await),
        }
    }

    /// Ends what was begun there. Trials clean up by themselves; this waits for what takes longer than they do.
    pub async fn end(&self) {
        match self {
            Self::Embedded => {}
            Self::Container(place) => place.end().await,
            Self::Kubeconfig(place) => place.end().await,
            Self::Kind(place) => place.end().await,
        }
    }
}

/// The first needs of a scenario that are not among what a place has, in one sentence.
pub fn lacking(scenario: &Scenario, has: &BTreeSet<Capability>, place: &str) -> Option<String> {
    let missing: Vec<String> = scenario
        .needs()
        .iter()
        .filter(|(c, _)| !has.contains(c))
        .map(|(c, why)| if why == "requires" { c.word().to_owned() } else { format!("{} ({why})", c.word()) })
        .collect();
    (!missing.is_empty()).then(|| format!("{place} lacks {}", missing.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn every_scenario_of_ours_can_be_played_in_the_worlds_it_names() {
        let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios"));
        let all = crate::suite::read(&root, "").unwrap_or_else(|e| panic!("{e:?}"));
        assert!(all.len() > 100, "{}", all.len());
        let mut elsewhere = 0;
        for ready in &all {
            if ready.scenario.clock.real() {
                assert_eq!(Place::Embedded.lacks(&ready.scenario), None, "{}", ready.name);
            }
            if ready.scenario.clock.virtual_too() {
                assert_eq!(lacking(&ready.scenario, &virtual_capabilities(), "virtual"), None, "{}", ready.name);
            }
            if !ready.scenario.clock.real() {
                let why = Place::Embedded.lacks(&ready.scenario).unwrap_or_default();
                assert!(why.contains("clock.virtual"), "{}: {why}", ready.name);
            }
            // What a conformant cluster of two nodes of that size has, and nothing of ours.
            let has = [
                Capability::ClockReal,
                Capability::TwoNodes,
                Capability::KernelOom,
                Capability::NodeSize,
                Capability::FreshImages,
            ];
            elsewhere += usize::from(lacking(&ready.scenario, &BTreeSet::from(has), "there").is_none());
        }
        assert!(elsewhere >= 20, "only {elsewhere} could be played on a foreign cluster");
    }
}
