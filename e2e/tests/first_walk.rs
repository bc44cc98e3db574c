//! The first walk: the example of `make up`, from submission to success.

use std::ffi::OsStr;
use std::time::Duration;

use e2e::{Platform, eventually, repository};

/// Three Python processes import PyTorch on a busy machine of two cores.
const JOB: Duration = Duration::from_secs(240);

#[test]
fn a_distributed_pytorch_job_is_queued_placed_as_a_gang_runs_and_succeeds() {
    let platform = Platform::up(&[]);
    let example = repository().join("packaging/examples/pytorch-ddp.yaml");
    let applied = platform
        .cli(&[OsStr::new("apply"), OsStr::new("-f"), example.as_os_str()])
        .ok();
    assert!(
        applied.contains("pytorchjob.kubeflow.org/pytorch-ddp created"),
        "{applied}"
    );

    let seconds = JOB.as_secs().to_string();
    platform
        .cli(&["wait", "pytorchjob/pytorch-ddp", "--timeout", &seconds])
        .ok();

    let log = platform.cli(&["logs", "pytorch-ddp", "--rank", "0"]).ok();
    let line = log
        .lines()
        .find(|line| line.starts_with("test accuracy "))
        .expect("an accuracy");
    let accuracy: f64 = line.split(' ').nth(2).unwrap().parse().unwrap();
    assert!(accuracy > 0.95, "{line}");
    assert!(log.contains("rank 0 of 3"), "{log}");
    for rank in ["1", "2"] {
        let log = platform.cli(&["logs", "pytorch-ddp", "--rank", rank]).ok();
        assert!(
            log.contains(&format!("rank {rank} of 3 on pytorch-ddp-worker-")),
            "{log}"
        );
    }

    let job = platform.get("pytorchjob", "pytorch-ddp");
    let conditions = job["status"]["conditions"].as_array().unwrap();
    let holds = |kind: &str| {
        conditions
            .iter()
            .any(|c| c["type"] == kind && c["status"] == "True")
    };
    assert!(
        holds("Succeeded") && holds("Created") && !holds("Running"),
        "{conditions:?}"
    );
    assert_eq!(job["status"]["replicaStatuses"]["Master"]["succeeded"], 1);

    // The checkpoint stays in the claim's directory, and the logs outlast the job.
    platform.cli(&["cancel", "pytorch-ddp"]).ok();
    eventually("the pods are gone", Duration::from_secs(60), || {
        let pods = platform.cli(&["get", "pods", "-o", "name"]).out;
        (!pods.contains("pytorch-ddp")).then_some(())
    });
    let log = platform.cli(&["logs", "pytorch-ddp", "--rank", "0"]).ok();
    assert!(log.contains("test accuracy"), "{log}");
}
