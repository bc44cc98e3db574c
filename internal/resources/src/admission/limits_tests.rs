//! Tests of limit ranges: defaults, bounds, wording.

use super::*;

fn range(limits: Value) -> LimitRange {
    serde_json::from_value(json!({"metadata": {"name": "r"}, "spec": {"limits": limits}})).unwrap()
}

fn pod(resources: Value) -> Value {
    json!({"spec": {"containers": [{"name": "c", "resources": resources}]}})
}

#[test]
fn bounds_are_worded_as_kubernetes_words_them() {
    let table = [
        (
            json!({"min": {"cpu": "1"}}),
            json!({}),
            "minimum cpu usage per Container is 1.  No request is specified",
        ),
        (
            json!({"min": {"cpu": "1"}}),
            json!({"requests": {"cpu": "500m"}}),
            "minimum cpu usage per Container is 1, but request is 500m",
        ),
        (
            json!({"min": {"cpu": "1"}}),
            json!({"requests": {"cpu": "1"}, "limits": {"cpu": "100m"}}),
            "minimum cpu usage per Container is 1, but limit is 100m",
        ),
        (
            json!({"max": {"memory": "1Gi"}}),
            json!({}),
            "maximum memory usage per Container is 1Gi.  No limit is specified",
        ),
        (
            json!({"max": {"memory": "1Gi"}}),
            json!({"limits": {"memory": "2Gi"}}),
            "maximum memory usage per Container is 1Gi, but limit is 2Gi",
        ),
        (
            json!({"maxLimitRequestRatio": {"cpu": "2"}}),
            json!({"limits": {"cpu": "3"}, "requests": {"cpu": "1"}}),
            "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000",
        ),
        (
            json!({"maxLimitRequestRatio": {"cpu": "2"}}),
            json!({}),
            "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
        ),
    ];
    for (mut limits, resources, message) in table {
        limits["type"] = json!("Container");
        let broken = limit_ranges(&mut pod(resources), &[range(json!([limits]))]);
        assert_eq!(broken, [message]);
    }
}

#[test]
fn a_pod_within_its_bounds_breaks_none() {
    let limits = json!([
        {"type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "4"}},
        {"type": "Pod", "max": {"cpu": "2"}},
    ]);
    let mut pod = pod(json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "2"}}));
    assert!(limit_ranges(&mut pod, &[range(limits)]).is_empty());
}

#[test]
fn a_pods_bound_looks_at_its_containers_together() {
    let mut pod = json!({"spec": {
        "containers": [
            {"name": "a", "resources": {"limits": {"cpu": "1500m"}}},
            {"name": "b", "resources": {"limits": {"cpu": "1"}}},
        ],
        "initContainers": [{"name": "i", "resources": {"limits": {"cpu": "2"}}}],
    }});
    let broken = limit_ranges(
        &mut pod,
        &[range(json!([{"type": "Pod", "max": {"cpu": "2"}}]))],
    );
    assert_eq!(
        broken,
        ["maximum cpu usage per Pod is 2, but limit is 2500m"]
    );
}

#[test]
fn defaults_fill_only_what_is_absent() {
    let limits = json!([{"type": "Container", "default": {"cpu": "2", "memory": "1Gi"}, "defaultRequest": {"cpu": "1"}}]);
    let mut pod = pod(json!({"requests": {"cpu": "250m"}}));
    assert!(limit_ranges(&mut pod, &[range(limits)]).is_empty());
    assert_eq!(
        pod["spec"]["containers"][0]["resources"],
        json!({"requests": {"cpu": "250m"}, "limits": {"cpu": "2", "memory": "1Gi"}})
    );
    let note = "LimitRanger plugin set: cpu, memory limit for container c";
    assert_eq!(
        pod["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        note
    );
}
