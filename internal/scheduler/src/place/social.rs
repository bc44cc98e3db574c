//! Placing pods that care who is around them, or whom others keep away: one by one, each where
//! inter-pod affinity and anti-affinity, topology spread and host ports let it, and the volumes of
//! its claims, which others may want too. Costs a look at
//! the counts of each rule and at nodes until one will do; with preferences, at all nodes with
//! room.

use std::collections::{BTreeMap, BTreeSet};

use crate::class::ClassIx;
use crate::filter::neighbours::{self, Manners, Near, On, Spread};
use crate::filter::{self, Snub};
use crate::labels::Labels;
use crate::node::NodeIx;
use crate::pod::PodKey;
use crate::state::Scheduler;

use super::run::{Run, Stop};
use super::scope::Scope;

/// How many terms are counted before those that nobody asks about are dropped.
const TERMS_MAX: usize = 512;
/// Pods in a domain count against a preference to be spread as much as so many points.
const SPREAD_POINTS: i64 = 10;

/// Domains of one label that are open, or closed.
struct Rule {
    key: String,
    snub: Snub,
    values: BTreeSet<String>,
    /// Only these values are open; else all but these.
    only: bool,
}

/// What holds for one pod now.
#[derive(Default)]
struct Verdict {
    rules: Vec<Rule>,
    /// Points of each label's values.
    points: Vec<(String, BTreeMap<String, i64>)>,
}

impl Scheduler {
    /// Must pods of the class be placed with a look at their neighbours?
    pub(super) fn is_social(&self, class: ClassIx, first: &PodKey) -> bool {
        if self.classes.get(class).manners().is_some() || self.is_picky(class) {
            return true;
        }
        if !self.neighbours.keeps_any() {
            return false;
        }
        let labels = self.pods.get(first).map(|pod| pod.labels.map());
        let labels = labels.unwrap_or_default();
        self.neighbours
            .keep_away(&first.namespace, &labels)
            .next()
            .is_some()
    }

    /// Places such pods one by one; how many, and what ended it.
    pub(super) fn place_social(
        &mut self,
        class: ClassIx,
        pods: &[PodKey],
        scope: Scope,
        run: &mut Run,
    ) -> (usize, Option<Stop>) {
        let manners = self
            .classes
            .get(class)
            .manners()
            .cloned()
            .unwrap_or_default();
        self.count_terms(&manners);
        for (i, pod) in pods.iter().enumerate() {
            self.refresh(class);
            match self.seat_among(class, pod, &manners, scope, run) {
                Ok(at) => self.take_room(class, std::slice::from_ref(pod), &[(at, 1)], run),
                Err(snubs) => {
                    let missing = pods.len() - i;
                    let possible = run.have + run.placed.len();
                    let stop = if snubs.is_empty() {
                        Stop::Room {
                            class,
                            missing,
                            possible,
                        }
                    } else {
                        let obstacle = self.snubbed(class, &snubs, missing, possible);
                        Stop::Domain(Box::new(obstacle))
                    };
                    return (i, Some(stop));
                }
            }
        }
        (pods.len(), None)
    }

    /// The best node for one pod; else how many nodes with room each rule closes.
    fn seat_among(
        &self,
        class: ClassIx,
        pod: &PodKey,
        manners: &Manners,
        scope: Scope,
        run: &Run,
    ) -> Result<NodeIx, BTreeMap<Snub, usize>> {
        let labels = self.pods.get(pod).map(|pod| pod.labels.map());
        let labels = labels.unwrap_or_default();
        let verdict = self.judge(class, manners, pod, &labels);
        let mut snubs: BTreeMap<Snub, usize> = BTreeMap::new();
        let Some(view) = self.views.get(&class) else {
            return Err(snubs);
        };
        let picky = self.is_picky(class);
        let in_use = picky && self.claim_in_use(pod);
        let mut best: Option<(i64, i64, bool, NodeIx)> = None;
        for (key, at) in view.with_room() {
            let inside = match scope {
                Scope::All => true,
                Scope::Domain(outer) => self.topology.holds(outer, at),
                Scope::Host(host) => host == at,
            };
            if !inside {
                continue;
            }
            let snub = match in_use {
                true => Some(Snub::OnePod),
                false => self.snub(&verdict, manners, at),
            };
            let of_volumes = || self.volume_snub(pod, at).filter(|_| picky);
            if let Some(snub) = snub.or_else(of_volumes) {
                *snubs.entry(snub).or_default() += 1;
                continue;
            }
            let points = self.points(&verdict, at);
            let apart = !run.own.contains(&at);
            let candidate = (key.tier, -points, apart, at);
            // Nodes come best first: only better points may change the choice.
            if best.is_none_or(|(tier, points, apart, _)| {
                (candidate.0, candidate.1, candidate.2) < (tier, points, apart)
            }) {
                best = Some(candidate);
            }
            if verdict.points.is_empty() {
                break;
            }
        }
        best.map(|(.., at)| at).ok_or(snubs)
    }

