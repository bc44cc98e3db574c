//! Checks a gang's demand against total free capacity, for each class, in the cluster or in one
//! domain. Places nothing. A gang that needs 8 members of a class of which all nodes together hold
//! 6 is refused here, without a search.

use std::collections::BTreeMap;

use crate::class::ClassIx;
use crate::gang::{GangKey, GangSpec};
use crate::report::Obstacle;
use crate::state::Scheduler;

use super::branch::Branch;
use super::run::PlacementRun;
use super::scope::PlacementScope;

/// The message for pods whose GPU annotations cannot be read.
const UNREADABLE: &str = "a member's GPU annotations cannot be read (muster.io/gpu-fraction is above 0 and at most 1, muster.io/gpu-memory in MiB, one of both; muster.io/gpu-model is a product's name or several, muster.io/gpu-min-memory MiB or a quantity, muster.io/gpu-min-compute and muster.io/gpu-min-driver versions)";

impl Scheduler {
    /// Refuses the gang if the free capacity of all nodes together is too small for its minimum.
    pub(super) fn check_total_room(
        &mut self,
        root: &Branch,
        run: &PlacementRun,
    ) -> Result<(), Obstacle> {
        let (mut needs, mut wants) = (BTreeMap::new(), BTreeMap::new());
        root.needs(&mut needs);
        root.wants(&mut wants);
        if wants.keys().any(|at| self.classes.get(*at).unreadable()) {
            return Err(Obstacle::malformed(UNREADABLE, run.have));
        }
        let mut possible = run.have;
        let mut worst: Option<(ClassIx, usize)> = None;
        for (class, need) in &needs {
            let room = self.room(*class, PlacementScope::All);
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            possible += room.min(*need);
            if room < *need {
                let short = (*class, need - room);
                worst = Some(match worst {
                    Some(other) if self.hardness(other.0) <= self.hardness(short.0) => other,
                    _ => short,
                });
            }
        }
        match worst {
            Some((class, missing)) => Err(self.no_room(class, missing, possible)),
            None => Ok(()),
        }
    }

    /// Like `check_total_room`, for a gang whose waiting members are all of one class; reads none of them.
    pub(super) fn check_total_room_uniform(&mut self, key: &GangKey) -> Option<Obstacle> {
        let gang = self.gangs.get(key)?;
        let asks = |spec: &GangSpec| !spec.shape.request.is_free();
        let class = gang
            .only_kind()
            .filter(|_| !gang.spec.as_ref().is_some_and(asks))?;
        let choice = !self.names.models().is_empty();
        if choice || self.classes.get(class).unreadable() {
            return None;
        }
        let have = gang.total.have();
        let need = gang.minimum(key).saturating_sub(have);
        let room = usize::try_from(self.room(class, PlacementScope::All)).unwrap_or(usize::MAX);
        (room < need).then(|| self.no_room(class, need - room, have + room))
    }

    pub(super) fn hardness(&self, class: ClassIx) -> Vec<(u8, i64)> {
        let demand = self.classes.get(class).demand();
        demand.0.iter().map(|(ix, n)| (*ix, -n)).rev().collect()
    }

    /// True if the place has room for the part's minimum, counted over all its classes.
    pub(super) fn holds_in_all(
        &self,
        branch: &Branch,
        place: PlacementScope,
        wants: &BTreeMap<ClassIx, usize>,
        least: u64,
        room_of: &impl Fn(&ClassIx, PlacementScope) -> u64,
    ) -> bool {
        if branch.children.is_empty() && branch.own.needed == 0 {
            return true;
        }
        let fit: u64 = wants
            .iter()
            .map(|(class, n)| room_of(class, place).min(*n as u64))
            .sum();
        fit >= least
    }

    /// The class that decides which domain is the tightest: the one that takes the most resources.
    pub(super) fn main_class(
        &self,
        needs: &BTreeMap<ClassIx, usize>,
        wants: &BTreeMap<ClassIx, usize>,
    ) -> Option<ClassIx> {
        let of = if needs.is_empty() { wants } else { needs };
        let most = of.iter().min_by_key(|(class, n)| {
            let hard = self.hardness(**class);
            let times = **n as i64;
            let total: Vec<(u8, i64)> = hard
                .iter()
                .map(|(ix, amount)| (*ix, amount.saturating_mul(times)))
                .collect();
            (
                total
                    .iter()
                    .find(|(ix, _)| *ix == crate::resource::GPU)
                    .map_or(0, |(_, n)| *n),
                total,
            )
        });
        most.map(|(class, _)| *class)
    }
}
