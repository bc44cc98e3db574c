//! Queues as plain data, for display and checks.

use std::collections::BTreeMap;

use resources::amounts::Amounts;

use crate::queue::rules::{SparseAmounts, WEIGHT_UNIT};
use crate::queue::{QueueIx, QueueRules, Queues, ROOT};
use crate::resource::{GPU, Ix, ResourceNames, Room};
use crate::view::QueueView;

impl Queues {
    /// All queues by name, given capacity and use.
    pub(crate) fn views(
        &self,
        names: &ResourceNames,
        total: &Room,
        used: &Room,
    ) -> BTreeMap<String, QueueView> {
        let fresh;
        let queues = if self.settled(total, used) {
            self
        } else {
            let mut made = self.clone();
            made.update_entitlements(total, used);
            fresh = made;
            &fresh
        };
        let all = queues.iter();
        all.map(|(name, at, _)| (name.clone(), queues.view(at, names)))
            .collect()
    }

    fn view(&self, at: QueueIx, names: &ResourceNames) -> QueueView {
        let queue = &self.table[at];
        let rules = self.rules(at);
        let resources = || (0..self.pool.len().max(queue.sum.requested.len())).map(|ix| ix as Ix);
        let list = |amount: &dyn Fn(Ix) -> Option<i64>| -> Amounts {
            let explicit = |ix: Ix| {
                let units = names.whole(ix, amount(ix)?);
                Some((names.name(ix).to_owned(), units))
            };
            resources().filter_map(explicit).collect()
        };
        let deserved = |rules: &QueueRules, ix: Ix| {
            let explicit = super::rules::amount_for(&rules.deserved, ix);
            explicit
                .or_else(|| super::rules::amount_for(&rules.guarantee, ix))
                .map(|_| rules.entitled_first(ix))
        };
        let bound = |of: &dyn Fn(&QueueRules) -> &SparseAmounts| {
            list(&|ix| rules.and_then(|rules| super::rules::amount_for(of(rules), ix)))
        };
        let holders = |all: &BTreeMap<usize, Room>, name: &dyn Fn(usize) -> String| {
            let held = all.iter().filter(|(_, room)| !room.is_zero());
            let held = held.map(|(ix, room)| (name(*ix), names.amounts(room)));
            held.collect::<BTreeMap<String, Amounts>>()
        };
        let limits = |of: fn(&QueueRules) -> &SparseAmounts| {
            rules.is_some_and(|rules| !of(rules).is_empty())
        };
        let users = match limits(|rules| &rules.user_limit) {
            true => &queue.limited,
            false => &queue.users,
        };
        let teams = match limits(|rules| &rules.team_limit) {
            true => &queue.limited_teams,
            false => &queue.teams,
        };
        let (share, dominant) = self.cluster_share(at);
        let line = queue.line.iter().map(|place| {
            let gang = &place.gang;
            (gang.namespace.to_string(), gang.name.to_string())
        });
        QueueView {
            parent: (at != ROOT && queue.parent != ROOT)
                .then(|| self.table[queue.parent].name.to_string()),
            gpu_milli: queue.sum.allocated.get(GPU),
            allocated: names.amounts(&queue.sum.allocated),
            fixed: names.amounts(&queue.sum.fixed),
            requested: names.amounts(&queue.sum.requested),
            entitled: names.amounts(&queue.entitled),
            deserved: list(&|ix| rules.and_then(|rules| deserved(rules, ix))),
            guaranteed: bound(&|rules| &rules.guarantee),
            ceiling: list(&|ix| rules.and_then(|rules| rules.ceiling(ix))),
            user_limit: bound(&|rules| &rules.user_limit),
            team_limit: bound(&|rules| &rules.team_limit),
            users: holders(users, &|user| self.user_name(user).to_owned()),
            teams: holders(teams, &|team| self.team_name(team).to_owned()),
            weight: rules.map_or(WEIGHT_UNIT, |rules| rules.weight),
            kept: names.amounts(&queue.kept),
            share: share.as_f64(),
            dominant: dominant.map(|ix| names.name(ix).to_owned()),
            share_of_entitled: self.dominant_share(at).as_f64(),
            above: self.above_share(at).map(|ix| names.name(ix).to_owned()),
            usage: names.listed(
                queue
                    .usage
                    .iter()
                    .map(|(ix, n)| (ix, n / names.unit(ix) * names.unit(ix))),
            ),
            faults: rules.map(|rules| rules.faults.clone()).unwrap_or_default(),
            line: line.collect(),
            phases: BTreeMap::new(),
        }
    }
}
