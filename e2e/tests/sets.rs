//! StatefulSets and DaemonSets through kubectl 1.34: rollouts, their undoing, scaling, claims, and pods that outlive
//! their set and are adopted by the next one.

use std::time::Duration;

use e2e::{Platform, eventually};

const SOON: Duration = Duration::from_secs(60);

fn apply(platform: &Platform, manifest: &str) {
    let file = tempfile::Builder::new()
        .suffix(".yaml")
        .tempfile()
        .expect("a file for the manifest");
    std::fs::write(file.path(), manifest).expect("the manifest is written");
    let path = file.path().display().to_string();
    platform.kubectl(&["apply", "-f", &path]).ok();
}

fn rolled_out(platform: &Platform, what: &str) {
    let told = platform
        .kubectl(&["rollout", "status", what, "--timeout=90s"])
        .ok();
    assert!(
        told.contains("roll out complete") || told.contains("successfully rolled out"),
        "{told}"
    );
}

fn revisions(platform: &Platform, what: &str) -> usize {
    let history = platform.kubectl(&["rollout", "history", what]).ok();
    let numbered = |line: &&str| line.starts_with(|first: char| first.is_ascii_digit());
    history.lines().filter(numbered).count()
}

const STATEFUL: &str = r#"
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  serviceName: db
  selector: {matchLabels: {app: db}}
  persistentVolumeClaimRetentionPolicy: {whenScaled: Delete, whenDeleted: Retain}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: host
        command: [sleep, "600"]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 1Mi}}
"#;

#[test]
fn a_stateful_set_is_rolled_out_undone_scaled_orphaned_and_adopted() {
    let platform = Platform::up(&["--host-images"]);
    let k = |arguments: &[&str]| platform.kubectl(arguments).ok();
    apply(&platform, STATEFUL);
    rolled_out(&platform, "sts/db");
    let row = k(&["get", "sts", "db"]);
    let row: Vec<&str> = row.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..2], ["db", "2/2"], "{row:?}");
    let names = |kind: &str| {
        let text = k(&[
            "get",
            kind,
            "-l",
            "app=db",
            "-o",
            "name",
            "--sort-by=.metadata.name",
        ]);
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names("pods"), ["pod/db-0", "pod/db-1"]);
    assert_eq!(names("pvc").len(), 2);
    let told = k(&["describe", "sts", "db"]);
    assert!(told.contains("SuccessfulCreate"), "{told}");
    assert!(!told.contains("NotRunByMuster"), "{told}");

    k(&["set", "env", "sts/db", "COLOUR=blue"]);
    rolled_out(&platform, "sts/db");
    assert_eq!(revisions(&platform, "sts/db"), 2);
    let environment = "jsonpath={.spec.containers[0].env[*].value}";
    assert_eq!(k(&["get", "pod", "db-0", "-o", environment]), "blue");
    k(&["rollout", "undo", "sts/db"]);
    rolled_out(&platform, "sts/db");
    assert_eq!(k(&["get", "pod", "db-0", "-o", environment]), "");
    k(&["rollout", "restart", "sts/db"]);
    rolled_out(&platform, "sts/db");

    // The claim of the last pod goes with it, by the retention policy.
    k(&["scale", "sts/db", "--replicas=1"]);
    eventually("the second pod and its claim go", SOON, || {
        (names("pods").len() == 1 && names("pvc").len() == 1).then_some(())
    });

    // A pod that outlives its set belongs to the next set of the same selector.
    let uid = "jsonpath={.metadata.uid}";
    k(&["delete", "sts", "db", "--cascade=orphan"]);
    let owners = "jsonpath={.metadata.ownerReferences[*].uid}";
    assert_eq!(k(&["get", "pod", "db-0", "-o", owners]), "");
    apply(&platform, &STATEFUL.replace("replicas: 2", "replicas: 1"));
    let set_uid = k(&["get", "sts", "db", "-o", uid]);
    // The new set has another revision than the pod, and replaces it: for a moment there is none.
    eventually("the set adopts the pod", SOON, || {
        let found = platform.kubectl(&["get", "pod", "db-0", "-o", owners]).out;
        (found == set_uid).then_some(())
    });
    rolled_out(&platform, "sts/db");
    k(&["delete", "sts", "db"]);
    eventually("its pods go", SOON, || {
        names("pods").is_empty().then_some(())
    });
    assert_eq!(names("pvc").len(), 1, "whenDeleted: Retain");
}

