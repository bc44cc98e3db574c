//! Traces: openb's pod list, CSVs as the Philly trace and its descendants write them, Slurm's
//! accounting (`sacct --parsable2`), the Standard Workload Format. Each line becomes a job; lines
//! that never ran are left out and counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use crate::error::{Place, SimulatorError};
use crate::read::duration::{self, Moment};
use crate::read::table::{Column, Meaning, Row, Table};
use crate::scenario::{Job, Seconds, Shape, Work};
use crate::shape::{self, NodeFigures};

/// The namespace of a trace's jobs.
const NAMESPACE: &str = "default";
/// The most GPUs that one job of a trace may ask for.
const GPUS_MAX: i64 = 1_000_000;

/// What a trace says.
#[derive(Default)]
pub(crate) struct Trace {
    pub(crate) jobs: Vec<Job>,
    /// The wall time of second 0, where the trace has times.
    pub(crate) start: Option<Timestamp>,
    pub(crate) notes: Vec<String>,
    /// Nodes and processors that the file says the machine had.
    pub(crate) machine: Option<(i64, i64)>,
}

/// How a trace's numbers become pods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing {
    /// GPUs of the largest node: a job that asks for more becomes several pods.
    pub(crate) gpus_per_node: i64,
}

/// One line before it becomes a job.
struct Line {
    name: String,
    arrival: Moment,
    duration: Seconds,
    walltime: Option<Seconds>,
    queue: Option<String>,
    user: Option<String>,
    priority: i32,
    shapes: Vec<(Arc<Shape>, u32)>,
}

/// Gathers lines.
#[derive(Default)]
struct Gatherer {
    lines: Vec<Line>,
    shapes: BTreeMap<Shape, Arc<Shape>>,
    unrun: usize,
    names: BTreeSet<String>,
}

impl Gatherer {
    fn shape(&mut self, shape: Shape) -> Arc<Shape> {
        self.shapes
            .entry(shape.clone())
            .or_insert_with(|| Arc::new(shape))
            .clone()
    }

    /// Pods for so many GPUs: whole nodes' worth, and one with the rest.
    fn pods(&mut self, gpus: i64, cpus: i64, packing: Packing) -> Vec<(Arc<Shape>, u32)> {
        let most = packing.gpus_per_node.max(1);
        let of = |gpus: i64, cpus: i64| Shape {
            // Room for what feeds the GPUs, little enough not to bind where the trace says nothing.
            cpu_milli: if cpus > 0 {
                cpus * 1000
            } else {
                gpus.max(1) * 1000
            },
            memory_mib: gpus.max(1) * 4096,
            gpus,
            ..Shape::default()
        };
        if gpus <= most {
            return vec![(self.shape(of(gpus, cpus)), 1)];
        }
        let (whole, rest) = (gpus / most, gpus % most);
        let each = cpus * most / gpus;
        let mut pods = vec![(
            self.shape(of(most, each)),
            u32::try_from(whole).unwrap_or(u32::MAX),
        )];
        if rest > 0 {
            pods.push((self.shape(of(rest, cpus * rest / gpus)), 1));
        }
        pods
    }

    fn name(&mut self, given: &str, number: usize) -> String {
        let mut name: String = given
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() {
                    c.to_ascii_lowercase()
                } else {
                    '-'
                }
            })
            .collect();
        name.truncate(50);
        let trimmed = name.trim_matches('-');
        let mut name = if trimmed.is_empty() {
            format!("job-{number}")
        } else {
            trimmed.to_owned()
        };
        if !self.names.insert(name.clone()) {
            name = format!("{name}-line-{number}");
            self.names.insert(name.clone());
        }
        name
    }

    fn finish(self, file: &str) -> Result<Trace, SimulatorError> {
        let first = self
            .lines
            .iter()
            .map(|line| line.arrival.second())
            .min()
            .unwrap_or(0);
        let times = self
            .lines
            .iter()
            .filter(|line| matches!(line.arrival, Moment::Time(_)))
            .count();
        if times > 0 && times < self.lines.len() {
            return Err(SimulatorError::Nothing(format!(
                "{file}: some arrivals are times and others seconds: write all in one way"
            )));
        }
        // Seconds as large as this count from 1970.
        let start = (times > 0 || first > 1_000_000_000)
            .then(|| Timestamp::from_second(first).ok())
            .flatten();
        let jobs = self.lines.into_iter().map(|line| Job {
            namespace: NAMESPACE.to_owned(),
            name: line.name,
            queue: line.queue.unwrap_or_else(|| "default".to_owned()),
            user: line.user,
            priority: line.priority,
            arrival: line.arrival.second() - first,
            duration: Some(line.duration),
            walltime: line.walltime,
            elapsed: 0,
            work: Work::Shaped(line.shapes),
        });
        let mut notes = Vec::new();
        if self.unrun > 0 {
            notes.push(format!(
                "{file}: {} lines never ran and are left out",
                self.unrun
            ));
        }
        Ok(Trace {
            jobs: jobs.collect(),
            start,
            notes,
            machine: None,
        })
    }
}

