//! Which trials of a folder are played: by path, label, expression and shard, without starting anything.

use std::collections::{BTreeMap, BTreeSet};

use podlab_scenario::{Cel, Vars};
use serde_json::{Value, json};

use crate::suite::{Ready, World};

/// Names an expression may use.
const NAMES: [&str; 8] = ["name", "tags", "world", "intent", "source", "requires", "nodes", "faults"];

/// What to play. Everything that is given must be so.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// The name contains one of these; any name when empty.
    pub names: Vec<String>,
    /// It has all of these labels.
    pub tags: Vec<String>,
    /// True of it.
    pub expression: Option<Cel>,
    /// Only in this world.
    pub world: Option<World>,
    /// It is one of these.
    pub only: Option<BTreeSet<String>>,
    /// Every scenario once, as a trial of the real world, also those that name only the virtual one: the place says
    /// which of them it has to skip.
    pub elsewhere: bool,
    /// Of what is left, the k-th of every n: (k, n), k from 1.
    pub shard: Option<(usize, usize)>,
}

impl Selection {
    /// Whether the expression can be evaluated of a trial.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        let Some(e) = &self.expression else { return Ok(()) };
        let free = e.free()?;
        match free.iter().find(|n| !NAMES.contains(&n.as_str())) {
            Some(name) => Err(format!("nothing is called {name:?} here; there is {}", NAMES.join(", "))),
            None => Ok(()),
        }
    }

    /// The trials to play, in order of their names.
    ///
    /// # Errors
    /// When the expression is neither true nor false of one.
    pub fn of(&self, all: &[Ready]) -> Result<Vec<(Ready, World)>, String> {
        let mut chosen = Vec::new();
        for ready in all {
            let worlds = if self.elsewhere { vec![World::Real] } else { ready.worlds(self.world) };
            for world in worlds {
                let name = ready.trial_name(world);
                let hit = self.names.is_empty() || self.names.iter().any(|n| name.contains(n.as_str()));
                let labelled = self.tags.iter().all(|t| ready.scenario.tags.contains(t));
                let listed = self.only.as_ref().is_none_or(|only| only.contains(&name));
                if hit && labelled && listed && self.holds(ready, world, &name)? {
                    chosen.push((name, ready.clone(), world));
                }
            }
        }
        chosen.sort_by(|a, b| a.0.cmp(&b.0));
        let mine = |i: usize| self.shard.is_none_or(|(k, n)| i % n.max(1) + 1 == k);
        Ok(chosen.into_iter().enumerate().filter(|(i, _)| mine(*i)).map(|(_, (_, r, w))| (r, w)).collect())
    }

    fn holds(&self, ready: &Ready, world: World, name: &str) -> Result<bool, String> {
        let Some(e) = &self.expression else { return Ok(true) };
        let s = &ready.scenario;
        let world = if world == World::Real { "real" } else { "virtual" };
        let faults: Vec<&str> = s.faults.iter().map(|f| f.at.seam()).collect();
        // A capability is shown as the scenario writes it.
        let tree = s.origin.value("requires");
        let values = [
            ("name", Value::from(name)),
            ("tags", json!(s.tags)),
            ("world", world.into()),
            ("intent", s.intent.as_str().into()),
            ("source", s.source.clone().unwrap_or_default().into()),
            ("requires", tree.unwrap_or_else(|| json!([]))),
            ("nodes", s.cluster.nodes.into()),
            ("faults", json!(faults)),
        ];
        let vars: Vars = values.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<BTreeMap<_, _>>();
        e.holds(&vars).map_err(|why| format!("{name}: `{}`: {why}", e.0))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn ready(name: &str, more: &str) -> Ready {
        let text = format!(
            "apiVersion: podlab/v1\nkind: Scenario\nintent: Something holds.\n{more}then:\n- leakFree: [ips]\n"
        );
        let scenario = podlab_scenario::parse(&text, Path::new("x.yaml")).unwrap();
        Ready { name: name.into(), path: "x.yaml".into(), scenario }
    }

    fn all() -> Vec<Ready> {
        vec![
            ready("b/slow", "tags: [slow, net]\nclock: virtual\n"),
            ready("a/both", "clock: both\ntags: [net]\n"),
            ready("a/real", "requires: [node.agent]\ncluster: {nodes: 2}\n"),
        ]
    }

    fn names(s: &Selection) -> Vec<String> {
        s.of(&all()).unwrap().iter().map(|(r, w)| r.trial_name(*w)).collect()
    }

    fn expression(text: &str) -> Selection {
        Selection { expression: Some(Cel(text.into())), ..Selection::default() }
    }

    #[test]
    fn trials_are_chosen_by_path_label_world_and_expression() {
        assert_eq!(names(&Selection::default()), ["a/both", "a/both@virtual", "a/real", "b/slow"]);
        let by =
            |names: &[&str]| Selection { names: names.iter().map(|s| (*s).into()).collect(), ..Selection::default() };
        assert_eq!(names(&by(&["real", "slow"])), ["a/real", "b/slow"]);
        assert_eq!(
            names(&Selection { tags: vec!["net".into()], world: Some(World::Virtual), ..Selection::default() }),
            ["a/both@virtual", "b/slow"]
        );
        assert_eq!(names(&expression("'slow' in tags || nodes == 2")), ["a/real", "b/slow"]);
        assert_eq!(names(&expression("'node.agent' in requires && world == 'real'")), ["a/real"]);
        assert!(expression("nam == 'x'").check().is_err());
        assert!(expression("nodes").of(&all()).is_err());
    }

    #[test]
    fn every_trial_is_in_exactly_one_shard() {
        let of = |k, n| names(&Selection { shard: Some((k, n)), ..Selection::default() });
        for n in 1..=5 {
            let mut together: Vec<String> = (1..=n).flat_map(|k| of(k, n)).collect();
            together.sort();
            assert_eq!(together, names(&Selection::default()), "{n} shards");
        }
    }
}
