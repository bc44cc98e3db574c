//! Why a gang waits for PersistentVolumeClaims that a user or administrator must act on, by name
//! (`tests/volume_listing.rs`).

use resources::report::{ReasonCount, WaitReason};

use super::Obstacle;
use crate::class::ClassIx;
use crate::filter::volumes::NodeRequirements;
use crate::gang::GangKey;
use crate::state::Scheduler;

impl Scheduler {
    /// Why a gang waits for its members' PersistentVolumeClaims; none where enough members may
    /// start without the members whose claims are not ready.
    pub(crate) fn held_by_claims(&mut self, key: &GangKey) -> Option<Obstacle> {
        let gang = self.gangs.get(key)?;
        let is_held = |class: ClassIx| {
            let reach = self.classes.get(class).reach();
            reach.is_some_and(NodeRequirements::is_held)
        };
        let kinds = gang.kinds.iter().filter(|(class, _)| is_held(**class));
        let (mut first, mut held) = (None, 0);
        for (class, members) in kinds {
            first = first.or(Some(*class));
            held += members;
        }
        let (have, waiting) = (gang.total.have(), gang.total.pending);
        let open = waiting.saturating_sub(held);
        if held == 0 || open > 0 && have + open >= gang.minimum(key) {
            return None;
        }
        let mut holds = gang
            .pending
            .iter()
            .filter_map(|(_, pod)| self.volumes.hold_of(pod));
        let hold = holds.next()?;
        let others = holds.filter(|other| other.claim != hold.claim).count();
        let class = first?;
        self.refresh(class);
        let mut binding = hold.binding();
        if others > 0 {
            let members = if others == 1 {
                "member waits"
            } else {
                "members wait"
            };
            binding.push_str(&format!("; {others} more {members} for claims"));
        }
        let mut obstacle = Obstacle::new(WaitReason::NoNodeFits, binding, hold.remedy());
        obstacle.possible = have;
        let view = self.views.get(&class)?;
        obstacle.nodes = view.tally.nodes;
        obstacle.per_reason.push(ReasonCount {
            reason: hold.message(),
            nodes: view.tally.nodes,
        });
        Some(obstacle)
    }
}
