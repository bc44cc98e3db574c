//! Chooses the GPU model for a gang that names none, where queues have quotas by model.
//!
//! Method: the gang's tree is tried on each model in turn (at most `MODELS_MAX`), best rank first:
//! fewest minimum members without room, then most running members on that model, then least room
//! left, then name. The minimum goes to one model; members beyond it may go to any.
//!
//! Cost: one placement attempt for each model tried; none if all models together have too little
//! room.
//!
//! Example: a gang of 4, with 3 free H100 and 6 free A100: it is placed on the A100 nodes.
//!
//! Tests: `tests/gpu_models.rs`, `tests/gpu_kinds.rs`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::class::ClassIx;
use crate::queue::Payer;
use crate::report::Obstacle;
use crate::resource::{GPU, ResourceSet, each};
use crate::state::Scheduler;

use super::branch::{Branch, MemberBatch};
use super::run::PlacementRun;
use super::scope::PlacementScope;

/// The most models that are tried for one gang.
const MODELS_MAX: usize = 16;

/// Lesser is better: minimum members without room, members that run on the model already, room that
/// would be left, the model's names.
type Rank = (usize, Reverse<usize>, u64, Vec<String>);

impl Scheduler {
    /// The gang's tree for each model, the best ranked first; `None` if there is no choice of
    /// model.
    pub(super) fn by_gpu_model(&mut self, root: &Branch, payer: Payer) -> Option<Vec<Branch>> {
        if self.names.models().is_empty() {
            return None;
        }
        let (mut needs, mut wants) = (BTreeMap::new(), BTreeMap::new());
        root.needs(&mut needs);
        root.wants(&mut wants);
        let on_gpus = |class: &&ClassIx| self.classes.get(**class).demand().get(GPU) > 0;
        let classes: Vec<ClassIx> = wants.keys().filter(on_gpus).copied().collect();
        let all: Vec<ResourceSet> = self.kinds.keys().copied().collect();
        let mut open: BTreeMap<ClassIx, BTreeMap<ResourceSet, ClassIx>> = BTreeMap::new();
        for class in &classes {
            for kind in &all {
                let there = self.classes.of_kind(*class, *kind);
                self.refresh(there);
                if self.views.get(&there).is_some_and(|view| view.empty > 0) {
                    open.entry(*class).or_default().insert(*kind, there);
                }
            }
        }
        let settled = |class: &ClassIx| {
            let kinds = open.get(class).map_or(0, BTreeMap::len);
            let own = self.classes.get(*class).models();
            kinds == 0 || kinds == 1 && open[class].contains_key(&own)
        };
        if classes.iter().all(settled) {
            return None;
        }
        let mut ranked: Vec<(Rank, Branch)> = Vec::new();
        for kind in all.iter().take(MODELS_MAX) {
            let mut there: BTreeMap<ClassIx, ClassIx> = BTreeMap::new();
            for (class, kinds) in &open {
                let other = kinds.values().next().copied();
                if let Some(at) = kinds.get(kind).copied().or(other) {
                    there.insert(*class, at);
                }
            }
            if open.values().any(|kinds| kinds.contains_key(kind)) {
                let tree = moved(root, &there);
                ranked.push((self.rank(*kind, root, payer, &needs, &there), tree));
            }
        }
        ranked.sort_by(|(a, _), (b, _)| a.cmp(b));
        Some(ranked.into_iter().map(|(_, tree)| tree).collect())
    }

    fn rank(
        &mut self,
        kind: ResourceSet,
        root: &Branch,
        payer: Payer,
        needs: &BTreeMap<ClassIx, usize>,
        there: &BTreeMap<ClassIx, ClassIx>,
    ) -> Rank {
        let (mut short, mut left) = (0, 0);
        for (class, at) in there {
            let need = needs.get(class).copied().unwrap_or(0);
            let room = self.room(*at, PlacementScope::All);
            let demand = self.classes.get(*at).demand();
            let (allowed, _) = self.queues.allows(payer, demand, |ix| self.idle(ix));
            let fits = room.min(u64::from(allowed));
            short += need.saturating_sub(usize::try_from(fits).unwrap_or(usize::MAX));
            left += room;
        }
        let mine = root.on.iter();
        let mine = mine.filter(|(at, _)| self.nodes[**at].models() == kind);
        let mine: usize = mine.map(|(_, members)| members).sum();
        let mut names: Vec<String> = each(kind)
            .map(|ix| self.names.name(ix).to_owned())
            .collect();
        names.sort_unstable();
        (short, Reverse(mine), left, names)
    }

    /// Places the gang's minimum on one model and members beyond it on any. Same result as `place`.
    pub(super) fn place_by_gpu_model(
        &mut self,
        root: &Branch,
        roots: &[Branch],
        run: &mut PlacementRun,
    ) -> Result<Option<Obstacle>, Obstacle> {
        // If all models together have too little room, no single model has enough.
        self.check_total_room(root, run)?;
        let (beyond, own) = (run.beyond, run.own.clone());
        let mut blocked: Option<Obstacle> = None;
        for (nth, tree) in roots.iter().enumerate() {
            match self.place(tree, run) {
                Ok(mut rest) => {
                    let others = roots.iter().enumerate().filter(|(at, _)| *at != nth);
                    for (_, other) in others {
                        if rest.is_none() {
                            break;
                        }
                        let more = self.place_more(other, run);
                        rest = match (more, rest) {
                            (None, _) => None,
                            (Some(new), Some(old)) if old.is_room() && !new.is_room() => Some(new),
                            (_, old) => old,
                        };
                    }
                    for placement in &mut run.placed {
                        placement.class = self.classes.base(placement.class);
                    }
                    if !run.placed.is_empty() || blocked.is_none() {
                        return Ok(rest);
                    }
                }
                Err(obstacle) => {
                    self.undo_placements(run, 0);
                    run.scopes.clear();
                    run.beyond = beyond;
                    run.own.clone_from(&own);
                    // An obstacle other than missing room (a queue's bound, which may be raised)
                    // tells the user more.
                    let says_more = |old: &Obstacle| {
                        (!obstacle.is_room(), obstacle.possible())
                            > (!old.is_room(), old.possible())
                    };
                    if blocked.as_ref().is_none_or(says_more) {
                        blocked = Some(obstacle);
                    }
                }
            }
        }
        blocked.map_or(Ok(None), Err)
    }
}

/// The same tree with its classes replaced.
fn moved(branch: &Branch, there: &BTreeMap<ClassIx, ClassIx>) -> Branch {
    let mut branch = branch.clone();
    let own = &mut branch.own;
    for batch in own.required.iter_mut().chain(&mut own.others) {
        move_batch(batch, there);
    }
    branch.children = branch
        .children
        .iter()
        .map(|child| moved(child, there))
        .collect();
    branch
}

fn move_batch(batch: &mut MemberBatch, there: &BTreeMap<ClassIx, ClassIx>) {
    if let Some(class) = there.get(&batch.class) {
        batch.class = *class;
    }
}
