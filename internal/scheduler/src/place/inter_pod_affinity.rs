//! Places pods one by one where a node's fitness depends on other pods: inter-pod affinity and
//! anti-affinity, topology spread, host ports, and volumes that several pods compete for.
//!
//! Method: for each pod, the rules are evaluated to sets of allowed or forbidden label values, and
//! the first node in order that satisfies all of them is taken. With preferences, all nodes with
//! room are scored.
//!
//! Cost: for each pod the counts of each rule, and nodes until one fits; with preferences, all
//! nodes with room.
//!
//! Source: kube-scheduler's InterPodAffinity, PodTopologySpread and NodePorts plugins.
//!
//! Tests: `tests/inter_pod_constraints.rs`, `tests/volumes.rs`, `tests/volume_limits.rs`.

use std::collections::{BTreeMap, BTreeSet};

use crate::class::ClassIx;
use crate::filter::neighbours::{self, DomainTerm, On, PodRules, SpreadConstraint};
use crate::filter::{self, Exclusion};
use crate::labels::Labels;
use crate::node::NodeIx;
use crate::pod::PodKey;
use crate::state::Scheduler;

use super::run::{PlacementRun, PlacementStop};
use super::scope::PlacementScope;

/// The number of counted terms above which terms that no class uses are dropped.
const TERMS_MAX: usize = 512;
/// The points that each pod in a domain costs a preferred (soft) topology spread.
const SPREAD_POINTS: i64 = 10;

/// The values of one node label that are allowed, or forbidden.
struct LabelRule {
    key: String,
    exclusion: Exclusion,
    values: BTreeSet<String>,
    /// True: only these values are allowed. False: all but these.
    only: bool,
}

/// The rules and scores for one pod at this moment.
#[derive(Default)]
struct AffinityVerdict {
    rules: Vec<LabelRule>,
    /// The points of each label's values.
    points: Vec<(String, BTreeMap<String, i64>)>,
}

impl Scheduler {
    /// True if pods of the class must be placed one by one, with regard to other pods.
    pub(super) fn has_inter_pod_rules(&self, class: ClassIx, first: &PodKey) -> bool {
        if self.classes.get(class).pod_rules().is_some() || self.is_per_pod(class) {
            return true;
        }
        if !self.neighbours.has_anti_affinity() {
            return false;
        }
        let labels = self.pods.get(first).map(|pod| pod.labels.map());
        let labels = labels.unwrap_or_default();
        self.neighbours
            .anti_affinity_against(&first.namespace, &labels)
            .next()
            .is_some()
    }

    /// Places such pods one by one. Returns how many were placed and why it stopped.
    pub(super) fn place_one_by_one(
        &mut self,
        class: ClassIx,
        pods: &[PodKey],
        scope: PlacementScope,
        run: &mut PlacementRun,
    ) -> (usize, Option<PlacementStop>) {
        let pod_rules = self
            .classes
            .get(class)
            .pod_rules()
            .cloned()
            .unwrap_or_default();
        self.count_terms(&pod_rules);
        for (i, pod) in pods.iter().enumerate() {
            self.refresh(class);
            match self.best_node_for(class, pod, &pod_rules, scope, run) {
                Ok(at) => self.take_room(class, std::slice::from_ref(pod), &[(at, 1)], run),
                Err(exclusions) => {
                    let missing = pods.len() - i;
                    let possible = run.have + run.placed.len();
                    let stop = if exclusions.is_empty() {
                        PlacementStop::Room {
                            class,
                            missing,
                            possible,
                        }
                    } else {
                        let obstacle =
                            self.excluded_by_others(class, &exclusions, missing, possible);
                        PlacementStop::Domain(Box::new(obstacle))
                    };
                    return (i, Some(stop));
                }
            }
        }
        (pods.len(), None)
    }

