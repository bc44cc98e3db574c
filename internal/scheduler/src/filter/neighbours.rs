//! A class's rules about other pods (inter-pod affinity and anti-affinity, topology spread, host
//! ports), and the number of pods on each node that such rules select. A term is counted from its
//! first use on. `place` chooses the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as k8s;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use resources::selector::LabelSelector;

use crate::node::NodeIx;

/// Pods in some namespaces with some labels. An empty namespace selector means all namespaces; so
/// does any other one, because namespaces' labels are not known here.
#[derive(Clone, Debug, PartialEq)]
struct PodSelector {
    selector: LabelSelector,
    namespaces: Option<BTreeSet<String>>,
}

/// Pods that match all of these selectors; none if a selector cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AffinityTerm(Vec<PodSelector>);

impl AffinityTerm {
    pub(crate) fn matches(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        let within = |pod_selector: &PodSelector| {
            let names = pod_selector.namespaces.as_ref();
            names.is_none_or(|names| names.contains(namespace))
                && pod_selector.selector.matches(labels)
        };
        !self.0.is_empty() && self.0.iter().all(within)
    }
}

/// A term, and the label whose domains it is counted in.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DomainTerm {
    pub(crate) term: String,
    pub(crate) key: String,
}

/// One topology spread constraint.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SpreadConstraint {
    pub(crate) near: DomainTerm,
    pub(crate) max_skew: u32,
    pub(crate) min_domains: usize,
    /// `DoNotSchedule`; false is `ScheduleAnyway`.
    pub(crate) hard: bool,
    /// Only nodes that the pod's selector and affinity allow are counted.
    pub(crate) selected_only: bool,
    /// Only nodes whose taints the pod tolerates are counted.
    pub(crate) tolerated_only: bool,
    /// No other pod is counted: kube-scheduler's reading of a selector that is present and empty,
    /// although it selects the pod itself.
    pub(crate) counts_no_others: bool,
}

/// A host port: address, protocol, number.
pub(crate) type HostPort = (String, String, i32);

/// A class's rules about other pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PodRules {
    pub(crate) with: Vec<DomainTerm>,
    pub(crate) without: Vec<DomainTerm>,
    /// Preferred terms; a negative weight is a preference against.
    pub(crate) preferred: Vec<(DomainTerm, i64)>,
    pub(crate) spread: Vec<SpreadConstraint>,
    pub(crate) ports: Vec<HostPort>,
    /// The terms by their text.
    pub(crate) terms: BTreeMap<String, AffinityTerm>,
}

