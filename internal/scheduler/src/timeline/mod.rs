//! When the running gangs will have ended, and what follows: from when on the head of the line has
//! room (the *shadow time*), which gangs may start before then without delaying it (backfill), and
//! when each waiting gang may start (estimates). This module places and evicts nothing.
//!
//! **Expected ends** (here and in `history`). A gang may declare its walltime (`muster.io/walltime`
//! on its PodGroup or pods, or its pods' `activeDeadlineSeconds`). It is then expected to run for
//! the part of its walltime that such gangs of its user took so far, at the median, or for all of
//! it while too few of them have ended. A gang without a walltime is expected to run as long as
//! gangs of its user, queue and size did, else of its queue and size, else of its size. Where
//! nothing is known, it is expected to run as long again as it has run, and ten minutes at least.
//! Only gangs count that ran at least as long as this one has by now, so an expected end moves on
//! when it passes. A gang that exceeds its walltime is expected to end at the next quarter of it.
//!
//! **Shadow time** (`shadow`). The room of the running gangs is given back in the order of their
//! latest ends, until the head fits: the head starts by then, and its room there is reserved. A
//! gang's latest end is the end of its walltime, or the time by which nine of ten gangs like it had
//! ended. By expected ends alone the head would be promised room too early: a gang that was
//! backfilled by such a promise would be in the head's way as soon as one of the ends is late
//! (`make bench-frontier`).
//!
//! **Backfill** (`backfill`). A gang behind the head that could start now must leave the head what
//! it needs at the shadow time: either it ends before, by its latest end, or it takes room that the
//! head does not need then. The head's nodes stay open until it starts; only their number must stay
//! sufficient. So the head starts by the promised time or sooner, if no gang exceeds its walltime.
//!
//! **Head of the line** (`head`). A gang that lacks room may become the head after `reserve_after`
//! (later where most ends are guesses), so that a short queue costs other gangs nothing. The head
//! is the gang of the highest priority, then the gang that has waited longest in relation to its
//! run time (`Config::lead`): where many gangs wait, short ones go first, and none waits for ever.
//! It stays the head until it starts, or until a gang of higher priority lacks room.
//!
//! **Limits** (`limits`, `limit_claims`). Where a gang lacks quota under a queue's limit rather than
//! room, the ends of the gangs that the limit counts give quota back. The first gang in line that
//! has waited long enough has a claim on that quota, as the head has on room.
//!
//! **Estimates** (`estimate`, `profile`, `calibration`). Estimated starts follow from the expected
//! ends, the head's included, and are never earlier than these allow. The range of an estimate
//! follows from how wrong earlier estimates were.
//!
//! **Evictions** (`eviction_cost`, `room_growth`). Where the time of the next room is known, no gang is evicted
//! whose lost work and own waiting would cost more than the waiting that its eviction saves. A gang
//! that stays within its queue's deserved amount may evict regardless of the cost.
//!
//! Example: one node of 4 GPUs is full. Gang `a` holds 2 GPUs with 10 minutes of its walltime left,
//! gang `b` holds 2 with 60 minutes left. A gang of 4 GPUs is the head: its shadow time is in 60
//! minutes. When `a` ends, a gang of 2 GPUs with a walltime of 30 minutes is backfilled, because it
//! ends before the shadow time; one with a walltime of 2 hours is not.
//!
//! Tests: `tests/timeline.rs` and `tests/timeline_limits.rs` by table,
//! `tests/timeline_properties.rs` by property.

mod backfill;
mod calibration;
mod estimate;
mod eviction_cost;
mod head;
mod history;
mod limit_claims;
mod limits;
mod profile;
mod room_growth;
mod shadow;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::class::ClassIx;
use crate::dirty_set::DirtySet;
use crate::gang::{Gang, GangKey};
use crate::job_annotations::SPAN_MAX;
use crate::name_table::NameTable;
use crate::node::NodeIx;
use crate::queue::Payer;
use crate::resource::{CPU, GPU, GPU_UNIT, Room};
use crate::state::Scheduler;

use estimate::Estimates;
use head::Head;
use history::{GangFacts, RunTimeHistory};
use limit_claims::LimitClaim;
use limits::LimitScope;
pub(crate) use room_growth::RoomGrowth;
use shadow::Shadow;

/// A gang is expected to end when this part, in thousandths, of the gangs like it had ended.
const LIKELY: u64 = 500;
/// A gang's latest end is when this part, in thousandths, of the gangs like it had ended.
const SURE: u64 = 900;
/// How long a gang is expected to run at first if nothing is known of gangs like it.
const UNKNOWN_SECONDS: i64 = 600;
/// The shortest step by which the expected end of a gang beyond its walltime moves on.
const OVERRUN_SECONDS: i64 = 60;

