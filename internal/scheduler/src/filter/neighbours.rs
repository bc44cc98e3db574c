//! What a class of pods asks of the pods around it: inter-pod affinity and anti-affinity, topology
//! spread, host ports; and how many pods that matter to such rules are on which node. Counts are
//! kept from the moment that somebody asks for them. Whom to place where is `place`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as k8s;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use resources::selector::LabelSelector;

use crate::node::NodeIx;

/// Pods in some namespaces with some labels. An empty selector of namespaces, or any other one
/// (namespaces' labels are not known here), means all of them.
#[derive(Clone, Debug, PartialEq)]
struct Kin {
    selector: LabelSelector,
    namespaces: Option<BTreeSet<String>>,
}

/// Pods that are of all these kinds; of none where one can't be read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Term(Vec<Kin>);

impl Term {
    pub(crate) fn matches(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        let within = |kin: &Kin| {
            let names = kin.namespaces.as_ref();
            names.is_none_or(|names| names.contains(namespace)) && kin.selector.matches(labels)
        };
        !self.0.is_empty() && self.0.iter().all(within)
    }
}

/// Which pods, and within which label's domains.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Near {
    pub(crate) term: String,
    pub(crate) key: String,
}

/// One topology spread constraint.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) near: Near,
    pub(crate) max_skew: u32,
    pub(crate) min_domains: usize,
    /// `DoNotSchedule`, rather than `ScheduleAnyway`.
    pub(crate) hard: bool,
    /// Only nodes that the pod's selector and affinity allow count.
    pub(crate) selected_only: bool,
    /// Only nodes whose taints the pod tolerates count.
    pub(crate) tolerated_only: bool,
    /// Of other pods none counts: so kube-scheduler reads a selector that is there and empty, though
    /// it selects the pod itself.
    pub(crate) counts_nobody: bool,
}

/// A host port: address, protocol, number.
pub(crate) type Port = (String, String, i32);

/// All that a class asks of its neighbours.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Manners {
    pub(crate) with: Vec<Near>,
    pub(crate) without: Vec<Near>,
    /// Preferred; a negative weight is an aversion.
    pub(crate) liked: Vec<(Near, i64)>,
    pub(crate) spread: Vec<Spread>,
    pub(crate) ports: Vec<Port>,
    /// The terms by their text.
    pub(crate) terms: BTreeMap<String, Term>,
}

