//! The tests of a failure's class, story and evidence.

use serde_json::{Value, json};

use super::*;

fn pod(status: Value) -> Pod {
    let pod = json!({"metadata": {"name": "p", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": "n1", "containers": [
                {"name": "main", "resources": {"limits": {"memory": "64Mi"}}}]}, "status": status});
    serde_json::from_value(pod).unwrap()
}

fn ended_with(terminated: Value) -> Pod {
    pod(
        json!({"phase": "Failed", "containerStatuses": [{"name": "main", "image": "", "imageID": "",
            "ready": false, "restartCount": 0, "state": {"terminated": terminated}}]}),
    )
}

fn disrupted(reason: &str, message: &str) -> Pod {
    let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:05Z"});
    let mut pod = pod(json!({"phase": "Running", "conditions": [condition]}));
    pod.metadata.deletion_timestamp = pod.metadata.creation_timestamp.clone();
    pod
}

#[test]
fn each_end_has_its_class_and_evidence() {
    let lost = json!({"phase": "Failed", "reason": "NodeLost", "message": "The node has not reported for 40 s."});
    let unfit = json!({"phase": "Failed", "reason": "NodeUnfit", "message": "no cgroup"});
    let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "The disk is full. "});
    let waits = |reason: &str| {
        pod(
            json!({"phase": "Pending", "containerStatuses": [{"name": "main", "image": "", "imageID": "",
                "ready": false, "restartCount": 0, "state": {"waiting": {"reason": reason, "message": "no such thing."}}}]}),
        )
    };
    let trace = "  File \"t.py\", line 1, in f\nValueError: no data\n\n";
    let table = [
        (
            ended_with(json!({"exitCode": 3, "reason": "Error"})),
            "exit-code",
            "exited with code 3",
        ),
        (
            ended_with(json!({"exitCode": 3, "reason": "Error", "message": "x\nno shard\n"})),
            "exit-code",
            "exited with code 3: no shard",
        ),
        (
            ended_with(json!({"exitCode": 1, "reason": "Error", "message": trace})),
            "python-error",
            "exited with code 1: ValueError: no data (t.py line 1, in f)",
        ),
        (
            ended_with(json!({"exitCode": 1, "message": "NCCL WARN socket closed"})),
            "network-error",
            "exited with code 1: NCCL WARN socket closed",
        ),
        (
            ended_with(
                json!({"exitCode": 1, "message": "CUDA error: uncorrectable ECC error encountered"}),
            ),
            "gpu-error",
            "exited with code 1: CUDA error: uncorrectable ECC error encountered",
        ),
        (
            ended_with(json!({"exitCode": 137, "reason": "Error"})),
            "signal",
            "was killed by SIGKILL (exit code 137)",
        ),
        (
            ended_with(json!({"exitCode": 139})),
            "signal",
            "was killed by SIGSEGV (exit code 139)",
        ),
        (
            ended_with(json!({"exitCode": 255})),
            "exit-code",
            "exited with code 255",
        ),
        (
            ended_with(json!({"exitCode": 137, "reason": "OOMKilled"})),
            "out-of-memory",
            "ran out of memory (exit code 137, OOMKilled): its memory limit is 64Mi",
        ),
        (
            ended_with(
                json!({"exitCode": 128, "reason": "StartError", "message": "exec: \"pyhton3\": not found on this node.\nmore"}),
            ),
            "start-error",
            "did not start: exec: \"pyhton3\": not found on this node",
        ),
        (
            ended_with(json!({"exitCode": 128, "reason": "StartError"})),
            "start-error",
            "exited with code 128 (StartError)",
        ),
        (
            pod(lost),
            "node-lost",
            "was lost with node n1: The node has not reported for 40 s",
        ),
        (
            pod(unfit),
            "node-unfit",
            "could not be started by node n1: no cgroup",
        ),
        (
            pod(evicted),
            "evicted",
            "was evicted by node n1: The disk is full",
        ),
        (
            disrupted("PreemptionByScheduler", "Reclaimed: reclaimed for ns/h"),
            "preempted",
            "was reclaimed for ns/h",
        ),
        (
            disrupted(
                "PreemptionByScheduler",
                "FailedDevice: uses a GPU that failed",
            ),
            "gpu-error",
            "uses a GPU that failed",
        ),
        (
            disrupted("PreemptionByScheduler", "StaleGang: its gang is too small"),
            "evicted",
            "was evicted: its gang is too small",
        ),
        (
            disrupted("EvictionByEvictionAPI", "Eviction API: evicting"),
            "evicted",
            "was evicted: Eviction API: evicting",
        ),
        (
            waits("ErrImagePull"),
            "image-error",
            "has no image (ErrImagePull): no such thing",
        ),
        (
            waits("CreateContainerConfigError"),
            "volume-error",
            "cannot be started (CreateContainerConfigError): no such thing",
        ),
        (pod(json!({"phase": "Failed"})), "exit-code", "failed"),
    ];
    for (pod, class, words) in table {
        assert!(shows_failure(&pod, ""), "{words}");
        let story = story(&pod, "");
        assert_eq!(
            (story.class.as_str(), story.predicate().as_str()),
            (class, words)
        );
        let disrupted = [
            "was lost",
            "could not be",
            "was reclaimed",
            "was evicted: ",
            "uses a GPU",
        ];
        let of_platform = disrupted.iter().any(|begin| words.starts_with(begin));
        assert_eq!(is_of_platform(&pod), of_platform, "{words}");
    }
    assert!(!shows_failure(&waits("ContainerCreating"), ""));
    assert!(!shows_failure(&pod(json!({"phase": "Succeeded"})), ""));
    let message = json!({"exitCode": 1, "message": "x".repeat(5000)});
    assert!(story(&ended_with(message), "").predicate().len() < 2 * STATUS_TEXT_MAX);
    let long = json!({"phase": "Failed", "reason": "Evicted", "message": "x".repeat(5000)});
    assert!(story(&pod(long), "").predicate().len() < 2 * STATUS_TEXT_MAX);
}

