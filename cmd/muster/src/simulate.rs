//! `muster simulate`: reads files, runs the simulator and writes the results. The `simulator` crate decides what is
//! simulated and how.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Read as _, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use cli::CommandOutcome;
use jiff::Timestamp;
use simulator::read::{InputFile, InputFormat, ReadOptions, read};
use simulator::{
    Decision, Policy, Scenario, Seconds, Settings, SimulationOptions, SimulationOutcome, Summary,
    report, run, settings, shape, synthetic, what_if,
};

/// The arguments of `muster simulate`.
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub struct Simulate {
    /// Input files, `-` for standard input. Either manifests (Nodes, Queues, PodGroups, Pods, PyTorchJobs, Jobs,
    /// PriorityClasses, ResourceQuotas, PodDisruptionBudgets, PersistentVolumes and claims, StorageClasses, CSINodes,
    /// CSIDrivers and CSIStorageCapacities, or a List as `kubectl get -o yaml` prints it; and a SchedulerConfig, see
    /// below), with arrival and duration of the work in the annotations muster.io/arrival and muster.io/duration; or
    /// a trace: a CSV with arrival, duration and GPUs, `sacct --parsable2`, the Standard Workload Format, openb
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Format of the files: objects, csv (philly), sacct, swf, openb, openb-nodes [default: detected for each file]
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,
    /// Column of a trace for a field: arrival=when_submitted. Fields: name, arrival, duration, start, end, gpus,
    /// cpus, queue, user, walltime, priority
    #[arg(long = "column", value_name = "MEANING=NAME")]
    columns: Vec<String>,
    /// Cluster for traces without one: 1250xhgx-h100,20xcpu-96
    #[arg(long, value_name = "NODES")]
    cluster: Option<String>,
    /// Generate the workload instead of reading it: seed=1,jobs=10000,days=30,gpus=1024,load=0.85,queues=4 or some of
    /// these
    #[arg(long, value_name = "SETTINGS", conflicts_with = "files")]
    synthetic: Option<String>,
    /// Also simulate a variant: add-nodes=4xhgx-h100, remove-nodes=2xNAME-PREFIX, weight=QUEUE:4. Several changes
    /// form one variant
    #[arg(long = "what-if", value_name = "CHANGE")]
    what_if: Vec<String>,
    /// Scheduling policy to compare: muster, fifo, sjf, priority, easy, easy-shares, conservative, or all
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "muster"
    )]
    policy: Vec<String>,
    /// Allowed actions: allocate, consolidate, reclaim, preempt, backfill, defragment, separated by commas [default:
    /// as in the files, or all but consolidate and defragment]
    #[arg(long, value_name = "ACTIONS")]
    actions: Option<String>,
    /// Node label keys of the topology domains, widest first, separated by commas [default: as in the files, or zone,
    /// spine, leaf, rack and NVLink domain]
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    topology: Option<Vec<String>>,
    /// Node order of placement: fragmentation, pack or spread [default: as in the files, or fragmentation]
    #[arg(long, value_name = "STRATEGY")]
    placement: Option<String>,
    /// How long a gang with fewer members than its minimum keeps running [default: as in the files, or 60s]
    #[arg(long, value_name = "SPAN")]
    stale_after: Option<String>,
    /// Shortest simulated time between two plans; events in between are batched
    #[arg(long, value_name = "SPAN", default_value = "1s")]
    gather: String,
    /// Time that an evicted pod takes to stop
    #[arg(long, value_name = "SPAN", default_value = "30s")]
    grace: String,
    /// Checkpoint interval of jobs; an interruption loses at most this much work [default: an interruption loses all
    /// work]
    #[arg(long, value_name = "SPAN")]
    checkpoint: Option<String>,
    /// Stop after this much simulated time
    #[arg(long, value_name = "SPAN")]
    until: Option<String>,
    /// Wall-clock time of the simulation's start [default: as in the files]
    #[arg(long, value_name = "TIME")]
    start: Option<Timestamp>,
    /// Skip the check of each plan against the invariants, for speed
    #[arg(long)]
    no_check: bool,
    /// Write each decision with its time as a JSON line; `-` for standard output
    #[arg(long, value_name = "FILE")]
    decisions: Option<PathBuf>,
    /// Write a report with charts as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Format of the summary
    #[arg(short, long, value_enum, default_value_t = SummaryFormat::Text)]
    output: SummaryFormat,
}

