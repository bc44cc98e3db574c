//! The report as one HTML page: styles and charts inline, no script, nothing fetched.

use std::fmt::Write as _;

use crate::outcome::SimulationOutcome;
use crate::report::chart::{self, Axes, Series, escape, round_up};
use crate::report::text::{by_queue, by_size, figures};
use crate::report::{percent, span};
use crate::summary::Summary;

/// Queues that a chart shows separately; the rest are combined.
const QUEUES_SHOWN: usize = 7;
/// Points of a cumulative curve.
const CURVE: usize = 100;

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1c2330;--dim:#5b6472;--paper:#fff;--rule:#d9dee5;--c0:#0b62c4;--c1:#c2410c;--c2:#047857;--c3:#9333ea;--c4:#a16207;--c5:#be123c;--c6:#0e7490;--c7:#57534e}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--dim:#9aa4b2;--paper:#12161d;--rule:#2c3440;--c0:#6cb1ff;--c1:#ff9a63;--c2:#4cd6a2;--c3:#c79bff;--c4:#e3c04d;--c5:#ff7d9c;--c6:#5cd3e6;--c7:#b5aea6}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1000px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin-top:2.2rem}
p.sub,li{color:var(--dim)}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:14px}
th,td{padding:.25rem .7rem;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th:first-child,td:first-child{text-align:left;padding-left:0}thead th{color:var(--dim);font-weight:600}
figure{margin:1.2rem 0}figcaption{font-weight:600}svg{width:100%;height:auto}
svg .axis line{stroke:var(--rule)}svg text{fill:var(--dim);font-size:11px}svg text.label{fill:var(--ink)}
svg path{stroke-width:1.6;fill:none}.legend{margin:.2rem 0;font-size:13px}.legend span{margin-right:1rem}.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.35em;border-radius:2px}
";

/// Writes the page.
#[must_use]
pub fn html(title: &str, notes: &[String], results: &[(Summary, SimulationOutcome)]) -> String {
    let mut out = String::from(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">",
    );
    let _ = write!(
        out,
        "<title>Simulation: {0}</title><style>{STYLE}",
        escape(title)
    );
    for at in 0..chart::COLOURS {
        let _ = write!(
            out,
            "svg path.s{at}{{stroke:var(--c{at})}}svg .f{at}{{fill:var(--c{at});stroke:none}}.b{at}{{background:var(--c{at})}}"
        );
    }
    let _ = write!(
        out,
        "</style></head><body><h1>Simulation: {}</h1>",
        escape(title)
    );
    if let Some((first, _)) = results.first() {
        let _ = write!(
            out,
            "<p class=\"sub\">{} nodes, {} GPUs, {} gangs</p>",
            first.nodes, first.gpus, first.gangs
        );
    }
    if !notes.is_empty() {
        out.push_str("<ul>");
        for note in notes {
            let _ = write!(out, "<li>{}</li>", escape(note));
        }
        out.push_str("</ul>");
    }
    summary_table(&mut out, results);
    if results.len() > 1 {
        frontier(&mut out, results);
    }
    out.push_str("<h2>Over time</h2>");
    over_time(&mut out, results);
    out.push_str("<h2>Waiting</h2>");
    waiting(&mut out, results);
    for (summary, outcome) in results {
        details(&mut out, summary, outcome);
    }
    out.push_str("</body></html>\n");
    out
}