fn failed(name: &str, code: i32, second: u32, message: &str) -> Pod {
    let finished = format!("2026-01-01T00:00:{second:02}Z");
    let mut pod = ended_with(json!({"exitCode": code, "finishedAt": finished, "message": message}));
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.uid = Some(name.to_owned());
    pod
}

fn members(pods: &[Pod]) -> impl Iterator<Item = Member<'_>> {
    pods.iter().map(|pod| Member {
        pod,
        rank: None,
        main: "",
        attempts: 1,
        attempt: 0,
        hang: None,
    })
}

#[test]
fn the_first_failure_is_the_earliest_and_of_a_second_the_cause() {
    let gang = [
        failed("late", 1, 9, ""),
        failed("peer", 1, 5, "gloo/transport: Connection closed by peer"),
        failed("killed", 137, 5, ""),
        failed("cause", 3, 5, ""),
    ];
    let name =
        |pods: &[Pod]| first(members(pods)).map(|found| pod_facts::name(found.pod).to_owned());
    assert_eq!(name(&gang).unwrap(), "cause");
    assert_eq!(name(&gang[..3]).unwrap(), "killed");
    assert_eq!(name(&gang[..2]).unwrap(), "peer");
    assert_eq!(name(&[pod(json!({"phase": "Running"}))]), None);
}