impl PodRules {
    /// Reads a pod's rules; `None` if it has none.
    pub(crate) fn read(
        spec: &k8s::PodSpec,
        namespace: &str,
        labels: Option<&BTreeMap<String, String>>,
    ) -> Option<Box<PodRules>> {
        let mut pod_rules = PodRules::default();
        let affinity = spec.affinity.as_ref();
        if let Some(with) = affinity.and_then(|a| a.pod_affinity.as_ref()) {
            let required = &with.required_during_scheduling_ignored_during_execution;
            // kube-scheduler counts a pod for required affinity only if it matches all terms.
            let all: Vec<_> = (required.iter().flatten())
                .map(|term| pod_selector(term, namespace))
                .collect();
            for term in required.iter().flatten() {
                let near = DomainTerm {
                    term: pod_rules.term(&all),
                    key: term.topology_key.clone(),
                };
                pod_rules.with.push(near);
            }
            let preferred = &with.preferred_during_scheduling_ignored_during_execution;
            for one in preferred.iter().flatten() {
                let near = pod_rules.near(&one.pod_affinity_term, namespace);
                pod_rules.preferred.push((near, i64::from(one.weight)));
            }
        }
        if let Some(without) = affinity.and_then(|a| a.pod_anti_affinity.as_ref()) {
            let required = &without.required_during_scheduling_ignored_during_execution;
            for term in required.iter().flatten() {
                let near = pod_rules.near(term, namespace);
                pod_rules.without.push(near);
            }
            let preferred = &without.preferred_during_scheduling_ignored_during_execution;
            for one in preferred.iter().flatten() {
                let near = pod_rules.near(&one.pod_affinity_term, namespace);
                pod_rules.preferred.push((near, -i64::from(one.weight)));
            }
        }
        for constraint in spec.topology_spread_constraints.iter().flatten() {
            let own_selector = constraint.label_selector.clone();
            let mut selector = own_selector.clone().unwrap_or_else(selects_nothing);
            for key in constraint.match_label_keys.iter().flatten() {
                if own_selector.is_some()
                    && let Some(value) = labels.and_then(|labels| labels.get(key))
                {
                    let all = selector.match_labels.get_or_insert_default();
                    all.insert(key.clone(), value.clone());
                }
            }
            let namespaces = Some([namespace.to_owned()].into());
            let counts_no_others = (selector.match_labels.as_ref()).is_none_or(BTreeMap::is_empty)
                && (selector.match_expressions.as_ref()).is_none_or(Vec::is_empty);
            let term = pod_rules.term(&[(selector, namespaces)]);
            pod_rules.spread.push(SpreadConstraint {
                near: DomainTerm {
                    term,
                    key: constraint.topology_key.clone(),
                },
                max_skew: u32::try_from(constraint.max_skew).unwrap_or(1).max(1),
                min_domains: constraint
                    .min_domains
                    .and_then(|n| usize::try_from(n).ok())
                    .unwrap_or(0),
                hard: constraint.when_unsatisfiable == "DoNotSchedule",
                selected_only: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
                tolerated_only: constraint.node_taints_policy.as_deref() == Some("Honor"),
                counts_no_others,
            });
        }
        let inits = spec.init_containers.iter().flatten();
        for port in spec
            .containers
            .iter()
            .chain(inits)
            .flat_map(|container| container.ports.iter().flatten())
        {
            let Some(number) = port.host_port.filter(|number| *number > 0) else {
                continue;
            };
            let address = port.host_ip.clone().unwrap_or_default();
            let anywhere = address.is_empty() || address == "0.0.0.0";
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            let address = if anywhere { String::new() } else { address };
            pod_rules.ports.push((address, protocol, number));
        }
        (pod_rules != PodRules::default()).then(|| Box::new(pod_rules))
    }

    fn near(&mut self, term: &k8s::PodAffinityTerm, namespace: &str) -> DomainTerm {
        DomainTerm {
            term: self.term(&[pod_selector(term, namespace)]),
            key: term.topology_key.clone(),
        }
    }

    /// Records a term; returns its text.
    fn term(&mut self, all: &[(meta::LabelSelector, Option<BTreeSet<String>>)]) -> String {
        let written = all.iter().map(|(selector, namespaces)| {
            let selector = serde_json::to_string(selector).unwrap_or_default();
            format!("{selector} {namespaces:?}")
        });
        let text = written.collect::<Vec<_>>().join(" and ");
        let pod_selectors = all.iter().map(|(selector, namespaces)| {
            Ok(PodSelector {
                selector: LabelSelector::from_k8s(selector)?,
                namespaces: namespaces.clone(),
            })
        });
        if let Ok(pod_selectors) =
            pod_selectors.collect::<Result<Vec<_>, resources::selector::SelectorError>>()
        {
            self.terms.insert(text.clone(), AffinityTerm(pod_selectors));
        }
        text
    }
}

/// The selector and namespaces of a term.
fn pod_selector(
    term: &k8s::PodAffinityTerm,
    namespace: &str,
) -> (meta::LabelSelector, Option<BTreeSet<String>>) {
    let named = term.namespaces.as_deref().unwrap_or_default();
    let namespaces = if term.namespace_selector.is_some() {
        None
    } else if named.is_empty() {
        Some([namespace.to_owned()].into())
    } else {
        Some(named.iter().cloned().collect())
    };
    let selector = term.label_selector.clone().unwrap_or_else(selects_nothing);
    (selector, namespaces)
}

/// The selector that stands for an absent one: it selects no pods.
fn selects_nothing() -> meta::LabelSelector {
    meta::LabelSelector {
        match_expressions: Some(vec![meta::LabelSelectorRequirement {
            key: "a".into(),
            operator: "In".into(),
            values: Some(vec![]),
        }]),
        ..Default::default()
    }
}

/// The number of pods by node.
pub(crate) type On = BTreeMap<NodeIx, u32>;