fn table(out: &mut String, header: &[String], rows: &[Vec<String>]) {
    out.push_str("<div class=\"scroll\"><table><thead><tr>");
    for cell in header {
        let _ = write!(out, "<th scope=\"col\">{}</th>", escape(cell));
    }
    out.push_str("</tr></thead><tbody>");
    for cells in rows {
        out.push_str("<tr>");
        for (at, cell) in cells.iter().enumerate() {
            let cell = escape(cell);
            let _ = if at == 0 {
                write!(out, "<th scope=\"row\">{cell}</th>")
            } else {
                write!(out, "<td>{cell}</td>")
            };
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

fn summary_table(out: &mut String, results: &[(Summary, SimulationOutcome)]) {
    let mut header = vec![String::new()];
    header.extend(results.iter().map(|(summary, _)| summary.policy.clone()));
    let columns: Vec<Vec<(&str, String)>> = results
        .iter()
        .map(|(summary, _)| figures(summary))
        .collect();
    let count = columns.first().map_or(0, Vec::len);
    let rows: Vec<Vec<String>> = (0..count)
        .map(|at| {
            let name = columns[0][at].0.to_owned();
            std::iter::once(name)
                .chain(columns.iter().map(|figures| figures[at].1.clone()))
                .collect()
        })
        .collect();
    out.push_str("<h2>Summary</h2>");
    table(out, &header, &rows);
}

fn frontier(out: &mut String, results: &[(Summary, SimulationOutcome)]) {
    let hours = |summary: &Summary| summary.large_wait_seconds.p95 / 3600.0;
    let used = |summary: &Summary| {
        summary
            .allocation_while_arriving
            .unwrap_or(summary.allocation)
    };
    let series: Vec<Series> = results
        .iter()
        .map(|(summary, _)| Series {
            name: summary.policy.clone(),
            points: vec![(hours(summary), used(summary))],
        })
        .collect();
    let most = results
        .iter()
        .map(|(summary, _)| hours(summary))
        .fold(0.0, f64::max);
    out.push_str("<h2>Frontier</h2>");
    out.push_str(&chart::dots(
        &Axes {
            title: "GPUs allocated while work arrives, beside the wait of gangs above 64 GPUs: up and to the left is better",
            x: "95th percentile of that wait, hours",
            y: "",
            x_max: round_up(most),
            y_max: 1.0,
            x_text: &|x| format!("{x:.1}"),
            y_text: &percent,
        },
        &series,
    ));
}

fn days(seconds: f64) -> String {
    span(seconds)
}

fn over_time(out: &mut String, results: &[(Summary, SimulationOutcome)]) {
    let longest = results
        .iter()
        .map(|(_, outcome)| outcome.whole.seconds)
        .fold(1.0, f64::max);
    let of = |value: &dyn Fn(&crate::Point, &SimulationOutcome) -> f64| -> Vec<Series> {
        let one = |(summary, outcome): &(Summary, SimulationOutcome)| Series {
            name: summary.policy.clone(),
            points: outcome
                .series
                .iter()
                .enumerate()
                .filter(|(_, point)| point.seconds > 0.0)
                .map(|(at, point)| {
                    (
                        at as f64 * outcome.width as f64 + point.seconds / 2.0,
                        value(point, outcome),
                    )
                })
                .collect(),
        };
        results.iter().map(one).collect()
    };
    let held =
        of(&|point, outcome| point.held / point.seconds / (outcome.gpu_milli as f64).max(1.0));
    let axes = |title, y_max, y_text| Axes {
        title,
        x: "time since the first arrival",
        y: "",
        x_max: longest,
        y_max,
        x_text: &days,
        y_text,
    };
    out.push_str(&chart::lines(&axes("GPUs allocated", 1.0, &percent), &held));
    let stranded =
        of(&|point, outcome| point.stranded / point.seconds / (outcome.gpu_milli as f64).max(1.0));
    let most = round_up(top(&stranded));
    out.push_str(&chart::lines(
        &axes("GPUs free on nodes that are partly used", most, &percent),
        &stranded,
    ));
    let asked = of(&|point, _| point.asked / point.seconds / 1000.0);
    let most = round_up(top(&asked));
    out.push_str(&chart::lines(
        &axes("GPUs asked for by gangs that wait", most, &|y| {
            format!("{y:.0}")
        }),
        &asked,
    ));
}

fn top(series: &[Series]) -> f64 {
    series
        .iter()
        .flat_map(|one| &one.points)
        .map(|point| point.1)
        .fold(0.0, f64::max)
}

fn waiting(out: &mut String, results: &[(Summary, SimulationOutcome)]) {
    let Some((first, _)) = results.first() else {
        return;
    };
    let labels: Vec<String> = first.by_size.iter().map(|own| own.size.clone()).collect();
    let series: Vec<Series> = results
        .iter()
        .map(|(summary, _)| Series {
            name: summary.policy.clone(),
            points: summary
                .by_size
                .iter()
                .map(|own| (0.0, own.wait_seconds.p95))
                .collect(),
        })
        .collect();
    let axes = Axes {
        title: "Wait by size, 95th percentile",
        x: "",
        y: "",
        x_max: 1.0,
        y_max: round_up(top(&series) / 3600.0) * 3600.0,
        x_text: &|_| String::new(),
        y_text: &days,
    };
    out.push_str(&chart::bars(&axes, &labels, &series));
    // Waits span seconds to weeks, so the axis is logarithmic.
    let curves: Vec<Series> = results
        .iter()
        .map(|(summary, outcome)| {
            let mut waits: Vec<f64> = outcome
                .gangs
                .iter()
                .filter(|gang| !gang.ran_before)
                .filter_map(|gang| Some((gang.started? - gang.arrived) as f64))
                .collect();
            waits.sort_by(f64::total_cmp);
            let points = (0..=CURVE).filter_map(|i| {
                let at = (waits.len().checked_sub(1)? * i) / CURVE;
                Some(((waits[at] + 1.0).log10(), i as f64 / CURVE as f64))
            });
            Series {
                name: summary.policy.clone(),
                points: points.collect(),
            }
        })
        .collect();
    let most = curves
        .iter()
        .flat_map(|one| &one.points)
        .map(|point| point.0)
        .fold(1.0, f64::max);
    let axes = Axes {
        title: "How many gangs waited no longer than this",
        x: "wait (logarithmic)",
        y: "",
        x_max: most,
        y_max: 1.0,
        x_text: &|x| span(10_f64.powf(x) - 1.0),
        y_text: &percent,
    };
    out.push_str(&chart::lines(&axes, &curves));
}

fn details(out: &mut String, summary: &Summary, outcome: &SimulationOutcome) {
    let _ = write!(out, "<h2>{}: by size</h2>", escape(&summary.policy));
    let (header, rows) = by_size(summary);
    table(out, &header, &rows);
    if summary.by_queue.len() < 2 {
        return;
    }
    let _ = write!(out, "<h2>{}: by queue</h2>", escape(&summary.policy));
    let (header, rows) = by_queue(summary);
    table(out, &header, &rows);
    queues(out, outcome);
}

fn queues(out: &mut String, outcome: &SimulationOutcome) {
    let mut largest: Vec<(usize, f64)> = outcome
        .whole
        .queues
        .iter()
        .copied()
        .enumerate()
        .filter(|(_, held)| *held > 0.0)
        .collect();
    largest.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let shown: Vec<usize> = largest
        .iter()
        .take(QUEUES_SHOWN)
        .map(|(at, _)| *at)
        .collect();
    let points = || {
        outcome
            .series
            .iter()
            .enumerate()
            .filter(|(_, point)| point.seconds > 0.0)
    };
    let time = |at: usize, seconds: f64| at as f64 * outcome.width as f64 + seconds / 2.0;
    let of = |queue: usize, point: &crate::Point| {
        point.queues.get(queue).copied().unwrap_or(0.0) / point.seconds / 1000.0
    };
    let mut series: Vec<Series> = shown
        .iter()
        .map(|queue| Series {
            name: outcome.queues[*queue].clone(),
            points: points()
                .map(|(at, point)| (time(at, point.seconds), of(*queue, point)))
                .collect(),
        })
        .collect();
    if largest.len() > shown.len() {
        let rest = |point: &crate::Point| {
            point.held / point.seconds / 1000.0
                - shown.iter().map(|queue| of(*queue, point)).sum::<f64>()
        };
        series.push(Series {
            name: "others".to_owned(),
            points: points()
                .map(|(at, point)| (time(at, point.seconds), rest(point).max(0.0)))
                .collect(),
        });
    }
    let axes = Axes {
        title: "GPUs held, by queue",
        x: "time since the first arrival",
        y: "",
        x_max: outcome.whole.seconds.max(1.0),
        y_max: outcome.gpu_milli as f64 / 1000.0,
        x_text: &days,
        y_text: &|y| format!("{y:.0}"),
    };
    out.push_str(&chart::stack(&axes, &series));
}
