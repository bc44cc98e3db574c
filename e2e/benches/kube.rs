//! Muster in a Kubernetes cluster at full speed: gangs that wait when it starts, bound as fast as possible, compared
//! with the limit of the API server for a plain client, and with kube-scheduler. Each measurement has its own cluster
//! on this machine: etcd (without fsync), kube-apiserver, the binder.
//!
//! `make bench-kube` runs it with the release binary and prints the variables that configure it.

use std::time::Duration;

use e2e::rush::{Binder, Outcome, Rush, Shape};

/// The targets: a part of the API server's limit, seconds from the start to the last binding of one gang of all pods
/// (of 5,000), MiB, and writes per pod besides its binding.
const ASKED: &str = "asked for: 80 % of the limit, 1x5000 within 4 s of the start, 150 MiB, \
    1 write a pod beside the binding";

/// A variable's value, or a default.
fn chosen(name: &str, otherwise: &str) -> String {
    let value = std::env::var(name).unwrap_or_default();
    let value = value.trim();
    if value.is_empty() { otherwise } else { value }.to_owned()
}

fn number(name: &str, otherwise: &str) -> usize {
    let value = chosen(name, otherwise);
    let number = value.parse().ok().filter(|number| *number > 0);
    number.unwrap_or_else(|| panic!("{name}={value}: give a whole number above 0"))
}

/// One measured row.
struct Row {
    binder: Binder,
    shape: Shape,
    outcome: Outcome,
}

impl Row {
    fn cells(&self, limit: Option<f64>) -> [String; 9] {
        let Outcome {
            bound,
            span,
            after_start,
            ..
        } = self.outcome;
        let seconds = |time: Duration| format!("{:.2}", time.as_secs_f64());
        let rate = self.outcome.rate();
        [
            self.binder.name().to_owned(),
            self.shape.to_string(),
            format!("{rate:.0}"),
            limit.map_or_else(String::new, |limit| {
                format!("{:.0} %", rate / limit * 100.0)
            }),
            seconds(span),
            seconds(after_start),
            (self.outcome.peak_mib).map_or_else(String::new, |mib| format!("{mib:.0}")),
            format!(
                "{:.0} + {:.0}",
                self.outcome.cpu / bound as f64 * 1e6,
                self.outcome.api_cpu / bound as f64 * 1e6
            ),
            format!("{:.2}", self.outcome.writes_a_pod()),
        ]
    }
}

const HEAD: [&str; 9] = [
    "",
    "gangs",
    "bindings/s",
    "of the limit",
    "first to last, s",
    "last after start, s",
    "peak MiB",
    "CPU a pod, µs (+ API)",
    "other writes a pod",
];

fn print(rows: &[Row]) {
    let mut limits: Vec<f64> = rows
        .iter()
        .filter(|row| row.binder == Binder::Plain)
        .map(|row| row.outcome.rate())
        .collect();
    limits.sort_by(f64::total_cmp);
    let limit = limits.get(limits.len() / 2).copied();
    let mut table = vec![HEAD.map(str::to_owned)];
    table.extend(rows.iter().map(|row| row.cells(limit)));
    let widths: Vec<usize> = (0..HEAD.len())
        .map(|column| {
            let cells = table.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or_default()
        })
        .collect();
    for row in &table {
        print!("{:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            print!("  {cell:>width$}");
        }
        println!();
    }
}

fn main() {
    let nodes = number("NODES", "1000");
    let gpus = number("GPUS", "8");
    let pods = number("PODS", "5000");
    let shapes = chosen("SHAPES", "");
    let shapes: Vec<Shape> = match shapes.as_str() {
        "" => Shape::usual(pods),
        said => said
            .split([',', ' '])
            .filter(|word| !word.is_empty())
            .map(|word| {
                word.parse()
                    .unwrap_or_else(|error| panic!("SHAPES: {error}"))
            })
            .collect(),
    };
    let beside = chosen("BESIDE", "limit,kube-scheduler");
    let kwok = !chosen("KWOK", "").is_empty();
    let mut rows = Vec::new();
    let mut measure = |binder: Binder, shape: Shape| {
        let rush = Rush {
            nodes,
            gpus,
            shape,
            kwok,
        };
        let outcome = rush.run(binder);
        let row = Row {
            binder,
            shape,
            outcome,
        };
        // The run takes minutes, so that each figure is printed as soon as it is known.
        eprintln!("{}", row.cells(None).join("  "));
        eprintln!("    other writes: {:?}", row.outcome.writes);
        rows.push(row);
    };
    for shape in &shapes {
        if beside.contains("limit") {
            measure(Binder::Plain, *shape);
        }
        measure(Binder::Muster, *shape);
    }
    if beside.contains("kube-scheduler") {
        measure(Binder::KubeScheduler, shapes[0]);
    }
    print(&rows);
    println!("{nodes} nodes of {gpus} GPUs; {ASKED}");
}
