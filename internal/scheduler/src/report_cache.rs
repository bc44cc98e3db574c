//! Caches the reports on waiting gangs and emits what changed: reports, phases and messages to
//! pods. Reports are kept by queue and shared between plans while they are equal, so a plan that
//! changes little emits little. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;
use std::sync::Arc;

use resources::report::PlacementReport;

use crate::gang::GangKey;
use crate::plan::{GroupRef, Plan, PlanRound, PodRef, Unscheduled};
use crate::queue::QueueIx;
use crate::state::Scheduler;

/// The reports of one queue, in queue order.
type QueueReports = Arc<Vec<Arc<PlacementReport>>>;

/// The reports of the last plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportCache {
    lines: BTreeMap<QueueIx, QueueReports>,
    /// Reports on gangs with nominated nodes.
    held: QueueReports,
    /// Queues in which a gang with a report left or moved since.
    pub(crate) outdated: BTreeSet<QueueIx>,
}

impl ReportCache {
    /// Replaces a queue's reports, unless they are the same.
    fn put(&mut self, at: QueueIx, line: Vec<Arc<PlacementReport>>) {
        let old = self.lines.entry(at).or_default();
        renew(old, line);
    }
}

fn renew(old: &mut QueueReports, new: Vec<Arc<PlacementReport>>) {
    let mut pairs = old.iter().zip(&new);
    if old.len() != new.len() || !pairs.all(|(a, b)| Arc::ptr_eq(a, b)) {
        *old = Arc::new(new);
    }
}

/// A report for each waiting gang, by queue and in queue order; gangs with nominated nodes come
/// last. A copy costs the number of queues, however many gangs wait.
#[derive(Clone, Debug, Default)]
pub struct QueueOrderReports {
    lines: Vec<QueueReports>,
}

