//! Whole decisions, from objects as users write them: the cases of Kubernetes' own tests, in this module's terms.

use serde_json::{Value, json};

use super::*;

const CPU: &str = "cpu";

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

/// An autoscaler of 2 to 6 replicas by these metrics.
fn scaler(metrics: Value) -> HorizontalPodAutoscaler {
    serde_json::from_value(json!({
        "metadata": {"name": "s", "namespace": "team", "generation": 3},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
            "minReplicas": 2, "maxReplicas": 6, "metrics": metrics,
        },
    }))
    .unwrap()
}

fn percent_of(resource: &str, percent: i32) -> Value {
    json!([{"type": "Resource", "resource": {
        "name": resource, "target": {"type": "Utilization", "averageUtilization": percent},
    }}])
}

/// A pod that has been ready for an hour and requests this.
fn pod(index: usize, requests: Value) -> Pod {
    let hour = now() - SignedDuration::from_hours(1);
    serde_json::from_value(json!({
        "metadata": {"name": format!("p{index}")},
        "spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]},
        "status": {
            "phase": "Running", "startTime": hour.to_string(),
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": hour.to_string()}],
        },
    }))
    .unwrap()
}

fn usage(resource: &str, milli: i64) -> PodUsage {
    PodUsage {
        at: now(),
        window: SignedDuration::from_secs(15),
        containers: BTreeMap::from([(
            "main".to_owned(),
            BTreeMap::from([(resource.to_owned(), milli)]),
        )]),
    }
}

/// A decision over pods that request one unit each, of which these use as many thousandths; none was not measured.
fn decided(resource: &str, percent: i32, used: &[Option<i64>]) -> ScalingDecision {
    let pods: Vec<Pod> = (0..used.len())
        .map(|index| pod(index, json!({resource: "1"})))
        .collect();
    decided_over(resource, percent, used, &pods)
}

fn decided_over(
    resource: &str,
    percent: i32,
    used: &[Option<i64>],
    pods: &[Pod],
) -> ScalingDecision {
    let measured = used.iter().enumerate().filter_map(|(index, milli)| {
        let milli = (*milli)?;
        Some((format!("p{index}"), usage(resource, milli)))
    });
    let replicas = i32::try_from(pods.len()).unwrap();
    let observed = ObservedScaler {
        scaler: &scaler(percent_of(resource, percent)),
        replicas,
        current: replicas,
        pods,
        usage: &measured.collect(),
    };
    let mut memory = ScalingMemory::default();
    // What was proposed five minutes ago holds nothing back.
    let rules = behavior::Rules::of(observed.scaler);
    memory.stabilized(&rules, 1, 1, now() - SignedDuration::from_mins(10));
    decide(&observed, &mut memory, now())
}

fn condition<'a>(decision: &'a ScalingDecision, type_: &str) -> (&'a str, &'a str) {
    let mut all = decision.status.conditions.iter().flatten();
    let found = all.find(|one| one.type_ == type_).unwrap();
    (&found.status, found.reason.as_deref().unwrap_or_default())
}

/// A resource, its target in percent, what the pods use of it in thousandths, and the replicas that follow.
type RatioRow<'a> = (&'a str, i32, &'a [Option<i64>], Option<i32>);

#[test]
fn replicas_follow_the_ratio_of_use_to_target() {
    let table: [RatioRow<'_>; 9] = [
        // 95 % of two GPUs at a target of 80 %.
        ("nvidia.com/gpu", 80, &[Some(950), Some(950)], Some(3)),
        // Within a tenth of the target.
        (CPU, 80, &[Some(860), Some(850)], None),
        (CPU, 50, &[Some(1000), Some(1000), Some(1000)], Some(6)),
        // Fewer than the spec allows.
        (CPU, 80, &[Some(10), Some(10), Some(10)], Some(2)),
        (
            CPU,
            50,
            &[Some(300), Some(300), Some(300), Some(300)],
            Some(3),
        ),
        // A pod without a measurement uses nothing if the target would grow,
        (CPU, 50, &[Some(1000), Some(1000), None], Some(4)),
        // and its request if the target would shrink.
        (CPU, 50, &[Some(100), Some(100), Some(100), None], Some(3)),
        // What it could use turns the direction: nothing changes.
        (CPU, 80, &[Some(700), Some(700), None], None),
        (CPU, 50, &[Some(600), None, None], None),
    ];
    for (resource, percent, used, wanted) in table {
        let decision = decided(resource, percent, used);
        assert_eq!(
            decision.replicas, wanted,
            "{resource} {percent} {used:?}: {decision:?}"
        );
        assert_eq!(condition(&decision, ACTIVE), ("True", "ValidMetricFound"));
    }
}

#[test]
fn the_status_says_what_was_measured_and_which_limit_counts() {
    let decision = decided("nvidia.com/gpu", 10, &[Some(950), Some(750)]);
    assert_eq!(decision.replicas, Some(6));
    assert_eq!(condition(&decision, ABLE), ("True", "SucceededRescale"));
    assert_eq!(condition(&decision, LIMITED), ("True", "TooManyReplicas"));
    let status = serde_json::to_value(&decision.status).unwrap();
    assert_eq!(status["desiredReplicas"], 6);
    assert_eq!(status["currentReplicas"], 2);
    assert_eq!(status["observedGeneration"], 3);
    let current = json!({"averageUtilization": 85, "averageValue": "850m"});
    assert_eq!(status["currentMetrics"][0]["resource"]["current"], current);
    assert_eq!(
        decision.notes,
        [EventNote::normal(
            "SuccessfulRescale",
            "New size: 6; reason: nvidia.com/gpu resource utilization (percentage of request) above target",
        )]
    );
}

