//! When those that run will have ended, and what follows from it: from when on the first in line
//! has room (its *shadow*), who may start meanwhile without delaying it (backfill), and when
//! whoever waits may start (estimates). Places nobody and evicts nobody.
//!
//! **Expected ends** (here and in `history`). A gang that says how long it runs (`muster.io/walltime`
//! on its PodGroup or pods, or its pods' `activeDeadlineSeconds`) is expected to take the part of it
//! that such gangs of its user took so far, at the median; all of it, while too few have ended. One
//! that says nothing takes as long as those of its user, queue and size did, else of its queue and
//! size, else of its size. Where nothing is known, it is expected to run once more as long as it has
//! run, and ten minutes at least. Only those count that ran as long as it has by now: so an end moves
//! on when it passes. Who outlives what it said is expected to end at the next quarter of it.
//!
//! **Shadow** (`shadow`). The room that running gangs hold is given back in the order in which they
//! will have ended, as far as one can know (at the end of what they said, or after as long as nine of
//! ten like them took), until the first in line fits: by then it starts, and its room there is
//! reserved. By the ends that are merely expected it would be promised room too early: whoever then
//! took what it does not need at that time would be in its way as soon as one of those ends is late
//! (`make bench-frontier`).
//!
//! **Backfill** (`backfill`). Whoever is not before the head and would start now must leave it what
//! it needs at that time: by ending before, for sure as far as one can know, or by taking room that
//! the head does not need then. Which nodes the head will have is open until it starts; only that
//! there are enough of them must stay true. So it starts by the time it was promised, or sooner,
//! where nobody outlives what it said.
//!
//! **Who is the head** (`head`). A gang that room is lacking for may become it after `reserve_after`
//! (later where ends are mostly guesses), so that a moment's queue costs nobody anything. It is the
//! one of highest priority, then the one that waited longest for how long it runs (`Config::lead`):
//! where much waits, those that are soon over again go first, and none for ever. It stays the head
//! until it starts, or until one of higher priority needs room.
//!
//! **Limits** (`limits`, `claims`). Where a queue's limit is lacking, not room, the ends of those whom
//! it counts give it back, and the first in line that has waited as long has a claim on it: it is
//! its head, as it were.
//!
//! **Estimates** (`estimate`, `profile`, `calibration`). By the ends that are expected, the head's
//! too, and never before these allow; how far off they were says how wide their range is.
//!
//! **Evictions** (`worth`, `growth`). Where it is known when there will be room anyway, nobody is evicted
//! whose lost work and own waiting would be more than the waiting that it saves; what a queue deserves
//! is exempt.

mod backfill;
mod calibration;
mod claims;
mod estimate;
mod growth;
mod head;
mod history;
mod limits;
mod profile;
mod shadow;
mod worth;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::class::ClassIx;
use crate::gang::{Gang, GangKey};
use crate::node::NodeIx;
use crate::noted::Noted;
use crate::queue::Payer;
use crate::resource::{CPU, GPU, GPU_UNIT, Room};
use crate::state::Scheduler;
use crate::table::Table;
use crate::terms::SPAN_MAX;

use claims::Claim;
use estimate::Estimates;
pub(crate) use growth::Growth;
use head::Head;
use history::{Facts, History};
use limits::Scope;
use shadow::Shadow;

/// The part, in thousandths, of gangs like it that ended by when one is expected to end.
const LIKELY: u64 = 500;
/// The part that ended by when one has ended for sure, as far as one can know.
const SURE: u64 = 900;
/// How long a gang is expected to run of whose like nothing is known, at first.
const UNKNOWN_SECONDS: i64 = 600;
/// The shortest step by which the end of a gang that outlives what it said moves on.
const OVERRUN_SECONDS: i64 = 60;

/// Pods of one class on one node.
pub(crate) type Held = (NodeIx, ClassIx, u32);

/// A gang that holds room.
#[derive(Clone, Debug)]
struct Run {
    start: i64,
    /// When it is expected to end.
    end: i64,
    /// By when it will have ended, as far as one can know; not before `end`.
    latest: i64,
    /// That is more than a guess.
    known: bool,
    facts: Facts,
    held: Arc<[Held]>,
    gpus: i64,
    cpus: i64,
    /// On whose account it is, and what it holds there.
    payer: Option<Payer>,
    holds: Room,
}

/// Expected ends and what follows from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    runs: Table<GangKey, Arc<Run>>,
    /// The same by when they are expected to end.
    ends: BTreeMap<(i64, GangKey), Arc<Run>>,
    /// The same by when they will have ended, as far as one can know.
    latest_ends: BTreeMap<(i64, GangKey), Arc<Run>>,
    /// How many of the ends are more than a guess.
    known: usize,
    /// Gangs that something happened to since the ends were looked at.
    stale: Noted<GangKey>,
    /// Those of them that ended well.
    done: BTreeSet<GangKey>,
    history: History,
    head: Option<Head>,
    /// Who was first in line by what is known from before the first plan.
    recalled: BTreeSet<GangKey>,
    shadow: Option<Shadow>,
    /// Asks that were found to delay the head since its shadow was cast.
    denied: BTreeSet<backfill::Likeness>,
    estimates: Estimates,
    /// Of limits that are in somebody's way: who of these is first in line.
    claims: BTreeMap<Scope, Claim>,
    /// Gangs for which no evictions are sought before a time, because they would not be worth it.
    spared: Table<GangKey, i64>,
}

