//! Owns which namespaces may use which queues: the labels of namespaces, and a queue's `spec.namespaceSelector`. The API
//! refuses work for a queue that its namespace may not use. This check covers what the API could not: work that named a
//! queue before it existed, before its selector excluded the namespace, or before the namespace lost its labels.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use resources::selector::LabelSelector;

/// The label that the API sets on each namespace, with its name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

pub(crate) type LabelMap = BTreeMap<String, String>;

/// The namespaces that a queue admits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AdmittedNamespaces {
    /// `None`: the selector is unreadable and admits no namespace.
    selector: Option<LabelSelector>,
}

impl AdmittedNamespaces {
    /// Reads a queue's selector.
    pub(crate) fn read(selector: &meta::LabelSelector) -> AdmittedNamespaces {
        AdmittedNamespaces {
            selector: LabelSelector::from_k8s(selector).ok(),
        }
    }

    fn matches(&self, labels: &LabelMap) -> bool {
        let selector = self.selector.as_ref();
        selector.is_some_and(|selector| selector.matches(labels))
    }
}

/// The labels of namespaces.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamespaceLabels {
    all: BTreeMap<String, LabelMap>,
}

impl NamespaceLabels {
    /// Sets a namespace's labels; `None` for a namespace that is gone. Returns true if that is a change.
    pub(crate) fn set(&mut self, name: &str, labels: Option<LabelMap>) -> bool {
        let known = self.all.get(name);
        if known == labels.as_ref() {
            return false;
        }
        match labels {
            Some(labels) => self.all.insert(name.to_owned(), labels),
            None => self.all.remove(name),
        };
        true
    }

    /// True if the queue admits the namespace. An unknown namespace has only the label with its name.
    pub(crate) fn admits(&self, rule: &AdmittedNamespaces, namespace: &str) -> bool {
        match self.all.get(namespace) {
            Some(labels) => rule.matches(labels),
            None => rule.matches(&LabelMap::from([(
                NAME_LABEL.to_owned(),
                namespace.to_owned(),
            )])),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rule(selector: Value) -> AdmittedNamespaces {
        AdmittedNamespaces::read(&serde_json::from_value(selector).unwrap())
    }

    fn labels(of: &[(&str, &str)]) -> LabelMap {
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        of.iter().map(own).collect()
    }

    #[test]
    fn a_queue_admits_the_namespaces_that_its_selector_matches() {
        let mut namespaces = NamespaceLabels::default();
        assert!(namespaces.set("a", Some(labels(&[("team", "a")]))));
        assert!(!namespaces.set("a", Some(labels(&[("team", "a")]))));
        let team_a = rule(json!({"matchLabels": {"team": "a"}}));
        let by_name = rule(json!({"matchLabels": {NAME_LABEL: "b"}}));
        let unreadable = rule(json!({"matchExpressions": [{"key": "team", "operator": "Near"}]}));
        let table = [
            (&team_a, "a", true),
            (&team_a, "b", false),
            (&by_name, "b", true),
            (&by_name, "a", false),
            (&rule(json!({})), "b", true),
            (&unreadable, "a", false),
        ];
        for (rule, namespace, want) in table {
            assert_eq!(
                namespaces.admits(rule, namespace),
                want,
                "{rule:?} {namespace}"
            );
        }
        assert!(namespaces.set("a", None));
        assert!(!namespaces.admits(&team_a, "a"));
    }
}