/// Formats of the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SummaryFormat {
    Text,
    Json,
    /// Nothing
    None,
}

const EXAMPLES: &str = "Manifests:
  A pod with spec.nodeName runs from the start, on the devices that its annotation
  muster.io/devices names. With metadata.deletionTimestamp it is terminating, and ends at that time,
  or after --grace if that was before the start; with metadata.finalizers it never ends. A pod of a
  gang or a controller that was evicted or ended is created again and waits. `--until 0` is one plan.

  A document of the kind SchedulerConfig configures the scheduler; options take precedence:

    apiVersion: muster.io/v1alpha1
    kind: SchedulerConfig
    spec:                             # all of it may be left out
      actions: [allocate, reclaim]    # also consolidate, preempt, backfill, defragment
      topology: [example.com/block, example.com/rack]
      placement: fragmentation        # or pack, or spread
      gpus: pack                      # or spread: of a node's GPUs for pods that share one
      staleAfter: 60s
      schedulerNames: [muster, volcano]
      usage: {halfLife: 7d, strength: 1}
      # and reserveAfter, reserveFor, weighLosses, breakBudgets, loadAge, defragmentation and
      # expected: `muster server --help` shows all fields with the defaults

  Queues are Volcano's (scheduling.volcano.sh/v1beta1): weight, capability, guarantee, deserved,
  parent, priority, reclaimable, status.state. Kueue's ClusterQueue, Cohort, ResourceFlavor and
  Topology, Koordinator's ElasticQuota and the text of YuniKorn's queues.yaml are read as queues
  too, and KAI's Queue; the notes name fields without a counterpart. Volcano's HyperNodes label
  the nodes in them, and their tiers are the topology.

  Annotations (J: the value is JSON):
    Queue     muster.io/borrowing-limit, lending-limit, user-limit, team-limit
                J {\"nvidia.com/gpu\": \"8\"}
              muster.io/surplus-weight   a number, or J by resource; 0 for none of the surplus
              muster.io/policy           priority, fifo, sjf, round-robin, fair
              muster.io/preemption
                J {\"withinQueue\": \"LowerPriority|LowerOrNewerEqualPriority|Never\",
                   \"reclaim\": \"Any|LowerPriority|Never\",
                   \"borrow\": {\"policy\": \"LowerPriority|Never\", \"maxPriorityThreshold\": 0},
                   \"fair\": [\"LessThanOrEqualToFinalShare\", \"LessThanInitialShare\"]}
    PodGroup  muster.io/topology         also on a pod, for its task
                J {\"required\": KEY, \"preferred\": KEY, \"slices\": [{\"level\": KEY, \"size\": 4}],
                   \"unconstrained\": false, \"balanced\": false}
              muster.io/sub-groups
                J [{\"name\": \"a\", \"parent\": \"b\", \"minMember\": 2, \"topology\": {...}}]
    Pod       scheduling.k8s.io/group-name, volcano.sh/task-spec, muster.io/sub-group,
              muster.io/rank, muster.io/gpu-fraction, muster.io/gpu-memory (MiB)
              muster.io/devices          J {\"main\": {\"nvidia.com/gpu\": [\"GPU-0\"]}}
    either    muster.io/preemptible (true, false), user, team, walltime, min-runtime,
              arrival (seconds or a time), duration
    Node      muster.io/inventory
                J {\"gpus\": [{\"id\": \"GPU-0\", \"index\": 0, \"memoryMib\": 81559, \"healthy\": true}]}

Decisions (--decisions), a line each, with policy, at, second, namespace, group and decision:
  bound        pod, node, devices     evicted    pod, node, reason, by, message
  nominated    pod, node, devices: held for it while others leave
  reserved     pod, node, from        released   pod, node: neither any more
  pending      queue, report          gone       pod, node: an evicted pod has left
  started      queue, gpuMilli, waited
  interrupted  lostGpuSeconds         ended      completion
  violation    what

Examples:
  kubectl get nodes,queues,podgroups,pods -A -o yaml | muster simulate -
  muster simulate cluster.yaml jobs.yaml --what-if add-nodes=4xhgx-h100 --html report.html
  sacct -aPS 2026-01-01 -o JobID,User,Partition,Submit,Start,End,Elapsed,Timelimit,AllocTRES,NCPUS |
      muster simulate - --cluster 64xhgx-h100 --policy muster,easy
  muster simulate case.yaml --actions reclaim --until 0 --decisions - --output none
  muster simulate --synthetic jobs=20000,days=30,gpus=2048 --policy all --html frontier.html

Exit status: 0 done; 1 a plan would have broken an invariant (each violation is a decision, and the
summary counts them); 2 the input could not be simulated.";

/// Options of which no simulation can be made.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// There is no input.
    #[error(
        "there is nothing to simulate: name files, `-` for standard input, or --synthetic jobs=10000,days=30,gpus=1024"
    )]
    Nothing,
    /// --column is no pair.
    #[error("--column: {0:?} is invalid: use MEANING=NAME, like arrival=when_submitted")]
    Column(String),
    /// An option is no span of time.
    #[error("{option}: {value:?} is invalid: use a span like 90s, 1h30m or 2d")]
    Span { option: &'static str, value: String },
}

/// One simulation to run.
struct Case<'a> {
    scenario: &'a Scenario,
    options: SimulationOptions,
}

/// Runs the simulations and prints their summary.
pub fn simulate(arguments: &Simulate) -> Result<CommandOutcome> {
    let mut scenario = scenario(arguments)?;
    let of_files = std::mem::take(&mut scenario.settings);
    scenario.settings = settings(arguments)?.or(of_files);
    let mut changed = None;
    if !arguments.what_if.is_empty() {
        let mut other = scenario.clone();
        for text in &arguments.what_if {
            what_if::change(text)?.apply(&mut other)?;
        }
        changed = Some(other);
    }
    let mut cases = Vec::new();
    for policy in policies(&arguments.policy)? {
        let options = options(arguments, policy)?;
        cases.push(Case {
            scenario: &scenario,
            options: options.clone(),
        });
        if let Some(changed) = &changed {
            let label = Some(format!("{policy} if {}", arguments.what_if.join(", ")));
            cases.push(Case {
                scenario: changed,
                options: SimulationOptions { label, ..options },
            });
        }
    }
    let outcomes = match &arguments.decisions {
        Some(file) => in_turn(&cases, file)?,
        None => side_by_side(&cases)?,
    };
    let results: Vec<(Summary, SimulationOutcome)> = outcomes
        .into_iter()
        .map(|outcome| (Summary::of(&outcome), outcome))
        .collect();
    if let Some(file) = &arguments.html {
        let page = report::html(&scenario.name, &scenario.notes, &results);
        std::fs::write(file, page)
            .with_context(|| format!("{} cannot be written", file.display()))?;
    }
    let sound = results.iter().all(|(summary, _)| summary.violations == 0);
    let summaries: Vec<Summary> = results.into_iter().map(|(summary, _)| summary).collect();
    let text = match arguments.output {
        SummaryFormat::Text => report::text(&scenario.name, &scenario.notes, &summaries),
        SummaryFormat::Json => serde_json::to_string_pretty(&summaries)? + "\n",
        SummaryFormat::None => String::new(),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(if sound {
        CommandOutcome::Yes
    } else {
        CommandOutcome::No
    })
}

fn scenario(arguments: &Simulate) -> Result<Scenario> {
    if let Some(text) = &arguments.synthetic {
        return Ok(synthetic::generate(&synthetic::parse(text)?)?);
    }
    if arguments.files.is_empty() {
        return Err(InputError::Nothing.into());
    }
    let mut texts = Vec::new();
    for file in &arguments.files {
        texts.push((file.display().to_string(), text_of(file)?));
    }
    let sources: Vec<InputFile<'_>> = texts
        .iter()
        .map(|(file, text)| InputFile { file, text })
        .collect();
    let mut columns = BTreeMap::new();
    for text in &arguments.columns {
        let Some((meaning, name)) = text.split_once('=') else {
            return Err(InputError::Column(text.clone()).into());
        };
        columns.insert(meaning.to_owned(), name.to_owned());
    }
    let cluster = arguments.cluster.as_deref();
    let options = ReadOptions {
        format: arguments
            .format
            .as_deref()
            .map(InputFormat::named)
            .transpose()?,
        columns,
        nodes: cluster
            .map(|text| shape::cluster("--cluster", text))
            .transpose()?
            .unwrap_or_default(),
        start: arguments.start,
    };
    Ok(read(&sources, &options)?)
}

fn settings(arguments: &Simulate) -> Result<Settings> {
    let stale_after = arguments.stale_after.as_deref();
    Ok(Settings {
        actions: arguments
            .actions
            .as_deref()
            .map(settings::actions_option)
            .transpose()?,
        topology: arguments.topology.clone(),
        placement: arguments
            .placement
            .as_deref()
            .map(settings::placement_option)
            .transpose()?,
        stale_after: stale_after
            .map(|text| span("--stale-after", text))
            .transpose()?,
        ..Settings::default()
    })
}

fn span(option: &'static str, text: &str) -> Result<Seconds, InputError> {
    let seconds = simulator::read::duration::seconds(text);
    seconds.map_err(|()| InputError::Span {
        option,
        value: text.to_owned(),
    })
}

fn text_of(file: &Path) -> Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("standard input cannot be read")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))
}

fn policies(names: &[String]) -> Result<Vec<Policy>> {
    if names.iter().any(|name| name == "all") {
        return Ok(Policy::ALL.to_vec());
    }
    let mut policies = Vec::new();
    for name in names {
        let policy: Policy = name.parse()?;
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    Ok(policies)
}

fn options(arguments: &Simulate, policy: Policy) -> Result<SimulationOptions> {
    let maybe = |option: &'static str, text: &Option<String>| {
        text.as_ref().map(|text| span(option, text)).transpose()
    };
    Ok(SimulationOptions {
        policy,
        gather: span("--gather", &arguments.gather)?,
        grace: span("--grace", &arguments.grace)?,
        checkpoint: maybe("--checkpoint", &arguments.checkpoint)?,
        until: maybe("--until", &arguments.until)?,
        check: !arguments.no_check,
        reports: arguments.decisions.is_some(),
        ..SimulationOptions::default()
    })
}

/// Runs the cases in sequence and writes each decision as it is made.
fn in_turn(cases: &[Case<'_>], file: &Path) -> Result<Vec<SimulationOutcome>> {
    let sink: Box<dyn Write> = if file == Path::new("-") {
        Box::new(std::io::stdout().lock())
    } else {
        Box::new(
            File::create(file).with_context(|| format!("{} cannot be written", file.display()))?,
        )
    };
    let mut sink = BufWriter::new(sink);
    let mut failed = None;
    let mut outcomes = Vec::new();
    for case in cases {
        let mut record = |decision: &Decision<'_>| {
            let written = serde_json::to_writer(&mut sink, decision)
                .map_err(std::io::Error::from)
                .and_then(|()| sink.write_all(b"\n"));
            if let Err(error) = written {
                failed.get_or_insert(error);
            }
        };
        outcomes.push(run(case.scenario, &case.options, &mut record)?);
    }
    if let Err(error) = sink.flush() {
        failed.get_or_insert(error);
    }
    match failed {
        Some(error) => Err(error).with_context(|| format!("{} cannot be written", file.display())),
        None => Ok(outcomes),
    }
}

/// Runs each case on its own thread.
fn side_by_side(cases: &[Case<'_>]) -> Result<Vec<SimulationOutcome>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = cases
            .iter()
            .map(|case| scope.spawn(|| run(case.scenario, &case.options, &mut |_| {})))
            .collect();
        let mut outcomes = Vec::new();
        for thread in threads {
            match thread.join() {
                Ok(outcome) => outcomes.push(outcome?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(outcomes)
    })
}
