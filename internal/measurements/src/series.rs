//! What is measured: a subject (the cluster, a node, a GPU, a pod) and one of its metrics. The text form of a series is its
//! name in questions and in files.

use std::fmt;
use std::str::FromStr;

/// The longest name of a series, in bytes: kind, two names of at most 253 bytes, and the metric.
const NAME_MAX: usize = 560;

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// All nodes and jobs.
    Cluster,
    /// A node, by its name.
    Node(String),
    /// A GPU, by its node and its index there.
    Gpu {
        /// The node.
        node: String,
        /// The index.
        index: u32,
    },
    /// A pod, by namespace and name. Pods that bear one name after another share its series.
    Pod {
        /// The namespace.
        namespace: String,
        /// The name.
        pod: String,
    },
}

/// What of the subject is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// Cluster: GPUs that pods hold.
    GpusAllocated,
    /// Cluster and node: healthy GPUs that are there.
    Gpus,
    /// Cluster: jobs that wait for room.
    JobsWaiting,
    /// Cluster: jobs with running pods.
    JobsRunning,
    /// Node: GPUs that pods hold.
    GpusInUse,
    /// Node and pod: CPU time used per second, in cores.
    Cpu,
    /// Node, GPU and pod: memory in use, in bytes.
    Memory,
    /// GPU: utilisation as the driver reports it, in percent.
    Utilisation,
    /// GPU: power drawn, in watts.
    Power,
    /// GPU: temperature, in degrees Celsius.
    Temperature,
    /// Pod: mean utilisation of the GPUs that it holds alone, in percent.
    GpuUtilisation,
    /// Pod: memory in use of the GPUs that it holds alone, in bytes.
    GpuMemory,
}

/// The unit of a metric's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// GPUs.
    Gpus,
    /// Jobs.
    Jobs,
    /// Cores.
    Cores,
    /// Bytes.
    Bytes,
    /// Percent.
    Percent,
    /// Watts.
    Watts,
    /// Degrees Celsius.
    Celsius,
}

impl Metric {
    /// All metrics with their names.
    const NAMES: [(Metric, &'static str); 12] = [
        (Metric::GpusAllocated, "gpus-allocated"),
        (Metric::Gpus, "gpus"),
        (Metric::JobsWaiting, "jobs-waiting"),
        (Metric::JobsRunning, "jobs-running"),
        (Metric::GpusInUse, "gpus-in-use"),
        (Metric::Cpu, "cpu"),
        (Metric::Memory, "memory"),
        (Metric::Utilisation, "utilisation"),
        (Metric::Power, "power"),
        (Metric::Temperature, "temperature"),
        (Metric::GpuUtilisation, "gpu-utilisation"),
        (Metric::GpuMemory, "gpu-memory"),
    ];

    /// The name.
    pub fn name(self) -> &'static str {
        let mut names = Metric::NAMES.iter();
        let named = names.find(|(metric, _)| *metric == self);
        named.map_or("", |(_, name)| name)
    }

    /// The unit of its values.
    pub fn unit(self) -> Unit {
        match self {
            Metric::GpusAllocated | Metric::Gpus | Metric::GpusInUse => Unit::Gpus,
            Metric::JobsWaiting | Metric::JobsRunning => Unit::Jobs,
            Metric::Cpu => Unit::Cores,
            Metric::Memory | Metric::GpuMemory => Unit::Bytes,
            Metric::Utilisation | Metric::GpuUtilisation => Unit::Percent,
            Metric::Power => Unit::Watts,
            Metric::Temperature => Unit::Celsius,
        }
    }

    fn named(name: &str) -> Option<Metric> {
        let mut names = Metric::NAMES.iter();
        Some(names.find(|(_, known)| *known == name)?.0)
    }
}

impl Subject {
    /// The metrics that there are of it.
    pub fn metrics(&self) -> &'static [Metric] {
        match self {
            Subject::Cluster => &[
                Metric::GpusAllocated,
                Metric::Gpus,
                Metric::JobsWaiting,
                Metric::JobsRunning,
            ],
            Subject::Node(_) => &[Metric::Cpu, Metric::Memory, Metric::GpusInUse, Metric::Gpus],
            Subject::Gpu { .. } => &[
                Metric::Utilisation,
                Metric::Memory,
                Metric::Power,
                Metric::Temperature,
            ],
            Subject::Pod { .. } => &[
                Metric::Cpu,
                Metric::Memory,
                Metric::GpuUtilisation,
                Metric::GpuMemory,
            ],
        }
    }

    /// One of its series.
    pub fn series(&self, metric: Metric) -> Series {
        Series {
            subject: self.clone(),
            metric,
        }
    }
}

