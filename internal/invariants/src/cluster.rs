//! An account of the cluster from the objects themselves: which pod holds which resources, where,
//! and for which gang and queue. Updated event by event, so that checking a plan costs only as much
//! as the objects that the plan touches.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1 as k8s;
use resources::amounts::{Amounts, pod_requests};
use resources::devices::{self, ChosenDevices};
use resources::kinds::{PodGroup, Queue};
use resources::names;
use resources::quantity::Quantity;

use crate::constraints::Demands;
use crate::gpu_request::{self, GpuRequest};
use crate::node_facts::NodeFacts;
use crate::products::{self, GpuNeeds};
use crate::violation::{PodId, ProposedBind};

/// A gang: the PodGroup's namespace and name; a pod without a PodGroup has no gang.
pub(crate) type GroupId = (String, String);

pub(crate) struct PodFacts {
    pub(crate) uid: String,
    pub(crate) demands: Demands,
    /// The requests, without fractions of GPUs.
    pub(crate) requests: Amounts,
    pub(crate) gpus: GpuRequest,
    pub(crate) needs: GpuNeeds,
    /// Resources except GPUs of which a container requests more than one.
    pub(crate) several: Vec<String>,
    /// Thousandths of GPUs charged to its queue.
    charged: i64,
    pub(crate) group: Option<GroupId>,
    own_queue: Option<String>,
    pub(crate) task: String,
    /// The node whose resources it holds, with the devices.
    pub(crate) at: Option<(String, ChosenDevices)>,
    /// It is terminating: still on its node, but no longer charged to a queue or gang.
    pub(crate) leaving: bool,
    pub(crate) succeeded: bool,
    pub(crate) ended: bool,
    ours: bool,
    assumed: bool,
}

pub(crate) struct GroupFacts {
    pub(crate) queue: String,
    pub(crate) min_member: usize,
    pub(crate) min_task_member: BTreeMap<String, usize>,
}

/// The account.
#[derive(Default)]
pub struct ClusterAccount {
    scheduler_names: Vec<String>,
    pub(crate) nodes: BTreeMap<String, NodeFacts>,
    pub(crate) pods: BTreeMap<PodId, PodFacts>,
    pub(crate) groups: BTreeMap<GroupId, GroupFacts>,
    pub(crate) members: BTreeMap<GroupId, BTreeSet<PodId>>,
    pub(crate) on_node: BTreeMap<String, BTreeSet<PodId>>,
    pub(crate) capability: BTreeMap<String, Amounts>,
    pub(crate) queue_held: BTreeMap<String, Amounts>,
    /// Thousandths of GPUs that each queue may hold.
    pub(crate) gpu_capability: BTreeMap<String, i64>,
    pub(crate) gpus_held: BTreeMap<String, i64>,
    /// Thousandths of GPUs of a model that each queue may hold, by the model's resource.
    pub(crate) model_capability: BTreeMap<String, BTreeMap<String, i64>>,
}

impl ClusterAccount {
    /// An empty account. Pods that name other schedulers than these are charged to no queue.
    #[must_use]
    pub fn new(scheduler_names: Vec<String>) -> ClusterAccount {
        ClusterAccount {
            scheduler_names,
            ..ClusterAccount::default()
        }
    }

