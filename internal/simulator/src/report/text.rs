//! Summaries as text: one block of figures with a column for each policy, then tables by size
//! and queue.

use std::fmt::Write as _;

use crate::report::frontier::{PolicyFigures, frontier};
use crate::report::{percent, span};
use crate::summary::{Distribution, Summary};

/// Rows of cells under a header, in columns: the first to the left, the others to the right.
pub(super) fn table(header: &[String], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(column))
            .chain(header.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut out = String::new();
    for row in std::iter::once(header).chain(rows.iter().map(Vec::as_slice)) {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[at].saturating_sub(cell.chars().count()));
            if at == 0 {
                let _ = write!(line, "{cell}{pad}");
            } else {
                let _ = write!(line, "  {pad}{cell}");
            }
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

fn spread(distribution: &Distribution) -> String {
    if distribution.count == 0 {
        return "-".to_owned();
    }
    format!(
        "{} / {} / {}",
        span(distribution.mean),
        span(distribution.p50),
        span(distribution.p95)
    )
}

/// The figures of a summary by name, in the order in which they are shown.
pub(super) fn figures(summary: &Summary) -> Vec<(&'static str, String)> {
    let index = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
    vec![
        (
            "gangs ended / running / waiting",
            format!(
                "{} / {} / {}",
                summary.ended, summary.running, summary.waiting
            ),
        ),
        ("makespan", span(summary.makespan_seconds as f64)),
        ("utilisation", percent(summary.utilisation)),
        ("allocation", percent(summary.allocation)),
        (
            "allocation while work arrives",
            summary
                .allocation_while_arriving
                .map_or("-".to_owned(), percent),
        ),
        ("fragmentation", percent(summary.fragmentation)),
        ("wait: mean / median / p95", spread(&summary.wait_seconds)),
        ("wait above 64 GPUs", spread(&summary.large_wait_seconds)),
        (
            "estimated start off by: mean / median / p95",
            spread(&summary.estimate_error_seconds),
        ),
        (
            "started within the estimated range",
            summary.within_estimate.map_or("-".to_owned(), |part| {
                format!("{} of {}", percent(part), summary.foretold)
            }),
        ),
        (
            "completion: mean / median / p95",
            spread(&summary.completion_seconds),
        ),
        (
            "bounded slowdown: mean / p95",
            format!(
                "{:.2} / {:.2}",
                summary.bounded_slowdown.mean, summary.bounded_slowdown.p95
            ),
        ),
        (
            "fairness of shares (1 is even)",
            index(summary.fairness_of_shares),
        ),
        ("fairness of slowdown", index(summary.fairness_of_slowdown)),
        (
            "preemptions / pods evicted",
            format!("{} / {}", summary.preemptions, summary.evictions),
        ),
        ("GPU-hours lost", format!("{:.1}", summary.gpu_hours_lost)),
        ("invariant violations", summary.violations.to_string()),
    ]
}

/// All summaries, side by side.
#[must_use]
pub fn text(title: &str, notes: &[String], summaries: &[Summary]) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{title}");
    if let Some(first) = summaries.first() {
        let _ = writeln!(
            out,
            "{} nodes, {} GPUs, {} gangs",
            first.nodes, first.gpus, first.gangs
        );
    }
    for note in notes {
        let _ = writeln!(out, "note: {note}");
    }
    out.push('\n');
    let mut header = vec![String::new()];
    header.extend(summaries.iter().map(|summary| summary.policy.clone()));
    let columns: Vec<Vec<(&str, String)>> = summaries.iter().map(figures).collect();
    let names: Vec<&str> = columns
        .first()
        .map(|figures| figures.iter().map(|(name, _)| *name).collect())
        .unwrap_or_default();
    let rows: Vec<Vec<String>> = names
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let cells = columns
                .iter()
                .filter_map(|figures| figures.get(at))
                .map(|(_, value)| value.clone());
            std::iter::once((*name).to_owned()).chain(cells).collect()
        })
        .collect();
    out.push_str(&table(&header, &rows));
    if summaries.len() > 1 {
        out.push_str("\nfrontier\n");
        let standings: Vec<PolicyFigures> = summaries.iter().map(PolicyFigures::from).collect();
        out.push_str(&frontier(&standings));
    }
    for summary in summaries {
        let _ = writeln!(out, "\n{}: by size", summary.policy);
        let (header, rows) = by_size(summary);
        out.push_str(&table(&header, &rows));
        if summary.by_queue.len() > 1 {
            let _ = writeln!(out, "\n{}: by queue", summary.policy);
            let (header, rows) = by_queue(summary);
            out.push_str(&table(&header, &rows));
        }
    }
    out
}

/// The columns of the tables by size and by queue, after the key column.
const OF_GANGS: [&str; 9] = [
    "gangs",
    "wait mean",
    "p50",
    "p95",
    "p99",
    "completion mean",
    "p95",
    "slowdown mean",
    "p95",
];

fn header(first: &str) -> Vec<String> {
    let all = std::iter::once(first).chain(OF_GANGS);
    all.map(str::to_owned).collect()
}

/// The table by size: its header and its rows.
pub(super) fn by_size(summary: &Summary) -> (Vec<String>, Vec<Vec<String>>) {
    let rows = summary.by_size.iter().map(|own| {
        row(
            &own.size,
            own.gangs,
            &own.wait_seconds,
            &own.completion_seconds,
            &own.bounded_slowdown,
        )
    });
    (header("size"), rows.collect())
}

/// The same by queue.
pub(super) fn by_queue(summary: &Summary) -> (Vec<String>, Vec<Vec<String>>) {
    let rows = summary.by_queue.iter().map(|own| {
        let mut cells = row(
            &own.queue,
            own.gangs,
            &own.wait_seconds,
            &own.completion_seconds,
            &own.bounded_slowdown,
        );
        cells.push(format!("{:.0}", own.gpu_hours));
        cells
    });
    let mut header = header("queue");
    header.push("GPU-hours".to_owned());
    (header, rows.collect())
}

fn row(
    name: &str,
    gangs: usize,
    wait: &Distribution,
    completion: &Distribution,
    slowdown: &Distribution,
) -> Vec<String> {
    let mut cells = vec![name.to_owned(), gangs.to_string()];
    cells.extend(
        [
            wait.mean,
            wait.p50,
            wait.p95,
            wait.p99,
            completion.mean,
            completion.p95,
        ]
        .map(span),
    );
    cells.extend([slowdown.mean, slowdown.p95].map(|value| format!("{value:.2}")));
    cells
}
