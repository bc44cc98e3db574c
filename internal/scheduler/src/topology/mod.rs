//! The network topology as a tree of domains, read from node labels: which domain contains which,
//! where each node is, and the order of nodes along the tree. Knows no pods and decides nothing.
//!
//! Example: the labels `rack=r1` and `zone=a` put a node into domain `a/r1`.
//!
//! Tests: `tests/topology.rs`, `tests/topology_properties.rs`.

mod error;
mod hints;
mod order;
mod request;
mod shape;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::node::NodeIx;

pub(crate) use error::TopologyError;
pub(crate) use hints::Hints;
pub(crate) use order::Natural;
pub(crate) use request::{LevelRequest, TopologyRequest};
pub(crate) use shape::{GangShape, SubGroup};

/// The label of the level of single hosts, always the narrowest.
pub(crate) const HOST: &str = "kubernetes.io/hostname";
/// The most levels that are read; the narrowest of any further ones are ignored.
const LEVELS_MAX: usize = 15;
/// The tree is rebuilt once it has more than this many domains without nodes and they are the
/// majority.
const DEAD_MAX: usize = 4_096;

/// A domain's index in the tree. It depends on event order, so no decision may depend on it.
pub(crate) type DomainIx = u32;
/// A level: 0 is the widest; the host level is the number of levels.
pub(crate) type Level = u8;

/// The nodes that share the value of a level's label, and those of all wider levels.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    pub(crate) level: Level,
    pub(crate) value: Arc<str>,
    pub(crate) parent: Option<DomainIx>,
    children: BTreeMap<(Level, Natural), DomainIx>,
    /// Nodes that are in no narrower domain.
    nodes: BTreeSet<NodeIx>,
    /// The number of nodes below, at any depth.
    count: usize,
    /// Its position in tree order; breaks ties.
    pub(crate) order: u32,
}

/// All domains.
#[derive(Clone, Debug, Default)]
pub(crate) struct DomainTree {
    levels: Vec<Arc<str>>,
    domains: Vec<Domain>,
    roots: BTreeMap<(Level, Natural), DomainIx>,
    /// Nodes without any of the labels.
    loose: BTreeSet<NodeIx>,
    own_domains: Vec<Option<DomainIx>>,
    /// Each node's position in tree order: neighbours are close.
    along: Vec<u32>,
    by_level: Vec<Vec<DomainIx>>,
    dead: usize,
    stale: bool,
    /// Incremented when domains are renumbered.
    epoch: u64,
}

impl DomainTree {
    /// A tree of these levels, widest first.
    pub(crate) fn new(levels: &[String]) -> DomainTree {
        let named = levels.iter().filter(|level| *level != HOST);
        let levels: Vec<Arc<str>> = named
            .take(LEVELS_MAX)
            .map(|level| Arc::from(level.as_str()))
            .collect();
        DomainTree {
            by_level: vec![Vec::new(); levels.len()],
            levels,
            ..DomainTree::default()
        }
    }

    /// The level of single hosts.
    pub(crate) fn host(&self) -> Level {
        self.levels.len() as Level
    }

    /// The level of a label.
    pub(crate) fn level(&self, key: &str) -> Option<Level> {
        if key == HOST {
            return Some(self.host());
        }
        let at = self.levels.iter().position(|level| **level == *key);
        at.map(|at| at as Level)
    }

    /// The label of a level.
    pub(crate) fn key(&self, level: Level) -> &str {
        self.levels
            .get(usize::from(level))
            .map_or(HOST, |level| level)
    }

