//! Records changes of nominations and reservations: only new and ended ones.

use std::collections::{BTreeMap, BTreeSet};

use crate::decision::DecisionDetail;
use crate::engine::stage::SimulatedCluster;
use crate::gang::{GangIx, NodeIndex};
use crate::planner::{MemberHold, PlannedStart};

impl SimulatedCluster<'_> {
    /// Takes the current holds; `starts` are the members that are bound now.
    pub(super) fn hold(&mut self, holds: Vec<MemberHold>, starts: &[PlannedStart]) {
        let now: BTreeMap<_, _> = holds
            .iter()
            .map(|hold| ((hold.gang, hold.member), (hold.node, hold.from)))
            .collect();
        let before = std::mem::replace(&mut self.holds, now);
        let started: BTreeSet<(GangIx, usize)> = starts
            .iter()
            .map(|start| (start.gang, start.member))
            .collect();
        for (key, (node, _)) in &before {
            let (gang, member) = *key;
            let over = self.gangs[gang].ended || started.contains(key);
            if !over && !self.holds.contains_key(key) {
                let (pod, node) = (self.pod_name(gang, member), self.node_name(*node));
                self.say_of(
                    gang,
                    DecisionDetail::Released {
                        pod: &pod,
                        node: &node,
                    },
                );
            }
        }
        for hold in holds {
            let key = (hold.gang, hold.member);
            if before.get(&key) == Some(&(hold.node, hold.from)) {
                continue;
            }
            let (pod, node) = (
                self.pod_name(hold.gang, hold.member),
                self.node_name(hold.node),
            );
            let what = match hold.from {
                None => DecisionDetail::Nominated {
                    pod: &pod,
                    node: &node,
                    devices: &hold.devices,
                },
                Some(from) => DecisionDetail::Reserved {
                    pod: &pod,
                    node: &node,
                    from,
                },
            };
            self.say_of(hold.gang, what);
        }
    }

    fn pod_name(&self, gang: GangIx, member: usize) -> String {
        let member = self.gangs[gang].members.get(member);
        member.map_or_else(String::new, |member| member.name().to_owned())
    }

    fn node_name(&self, node: NodeIndex) -> std::sync::Arc<str> {
        self.hosts[node].name.clone()
    }
}