    /// The best node for one pod, or the number of nodes with room that each rule excludes.
    fn best_node_for(
        &self,
        class: ClassIx,
        pod: &PodKey,
        pod_rules: &PodRules,
        scope: PlacementScope,
        run: &PlacementRun,
    ) -> Result<NodeIx, BTreeMap<Exclusion, usize>> {
        let labels = self.pods.get(pod).map(|pod| pod.labels.map());
        let labels = labels.unwrap_or_default();
        let verdict = self.assess(class, pod_rules, pod, &labels);
        let mut exclusions: BTreeMap<Exclusion, usize> = BTreeMap::new();
        let Some(view) = self.views.get(&class) else {
            return Err(exclusions);
        };
        let per_pod = self.is_per_pod(class);
        let in_use = per_pod && self.claim_in_use(pod);
        let mut best: Option<(i64, i64, bool, NodeIx)> = None;
        for (key, at) in view.with_room() {
            let inside = match scope {
                PlacementScope::All => true,
                PlacementScope::Domain(outer) => self.topology.holds(outer, at),
                PlacementScope::Host(host) => host == at,
            };
            if !inside {
                continue;
            }
            let exclusion = match in_use {
                true => Some(Exclusion::OnePod),
                false => self.exclusion(&verdict, pod_rules, at),
            };
            let of_volumes = || self.volume_exclusion(pod, at).filter(|_| per_pod);
            if let Some(exclusion) = exclusion.or_else(of_volumes) {
                *exclusions.entry(exclusion).or_default() += 1;
                continue;
            }
            let points = self.points(&verdict, at);
            let apart = !run.own.contains(&at);
            let candidate = (key.tier, -points, apart, at);
            // Nodes come best first, so only more points may change the choice.
            if best.is_none_or(|(tier, points, apart, _)| {
                (candidate.0, candidate.1, candidate.2) < (tier, points, apart)
            }) {
                best = Some(candidate);
            }
            if verdict.points.is_empty() {
                break;
            }
        }
        best.map(|(.., at)| at).ok_or(exclusions)
    }

    fn assess(
        &self,
        class: ClassIx,
        pod_rules: &PodRules,
        pod: &PodKey,
        labels: &BTreeMap<String, String>,
    ) -> AffinityVerdict {
        let no_pods = On::new();
        let mut verdict = AffinityVerdict::default();
        let on = |near: &DomainTerm| self.neighbours.on(&near.term).unwrap_or(&no_pods);
        let own = |near: &DomainTerm| {
            let term = pod_rules.terms.get(&near.term);
            term.is_some_and(|term| term.matches(&pod.namespace, labels))
        };
        let with: Vec<_> = (pod_rules.with.iter())
            .map(|near| (near, self.by_value(on(near), &near.key)))
            .collect();
        let first = with
            .iter()
            .all(|(near, counts)| counts.is_empty() && own(near));
        for (near, counts) in with {
            let open = if first {
                // The first pod of a self-affine group may go to any node that has the label.
                self.values(&near.key)
            } else {
                counts.into_keys().collect()
            };
            verdict.close(&near.key, Exclusion::Affinity, open.into_iter(), true);
        }
        for near in &pod_rules.without {
            let counts = self.by_value(on(near), &near.key);
            verdict.close(
                &near.key,
                Exclusion::AntiAffinity,
                counts.into_keys(),
                false,
            );
        }
        for (key, on) in self
            .neighbours
            .anti_affinity_against(&pod.namespace, labels)
        {
            let counts = self.by_value(on, key);
            verdict.close(
                key,
                Exclusion::ExistingAntiAffinity,
                counts.into_keys(),
                false,
            );
        }
        for spread in &pod_rules.spread {
            let key = &spread.near.key;
            if !spread.hard {
                let counts = self.by_value(on(&spread.near), key);
                let points = counts
                    .iter()
                    .map(|(value, n)| (value.clone(), -SPREAD_POINTS * i64::from(*n)));
                verdict.points.push((key.clone(), points.collect()));
                continue;
            }
            let counts = self.spread_counts(class, pod_rules, spread, on(&spread.near));
            let few = counts.len() < spread.min_domains;
            let least = if few {
                0
            } else {
                counts.values().copied().min().unwrap_or(0)
            };
            let itself = u32::from(own(&spread.near));
            let open = counts
                .into_iter()
                .filter(|(_, count)| count + itself <= least + spread.max_skew);
            let open: Vec<String> = open.map(|(value, _)| value).collect();
            verdict.close(key, Exclusion::Spread, open.into_iter(), true);
        }
        for (near, weight) in &pod_rules.preferred {
            let counts = self.by_value(on(near), &near.key);
            let points = counts
                .into_iter()
                .map(|(value, n)| (value, i64::from(n) * weight));
            verdict.points.push((near.key.clone(), points.collect()));
        }
        verdict
    }

    fn by_value(&self, on: &On, key: &str) -> BTreeMap<String, u32> {
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for (at, n) in on {
            if let Some(value) = self.value_of(*at, key) {
                *counts.entry(value.to_owned()).or_default() += n;
            }
        }
        counts
    }

