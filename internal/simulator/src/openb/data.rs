//! Reads the benchmark's files (nodes, pods, arrival lists, ranks of nodes) and derives the pod
//! classes that FGD expects. The benchmark's own description defines the columns.

use std::collections::BTreeMap;

use scheduler::fragment::{ANY_MODEL, Mix, NodeShape, PodDemand, WHOLE};

use crate::error::SimulatorError;
use crate::read::table::InputTable;

/// The pod lists.
pub const VARIANTS: [&str; 17] = [
    "default",
    "cpu050",
    "cpu100",
    "cpu200",
    "cpu250",
    "gpushare40",
    "gpushare60",
    "gpushare80",
    "gpushare100",
    "gpuspec10",
    "gpuspec20",
    "gpuspec25",
    "gpuspec33",
    "multigpu20",
    "multigpu30",
    "multigpu40",
    "multigpu50",
];

/// The fraction of the pods that the classes expected by FGD must hold.
const TYPICAL: f64 = 0.95;

/// One pod of a list.
#[derive(Clone, Debug)]
pub struct OpenbPod {
    /// Name in the trace.
    pub name: String,
    /// Its requests.
    pub demand: PodDemand,
    /// Admissible GPU models as written in the file, empty for any.
    pub models: String,
}

/// The nodes.
#[derive(Clone, Debug, Default)]
pub struct OpenbCluster {
    /// The capacity of each node, in the order of the file.
    pub shapes: Vec<NodeShape>,
    /// Their names.
    pub names: Vec<String>,
    /// GPU models by bit number.
    pub models: Vec<String>,
}

/// One run's input.
#[derive(Clone, Debug)]
pub struct Arrivals {
    /// Indices into the pod list in order of arrival.
    pub rows: Vec<usize>,
    /// Rank of each node; among nodes of equal score the lowest wins.
    pub rank: Vec<u32>,
}

impl OpenbCluster {
    /// Reads the node list.
    ///
    /// # Errors
    /// An empty file, a line with more or fewer values than the header, a missing column, or a value that
    /// is no number.
    pub fn read(file: &str, text: &str) -> Result<OpenbCluster, SimulatorError> {
        let table = InputTable::of_commas(file, text)?;
        let (name, cpu) = (table.named("sn")?, table.named("cpu_milli")?);
        let (mem, gpu) = (table.named("memory_mib")?, table.named("gpu")?);
        let model = table.named("model")?;
        let mut out = OpenbCluster::default();
        for row in table.rows() {
            let word = row.text(model);
            let known = out.models.iter().position(|m| m == word);
            let bit = known.unwrap_or_else(|| {
                out.models.push(word.to_owned());
                out.models.len() - 1
            });
            out.shapes.push(NodeShape {
                cpu: row.number(cpu)?,
                mem: row.number(mem)?,
                gpus: row.number(gpu)?,
                model: bit as u8,
            });
            out.names.push(row.text(name).to_owned());
        }
        Ok(out)
    }

    /// All GPUs, in 1/1000 GPU.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        let gpus = self.shapes.iter().map(|shape| u64::from(shape.gpus));
        gpus.sum::<u64>() * u64::from(WHOLE)
    }
}

