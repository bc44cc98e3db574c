//! What is said of those who wait: reports, phases, and what pods are told. Reports are kept by queue
//! and shared from plan to plan for as long as they stay the same, so that a plan which changes
//! little says little. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;
use std::sync::Arc;

use resources::report::PlacementReport;

use crate::gang::GangKey;
use crate::plan::{GroupRef, Plan, PodRef, Round, Unscheduled};
use crate::queue::QueueIx;
use crate::state::Scheduler;

/// The reports of one queue's line, in its order.
type Line = Arc<Vec<Arc<PlacementReport>>>;

/// What was said last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    lines: BTreeMap<QueueIx, Line>,
    /// Of gangs for which room is held.
    held: Line,
    /// Queues in whose lines gangs with a report left or moved since.
    pub(crate) outdated: BTreeSet<QueueIx>,
}

impl Said {
    /// Puts a queue's reports in place of the old ones, unless they are the same.
    fn put(&mut self, at: QueueIx, line: Vec<Arc<PlacementReport>>) {
        let old = self.lines.entry(at).or_default();
        renew(old, line);
    }
}

fn renew(old: &mut Line, new: Vec<Arc<PlacementReport>>) {
    let mut pairs = old.iter().zip(&new);
    if old.len() != new.len() || !pairs.all(|(a, b)| Arc::ptr_eq(a, b)) {
        *old = Arc::new(new);
    }
}

/// A report for each gang that waits, by queue and in the order of its line; those for whom room
/// is held come last. Costs the number of queues to copy, however many wait.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    lines: Vec<Line>,
}

impl Reports {
    fn new<'a>(lines: impl IntoIterator<Item = &'a Line>) -> Reports {
        let all = lines.into_iter().filter(|line| !line.is_empty());
        Reports {
            lines: all.cloned().collect(),
        }
    }

    /// All of them in order.
    pub fn iter(&self) -> impl Iterator<Item = &PlacementReport> {
        self.shared().map(|report| &**report)
    }

    /// The same, to be kept without being copied.
    pub fn shared(&self) -> impl Iterator<Item = &Arc<PlacementReport>> {
        self.lines.iter().flat_map(|line| line.iter())
    }

    /// Is it known to say the same as another, without looking at each?
    #[must_use]
    pub fn same_as(&self, other: &Reports) -> bool {
        self.lines.len() == other.lines.len()
            && self
                .lines
                .iter()
                .zip(&other.lines)
                .all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// Those that are not the same in another plan's. Queues whose reports are shared are not
    /// looked at.
    #[must_use]
    pub fn news(&self, before: &Reports) -> Vec<&PlacementReport> {
        let shared_with =
            |line: &Line, other: &Reports| other.lines.iter().any(|has| Arc::ptr_eq(has, line));
        let gone = before.lines.iter().filter(|line| !shared_with(line, self));
        let old: BTreeMap<_, _> = (gone.flat_map(|line| line.iter()))
            .map(|report| ((&report.namespace, &report.group), report))
            .collect();
        let come = self.lines.iter().filter(|line| !shared_with(line, before));
        come.flat_map(|line| line.iter())
            .filter(|report| {
                let before = old.get(&(&report.namespace, &report.group));
                before.is_none_or(|before| !Arc::ptr_eq(before, report) && *before != *report)
            })
            .map(|report| &**report)
            .collect()
    }

    /// How many gangs wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.iter().map(|line| line.len()).sum()
    }

    /// Does nobody wait?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The first.
    #[must_use]
    pub fn first(&self) -> Option<&PlacementReport> {
        self.iter().next()
    }
}

impl Index<usize> for Reports {
    type Output = PlacementReport;

    fn index(&self, at: usize) -> &PlacementReport {
        let mut before = 0;
        for line in &self.lines {
            if at < before + line.len() {
                return &line[at - before];
            }
            before += line.len();
        }
        panic!("there are {before} reports, and number {at} was asked for")
    }
}

impl PartialEq for Reports {
    fn eq(&self, other: &Reports) -> bool {
        self.same_as(other) || self.iter().eq(other.iter())
    }
}

impl Scheduler {
    /// Puts into words what waits, and which PodGroups have news.
    pub(crate) fn say(&mut self, round: &Round, plan: &mut Plan) {
        let unasked = self.stirred.in_any_order().filter(|key| {
            let gang = self.gangs.get(key);
            gang.is_some_and(|gang| gang.line.is_some() && gang.parked.is_none())
        });
        self.awake.extend(unasked.cloned());
        if round.all {
            self.say_of_all(round, plan);
        } else {
            self.say_of_some(round, plan);
        }
        let mut held = Vec::new();
        for key in self.nominated.clone() {
            if round.obstacles.contains_key(&key) {
                continue;
            }
            let obstacle = self.waits_for_leavers(&key);
            let (report, _) = self.report(&key, &obstacle, 0);
            let told = (report.verdict, &*report.sentence());
            plan.groups.extend(self.status_update(&key, Some(told)));
            self.stirred.remove(&key);
            held.push(report);
        }
        renew(&mut self.said.held, held);
        for key in std::mem::take(&mut self.stirred).into_sorted() {
            plan.groups.extend(self.status_update(&key, None));
        }
        let lines = self.queues.iter();
        let lines = lines.filter_map(|(_, at, _)| self.said.lines.get(&at));
        plan.reports = Reports::new(lines.chain([&self.said.held]));
    }

