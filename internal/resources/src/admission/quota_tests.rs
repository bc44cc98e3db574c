//! Tests of quotas: usage, matching, wording.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::registry::find;

fn pods() -> &'static Kind {
    find("", "v1", "pods").unwrap()
}

fn usage(pairs: &[(&str, &str)]) -> QuotaUsage {
    pairs
        .iter()
        .map(|(name, quantity)| ((*name).to_owned(), quantity.parse().unwrap()))
        .collect()
}

fn pod(resources: Value) -> Value {
    json!({"spec": {"containers": [{"name": "c", "resources": resources}]}})
}

#[test]
fn a_pod_counts_under_every_name_that_a_quota_may_use() {
    let pod = pod(json!({
        "requests": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "2"},
        "limits": {"cpu": "2", "nvidia.com/gpu": "2"},
    }));
    assert_eq!(
        usage_of(pods(), &pod),
        usage(&[
            ("count/pods", "1"),
            ("pods", "1"),
            ("cpu", "1"),
            ("requests.cpu", "1"),
            ("limits.cpu", "2"),
            ("memory", "1Gi"),
            ("requests.memory", "1Gi"),
            ("requests.nvidia.com/gpu", "2"),
            ("limits.nvidia.com/gpu", "2"),
        ])
    );
}

#[test]
fn a_pod_that_has_ended_counts_only_as_an_object() {
    let mut ended = pod(json!({"requests": {"cpu": "1"}}));
    ended["status"] = json!({"phase": "Succeeded"});
    assert_eq!(usage_of(pods(), &ended), usage(&[("count/pods", "1")]));
}

#[test]
fn other_kinds_count_by_their_number() {
    let table = [
        (
            "",
            "v1",
            "configmaps",
            json!({}),
            usage(&[("configmaps", "1"), ("count/configmaps", "1")]),
        ),
        (
            "batch",
            "v1",
            "jobs",
            json!({}),
            usage(&[("count/jobs.batch", "1")]),
        ),
        (
            "kubeflow.org",
            "v1",
            "pytorchjobs",
            json!({}),
            usage(&[("count/pytorchjobs.kubeflow.org", "1")]),
        ),
        (
            "",
            "v1",
            "persistentvolumeclaims",
            json!({"spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "5Gi"}}}}),
            usage(&[
                ("count/persistentvolumeclaims", "1"),
                ("persistentvolumeclaims", "1"),
                ("requests.storage", "5Gi"),
                ("fast.storageclass.storage.k8s.io/requests.storage", "5Gi"),
                (
                    "fast.storageclass.storage.k8s.io/persistentvolumeclaims",
                    "1",
                ),
            ]),
        ),
    ];
    for (group, version, plural, object, expected) in table {
        assert_eq!(
            usage_of(find(group, version, plural).unwrap(), &object),
            expected
        );
    }
}

#[test]
fn a_full_quota_is_worded_as_kubernetes_words_it() {
    let hard = usage(&[("pods", "2"), ("requests.cpu", "4"), ("limits.cpu", "8")]);
    let used = usage(&[
        ("pods", "2"),
        ("requests.cpu", "3500m"),
        ("limits.cpu", "1"),
    ]);
    let requested = usage(&[
        ("pods", "1"),
        ("requests.cpu", "1"),
        ("limits.cpu", "1"),
        ("count/pods", "1"),
    ]);
    assert_eq!(
        exceeded("q", &hard, &used, &requested).unwrap(),
        "exceeded quota: q, requested: pods=1,requests.cpu=1, used: pods=2,requests.cpu=3500m, limited: pods=2,requests.cpu=4"
    );
    assert_eq!(
        exceeded(
            "q",
            &usage(&[("pods", "2")]),
            &usage(&[("pods", "2")]),
            &requested
        )
        .unwrap(),
        "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"
    );
    assert_eq!(exceeded("q", &hard, &QuotaUsage::new(), &requested), None);
}

#[test]
fn a_quota_on_cpu_wants_every_container_to_say_how_much() {
    let hard = usage(&[
        ("requests.cpu", "4"),
        ("limits.memory", "1Gi"),
        ("requests.nvidia.com/gpu", "1"),
    ]);
    let silent = json!({"spec": {
        "containers": [{"name": "b"}, {"name": "a", "resources": {"requests": {"cpu": "1"}}}],
        "initContainers": [{"name": "i"}],
    }});
    assert_eq!(
        must_specify("q", &hard, pods(), &silent).unwrap(),
        "failed quota: q: must specify limits.memory for: a,b,i; requests.cpu for: b,i"
    );
    let said = pod(json!({"requests": {"cpu": "1"}, "limits": {"memory": "1"}}));
    assert_eq!(must_specify("q", &hard, pods(), &said), None);
    assert_eq!(
        must_specify("q", &hard, find("", "v1", "secrets").unwrap(), &silent),
        None
    );
}

#[test]
fn scopes_choose_pods() {
    let quota =
        |spec: Value| -> ResourceQuota { serde_json::from_value(json!({"spec": spec})).unwrap() };
    let best_effort = pod(json!({}));
    let mut ending = pod(json!({"requests": {"cpu": "1"}}));
    ending["spec"]["activeDeadlineSeconds"] = json!(5);
    ending["spec"]["priorityClassName"] = json!("high");
    let high = json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}});
    let table = [
        (json!({}), true, true),
        (json!({"scopes": ["BestEffort"]}), true, false),
        (json!({"scopes": ["NotBestEffort"]}), false, true),
        (json!({"scopes": ["Terminating"]}), false, true),
        (
            json!({"scopes": ["NotTerminating", "BestEffort"]}),
            true,
            false,
        ),
        (high.clone(), false, true),
    ];
    for (spec, first, second) in table {
        assert_eq!(
            matches_scopes(&quota(spec.clone()), pods(), &best_effort),
            first,
            "{spec}"
        );
        assert_eq!(
            matches_scopes(&quota(spec.clone()), pods(), &ending),
            second,
            "{spec}"
        );
    }
    let secrets = find("", "v1", "secrets").unwrap();
    assert!(!matches_scopes(&quota(high), secrets, &json!({})));
    assert!(matches_scopes(&quota(json!({})), secrets, &json!({})));
}

proptest! {
    #[test]
    fn what_was_let_in_never_passes_the_limit(limit in 0_i64..50, asks in proptest::collection::vec(1_i64..10, 0..20)) {
        let hard: QuotaUsage = [("r".to_owned(), Quantity::from_value(limit))].into();
        let mut used = QuotaUsage::new();
        for ask in asks {
            let requested: QuotaUsage = [("r".to_owned(), Quantity::from_value(ask))].into();
            if exceeded("q", &hard, &used, &requested).is_none() {
                add(&mut used, &requested);
            }
            prop_assert!(used.get("r").copied().unwrap_or_default() <= hard["r"]);
        }
    }
}