/// Pods of one class on one node.
pub(crate) type ClassPods = (NodeIx, ClassIx, u32);

/// A gang that holds room.
#[derive(Clone, Debug)]
struct RunningGang {
    start: i64,
    /// When the gang is expected to end.
    end: i64,
    /// The gang's latest end; not before `end`.
    latest: i64,
    /// Whether the end is declared or learnt rather than guessed.
    known: bool,
    facts: GangFacts,
    held: Arc<[ClassPods]>,
    gpus: i64,
    cpus: i64,
    /// The queue and user that it is charged to, and what it holds of their quota.
    payer: Option<Payer>,
    holds: Room,
}

/// Expected ends and what follows from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    runs: NameTable<GangKey, Arc<RunningGang>>,
    /// The runs by their expected ends.
    ends: BTreeMap<(i64, GangKey), Arc<RunningGang>>,
    /// The runs by their latest ends.
    latest_ends: BTreeMap<(i64, GangKey), Arc<RunningGang>>,
    /// How many of the ends are declared or learnt.
    known: usize,
    /// Gangs that changed since the ends were last updated.
    stale: DirtySet<GangKey>,
    /// The gangs among them that completed.
    done: BTreeSet<GangKey>,
    history: RunTimeHistory,
    head: Option<Head>,
    /// Gangs that were the head before the first plan, by their status.
    recalled: BTreeSet<GangKey>,
    shadow: Option<Shadow>,
    /// Gangs, by their likeness, that were found to delay the head since its shadow was computed.
    denied: BTreeSet<backfill::BackfillKey>,
    estimates: Estimates,
    /// For each limit that blocks a gang: the first gang in line for it.
    claims: BTreeMap<LimitScope, LimitClaim>,
    /// Gangs for which no victims are searched before a time, because evictions would cost more
    /// than they save.
    spared: NameTable<GangKey, i64>,
}

impl Timeline {
    /// Records that a gang changed.
    pub(crate) fn note(&mut self, key: &GangKey, ended: bool) {
        if ended && self.runs.contains_key(key) {
            self.done.insert(key.clone());
        }
        self.stale.insert(key);
    }

    /// Whether the gang is the head of the line.
    pub(crate) fn is_head(&self, key: &GangKey) -> bool {
        self.head.as_ref().is_some_and(|head| head.key == *key)
    }

    /// Records that a gang was the head when a previous scheduler last reported.
    pub(crate) fn restore_head(&mut self, key: &GangKey) {
        self.recalled.insert(key.clone());
    }

    /// When a gang that started at `start` is expected to end; always after `now`.
    fn end_of(&self, facts: &GangFacts, start: i64, now: i64) -> i64 {
        let ran = now.saturating_sub(start).max(0);
        let seconds = match facts.declared {
            Some(walltime) if ran < walltime => {
                let beyond = ran.saturating_mul(1000) / walltime;
                let part = self.history.part(facts, beyond, LIKELY);
                walltime.saturating_mul(part.unwrap_or(1000).min(1000)) / 1000
            }
            Some(walltime) => {
                let step = (walltime / 4).max(OVERRUN_SECONDS);
                walltime + ((ran - walltime) / step + 1) * step
            }
            None => self.history.length(facts, ran, LIKELY).unwrap_or_else(|| {
                let mut seconds = UNKNOWN_SECONDS;
                while seconds <= ran {
                    seconds = seconds.saturating_mul(2);
                }
                seconds
            }),
        };
        start.saturating_add(seconds.max(ran + 1))
    }

    /// The latest end of a gang that started at `start`; not before its expected end.
    fn latest_of(&self, facts: &GangFacts, start: i64, now: i64) -> i64 {
        let ran = now.saturating_sub(start).max(0);
        let most = match facts.declared {
            Some(walltime) => walltime,
            None => self.history.length(facts, ran, SURE).unwrap_or(0),
        };
        let end = self.end_of(facts, start, now);
        end.max(start.saturating_add(most))
    }

    /// How long a gang that starts now runs at most, as far as it is declared or learnt.
    fn at_most(&self, facts: &GangFacts) -> Option<i64> {
        facts
            .declared
            .or_else(|| self.history.length(facts, 0, SURE))
    }

    /// How long a gang that starts now is expected to run.
    fn likely(&self, facts: &GangFacts) -> i64 {
        self.end_of(facts, 0, 0)
    }

    /// Whether at least as many ends are declared or learnt as guessed.
    fn most_ends_known(&self) -> bool {
        self.known > 0 && self.known * 2 >= self.runs.len()
    }

    fn put(&mut self, key: GangKey, run: RunningGang) {
        let run = Arc::new(run);
        self.known += usize::from(run.known);
        self.ends.insert((run.end, key.clone()), run.clone());
        self.latest_ends
            .insert((run.latest, key.clone()), run.clone());
        self.runs.insert(key, run);
    }