/// Reads a pod list, in the order of the file.
///
/// # Errors
/// An empty file, a line with more or fewer values than the header, a missing column, or a value that
/// is no number.
pub fn read_pods(
    file: &str,
    text: &str,
    cluster: &OpenbCluster,
) -> Result<Vec<OpenbPod>, SimulatorError> {
    let table = InputTable::of_commas(file, text)?;
    let (name, cpu) = (table.named("name")?, table.named("cpu_milli")?);
    let (mem, gpus) = (table.named("memory_mib")?, table.named("num_gpu")?);
    let (milli, spec) = (table.named("gpu_milli")?, table.named("gpu_spec").ok());
    let bit = |word: &str| {
        let known = cluster.models.iter().position(|m| m == word);
        known.map_or(0, |bit| 1u64 << bit)
    };
    let mut out = Vec::new();
    for row in table.rows() {
        let spec = spec.map(|column| row.text(column)).unwrap_or_default();
        let models = if spec.is_empty() {
            ANY_MODEL
        } else {
            spec.split('|').map(bit).fold(0, |all, one| all | one)
        };
        let gpus: u8 = row.number(gpus)?;
        let demand = PodDemand {
            cpu: row.number(cpu)?,
            mem: row.number(mem)?,
            gpus,
            milli: if gpus == 0 { 0 } else { row.number(milli)? },
            models,
        };
        out.push(OpenbPod {
            name: row.text(name).to_owned(),
            demand,
            models: spec.to_owned(),
        });
    }
    Ok(out)
}

/// The classes that FGD expects: the most popular that hold 95 % of the pods, without memory.
#[must_use]
pub fn typical(pods: &[OpenbPod]) -> Mix {
    let mut count: BTreeMap<(u32, u16, u8, &str), (u64, u64)> = BTreeMap::new();
    for pod in pods {
        let d = &pod.demand;
        let key = (d.cpu, d.milli, d.gpus, pod.models.as_str());
        count.entry(key).or_insert((0, d.models)).0 += 1;
    }
    let mut list: Vec<_> = count.into_iter().map(|(k, (n, m))| (n, k, m)).collect();
    list.sort_by(|a, b| (b.0, b.1).cmp(&(a.0, a.1)));
    let total = pods.len() as f64;
    let mut kept = 0u64;
    let mut classes = Vec::new();
    for (n, (cpu, milli, gpus, _), models) in list {
        if kept as f64 >= TYPICAL * total {
            break;
        }
        kept += n;
        let demand = PodDemand {
            cpu,
            mem: 0,
            gpus,
            milli,
            models,
        };
        classes.push((demand, n as f64));
    }
    let kept = kept as f64 / total;
    let weigh = |(demand, n)| (demand, n / total / kept);
    Mix::from_weights(classes.into_iter().map(weigh).collect())
}

/// How often each class of pods is in a list, memory included.
#[must_use]
pub fn counts(pods: &[OpenbPod]) -> BTreeMap<PodDemand, u64> {
    let mut out = BTreeMap::new();
    for pod in pods {
        *out.entry(pod.demand).or_insert(0) += 1;
    }
    out
}

/// The names of the arrival lists usable for a variant, the preferred one first: the variants with
/// admissible models share those of `default`.
#[must_use]
pub fn lists_of(variant: &str) -> Vec<String> {
    let mut out = vec![format!("arrivals_{variant}.csv")];
    if variant.starts_with("gpuspec") {
        out.push("arrivals_default.csv".to_owned());
    }
    out
}

impl Arrivals {
    /// Reads one seed's column out of a list of arrivals and the nodes' ranks.
    ///
    /// # Errors
    /// An empty file, a line with more or fewer values than the header, a missing column, or a value that
    /// is no number.
    pub fn read(
        (list_file, list): (&str, &str),
        (rank_file, ranks): (&str, &str),
        variant: &str,
        seed: u64,
    ) -> Result<Arrivals, SimulatorError> {
        let list = InputTable::of_commas(list_file, list)?;
        let column = list.named(&format!("s{seed}"))?;
        let mut rows = Vec::new();
        for row in list.rows() {
            if !row.text(column).is_empty() {
                rows.push(row.number(column)?);
            }
        }
        let ranks = InputTable::of_commas(rank_file, ranks)?;
        let (of, column) = (ranks.named("variant")?, ranks.named(&format!("s{seed}"))?);
        let mut rank = Vec::new();
        for row in ranks.rows() {
            if row.text(of) == variant {
                rank.push(row.number(column)?);
            }
        }
        Ok(Arrivals { rows, rank })
    }
}
