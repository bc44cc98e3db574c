//! From what agents and the board say to series, to the activity and the idle time of held GPUs, and to the time for
//! which pods are quiet. Pure but for the book's lock.

use std::collections::BTreeMap;

use fleet::NodeMeasurements;
use measurements::{
    ContainerSign, LatestUsage, Metric, PodSigns, PodUsed, QuietPods, Series, Subject, Used,
};
use portal::{ClusterCounts, SharedUsage};
use usage::{ActivityWatch, IdleGpus, PodUid};

/// The values of a node, its GPUs and its pods.
pub fn of_node(measured: &NodeMeasurements) -> Vec<(Series, f64)> {
    let (node, values) = (&measured.node, &measured.values);
    let mut all = Values::default();
    let subject = Subject::Node(node.clone());
    all.add(&subject, Metric::Cpu, values.cpu_millicores.map(cores));
    all.add(&subject, Metric::Memory, values.memory_bytes.map(bytes));
    for gpu in &values.gpus {
        let subject = Subject::Gpu {
            node: node.clone(),
            index: gpu.index,
        };
        all.add(&subject, Metric::Utilisation, gpu.utilisation);
        all.add(&subject, Metric::Memory, gpu.memory_bytes.map(bytes));
        all.add(&subject, Metric::Power, gpu.watts);
        all.add(&subject, Metric::Temperature, gpu.celsius);
    }
    for pod in &values.pods {
        let subject = Subject::Pod {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
        };
        all.add(&subject, Metric::Cpu, pod.cpu_millicores.map(cores));
        all.add(&subject, Metric::Memory, pod.memory_bytes.map(bytes));
        let held = values.gpus.iter().filter(|gpu| pod.gpus.contains(&gpu.id));
        let utilisation: Vec<f64> = held.clone().filter_map(|gpu| gpu.utilisation).collect();
        let mean = utilisation.iter().sum::<f64>() / utilisation.len() as f64;
        all.add(
            &subject,
            Metric::GpuUtilisation,
            (!utilisation.is_empty()).then_some(mean),
        );
        let memory: Vec<u64> = held.filter_map(|gpu| gpu.memory_bytes).collect();
        let sum = memory
            .iter()
            .fold(0u64, |sum, one| sum.saturating_add(*one));
        all.add(
            &subject,
            Metric::GpuMemory,
            (!memory.is_empty()).then(|| bytes(sum)),
        );
    }
    all.0
}

/// The values of the cluster, and the GPUs of each node.
pub fn of_cluster(counts: &ClusterCounts) -> Vec<(Series, f64)> {
    let mut all = Values::default();
    let mut add =
        |subject: &Subject, metric, count: usize| all.add(subject, metric, Some(count as f64));
    add(
        &Subject::Cluster,
        Metric::GpusAllocated,
        counts.gpus_allocated(),
    );
    add(&Subject::Cluster, Metric::Gpus, counts.gpus());
    add(&Subject::Cluster, Metric::JobsWaiting, counts.jobs_waiting);
    add(&Subject::Cluster, Metric::JobsRunning, counts.jobs_running);
    for node in &counts.nodes {
        let subject = Subject::Node(node.name.clone());
        add(&subject, Metric::GpusInUse, node.in_use);
        add(&subject, Metric::Gpus, node.gpus);
    }
    all.0
}

/// Takes in what a node and its pods used now.
pub fn keep_latest(measured: &NodeMeasurements, latest: &mut LatestUsage) {
    let values = &measured.values;
    let node = Used {
        cpu_millicores: values.cpu_millicores,
        memory_bytes: values.memory_bytes,
        gpus: BTreeMap::new(),
    };
    let pods = values.pods.iter().map(|pod| {
        let containers = pod.containers.iter().map(|container| {
            let mut gpus: BTreeMap<String, u64> = BTreeMap::new();
            for (id, resource) in &container.gpus {
                let mut all = values.gpus.iter();
                let gpu = all.find(|gpu| gpu.id == *id);
                if let Some(percent) = gpu.and_then(|gpu| gpu.utilisation) {
                    // A percentage is within 0 and 100.
                    *gpus.entry(resource.clone()).or_default() += (percent * 10.0).round() as u64;
                }
            }
            let used = Used {
                cpu_millicores: container.cpu_millicores,
                memory_bytes: container.memory_bytes,
                gpus,
            };
            (container.name.clone(), used)
        });
        let used = PodUsed {
            uid: pod.uid.clone(),
            containers: containers.collect(),
        };
        ((pod.namespace.clone(), pod.name.clone()), used)
    });
    latest.observe(&measured.node, measured.at, node, pods.collect());
}

/// Takes in whether the pods of a node wrote to their logs and worked.
pub fn keep_quiet(measured: &NodeMeasurements, quiet: &mut QuietPods) {
    let values = &measured.values;
    for pod in &values.pods {
        let containers = pod.containers.iter().map(|container| {
            let sign = ContainerSign {
                run: container.run,
                log_modified: container.log_modified_nanos,
                cpu_millicores: container.cpu_millicores,
            };
            (container.name.clone(), sign)
        });
        let gpus = pod.gpus.iter().map(|id| {
            let mut all = values.gpus.iter();
            let gpu = all.find(|gpu| gpu.id == *id);
            (id.clone(), gpu.and_then(|gpu| gpu.utilisation))
        });
        let signs = PodSigns {
            containers: containers.collect(),
            gpus: gpus.collect(),
        };
        quiet.observe(&pod.uid, measured.at, signs);
    }
}

