//! Traces: the common parts, and CSVs as the Philly trace and its descendants write them. Each line
//! becomes a job; lines that never ran are left out and counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::error::SimulatorError;
use crate::read::duration::{self, TraceMoment};
use crate::read::table::{ColumnMeaning, FoundColumn, InputTable, TableRecord};
use crate::scenario::{Job, JobWork, PodShape, Seconds};

/// The namespace of a trace's jobs.
const NAMESPACE: &str = "default";
/// The most GPUs that one job of a trace may request.
pub(super) const GPUS_MAX: i64 = 1_000_000;

/// The content of a trace.
#[derive(Default)]
pub(crate) struct Trace {
    pub(crate) jobs: Vec<Job>,
    /// The wall time of second 0, if the trace has times.
    pub(crate) start: Option<Timestamp>,
    pub(crate) notes: Vec<String>,
    /// The machine's nodes and processors, as the file states them.
    pub(crate) machine: Option<(i64, i64)>,
}

/// How a trace's numbers become pods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing {
    /// GPUs of the largest node: a job that requests more becomes several pods.
    pub(crate) gpus_per_node: i64,
}

/// One line before it becomes a job.
pub(super) struct TraceLine {
    pub(super) name: String,
    pub(super) arrival: TraceMoment,
    pub(super) duration: Seconds,
    pub(super) walltime: Option<Seconds>,
    pub(super) queue: Option<String>,
    pub(super) user: Option<String>,
    pub(super) priority: i32,
    pub(super) shapes: Vec<(Arc<PodShape>, u32)>,
}

/// Gathers lines.
#[derive(Default)]
pub(super) struct Gatherer {
    pub(super) lines: Vec<TraceLine>,
    shapes: BTreeMap<PodShape, Arc<PodShape>>,
    pub(super) unrun: usize,
    names: BTreeSet<String>,
}

impl Gatherer {
    pub(super) fn shape(&mut self, shape: PodShape) -> Arc<PodShape> {
        self.shapes
            .entry(shape.clone())
            .or_insert_with(|| Arc::new(shape))
            .clone()
    }

    /// Pods for this many GPUs: full nodes, and one pod with the rest.
    pub(super) fn pods(
        &mut self,
        gpus: i64,
        cpus: i64,
        packing: Packing,
    ) -> Vec<(Arc<PodShape>, u32)> {
        let most = packing.gpus_per_node.max(1);
        let of = |gpus: i64, cpus: i64| PodShape {
            // If the trace states no CPUs or memory, requests that are too small to constrain
            // placement.
            cpu_milli: if cpus > 0 {
                cpus * 1000
            } else {
                gpus.max(1) * 1000
            },
            memory_mib: gpus.max(1) * 4096,
            gpus,
            ..PodShape::default()
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

    pub(super) fn name(&mut self, given: &str, number: usize) -> String {
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

    pub(super) fn finish(self, file: &str) -> Result<Trace, SimulatorError> {
        let first = self
            .lines
            .iter()
            .map(|line| line.arrival.second())
            .min()
            .unwrap_or(0);
        let times = self
            .lines
            .iter()
            .filter(|line| matches!(line.arrival, TraceMoment::Time(_)))
            .count();
        if times > 0 && times < self.lines.len() {
            return Err(SimulatorError::Nothing(format!(
                "{file}: some arrivals are times and others seconds; write all in one form"
            )));
        }
        // Seconds this large count from 1970.
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
            work: JobWork::Shaped(line.shapes),
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

pub(super) const fn meaning(
    name: &'static str,
    accepted: &'static [&'static str],
) -> ColumnMeaning {
    ColumnMeaning { name, accepted }
}

const NAME: ColumnMeaning = meaning(
    "name",
    &["job_id", "jobid", "id", "name", "job_name", "job"],
);
const ARRIVAL: ColumnMeaning = meaning(
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
const DURATION: ColumnMeaning = meaning(
    "duration",
    &["duration", "run_time", "runtime", "job_duration", "elapsed"],
);
const START: ColumnMeaning = meaning("start", &["start_time", "scheduled_time", "start"]);
const END: ColumnMeaning = meaning(
    "end",
    &["end_time", "deletion_time", "finished_time", "end"],
);
const GPUS: ColumnMeaning = meaning(
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
const CPUS: ColumnMeaning = meaning(
    "cpus",
    &["cpus", "num_cpus", "num_cpu", "cpu_num", "ncpus", "cpu"],
);
const QUEUE: ColumnMeaning = meaning("queue", &["queue", "vc", "virtual_cluster", "partition"]);
const USER: ColumnMeaning = meaning("user", &["user", "user_name", "username"]);
const WALLTIME: ColumnMeaning = meaning(
    "walltime",
    &["walltime", "timelimit", "time_limit", "requested_time"],
);
pub(super) const PRIORITY: ColumnMeaning = meaning("priority", &["priority"]);

/// The start and duration of a line's work; none if it never ran.
pub(super) fn ran(
    row: TableRecord<'_>,
    duration: Option<FoundColumn>,
    start: Option<FoundColumn>,
    end: Option<FoundColumn>,
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
        return Err(row.wrong(end, "an end that is not before the start"));
    }
    Ok(Some(ran))
}

/// Reads a CSV with columns for arrival, duration and GPUs.
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
    let table = InputTable::split(file, text, separator, given)?;
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
            .given(cpus, |row, column| row.count(column))?
            .unwrap_or(0);
        let number = row.place().number;
        let line = TraceLine {
            name: all.name(row.maybe(name).unwrap_or_default(), number),
            arrival: row.moment(arrival)?,
            duration,
            walltime: row.given(walltime, |row, column| row.span(column))?,
            queue: row.maybe(queue).map(queue_name),
            user: row.maybe(user).map(str::to_owned),
            priority: row.given(priority, priority_of)?.unwrap_or(0),
            shapes: all.pods(asked, cores, packing),
        };
        all.lines.push(line);
    }
    all.finish(file)
}

pub(super) fn gpus_of(row: TableRecord<'_>, column: FoundColumn) -> Result<i64, SimulatorError> {
    let gpus = if row.maybe(Some(column)).is_none() {
        0
    } else {
        row.count(column)?
    };
    if gpus > GPUS_MAX {
        return Err(row.wrong(column, "at most 1000000 GPUs for one job"));
    }
    Ok(gpus)
}

pub(super) fn priority_of(
    row: TableRecord<'_>,
    column: FoundColumn,
) -> Result<i32, SimulatorError> {
    let number = row
        .text(column)
        .parse::<f64>()
        .ok()
        .filter(|n| n.abs() <= 2e9);
    number
        .map(|n| n as i32)
        .ok_or_else(|| row.wrong(column, "a number from -2000000000 to 2000000000"))
}

/// The text as a valid queue name.
pub(super) fn queue_name(text: &str) -> String {
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

/// Parses a moment in an annotation: seconds, a span, or a time.
pub(crate) fn arrival(text: &str) -> Result<TraceMoment, ()> {
    duration::moment(text).or_else(|()| duration::seconds(text).map(TraceMoment::Second))
}
