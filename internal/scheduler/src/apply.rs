//! Applies events to the state. Each costs what it changes, may arrive twice or in any order across
//! objects, and leaves the state as if built from the current objects. Tests:
//! `tests/properties.rs`, `tests/exclusive_gpus.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as k8s;
use resources::kinds::PodGroup;

use crate::event::Event;
use crate::gang::{GangKey, GangSpec};
use crate::labels::Labels;
use crate::node::{NodeAttributes, NodeIx};
use crate::pod::{Pod, PodInfo, PodKey, PodStage};
use crate::queue::QueueRules;
use crate::share::SharedPart;
use crate::state::{Priority, Scheduler};
use crate::topology::Hints;
use crate::{GroupRef, PodRef};

impl Scheduler {
    /// Applies the event `PodChanged` without taking ownership of the pod.
    pub fn pod_changed(&mut self, pod: &k8s::Pod) {
        self.take_in_pod(pod);
        self.apply_new_models();
    }

    /// Applies one event.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::NodeChanged(node) => self.node_changed(&node),
            Event::NodeGone(name) => self.node_gone(&name),
            Event::PodChanged(pod) => self.take_in_pod(&pod),
            Event::PodGone(namespace, name) => self.pod_gone(&PodKey::new(namespace, &name)),
            Event::PodGroupChanged(group) => self.group_changed(&group),
            Event::PodGroupGone(namespace, name) => self.group_gone(&namespace, &name),
            Event::QueueChanged(queue) => {
                let rules = QueueRules::read(&queue, &mut self.names);
                self.queue_changed(
                    queue.metadata.name.as_deref().unwrap_or_default(),
                    Some(rules),
                );
            }
            Event::QueueGone(name) => self.queue_changed(&name, None),
            Event::NamespaceChanged(namespace) => {
                let labels = namespace.metadata.labels.clone().unwrap_or_default();
                let name = namespace.metadata.name.as_deref().unwrap_or_default();
                self.namespace_changed(name, Some(labels));
            }
            Event::NamespaceGone(name) => self.namespace_changed(&name, None),
            Event::PriorityClassChanged(class) => {
                let priority = Priority {
                    value: class.value,
                    waits: class.preemption_policy.as_deref() == Some("Never"),
                    default: class.global_default.unwrap_or(false),
                };
                let name = class.metadata.name.clone().unwrap_or_default();
                self.priority_changed(name, Some(priority));
            }
            Event::PriorityClassGone(name) => self.priority_changed(name, None),
            Event::BudgetChanged(budget) => self.budget_changed(&budget),
            Event::BudgetGone(namespace, name) => self.budget_gone(&namespace, &name),
            storage => self.apply_storage_event(storage),
        }
        self.apply_new_models();
    }

    /// Undoes the binding of a pod that a plan bound and that could not be written to the API. The
    /// pod waits again. No effect on a pod whose binding an event has confirmed.
    pub fn forget(&mut self, pod: &PodRef) {
        let key = PodKey::new(&*pod.namespace, &pod.name);
        let Some(known) = self.pods.get(&key) else {
            return;
        };
        if !known.assumed || known.stage != PodStage::Bound || known.uid != pod.uid {
            return;
        }
        let mut waiting = known.clone();
        waiting.assumed = false;
        waiting.node = None;
        waiting.devices.clear();
        waiting.stage = PodStage::Pending;
        self.listed.release(&key);
        self.replace_pod(&key, waiting);
    }

    /// Undoes the eviction of a pod that a plan evicted and that could not be written to the API:
    /// the pod stays, and the gang that was to have its place releases it in the next plan. No
    /// effect on a pod that an event has confirmed to be terminating.
    pub fn forget_eviction(&mut self, pod: &PodRef) {
        let key = PodKey::new(&*pod.namespace, &pod.name);
        let Some(known) = self.pods.get(&key) else {
            return;
        };
        let Some(stage) = known.evicting.filter(|_| known.uid == pod.uid) else {
            return;
        };
        let mut stays = known.clone();
        stays.evicting = None;
        stays.stage = stage;
        self.cluster_changed();
        self.replace_pod(&key, stays);
    }

    /// Holds a gang back until a time. Called after a failed binding, so that it is not retried in
    /// a tight loop.
    pub fn hold(&mut self, group: &GroupRef, until: jiff::Timestamp) {
        self.hold_because(group, until, None);
    }

    /// Like `hold`, with the reason for the gang's report.
    pub fn hold_because(&mut self, group: &GroupRef, until: jiff::Timestamp, why: Option<&str>) {
        let key = self.gang_key(group);
        if let Some(gang) = self.gangs.get_mut(&key) {
            gang.held_until = Some(until);
            gang.held_why = why.map(Box::from);
            self.unanswered.insert(key);
            self.changed = true;
        }
    }

    /// Forgets the last written status of a PodGroup, after a failed write: the next plan emits it
    /// again.
    pub fn forget_status(&mut self, group: &GroupRef) {
        let key = self.gang_key(group);
        if let Some(gang) = self.gangs.get_mut(&key) {
            gang.shown = None;
            self.changed_gangs.insert(&key);
            self.changed = true;
        }
    }

    fn gang_key(&self, group: &GroupRef) -> GangKey {
        let pod = PodKey::new(&*group.namespace, &group.name);
        let mut key = GangKey::lone(&pod);
        key.lone = group.lone;
        key
    }

    fn node_changed(&mut self, node: &k8s::Node) {
        let Some(name) = node.metadata.name.as_deref() else {
            return;
        };
        let mut offer = NodeAttributes::read(node, &mut self.names);
        if offer.health.fabric_failed {
            self.fabric_failed();
        }
        let at = self.node_at(name);
        offer.mig_annotations = self.as_decided(at, offer.mig_annotations);
        // Nodes are reported every few seconds, mostly unchanged.
        let Some(known) = &self.nodes[at].offer else {
            return self.set_offer(at, Some(offer));
        };
        if known.but_for_load(&offer) {
            self.load_changed(at, offer.health.load);
        } else {
            self.set_offer(at, Some(offer));
        }
    }

    fn node_gone(&mut self, name: &str) {
        let Some(at) = self.node_index.get(name).copied() else {
            return;
        };
        self.forget_repartition_state(at);
        if self.nodes[at].offer.is_some() {
            self.set_offer(at, None);
        }
        self.free_node_index(at);
    }

    fn take_in_pod(&mut self, pod: &k8s::Pod) {
        let namespace = self.namespace(pod.metadata.namespace.as_deref());
        let Some(mut info) = PodInfo::read(pod, namespace, &self.config.scheduler_names) else {
            return;
        };
        self.share_strings(&mut info);
        let key = info.key.clone();
        let (class, asks) = self.read_asks(pod, info.spec, &key.namespace);
        let class = self.class_with_volumes(&info, class);
        let class = self.class_spanning(&info.gang, info.ours, class);
        let mut new = Pod {
            uid: info.uid,
            class,
            task: info.task,
            stage: info.stage,
            node: info.node.map(|name| self.node_at(name)),
            devices: info.devices,
            assumed: false,
            ours: info.ours,
            priority: info.spec.priority,
            created: info.created,
            queue: info.queue,
            terms: info.terms,
            asks,
            started: info.started,
            never_preempts: info.never_preempts,
            evicting: None,
            part: self.part_of(
                &info.gang,
                info.hints.as_deref(),
                pod.metadata.labels.as_ref(),
            ),
            labels: Labels::new(pod.metadata.labels.as_ref()),
            hints: info.hints,
            gang: info.gang,
        };
        let ended = matches!(new.stage, PodStage::Succeeded | PodStage::Failed);
        match self.pods.get(&key) {
            Some(old) => {
                let leaves = new.stage == PodStage::Leaving && old.stage != PodStage::Leaving;
                if old.stage.occupies() && (ended || leaves) || old.uid != new.uid {
                    self.cluster_changed();
                }
            }
            None if self.gangs.contains_key(&new.gang) => {}
            None if new.stage.on_node() => self.cluster_changed(),
            None => self.gang_arrived(),
        }
        if let Some(old) = self.pods.get(&key) {
            let unbound = matches!(new.stage, PodStage::Pending | PodStage::Apart);
            if old.assumed && old.uid == new.uid && unbound {
                // The binding is in flight: an event from before it does not contradict it.
                new.stage = PodStage::Bound;
                new.node = old.node;
                new.devices = old.devices.clone();
                new.assumed = true;
            }
            if old.uid == new.uid {
                keep_plan_decision(old, &mut new);
            }
            if old.devices == new.devices {
                // The same device ids are stored once: as the node's own strings, if they were
                // chosen here.
                new.devices.clone_from(&old.devices);
            }
            if *old == new {
                self.leave_class(class);
                return;
            }
        }
        match new.node.filter(|_| new.stage.on_node()) {
            Some(_) if new.assumed => {}
            Some(at) => {
                self.listed.hold(&key, at, info.listed);
            }
            None => self.listed.release(&key),
        }
        self.replace_pod_joined(&key, new);
    }

    /// Shares the gang's strings with the pod.
    fn share_strings(&self, info: &mut PodInfo) {
        let Some(key) = self.gangs.key(&info.gang) else {
            return;
        };
        info.gang = key.clone();
        let gang = self.gangs.get(&info.gang);
        if let Some(task) = gang.and_then(|gang| gang.tasks.key(&*info.task)) {
            info.task = task.clone();
        }
    }

    /// The sub-group of a pod.
    fn part_of(
        &self,
        gang: &GangKey,
        hints: Option<&Hints>,
        labels: Option<&BTreeMap<String, String>>,
    ) -> Option<Arc<str>> {
        let spec = self.gangs.get(gang).and_then(|gang| gang.spec.as_ref());
        let policies = spec.map_or(&[][..], |spec| &spec.shape.policies);
        if policies.is_empty() {
            return hints.and_then(|hints| hints.sub_group.clone());
        }
        policies.iter().find_map(|policy| policy.part(labels?))
    }

    /// Replaces a pod; the new one joins its class.
    fn replace_pod(&mut self, key: &PodKey, new: Pod) {
        let class = self.classes.rejoin(new.class);
        self.replace_pod_joined(key, Pod { class, ..new });
    }

    pub(crate) fn replace_pod_joined(&mut self, key: &PodKey, new: Pod) {
        // A waiting pod does not affect other gangs' searches for evictions, unless budgets count
        // it.
        let there = |pod: &Pod| pod.stage.on_node();
        if !self.budgets.is_empty() || there(&new) || self.pods.get(key).is_some_and(there) {
            self.version += 1;
        }
        let elsewhere = |old: &Pod| old.node != new.node;
        if !there(&new) || self.pods.get(key).is_some_and(elsewhere) {
            self.volumes.release(key);
        }
        let gang = new.gang.clone();
        let left = self.take_pod(key);
        self.put_pod(key.clone(), new);
        // Only now: the old and the new pod may be on the same node.
        if let Some((left, node)) = left {
            self.leave_node(node);
            if left != gang {
                self.settle(&left);
            }
        }
        self.settle(&gang);
    }

    fn pod_gone(&mut self, key: &PodKey) {
        self.volumes.gone(key);
        self.listed.release(key);
        if self.pods.get(key).is_some_and(|pod| pod.stage.occupies()) {
            self.cluster_changed();
        }
        let there =
            !self.budgets.is_empty() || self.pods.get(key).is_some_and(|pod| pod.stage.on_node());
        if let Some((gang, node)) = self.take_pod(key) {
            self.version += u64::from(there);
            self.leave_node(node);
            self.settle(&gang);
        }
    }

    fn leave_node(&mut self, node: Option<NodeIx>) {
        if let Some(at) = node {
            self.free_node_index(at);
        }
    }

    /// Removes a pod and reverses its effects; the caller settles the gang.
    fn take_pod(&mut self, key: &PodKey) -> Option<(GangKey, Option<NodeIx>)> {
        let pod = self.pods.remove(key)?;
        self.account(key, &pod, false);
        self.expected.see(key, &pod, false);
        self.update_budgets_of(key, None);
        self.by_memory.remove(key);
        self.leave_class(pod.class);
        Some((pod.gang, pod.node))
    }

    fn put_pod(&mut self, key: PodKey, pod: Pod) {
        self.update_budgets_of(&key, Some(&pod.labels));
        self.account(&key, &pod, true);
        self.expected.see(&key, &pod, true);
        let share = self.classes.get(pod.class).share();
        if share.as_ref().is_some_and(SharedPart::depends_on_memory) {
            self.by_memory.insert(key.clone());
        }
        let watched = (!self.failing.is_empty()).then(|| key.clone());
        self.pods.insert(key, pod);
        if let Some(key) = watched {
            self.note_on_failed_device(&key);
        }
    }

    /// Adds a pod to all accounts, or removes it.
    pub(crate) fn account(&mut self, key: &PodKey, pod: &Pod, up: bool) {
        self.count_member(key, pod, up);
        self.count_at_stage(key, pod, up);
    }

    /// Adds a pod to its gang's member counts, whatever its stage, or removes it.
    fn count_member(&mut self, key: &PodKey, pod: &Pod, up: bool) {
        let gang = self.gangs.or_default(&pod.gang);
        if up {
            gang.members.insert(key.clone());
        }
        // The gang's account may depend on its first member.
        gang.moved |= gang.members.first() == Some(key);
        if !up {
            gang.members.remove(key);
        }
        let hints = pod.hints.as_deref();
        let count = |of: &mut usize, is: bool| match up {
            true => *of += usize::from(is),
            false => *of = of.saturating_sub(usize::from(is)),
        };
        count(
            &mut gang.ranked,
            hints.is_some_and(|hints| hints.rank.is_some()),
        );
        count(&mut gang.hinted, hints.is_some_and(Hints::asks));
        gang.count_priority(pod.priority, up);
    }

    /// Adds what a pod holds or requests at its stage, or removes it.
    pub(crate) fn count_at_stage(&mut self, key: &PodKey, pod: &Pod, up: bool) {
        self.count_in_budgets(key, pod, up);
        let node = pod.node.map(|at| &self.nodes[at]);
        let take = self.classes.get(pod.class).take(node);
        let demand = &take.demand;
        let times = if up { 1 } else { -1 };
        self.note_gpus(key, pod, up);
        if let Some(at) = pod.node.filter(|_| pod.stage.occupies()) {
            self.count_for_rules(&key.namespace, &pod.labels, pod.class, at, up);
        }
        if let Some(at) = pod.node.filter(|_| pod.stage.on_node()) {
            self.releases += u64::from(self.volumes.see(key, at, up));
        }
        let gang = self.gangs.or_default(&pod.gang);
        gang.count(key, &pod.task, pod.stage, up);
        if pod.stage == PodStage::Pending {
            gang.count_kind(pod.class, up);
        }
        if pod.assumed {
            gang.assumed = if up {
                gang.assumed + 1
            } else {
                gang.assumed.saturating_sub(1)
            };
        }
        gang.count_part(pod.part.as_ref(), pod.stage, up);
        if pod.stage == PodStage::Leaving {
            // Still requested: an eviction turns an allocation into a request.
            if let Some(payer) = gang.payer.filter(|_| pod.ours) {
                self.queues.request(payer.queue, demand, times);
            }
            if pod.ours {
                gang.requested.add(demand, times);
            }
            if let Some(at) = pod.node {
                self.nodes[at].count_terminating(&take, &pod.devices, up);
                self.touch(at);
            }
            return;
        }
        let payer = gang.payer;
        let waits = pod.stage == PodStage::Pending;
        if pod.ours && (waits || pod.stage.occupies()) {
            gang.requested.add(demand, times);
            if waits {
                gang.waiting.add(demand, times);
            }
        }
        if let Some(at) = pod.node {
            gang.count_node(at, up);
            gang.count_start(pod.started, up);
            if pod.stage == PodStage::Pipelined {
                self.nodes[at].count_nominated(&take, &pod.devices, up);
            }
            if pod.ours {
                gang.allocated.add(demand, times);
            }
        }
        if let Some(payer) = payer.filter(|_| pod.ours) {
            if waits || pod.stage.occupies() {
                self.queues.request(payer.queue, demand, times);
            }
            if pod.node.is_some() {
                self.queues.charge(payer, demand, times);
            }
        }
        let Some(at) = pod.node else { return };
        if up {
            self.occupy(at, &take, &pod.devices);
        } else {
            self.vacate(at, &take, &pod.devices);
        }
        self.touch(at);
    }

    pub(crate) fn leave_class(&mut self, class: crate::class::ClassIx) {
        for gone in self.classes.leave(class) {
            self.views.remove(&gone);
        }
    }

    fn group_changed(&mut self, group: &PodGroup) {
        let (Some(name), namespace) = (
            group.metadata.name.as_deref(),
            group.metadata.namespace.as_deref(),
        ) else {
            return;
        };
        let spec = GangSpec::read(group, &mut self.names);
        let key = GangKey::group(self.namespace(namespace), name);
        if self
            .gangs
            .get(&key)
            .is_some_and(|gang| gang.spec.as_ref() == Some(&spec))
        {
            return;
        }
        if self
            .gangs
            .get(&key)
            .is_some_and(|gang| gang.spec.is_some() || !gang.nodes.is_empty())
        {
            self.cluster_changed();
        } else {
            self.gang_arrived();
        }
        self.remove_expected(&key);
        let gang = self.gangs.or_default(&key);
        if gang.spec.as_ref().is_some_and(|old| old.uid != spec.uid) {
            // A new object of the same name: the old one's state does not apply.
            gang.shown = None;
            gang.admitted = false;
        }
        let regrouped = {
            let old = gang.spec.as_ref().map(|spec| &spec.shape.policies);
            old.map_or(&[][..], Vec::as_slice) != spec.shape.policies
        };
        gang.spec = Some(spec);
        gang.moved = true;
        if gang.recall(group, &mut self.last_conditions) {
            self.timeline.restore_head(&key);
        }
        if regrouped {
            self.regroup(&key);
        }
        self.refresh_members_spanning(&key);
        self.settle(&key);
    }

    /// Recomputes the members' sub-groups after the gang's policies changed.
    fn regroup(&mut self, key: &GangKey) {
        let members: Vec<PodKey> = self
            .gangs
            .get(key)
            .map(|gang| gang.members.iter().cloned().collect())
            .unwrap_or_default();
        for name in members {
            let Some(pod) = self.pods.get(&name) else {
                continue;
            };
            let labels = pod.labels.map();
            let part = self.part_of(key, pod.hints.as_deref(), Some(&labels));
            let stage = pod.stage;
            let Some(pod) = self.pods.get_mut(&name) else {
                continue;
            };
            let old = std::mem::replace(&mut pod.part, part.clone());
            if let Some(gang) = self.gangs.get_mut(key) {
                gang.count_part(old.as_ref(), stage, false);
                gang.count_part(part.as_ref(), stage, true);
            }
        }
    }

    fn group_gone(&mut self, namespace: &str, name: &str) {
        let key = GangKey::group(namespace.into(), name);
        if !self.gangs.contains_key(&key) {
            return;
        }
        self.cluster_changed();
        self.remove_expected(&key);
        let gang = self.gang_mut(&key);
        gang.spec = None;
        gang.moved = true;
        gang.shown = None;
        gang.admitted = false;
        self.refresh_members_spanning(&key);
        self.settle(&key);
    }

    fn queue_changed(&mut self, name: &str, rules: Option<QueueRules>) {
        if self.queues.get(name).and_then(|queue| queue.rules.as_ref()) == rules.as_ref() {
            return;
        }
        if self.queues.set_rules(name, rules) {
            let line = self.queues.get(name).into_iter().flat_map(|q| &q.line);
            let waiting: Vec<GangKey> = line.map(|place| place.gang.clone()).collect();
            for key in waiting {
                self.settle(&key);
            }
        }
        self.cluster_changed();
        self.changed = true;
        self.releases += 1;
    }

    fn namespace_changed(&mut self, name: &str, labels: Option<BTreeMap<String, String>>) {
        if !self.namespaces.set(name, labels) || !self.queues.any_selects_namespaces() {
            return;
        }
        self.cluster_changed();
        self.releases += 1;
        let in_it = self.gangs.keys().filter(|key| &*key.namespace == name);
        let in_it: Vec<GangKey> = in_it.cloned().collect();
        for key in in_it {
            self.settle(&key);
        }
        self.changed = true;
    }

    fn priority_changed(&mut self, name: String, priority: Option<Priority>) {
        let old = match priority {
            Some(priority) => self.priorities.insert(name, priority),
            None => self.priorities.remove(&name),
        };
        if old == priority {
            return;
        }
        self.cluster_changed();
        // Rare: every gang's position may have changed.
        let keys: Vec<GangKey> = self.gangs.keys().cloned().collect();
        for key in keys {
            self.settle(&key);
        }
    }
}

/// Keeps a plan's decision about a pod against an older event that does not mention it.
fn keep_plan_decision(old: &Pod, new: &mut Pod) {
    let unbound = matches!(new.stage, PodStage::Pending);
    if old.stage == PodStage::Pipelined && unbound {
        new.stage = PodStage::Pipelined;
        new.node = old.node;
        new.devices = old.devices.clone();
    }
    let stays = matches!(new.stage, PodStage::Bound | PodStage::Running);
    if old.evicting.is_some() && old.stage == PodStage::Leaving && stays {
        new.evicting = Some(new.stage);
        new.stage = PodStage::Leaving;
    }
}
