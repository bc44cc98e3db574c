//! CronJobs and Deployments through kubectl 1.34: made by its own commands, rolled out, undone, scaled, deleted.

use std::time::Duration;

use e2e::{Platform, eventually};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn a_cron_job_runs_at_its_times_keeps_its_history_and_starts_by_hand() {
    let platform = Platform::up(&["--host-images"]);
    let k = |arguments: &[&str]| platform.kubectl(arguments).ok();
    // kubectl sends it as protobuf.
    let made = k(&[
        "create",
        "cronjob",
        "hello",
        "--image=host",
        "--schedule=@every 1s",
        "--",
        "/bin/sh",
        "-c",
        "echo hello",
    ]);
    assert_eq!(made, "cronjob.batch/hello created\n");
    let success = eventually("a Job of the schedule succeeded", SOON, || {
        let path = "jsonpath={.status.lastSuccessfulTime}";
        let time = k(&["get", "cj", "hello", "-o", path]);
        (!time.is_empty()).then_some(time)
    });
    assert!(success.ends_with('Z'), "{success}");
    let jobs = k(&["get", "jobs", "-o", "name"]);
    let job = jobs.lines().next().unwrap();
    let number = job.strip_prefix("job.batch/hello-").unwrap();
    assert!(number.parse::<u64>().unwrap() > 29_000_000, "{job}");
    let scheduled =
        r"jsonpath={.metadata.annotations.batch\.kubernetes\.io/cronjob-scheduled-timestamp}";
    assert!(k(&["get", job, "-o", scheduled]).ends_with('Z'));
    assert_eq!(k(&["logs", job]), "hello\n");
    let row = k(&["get", "cj"]);
    let row: Vec<&str> = row.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..2], ["hello", "@every"], "{row:?}");
    let told = k(&["describe", "cj", "hello"]);
    for part in ["SuccessfulCreate", "Created job"] {
        assert!(told.contains(part), "{part} is missing in\n{told}");
    }

    k(&["patch", "cj", "hello", "-p", r#"{"spec":{"suspend":true}}"#]);
    k(&["create", "job", "by-hand", "--from=cronjob/hello"]);
    k(&[
        "wait",
        "--for=condition=Complete",
        "job/by-hand",
        "--timeout=60s",
    ]);
    k(&[
        "patch",
        "cj",
        "hello",
        "-p",
        r#"{"spec":{"successfulJobsHistoryLimit":0}}"#,
    ]);
    eventually("ended Jobs go", SOON, || {
        k(&["get", "jobs", "-o", "name"]).is_empty().then_some(())
    });
    k(&["delete", "cj", "hello"]);
}

#[test]
fn a_deployment_is_rolled_out_undone_scaled_and_deleted() {
    let platform = Platform::up(&["--host-images"]);
    let k = |arguments: &[&str]| platform.kubectl(arguments).ok();
    let made = k(&[
        "create",
        "deployment",
        "web",
        "--image=host",
        "--replicas=3",
        "--",
        "sleep",
        "600",
    ]);
    assert_eq!(made, "deployment.apps/web created\n");
    let rolled = |what: &str| {
        let told = k(&["rollout", "status", what, "--timeout=60s"]);
        assert!(told.contains("successfully rolled out"), "{told}");
    };
    rolled("deployment/web");
    let row = k(&["get", "deploy", "web", "-o", "wide"]);
    let row: Vec<&str> = row.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..4], ["web", "3/3", "3", "3"], "{row:?}");
    assert_eq!(row[row.len() - 1], "app=web");
    let all = k(&["get", "all"]);
    for part in ["deployment.apps/web", "replicaset.apps/web-", "pod/web-"] {
        assert!(all.contains(part), "{part} is missing in\n{all}");
    }

    k(&["set", "env", "deployment/web", "COLOUR=blue"]);
    rolled("deployment/web");
    let history = k(&["rollout", "history", "deployment/web"]);
    assert_eq!(
        history
            .lines()
            .filter(|line| line.starts_with(['1', '2']))
            .count(),
        2,
        "{history}"
    );
    k(&["rollout", "undo", "deployment/web"]);
    rolled("deployment/web");
    let environment = "jsonpath={.spec.template.spec.containers[0].env}";
    assert_eq!(k(&["get", "deploy", "web", "-o", environment]), "");
    let revision = r"jsonpath={.metadata.annotations.deployment\.kubernetes\.io/revision}";
    assert_eq!(k(&["get", "deploy", "web", "-o", revision]), "3");

    k(&["scale", "deployment/web", "--replicas=1"]);
    rolled("deployment/web");
    let scale = k(&[
        "get",
        "--raw",
        "/apis/apps/v1/namespaces/default/deployments/web/scale",
    ]);
    assert!(scale.contains(r#""selector":"app=web""#), "{scale}");
    k(&["rollout", "pause", "deployment/web"]);
    k(&["set", "env", "deployment/web", "COLOUR=red"]);
    k(&["rollout", "resume", "deployment/web"]);
    rolled("deployment/web");
    k(&["rollout", "restart", "deployment/web"]);
    rolled("deployment/web");
    let told = k(&["describe", "deployment", "web"]);
    for part in [
        "NewReplicaSetAvailable",
        "ScalingReplicaSet",
        "MinimumReplicasAvailable",
    ] {
        assert!(told.contains(part), "{part} is missing in\n{told}");
    }

    k(&["delete", "deployment", "web"]);
    eventually("its sets and pods go", SOON, || {
        k(&["get", "rs,pods", "-o", "name"])
            .is_empty()
            .then_some(())
    });
}

#[test]
fn a_quota_stops_a_deployment_with_a_reason_and_millions_of_replicas_harm_nothing() {
    let platform = Platform::up(&["--host-images"]);
    let k = |arguments: &[&str]| platform.kubectl(arguments).ok();
    k(&["create", "namespace", "small"]);
    k(&[
        "create",
        "quota",
        "q",
        "-n",
        "small",
        "--hard=pods=2,count/deployments.apps=1",
    ]);
    let deploy = |name: &str| {
        let create = ["create", "deployment", name, "-n", "small", "--image=host"];
        platform.kubectl(&[&create[..], &["--replicas=5", "--", "sleep", "600"]].concat())
    };
    deploy("web").ok();
    let refused = deploy("more");
    assert!(
        refused.err.contains("count/deployments.apps=1"),
        "{}",
        refused.err
    );
    eventually("the failure is shown", SOON, || {
        let path = "jsonpath={.status.conditions[?(@.type=='ReplicaFailure')].message}";
        let message = k(&["get", "deploy", "web", "-n", "small", "-o", path]);
        message.contains("exceeded quota").then_some(())
    });
    k(&[
        "scale",
        "deployment/web",
        "-n",
        "small",
        "--replicas=2147483647",
    ]);
    k(&["delete", "quota", "q", "-n", "small"]);
    // The node holds 250 pods: those run, and of the others 256 wait.
    let pods = || {
        let all = k(&["get", "pods", "-n", "small", "-o", "name"]);
        all.lines().count()
    };
    eventually("many pods wait", SOON, || (pods() > 400).then_some(()));
    // Others are served meanwhile.
    let other = [
        "create",
        "deployment",
        "other",
        "--image=host",
        "--",
        "sleep",
        "600",
    ];
    k(&other);
    let all = pods();
    assert!(all <= 250 + 256, "{all} pods");
    k(&["delete", "deployment", "web", "-n", "small"]);
    k(&["rollout", "status", "deployment/other", "--timeout=120s"]);
}
