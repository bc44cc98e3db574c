//! The quick part of the openb benchmark: the baselines match the published results, the
//! scheduler's own policy is better and keeps the rules. `make bench-openb` runs all of it.

#[path = "../benches/openb/files.rs"]
mod files;

use std::path::PathBuf;

use simulator::openb::{
    Arrivals, OpenbCluster, OpenbPod, Played, PublishedResults, Which, first_difference, lists_of,
    placements, play, read_pods, typical,
};

const NODES: &str = "nodes/openb_node_list_gpu_node.csv";
const EXPECTED: &str = "expected/expected_per_seed.csv";

/// The input of one run.
struct Input {
    dir: PathBuf,
    cluster: OpenbCluster,
    pods: Vec<OpenbPod>,
    arrivals: Arrivals,
}

impl Input {
    /// None, with a message, if the benchmark's data is absent: it is not part of the project.
    fn of(variant: &str, seed: u64) -> Option<Input> {
        let Some(dir) = files::folder() else {
            eprintln!("skipped: the data of openb is not there; OPENB names its folder");
            return None;
        };
        let text = |name: &str| files::text(&dir, name).expect("a file of the benchmark");
        let cluster = OpenbCluster::read(NODES, &text(NODES)).expect("nodes");
        let list = format!("pods/openb_pod_list_{variant}.csv");
        let pods = read_pods(&list, &text(&list), &cluster).expect("pods");
        let (file, list) =
            files::first(&dir.join("arrivals"), &lists_of(variant)).expect("arrivals");
        let ranks = text("arrivals/node_rank.csv");
        let arrivals = Arrivals::read((&file, &list), ("ranks", &ranks), variant, seed);
        Some(Input {
            arrivals: arrivals.expect("arrivals"),
            dir,
            cluster,
            pods,
        })
    }

    fn play(&self, which: Which) -> Played {
        let rank = &self.arrivals.rank;
        let mut policy = which.make(&self.cluster, &self.pods, rank);
        let mix = typical(&self.pods);
        play(
            &self.cluster,
            &self.pods,
            &self.arrivals,
            &mix,
            policy.as_mut(),
        )
        .expect("a run that keeps the rules")
    }
}

#[test]
fn best_fit_and_fgd_place_every_pod_as_published() {
    let Some(input) = Input::of("default", 42) else {
        return;
    };
    let text = |name: &str| files::text(&input.dir, name).expect("a file of the benchmark");
    let published = text(EXPECTED);
    let expected = PublishedResults::read(EXPECTED, &published).expect("a table");
    for which in [Which::BestFit, Which::Fgd] {
        let run = input.play(which);
        let golden = text(&format!("expected/golden_{which}_default_s42.csv"));
        let found = placements(&input.cluster, &input.pods, &input.arrivals, &run);
        assert_eq!(first_difference(&golden, &found), None, "{which}");
        let name = which.to_string();
        let key = ("default", name.as_str(), 42);
        let compared = expected.compare(key, &input.arrivals, &run).expect("cells");
        assert_eq!(compared.cells, 21);
        assert_eq!(compared.differences, [""; 0]);
    }
}

#[test]
fn the_scheduler_gives_out_more_than_fgd_and_fails_fewer_large_pods() {
    let Some(input) = Input::of("multigpu50", 42) else {
        return;
    };
    let (fgd, own) = (input.play(Which::Fgd), input.play(Which::MusterTold));
    for level in [100, 130] {
        let (fgd, own) = (fgd.bins.allocation(level), own.bins.allocation(level));
        assert!(own > fgd + 0.3, "{own:.2} and FGD {fgd:.2} at {level}");
    }
    assert!(own.failed(8) <= fgd.failed(8));
}

#[test]
fn the_classes_that_fgd_expects_are_those_published() {
    let Some(input) = Input::of("default", 42) else {
        return;
    };
    let mix = typical(&input.pods);
    assert_eq!(mix.classes().len(), 35);
    let (first, weight) = mix.classes()[0];
    assert_eq!((first.cpu, first.milli, first.gpus), (3152, 810, 1));
    assert!((weight - 0.134_818_439_351).abs() < 1e-9);
}

#[test]
fn a_fault_in_the_benchmarks_files_is_reported_with_its_line_and_column() {
    let head = "sn,cpu_milli,memory_mib,gpu,model\n";
    for (lines, expected) in [
        (
            "n1,64000,1,2\n",
            "n.csv, line 2: the line has 4 values, and the header has 5",
        ),
        (
            "n1,64000,1,2,T4\n\nn2,many,1,2,T4\n",
            "n.csv, line 4: cpu_milli: \"many\" is not usable; write a number",
        ),
    ] {
        let error = OpenbCluster::read("n.csv", &format!("{head}{lines}")).expect_err(lines);
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    let error = OpenbCluster::read("n.csv", "sn,cpu_milli\n").expect_err("columns are missing");
    assert!(error.to_string().contains("memory_mib"), "{error}");
}