#[test]
fn pods_that_start_end_or_failed_do_not_count() {
    let mut pods: Vec<Pod> = (0..4).map(|index| pod(index, json!({CPU: "1"}))).collect();
    // One is being deleted, and one has just become ready: its use was measured before that.
    pods[0].metadata.deletion_timestamp = serde_json::from_value(json!(now().to_string())).unwrap();
    let status = pods[1].status.as_mut().unwrap();
    let just = json!((now() - SignedDuration::from_secs(20)).to_string());
    status.start_time = serde_json::from_value(just).unwrap();
    let conditions = status.conditions.as_mut().unwrap();
    let second = json!((now() - SignedDuration::from_secs(1)).to_string());
    conditions[0].last_transition_time = serde_json::from_value(second).unwrap();
    let used = [Some(1000), Some(9000), Some(500), Some(500)];
    // Two pods at 50 % of a target of 25 %, and one that counts as unused: 1000 / 3 / 250 × 3.
    let decision = decided_over(CPU, 25, &used, &pods);
    assert_eq!(decision.replicas, None, "{decision:?}");
    let decision = decided_over(CPU, 20, &used, &pods);
    assert_eq!(decision.replicas, Some(5), "{decision:?}");
}

#[test]
fn without_measurements_or_requests_nothing_is_scaled_and_the_condition_says_why() {
    let none = decided(CPU, 50, &[None, None]);
    let bare = [pod(0, json!({})), pod(1, json!({}))];
    let unasked = decided_over(CPU, 50, &[Some(100), Some(100)], &bare);
    for (decision, words) in [
        (none, "no metrics of ready pods"),
        (
            unasked,
            "missing request for cpu in container main of Pod p0",
        ),
    ] {
        assert_eq!(decision.replicas, None);
        let (status, reason) = condition(&decision, ACTIVE);
        assert_eq!((status, reason), ("False", "FailedGetResourceMetric"));
        assert!(decision.notes[0].message.contains(words), "{decision:?}");
    }
}

#[test]
fn a_metric_that_cannot_be_read_lets_others_grow_the_target_only() {
    let metrics = json!([
        percent_of(CPU, 50)[0],
        {"type": "External", "external": {"metric": {"name": "queue"}, "target": {"type": "Value", "value": "3"}}},
    ]);
    let pods = [
        pod(0, json!({CPU: "1"})),
        pod(1, json!({CPU: "1"})),
        pod(2, json!({CPU: "1"})),
    ];
    for (milli, wanted, active) in [(900, Some(6), "True"), (10, None, "False")] {
        let used = (0..3).map(|index| (format!("p{index}"), usage(CPU, milli)));
        let observed = ObservedScaler {
            scaler: &scaler(metrics.clone()),
            replicas: 3,
            current: 3,
            pods: &pods,
            usage: &used.collect(),
        };
        let decision = decide(&observed, &mut ScalingMemory::default(), now());
        assert_eq!(decision.replicas, wanted, "{decision:?}");
        assert_eq!(condition(&decision, ACTIVE).0, active);
    }
}

#[test]
fn a_target_is_brought_within_its_bounds_and_one_of_zero_is_left_alone() {
    let table = [
        (
            9,
            Some(6),
            "Current number of replicas above Spec.MaxReplicas",
        ),
        (
            1,
            Some(2),
            "Current number of replicas below Spec.MinReplicas",
        ),
        (0, None, ""),
    ];
    for (replicas, wanted, reason) in table {
        let observed = ObservedScaler {
            scaler: &scaler(percent_of(CPU, 50)),
            replicas,
            current: replicas,
            pods: &[],
            usage: &BTreeMap::new(),
        };
        let decision = decide(&observed, &mut ScalingMemory::default(), now());
        assert_eq!(decision.replicas, wanted);
        match wanted {
            Some(_) => assert!(decision.notes[0].message.ends_with(reason)),
            None => assert_eq!(condition(&decision, ACTIVE), ("False", "ScalingDisabled")),
        }
    }
}

#[test]
fn a_condition_keeps_its_time_while_its_status_stays_and_what_an_earlier_version_said_goes() {
    let mut first = scaler(percent_of(CPU, 50));
    first.status = serde_json::from_value(json!({
        "desiredReplicas": 0, "currentReplicas": 0,
        "conditions": [{"type": "AbleToScale", "status": "False", "reason": "NotRunByMuster",
            "message": "x", "lastTransitionTime": "1970-01-01T00:00:00Z"}],
    }))
    .unwrap();
    let status = unscalable(&first, "FailedGetScale", "gone".to_owned(), now());
    let conditions = status.conditions.clone().unwrap();
    assert_eq!(conditions.len(), 1);
    assert_eq!(
        conditions[0].last_transition_time.as_ref().unwrap().0,
        now()
    );
    first.status = Some(status);
    let later = now() + SignedDuration::from_secs(15);
    let again = unscalable(&first, "FailedGetScale", "gone".to_owned(), later);
    // Set to True and back to False within one decision is no transition.
    let conditions = again.conditions.unwrap();
    assert_eq!(
        conditions[0].last_transition_time.as_ref().unwrap().0,
        now()
    );
}
