//! The one place that knows the scheduler's API: manifests in, decisions out as plain words.
//! Judges nothing.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use resources::kinds::{PodGroup, Queue};
use scheduler::{
    Actions, Config, Event, GpuOrder, PlacementStrategy, Plan, ReservationKind, Scheduler,
};
use serde_json::Value;

pub use crate::asked::{Action, Decisions, Evicted, Placed, Placing, Settings};

/// The scheduler under test.
pub struct Engine(Scheduler);

impl Engine {
    pub fn new(settings: &Settings) -> Engine {
        Engine(Scheduler::new(config(settings)))
    }

    /// Tells of an object as it is now.
    pub fn notify(&mut self, object: &Value) {
        self.0.apply(event(object));
    }

    /// Tells that a pod is gone.
    pub fn pod_gone(&mut self, namespace: &str, name: &str) {
        self.0
            .apply(Event::PodGone(namespace.to_owned(), name.to_owned()));
    }

    pub fn plan(&mut self, now: Timestamp) -> Decisions {
        decisions(self.0.plan(now))
    }
}

fn event(object: &Value) -> Event {
    fn read<T: serde::de::DeserializeOwned>(object: &Value) -> Box<T> {
        Box::new(
            serde_json::from_value(object.clone())
                .unwrap_or_else(|error| panic!("{error} in {object}")),
        )
    }
    match object["kind"].as_str().unwrap_or_default() {
        "Node" => Event::NodeChanged(read::<Node>(object)),
        "Pod" => Event::PodChanged(read::<Pod>(object)),
        "PodGroup" => Event::PodGroupChanged(read::<PodGroup>(object)),
        "Queue" => Event::QueueChanged(read::<Queue>(object)),
        "PriorityClass" => Event::PriorityClassChanged(read::<PriorityClass>(object)),
        other => panic!("no such kind: {other}"),
    }
}

fn config(settings: &Settings) -> Config {
    let mut config = Config::default();
    if !settings.actions.is_empty() {
        let has = |action| settings.actions.contains(&action);
        config.actions = Actions {
            allocate: has(Action::Allocate),
            consolidate: has(Action::Consolidate),
            reclaim: has(Action::Reclaim),
            preempt: has(Action::Preempt),
            backfill: false,
            defragment: false,
        };
    }
    if settings.spread_gpus {
        config.gpus = GpuOrder::Spread;
    }
    config.stale_after = jiff::SignedDuration::ZERO;
    config.topology.clone_from(&settings.topology);
    if settings.placing == Placing::Spread {
        config.placement = PlacementStrategy::Spread;
    }
    config
}

fn decisions(plan: Plan) -> Decisions {
    let binds = plan.binds.iter().map(|bind| Placed {
        pod: bind.pod.name.clone(),
        node: bind.node.clone(),
        devices: devices(&bind.devices),
    });
    let waits = plan
        .reports
        .iter()
        .map(|report| (report.group.clone(), report.sentence()));
    let evictions = plan.evictions.iter().map(|eviction| Evicted {
        pod: eviction.pod.name.clone(),
        why: format!("{:?}", eviction.why),
    });
    let nominated = plan
        .reservations
        .iter()
        .filter(|held| held.kind == ReservationKind::Nominated)
        .flat_map(|held| held.pods.iter().zip(&held.devices))
        .map(|((pod, node), chosen)| Placed {
            pod: pod.name.clone(),
            node: node.clone(),
            devices: devices(chosen),
        });
    Decisions {
        binds: binds.collect(),
        evictions: evictions.collect(),
        nominated: nominated.collect(),
        waits: waits.collect(),
    }
}

fn devices(chosen: &resources::devices::ChosenDevices) -> String {
    if chosen.is_empty() {
        return String::new();
    }
    serde_json::to_string(chosen).unwrap_or_default()
}
