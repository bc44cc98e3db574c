//! The real Kubernetes under the other tests: its own programs work together before Muster joins
//! them.

use std::time::Duration;

use e2e::{Cluster, IMAGE, Network, Setup, eventually};
use serde_json::json;

const SOON: Duration = Duration::from_secs(120);

fn pod(name: &str, script: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: Never
  containers:
    - name: c
      image: {IMAGE}
      imagePullPolicy: Never
      command: [sh, -c, {script:?}]
"#
    )
}

fn phase(cluster: &Cluster, pod: &str) -> String {
    cluster
        .kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.phase}"])
        .out
}

#[test]
fn a_pod_runs_on_each_of_two_real_kubelets_and_its_log_is_read_through_the_api() {
    let network = Network::new(0);
    let address = network.host().parse().expect("an address");
    let cluster = (Setup::default().at(address).kubelet("one").kubelet("two"))
        .start()
        .with_controller_manager()
        .with_scheduler(None);
    let _kubelets = [cluster.kubelet("one"), cluster.kubelet("two")];
    for node in ["one", "two"] {
        let text = pod(node, "echo says $HOSTNAME; exit 0");
        cluster.apply(&format!(
            "{text}  nodeSelector: {{kubernetes.io/hostname: {node}}}\n"
        ));
    }
    for node in ["one", "two"] {
        eventually("the pod ends well", SOON, || {
            (phase(&cluster, node) == "Succeeded").then_some(())
        });
        assert_eq!(
            cluster.kubectl(&["logs", node]).ok(),
            format!("says {node}\n")
        );
    }
}

#[test]
fn two_clusters_side_by_side_run_pods_on_nodes_that_kwok_plays() {
    let clusters = [(); 2].map(|()| {
        Cluster::start()
            .with_controller_manager()
            .with_scheduler(None)
            .with_kwok()
    });
    for cluster in &clusters {
        cluster.plain_node("n0", 8, 0, &json!({}));
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "many"},
            "spec": {"parallelism": 20, "completions": 20, "template": {"spec": {
                "restartPolicy": "Never", "containers": [{"name": "c", "image": IMAGE}]}}}});
        cluster.apply(&job.to_string());
    }
    for cluster in &clusters {
        eventually("all its pods succeed", SOON, || {
            let path = "jsonpath={.status.succeeded}";
            let ran = cluster.kubectl(&["get", "job", "many", "-o", path]);
            (ran.out == "20").then_some(())
        });
    }
}
