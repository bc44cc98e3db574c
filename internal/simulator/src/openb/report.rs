//! The tables: a line for each variant and policy, then FGD and the scheduler side by side; and
//! every placement of a run in the columns of the published ones.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::data::{Arrivals, OpenbCluster, OpenbPod};
use super::metrics::{ArrivalBins, mean_and_deviation};
use super::play::Played;
use super::policy::Which;

/// The arrived work at which the tables report, in % of the cluster's GPUs.
const LEVELS: [usize; 4] = [80, 90, 100, 130];

/// The policies of the side-by-side table.
const BESIDE: [Which; 3] = [Which::Fgd, Which::Muster, Which::MusterTold];

/// One run, without its placements.
#[derive(Clone, Debug)]
struct VariantRun {
    bins: ArrivalBins,
    /// By 0, 1, 2, 4 and 8 GPUs, then shares.
    failed: [u32; 6],
    pods: usize,
    cpu: Duration,
}

/// Runs by variant (in order of first run) and policy.
#[derive(Clone, Debug, Default)]
pub struct Report {
    variants: Vec<String>,
    runs: BTreeMap<(usize, Which), Vec<VariantRun>>,
}

impl Report {
    /// Adds a run with its CPU time.
    pub fn add(&mut self, variant: &str, which: Which, played: &Played, cpu: Duration) {
        let known = self.variants.iter().position(|v| v == variant);
        let at = known.unwrap_or_else(|| {
            self.variants.push(variant.to_owned());
            self.variants.len() - 1
        });
        let mut failed = [0, 1, 2, 4, 8, 0].map(|gpus| played.failed(gpus));
        failed[5] = played.failed_shares();
        self.runs.entry((at, which)).or_default().push(VariantRun {
            bins: played.bins.clone(),
            failed,
            pods: played.placements.len(),
            cpu,
        });
    }

    /// The line of the last variant for a policy: allocation, failed 8-GPU pods, time per pod.
    #[must_use]
    pub fn last_line(&self, which: Which) -> String {
        let at = self.variants.len().saturating_sub(1);
        let name = self.variants.get(at).map_or("", String::as_str);
        let mut line = format!("| {name} | {which} |");
        for level in LEVELS {
            let _ = write!(line, " {} |", self.level(at, which, level));
        }
        let _ = write!(
            line,
            " {:.1} | {:.0} |",
            self.failed(at, which, 4),
            self.micros(at, which)
        );
        line
    }