impl QueueOrderReports {
    fn new<'a>(lines: impl IntoIterator<Item = &'a QueueReports>) -> QueueOrderReports {
        let all = lines.into_iter().filter(|line| !line.is_empty());
        QueueOrderReports {
            lines: all.cloned().collect(),
        }
    }

    /// All of them in order.
    pub fn iter(&self) -> impl Iterator<Item = &PlacementReport> {
        self.shared().map(|report| &**report)
    }

    /// Like `iter`, as shared pointers.
    pub fn shared(&self) -> impl Iterator<Item = &Arc<PlacementReport>> {
        self.lines.iter().flat_map(|line| line.iter())
    }

    /// True if both are known to be equal without comparing each report.
    #[must_use]
    pub fn same_as(&self, other: &QueueOrderReports) -> bool {
        self.lines.len() == other.lines.len()
            && self
                .lines
                .iter()
                .zip(&other.lines)
                .all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// The reports that differ from another plan's. Queues whose reports are shared are skipped.
    #[must_use]
    pub fn news(&self, before: &QueueOrderReports) -> Vec<&PlacementReport> {
        let shared_with = |line: &QueueReports, other: &QueueOrderReports| {
            other.lines.iter().any(|has| Arc::ptr_eq(has, line))
        };
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

    /// The number of waiting gangs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.iter().map(|line| line.len()).sum()
    }

    /// True if no gang waits.
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

impl Index<usize> for QueueOrderReports {
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

impl PartialEq for QueueOrderReports {
    fn eq(&self, other: &QueueOrderReports) -> bool {
        self.same_as(other) || self.iter().eq(other.iter())
    }
}

impl Scheduler {
    /// Writes the reports and the status of PodGroups that changed.
    pub(crate) fn write_reports(&mut self, round: &PlanRound, plan: &mut Plan) {
        let unasked = self.changed_gangs.in_any_order().filter(|key| {
            let gang = self.gangs.get(key);
            gang.is_some_and(|gang| gang.line.is_some() && gang.blocked_answer.is_none())
        });
        self.unanswered.extend(unasked.cloned());
        if round.all {
            self.write_all_reports(round, plan);
        } else {
            self.write_changed_reports(round, plan);
        }
        let mut held = Vec::new();
        for key in self.nominated.clone() {
            if round.obstacles.contains_key(&key) {
                continue;
            }
            let obstacle = self.waits_for_terminating(&key);
            let (report, _) = self.report(&key, &obstacle, 0);
            let verdict = (report.verdict, &*report.sentence());
            plan.groups.extend(self.status_update(&key, Some(verdict)));
            self.changed_gangs.remove(&key);
            held.push(report);
        }
        renew(&mut self.report_cache.held, held);
        for key in std::mem::take(&mut self.changed_gangs).into_sorted() {
            plan.groups.extend(self.status_update(&key, None));
        }
        let lines = self.queues.iter();
        let lines = lines.filter_map(|(_, at, _)| self.report_cache.lines.get(&at));
        plan.reports = QueueOrderReports::new(lines.chain([&self.report_cache.held]));
    }

    /// After a plan that tried all gangs.
    fn write_all_reports(&mut self, round: &PlanRound, plan: &mut Plan) {
        self.report_cache.outdated.clear();
        self.outdated.clear();
        let queues: Vec<QueueIx> = self.queues.iter().map(|(_, at, _)| at).collect();
        self.report_cache.lines.retain(|at, _| queues.contains(at));
        for at in queues {
            let line: Vec<GangKey> = match round.order.get(&at) {
                Some(order) => order.clone(),
                None => self.line_of(at),
            };
            let mut reports = Vec::with_capacity(line.len());
            for (ahead, key) in line.iter().enumerate() {
                if round.obstacles.contains_key(key) {
                    reports.push(self.write_report(key, ahead, round, plan));
                } else if let Some(gang) = self.gangs.get_mut(key) {
                    gang.report = None;
                }
            }
            self.report_cache.put(at, reports);
        }
    }

    /// After a plan that tried only new gangs: the other reports stand, except that positions and
    /// estimates may have changed.
    fn write_changed_reports(&mut self, round: &PlanRound, plan: &mut Plan) {
        let mut queues = std::mem::take(&mut self.report_cache.outdated);
        for key in std::mem::take(&mut self.outdated) {
            let Some(gang) = self.gangs.get_mut(&key) else {
                continue;
            };
            let overtaken = gang.overtaken;
            if let (Some(payer), Some(report)) = (gang.payer, &gang.report) {
                queues.insert(payer.queue);
                let ahead = report.ahead;
                if let Some(blocked_answer) = &mut gang.blocked_answer {
                    blocked_answer.report_stands(overtaken);
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
            if queues.contains(&at) || !self.append_reports(at, count, round, plan) {
                queues.insert(at);
            }
        }
        for at in queues {
            let mut reports = Vec::new();
            for (ahead, key) in self.line_of(at).iter().enumerate() {
                if round.obstacles.contains_key(key) {
                    reports.push(self.write_report(key, ahead, round, plan));
                    continue;
                }
                let known = self.gangs.get(key).and_then(|gang| gang.report.as_ref());
                match known {
                    Some(report) if report.ahead == ahead => reports.push(report.clone()),
                    Some(_) => reports.push(self.report_from(key, ahead)),
                    None => {}
                }
            }
            self.report_cache.put(at, reports);
        }
    }

    /// Appends the reports of `count` new gangs if they are the last of their queue; false if they
    /// are not.
    fn append_reports(
        &mut self,
        at: QueueIx,
        count: usize,
        round: &PlanRound,
        plan: &mut Plan,
    ) -> bool {
        let line = &self.queues.at(at).line;
        let lines = self
            .report_cache
            .lines
            .get(&at)
            .map_or(0, |lines| lines.len());
        let last = line.iter().rev().take(count).map(|place| &place.gang);
        let mut last: Vec<GangKey> = last.cloned().collect();
        let are_last = last.iter().all(|key| round.obstacles.contains_key(key));
        if lines + count != line.len() || !are_last {
            return false;
        }
        last.reverse();
        for (place, key) in last.iter().enumerate() {
            let report = self.write_report(key, lines + place, round, plan);
            let line = self.report_cache.lines.entry(at).or_default();
            Arc::make_mut(line).push(report);
        }
        true
    }

    fn line_of(&self, at: QueueIx) -> Vec<GangKey> {
        let line = self.queues.at(at).line.iter();
        line.map(|place| place.gang.clone()).collect()
    }

    /// The report on a gang that was tried; emits the status and messages that are new.
    fn write_report(
        &mut self,
        key: &GangKey,
        ahead: usize,
        round: &PlanRound,
        plan: &mut Plan,
    ) -> Arc<PlacementReport> {
        let Some(obstacle) = round.obstacles.get(key) else {
            return Arc::default();
        };
        let (report, new) = self.report(key, obstacle, ahead);
        if new || self.changed_gangs.contains(key) {
            let sentence = report.sentence();
            let verdict = report.verdict;
            plan.groups
                .extend(self.status_update(key, Some((verdict, &sentence))));
            plan.unscheduled.extend(self.new_message(key, sentence));
            self.changed_gangs.remove(key);
        }
        report
    }

    /// The message for waiting members, if it is new to any of them.
    fn new_message(&mut self, key: &GangKey, sentence: String) -> Option<Unscheduled> {
        let changed_gangs = self.changed_gangs.contains(key);
        let gang = self.gangs.get_mut(key)?;
        if (gang.last_message == sentence && !changed_gangs) || gang.pending.is_empty() {
            return None;
        }
        gang.last_message.clone_from(&sentence);
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
