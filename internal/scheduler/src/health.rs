//! A node's health and load beyond readiness: suspicion, spares, heat, power, failed RDMA, and GPU
//! use by processes unknown to the scheduler. Turns them into a penalty; only spares and failed
//! RDMA make a node infeasible, the latter only for gangs that need it. Tests: `tests/health.rs`.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as k8s;
use resources::load::NodeLoad;
use resources::names::{FABRIC_FAILED, IDLE_WATTS, LOAD, SPARE, SUSPECT};

/// The penalty of a suspect node: taken after all others, but before nodes with avoided taints.
const SUSPICION: i64 = 700_000;
/// The penalty of a GPU that is strained or used by an unknown process: half a point of preferred
/// affinity.
const STRAINED_GPU: i64 = 5;
/// Waking a node costs one point for this many watts of idle power.
const WATTS_A_POINT: i64 = 100;
/// The largest penalty for waking a node.
const WAKING_MAX: i64 = 50;

/// The last reported load of a node's GPUs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReportedLoad {
    pub(crate) at: Timestamp,
    strained: i64,
    busy: Vec<String>,
}

/// A node's health and load.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodeHealth {
    pub(crate) suspect: bool,
    pub(crate) spare: bool,
    pub(crate) fabric_failed: bool,
    waking: i64,
    pub(crate) load: Option<ReportedLoad>,
}

impl NodeHealth {
    pub(crate) fn read(node: &k8s::Node) -> NodeHealth {
        let label = |name: &str| node.metadata.labels.as_ref().and_then(|all| all.get(name));
        let conditions = node.status.iter();
        let conditions = conditions.flat_map(|s| s.conditions.iter().flatten());
        let says = |name: &str| {
            let mut all = conditions.clone();
            all.any(|c| c.type_ == name && c.status == "True")
        };
        let watts = label(IDLE_WATTS).and_then(|text| text.parse::<i64>().ok());
        let annotations = node.metadata.annotations.as_ref();
        NodeHealth {
            suspect: says(SUSPECT),
            fabric_failed: says(FABRIC_FAILED),
            spare: label(SPARE).is_some_and(|value| value == "true"),
            waking: watts.map_or(0, |watts| (watts / WATTS_A_POINT).clamp(0, WAKING_MAX)),
            load: annotations
                .and_then(|all| all.get(LOAD))
                .and_then(|text| serde_json::from_str::<NodeLoad>(text).ok())
                .map(|report| ReportedLoad::of(&report)),
        }
    }

    pub(crate) fn but_for_load(&self, other: &NodeHealth) -> bool {
        let known = |it: &NodeHealth| (it.suspect, it.spare, it.fabric_failed, it.waking);
        known(self) == known(other)
    }

    /// The time at which the reported load becomes too old.
    pub(crate) fn stale_at(&self, age: SignedDuration) -> Option<Timestamp> {
        let at = self.load.as_ref()?.at;
        Some(at.saturating_add(age).unwrap_or(Timestamp::MAX))
    }

    /// True if unknown processes use its GPUs, given that no known pod holds any.
    pub(crate) fn has_unknown_work(&self) -> bool {
        self.load.as_ref().is_some_and(|load| !load.busy.is_empty())
    }

    /// The node's penalty for every class, whatever runs there.
    pub(crate) fn suspicion_penalty(&self) -> i64 {
        if self.suspect { SUSPICION } else { 0 }
    }

    /// The node's penalty for classes with GPUs, given what is held there. Packing leaves empty
    /// nodes empty; if one must be woken, it is one with low idle power.
    pub(crate) fn strain(&self, empty: bool, holds: impl Fn(&str) -> bool) -> i64 {
        let waking = if empty { self.waking } else { 0 };
        let Some(load) = &self.load else {
            return waking;
        };
        let secret = load.busy.iter().filter(|id| !holds(id)).count() as i64;
        waking + (load.strained + secret) * STRAINED_GPU
    }
}

impl ReportedLoad {
    fn of(report: &NodeLoad) -> ReportedLoad {
        let busy = report.gpus.iter().filter(|(_, gpu)| gpu.busy());
        ReportedLoad {
            at: report.at,
            strained: report.gpus.values().filter(|gpu| gpu.strained()).count() as i64,
            busy: busy.map(|(id, _)| id.clone()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(load: &str) -> k8s::Node {
        let mut node = k8s::Node::default();
        node.metadata.annotations = Some([(LOAD.to_owned(), load.to_owned())].into());
        node
    }

    #[test]
    fn heat_power_and_work_of_others_count_for_each_gpu() {
        let table = [
            (r#"{"celsius": 85}"#, 5),
            (r#"{"celsius": 84, "watts": 600, "wattsLimit": 700}"#, 0),
            (r#"{"watts": 666, "wattsLimit": 700}"#, 5),
            (r#"{"utilisation": 20}"#, 5),
            (r#"{"utilisation": 3, "memory": 0.05}"#, 0),
            (r#"{"memory": 0.5, "celsius": 90}"#, 10),
            (r#"{}"#, 0),
        ];
        for (gpu, want) in table {
            let text = format!(r#"{{"at": "2026-01-01T00:00:00Z", "gpus": {{"GPU-0": {gpu}}}}}"#);
            let health = NodeHealth::read(&node(&text));
            assert_eq!(health.strain(false, |_| false), want, "{gpu}");
        }
    }

    #[test]
    fn work_on_a_gpu_that_a_pod_holds_is_no_secret() {
        let text = r#"{"at": "2026-01-01T00:00:00Z", "gpus": {"GPU-0": {"utilisation": 99}}}"#;
        let health = NodeHealth::read(&node(text));
        assert_eq!(health.strain(false, |id| id == "GPU-0"), 0);
    }

    #[test]
    fn a_load_that_cannot_be_read_is_not_known() {
        for text in ["", "{}", "[1]", r#"{"at": "yesterday"}"#] {
            assert_eq!(NodeHealth::read(&node(text)).load, None, "{text}");
        }
    }
}