impl Manners {
    /// Reads them; none for a pod that does not care.
    pub(crate) fn read(
        spec: &k8s::PodSpec,
        namespace: &str,
        labels: Option<&BTreeMap<String, String>>,
    ) -> Option<Box<Manners>> {
        let mut manners = Manners::default();
        let affinity = spec.affinity.as_ref();
        if let Some(with) = affinity.and_then(|a| a.pod_affinity.as_ref()) {
            let required = &with.required_during_scheduling_ignored_during_execution;
            // kube-scheduler counts a pod for any of the terms only where it is of the kinds of all.
            let all: Vec<_> = (required.iter().flatten())
                .map(|term| kin(term, namespace))
                .collect();
            for term in required.iter().flatten() {
                let near = Near {
                    term: manners.term(&all),
                    key: term.topology_key.clone(),
                };
                manners.with.push(near);
            }
            let preferred = &with.preferred_during_scheduling_ignored_during_execution;
            for one in preferred.iter().flatten() {
                let near = manners.near(&one.pod_affinity_term, namespace);
                manners.liked.push((near, i64::from(one.weight)));
            }
        }
        if let Some(without) = affinity.and_then(|a| a.pod_anti_affinity.as_ref()) {
            let required = &without.required_during_scheduling_ignored_during_execution;
            for term in required.iter().flatten() {
                let near = manners.near(term, namespace);
                manners.without.push(near);
            }
            let preferred = &without.preferred_during_scheduling_ignored_during_execution;
            for one in preferred.iter().flatten() {
                let near = manners.near(&one.pod_affinity_term, namespace);
                manners.liked.push((near, -i64::from(one.weight)));
            }
        }
        for constraint in spec.topology_spread_constraints.iter().flatten() {
            let said = constraint.label_selector.clone();
            let mut selector = said.clone().unwrap_or_else(nobody);
            for key in constraint.match_label_keys.iter().flatten() {
                if said.is_some()
                    && let Some(value) = labels.and_then(|labels| labels.get(key))
                {
                    let all = selector.match_labels.get_or_insert_default();
                    all.insert(key.clone(), value.clone());
                }
            }
            let namespaces = Some([namespace.to_owned()].into());
            let counts_nobody = (selector.match_labels.as_ref()).is_none_or(BTreeMap::is_empty)
                && (selector.match_expressions.as_ref()).is_none_or(Vec::is_empty);
            let term = manners.term(&[(selector, namespaces)]);
            manners.spread.push(Spread {
                near: Near {
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
                counts_nobody,
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
            manners.ports.push((address, protocol, number));
        }
        (manners != Manners::default()).then(|| Box::new(manners))
    }

    fn near(&mut self, term: &k8s::PodAffinityTerm, namespace: &str) -> Near {
        Near {
            term: self.term(&[kin(term, namespace)]),
            key: term.topology_key.clone(),
        }
    }

    /// Notes a term; says its text.
    fn term(&mut self, all: &[(meta::LabelSelector, Option<BTreeSet<String>>)]) -> String {
        let written = all.iter().map(|(selector, namespaces)| {
            let selector = serde_json::to_string(selector).unwrap_or_default();
            format!("{selector} {namespaces:?}")
        });
        let text = written.collect::<Vec<_>>().join(" and ");
        let kins = all.iter().map(|(selector, namespaces)| {
            Ok(Kin {
                selector: LabelSelector::from_k8s(selector)?,
                namespaces: namespaces.clone(),
            })
        });
        if let Ok(kins) = kins.collect::<Result<Vec<_>, resources::selector::SelectorError>>() {
            self.terms.insert(text.clone(), Term(kins));
        }
        text
    }
}

/// Which pods a term is about.
fn kin(
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
    let selector = term.label_selector.clone().unwrap_or_else(nobody);
    (selector, namespaces)
}

/// What a selector that is left out selects.
fn nobody() -> meta::LabelSelector {
    meta::LabelSelector {
        match_expressions: Some(vec![meta::LabelSelectorRequirement {
            key: "a".into(),
            operator: "In".into(),
            values: Some(vec![]),
        }]),
        ..Default::default()
    }
}

/// Pods by node.
pub(crate) type On = BTreeMap<NodeIx, u32>;

/// What is known of pods that matter to somebody.
#[derive(Clone, Debug, Default)]
pub(crate) struct Neighbours {
    /// Pods that match a term, by its text.
    matching: BTreeMap<String, (Term, On)>,
    /// Pods that keep others away: their term and label.
    keeping: BTreeMap<(String, String), (Term, On)>,
    ports: BTreeMap<NodeIx, BTreeMap<Port, u32>>,
}

impl Neighbours {
    /// Does anything need to be counted?
    pub(crate) fn is_empty(&self) -> bool {
        self.matching.is_empty() && self.keeping.is_empty()
    }

    pub(crate) fn knows(&self, term: &str) -> bool {
        self.matching.contains_key(term)
    }

    /// Begins to count a term.
    pub(crate) fn learn(&mut self, text: &str, term: Term, on: On) {
        self.matching.insert(text.to_owned(), (term, on));
    }

    /// Where pods that match a term are.
    pub(crate) fn on(&self, term: &str) -> Option<&On> {
        self.matching.get(term).map(|(_, on)| on)
    }

    /// The rules of pods on nodes that keep such a pod away: the label, and where they are.
    pub(crate) fn keep_away<'a>(
        &'a self,
        namespace: &'a str,
        labels: &'a BTreeMap<String, String>,
    ) -> impl Iterator<Item = (&'a str, &'a On)> {
        self.keeping
            .iter()
            .filter(|(_, (term, on))| !on.is_empty() && term.matches(namespace, labels))
            .map(|((_, key), (_, on))| (key.as_str(), on))
    }

    /// Does anybody keep others away?
    pub(crate) fn keeps_any(&self) -> bool {
        !self.keeping.is_empty()
    }

    /// Are these ports free on a node?
    pub(crate) fn free_ports(&self, at: NodeIx, ports: &[Port]) -> bool {
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

    /// Counts a pod on a node, or off it.
    pub(crate) fn count(
        &mut self,
        at: NodeIx,
        namespace: &str,
        labels: impl Fn() -> BTreeMap<String, String>,
        manners: Option<&Manners>,
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
        let Some(manners) = manners else { return };
        for near in &manners.without {
            let Some(term) = manners.terms.get(&near.term) else {
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
        for port in &manners.ports {
            let used = self.ports.entry(at).or_default();
            change(used, port.clone(), up);
            if used.is_empty() {
                self.ports.remove(&at);
            }
        }
    }

    /// Stops counting terms that nobody asks about any more.
    pub(crate) fn forget(&mut self, used: impl Fn(&str) -> bool) {
        self.matching.retain(|text, _| used(text));
    }

    /// How many terms are counted.
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

/// What a label says of a node; a host is its own domain even without the label.
pub(crate) fn value<'a>(
    node: &'a crate::node::Node,
    offer: &'a crate::node::Offer,
    key: &str,
) -> Option<&'a str> {
    let name: &Arc<str> = &node.name;
    match offer.labels.get(key) {
        Some(value) => Some(value.as_str()),
        None if key == crate::topology::HOST => Some(name),
        None => None,
    }
}