/// Counts of the pods that rules select.
#[derive(Clone, Debug, Default)]
pub(crate) struct Neighbours {
    /// Pods that match a term, by its text.
    matching: BTreeMap<String, (AffinityTerm, On)>,
    /// Pods with a required anti-affinity term, by term and label.
    keeping: BTreeMap<(String, String), (AffinityTerm, On)>,
    ports: BTreeMap<NodeIx, BTreeMap<HostPort, u32>>,
}

impl Neighbours {
    /// True if nothing is counted.
    pub(crate) fn is_empty(&self) -> bool {
        self.matching.is_empty() && self.keeping.is_empty()
    }

    pub(crate) fn knows(&self, term: &str) -> bool {
        self.matching.contains_key(term)
    }

    /// Starts to count a term.
    pub(crate) fn learn(&mut self, text: &str, term: AffinityTerm, on: On) {
        self.matching.insert(text.to_owned(), (term, on));
    }

    /// The nodes of the pods that match a term.
    pub(crate) fn on(&self, term: &str) -> Option<&On> {
        self.matching.get(term).map(|(_, on)| on)
    }

    /// The anti-affinity rules of placed pods that exclude such a pod: the label, and the pods'
    /// nodes.
    pub(crate) fn anti_affinity_against<'a>(
        &'a self,
        namespace: &'a str,
        labels: &'a BTreeMap<String, String>,
    ) -> impl Iterator<Item = (&'a str, &'a On)> {
        self.keeping
            .iter()
            .filter(|(_, (term, on))| !on.is_empty() && term.matches(namespace, labels))
            .map(|((_, key), (_, on))| (key.as_str(), on))
    }

    /// True if any placed pod has a required anti-affinity term.
    pub(crate) fn has_anti_affinity(&self) -> bool {
        !self.keeping.is_empty()
    }

    /// True if these ports are free on a node.
    pub(crate) fn free_ports(&self, at: NodeIx, ports: &[HostPort]) -> bool {
        let Some(used) = self.ports.get(&at) else {
            return true;
        };
        ports.iter().all(|(address, protocol, number)| {
            used.keys().all(|(taken, p, n)| {
                let other = n != number || p != protocol;
                other || !(taken == address || taken.is_empty() || address.is_empty())
            })
        })
    }

    /// Counts a pod in on a node, or out.
    pub(crate) fn count(
        &mut self,
        at: NodeIx,
        namespace: &str,
        labels: impl Fn() -> BTreeMap<String, String>,
        pod_rules: Option<&PodRules>,
        up: bool,
    ) {
        if !self.matching.is_empty() {
            let labels = labels();
            for (term, on) in self.matching.values_mut() {
                if term.matches(namespace, &labels) {
                    change(on, at, up);
                }
            }
        }
        let Some(pod_rules) = pod_rules else { return };
        for near in &pod_rules.without {
            let Some(term) = pod_rules.terms.get(&near.term) else {
                continue;
            };
            let key = (near.term.clone(), near.key.clone());
            let (_, on) = self
                .keeping
                .entry(key.clone())
                .or_insert_with(|| (term.clone(), On::new()));
            change(on, at, up);
            if on.is_empty() {
                self.keeping.remove(&key);
            }
        }
        for port in &pod_rules.ports {
            let used = self.ports.entry(at).or_default();
            change(used, port.clone(), up);
            if used.is_empty() {
                self.ports.remove(&at);
            }
        }
    }

    /// Stops counting terms that no class uses.
    pub(crate) fn forget(&mut self, used: impl Fn(&str) -> bool) {
        self.matching.retain(|text, _| used(text));
    }

    /// The number of counted terms.
    pub(crate) fn len(&self) -> usize {
        self.matching.len()
    }
}

fn change<K: Ord>(on: &mut BTreeMap<K, u32>, at: K, up: bool) {
    if up {
        *on.entry(at).or_insert(0) += 1;
        return;
    }
    if let Some(n) = on.get_mut(&at) {
        *n -= 1;
        if *n == 0 {
            on.remove(&at);
        }
    }
}

/// A label's value on a node; the hostname label defaults to the node's name.
pub(crate) fn value<'a>(
    node: &'a crate::node::Node,
    offer: &'a crate::node::NodeAttributes,
    key: &str,
) -> Option<&'a str> {
    let name: &Arc<str> = &node.name;
    match offer.labels.get(key) {
        Some(value) => Some(value.as_str()),
        None if key == crate::topology::HOST => Some(name),
        None => None,
    }
}
