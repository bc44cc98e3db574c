//! What agents measure, on its way to the history that keeps it: within bounds, and only about the node's own pods. It keeps
//! nothing itself.

use std::collections::BTreeSet;

use jiff::Timestamp;
use rpc::agent::v1::{GpuMeasurement, Measurements, PodMeasurement};
use tokio::sync::mpsc;

use crate::index::Index;
use crate::pod_fields::node_of;

/// The most GPUs and the most pods of one message, and what a pod may have at most; the rest is dropped.
const GPUS_MAX: usize = 256;
const PODS_MAX: usize = 2048;
/// The most containers of a pod.
const CONTAINERS_MAX: usize = 64;

/// What a node measured.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeMeasurements {
    /// The node's name.
    pub node: String,
    /// When the message arrived, by the server's clock: agents' clocks differ.
    pub at: Timestamp,
    /// The values. Pods are bound to the node, numbers are finite and not negative.
    pub values: Measurements,
}

/// Where measurements go.
pub type MeasurementSink = mpsc::Sender<NodeMeasurements>;

/// Hands a message on. It is dropped if the receiver is behind: a session waits for no history.
pub fn hand_on(sink: Option<&MeasurementSink>, index: &Index, node: &str, measured: Measurements) {
    let Some(sink) = sink else { return };
    let of_node = NodeMeasurements {
        node: node.to_owned(),
        at: Timestamp::now(),
        values: validated(measured, |pod| {
            let found = index.pod(&pod.namespace, &pod.name);
            found.is_some_and(|found| {
                found.metadata.uid.as_deref() == Some(pod.uid.as_str())
                    && node_of(&found) == Some(node)
            })
        }),
    };
    if sink.try_send(of_node).is_err() {
        tracing::debug!(
            node,
            "the server drops measurements: their receiver is behind"
        );
    }
}

/// The message without what no node may say.
fn validated(mut measured: Measurements, own: impl Fn(&PodMeasurement) -> bool) -> Measurements {
    measured.gpus.truncate(GPUS_MAX);
    measured.pods.truncate(PODS_MAX);
    measured.pods.retain(own);
    let usual = |value: Option<f64>| value.filter(|value| value.is_finite() && *value >= 0.0);
    let gpu = |gpu: &mut GpuMeasurement| {
        gpu.utilisation = usual(gpu.utilisation).filter(|percent| *percent <= 100.0);
        gpu.watts = usual(gpu.watts);
        gpu.celsius = usual(gpu.celsius);
    };
    measured.gpus.iter_mut().for_each(gpu);
    for pod in &mut measured.pods {
        pod.gpus.truncate(GPUS_MAX);
        pod.containers.truncate(CONTAINERS_MAX);
        let ids: BTreeSet<&String> = pod.gpus.iter().collect();
        for container in &mut pod.containers {
            // So a container's GPUs are bounded as the pod's are.
            container.gpus.retain(|id, _| ids.contains(id));
        }
    }
    measured
}

#[cfg(test)]
mod tests {
    use rpc::agent::v1::ContainerMeasurement;

    use super::*;

    #[test]
    fn foreign_pods_and_impossible_numbers_are_left_out() {
        let gpu = |utilisation: f64| GpuMeasurement {
            utilisation: Some(utilisation),
            watts: Some(-1.0),
            celsius: Some(40.0),
            ..GpuMeasurement::default()
        };
        let gpus = ["", "of another pod"].map(|id| (id.to_owned(), "nvidia.com/gpu".to_owned()));
        let container = ContainerMeasurement {
            gpus: gpus.into_iter().collect(),
            ..ContainerMeasurement::default()
        };
        let pod = |name: &str| PodMeasurement {
            name: name.to_owned(),
            gpus: vec![String::new(); GPUS_MAX + 1],
            containers: vec![container.clone(); CONTAINERS_MAX + 1],
            ..PodMeasurement::default()
        };
        let measured = Measurements {
            gpus: vec![gpu(50.0), gpu(f64::NAN), gpu(101.0)],
            pods: vec![pod("own"), pod("foreign")],
            ..Measurements::default()
        };
        let found = validated(measured, |pod| pod.name == "own");
        let shown: Vec<_> = found.gpus.iter().map(|gpu| gpu.utilisation).collect();
        assert_eq!(shown, [Some(50.0), None, None]);
        assert_eq!(
            (found.gpus[0].watts, found.gpus[0].celsius),
            (None, Some(40.0))
        );
        assert_eq!((found.pods.len(), found.pods[0].gpus.len()), (1, GPUS_MAX));
        let containers = &found.pods[0].containers;
        assert_eq!(
            (containers.len(), containers[0].gpus.len()),
            (CONTAINERS_MAX, 1)
        );
        let many = Measurements {
            gpus: vec![gpu(1.0); GPUS_MAX + 1],
            ..Measurements::default()
        };
        assert_eq!(validated(many, |_| true).gpus.len(), GPUS_MAX);
    }
}