/// Counts what the held GPUs did since the node's last message.
pub fn count_activity(
    measured: &NodeMeasurements,
    watch: &mut ActivityWatch,
    usage: &SharedUsage,
    idle: &mut IdleGpus,
) {
    for pod in measured
        .values
        .pods
        .iter()
        .filter(|pod| !pod.gpus.is_empty())
    {
        let gpus = measured.values.gpus.iter();
        let held = gpus.filter(|gpu| pod.gpus.contains(&gpu.id));
        let utilisation: BTreeMap<String, f64> = held
            .filter_map(|gpu| Some((gpu.id.clone(), gpu.utilisation?)))
            .collect();
        let uid = PodUid(pod.uid.clone());
        let seen = watch.observe(&uid, measured.at, &utilisation);
        idle.observe(&uid, pod.gpus.len(), seen.as_ref());
        if let Some(seen) = seen {
            usage.lock().measure(&uid, seen);
        }
    }
}

#[derive(Default)]
struct Values(Vec<(Series, f64)>);

impl Values {
    fn add(&mut self, subject: &Subject, metric: Metric, value: Option<f64>) {
        if let Some(value) = value {
            self.0.push((subject.series(metric), value));
        }
    }
}

fn cores(milli: u64) -> f64 {
    milli as f64 / 1000.0
}

fn bytes(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use resources::hang::Quietness;
    use rpc::agent::v1::{ContainerMeasurement, GpuMeasurement, Measurements, PodMeasurement};

    use super::*;

    #[test]
    fn a_pod_whose_log_and_gpu_stand_still_is_quiet() {
        let message = |second: i64, log: i64, utilisation: f64| {
            let gpu = GpuMeasurement {
                id: "a".to_owned(),
                utilisation: Some(utilisation),
                ..GpuMeasurement::default()
            };
            let container = ContainerMeasurement {
                name: "main".to_owned(),
                log_modified_nanos: Some(log),
                ..ContainerMeasurement::default()
            };
            let pod = PodMeasurement {
                uid: "u".to_owned(),
                gpus: vec!["a".to_owned()],
                containers: vec![container],
                ..PodMeasurement::default()
            };
            NodeMeasurements {
                node: "n1".to_owned(),
                at: at(second),
                values: Measurements {
                    gpus: vec![gpu],
                    pods: vec![pod],
                    ..Measurements::default()
                },
            }
        };
        let mut quiet = QuietPods::default();
        let mut see = |second: i64, log: i64, utilisation: f64| {
            keep_quiet(&message(second, log, utilisation), &mut quiet);
            quiet.of([("u", 1)], at(second))
        };
        assert_eq!(see(0, 1, 0.0), Quietness::Unknown);
        assert_eq!(see(15, 1, 0.0), Quietness::Since(at(0)));
        for second in [30, 45, 60, 75] {
            assert_eq!(see(second, 2, 0.0), Quietness::Works);
        }
        assert_eq!(see(90, 2, 0.0), Quietness::Since(at(30)));
        assert_eq!(see(105, 2, 90.0), Quietness::Works);
    }

    fn at(second: i64) -> jiff::Timestamp {
        jiff::Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(second)
    }

    #[test]
    fn a_message_becomes_series_and_what_is_absent_has_none() {
        let gpu = |id: &str, index: u32, utilisation: Option<f64>| GpuMeasurement {
            id: id.to_owned(),
            index,
            utilisation,
            memory_bytes: Some(1 << 30),
            ..GpuMeasurement::default()
        };
        let measured = NodeMeasurements {
            node: "n1".to_owned(),
            at: jiff::Timestamp::UNIX_EPOCH,
            values: Measurements {
                cpu_millicores: Some(1500),
                gpus: vec![
                    gpu("a", 0, Some(90.0)),
                    gpu("b", 1, Some(10.0)),
                    gpu("c", 2, None),
                ],
                pods: vec![PodMeasurement {
                    namespace: "team".to_owned(),
                    name: "p".to_owned(),
                    gpus: vec!["a".to_owned(), "b".to_owned(), "c".to_owned()],
                    ..PodMeasurement::default()
                }],
                ..Measurements::default()
            },
        };
        let all = of_node(&measured).into_iter();
        let all: BTreeMap<String, f64> = all.map(|(series, of)| (series.to_string(), of)).collect();
        assert_eq!(all["node/n1/cpu"], 1.5);
        assert_eq!(all["gpu/n1/0/utilisation"], 90.0);
        assert_eq!(all["pod/team/p/gpu-utilisation"], 50.0);
        assert_eq!(all["pod/team/p/gpu-memory"], f64::from(3u32 << 30));
        for absent in ["node/n1/memory", "gpu/n1/2/utilisation", "pod/team/p/cpu"] {
            assert!(!all.contains_key(absent), "{absent}");
        }
    }
}
