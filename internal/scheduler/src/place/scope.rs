//! Scopes: the part of the cluster where pods may go, what a scope holds, and the scope that a
//! part's running members bind it to. Changes nothing except the views it refreshes.

use std::collections::BTreeMap;

use crate::class::ClassIx;
use crate::fit::ClassView;
use crate::node::NodeIx;
use crate::state::Scheduler;
use crate::topology::{DomainIx, Level};

use super::branch::Branch;

/// The part of the cluster where something may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PlacementScope {
    /// The whole cluster.
    All,
    Domain(DomainIx),
    Host(NodeIx),
}

impl Scheduler {
    /// How many pods of a class fit in the scope.
    pub(super) fn room(&mut self, class: ClassIx, scope: PlacementScope) -> u64 {
        self.refresh(class);
        self.views.get(&class).map_or(0, |view| match scope {
            PlacementScope::All => view.room,
            PlacementScope::Domain(at) => view.sum(at),
            PlacementScope::Host(at) => u64::from(view.holds(at)),
        })
    }

    /// The room of each domain around a place, the widest first.
    pub(super) fn rooms_around(&self, view: &ClassView, place: PlacementScope) -> Vec<u64> {
        let own_domain = match place {
            PlacementScope::All => None,
            PlacementScope::Domain(at) => self.topology.domain(at).parent,
            PlacementScope::Host(at) => self.topology.narrowest_domain(at),
        };
        let around = own_domain
            .into_iter()
            .flat_map(|own_domain| self.topology.above(own_domain));
        let mut rooms: Vec<u64> = around.map(|at| view.sum(at)).collect();
        rooms.reverse();
        rooms
    }

    /// The domain of a level that has most of a part's running members.
    pub(super) fn pinned(&self, branch: &Branch, level: Level) -> Option<PlacementScope> {
        let mut members: BTreeMap<PlacementScope, usize> = BTreeMap::new();
        for (at, n) in &branch.on {
            let place = if level == self.topology.host() {
                Some(PlacementScope::Host(*at))
            } else {
                self.topology
                    .domain_of(*at, level)
                    .map(PlacementScope::Domain)
            };
            if let Some(place) = place {
                *members.entry(place).or_default() += n;
            }
        }
        members
            .into_iter()
            .max_by_key(|(place, n)| (*n, std::cmp::Reverse(self.order_of(*place))))
            .map(|(place, _)| place)
    }

    /// The domains of a level within a scope; a scope at or below that level is its own only
    /// domain.
    pub(super) fn at_level(&self, scope: PlacementScope, level: Level) -> Vec<PlacementScope> {
        let tree = &self.topology;
        let narrow = match scope {
            PlacementScope::All => false,
            PlacementScope::Domain(at) => tree.domain(at).level >= level,
            PlacementScope::Host(_) => true,
        };
        if narrow {
            return vec![scope];
        }
        if level == tree.host() {
            return match scope {
                PlacementScope::All => self
                    .node_index
                    .values()
                    .map(|at| PlacementScope::Host(*at))
                    .collect(),
                PlacementScope::Domain(at) => {
                    let mut nodes = Vec::new();
                    tree.all_nodes(at, &mut nodes);
                    nodes.into_iter().map(PlacementScope::Host).collect()
                }
                PlacementScope::Host(_) => vec![scope],
            };
        }
        let all = tree.at_level(level).iter().copied();
        all.filter(|at| match scope {
            PlacementScope::Domain(outer) => tree.within(*at, outer),
            _ => true,
        })
        .map(PlacementScope::Domain)
        .collect()
    }

    pub(super) fn lies_in(&self, inner: PlacementScope, outer: PlacementScope) -> bool {
        match (inner, outer) {
            (_, PlacementScope::All) => true,
            (PlacementScope::All, _) => false,
            (PlacementScope::Domain(inner), PlacementScope::Domain(outer)) => {
                self.topology.within(inner, outer)
            }
            (PlacementScope::Host(at), PlacementScope::Domain(outer)) => {
                self.topology.holds(outer, at)
            }
            (PlacementScope::Host(a), PlacementScope::Host(b)) => a == b,
            (PlacementScope::Domain(_), PlacementScope::Host(_)) => false,
        }
    }

    pub(super) fn order_of(&self, place: PlacementScope) -> u32 {
        match place {
            PlacementScope::All => 0,
            PlacementScope::Domain(at) => self.topology.domain(at).order,
            PlacementScope::Host(at) => self.topology.along(at),
        }
    }

    /// The scope for members beyond a part's minimum: the part's required domain, or the outer
    /// scope if it requires none.
    pub(super) fn bounds(
        &self,
        branch: &Branch,
        scope: PlacementScope,
        outer: PlacementScope,
    ) -> PlacementScope {
        let Some(level) = branch.wish.required else {
            return outer;
        };
        match scope {
            PlacementScope::Domain(at) => {
                let mut above = self.topology.above(at);
                let wide = above.find(|up| self.topology.domain(*up).level == level);
                PlacementScope::Domain(wide.unwrap_or(at))
            }
            PlacementScope::Host(at) => {
                let wide = self.topology.domain_of(at, level);
                wide.map_or(scope, PlacementScope::Domain)
            }
            PlacementScope::All => scope,
        }
    }
}