    /// Adds or updates a node.
    pub fn put_node(&mut self, node: &k8s::Node) {
        let Some(name) = node.metadata.name.clone() else {
            return;
        };
        let status = node.status.as_ref();
        let allocatable = status.and_then(|s| s.allocatable.as_ref().or(s.capacity.as_ref()));
        let conditions = status
            .and_then(|s| s.conditions.as_deref())
            .unwrap_or_default();
        let inventory = devices::inventory(node.metadata.annotations.as_ref());
        let described = inventory.iter().flat_map(|inventory| &inventory.described);
        let described = described.flat_map(|(resource, list)| {
            list.iter()
                .map(|device| (device.id.clone(), (resource.clone(), device.healthy)))
        });
        let mut each: BTreeMap<_, _> = described.collect();
        let one_at_most = inventory
            .iter()
            .flat_map(|inventory| &inventory.one_at_most);
        let one_at_most = one_at_most.cloned().collect();
        let offered = inventory
            .filter(|inventory| !inventory.gpus.is_empty())
            .map(|inventory| inventory.offered());
        let slices = offered.iter().flat_map(|offered| &offered.slices);
        let slices = slices.flat_map(|(resource, list)| {
            list.iter()
                .map(|(_, slice)| (slice.id.clone(), (resource.clone(), slice.healthy)))
        });
        each.extend(slices);
        let known = offered.map(|offered| offered.gpus);
        let spec = node.spec.clone().unwrap_or_default();
        let (labels, listed) = (
            node.metadata.labels.as_ref(),
            known.as_deref().unwrap_or_default(),
        );
        let (compute, driver) = products::versions(labels, listed);
        let facts = NodeFacts {
            gpu_memory: gpu_request::memory(node, listed),
            products: products::products(labels, listed),
            compute,
            driver,
            allocatable: gpu_request::with_shared(
                allocatable.map(Amounts::from_k8s).unwrap_or_default(),
            ),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            cordoned: spec.unschedulable.unwrap_or(false),
            not_ready: conditions
                .iter()
                .any(|c| c.type_ == "Ready" && c.status != "True"),
            listed: each,
            alone: (listed.iter().filter(|gpu| gpu.alone))
                .map(|gpu| gpu.id.clone())
                .collect(),
            one_at_most,
            devices: known.map(|gpus| gpus.into_iter().map(|gpu| (gpu.id, gpu.healthy)).collect()),
        };
        self.change_node(name, Some(facts));
    }

    /// Removes a node.
    pub fn drop_node(&mut self, name: &str) {
        self.change_node(name.to_owned(), None);
    }

    fn change_node(&mut self, name: String, facts: Option<NodeFacts>) {
        let memory = |facts: Option<&NodeFacts>| facts.and_then(|facts| facts.gpu_memory);
        let recount = memory(self.nodes.get(&name)) != memory(facts.as_ref());
        let here = self.on_node.get(&name).filter(|_| recount);
        let pods: Vec<PodId> = here.into_iter().flatten().cloned().collect();
        for pod in &pods {
            self.count(pod, -1);
        }
        match facts {
            Some(facts) => self.nodes.insert(name, facts),
            None => self.nodes.remove(&name),
        };
        for pod in &pods {
            self.count(pod, 1);
        }
    }

    /// Adds or updates a pod. An assumed pod stays on its assumed node until the API shows it
    /// bound, ended or replaced.
    pub fn put_pod(&mut self, pod: &k8s::Pod) {
        let Some(spec) = &pod.spec else { return };
        let meta = &pod.metadata;
        let id = PodId {
            namespace: meta
                .namespace
                .clone()
                .unwrap_or_else(|| "default".to_owned()),
            name: meta.name.clone().unwrap_or_default(),
        };
        let annotation = |name: &str| {
            let value = meta.annotations.as_ref().and_then(|all| all.get(name));
            value.filter(|value| !value.is_empty()).cloned()
        };
        let label = meta
            .labels
            .as_ref()
            .and_then(|all| all.get(names::QUEUE_NAME))
            .cloned();
        let phase = pod
            .status
            .as_ref()
            .and_then(|s| s.phase.as_deref())
            .unwrap_or_default();
        let ended = matches!(phase, "Succeeded" | "Failed");
        let node = spec
            .node_name
            .clone()
            .filter(|node| !node.is_empty() && !ended);
        let scheduler = spec.scheduler_name.as_deref().unwrap_or_default();
        let mut requests = pod_requests(spec);
        let mut facts = PodFacts {
            uid: meta.uid.clone().unwrap_or_default(),
            gpus: GpuRequest::read(meta, &mut requests),
            needs: GpuNeeds::read(meta),
            several: several(spec),
            charged: 0,
            requests,
            group: annotation(names::GROUP_NAME).map(|group| (id.namespace.clone(), group)),
            own_queue: annotation(names::QUEUE_NAME).or(label),
            task: annotation(names::TASK_SPEC).unwrap_or_default(),
            at: node.map(|node| (node, devices::chosen(meta.annotations.as_ref()))),
            leaving: meta.deletion_timestamp.is_some(),
            succeeded: phase == "Succeeded",
            ended,
            ours: self.scheduler_names.iter().any(|name| name == scheduler),
            assumed: false,
            demands: Demands::of(spec),
        };
        if let Some(old) = self.pods.get(&id)
            && old.assumed
            && old.uid == facts.uid
            && facts.at.is_none()
            && !ended
        {
            facts.at = old.at.clone();
            facts.assumed = true;
        }
        if let Some(old) = self.pods.get(&id) {
            facts.leaving |= old.leaving && old.uid == facts.uid;
        }
        self.drop_pod(&id);
        self.enter(id, facts);
    }

