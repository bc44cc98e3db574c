//! An MPIJob on the embedded engine: its launcher runs commands on its workers by the program that `mpirun` is told to
//! use, and in no other pod.

use std::time::Duration;

use e2e::{Platform, eventually};
use serde_json::json;

const JOB: Duration = Duration::from_secs(60);

/// Runs `hostname` on every host of the hostfile, then tries a pod of another job.
const LAUNCHER: &str = r#"set -e
cat /etc/mpi/hostfile
while read -r host slots; do
  echo "$host is $("$OMPI_MCA_plm_rsh_agent" -x "$host" hostname </dev/null)"
done </etc/mpi/hostfile
set +e
"$OMPI_MCA_plm_rsh_agent" j-worker-0 sh -c "'exit 7'" </dev/null
echo "exit status $?"
"$OMPI_MCA_plm_rsh_agent" other true </dev/null
echo "other $?"
"#;

#[test]
fn the_launcher_of_an_mpi_job_runs_commands_on_its_workers_alone() {
    let platform = Platform::up(&[]);
    let replica = |count: u32, container: serde_json::Value| json!({"replicas": count, "template": {"spec": {"containers": [container]}}});
    let job = json!({
        "apiVersion": "kubeflow.org/v1", "kind": "MPIJob", "metadata": {"name": "j"},
        "spec": {"slotsPerWorker": 3, "mpiReplicaSpecs": {
            "Launcher": replica(1, json!({"name": "mpi", "command": ["sh", "-c", LAUNCHER]})),
            "Worker": replica(2, json!({"name": "mpi"})),
        }},
    });
    let other = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"},
        "spec": {"containers": [{"name": "c", "command": ["sleep", "600"]}]}});
    platform.apply(&other.to_string());
    platform.apply(&job.to_string());
    let seconds = JOB.as_secs().to_string();
    platform
        .cli(&["wait", "mpijob/j", "--timeout", &seconds])
        .ok();

    let log = platform.cli(&["logs", "j"]).ok();
    for line in [
        "j-worker-0.j.default.svc slots=3",
        "j-worker-1.j.default.svc slots=3",
        "j-worker-0.j.default.svc is j-worker-0",
        "j-worker-1.j.default.svc is j-worker-1",
        "exit status 7",
    ] {
        assert!(log.lines().any(|one| one == line), "{line}: {log}");
    }
    assert!(log.contains("\"other\" is forbidden"), "{log}");
    assert!(!log.contains("other 0"), "{log}");

    let job = platform.get("mpijob", "j");
    assert_eq!(job["apiVersion"], "kubeflow.org/v2beta1");
    assert_eq!(job["status"]["replicaStatuses"]["Launcher"]["succeeded"], 1);
    eventually("the workers are deleted", JOB, || {
        let pods = platform.cli(&["get", "pods", "-o", "name"]).out;
        (!pods.contains("j-worker")).then_some(())
    });
    // Its pods' logs are found by rank when the job is gone, too.
    platform.cli(&["cancel", "j"]).ok();
    let gone = || platform.cli(&["logs", "j"]);
    eventually("the log is kept", JOB, || {
        gone().out.contains("exit status 7").then_some(())
    });
}
