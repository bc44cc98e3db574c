//! The charts of the pages: which series each page shows, and why one has nothing to show.

use jiff::{SignedDuration, Timestamp};
use measurements::{HistoryQuery, Metric, Point, Series, Subject, Unit};
use resources::access::Caller;

use super::chart::{Chart, ChartRange, ChartRequest, LINES_MAX, Line};
use crate::board::{JobDetail, NodeCard, Replica};
use crate::problem::Problem;
use crate::rest::measured::read;
use crate::state::Portal;

/// The most ranks of a job whose series are read; two series each are one question.
const RANKS_MAX: usize = 32;

/// The time of a page's charts.
#[derive(Clone, Copy)]
struct Interval {
    from: Timestamp,
    to: Timestamp,
    step: i64,
}

impl Interval {
    /// The time until `to`.
    fn until(to: Timestamp, range: ChartRange) -> Interval {
        let from = to.checked_sub(SignedDuration::from_secs(range.seconds));
        Interval {
            from: from.unwrap_or(Timestamp::MIN),
            to,
            step: range.step,
        }
    }

    async fn points(
        self,
        portal: &Portal,
        caller: &Caller,
        series: Vec<Series>,
        now: Timestamp,
    ) -> Result<Vec<Vec<Point>>, Problem> {
        let step = format!("{}s", self.step);
        let query = HistoryQuery::of(series, self.from, self.to, &step, now);
        let query = query.map_err(|error| Problem::invalid(error.to_string()))?;
        read(portal, caller, query).await
    }

    fn chart(
        self,
        id: &'static str,
        title: &'static str,
        unit: Unit,
        top: Option<f64>,
        lines: Vec<Line>,
        empty: &str,
    ) -> Chart {
        Chart::of(ChartRequest {
            id,
            title,
            unit,
            lines,
            top,
            from: self.from,
            to: self.to,
            step: self.step,
            empty,
        })
    }
}

fn line(name: impl Into<String>, points: Vec<Point>) -> Line {
    Line {
        name: name.into(),
        points,
    }
}

/// The chart of the overview: GPUs in use of all, and jobs. None if the caller may not see the nodes, or there is no GPU
/// and none was measured.
pub async fn of_cluster(portal: &Portal, caller: &Caller, range: ChartRange) -> Option<Chart> {
    let now = Timestamp::now();
    let time = Interval::until(now, range);
    let metrics = [Metric::GpusAllocated, Metric::Gpus];
    let series = metrics
        .map(|metric| Subject::Cluster.series(metric))
        .to_vec();
    let [in_use, all] =
        <[_; 2]>::try_from(time.points(portal, caller, series, now).await.ok()?).ok()?;
    let most = all.iter().map(|point| point.max).fold(0.0, f64::max);
    if most == 0.0 && !all.is_empty() {
        return None;
    }
    let lines = vec![line("in use", in_use), line("all", all)];
    let empty = "The server has not counted any GPU yet: it does so each 15 seconds once a node has joined.";
    Some(time.chart(
        "cluster-gpus",
        "GPUs in use",
        Unit::Gpus,
        None,
        lines,
        empty,
    ))
}

/// The charts of a node.
///
/// # Errors
/// The history cannot be read.
pub async fn of_node(
    portal: &Portal,
    caller: &Caller,
    card: &NodeCard,
    range: ChartRange,
) -> Result<Vec<Chart>, Problem> {
    let now = Timestamp::now();
    let time = Interval::until(now, range);
    let node = Subject::Node(card.name.clone());
    let metrics = [Metric::GpusInUse, Metric::Gpus, Metric::Cpu, Metric::Memory];
    let mut series: Vec<Series> = metrics.iter().map(|metric| node.series(*metric)).collect();
    let gpus = || card.gpus.iter().take(LINES_MAX);
    for metric in [Metric::Utilisation, Metric::Memory] {
        series.extend(gpus().map(|gpu| {
            let node = card.name.clone();
            let index = gpu.index;
            Subject::Gpu { node, index }.series(metric)
        }));
    }
    let mut points = time.points(portal, caller, series, now).await?.into_iter();
    let mut next = || points.next().unwrap_or_default();
    let (in_use, all, cpu, memory) = (next(), next(), next(), next());
    let silent = "No agent measured this node in that time: the agent was away, or it is of a version that does not measure.";
    let driver = match (cpu.is_empty(), card.gpus.is_empty()) {
        (_, true) => "This node has no GPUs.",
        (true, false) => silent,
        (false, false) => {
            "The agent measured this node, but the driver's library (NVML) reported no such value of its GPUs."
        }
    };
    let mut of_gpus = || -> Vec<Line> {
        let lines = gpus().map(|gpu| line(format!("GPU {}", gpu.index), next()));
        lines.collect()
    };
    let (utilisation, gpu_memory) = (of_gpus(), of_gpus());
    let gib = f64::from(1 << 30);
    let gpu_top = card
        .gpus
        .iter()
        .map(|gpu| gpu.memory_mib as f64 * f64::from(1 << 20))
        .fold(0.0, f64::max);
    let mut charts = Vec::new();
    if !card.gpus.is_empty() {
        let lines = vec![line("in use", in_use), line("all", all)];
        charts.push(time.chart("gpus", "GPUs in use", Unit::Gpus, None, lines, silent));
        charts.push(time.chart(
            "gpu-utilisation",
            "GPU utilisation",
            Unit::Percent,
            Some(100.0),
            utilisation,
            driver,
        ));
        charts.push(time.chart(
            "gpu-memory",
            "GPU memory",
            Unit::Bytes,
            Some(gpu_top),
            gpu_memory,
            driver,
        ));
    }
    let lines = vec![line("all processes", cpu)];
    charts.push(time.chart(
        "cpu",
        "CPU",
        Unit::Cores,
        Some(card.cpu_room),
        lines,
        silent,
    ));
    let lines = vec![line("in use", memory)];
    charts.push(time.chart(
        "memory",
        "Memory",
        Unit::Bytes,
        Some(card.memory_room * gib),
        lines,
        silent,
    ));
    Ok(charts)
}