    /// Counts a pod as terminating before the API shows it so, or reverts that.
    pub fn see_leave(&mut self, id: &PodId, uid: &str, leaves: bool) {
        if self.pods.get(id).is_none_or(|pod| pod.uid != uid) {
            return;
        }
        self.count(id, -1);
        if let Some(pod) = self.pods.get_mut(id) {
            pod.leaving = leaves;
        }
        self.count(id, 1);
    }

    /// Removes a pod.
    pub fn drop_pod(&mut self, id: &PodId) {
        self.count(id, -1);
        let Some(facts) = self.pods.remove(id) else {
            return;
        };
        if let Some((node, _)) = &facts.at {
            take_out(&mut self.on_node, node, id);
        }
        if let Some(group) = &facts.group {
            take_out(&mut self.members, group, id);
        }
    }

    /// Adds or updates a PodGroup.
    pub fn put_group(&mut self, group: &PodGroup) {
        let meta = &group.metadata;
        let namespace = meta
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let id = (namespace, meta.name.clone().unwrap_or_default());
        let count = |n: i32| usize::try_from(n).unwrap_or(0);
        let spec = &group.spec;
        let queue = spec.queue.clone().filter(|queue| !queue.is_empty());
        let tasks = spec.min_task_member.iter().flatten();
        let facts = GroupFacts {
            queue: queue.unwrap_or_else(|| names::DEFAULT_QUEUE.to_owned()),
            min_member: count(spec.min_member.unwrap_or(1)),
            min_task_member: tasks.map(|(task, n)| (task.clone(), count(*n))).collect(),
        };
        self.change_group(&id, Some(facts));
    }

    /// Removes a PodGroup.
    pub fn drop_group(&mut self, namespace: &str, name: &str) {
        self.change_group(&(namespace.to_owned(), name.to_owned()), None);
    }

    /// Adds or updates a queue.
    pub fn put_queue(&mut self, queue: &Queue) {
        let name = queue.metadata.name.clone().unwrap_or_default();
        let capability = queue.spec.capability.as_ref();
        let models = capability
            .into_iter()
            .flatten()
            .filter_map(|(name, amount)| {
                let model = name.starts_with(names::GPU_OF_MODEL) && name != names::GPU_SHARED;
                let amount = Quantity::parse_k8s(amount).ok().filter(|_| model)?;
                Some((name.clone(), amount.milli()))
            });
        self.model_capability.insert(name.clone(), models.collect());
        let gpus = capability.and_then(|list| list.get(names::NVIDIA_GPU));
        match gpus.and_then(|gpus| Quantity::parse_k8s(gpus).ok()) {
            Some(gpus) => self.gpu_capability.insert(name.clone(), gpus.milli()),
            None => self.gpu_capability.remove(&name),
        };
        let capability = capability.map(Amounts::from_k8s);
        self.capability.insert(name, capability.unwrap_or_default());
    }

    /// Removes a queue.
    pub fn drop_queue(&mut self, name: &str) {
        self.capability.remove(name);
        self.gpu_capability.remove(name);
        self.model_capability.remove(name);
    }

    /// Counts a pod as bound before the API shows it so.
    pub fn assume(&mut self, placement: &ProposedBind) {
        let id = &placement.pod;
        if self
            .pods
            .get(id)
            .is_none_or(|pod| pod.uid != placement.uid || pod.at.is_some())
        {
            return;
        }
        if let Some(pod) = self.pods.get_mut(id) {
            pod.at = Some((placement.node.clone(), placement.devices.clone()));
            pod.assumed = true;
        }
        self.on_node
            .entry(placement.node.clone())
            .or_default()
            .insert(id.clone());
        self.count(id, 1);
    }

