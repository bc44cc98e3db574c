//! The scheduler under the benchmark's rules: nodes and pods are the objects that an API would show
//! it, each arrival is an event and a plan, and a pod that does not fit is withdrawn. This module
//! makes no placement decision.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as k8s;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use resources::names::DEFAULT_QUEUE;
use scheduler::fragment::{ANY_MODEL, NodeRoom, PodDemand, WHOLE};
use scheduler::{Actions, Bind, Config, Event, Scheduler};

use super::data::{OpenbCluster, OpenbPod, counts};
use super::policy::{OpenbPlacement, PlacementPolicy};
use crate::scenario::{Job, PodShape};
use crate::shape::{self, NodeFigures};

/// The namespace of the pods.
const NAMESPACE: &str = "default";

/// The pod limit of a node of the benchmark.
const PODS: &str = "1001";

/// The scheduler as it ships with its defaults, except that evictions are off: the protocol has
/// none.
pub struct Production {
    scheduler: Scheduler,
    /// Nodes by the scheduler's names for them.
    nodes: BTreeMap<String, usize>,
    models: Vec<String>,
    arrived: i64,
}

impl Production {
    /// For empty nodes. Nodes are named by their rank, so that a scheduler that breaks ties by name
    /// follows the protocol. `expected` are the pods that the scheduler is to expect, with how many
    /// of each kind; if it is empty, the scheduler knows only the pods that arrived.
    #[must_use]
    pub fn new(cluster: &OpenbCluster, rank: &[u32], expected: &[OpenbPod]) -> Production {
        let expected = counts(expected).into_iter();
        let mut scheduler = Scheduler::new(Config {
            actions: Actions {
                consolidate: false,
                reclaim: false,
                preempt: false,
                ..Actions::default()
            },
            expected: expected
                .map(|(demand, count)| (pod(&demand, &cluster.models), count))
                .collect(),
            ..Config::default()
        });
        let mut nodes = BTreeMap::new();
        for (at, (shape, rank)) in cluster.shapes.iter().zip(rank).enumerate() {
            let name = format!("node-{rank:05}");
            let figures = NodeFigures {
                cpu_milli: i64::from(shape.cpu),
                memory_mib: i64::from(shape.mem),
                gpus: i64::from(shape.gpus),
                model: model_of(&cluster.models, usize::from(shape.model)),
                gpu_memory_mib: 0,
            };
            let mut node = shape::node(&name, &figures);
            if let Some(status) = &mut node.status {
                for amounts in [&mut status.allocatable, &mut status.capacity] {
                    let amounts = amounts.get_or_insert_default();
                    amounts.insert("pods".to_owned(), Quantity(PODS.to_owned()));
                }
            }
            scheduler.apply(Event::NodeChanged(Box::new(node)));
            nodes.insert(name, at);
        }
        Production {
            scheduler,
            nodes,
            models: cluster.models.clone(),
            arrived: 0,
        }
    }

    /// The node and GPUs of a bind.
    fn choice(&self, bind: &Bind) -> Option<OpenbPlacement> {
        let ids = bind.devices.values().flat_map(BTreeMap::values).flatten();
        let mut mask = 0u16;
        for id in ids {
            // Ids end in the GPU's index: see `shape::node`.
            let index: u32 = id.rsplit('-').next()?.parse().ok()?;
            mask |= 1u16.checked_shl(index)?;
        }
        Some(OpenbPlacement {
            node: *self.nodes.get(&bind.node)?,
            mask,
        })
    }
}

impl PlacementPolicy for Production {
    fn choose(
        &mut self,
        _nodes: &[NodeRoom],
        _rank: &[u32],
        demand: &PodDemand,
    ) -> Option<OpenbPlacement> {
        let now = Timestamp::from_second(self.arrived).ok()?;
        self.arrived += 1;
        let name = format!("pod-{:06}", self.arrived);
        let mut pod = pod(demand, &self.models);
        pod.metadata.name = Some(name.clone());
        pod.metadata.uid = Some(name.clone());
        pod.metadata.creation_timestamp = Some(Time(now));
        self.scheduler.apply(Event::PodChanged(Box::new(pod)));
        let plan = self.scheduler.plan(now);
        let bind = plan.binds.iter().find(|bind| bind.pod.name == name);
        if bind.is_none() {
            let gone = Event::PodGone(NAMESPACE.to_owned(), name);
            self.scheduler.apply(gone);
        }
        self.choice(bind?)
    }
}

/// An unnamed pod with these requests.
fn pod(demand: &PodDemand, models: &[String]) -> k8s::Pod {
    let job = Job {
        namespace: NAMESPACE.to_owned(),
        queue: DEFAULT_QUEUE.to_owned(),
        ..Job::default()
    };
    shape::pod(&requests_of(demand, models), &job, None)
}

/// A pod's requests, in the form of traces.
fn requests_of(demand: &PodDemand, models: &[String]) -> PodShape {
    let named = models.iter().enumerate();
    let admissible = named.filter(|(bit, _)| demand.models >> bit & 1 == 1);
    PodShape {
        cpu_milli: i64::from(demand.cpu),
        memory_mib: i64::from(demand.mem),
        gpus: i64::from(demand.gpus),
        gpu_milli: if demand.is_share() && demand.milli < WHOLE {
            i64::from(demand.milli)
        } else {
            0
        },
        models: if demand.gpus == 0 || demand.models == ANY_MODEL {
            Vec::new()
        } else {
            let names: Vec<String> = admissible.map(|(_, name)| name.clone()).collect();
            // An empty list would mean any model.
            if names.is_empty() {
                vec!["none".to_owned()]
            } else {
                names
            }
        },
    }
}

fn model_of(models: &[String], bit: usize) -> String {
    models.get(bit).cloned().unwrap_or_default()
}