/// The range that a job's charts show without a choice: the shortest that covers the job.
pub fn range_of_job(job: &JobDetail, asked: &str, now: Timestamp) -> ChartRange {
    let end = job.ended.unwrap_or(now);
    let runs = job
        .created
        .map_or(0, |created| end.duration_since(created).as_secs());
    let fitting = ChartRange::for_seconds(runs);
    ChartRange::named(asked, fitting.name)
}

/// The charts of a job by rank, from its creation to its end.
///
/// # Errors
/// The caller may not see the job's pods, or the history cannot be read.
pub async fn of_job(
    portal: &Portal,
    caller: &Caller,
    job: &JobDetail,
    range: ChartRange,
    now: Timestamp,
) -> Result<Vec<Chart>, Problem> {
    let to = job.ended.map_or(now, |end| {
        let rest = end
            .checked_add(SignedDuration::from_secs(60))
            .unwrap_or(end);
        rest.min(now)
    });
    let mut time = Interval::until(to, range);
    // Pods of an earlier job of this name are not this job's. A short job is drawn over the minute around it.
    if let Some(created) = job.created.filter(|created| *created > time.from) {
        let least = to
            .checked_sub(SignedDuration::from_secs(60))
            .unwrap_or(created);
        time.from = created.min(least);
    }
    // Of the time before yesterday only 5 minutes are kept.
    let age = now.duration_since(time.from).as_secs();
    if age > measurements::FINE_FOR_HOURS * measurements::HOUR {
        time.step = time.step.max(measurements::BUCKET);
    }
    let longest = measurements::COARSE_FOR_DAYS * 24;
    let first = now
        .checked_sub(SignedDuration::from_hours(longest))
        .unwrap_or(time.from);
    time.from = time.from.max(first);
    if time.to <= time.from {
        return Ok(Vec::new());
    }
    let ranks: Vec<&Replica> = job.replicas.iter().take(RANKS_MAX).collect();
    let series = |metrics: [Metric; 2]| {
        let of_pod = |replica: &&Replica| {
            let subject = Subject::Pod {
                namespace: job.row.namespace.clone(),
                pod: replica.pod.clone(),
            };
            metrics.map(|metric| subject.series(metric))
        };
        ranks.iter().flat_map(of_pod).collect::<Vec<Series>>()
    };
    if ranks.is_empty() {
        return Ok(Vec::new());
    }
    let (of_gpus, of_processes) = (
        series([Metric::GpuUtilisation, Metric::GpuMemory]),
        series([Metric::Cpu, Metric::Memory]),
    );
    let of_gpus = time.points(portal, caller, of_gpus, now).await?;
    let of_processes = time.points(portal, caller, of_processes, now).await?;
    let measured = of_processes.iter().any(|points| !points.is_empty());
    let silent = "No agent has measured this job's pods: the first values come some 20 seconds after a pod has started, from agents of a version that measures.";
    let driver = match (measured, job.row.gpus) {
        (_, 0) => "The job asks for no GPUs.",
        (false, _) => silent,
        (true, _) => {
            "Agents measured this job's pods, but no GPU that a pod holds alone: no driver's library (NVML) reported a value, or the GPUs are shared or slices."
        }
    };
    let lines = |points: &[Vec<Point>], place: usize| {
        let of_ranks = points.iter().skip(place).step_by(2);
        let named = ranks.iter().zip(of_ranks);
        named
            .map(|(replica, points)| line(format!("rank {}", replica.rank), points.clone()))
            .collect()
    };
    Ok(vec![
        time.chart(
            "gpu-utilisation",
            "GPU utilisation",
            Unit::Percent,
            Some(100.0),
            lowest_first(lines(&of_gpus, 0)),
            driver,
        ),
        time.chart(
            "gpu-memory",
            "GPU memory",
            Unit::Bytes,
            None,
            lines(&of_gpus, 1),
            driver,
        ),
        time.chart(
            "cpu",
            "CPU",
            Unit::Cores,
            None,
            lines(&of_processes, 0),
            silent,
        ),
        time.chart(
            "memory",
            "Memory",
            Unit::Bytes,
            None,
            lines(&of_processes, 1),
            silent,
        ),
    ])
}

/// If not all lines can be drawn, those with the lowest means come first: a rank that works less than the others holds
/// them up.
fn lowest_first(mut lines: Vec<Line>) -> Vec<Line> {
    if lines.len() > LINES_MAX {
        let mean = |line: &Line| {
            let sum: f64 = line.points.iter().map(|point| point.mean).sum();
            sum / line.points.len().max(1) as f64
        };
        lines.sort_by(|a, b| mean(a).total_cmp(&mean(b)));
    }
    lines
}