    fn take(&mut self, key: &GangKey) -> Option<RunningGang> {
        let run = self.runs.remove(key)?;
        self.ends.remove(&(run.end, key.clone()));
        self.latest_ends.remove(&(run.latest, key.clone()));
        self.known -= usize::from(run.known);
        Some(Arc::unwrap_or_clone(run))
    }
}

impl Scheduler {
    /// Updates the expected ends. The cost is the number of changed gangs and of ends that have
    /// passed.
    pub(crate) fn update_timeline(&mut self, now: Timestamp) {
        let now = now.as_second();
        let stale = std::mem::take(&mut self.timeline.stale);
        for key in &stale.into_sorted() {
            self.tend_run(key, now);
        }
        while let Some((end, key)) = self.timeline.ends.keys().next().cloned() {
            if end > now {
                break;
            }
            let Some(mut run) = self.timeline.take(&key) else {
                break;
            };
            run.end = self.timeline.end_of(&run.facts, run.start, now);
            let latest = self.timeline.latest_of(&run.facts, run.start, now);
            let moved = std::mem::replace(&mut run.latest, latest) != latest;
            let payer = run.payer;
            self.timeline.put(key, run);
            if moved {
                self.outdate_claims(payer);
                self.outdate_shadow();
            }
        }
    }

    fn tend_run(&mut self, key: &GangKey, now: i64) {
        let old = self.timeline.take(key);
        self.outdate_claims(old.as_ref().and_then(|old| old.payer));
        self.outdate_claims(self.gangs.get(key).and_then(|gang| gang.payer));
        let gang = self.gangs.get(key).filter(|gang| !gang.nodes.is_empty());
        let done = self.timeline.done.remove(key);
        let known = self.gangs.contains_key(key);
        if !known || gang.is_some() {
            self.timeline.spared.remove(key);
        }
        let estimates = &mut self.timeline.estimates;
        if gang.is_some() {
            estimates.calibration.started(key, now);
        } else if !known {
            estimates.gone(key);
        }
        let Some(gang) = gang else {
            if let (Some(old), true) = (old, done) {
                self.timeline.history.learn(&old.facts, now - old.start);
            }
            return;
        };
        let held = self.held_by(gang);
        let facts = self.facts_of(gang);
        let seen = gang.starts.keys().next().map(|start| start.as_second());
        let start = seen.or(old.map(|old| old.start)).unwrap_or(now);
        // A pod's status can contain any start time.
        let start = start.clamp(now.saturating_sub(SPAN_MAX), now);
        let end = self.timeline.end_of(&facts, start, now);
        let latest = self.timeline.latest_of(&facts, start, now);
        let known = self.timeline.at_most(&facts).is_some();
        let run = RunningGang {
            start,
            end,
            latest,
            known,
            facts,
            held: held.into(),
            gpus: gang.allocated.get(GPU),
            cpus: gang.allocated.get(CPU),
            payer: gang.payer,
            holds: gang.allocated.clone(),
        };
        self.timeline.put(key.clone(), run);
    }

    /// What a gang's members hold, by node and class.
    fn held_by(&self, gang: &Gang) -> Vec<ClassPods> {
        let mut held: Vec<ClassPods> = Vec::with_capacity(gang.nodes.len());
        for pod in &gang.members {
            let Some(pod) = self.pods.get(pod).filter(|pod| pod.stage.occupies()) else {
                continue;
            };
            let Some(at) = pod.node else { continue };
            match held.last_mut() {
                Some(last) if (last.0, last.1) == (at, pod.class) => last.2 += 1,
                _ => held.push((at, pod.class, 1)),
            }
        }
        held
    }

    fn facts_of(&self, gang: &Gang) -> GangFacts {
        let name = |payer: Payer| self.queues.at(payer.queue).name.clone();
        let user = |payer: Payer| self.queues.user_id(payer.user);
        let gpus = gang.requested.get(GPU).max(0);
        GangFacts {
            declared: self.terms_of(gang).walltime.filter(|seconds| *seconds > 0),
            queue: gang.payer.map(name).unwrap_or_default(),
            user: gang.payer.map(user).unwrap_or_default(),
            size: i64::BITS - (gpus / GPU_UNIT).leading_zeros(),
        }
    }

    /// A gang's declared walltime, or how long gangs like it ran where enough have ended.
    pub(crate) fn expected_length(&self, gang: &Gang) -> Option<i64> {
        let walltime = self.terms_of(gang).walltime;
        walltime.or_else(|| {
            let facts = self.facts_of(gang);
            self.timeline.history.length(&facts, 0, LIKELY)
        })
    }
}