    /// After everybody was asked.
    fn say_of_all(&mut self, round: &Round, plan: &mut Plan) {
        self.said.outdated.clear();
        self.outdated.clear();
        let queues: Vec<QueueIx> = self.queues.iter().map(|(_, at, _)| at).collect();
        self.said.lines.retain(|at, _| queues.contains(at));
        for at in queues {
            let line: Vec<GangKey> = match round.order.get(&at) {
                Some(order) => order.clone(),
                None => self.line_of(at),
            };
            let mut reports = Vec::with_capacity(line.len());
            for (ahead, key) in line.iter().enumerate() {
                if round.obstacles.contains_key(key) {
                    reports.push(self.say_why(key, ahead, round, plan));
                } else if let Some(gang) = self.gangs.get_mut(key) {
                    gang.report = None;
                }
            }
            self.said.put(at, reports);
        }
    }

    /// After only those were asked who came: the others' reports stand, but that they may be further
    /// ahead or behind now, or are to say something else of the time to come.
    fn say_of_some(&mut self, round: &Round, plan: &mut Plan) {
        let mut queues = std::mem::take(&mut self.said.outdated);
        for key in std::mem::take(&mut self.outdated) {
            let Some(gang) = self.gangs.get_mut(&key) else {
                continue;
            };
            let overtaken = gang.overtaken;
            if let (Some(payer), Some(report)) = (gang.payer, &gang.report) {
                queues.insert(payer.queue);
                let ahead = report.ahead;
                if let Some(parked) = &mut gang.parked {
                    parked.report_stands(overtaken);
                }
                self.report_from(&key, ahead);
            }
        }
        let mut fresh: BTreeMap<QueueIx, usize> = BTreeMap::new();
        for key in round.obstacles.keys() {
            if let Some(payer) = self.gangs.get(key).and_then(|gang| gang.payer) {
                *fresh.entry(payer.queue).or_default() += 1;
            }
        }
        for (at, count) in fresh {
            if queues.contains(&at) || !self.say_of_last(at, count, round, plan) {
                queues.insert(at);
            }
        }
        for at in queues {
            let mut reports = Vec::new();
            for (ahead, key) in self.line_of(at).iter().enumerate() {
                if round.obstacles.contains_key(key) {
                    reports.push(self.say_why(key, ahead, round, plan));
                    continue;
                }
                let known = self.gangs.get(key).and_then(|gang| gang.report.as_ref());
                match known {
                    Some(report) if report.ahead == ahead => reports.push(report.clone()),
                    Some(_) => reports.push(self.report_from(key, ahead)),
                    None => {}
                }
            }
            self.said.put(at, reports);
        }
    }

    /// Of so many newcomers in a queue, where they are the last of its line. False if they are not.
    fn say_of_last(&mut self, at: QueueIx, count: usize, round: &Round, plan: &mut Plan) -> bool {
        let line = &self.queues.at(at).line;
        let said = self.said.lines.get(&at).map_or(0, |said| said.len());
        let last = line.iter().rev().take(count).map(|place| &place.gang);
        let mut last: Vec<GangKey> = last.cloned().collect();
        let are_last = last.iter().all(|key| round.obstacles.contains_key(key));
        if said + count != line.len() || !are_last {
            return false;
        }
        last.reverse();
        for (place, key) in last.iter().enumerate() {
            let report = self.say_why(key, said + place, round, plan);
            let line = self.said.lines.entry(at).or_default();
            Arc::make_mut(line).push(report);
        }
        true
    }

    fn line_of(&self, at: QueueIx) -> Vec<GangKey> {
        let line = self.queues.at(at).line.iter();
        line.map(|place| place.gang.clone()).collect()
    }

    /// The report on a gang that was asked; its group and its pods are told what is new to them.
    fn say_why(
        &mut self,
        key: &GangKey,
        ahead: usize,
        round: &Round,
        plan: &mut Plan,
    ) -> Arc<PlacementReport> {
        let Some(obstacle) = round.obstacles.get(key) else {
            return Arc::default();
        };
        let (report, new) = self.report(key, obstacle, ahead);
        if new || self.stirred.contains(key) {
            let sentence = report.sentence();
            let verdict = report.verdict;
            plan.groups
                .extend(self.status_update(key, Some((verdict, &sentence))));
            plan.unscheduled.extend(self.tell(key, sentence));
            self.stirred.remove(key);
        }
        report
    }

    /// What waiting members should be told, if it is new to any of them.
    fn tell(&mut self, key: &GangKey, sentence: String) -> Option<Unscheduled> {
        let stirred = self.stirred.contains(key);
        let gang = self.gangs.get_mut(key)?;
        if (gang.told == sentence && !stirred) || gang.pending.is_empty() {
            return None;
        }
        gang.told.clone_from(&sentence);
        let pods = gang.pending.iter().filter_map(|(_, name)| {
            let pod = self.pods.get(name)?;
            Some(PodRef {
                namespace: String::from(&*name.namespace),
                name: String::from(&*name.name),
                uid: pod.uid.clone(),
            })
        });
        let pods = gang.addressed.get_or_insert_with(|| pods.collect());
        Some(Unscheduled {
            group: GroupRef::of(key),
            pods: pods.clone(),
            message: sentence,
        })
    }
}
