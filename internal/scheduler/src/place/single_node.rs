//! Chooses one node for pods that fit together on several single nodes: the node that leaves the
//! most capacity usable by the pods expected next. A topology request of the gang and the place of
//! its own pods take precedence and are decided elsewhere.

use crate::class::ClassIx;
use crate::node::NodeIx;
use crate::state::Scheduler;

use super::branch::Branch;
use super::run::PlacementRun;
use super::scope::PlacementScope;

impl Scheduler {
    /// The node for `count` pods placed now and `more` placed later, if one node holds all of them
    /// and the gang wants no others (otherwise nearness to the other members matters more). The
    /// class's view must be fresh.
    pub(super) fn one_node(
        &mut self,
        class: ClassIx,
        count: usize,
        more: usize,
        scope: PlacementScope,
        branch: &Branch,
        run: &PlacementRun,
    ) -> Option<NodeIx> {
        let wished = count + more;
        let wish = &branch.wish;
        if count == 0
            || !run.own.is_empty()
            || (!run.lone && run.waiting != wished)
            || !wish.slices.is_empty()
            || wish.unconstrained
        {
            return None;
        }
        let view = self.views.get(&class)?;
        let rank_without_sharing_cost = match scope {
            PlacementScope::All => view.rank_without_sharing_cost()?,
            PlacementScope::Domain(domain) => {
                let mut nodes = Vec::new();
                self.topology.all_nodes(domain, &mut nodes);
                let keys = nodes.into_iter().filter_map(|at| view.key(at));
                keys.map(|key| key.rank_without_sharing_cost()).min()?
            }
            PlacementScope::Host(_) => return None,
        };
        self.best_node_by_fragmentation(
            class,
            wished as u64,
            rank_without_sharing_cost,
            |tree, at| match scope {
                PlacementScope::Domain(outer) => tree.holds(outer, at),
                _ => true,
            },
        )
    }
}