#[test]
fn a_daemon_set_runs_on_each_node_that_it_selects_and_rolls_out() {
    let platform = Platform::up(&["--host-images"]);
    let k = |arguments: &[&str]| platform.kubectl(arguments).ok();
    let set = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: watch}
spec:
  selector: {matchLabels: {app: watch}}
  template:
    metadata: {labels: {app: watch}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: host, command: [sleep, "600"]}]
"#;
    let node = k(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    // Pods of DaemonSets tolerate a cordoned node.
    k(&["cordon", &node]);
    apply(&platform, set);
    rolled_out(&platform, "ds/watch");
    let row = k(&["get", "ds", "watch"]);
    let row: Vec<&str> = row.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..6], ["watch", "1", "1", "1", "1", "1"], "{row:?}");
    k(&["uncordon", &node]);

    k(&["set", "env", "ds/watch", "COLOUR=blue"]);
    rolled_out(&platform, "ds/watch");
    assert_eq!(revisions(&platform, "ds/watch"), 2);
    let environment = "jsonpath={.items[*].spec.containers[0].env[*].value}";
    let pods = ["get", "pods", "-l", "app=watch", "-o", environment];
    assert_eq!(k(&pods), "blue");
    k(&["rollout", "undo", "ds/watch"]);
    rolled_out(&platform, "ds/watch");
    k(&["rollout", "restart", "ds/watch"]);
    rolled_out(&platform, "ds/watch");

    // A node that no longer matches loses the pod; one that matches again gets it back.
    let selector = r#"{"spec":{"template":{"spec":{"nodeSelector":{"watched":"yes"}}}}}"#;
    k(&["patch", "ds", "watch", "-p", selector]);
    let names = || k(&["get", "pods", "-l", "app=watch", "-o", "name"]);
    eventually("the pod goes", SOON, || names().is_empty().then_some(()));
    k(&["label", "node", &node, "watched=yes"]);
    eventually("the pod comes back", SOON, || {
        (names().lines().count() == 1).then_some(())
    });
    rolled_out(&platform, "ds/watch");
    k(&["delete", "ds", "watch"]);
    eventually("its pods go", SOON, || names().is_empty().then_some(()));
}

#[test]
fn a_replica_set_releases_a_pod_whose_labels_change_and_adopts_it_again() {
    let platform = Platform::up(&["--host-images"]);
    let k = |arguments: &[&str]| platform.kubectl(arguments).ok();
    let create = [
        "create",
        "deployment",
        "web",
        "--image=host",
        "--",
        "sleep",
        "600",
    ];
    k(&create);
    rolled_out(&platform, "deployment/web");
    let pod = k(&["get", "pods", "-l", "app=web", "-o", "name"]);
    let pod = pod.trim();
    k(&["label", pod, "app=apart", "--overwrite"]);
    let owners = "jsonpath={.metadata.ownerReferences[*].kind}";
    eventually("the pod is released and replaced", SOON, || {
        let released = k(&["get", pod, "-o", owners]).is_empty();
        let others = k(&["get", "pods", "-l", "app=web", "-o", "name"]);
        (released && others.lines().count() == 1).then_some(())
    });
    // With the label back, the set has two pods and one too many.
    k(&["label", pod, "app=web", "--overwrite"]);
    eventually("one of both goes", SOON, || {
        let all = k(&["get", "pods", "-o", "name"]);
        (all.lines().count() == 1).then_some(())
    });
    k(&["delete", "deployment", "web"]);
}
