//! Node affinity: selector terms over a node's labels and name, with Kubernetes' semantics.

use k8s_openapi::api::core::v1 as k8s;
use resources::node_match::{self, requirement_holds};

use crate::node::{Node, NodeAttributes};

/// True if any term of the selector matches. A term without expressions matches nothing.
pub(super) fn selects(selector: &k8s::NodeSelector, node: &Node, offer: &NodeAttributes) -> bool {
    selector
        .node_selector_terms
        .iter()
        .any(|term| term_matches(term, node, offer))
}

/// True if any term matches as far as this one label is concerned.
pub(super) fn may_select(selector: &k8s::NodeSelector, key: &str, value: Option<&str>) -> bool {
    selector.node_selector_terms.iter().any(|term| {
        let requirements = term.match_expressions.iter().flatten();
        let mut of_it = requirements.filter(|requirement| requirement.key == key);
        of_it.all(|requirement| requirement_holds(requirement, value))
    })
}

/// The sum of the weights of the matching preferred terms.
pub(crate) fn preference(
    affinity: Option<&k8s::NodeAffinity>,
    node: &Node,
    offer: &NodeAttributes,
) -> i64 {
    let preferred = affinity.and_then(|affinity| {
        affinity
            .preferred_during_scheduling_ignored_during_execution
            .as_ref()
    });
    preferred
        .into_iter()
        .flatten()
        .filter(|term| term_matches(&term.preference, node, offer))
        .map(|term| i64::from(term.weight))
        .sum()
}

fn term_matches(term: &k8s::NodeSelectorTerm, node: &Node, offer: &NodeAttributes) -> bool {
    let label = |key: &str| offer.labels.get(key).map(String::as_str);
    node_match::term_matches(term, &node.name, label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requirement(key: &str, operator: &str, values: &[&str]) -> k8s::NodeSelectorRequirement {
        k8s::NodeSelectorRequirement {
            key: key.into(),
            operator: operator.into(),
            values: Some(values.iter().map(|v| (*v).to_owned()).collect()),
        }
    }

    #[test]
    fn every_operator_reads_a_label_as_kubernetes_does() {
        let table: [(&str, &[&str], Option<&str>, bool); 17] = [
            ("In", &["a", "b"], Some("b"), true),
            ("In", &["a", "b"], Some("c"), false),
            ("In", &["a"], None, false),
            ("NotIn", &["a"], Some("b"), true),
            ("NotIn", &["a"], Some("a"), false),
            ("NotIn", &["a"], None, true),
            ("Exists", &[], Some(""), true),
            ("Exists", &[], None, false),
            ("DoesNotExist", &[], None, true),
            ("DoesNotExist", &[], Some("x"), false),
            ("Gt", &["4"], Some("5"), true),
            ("Gt", &["4"], Some("4"), false),
            ("Gt", &["4"], Some("many"), false),
            ("Gt", &["4", "5"], Some("9"), false),
            ("Lt", &["4"], Some("-1"), true),
            ("Lt", &["4"], None, false),
            ("Near", &["4"], Some("4"), false),
        ];
        for (operator, values, value, want) in table {
            let got = requirement_holds(&requirement("k", operator, values), value);
            assert_eq!(got, want, "{operator} {values:?} on {value:?}");
        }
    }

    #[test]
    fn a_term_may_name_the_node_and_an_empty_term_matches_nothing() {
        let node = Node::new("n1".into());
        let offer = NodeAttributes::read(
            &k8s::Node::default(),
            &mut crate::resource::ResourceNames::new(),
        );
        let term = |fields: Vec<k8s::NodeSelectorRequirement>| k8s::NodeSelectorTerm {
            match_expressions: None,
            match_fields: Some(fields),
        };
        let by_name = |name| term(vec![requirement("metadata.name", "In", &[name])]);
        assert!(term_matches(&by_name("n1"), &node, &offer));
        assert!(!term_matches(&by_name("n2"), &node, &offer));
        assert!(!term_matches(&term(vec![]), &node, &offer));
        let odd = term(vec![requirement("metadata.uid", "In", &["n1"])]);
        assert!(!term_matches(&odd, &node, &offer));
    }
}