    /// How many pods each domain of a topology spread holds. Counts only eligible nodes: those that
    /// have the labels of all the class's hard spreads and that its policies (nodeAffinityPolicy,
    /// nodeTaintsPolicy) include.
    fn spread_counts(
        &self,
        class: ClassIx,
        pod_rules: &PodRules,
        spread: &SpreadConstraint,
        on: &On,
    ) -> BTreeMap<String, u32> {
        let facts = self.classes.get(class);
        let hard: Vec<&SpreadConstraint> = pod_rules.spread.iter().filter(|s| s.hard).collect();
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for at in self.node_index.values() {
            let node = &self.nodes[*at];
            let Some(offer) = &node.offer else { continue };
            let value =
                |spread: &SpreadConstraint| neighbours::value(node, offer, &spread.near.key);
            let Some(own) = value(spread) else { continue };
            if hard.iter().any(|other| value(other).is_none())
                || (spread.selected_only && !filter::selected(facts, node, offer))
                || (spread.tolerated_only && !filter::tolerated(facts, offer))
            {
                continue;
            }
            let here = if spread.counts_no_others {
                0
            } else {
                on.get(at).copied().unwrap_or(0)
            };
            match counts.get_mut(own) {
                Some(count) => *count += here,
                None => {
                    counts.insert(own.to_owned(), here);
                }
            }
        }
        counts
    }

    fn value_of(&self, at: NodeIx, key: &str) -> Option<&str> {
        let node = self.nodes.get(at)?;
        neighbours::value(node, node.offer.as_ref()?, key)
    }

    /// The values of a label among all nodes.
    fn values(&self, key: &str) -> BTreeSet<String> {
        let mut values = BTreeSet::new();
        for at in self.node_index.values() {
            let node = &self.nodes[*at];
            let Some(offer) = &node.offer else { continue };
            if let Some(value) = neighbours::value(node, offer, key)
                && !values.contains(value)
            {
                values.insert(value.to_owned());
            }
        }
        values
    }

    fn exclusion(
        &self,
        verdict: &AffinityVerdict,
        pod_rules: &PodRules,
        at: NodeIx,
    ) -> Option<Exclusion> {
        if !pod_rules.ports.is_empty() && !self.neighbours.free_ports(at, &pod_rules.ports) {
            return Some(Exclusion::Ports);
        }
        let closed = verdict.rules.iter().find(|rule| {
            let value = self.value_of(at, &rule.key);
            let listed = value.is_some_and(|value| rule.values.contains(value));
            listed != rule.only
        });
        closed.map(|rule| rule.exclusion)
    }

    fn points(&self, verdict: &AffinityVerdict, at: NodeIx) -> i64 {
        let all = verdict.points.iter().filter_map(|(key, points)| {
            let value = self.value_of(at, key)?;
            points.get(value)
        });
        all.sum()
    }

    /// Starts to count pods for the terms that the class uses.
    fn count_terms(&mut self, pod_rules: &PodRules) {
        if self.neighbours.len() > TERMS_MAX {
            let classes = &self.classes;
            self.neighbours.forget(|text| classes.uses_term(text));
        }
        for (text, term) in &pod_rules.terms {
            if self.neighbours.knows(text) {
                continue;
            }
            let mut on = On::new();
            for (name, pod) in self.pods.in_any_order() {
                let Some(at) = pod.node.filter(|_| pod.stage.occupies()) else {
                    continue;
                };
                if term.matches(&name.namespace, &pod.labels.map()) {
                    *on.entry(at).or_default() += 1;
                }
            }
            self.neighbours.learn(text, term.clone(), on);
        }
    }

    /// Counts a pod in, or out, for other pods' rules.
    pub(crate) fn count_for_rules(
        &mut self,
        namespace: &str,
        labels: &Labels,
        class: ClassIx,
        at: NodeIx,
        up: bool,
    ) {
        let pod_rules = self.classes.get(class).pod_rules();
        if pod_rules.is_none() && self.neighbours.is_empty() {
            return;
        }
        // A waiting pod's affinity or anti-affinity may be satisfied now.
        self.releases += 1;
        self.neighbours
            .count(at, namespace, || labels.map(), pod_rules, up);
    }

    /// Like `count_for_rules`, for a member that an attempt places or takes back.
    pub(super) fn count_member_for_rules(
        &mut self,
        name: &PodKey,
        class: ClassIx,
        at: NodeIx,
        up: bool,
    ) {
        self.volumes.see(name, at, up);
        self.decide_volumes(name, class, up.then_some(at));
        if self.classes.get(class).pod_rules().is_none() && self.neighbours.is_empty() {
            return;
        }
        if let Some(labels) = self.pods.get(name).map(|pod| pod.labels.clone()) {
            self.count_for_rules(&name.namespace, &labels, class, at, up);
        }
    }
}

impl AffinityVerdict {
    fn close(
        &mut self,
        key: &str,
        exclusion: Exclusion,
        values: impl Iterator<Item = String>,
        only: bool,
    ) {
        self.rules.push(LabelRule {
            key: key.to_owned(),
            exclusion,
            values: values.collect(),
            only,
        });
    }
}
