//! The openb benchmark over all variants: `make bench-openb`. Environment:
//!
//! - `OPENB`: folder of the data (default: `shared/openb` beside the workspace or above it)
//! - `ARRIVALS`: folder of other lists of arrivals and ranks, in the same form
//! - `SEEDS`: first-last (default 42-51); `V`: variants, separated by commas (default all)
//! - `POLICIES`: policies, separated by commas (default all)
//! - `OUT`: folder to which every placement of the scheduler's runs is written (default:
//!   `target/openb` of the workspace)
//!
//! Runs of the baselines are compared with the published results where there are any.

mod files;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use files::FileError;
use resources::invalid_value::InvalidValue;
use scheduler::fragment::{NodeRoom, PodDemand};
use simulator::openb::{
    Arrivals, Compared, OpenbCluster, OpenbPlacement, PlacementPolicy, PublishedResults, Report,
    VARIANTS, Which, first_difference, lists_of, placements, play, read_pods, typical,
};

/// The server's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Why the benchmark could not run to its end.
#[derive(Debug, thiserror::Error)]
enum BenchError {
    #[error("the data is not there: name its folder in OPENB")]
    NoData,
    /// An environment variable can't be read.
    #[error(transparent)]
    Variable(#[from] InvalidValue),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Simulator(#[from] simulator::SimulatorError),
    /// The placements can't be written.
    #[error("{path}: {error}")]
    Save { path: String, error: std::io::Error },
}

/// The runs to make.
struct Plan {
    data: PathBuf,
    arrivals: PathBuf,
    seeds: Vec<u64>,
    variants: Vec<&'static str>,
    policies: Vec<Which>,
    out: PathBuf,
}

/// Replays earlier choices, to measure a run's cost without its policy.
struct Again(std::vec::IntoIter<Option<OpenbPlacement>>);

impl PlacementPolicy for Again {
    fn choose(
        &mut self,
        _nodes: &[NodeRoom],
        _rank: &[u32],
        _demand: &PodDemand,
    ) -> Option<OpenbPlacement> {
        self.0.next().flatten()
    }
}

fn main() -> ExitCode {
    match plan().and_then(|plan| run(&plan)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("bench-openb: {why}");
            ExitCode::FAILURE
        }
    }
}

fn plan() -> Result<Plan, BenchError> {
    let word = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
    let data = files::folder().ok_or(BenchError::NoData)?;
    let seeds = word("SEEDS").unwrap_or_else(|| "42-51".to_owned());
    let (first, last) = seeds.split_once('-').unwrap_or((&seeds, &seeds));
    let number = |s: &str| {
        s.parse::<u64>()
            .map_err(|_| InvalidValue::new("SEEDS", s, "FIRST-LAST, as in 42-51"))
    };
    let wanted = word("V").unwrap_or_default();
    let wanted: Vec<&str> = wanted.split(',').filter(|v| !v.is_empty()).collect();
    if let Some(unknown) = wanted.iter().find(|v| !VARIANTS.contains(v)) {
        let valid = format!("one of {}", VARIANTS.join(", "));
        return Err(BenchError::from(InvalidValue::new("V", *unknown, valid)));
    }
    let chosen = |v: &&'static str| wanted.is_empty() || wanted.contains(v);
    Ok(Plan {
        arrivals: word("ARRIVALS").map_or_else(|| data.join("arrivals"), PathBuf::from),
        data,
        seeds: (number(first)?..=number(last)?).collect(),
        variants: VARIANTS.into_iter().filter(chosen).collect(),
        policies: policies(&word("POLICIES").unwrap_or_default())?,
        out: word("OUT").map_or_else(target, PathBuf::from),
    })
}

/// Where placements are written unless another folder is named.
fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/openb")
}