    /// The header of the lines of [`Report::last_line`].
    #[must_use]
    pub fn head() -> &'static str {
        "GPU allocation in % of the cluster when so many % have arrived: mean (deviation) over seeds;\n\
         failed 8-GPU pods until 100; CPU us a pod, the runner's own measuring left out\n\n\
         | variant | policy | @80 | @90 | @100 | @130 | failed 8 | us |\n\
         |---|---|---|---|---|---|---|---|"
    }

    /// FGD and the scheduler side by side for each variant, their means, and fragmentation with
    /// failures by size.
    #[must_use]
    pub fn tables(&self) -> String {
        let names = BESIDE.map(|which| which.to_string()).join(" / ");
        let mut out = format!("{names}\n\n| variant |");
        for level in LEVELS {
            let _ = write!(out, " @{level} |");
        }
        out.push_str(" failed 8 | us |\n|---|---|---|---|---|---|---|\n");
        let beside = |of: &dyn Fn(Which) -> String| BESIDE.map(of).join(" / ");
        for (at, name) in self.variants.iter().enumerate() {
            let _ = write!(out, "| {name} |");
            for level in LEVELS {
                let _ = write!(out, " {} |", beside(&|which| self.level(at, which, level)));
            }
            let _ = writeln!(
                out,
                " {} | {} |",
                beside(&|which| format!("{:.1}", self.failed(at, which, 4))),
                beside(&|which| format!("{:.0}", self.micros(at, which)))
            );
        }
        out.push_str("| mean |");
        for level in LEVELS {
            let of = |which| format!("{:.2}", self.mean(which, level));
            let _ = write!(out, " {} |", beside(&of));
        }
        out.push_str(" | |\n\n");
        self.fragmentation(&mut out);
        out
    }

    fn fragmentation(&self, out: &mut String) {
        out.push_str(
            "Fragmentation, amount in % of the cluster / ratio in % of what is idle: mean (deviation);\n\
             failed pods until 100 by size (share: a part of one GPU)\n\n\
             | variant | policy | @80 | @90 | @100 | @130 | no GPU | share | 1 | 2 | 4 | 8 |\n\
             |---|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for (at, which) in self.runs.keys() {
            let name = self.variants.get(*at).map_or("", String::as_str);
            let _ = write!(out, "| {name} | {which} |");
            for level in LEVELS {
                let amount = self.stat(*at, *which, |bins| bins.fragmentation(level));
                let ratio = self.stat(*at, *which, |bins| bins.fragmentation_ratio(level));
                let _ = write!(
                    out,
                    " {:.2} ({:.2}) / {:.1} ({:.1}) |",
                    amount.0, amount.1, ratio.0, ratio.1
                );
            }
            for size in [0, 5, 1, 2, 3, 4] {
                let _ = write!(out, " {:.1} |", self.failed(*at, *which, size));
            }
            out.push('\n');
        }
    }

    /// Mean over the variants of the mean allocation at a level.
    #[must_use]
    pub fn mean(&self, which: Which, level: usize) -> f64 {
        let of = |at| self.stat(at, which, |bins| bins.allocation(level)).0;
        let all: Vec<f64> = (0..self.variants.len()).map(of).collect();
        mean_and_deviation(&all).0
    }

    fn of(&self, at: usize, which: Which) -> &[VariantRun] {
        self.runs.get(&(at, which)).map_or(&[], Vec::as_slice)
    }

    fn stat(&self, at: usize, which: Which, value: impl Fn(&ArrivalBins) -> f64) -> (f64, f64) {
        let all: Vec<f64> = self.of(at, which).iter().map(|r| value(&r.bins)).collect();
        mean_and_deviation(&all)
    }

    fn level(&self, at: usize, which: Which, level: usize) -> String {
        let (mean, deviation) = self.stat(at, which, |bins| bins.allocation(level));
        format!("{mean:.2} ({deviation:.2})")
    }

    fn failed(&self, at: usize, which: Which, size: usize) -> f64 {
        let runs = self.of(at, which).iter();
        let all: Vec<f64> = runs.map(|run| f64::from(run.failed[size])).collect();
        mean_and_deviation(&all).0
    }

    fn micros(&self, at: usize, which: Which) -> f64 {
        let runs = self.of(at, which);
        let pods: usize = runs.iter().map(|run| run.pods).sum();
        let cpu: Duration = runs.iter().map(|run| run.cpu).sum();
        cpu.as_secs_f64() * 1e6 / pods.max(1) as f64
    }
}

/// Every placement of a run: `pos,pod_index,pod_name,node,gpus,used_milli_after`, the node empty
/// for a failed pod, GPUs joined by `-`.
#[must_use]
pub fn placements(
    cluster: &OpenbCluster,
    pods: &[OpenbPod],
    arrivals: &Arrivals,
    run: &Played,
) -> String {
    let mut out = String::from("pos,pod_index,pod_name,node,gpus,used_milli_after\n");
    let decided = run.placements.iter().zip(&run.used);
    for (pos, (row, (choice, used))) in arrivals.rows.iter().zip(decided).enumerate() {
        let name = pods.get(*row).map_or("", |pod| pod.name.as_str());
        let node = choice.and_then(|choice| cluster.names.get(choice.node));
        let node = node.map_or("", String::as_str);
        let mask = choice.map_or(0, |choice| choice.mask);
        let gpus = (0..u16::BITS).filter(|gpu| mask >> gpu & 1 == 1);
        let gpus: Vec<String> = gpus.map(|gpu| gpu.to_string()).collect();
        let _ = writeln!(out, "{pos},{row},{name},{node},{},{used}", gpus.join("-"));
    }
    out
}