const fn meaning(name: &'static str, accepted: &'static [&'static str]) -> Meaning {
    Meaning { name, accepted }
}

const NAME: Meaning = meaning(
    "name",
    &["job_id", "jobid", "id", "name", "job_name", "job"],
);
const ARRIVAL: Meaning = meaning(
    "arrival",
    &[
        "arrival",
        "submit_time",
        "submitted_time",
        "submission_time",
        "arrival_time",
        "creation_time",
        "submit",
    ],
);
const DURATION: Meaning = meaning(
    "duration",
    &["duration", "run_time", "runtime", "job_duration", "elapsed"],
);
const START: Meaning = meaning("start", &["start_time", "scheduled_time", "start"]);
const END: Meaning = meaning(
    "end",
    &["end_time", "deletion_time", "finished_time", "end"],
);
const GPUS: Meaning = meaning(
    "gpus",
    &[
        "gpus",
        "num_gpus",
        "num_gpu",
        "gpu_num",
        "gpu_count",
        "n_gpus",
        "gpu",
    ],
);
const CPUS: Meaning = meaning(
    "cpus",
    &["cpus", "num_cpus", "num_cpu", "cpu_num", "ncpus", "cpu"],
);
const QUEUE: Meaning = meaning("queue", &["queue", "vc", "virtual_cluster", "partition"]);
const USER: Meaning = meaning("user", &["user", "user_name", "username"]);
const WALLTIME: Meaning = meaning(
    "walltime",
    &["walltime", "timelimit", "time_limit", "requested_time"],
);
const PRIORITY: Meaning = meaning("priority", &["priority"]);

/// When the work of a line ran for how long; none if it never did.
fn ran(
    row: Row<'_>,
    duration: Option<Column>,
    start: Option<Column>,
    end: Option<Column>,
) -> Result<Option<Seconds>, SimulatorError> {
    if let Some(column) = duration {
        return row
            .maybe(Some(column))
            .map(|_| row.span(column))
            .transpose();
    }
    let (Some(start), Some(end)) = (start, end) else {
        return Ok(None);
    };
    if row.maybe(Some(start)).is_none() || row.maybe(Some(end)).is_none() {
        return Ok(None);
    }
    let ran = row.moment(end)?.second() - row.moment(start)?.second();
    if ran < 0 {
        return Err(row.wrong(end, "the end must not be before the start"));
    }
    Ok(Some(ran))
}

/// A CSV whose columns say arrival, duration and GPUs.
pub(crate) fn philly(
    file: &str,
    text: &str,
    given: &BTreeMap<String, String>,
    packing: Packing,
) -> Result<Trace, SimulatorError> {
    let separator = if text.lines().next().is_some_and(|line| line.contains('\t')) {
        '\t'
    } else {
        ','
    };
    let table = Table::split(file, text, separator, given)?;
    let (arrival, gpus) = (table.needed(ARRIVAL)?, table.needed(GPUS)?);
    let (duration, start, end) = (
        table.column(DURATION)?,
        table.column(START)?,
        table.column(END)?,
    );
    if duration.is_none() && (start.is_none() || end.is_none()) {
        table.needed(DURATION)?;
    }
    let [name, cpus, queue, user, walltime, priority] =
        [NAME, CPUS, QUEUE, USER, WALLTIME, PRIORITY].map(|it| table.column(it));
    let (name, cpus, queue, user, walltime, priority) =
        (name?, cpus?, queue?, user?, walltime?, priority?);
    let mut all = Gatherer::default();
    for row in table.rows() {
        let Some(duration) = ran(row, duration, start, end)? else {
            all.unrun += 1;
            continue;
        };
        let asked = gpus_of(row, gpus)?;
        let cores = row
            .maybe(cpus)
            .and(cpus)
            .map(|column| row.count(column))
            .transpose()?
            .unwrap_or(0);
        let number = row.place().number;
        let line = Line {
            name: all.name(row.maybe(name).unwrap_or_default(), number),
            arrival: row.moment(arrival)?,
            duration,
            walltime: row
                .maybe(walltime)
                .and(walltime)
                .map(|column| row.span(column))
                .transpose()?,
            queue: row.maybe(queue).map(queue_name),
            user: row.maybe(user).map(str::to_owned),
            priority: row
                .maybe(priority)
                .and(priority)
                .map(|column| priority_of(row, column))
                .transpose()?
                .unwrap_or(0),
            shapes: all.pods(asked, cores, packing),
        };
        all.lines.push(line);
    }
    all.finish(file)
}

fn gpus_of(row: Row<'_>, column: Column) -> Result<i64, SimulatorError> {
    let gpus = if row.maybe(Some(column)).is_none() {
        0
    } else {
        row.count(column)?
    };
    if gpus > GPUS_MAX {
        return Err(row.wrong(column, "one job can ask for a million GPUs at the most"));
    }
    Ok(gpus)
}

fn priority_of(row: Row<'_>, column: Column) -> Result<i32, SimulatorError> {
    let number = row
        .text(column)
        .parse::<f64>()
        .ok()
        .filter(|n| n.abs() <= 2e9);
    number
        .map(|n| n as i32)
        .ok_or_else(|| row.wrong(column, "write a number between -2000000000 and 2000000000"))
}

/// A queue's name as objects may have it.
fn queue_name(text: &str) -> String {
    let name: String = text
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .collect();
    let name = name.trim_matches('-');
    if name.is_empty() {
        "default".to_owned()
    } else {
        name.to_owned()
    }
}

/// openb's pod list.
pub(crate) fn openb(
    file: &str,
    text: &str,
    given: &BTreeMap<String, String>,
) -> Result<Trace, SimulatorError> {
    let table = Table::split(file, text, ',', given)?;
    let column = openb_column;
    let [name, cpu, memory, gpus, milli, created, deleted] = [
        "name",
        "cpu_milli",
        "memory_mib",
        "num_gpu",
        "gpu_milli",
        "creation_time",
        "deletion_time",
    ]
    .map(|it| table.needed(column(it)));
    let (name, cpu, memory, gpus, milli, created, deleted) =
        (name?, cpu?, memory?, gpus?, milli?, created?, deleted?);
    let (models, scheduled) = (
        table.column(column("gpu_spec"))?,
        table.column(column("scheduled_time"))?,
    );
    let qos = table.column(column("qos"))?;
    let mut all = Gatherer::default();
    for row in table.rows() {
        let start = if row.maybe(scheduled).is_some() {
            scheduled
        } else {
            Some(created)
        };
        let Some(duration) = ran(row, None, start, Some(deleted))? else {
            all.unrun += 1;
            continue;
        };
        let (gpus, part) = (gpus_of(row, gpus)?, row.count(milli)?);
        if part > 1000 {
            return Err(row.wrong(milli, "write thousandths of one GPU, 1000 at the most"));
        }
        let shared = gpus == 1 && part < 1000;
        let shape = all.shape(Shape {
            cpu_milli: row.count(cpu)?,
            memory_mib: row.count(memory)?,
            gpus: if shared { 0 } else { gpus },
            gpu_milli: if shared { part } else { 0 },
            models: row
                .maybe(models)
                .map(|text| text.split('|').map(str::to_owned).collect())
                .unwrap_or_default(),
        });
        let number = row.place().number;
        let line = Line {
            name: all.name(row.text(name), number),
            arrival: row.moment(created)?,
            duration,
            walltime: None,
            queue: row.maybe(qos).map(queue_name),
            user: None,
            priority: 0,
            shapes: vec![(shape, 1)],
        };
        all.lines.push(line);
    }
    all.finish(file)
}

/// A column that openb's lists call by just this name.
fn openb_column(name: &'static str) -> Meaning {
    static NAMES: [&str; 10] = [
        "name",
        "cpu_milli",
        "memory_mib",
        "num_gpu",
        "gpu_milli",
        "creation_time",
        "deletion_time",
        "gpu_spec",
        "scheduled_time",
        "qos",
    ];
    let at = NAMES.iter().position(|known| *known == name).unwrap_or(0);
    meaning(NAMES[at], &NAMES[at..=at])
}

/// openb's node list.
pub(crate) fn openb_nodes(file: &str, text: &str) -> Result<Vec<Node>, SimulatorError> {
    let given = BTreeMap::new();
    let table = Table::split(file, text, ',', &given)?;
    let (name, cpu) = (
        table.needed(meaning("name", &["sn", "name"]))?,
        table.needed(meaning("cpu_milli", &["cpu_milli"]))?,
    );
    let (memory, gpus) = (
        table.needed(meaning("memory_mib", &["memory_mib"]))?,
        table.needed(meaning("gpu", &["gpu", "gpus"]))?,
    );
    let model = table.column(meaning("model", &["model"]))?;
    let mut nodes = Vec::new();
    for row in table.rows() {
        let figures = NodeFigures {
            cpu_milli: row.count(cpu)?,
            memory_mib: row.count(memory)?,
            gpus: row.count(gpus)?,
            model: row.maybe(model).unwrap_or_default().to_owned(),
            gpu_memory_mib: 0,
        };
        nodes.push(shape::node(row.text(name), &figures));
    }
    Ok(nodes)
}

/// Slurm's accounting, as `sacct --parsable2` prints it.
pub(crate) fn sacct(
    file: &str,
    text: &str,
    given: &BTreeMap<String, String>,
    packing: Packing,
) -> Result<Trace, SimulatorError> {
    let table = Table::split(file, text, '|', given)?;
    let id = table.needed(meaning("name", &["JobID", "JobIDRaw"]))?;
    let submit = table.needed(meaning("arrival", &["Submit", "Eligible"]))?;
    let elapsed = table.column(meaning("duration", &["ElapsedRaw", "Elapsed"]))?;
    let (start, end) = (
        table.column(meaning("start", &["Start"]))?,
        table.column(meaning("end", &["End"]))?,
    );
    if elapsed.is_none() && (start.is_none() || end.is_none()) {
        table.needed(meaning("duration", &["ElapsedRaw", "Elapsed"]))?;
    }
    let tres = [
        table.column(meaning("gpus", &["AllocTRES"]))?,
        table.column(meaning("gpus", &["ReqTRES"]))?,
        table.column(meaning("gpus", &["AllocGRES", "ReqGRES"]))?,
    ];
    let cpus = table.column(meaning("cpus", &["AllocCPUS", "NCPUS", "ReqCPUS"]))?;
    let raw_limit = table.column(meaning("walltime-minutes", &["TimelimitRaw"]))?;
    let limit = table.column(meaning("walltime", &["Timelimit"]))?;
    let (queue, user) = (
        table.column(meaning("queue", &["Partition", "Account"]))?,
        table.column(meaning("user", &["User"]))?,
    );
    let priority = table.column(PRIORITY)?;
    let mut all = Gatherer::default();
    for row in table.rows() {
        // `123.batch` and `123.0` are steps of 123.
        if row.text(id).contains('.') {
            continue;
        }
        let duration = ran(row, elapsed, start, end)?.filter(|seconds| *seconds > 0);
        let Some(duration) = duration.filter(|_| !row.text(id).contains('[')) else {
            all.unrun += 1;
            continue;
        };
        let mut gpus = 0;
        for column in tres.into_iter().flatten() {
            if let Some(found) = tres_gpus(row.text(column)).map_err(|()| {
                row.wrong(column, "write resources as Slurm does: cpu=8,gres/gpu=2")
            })? {
                gpus = found;
                break;
            }
        }
        let walltime = match (row.maybe(raw_limit), row.maybe(limit)) {
            (Some(text), _) => text.parse::<i64>().ok().map(|minutes| minutes * 60),
            (None, Some(text)) if text.contains(':') => {
                limit.map(|column| row.span(column)).transpose()?
            }
            _ => None,
        };
        let number = row.place().number;
        let cores = row
            .maybe(cpus)
            .and(cpus)
            .map(|column| row.count(column))
            .transpose()?
            .unwrap_or(0);
        let line = Line {
            name: all.name(row.text(id), number),
            arrival: row.moment(submit)?,
            duration,
            walltime,
            queue: row.maybe(queue).map(queue_name),
            user: row.maybe(user).map(str::to_owned),
            priority: row
                .maybe(priority)
                .and(priority)
                .map(|column| priority_of(row, column))
                .transpose()?
                .unwrap_or(0),
            shapes: all.pods(
                gpus.min(GPUS_MAX),
                if gpus > 0 { 0 } else { cores },
                packing,
            ),
        };
        all.lines.push(line);
    }
    all.finish(file)
}

/// GPUs in `cpu=8,gres/gpu=2,gres/gpu:a100=2` or `gpu:a100:2`; none if it says nothing of GPUs.
fn tres_gpus(text: &str) -> Result<Option<i64>, ()> {
    let mut typed = None;
    for part in text.split(',') {
        let Some(rest) = part
            .strip_prefix("gres/gpu")
            .or_else(|| part.strip_prefix("gres:gpu"))
            .or_else(|| part.strip_prefix("gpu"))
        else {
            continue;
        };
        let number = rest.rsplit(['=', ':']).next().unwrap_or_default();
        let number: i64 = number.parse().map_err(|_| ())?;
        if rest.starts_with('=') {
            return Ok(Some(number));
        }
        typed = Some(typed.unwrap_or(0) + number);
    }
    Ok(typed)
}

/// The Standard Workload Format: 18 numbers a line, comments behind semicolons.
pub(crate) fn swf(file: &str, text: &str, packing: Packing) -> Result<Trace, SimulatorError> {
    const FIELDS: [&str; 18] = [
        "job number",
        "submit time",
        "wait time",
        "run time",
        "allocated processors",
        "average CPU time",
        "used memory",
        "requested processors",
        "requested time",
        "requested memory",
        "status",
        "user",
        "group",
        "executable",
        "queue",
        "partition",
        "preceding job",
        "think time",
    ];
    let mut all = Gatherer::default();
    let (mut nodes, mut processors) = (None, None);
    for (at, line) in text.lines().enumerate() {
        let number = at + 1;
        let line = line.trim();
        if let Some(comment) = line.strip_prefix(';') {
            let said = |name: &str| {
                comment
                    .trim()
                    .strip_prefix(name)?
                    .split_whitespace()
                    .next()?
                    .parse::<i64>()
                    .ok()
            };
            nodes = said("MaxNodes:").or(nodes);
            processors = said("MaxProcs:").or(processors);
            continue;
        }
        if line.is_empty() {
            continue;
        }
        let place = || Place {
            file: file.to_owned(),
            number,
            document: false,
        };
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.len() != FIELDS.len() {
            return Err(SimulatorError::Form {
                place: place(),
                what: format!("the line has {} fields", words.len()),
                wanted: "a job of the Standard Workload Format has 18, -1 where nothing is known"
                    .to_owned(),
            });
        }
        let field = |which: usize| -> Result<Option<i64>, SimulatorError> {
            let number = words[which]
                .parse::<f64>()
                .ok()
                .filter(|n| n.is_finite() && n.abs() < 1e15);
            let number = number.ok_or_else(|| SimulatorError::Value {
                place: place(),
                field: FIELDS[which].to_owned(),
                value: words[which].to_owned(),
                wanted: "write a number, -1 where it is not known".to_owned(),
            })?;
            Ok((number >= 0.0).then_some(number.ceil() as i64))
        };
        let asked = field(4)?
            .filter(|n| *n > 0)
            .or(field(7)?.filter(|n| *n > 0));
        let (Some(arrival), Some(duration), Some(asked)) =
            (field(1)?, field(3)?.filter(|n| *n > 0), asked)
        else {
            all.unrun += 1;
            continue;
        };
        let line = Line {
            name: all.name(words[0], number),
            arrival: Moment::Second(arrival),
            duration,
            walltime: field(8)?.filter(|n| *n > 0),
            queue: field(14)?.map(|queue| format!("queue-{queue}")),
            user: field(11)?.map(|user| format!("user-{user}")),
            priority: 0,
            shapes: all.pods(asked.min(GPUS_MAX), 0, packing),
        };
        all.lines.push(line);
    }
    let mut trace = all.finish(file)?;
    trace.machine = processors.map(|processors| (nodes.unwrap_or(1).max(1), processors));
    trace
        .notes
        .push(format!("{file}: each processor stands for a GPU"));
    Ok(trace)
}

/// What a moment written as an annotation may be: seconds, a span, or a time.
pub(crate) fn arrival(text: &str) -> Result<Moment, ()> {
    duration::moment(text).or_else(|()| duration::seconds(text).map(Moment::Second))
}
