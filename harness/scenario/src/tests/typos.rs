//! No key can be misspelled without being told: every key of every scenario of this repository, wherever it stands, is
//! misspelled once, and the file is refused. Only names that are the author's own may be anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde_json::Value;

use crate::{discover, parse};

/// Where keys are names the author gives, or fields of Kubernetes, which the API server judges.
const OWN: [&str; 5] = ["params", "matrix", "bind", "label.set", "use.with"];
const KUBERNETES: [&str; 3] = ["patch.with", "resize.requests", "resize.limits"];

/// Calls `f` with the place of each key: names of the keys above it, without numbers.
fn keys(v: &Value, above: &str, f: &mut impl FnMut(&str, &str, Vec<String>), at: &[String]) {
    let below = |key: &str| [at, &[key.to_owned()]].concat();
    match v {
        Value::Object(map) => {
            for (key, value) in map {
                f(above, key, below(key));
                keys(value, &format!("{above}.{key}"), f, &below(key));
            }
        }
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, value)| keys(value, above, f, &below(&i.to_string())));
        }
        _ => {}
    }
}

fn misspelled(root: &Value, at: &[String]) -> Value {
    let (last, above) = at.split_last().unwrap();
    let mut root = root.clone();
    let mut v = &mut root;
    for key in above {
        v = match v {
            Value::Array(list) => &mut list[key.parse::<usize>().unwrap()],
            other => other.get_mut(key).unwrap(),
        };
    }
    let map = v.as_object_mut().unwrap();
    let value = map.remove(last).unwrap();
    map.insert(format!("{last}Q"), value);
    root
}

#[test]
fn no_key_of_a_scenario_can_be_misspelled_without_being_told() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    // One of each kind of place is as good as all.
    let mut seen: BTreeMap<(String, String), ()> = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for (name, path) in discover(&root).unwrap() {
        let text = std::fs::read_to_string(&path).unwrap();
        let tree: Value = serde_saphyr::from_str(&text).unwrap();
        let mut places = Vec::new();
        keys(
            &tree,
            "",
            &mut |above, key, at| {
                if seen.insert((above.to_owned(), key.to_owned()), ()).is_none() {
                    places.push((above.to_owned(), at));
                }
            },
            &[],
        );
        for (above, at) in places {
            let free = OWN.iter().any(|o| above.ends_with(o)) || KUBERNETES.iter().any(|k| above.contains(k));
            if !free && parse(&misspelled(&tree, &at).to_string(), &path).is_ok() {
                taken.insert(format!("{name}: {}", at.join(".")));
            }
        }
    }
    assert!(seen.len() > 150, "only {} kinds of places", seen.len());
    assert!(taken.is_empty(), "{taken:#?}");
}