/// One metric of one subject.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Series {
    /// Of what.
    pub subject: Subject,
    /// What.
    pub metric: Metric,
}

/// Why a text names no series.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "series: {name:?} names no series; write cluster/METRIC, node/NODE/METRIC, gpu/NODE/INDEX/METRIC or \
     pod/NAMESPACE/POD/METRIC, for instance gpu/n1/0/utilisation{hint}"
)]
pub struct SeriesError {
    name: String,
    hint: String,
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.subject {
            Subject::Cluster => write!(f, "cluster/")?,
            Subject::Node(node) => write!(f, "node/{node}/")?,
            Subject::Gpu { node, index } => write!(f, "gpu/{node}/{index}/")?,
            Subject::Pod { namespace, pod } => write!(f, "pod/{namespace}/{pod}/")?,
        }
        f.write_str(self.metric.name())
    }
}

impl FromStr for Series {
    type Err = SeriesError;

    fn from_str(text: &str) -> Result<Series, SeriesError> {
        let wrong = |hint: String| SeriesError {
            name: text.chars().take(NAME_MAX).collect(),
            hint,
        };
        let parts: Vec<&str> = text.split('/').collect();
        let named = |name: &str| !name.is_empty() && !name.contains(|c: char| c.is_control());
        if text.len() > NAME_MAX || !parts.iter().all(|part| named(part)) {
            return Err(wrong(String::new()));
        }
        let (subject, metric) = match *parts.as_slice() {
            ["cluster", metric] => (Subject::Cluster, metric),
            ["node", node, metric] => (Subject::Node(node.to_owned()), metric),
            ["gpu", node, index, metric] => {
                let index = index.parse().map_err(|_| wrong(String::new()))?;
                let node = node.to_owned();
                (Subject::Gpu { node, index }, metric)
            }
            ["pod", namespace, pod, metric] => {
                let (namespace, pod) = (namespace.to_owned(), pod.to_owned());
                (Subject::Pod { namespace, pod }, metric)
            }
            _ => return Err(wrong(String::new())),
        };
        let known = Metric::named(metric).filter(|one| subject.metrics().contains(one));
        let metric = known.ok_or_else(|| {
            let names: Vec<&str> = subject.metrics().iter().map(|one| one.name()).collect();
            wrong(format!("; METRIC is one of {} there", names.join(", ")))
        })?;
        Ok(Series { subject, metric })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_series_has_a_name_by_which_it_is_found_again() {
        let subjects = [
            Subject::Cluster,
            Subject::Node("n1".to_owned()),
            Subject::Gpu {
                node: "n1".to_owned(),
                index: 7,
            },
            Subject::Pod {
                namespace: "team".to_owned(),
                pod: "train-worker-0".to_owned(),
            },
        ];
        for subject in subjects {
            for metric in subject.metrics() {
                let series = subject.series(*metric);
                assert_eq!(series.to_string().parse(), Ok(series));
            }
        }
        let name = "gpu/n1/7/utilisation";
        assert_eq!(name.parse::<Series>().unwrap().to_string(), name);
    }

    #[test]
    fn a_name_of_no_series_is_refused_with_the_metrics_that_there_are() {
        for name in [
            "",
            "node",
            "node/n1",
            "node//cpu",
            "gpu/n1/x/power",
            "disk/n1/cpu",
            "node/n\n1/cpu",
        ] {
            let error = name.parse::<Series>().unwrap_err().to_string();
            assert!(error.starts_with("series: "), "{error}");
            assert!(error.contains("gpu/NODE/INDEX/METRIC"), "{error}");
        }
        let error = "node/n1/power".parse::<Series>().unwrap_err().to_string();
        assert!(
            error.ends_with("METRIC is one of cpu, memory, gpus-in-use, gpus there"),
            "{error}"
        );
        assert!("x".repeat(5000).parse::<Series>().is_err());
    }
}
