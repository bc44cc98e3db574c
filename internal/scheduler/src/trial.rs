//! Placement trials: where pods would be placed if they were created now. A trial runs on a
//! [`WhatIf`], a copy of the state, so it cannot change the scheduler.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use resources::kinds::PodGroup;
use resources::names::GROUP_NAME;
use resources::report::PlacementReport;

use crate::event::Event;
use crate::gang::GangKey;
use crate::place::Attempt;
use crate::plan::Bind;
use crate::pod::PodKey;
use crate::state::Scheduler;
use crate::what_if::WhatIf;

/// The prefix of trial names: no object's name contains it.
pub(crate) const MARK: &str = "trial:";

/// The result of a trial.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trial {
    /// Where pods would be bound.
    pub binds: Vec<Bind>,
    /// Why other gangs would wait.
    pub reports: Vec<PlacementReport>,
}

impl WhatIf {
    /// Returns where the pods would be placed if they existed now, and why the others would wait.
    /// Pods whose annotation names `group` are placed as that gang; each other pod is a gang of
    /// one. If the pods exist already, the trial is about a second set of them.
    #[must_use]
    pub fn would_place(mut self, group: Option<&PodGroup>, pods: &[Pod], now: Timestamp) -> Trial {
        let state = &mut self.0;
        state.rank_nodes();
        let mut keys = Vec::new();
        for pod in pods {
            let mut pod = pod.clone();
            mark(&mut pod.metadata.name);
            if let Some(annotations) = &mut pod.metadata.annotations
                && let Some(name) = annotations.get_mut(GROUP_NAME)
            {
                name.insert_str(0, MARK);
            }
            let namespace = pod
                .metadata
                .namespace
                .clone()
                .unwrap_or_else(|| "default".to_owned());
            let name = pod.metadata.name.clone().unwrap_or_default();
            state.apply(Event::PodChanged(Box::new(pod)));
            if let Some(known) = state.pods.get(&PodKey::new(&*namespace, &name)) {
                keys.push(known.gang.clone());
            }
        }
        if let Some(group) = group {
            let mut group = group.clone();
            mark(&mut group.metadata.name);
            group.status = None;
            let namespace = group
                .metadata
                .namespace
                .clone()
                .unwrap_or_else(|| "default".to_owned());
            let name = group.metadata.name.clone().unwrap_or_default();
            keys.push(GangKey::group(namespace.as_str().into(), &name));
            state.apply(Event::PodGroupChanged(Box::new(group)));
        }
        keys.sort_unstable();
        keys.dedup();
        state.update_queues();
        state.try_gangs(&keys, now)
    }
}

impl Scheduler {
    fn try_gangs(&mut self, keys: &[GangKey], now: Timestamp) -> Trial {
        let mut trial = Trial::default();
        for key in keys {
            let ahead = self.gangs.get(key).map_or(0, |gang| {
                let queue = self.queues.get(&gang.queue);
                let line = queue.into_iter().flat_map(|queue| &queue.line);
                gang.line
                    .as_ref()
                    .map_or(0, |own| line.take_while(|place| *place < own).count())
            });
            let obstacle = match self.attempt(key, now) {
                Attempt::Nothing => None,
                Attempt::Blocked(obstacle) => Some(obstacle),
                Attempt::Placed(placed) => {
                    let (placed, rest) = self.accept(placed);
                    self.write_binds(key, placed, &mut trial.binds);
                    rest
                }
            };
            if let Some(obstacle) = obstacle {
                let (report, _) = self.report(key, &obstacle, ahead);
                let mut report = PlacementReport::clone(&report);
                unmark(&mut report.group);
                report.binding = report.binding.replace(MARK, "");
                report.would_fit = report.would_fit.replace(MARK, "");
                trial.reports.push(report);
            }
        }
        for bind in &mut trial.binds {
            unmark(&mut bind.pod.name);
            unmark(&mut bind.group.name);
        }
        trial
    }
}

fn mark(name: &mut Option<String>) {
    let own = name.take().unwrap_or_default();
    *name = Some(format!("{MARK}{own}"));
}

fn unmark(name: &mut String) {
    if let Some(own) = name.strip_prefix(MARK) {
        *name = own.to_owned();
    }
}