    fn judge(
        &self,
        class: ClassIx,
        manners: &Manners,
        pod: &PodKey,
        labels: &BTreeMap<String, String>,
    ) -> Verdict {
        let nobody = On::new();
        let mut verdict = Verdict::default();
        let on = |near: &Near| self.neighbours.on(&near.term).unwrap_or(&nobody);
        let own = |near: &Near| {
            let term = manners.terms.get(&near.term);
            term.is_some_and(|term| term.matches(&pod.namespace, labels))
        };
        let with: Vec<_> = (manners.with.iter())
            .map(|near| (near, self.by_value(on(near), &near.key)))
            .collect();
        let first = with
            .iter()
            .all(|(near, counts)| counts.is_empty() && own(near));
        for (near, counts) in with {
            let open = if first {
                // The first of its kind goes anywhere that has the labels.
                self.values(&near.key)
            } else {
                counts.into_keys().collect()
            };
            verdict.close(&near.key, Snub::Affinity, open.into_iter(), true);
        }
        for near in &manners.without {
            let counts = self.by_value(on(near), &near.key);
            verdict.close(&near.key, Snub::AntiAffinity, counts.into_keys(), false);
        }
        for (key, on) in self.neighbours.keep_away(&pod.namespace, labels) {
            let counts = self.by_value(on, key);
            verdict.close(key, Snub::KeptAway, counts.into_keys(), false);
        }
        for spread in &manners.spread {
            let key = &spread.near.key;
            if !spread.hard {
                let counts = self.by_value(on(&spread.near), key);
                let points = counts
                    .iter()
                    .map(|(value, n)| (value.clone(), -SPREAD_POINTS * i64::from(*n)));
                verdict.points.push((key.clone(), points.collect()));
                continue;
            }
            let counts = self.spread_counts(class, manners, spread, on(&spread.near));
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
            verdict.close(key, Snub::Spread, open.into_iter(), true);
        }
        for (near, weight) in &manners.liked {
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

    /// How many pods each domain of a spread holds, by the nodes that count for it: those that have
    /// the labels of all that the class is to be spread by, and that it may be on as far as the
    /// spread's policies ask.
    fn spread_counts(
        &self,
        class: ClassIx,
        manners: &Manners,
        spread: &Spread,
        on: &On,
    ) -> BTreeMap<String, u32> {
        let facts = self.classes.get(class);
        let hard: Vec<&Spread> = manners.spread.iter().filter(|s| s.hard).collect();
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for at in self.node_index.values() {
            let node = &self.nodes[*at];
            let Some(offer) = &node.offer else { continue };
            let value = |spread: &Spread| neighbours::value(node, offer, &spread.near.key);
            let Some(own) = value(spread) else { continue };
            if hard.iter().any(|other| value(other).is_none())
                || (spread.selected_only && !filter::selected(facts, node, offer))
                || (spread.tolerated_only && !filter::tolerated(facts, offer))
            {
                continue;
            }
            let here = if spread.counts_nobody {
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

    fn snub(&self, verdict: &Verdict, manners: &Manners, at: NodeIx) -> Option<Snub> {
        if !manners.ports.is_empty() && !self.neighbours.free_ports(at, &manners.ports) {
            return Some(Snub::Ports);
        }
        let closed = verdict.rules.iter().find(|rule| {
            let value = self.value_of(at, &rule.key);
            let listed = value.is_some_and(|value| rule.values.contains(value));
            listed != rule.only
        });
        closed.map(|rule| rule.snub)
    }

    fn points(&self, verdict: &Verdict, at: NodeIx) -> i64 {
        let all = verdict.points.iter().filter_map(|(key, points)| {
            let value = self.value_of(at, key)?;
            points.get(value)
        });
        all.sum()
    }

    /// Begins to count what the class asks about.
    fn count_terms(&mut self, manners: &Manners) {
        if self.neighbours.len() > TERMS_MAX {
            let classes = &self.classes;
            self.neighbours.forget(|text| classes.asks_about(text));
        }
        for (text, term) in &manners.terms {
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

    /// Counts a pod among its neighbours, or out.
    pub(crate) fn meet(
        &mut self,
        namespace: &str,
        labels: &Labels,
        class: ClassIx,
        at: NodeIx,
        up: bool,
    ) {
        let manners = self.classes.get(class).manners();
        if manners.is_none() && self.neighbours.is_empty() {
            return;
        }
        // Whoever waits for company, or for somebody to go, may be helped.
        self.eased += 1;
        self.neighbours
            .count(at, namespace, || labels.map(), manners, up);
    }

    /// The same for a member that an attempt places, or takes back.
    pub(super) fn meet_member(&mut self, name: &PodKey, class: ClassIx, at: NodeIx, up: bool) {
        self.volumes.see(name, at, up);
        self.decide_volumes(name, class, up.then_some(at));
        if self.classes.get(class).manners().is_none() && self.neighbours.is_empty() {
            return;
        }
        if let Some(labels) = self.pods.get(name).map(|pod| pod.labels.clone()) {
            self.meet(&name.namespace, &labels, class, at, up);
        }
    }
}

impl Verdict {
    fn close(&mut self, key: &str, snub: Snub, values: impl Iterator<Item = String>, only: bool) {
        self.rules.push(Rule {
            key: key.to_owned(),
            snub,
            values: values.collect(),
            only,
        });
    }
}