    /// All labels, widest first.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.levels.iter().map(|level| &**level)
    }

    /// True if there is no domain.
    pub(crate) fn is_flat(&self) -> bool {
        self.roots.is_empty()
    }

    /// The levels that some node is in, widest first.
    pub(crate) fn used(&self) -> Vec<Level> {
        let alive = |list: &Vec<DomainIx>| list.iter().any(|at| self.domain(*at).count > 0);
        let levels = self.by_level.iter().enumerate();
        levels
            .filter(|(_, list)| alive(list))
            .map(|(level, _)| level as Level)
            .collect()
    }

    pub(crate) fn domain(&self, at: DomainIx) -> &Domain {
        &self.domains[at as usize]
    }

    /// The number of domain indices in use, including domains without nodes.
    pub(crate) fn len(&self) -> usize {
        self.domains.len()
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The narrowest domain that a node is in.
    pub(crate) fn narrowest_domain(&self, at: NodeIx) -> Option<DomainIx> {
        self.own_domains.get(at).copied().flatten()
    }

    /// The domain of a level that a node is in.
    pub(crate) fn domain_of(&self, at: NodeIx, level: Level) -> Option<DomainIx> {
        self.above(self.narrowest_domain(at)?)
            .find(|domain| self.domain(*domain).level == level)
    }

    /// A domain and its ancestors, narrowest first.
    pub(crate) fn above(&self, at: DomainIx) -> impl Iterator<Item = DomainIx> + '_ {
        std::iter::successors(Some(at), |at| self.domain(*at).parent)
    }

    /// True if `inner` is `outer` or is within it.
    pub(crate) fn within(&self, inner: DomainIx, outer: DomainIx) -> bool {
        self.above(inner).any(|at| at == outer)
    }

    /// True if the node is in the domain.
    pub(crate) fn holds(&self, outer: DomainIx, at: NodeIx) -> bool {
        self.narrowest_domain(at)
            .is_some_and(|own_domain| self.within(own_domain, outer))
    }

    /// A level's domains, in tree order.
    pub(crate) fn at_level(&self, level: Level) -> &[DomainIx] {
        self.by_level
            .get(usize::from(level))
            .map_or(&[], Vec::as_slice)
    }

    pub(crate) fn children(&self, at: DomainIx) -> impl Iterator<Item = DomainIx> + '_ {
        let domain = self.domain(at);
        domain.children.values().copied()
    }

    /// The nodes of a domain that are in no narrower one.
    pub(crate) fn nodes(&self, at: DomainIx) -> impl Iterator<Item = NodeIx> + '_ {
        self.domain(at).nodes.iter().copied()
    }

    /// The widest domains.
    pub(crate) fn roots(&self) -> impl Iterator<Item = DomainIx> + '_ {
        self.roots.values().copied()
    }

    /// Nodes in no domain.
    pub(crate) fn loose(&self) -> impl Iterator<Item = NodeIx> + '_ {
        self.loose.iter().copied()
    }

    /// Every node of a domain.
    pub(crate) fn all_nodes(&self, at: DomainIx, out: &mut Vec<NodeIx>) {
        out.extend(self.nodes(at));
        for child in self.children(at) {
            self.all_nodes(child, out);
        }
    }

    /// A node's position in tree order.
    pub(crate) fn along(&self, at: NodeIx) -> u32 {
        self.along.get(at).copied().unwrap_or(u32::MAX)
    }

    /// A domain's name, with its ancestors: `zone-a/rack-3`.
    pub(crate) fn name(&self, at: DomainIx) -> String {
        let mut names: Vec<&str> = self.above(at).map(|at| &*self.domain(at).value).collect();
        names.reverse();
        names.join("/")
    }

    /// Moves a node to the domain that its labels name; `None` removes the node.
    pub(crate) fn put(&mut self, at: NodeIx, labels: Option<&BTreeMap<String, String>>) {
        if self.own_domains.len() <= at {
            self.own_domains.resize(at + 1, None);
        }
        let own_domain = labels.and_then(|labels| self.find(labels));
        let is_loose = labels.is_some() && own_domain.is_none();
        if self.own_domains[at] == own_domain && self.loose.contains(&at) == is_loose {
            return;
        }
        self.stale = true;
        if let Some(old) = self.own_domains[at].take() {
            self.domains[old as usize].nodes.remove(&at);
            self.count(old, false);
        }
        self.loose.remove(&at);
        self.own_domains[at] = own_domain;
        match own_domain {
            Some(new) => {
                self.domains[new as usize].nodes.insert(at);
                self.count(new, true);
            }
            None if is_loose => {
                self.loose.insert(at);
            }
            None => {}
        }
    }

    fn count(&mut self, at: DomainIx, up: bool) {
        let chain: Vec<DomainIx> = self.above(at).collect();
        for at in chain {
            let domain = &mut self.domains[at as usize];
            if up {
                self.dead -= usize::from(domain.count == 0);
                domain.count += 1;
            } else {
                domain.count -= 1;
                self.dead += usize::from(domain.count == 0);
            }
        }
    }

    /// The domain that the labels name, added if it is new.
    fn find(&mut self, labels: &BTreeMap<String, String>) -> Option<DomainIx> {
        let mut at: Option<DomainIx> = None;
        for level in 0..self.levels.len() {
            let value = labels.get(&*self.levels[level]);
            let Some(value) = value.filter(|value| !value.is_empty()) else {
                continue;
            };
            let key = (level as Level, Natural::new(value));
            let siblings = match at {
                Some(at) => &self.domains[at as usize].children,
                None => &self.roots,
            };
            if let Some(found) = siblings.get(&key) {
                at = Some(*found);
                continue;
            }
            let new = self.domains.len() as DomainIx;
            self.domains.push(Domain {
                level: level as Level,
                value: Arc::from(value.as_str()),
                parent: at,
                children: BTreeMap::new(),
                nodes: BTreeSet::new(),
                count: 0,
                order: 0,
            });
            self.dead += 1;
            self.stale = true;
            match at {
                Some(at) => self.domains[at as usize].children.insert(key, new),
                None => self.roots.insert(key, new),
            };
            self.by_level[level].push(new);
            at = Some(new);
        }
        at
    }

    /// Renumbers nodes and domains in tree order after changes. `name` returns a node's name.
    /// Returns true if domains were renumbered, so that anything kept by domain index is invalid.
    pub(crate) fn settle(&mut self, name: impl Fn(NodeIx) -> Arc<str>) -> bool {
        if !std::mem::take(&mut self.stale) {
            return false;
        }
        let rebuilt = self.dead > DEAD_MAX && self.dead * 2 > self.domains.len();
        if rebuilt {
            self.rebuild();
        }
        self.along.resize(self.own_domains.len(), u32::MAX);
        let mut next = 0;
        let mut loose: Vec<NodeIx> = self.loose.iter().copied().collect();
        let roots: Vec<DomainIx> = self.roots.values().copied().collect();
        for root in roots {
            self.number(root, &mut next, &name);
        }
        self.number_nodes(&mut loose, &mut next, &name);
        for list in &mut self.by_level {
            list.sort_unstable_by_key(|at| self.domains[*at as usize].order);
        }
        rebuilt
    }

    fn number(&mut self, at: DomainIx, next: &mut u32, name: &impl Fn(NodeIx) -> Arc<str>) {
        self.domains[at as usize].order = *next;
        *next += 1;
        let children: Vec<DomainIx> = self.children(at).collect();
        for child in children {
            self.number(child, next, name);
        }
        let mut nodes: Vec<NodeIx> = self.nodes(at).collect();
        self.number_nodes(&mut nodes, next, name);
    }

    fn number_nodes(
        &mut self,
        nodes: &mut [NodeIx],
        next: &mut u32,
        name: &impl Fn(NodeIx) -> Arc<str>,
    ) {
        nodes.sort_by_cached_key(|at| Natural::new(&name(*at)));
        for at in nodes {
            self.along[*at] = *next;
            *next += 1;
        }
    }

    /// Drops domains without nodes.
    fn rebuild(&mut self) {
        let mut paths: Vec<(NodeIx, BTreeMap<String, String>)> = Vec::new();
        for at in 0..self.own_domains.len() {
            let Some(own_domain) = self.own_domains[at] else {
                continue;
            };
            let labels = self.above(own_domain).map(|domain| {
                let domain = self.domain(domain);
                (self.key(domain.level).to_owned(), domain.value.to_string())
            });
            paths.push((at, labels.collect()));
        }
        self.domains.clear();
        self.roots.clear();
        self.by_level.iter_mut().for_each(Vec::clear);
        self.own_domains.fill(None);
        self.dead = 0;
        self.epoch += 1;
        for (at, labels) in paths {
            self.put(at, Some(&labels));
        }
        self.stale = false;
    }
}