impl Timeline {
    /// Notes that something happened to a gang.
    pub(crate) fn note(&mut self, key: &GangKey, ended: bool) {
        if ended && self.runs.contains_key(key) {
            self.done.insert(key.clone());
        }
        self.stale.insert(key);
    }

    /// Is the gang first in line?
    pub(crate) fn leads(&self, key: &GangKey) -> bool {
        self.head.as_ref().is_some_and(|head| head.key == *key)
    }

    /// Notes that a gang was first in line when a scheduler before this one spoke of it.
    pub(crate) fn recall(&mut self, key: &GangKey) {
        self.recalled.insert(key.clone());
    }

    /// When a gang that began then is expected to end; always after now.
    fn end_of(&self, facts: &Facts, start: i64, now: i64) -> i64 {
        let ran = now.saturating_sub(start).max(0);
        let seconds = match facts.declared {
            Some(said) if ran < said => {
                let beyond = ran.saturating_mul(1000) / said;
                let part = self.history.part(facts, beyond, LIKELY);
                said.saturating_mul(part.unwrap_or(1000).min(1000)) / 1000
            }
            Some(said) => {
                let step = (said / 4).max(OVERRUN_SECONDS);
                said + ((ran - said) / step + 1) * step
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

    /// By when a gang that began then will have ended, as far as one can know. Not before it is
    /// expected to.
    fn latest_of(&self, facts: &Facts, start: i64, now: i64) -> i64 {
        let ran = now.saturating_sub(start).max(0);
        let most = match facts.declared {
            Some(said) => said,
            None => self.history.length(facts, ran, SURE).unwrap_or(0),
        };
        let end = self.end_of(facts, start, now);
        end.max(start.saturating_add(most))
    }

    /// How long a gang that starts now runs at most, as far as one can know.
    fn at_most(&self, facts: &Facts) -> Option<i64> {
        facts
            .declared
            .or_else(|| self.history.length(facts, 0, SURE))
    }

    /// How long a gang that starts now is expected to run.
    fn likely(&self, facts: &Facts) -> i64 {
        self.end_of(facts, 0, 0)
    }

    /// Are as many ends said or learnt as are guessed?
    fn mostly_known(&self) -> bool {
        self.known > 0 && self.known * 2 >= self.runs.len()
    }

    fn put(&mut self, key: GangKey, run: Run) {
        let run = Arc::new(run);
        self.known += usize::from(run.known);
        self.ends.insert((run.end, key.clone()), run.clone());
        self.latest_ends
            .insert((run.latest, key.clone()), run.clone());
        self.runs.insert(key, run);
    }

    fn take(&mut self, key: &GangKey) -> Option<Run> {
        let run = self.runs.remove(key)?;
        self.ends.remove(&(run.end, key.clone()));
        self.latest_ends.remove(&(run.latest, key.clone()));
        self.known -= usize::from(run.known);
        Some(Arc::unwrap_or_clone(run))
    }
}

impl Scheduler {
    /// Brings the expected ends up to date. Costs what changed, and what has passed its end.
    pub(crate) fn tend_timeline(&mut self, now: Timestamp) {
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
                self.stir_claims(payer);
                self.drop_shadow();
            }
        }
    }

    fn tend_run(&mut self, key: &GangKey, now: i64) {
        let old = self.timeline.take(key);
        self.stir_claims(old.as_ref().and_then(|old| old.payer));
        self.stir_claims(self.gangs.get(key).and_then(|gang| gang.payer));
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
        // A status can say any time of a start.
        let start = start.clamp(now.saturating_sub(SPAN_MAX), now);
        let end = self.timeline.end_of(&facts, start, now);
        let latest = self.timeline.latest_of(&facts, start, now);
        let known = self.timeline.at_most(&facts).is_some();
        let run = Run {
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
    fn held_by(&self, gang: &Gang) -> Vec<Held> {
        let mut held: Vec<Held> = Vec::with_capacity(gang.nodes.len());
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

    fn facts_of(&self, gang: &Gang) -> Facts {
        let name = |payer: Payer| self.queues.at(payer.queue).name.clone();
        let user = |payer: Payer| self.queues.user_id(payer.user);
        let gpus = gang.requested.get(GPU).max(0);
        Facts {
            declared: self.terms_of(gang).walltime.filter(|said| *said > 0),
            queue: gang.payer.map(name).unwrap_or_default(),
            user: gang.payer.map(user).unwrap_or_default(),
            size: i64::BITS - (gpus / GPU_UNIT).leading_zeros(),
        }
    }

    /// How long a gang says that it runs, or gangs like it took, where enough have ended.
    pub(crate) fn expected_length(&self, gang: &Gang) -> Option<i64> {
        let said = self.terms_of(gang).walltime;
        said.or_else(|| {
            let facts = self.facts_of(gang);
            self.timeline.history.length(&facts, 0, LIKELY)
        })
    }
}
