//! Input: manifests of ordinary objects, and traces. Detects formats and combines several files;
//! the sibling modules read the formats.

mod check;
pub mod duration;
mod hypernodes;
mod objects;
mod openb;
mod slurm;
mod swf;
pub(crate) mod table;
mod trace;
mod words;
mod work;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use resources::kinds::{Queue, QueueSpec};
use resources::names::NVIDIA_GPU;

use crate::error::SimulatorError;
use crate::scenario::Scenario;
use crate::shape::{self, NodeFigures};

/// GPUs of a node if the input describes none.
const GPUS_PER_NODE: i64 = 8;
/// The most nodes that are generated for a trace that states its machine's size.
const NODES_MAX: i64 = 100_000;

/// A format of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputFormat {
    /// YAML or JSON objects.
    Objects,
    /// openb's pod list.
    Openb,
    /// openb's node list.
    OpenbNodes,
    /// A CSV with arrival, duration and GPUs, as the Philly trace and its descendants have it.
    Philly,
    /// Slurm's accounting.
    Sacct,
    /// The Standard Workload Format.
    Swf,
}

impl InputFormat {
    /// The format of this name.
    pub fn named(name: &str) -> Result<InputFormat, SimulatorError> {
        Ok(match name {
            "objects" => InputFormat::Objects,
            "openb" => InputFormat::Openb,
            "openb-nodes" => InputFormat::OpenbNodes,
            "philly" | "csv" => InputFormat::Philly,
            "sacct" => InputFormat::Sacct,
            "swf" => InputFormat::Swf,
            _ => {
                let valid = "one of objects, openb, openb-nodes, philly (csv), sacct, swf";
                return Err(SimulatorError::option("--format", name, valid));
            }
        })
    }

    /// Detects the format from a file's name and its first lines.
    fn of(source: &InputFile<'_>) -> InputFormat {
        let extension = source.file.rsplit('.').next().unwrap_or_default();
        let first = source
            .text
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default();
        let words: BTreeSet<&str> = first.split(',').map(str::trim).collect();
        match extension {
            "yaml" | "yml" | "json" => InputFormat::Objects,
            "swf" => InputFormat::Swf,
            _ if first.starts_with(';') => InputFormat::Swf,
            _ if first.contains("JobID") && first.contains('|') => InputFormat::Sacct,
            _ if words.contains("sn") && words.contains("cpu_milli") => InputFormat::OpenbNodes,
            _ if words.contains("num_gpu") && words.contains("gpu_milli") => InputFormat::Openb,
            "csv" | "tsv" => InputFormat::Philly,
            _ if words.len() > 2 && !first.contains(':') => InputFormat::Philly,
            _ => InputFormat::Objects,
        }
    }
}

/// One file.
#[derive(Clone, Copy, Debug)]
pub struct InputFile<'a> {
    /// Its name.
    pub file: &'a str,
    /// Its content.
    pub text: &'a str,
}

/// The options of reading.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// The format of all files; detected per file if none is given.
    pub format: Option<InputFormat>,
    /// Columns that the user chose, by meaning.
    pub columns: BTreeMap<String, String>,
    /// Nodes in addition to those in the files.
    pub nodes: Vec<Node>,
    /// The wall time of second 0, if the files don't define it.
    pub start: Option<Timestamp>,
}

