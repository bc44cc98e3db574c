//! Scopes: the part of the cluster where pods may go, what a scope holds, and the scope that a
//! part's running members bind it to. Changes nothing except the views it refreshes.

use std::collections::BTreeMap;

use crate::class::ClassIx;
use crate::fit::View;
use crate::node::NodeIx;
use crate::state::Scheduler;
use crate::topology::{DomainIx, Level};

use super::branch::Branch;

/// The part of the cluster where something may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// The whole cluster.
    All,
    Domain(DomainIx),
    Host(NodeIx),
}

impl Scheduler {
    /// How many pods of a class fit in the scope.
    pub(super) fn room(&mut self, class: ClassIx, scope: Scope) -> u64 {
        self.refresh(class);
        self.views.get(&class).map_or(0, |view| match scope {
            Scope::All => view.room,
            Scope::Domain(at) => view.sum(at),
            Scope::Host(at) => u64::from(view.holds(at)),
        })
    }

    /// The room of each domain around a place, the widest first.
    pub(super) fn rooms_around(&self, view: &View, place: Scope) -> Vec<u64> {
        let home = match place {
            Scope::All => None,
            Scope::Domain(at) => self.topology.domain(at).parent,
            Scope::Host(at) => self.topology.home(at),
        };
        let around = home.into_iter().flat_map(|home| self.topology.above(home));
        let mut rooms: Vec<u64> = around.map(|at| view.sum(at)).collect();
        rooms.reverse();
        rooms
    }

    /// The domain of a level that has most of a part's running members.
    pub(super) fn pinned(&self, branch: &Branch, level: Level) -> Option<Scope> {
        let mut members: BTreeMap<Scope, usize> = BTreeMap::new();
        for (at, n) in &branch.on {
            let place = if level == self.topology.host() {
                Some(Scope::Host(*at))
            } else {
                self.topology.domain_of(*at, level).map(Scope::Domain)
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
    pub(super) fn at_level(&self, scope: Scope, level: Level) -> Vec<Scope> {
        let tree = &self.topology;
        let narrow = match scope {
            Scope::All => false,
            Scope::Domain(at) => tree.domain(at).level >= level,
            Scope::Host(_) => true,
        };
        if narrow {
            return vec![scope];
        }
        if level == tree.host() {
            return match scope {
                Scope::All => self
                    .node_index
                    .values()
                    .map(|at| Scope::Host(*at))
                    .collect(),
                Scope::Domain(at) => {
                    let mut nodes = Vec::new();
                    tree.all_nodes(at, &mut nodes);
                    nodes.into_iter().map(Scope::Host).collect()
                }
                Scope::Host(_) => vec![scope],
            };
        }
        let all = tree.at_level(level).iter().copied();
        all.filter(|at| match scope {
            Scope::Domain(outer) => tree.within(*at, outer),
            _ => true,
        })
        .map(Scope::Domain)
        .collect()
    }

    pub(super) fn lies_in(&self, inner: Scope, outer: Scope) -> bool {
        match (inner, outer) {
            (_, Scope::All) => true,
            (Scope::All, _) => false,
            (Scope::Domain(inner), Scope::Domain(outer)) => self.topology.within(inner, outer),
            (Scope::Host(at), Scope::Domain(outer)) => self.topology.holds(outer, at),
            (Scope::Host(a), Scope::Host(b)) => a == b,
            (Scope::Domain(_), Scope::Host(_)) => false,
        }
    }

    pub(super) fn order_of(&self, place: Scope) -> u32 {
        match place {
            Scope::All => 0,
            Scope::Domain(at) => self.topology.domain(at).order,
            Scope::Host(at) => self.topology.along(at),
        }
    }

    /// The scope for members beyond a part's minimum: the part's required domain, or the outer
    /// scope if it requires none.
    pub(super) fn bounds(&self, branch: &Branch, scope: Scope, outer: Scope) -> Scope {
        let Some(level) = branch.wish.required else {
            return outer;
        };
        match scope {
            Scope::Domain(at) => {
                let mut above = self.topology.above(at);
                let wide = above.find(|up| self.topology.domain(*up).level == level);
                Scope::Domain(wide.unwrap_or(at))
            }
            Scope::Host(at) => {
                let wide = self.topology.domain_of(at, level);
                wide.map_or(scope, Scope::Domain)
            }
            Scope::All => scope,
        }
    }
}
