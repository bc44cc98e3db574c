//! Pods that all go to one node, where several would do: to the one that leaves most to the pods
//! to come. What the gang says of the network and of its own pods comes first, and is not decided
//! here.

use crate::class::ClassIx;
use crate::node::NodeIx;
use crate::state::Scheduler;

use super::branch::Branch;
use super::run::Run;
use super::scope::Scope;

impl Scheduler {
    /// The node for `count` pods that are placed now and `more` that come later, if one holds them
    /// all and they are all that the gang wants: else it matters more to be near the others. The
    /// class's view must be fresh.
    pub(super) fn one_node(
        &mut self,
        class: ClassIx,
        count: usize,
        more: usize,
        scope: Scope,
        branch: &Branch,
        run: &Run,
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
        let welcome = match scope {
            Scope::All => view.welcome()?,
            Scope::Domain(domain) => {
                let mut nodes = Vec::new();
                self.topology.all_nodes(domain, &mut nodes);
                let keys = nodes.into_iter().filter_map(|at| view.key(at));
                keys.map(|key| key.welcome()).min()?
            }
            Scope::Host(_) => return None,
        };
        self.least_missed(class, wished as u64, welcome, |tree, at| match scope {
            Scope::Domain(outer) => tree.holds(outer, at),
            _ => true,
        })
    }
}