/// Reads files into one scenario.
pub fn read(sources: &[InputFile<'_>], options: &ReadOptions) -> Result<Scenario, SimulatorError> {
    let mut scenario = Scenario {
        name: sources
            .iter()
            .map(|source| source.file)
            .collect::<Vec<_>>()
            .join(", "),
        nodes: options.nodes.clone(),
        ..Scenario::default()
    };
    let format = |source: &InputFile<'_>| options.format.unwrap_or_else(|| InputFormat::of(source));
    let (objects, traces): (Vec<&InputFile<'_>>, Vec<&InputFile<'_>>) = sources
        .iter()
        .partition(|source| format(source) == InputFormat::Objects);
    let start = objects::read(&objects, options.start, &mut scenario)?;
    for source in traces
        .iter()
        .filter(|source| format(source) == InputFormat::OpenbNodes)
    {
        scenario
            .nodes
            .extend(openb::openb_nodes(source.file, source.text)?);
    }
    let mut starts: Vec<Timestamp> = start.into_iter().collect();
    for source in traces {
        let packing = trace::Packing {
            gpus_per_node: largest(&scenario.nodes).unwrap_or(GPUS_PER_NODE),
        };
        let InputFile { file, text } = *source;
        let trace = match format(source) {
            InputFormat::Openb => openb::openb(file, text, &options.columns)?,
            InputFormat::Philly => trace::philly(file, text, &options.columns, packing)?,
            InputFormat::Sacct => slurm::sacct(file, text, &options.columns, packing)?,
            InputFormat::Swf => swf::swf(file, text, packing)?,
            InputFormat::OpenbNodes | InputFormat::Objects => continue,
        };
        if scenario.nodes.is_empty()
            && let Some((nodes, processors)) = trace.machine
        {
            make_machine(&mut scenario, nodes, processors);
        }
        starts.extend(trace.start);
        scenario.jobs.extend(trace.jobs);
        scenario.notes.extend(trace.notes);
        add_queues(&mut scenario);
    }
    note_unknown_nodes(&mut scenario);
    scenario.start = match options.start {
        Some(start) => start,
        None => starts.into_iter().min().unwrap_or_else(default_start),
    };
    Ok(scenario)
}

/// Adds a note about nodes that pods are bound to and that the input lacks.
fn note_unknown_nodes(scenario: &mut Scenario) {
    let known: BTreeSet<Option<&str>> = scenario
        .nodes
        .iter()
        .map(|node| node.metadata.name.as_deref())
        .collect();
    let mut unknown: BTreeMap<&str, usize> = BTreeMap::new();
    let names = scenario.pods_on_nodes();
    for name in names.filter(|name| !known.contains(&Some(*name))) {
        *unknown.entry(name).or_insert(0) += 1;
    }
    let warnings: Vec<String> = unknown
        .iter()
        .map(|(name, pods)| {
            format!("node {name} is not in the input: its {pods} pods stay there, and the scheduler places no other pod there")
        })
        .collect();
    scenario.notes.extend(warnings);
}

/// Second 0 if the input defines none: a fixed new year.
#[must_use]
pub fn default_start() -> Timestamp {
    Timestamp::from_second(1_767_225_600).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn largest(nodes: &[Node]) -> Option<i64> {
    let gpus = nodes.iter().filter_map(|node| {
        let status = node.status.as_ref()?;
        let amounts = status.allocatable.as_ref().or(status.capacity.as_ref())?;
        Some(resources::amounts::Amounts::from_k8s(amounts).get(NVIDIA_GPU))
    });
    gpus.max().filter(|gpus| *gpus > 0)
}

/// Generates nodes for a trace that states how many the machine had.
fn make_machine(scenario: &mut Scenario, nodes: i64, processors: i64) {
    // No node has a hundred GPUs: such files count cores or whole partitions.
    let nodes = if processors / nodes > 64 {
        processors.div_euclid(GPUS_PER_NODE).max(1)
    } else {
        nodes
    };
    let nodes = nodes.min(NODES_MAX);
    let each = (processors + nodes - 1) / nodes;
    let figures = NodeFigures {
        cpu_milli: each * 8000,
        memory_mib: each * 65_536,
        gpus: each,
        ..NodeFigures::default()
    };
    for i in 0..nodes {
        scenario
            .nodes
            .push(shape::node(&format!("node-{i:05}"), &figures));
    }
    scenario.notes.push(format!(
        "the trace's header describes the cluster: {nodes} nodes of {each} GPUs"
    ));
}

/// Queues that a trace's jobs name, with weight 1.
pub(crate) fn add_queues(scenario: &mut Scenario) {
    let known: BTreeSet<String> = scenario
        .queues
        .iter()
        .filter_map(|queue| queue.metadata.name.clone())
        .collect();
    let named: BTreeSet<&String> = scenario
        .jobs
        .iter()
        .map(|job| &job.queue)
        .filter(|name| !name.is_empty())
        .collect();
    let new: Vec<Queue> = named
        .into_iter()
        .filter(|name| !known.contains(*name))
        .map(|name| {
            Queue::new(
                name,
                QueueSpec {
                    weight: Some(1),
                    ..QueueSpec::default()
                },
            )
        })
        .collect();
    scenario.queues.extend(new);
}
