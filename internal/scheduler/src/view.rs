//! The state as plain data, for comparison, checks and display.

use std::collections::BTreeMap;

use resources::amounts::Amounts;

use crate::gang::GangKey;
use crate::pod::{PodKey, PodStage};
use crate::resource::GPU;
use crate::state::Scheduler;

/// The cluster as the scheduler sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterView {
    /// Nodes by name.
    pub nodes: BTreeMap<String, NodeView>,
    /// Pods by namespace and name.
    pub pods: BTreeMap<(String, String), PodView>,
    /// Queues by name.
    pub queues: BTreeMap<String, QueueView>,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    /// False if only pods name it.
    pub exists: bool,
    /// Its allocatable amounts.
    pub allocatable: Amounts,
    /// What pods use of it.
    pub used: Amounts,
    /// Pods that use capacity.
    pub pods: usize,
    /// Ids of devices that pods hold.
    pub held: Vec<String>,
    /// The thousandths in use of each GPU.
    pub gpus: BTreeMap<String, i64>,
}

/// One pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodView {
    /// The node whose room it takes.
    pub node: Option<String>,
    /// Does it wait to be placed?
    pub pending: bool,
    /// What it asks for.
    pub requests: Amounts,
    /// Its gang: a PodGroup's name, or its own.
    pub group: String,
    /// Thousandths of GPUs that it asks for; in `requests` a part counts as a whole one.
    pub gpu_milli: i64,
    /// Device ids it holds.
    pub devices: Vec<String>,
}

/// One queue. Amounts are those of the queue and all queues below it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueView {
    /// The queue above it; none for one right below the root.
    pub parent: Option<String>,
    /// Thousandths of GPUs that its gangs hold; in the amounts below a part counts as a whole one.
    pub gpu_milli: i64,
    /// What its gangs hold.
    pub allocated: Amounts,
    /// The non-preemptible part of that.
    pub fixed: Amounts,
    /// What its gangs hold and wait for.
    pub requested: Amounts,
    /// Its current entitlement.
    pub entitled: Amounts,
    /// Its deserved amount (quota), if set.
    pub deserved: Amounts,
    /// Its guarantee, if set.
    pub guaranteed: Amounts,
    /// The most that it may hold, if bounded.
    pub ceiling: Amounts,
    /// The limit for one user, if set.
    pub user_limit: Amounts,
    /// The limit for one team, if set.
    pub team_limit: Amounts,
    /// What users hold: in it and below if it has a user limit, else through its own gangs.
    pub users: BTreeMap<String, Amounts>,
    /// What teams hold, likewise.
    pub teams: BTreeMap<String, Amounts>,
    /// Its weight among its siblings, in thousandths.
    pub weight: i64,
    /// What is reserved for it and unused.
    pub kept: Amounts,
    /// The largest part of the cluster that it holds.
    pub share: f64,
    /// The resource of that part.
    pub dominant: Option<String>,
    /// The largest ratio of what it holds to its share: above 1, others may reclaim from it.
    pub share_of_entitled: f64,
    /// A resource of which it holds more than its share.
    pub above: Option<String>,
    /// Its past use, if that counts.
    pub usage: Amounts,
    /// Faults of its object.
    pub faults: Vec<String>,
    /// Waiting gangs in queue order: namespace and name.
    pub line: Vec<(String, String)>,
    /// Gangs by phase: Pending, Inqueue, Running, Completed, Unknown. Only PodGroups count.
    pub phases: BTreeMap<&'static str, usize>,
}

impl Scheduler {
    /// The whole state as plain data. Costs the cluster's size.
    #[must_use]
    pub fn view(&self) -> ClusterView {
        let nodes = self
            .node_index
            .values()
            .map(|at| &self.nodes[*at])
            .map(|node| {
                let allocatable = node
                    .offer
                    .as_ref()
                    .map(|offer| self.names.amounts(&offer.allocatable));
                let view = NodeView {
                    exists: node.offer.is_some(),
                    allocatable: allocatable.unwrap_or_default(),
                    used: self.names.amounts(&node.used),
                    pods: node.pods,
                    held: node.held.ids().map(|(id, _)| id.to_string()).collect(),
                    gpus: node.held.ids().map(|(id, n)| (id.to_string(), n)).collect(),
                };
                (node.name.to_string(), view)
            });
        let pods = self.pods.iter().map(|(key, pod)| {
            let node = pod.node.map(|at| &self.nodes[at]);
            let demand = self.classes.get(pod.class).take(node).demand;
            let view = PodView {
                node: pod.node.map(|at| self.nodes[at].name.to_string()),
                pending: pod.stage == PodStage::Pending,
                requests: self.names.listed(demand.0.iter().copied()),
                gpu_milli: demand.get(GPU),
                group: pod.gang.name.to_string(),
                devices: pod.devices.iter().map(|id| id.to_string()).collect(),
            };
            ((key.namespace.to_string(), key.name.to_string()), view)
        });
        ClusterView {
            nodes: nodes.collect(),
            pods: pods.collect(),
            queues: self.queue_views(),
        }
    }

    /// What each queue holds and which gangs wait in it. Costs the number of gangs.
    #[must_use]
    pub fn queue_views(&self) -> BTreeMap<String, QueueView> {
        let mut views: BTreeMap<String, QueueView> =
            self.queues.views(&self.names, &self.total, &self.used);
        for (key, gang) in self.gangs.iter().filter(|(_, gang)| gang.spec.is_some()) {
            let phase = crate::phase::phase(key, gang).as_str();
            if let Some(view) = views.get_mut(&gang.queue) {
                *view.phases.entry(phase).or_insert(0) += 1;
            }
        }
        views
    }

    /// True if there is a gang of this name: a PodGroup's, or that of a pod without one.
    #[must_use]
    pub fn knows(&self, namespace: &str, group: &str) -> bool {
        let gang = GangKey::group(namespace.into(), group);
        let pod = GangKey::lone(&PodKey::new(namespace, group));
        [gang, pod].iter().any(|key| self.gangs.get(key).is_some())
    }
}
