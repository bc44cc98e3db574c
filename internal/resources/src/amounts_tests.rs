//! Tests of amounts and of pod requests.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn spec(value: serde_json::Value) -> PodSpec {
    serde_json::from_value(value).unwrap()
}

fn container(
    name: &str,
    requests: serde_json::Value,
    limits: serde_json::Value,
) -> serde_json::Value {
    json!({"name": name, "resources": {"requests": requests, "limits": limits}})
}

fn amounts(pairs: &[(&str, i64)]) -> Amounts {
    pairs
        .iter()
        .map(|(name, amount)| ((*name).to_owned(), *amount))
        .collect()
}

#[test]
fn a_pods_requests_are_its_containers_together() {
    let spec = spec(json!({"containers": [
        container("a", json!({"cpu": "500m", "memory": "1Gi"}), json!({})),
        container("b", json!({"cpu": "1"}), json!({"nvidia.com/gpu": "2"})),
    ]}));
    let want = amounts(&[
        ("cpu", 1500),
        ("memory", 1 << 30),
        ("nvidia.com/gpu", 2),
        ("pods", 1),
    ]);
    assert_eq!(pod_requests(&spec), want);
}

#[test]
fn limits_stand_in_for_absent_requests_only() {
    let spec = spec(json!({"containers": [
        container("a", json!({"cpu": "100m"}), json!({"cpu": "2", "memory": "64Mi"})),
    ]}));
    assert_eq!(
        pod_requests(&spec),
        amounts(&[("cpu", 100), ("memory", 64 << 20), ("pods", 1)])
    );
}

#[test]
fn init_containers_count_where_they_ask_for_more() {
    let spec = spec(json!({
        "initContainers": [
            container("big", json!({"cpu": "3"}), json!({})),
            container("small", json!({"memory": "1"}), json!({})),
        ],
        "containers": [container("a", json!({"cpu": "1", "memory": "5"}), json!({}))],
    }));
    assert_eq!(
        pod_requests(&spec),
        amounts(&[("cpu", 3000), ("memory", 5), ("pods", 1)])
    );
}

#[test]
fn restartable_init_containers_run_beside_all_that_start_after_them() {
    let mut sidecar = container("sidecar", json!({"cpu": "1"}), json!({}));
    sidecar["restartPolicy"] = json!("Always");
    let spec = spec(json!({
        "initContainers": [
            container("before", json!({"cpu": "4"}), json!({})),
            sidecar,
            container("after", json!({"cpu": "5"}), json!({})),
        ],
        "containers": [container("a", json!({"cpu": "2"}), json!({}))],
    }));
    // after (5) with the sidecar (1) is more than a (2) with it (3), and than before (4).
    assert_eq!(pod_requests(&spec).get("cpu"), 6000);
}

#[test]
fn overhead_is_added_and_pod_level_requests_replace_the_sum() {
    let spec = spec(json!({
        "overhead": {"cpu": "250m"},
        "resources": {"requests": {"cpu": "2"}},
        "containers": [container("a", json!({"cpu": "1", "memory": "7"}), json!({}))],
    }));
    assert_eq!(
        pod_requests(&spec),
        amounts(&[("cpu", 2250), ("memory", 7), ("pods", 1)])
    );
}

#[test]
fn a_pod_that_asks_for_nothing_still_counts_as_a_pod() {
    assert_eq!(pod_requests(&PodSpec::default()), amounts(&[("pods", 1)]));
}

#[test]
fn fitting_compares_every_resource_that_is_asked_for() {
    let room = amounts(&[("cpu", 1000), ("memory", 10)]);
    for (wants, missing) in [
        (amounts(&[("cpu", 1000)]), None),
        (amounts(&[("nvidia.com/gpu", 0)]), None),
        (amounts(&[("nvidia.com/gpu", 1)]), Some("nvidia.com/gpu")),
    ] {
        assert_eq!(wants.lacking(&room).next(), missing);
    }
    let wants = amounts(&[("cpu", 1001), ("memory", 10), ("x", 1)]);
    assert_eq!(wants.lacking(&room).collect::<Vec<_>>(), ["cpu", "x"]);
}

#[test]
fn amounts_print_as_quantities() {
    assert_eq!(
        amounts(&[("cpu", 1500), ("memory", 1 << 30), ("pods", 1)]).to_string(),
        "cpu: 1500m, memory: 1Gi, pods: 1"
    );
    assert_eq!(amounts(&[("cpu", 250)]).to_k8s()["cpu"].0, "250m");
}

fn any_amounts() -> impl Strategy<Value = Amounts> {
    proptest::collection::btree_map("[a-d]", 0_i64..1_000_000, 0..4).prop_map(Amounts)
}

proptest! {
    #[test]
    fn taking_away_what_was_added_leaves_what_was_there(a in any_amounts(), b in any_amounts()) {
        let mut sum = a.clone();
        sum.add(&b);
        prop_assert!(a.lacking(&sum).next().is_none() && b.lacking(&sum).next().is_none());
        sum.sub(&b);
        for name in ["a", "b", "c", "d"] {
            prop_assert_eq!(sum.get(name), a.get(name));
        }
    }

    #[test]
    fn arithmetic_saturates(a in any::<i64>(), b in any::<i64>()) {
        let mut x = amounts(&[("r", a)]);
        x.add(&amounts(&[("r", b)]));
        prop_assert_eq!(x.get("r"), a.saturating_add(b));
        prop_assert_eq!(amounts(&[("r", a)]).times(3).get("r"), a.saturating_mul(3));
    }

    #[test]
    fn requests_follow_kubernetes_rule(
        containers in proptest::collection::vec(0_i64..1000, 1..5),
        inits in proptest::collection::vec((0_i64..1000, any::<bool>()), 0..5),
    ) {
        let list = |all: Vec<(i64, bool)>| all.into_iter().enumerate().map(|(i, (cpu, restarts))| {
            let mut one = container(&format!("c{i}"), json!({"cpu": format!("{cpu}m")}), json!({}));
            if restarts {
                one["restartPolicy"] = json!("Always");
            }
            one
        }).collect::<Vec<_>>();
        let spec = spec(json!({
            "containers": list(containers.iter().map(|c| (*c, false)).collect()),
            "initContainers": list(inits.clone()),
        }));
        // At every moment of the pod's life its running containers must fit; the request is the maximum over all
        // moments.
        let mut most = 0;
        let mut beside = 0;
        for (cpu, restarts) in inits {
            most = most.max(beside + cpu);
            if restarts {
                beside += cpu;
            }
        }
        most = most.max(beside + containers.iter().sum::<i64>());
        prop_assert_eq!(pod_requests(&spec).get("cpu"), most);
    }
}