/// The policies that are named, or all.
fn policies(named: &str) -> Result<Vec<Which>, BenchError> {
    let known = |name: &str| Which::ALL.into_iter().find(|w| w.to_string() == name);
    let named = named.split(',').filter(|name| !name.is_empty());
    let found: Result<Vec<Which>, BenchError> = named
        .map(|name| {
            known(name).ok_or_else(|| {
                let all = Which::ALL.map(|which| which.to_string()).join(", ");
                BenchError::from(InvalidValue::new("POLICIES", name, format!("one of {all}")))
            })
        })
        .collect();
    found.map(|found| {
        if found.is_empty() {
            Which::ALL.to_vec()
        } else {
            found
        }
    })
}

/// Runs and prints everything. False if a baseline differs from the published results.
fn run(plan: &Plan) -> Result<bool, BenchError> {
    let name = "nodes/openb_node_list_gpu_node.csv";
    let cluster = OpenbCluster::read(name, &files::text(&plan.data, name)?)?;
    let name = "expected/expected_per_seed.csv";
    let published = if plan.arrivals == plan.data.join("arrivals") {
        files::text(&plan.data, name)?
    } else {
        String::new()
    };
    let expected = PublishedResults::read(name, &published)?;
    let ranks = files::text(&plan.arrivals, "node_rank.csv")?;
    let mut report = Report::default();
    let mut compared = Compared::default();
    println!("{}", Report::head());
    for variant in &plan.variants {
        let name = format!("pods/openb_pod_list_{variant}.csv");
        let pods = read_pods(&name, &files::text(&plan.data, &name)?, &cluster)?;
        let mix = typical(&pods);
        let (file, list) = files::first(&plan.arrivals, &lists_of(variant))?;
        for which in plan.policies.iter().copied() {
            for seed in &plan.seeds {
                let ranks = ("node_rank.csv", ranks.as_str());
                let arrivals = Arrivals::read((&file, &list), ranks, variant, *seed)?;
                let began = thread_cpu();
                let mut policy = which.make(&cluster, &pods, &arrivals.rank);
                let played = play(&cluster, &pods, &arrivals, &mix, policy.as_mut())?;
                let cpu = thread_cpu().saturating_sub(began);
                let began = thread_cpu();
                let mut again = Again(played.placements.clone().into_iter());
                play(&cluster, &pods, &arrivals, &mix, &mut again)?;
                let cpu = cpu.saturating_sub(thread_cpu().saturating_sub(began));
                report.add(variant, which, &played, cpu);
                let text = || placements(&cluster, &pods, &arrivals, &played);
                if matches!(which, Which::Muster | Which::MusterTold) {
                    save(
                        &plan.out,
                        &format!("{which}_{variant}_s{seed}.csv"),
                        &text(),
                    )?;
                }
                let policy = which.to_string();
                let key = (*variant, policy.as_str(), *seed);
                let more = expected.compare(key, &arrivals, &played)?;
                let golden = format!("expected/golden_{which}_{variant}_s{seed}.csv");
                compared.differences.extend(more.differences);
                compared.cells += more.cells;
                if more.cells > 0
                    && let Ok(golden) = files::text(&plan.data, &golden)
                {
                    compared.cells += 1;
                    let differs = first_difference(&golden, &text()).map(|(a, b)| {
                        format!("{variant} {which} {seed}: placed as {b:?} and not {a:?}")
                    });
                    compared.differences.extend(differs);
                }
            }
            println!("{}", report.last_line(which));
        }
    }
    println!("\n{}", report.tables());
    println!(
        "baselines: {} of {} published cells and lists of placements are equal",
        compared.cells - compared.differences.len(),
        compared.cells
    );
    println!("placements are in {}", plan.out.display());
    for difference in compared.differences.iter().take(20) {
        println!("  {difference}");
    }
    Ok(compared.differences.is_empty())
}

fn save(dir: &Path, name: &str, text: &str) -> Result<(), BenchError> {
    let path = dir.join(name);
    std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::write(&path, text))
        .map_err(|error| BenchError::Save {
            path: path.display().to_string(),
            error,
        })
}

/// CPU time of this thread, without waits (Linux; zero elsewhere).
fn thread_cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|n| n.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}