    /// The node where a pod is bound, or assumed to be.
    #[must_use]
    pub fn node_of(&self, id: &PodId, uid: &str) -> Option<&str> {
        let pod = self.pods.get(id).filter(|pod| pod.uid == uid)?;
        pod.at.as_ref().map(|(node, _)| node.as_str())
    }

    /// Reverts an assumption. Does nothing and returns false once the API has shown the pod bound
    /// or gone.
    pub fn retract(&mut self, id: &PodId, uid: &str) -> bool {
        if self
            .pods
            .get(id)
            .is_none_or(|pod| !pod.assumed || pod.uid != uid)
        {
            return false;
        }
        self.count(id, -1);
        if let Some(pod) = self.pods.get_mut(id) {
            pod.assumed = false;
            if let Some((node, _)) = pod.at.take() {
                take_out(&mut self.on_node, &node, id);
            }
        }
        true
    }

    fn enter(&mut self, id: PodId, facts: PodFacts) {
        if let Some((node, _)) = &facts.at {
            self.on_node
                .entry(node.clone())
                .or_default()
                .insert(id.clone());
        }
        if let Some(group) = &facts.group {
            self.members
                .entry(group.clone())
                .or_default()
                .insert(id.clone());
        }
        self.pods.insert(id.clone(), facts);
        self.count(&id, 1);
    }

    /// The queue that a pod is charged to; none for pods of other schedulers.
    pub(crate) fn queue_of(&self, pod: &PodFacts) -> Option<String> {
        if !pod.ours {
            return None;
        }
        let fallback = || names::DEFAULT_QUEUE.to_owned();
        Some(match &pod.group {
            Some(group) => self
                .groups
                .get(group)
                .map_or_else(fallback, |g| g.queue.clone()),
            None => pod.own_queue.clone().unwrap_or_else(fallback),
        })
    }

    fn count(&mut self, id: &PodId, times: i64) {
        let held = |pod: &&PodFacts| pod.at.is_some() && !pod.leaving;
        let Some(pod) = self.pods.get(id).filter(held) else {
            return;
        };
        let Some(queue) = self.queue_of(pod) else {
            return;
        };
        let change = pod.requests.times(times);
        let node = pod.at.as_ref().and_then(|(node, _)| self.nodes.get(node));
        let charge = if times > 0 {
            pod.gpus.charge(node)
        } else {
            pod.charged
        };
        *self.gpus_held.entry(queue.clone()).or_default() += charge * times;
        self.queue_held.entry(queue).or_default().add(&change);
        if let Some(pod) = self.pods.get_mut(id) {
            pod.charged = charge;
        }
    }

    fn change_group(&mut self, id: &GroupId, facts: Option<GroupFacts>) {
        let members: Vec<PodId> = self
            .members
            .get(id)
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        for pod in &members {
            self.count(pod, -1);
        }
        match facts {
            Some(facts) => {
                self.groups.insert(id.clone(), facts);
            }
            None => {
                self.groups.remove(id);
            }
        }
        for pod in &members {
            self.count(pod, 1);
        }
    }
}

fn take_out<K: Ord>(index: &mut BTreeMap<K, BTreeSet<PodId>>, key: &K, id: &PodId) {
    if let Some(set) = index.get_mut(key) {
        set.remove(id);
        if set.is_empty() {
            index.remove(key);
        }
    }
}

/// The resources, except GPUs, of which one of the pod's containers requests more than one.
fn several(spec: &k8s::PodSpec) -> Vec<String> {
    let inits = spec.init_containers.iter().flatten();
    let resources = (spec.containers.iter().chain(inits)).filter_map(|it| it.resources.as_ref());
    let lists = resources.flat_map(|all| [all.requests.as_ref(), all.limits.as_ref()]);
    let mut names = BTreeSet::new();
    for list in lists.flatten() {
        let amounts = Amounts::from_k8s(list);
        let counted = list.keys().filter(|name| name.contains('/'));
        let others = counted.filter(|name| *name != names::NVIDIA_GPU);
        names.extend(others.filter(|name| amounts.get(name) > 1).cloned());
    }
    names.into_iter().collect()
}