#[test]
fn a_hang_is_of_the_whole_job_and_gives_way_to_a_pods_own_failure() {
    let at: Timestamp = "2026-01-01T00:00:07Z".parse().unwrap();
    let hang = HangRecord {
        since: "2026-01-01T00:00:00Z".parse().unwrap(),
        at,
        after: 60,
        action: resources::hang::OnHang::Restart,
        unused: resources::hang::WorkMeasure::Gpu,
        ranks: true,
        pod: "p".to_owned(),
        uid: "u".to_owned(),
    };
    let runs = pod(json!({"phase": "Running"}));
    let member = |pod| Member {
        pod,
        rank: Some(0),
        main: "",
        attempts: 3,
        attempt: 2,
        hang: Some(&hang),
    };
    let found = observe(None, std::iter::once(member(&runs))).unwrap();
    assert_eq!((found.class, found.at), (FailureClass::Hang, Some(at)));
    assert_eq!((found.attempts, found.attempt, found.charged), (1, 2, true));
    assert_eq!(
        found.sentence(),
        "No rank has written a log line or used its GPU since 2026-01-01T00:00:00Z, and muster.io/hang-after is 60s"
    );
    let cause = failed("cause", 3, 9, "");
    let own = observe(None, std::iter::once(member(&cause))).unwrap();
    assert_eq!(own.class, FailureClass::ExitCode);
    // Another pod that failed is the cause, although it failed later.
    let others = members(std::slice::from_ref(&cause));
    let both = observe(None, std::iter::once(member(&runs)).chain(others)).unwrap();
    assert_eq!(both.pod, "cause");
}

#[test]
fn a_record_stands_for_its_incident_and_outlives_its_pod() {
    let cause = [failed("cause", 3, 5, "")];
    let known = observe(None, members(&cause)).unwrap();
    assert_eq!(known.pod, "cause");
    let with_action = FailureRecord {
        action: Some(resources::failure::FailureAction::RestartGang),
        ..known
    };
    let again = observe(Some(with_action.clone()), members(&cause)).unwrap();
    assert_eq!(again, with_action, "the same end keeps what followed");
    assert_eq!(
        observe(Some(again.clone()), members(&[])),
        Some(again.clone())
    );
    let follows = [failed("follows", 1, 20, "")];
    assert_eq!(
        observe(Some(again.clone()), members(&follows)).unwrap().pod,
        "cause"
    );
    let earlier = [failed("earlier", 1, 2, "")];
    assert_eq!(
        observe(Some(again.clone()), members(&earlier)).unwrap().pod,
        "earlier"
    );
    // A pod that was created after the failure failed anew.
    let mut anew = failed("anew", 1, 20, "");
    anew.metadata.creation_timestamp =
        serde_json::from_value(json!("2026-01-01T00:00:08Z")).unwrap();
    assert_eq!(
        observe(Some(again.clone()), members(&[anew])).unwrap().pod,
        "anew"
    );
    // So did the one that replaced it, and one of the next attempt, though in the same second.
    let mut replaced = failed("cause", 3, 6, "");
    replaced.metadata.uid = Some("other".to_owned());
    let record = observe(Some(again.clone()), members(&[replaced])).unwrap();
    assert_eq!((record.uid.as_str(), record.action), ("other", None));
    let next = failed("next", 3, 6, "");
    let next = Member {
        pod: &next,
        rank: None,
        main: "",
        attempts: 1,
        attempt: 1,
        hang: None,
    };
    let record = observe(Some(again.clone()), std::iter::once(next)).unwrap();
    assert_eq!(record.pod, "next");
    // A restart in place failed in the second of the failure before it.
    let twice = Member {
        pod: &cause[0],
        rank: None,
        main: "",
        attempts: 2,
        attempt: 0,
        hang: None,
    };
    let record = observe(Some(again.clone()), std::iter::once(twice)).unwrap();
    assert_eq!((record.attempts, record.action), (2, again.action));
    // Better words for the same end change no action.
    let known = FailureRecord {
        class: FailureClass::Evicted,
        ..again.clone()
    };
    let observed = observe(Some(known), members(&cause)).unwrap();
    assert_eq!(
        (observed.class, observed.action),
        (FailureClass::ExitCode, again.action)
    );
}
