//! Selectors against labels, node selectors against nodes, taints against tolerations. Pure.
//! Source: k/k staging/src/k8s.io/component-helpers/scheduling/corev1.

use std::collections::BTreeMap;

use crate::{
    core::{Affinity, Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration},
    meta::LabelSelector,
};

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// Whether a label selector matches. An empty selector matches everything.
pub fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    let exact = selector.match_labels.iter().flatten().all(|(k, v)| labels.get(k) == Some(v));
    let expressions = selector.match_expressions.iter().flatten();
    exact
        && expressions.into_iter().all(|e| requirement(&e.key, &e.operator, e.values.as_deref().unwrap_or(&[]), labels))
}

/// One requirement: `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt`, `Lt`. An unknown operator matches nothing.
fn requirement(key: &str, operator: &str, values: &[String], labels: &Labels) -> bool {
    let value = labels.get(key);
    let compare = |f: fn(i64, i64) -> bool| {
        let numbers = value.and_then(|v| v.parse().ok()).zip(values.first().and_then(|v| v.parse().ok()));
        numbers.is_some_and(|(have, want)| f(have, want))
    };
    match operator {
        "In" => value.is_some_and(|v| values.contains(v)),
        "NotIn" => value.is_none_or(|v| !values.contains(v)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|have, want| have > want),
        "Lt" => compare(|have, want| have < want),
        _ => false,
    }
}

/// Whether one term matches a node: all its expressions on labels and on fields. A term without any matches nothing.
pub fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let fields = Labels::from([("metadata.name".to_owned(), node.metadata.name.clone().unwrap_or_default())]);
    let all = |list: &Option<Vec<NodeSelectorRequirement>>, on: &Labels| {
        list.iter().flatten().all(|r| requirement(&r.key, &r.operator, r.values.as_deref().unwrap_or(&[]), on))
    };
    let empty = term.match_expressions.as_ref().is_none_or(Vec::is_empty)
        && term.match_fields.as_ref().is_none_or(Vec::is_empty);
    !empty && all(&term.match_expressions, &labels) && all(&term.match_fields, &fields)
}

/// Whether any term of a node selector matches.
pub fn node_selector_matches(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|t| term_matches(t, node))
}

/// Whether a Pod's `nodeSelector` and required node affinity allow a node.
pub fn node_allowed(node_selector: Option<&Labels>, affinity: Option<&Affinity>, node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let plain = node_selector.into_iter().flatten().all(|(k, v)| labels.and_then(|l| l.get(k)) == Some(v));
    let node_affinity = affinity.and_then(|a| a.node_affinity.as_ref());
    let required = node_affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    plain && required.is_none_or(|r| node_selector_matches(r, node))
}

/// Whether a toleration covers a taint.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    let key = toleration.key.as_deref().unwrap_or_default();
    if !key.is_empty() && key != taint.key {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => {
            !key.is_empty()
                && toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
        }
        "Exists" => true,
        _ => false,
    }
}

/// The first taint with one of these effects that no toleration covers.
pub fn untolerated<'a>(taints: &'a [Taint], tolerations: &[Toleration], effects: &[&str]) -> Option<&'a Taint> {
    let of_interest = taints.iter().filter(|t| effects.contains(&t.effect.as_str()));
    of_interest.into_iter().find(|taint| !tolerations.iter().any(|t| tolerates(t, taint)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::LabelSelectorRequirement;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn every_operator_decides_as_upstream_does() {
        let have = labels(&[("a", "1"), ("n", "5")]);
        for (key, operator, values, expected) in [
            ("a", "In", vec!["1", "2"], true),
            ("a", "In", vec!["2"], false),
            ("b", "NotIn", vec!["1"], true),
            ("a", "NotIn", vec!["1"], false),
            ("a", "Exists", vec![], true),
            ("b", "DoesNotExist", vec![], true),
            ("n", "Gt", vec!["4"], true),
            ("n", "Lt", vec!["4"], false),
            ("a", "Sounds", vec![], false),
        ] {
            let values = values.into_iter().map(str::to_owned).collect::<Vec<_>>();
            let r = LabelSelectorRequirement { key: key.into(), operator: operator.into(), values: Some(values) };
            let selector = LabelSelector { match_expressions: Some(vec![r]), match_labels: None };
            assert_eq!(selects(&selector, &have), expected, "{key} {operator}");
        }
    }

    #[test]
    fn a_toleration_without_key_and_with_exists_covers_everything() {
        let taint = Taint { key: "k".into(), effect: "NoSchedule".into(), ..Taint::default() };
        let all = Toleration { operator: Some("Exists".into()), ..Toleration::default() };
        let equal_nothing = Toleration::default();
        assert!(tolerates(&all, &taint) && !tolerates(&equal_nothing, &taint));
        assert!(untolerated(std::slice::from_ref(&taint), &[all], &["NoSchedule"]).is_none());
        assert!(untolerated(&[taint], &[], &["NoExecute"]).is_none());
    }
}
