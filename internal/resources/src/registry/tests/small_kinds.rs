//! The rules of kinds with few rules: Queue, PodGroup, Service, Secret, ConfigMap, PersistentVolumeClaim, ResourceQuota,
//! LimitRange, PriorityClass and Namespace.

use serde_json::json;

use super::{change, create, kind, object};

#[test]
fn a_queue_is_open_and_weighs_one() {
    let queues = kind("scheduling.volcano.sh", "v1beta1", "queues");
    let (queue, errors) = create(
        queues,
        object("q", json!({"spec": {"capability": {"cpu": 4}}})),
    );
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(
        queue["spec"],
        json!({"weight": 1, "reclaimable": true, "capability": {"cpu": "4"}})
    );
    assert_eq!(queue["status"], json!({"state": "Open"}));
    let (_, errors) = create(
        queues,
        object(
            "q",
            json!({"spec": {
                "weight": -1, "parent": "q", "capability": {"cpu": 4}, "guarantee": {"resource": {"cpu": 5}}, "deserved": {"cpu": "x"},
            }}),
        ),
    );
    assert_eq!(
        errors,
        [
            "spec.weight: Invalid value: -1: queue weight must be a positive integer",
            "spec.deserved[cpu]: Invalid value: \"x\": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            "spec.guarantee[cpu]: Invalid value: \"5\": guarantee should be less than or equal to capability 4",
            "spec.parent: Invalid value: \"q\": a queue cannot be its own parent",
        ]
    );
}

#[test]
fn a_pod_group_waits_in_the_default_queue() {
    let groups = kind("scheduling.volcano.sh", "v1beta1", "podgroups");
    let (group, errors) = create(groups, object("g", json!({})));
    assert!(errors.is_empty());
    assert_eq!(group["spec"], json!({"minMember": 1, "queue": "default"}));
    assert_eq!(group["status"], json!({"phase": "Pending"}));
}

#[test]
fn a_service_gets_its_address_when_it_is_written() {
    let services = kind("", "v1", "services");
    let (service, errors) = create(
        services,
        object("web", json!({"spec": {"ports": [{"port": 80}]}})),
    );
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(
        (&service["spec"]["clusterIP"], &service["spec"]["type"]),
        (&json!(null), &json!("ClusterIP"))
    );
    assert_eq!(
        service["spec"]["ports"],
        json!([{"port": 80, "protocol": "TCP", "targetPort": 80}])
    );
    let (_, errors) = create(
        services,
        object(
            "1web",
            json!({"spec": {"ports": [{"port": 0}, {"name": "b", "port": 2}]}}),
        ),
    );
    assert!(
        errors[0]
            .starts_with("metadata.name: Invalid value: \"1web\": a DNS-1035 label must consist"),
        "{errors:?}"
    );
    assert_eq!(errors[1], "spec.ports[0].name: Required value");
    assert_eq!(
        errors[2],
        "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"
    );
}

#[test]
fn a_secrets_texts_become_its_data() {
    let secrets = kind("", "v1", "secrets");
    let (secret, errors) = create(
        secrets,
        object(
            "s",
            json!({"stringData": {"a": "hello"}, "data": {"a": "eA==", "b": "eQ=="}}),
        ),
    );
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(
        (&secret["type"], &secret["data"]),
        (&json!("Opaque"), &json!({"a": "aGVsbG8=", "b": "eQ=="}))
    );
    assert!(secret.get("stringData").is_none());
    let (_, errors) = create(secrets, object("s", json!({"data": {"a/b": "!"}})));
    assert!(
        errors[0]
            .starts_with("data[a/b]: Invalid value: \"a/b\": a valid config key must consist of"),
        "{errors:?}"
    );
    assert_eq!(
        errors[1],
        "data[a/b]: Invalid value: \"<secret contents redacted>\": illegal base64 data"
    );
}

#[test]
fn immutable_means_immutable() {
    for (plural, data) in [("configmaps", "x"), ("secrets", "eA==")] {
        let kind = kind("", "v1", plural);
        let (made, errors) = create(
            kind,
            object("c", json!({"immutable": true, "data": {"a": data}})),
        );
        assert!(errors.is_empty());
        assert_eq!(
            change(kind, &made, |c| c["data"] = json!({})),
            ["data: Forbidden: field is immutable when `immutable` is set"]
        );
        assert!(change(kind, &made, |c| c["metadata"]["labels"] = json!({"a": "b"})).is_empty());
    }
}

#[test]
fn a_claim_asks_for_storage_and_stays_as_it_is() {
    let claims = kind("", "v1", "persistentvolumeclaims");
    let (_, errors) = create(claims, object("c", json!({"spec": {}})));
    assert_eq!(
        errors,
        [
            "spec.accessModes: Required value: at least 1 access mode is required",
            "spec.resources[storage]: Required value",
        ]
    );
    let spec =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let (claim, errors) = create(claims, object("c", json!({"spec": spec})));
    assert!(errors.is_empty());
    assert_eq!(claim["status"]["phase"], "Pending");
    assert!(change(claims, &claim, |c| c["spec"]["volumeName"] = json!("v")).is_empty());
    let errors = change(claims, &claim, |c| {
        c["spec"]["accessModes"] = json!(["ReadWriteMany"])
    });
    assert_eq!(
        errors,
        [
            "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
        ]
    );
}

#[test]
fn a_quota_limits_what_can_be_limited() {
    let quotas = kind("", "v1", "resourcequotas");
    let hard = json!({"pods": 5, "requests.nvidia.com/gpu": "8", "count/jobs.batch": "1", "limits.nvidia.com/gpu": "1"});
    let (quota, errors) = create(quotas, object("q", json!({"spec": {"hard": hard}})));
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(quota["spec"]["hard"]["pods"], "5");
    let (_, errors) = create(
        quotas,
        object("q", json!({"spec": {"hard": {"gpus": "1", "pods": "1.5"}}})),
    );
    assert_eq!(
        errors,
        [
            "spec.hard[gpus]: Invalid value: \"gpus\": must be a standard resource type or fully qualified",
            "spec.hard[gpus]: Invalid value: \"gpus\": must be a standard resource for quota",
            "spec.hard[pods]: Invalid value: \"1500m\": must be an integer",
        ]
    );
}

#[test]
fn a_limit_range_must_not_contradict_itself() {
    let ranges = kind("", "v1", "limitranges");
    let item = json!({"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}});
    let (_, errors) = create(ranges, object("r", json!({"spec": {"limits": [item]}})));
    assert!(errors.contains(&"spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1".to_owned()), "{errors:?}");
    let item = json!({"type": "Container", "max": {"cpu": "1"}, "min": {"memory": "1Mi"}});
    let (range, errors) = create(ranges, object("r", json!({"spec": {"limits": [item]}})));
    assert!(errors.is_empty(), "{errors:?}");
    let made = &range["spec"]["limits"][0];
    assert_eq!(
        (&made["default"], &made["defaultRequest"]),
        (&json!({"cpu": "1"}), &json!({"cpu": "1", "memory": "1Mi"}))
    );
}

#[test]
fn a_priority_class_keeps_its_value() {
    let classes = kind("scheduling.k8s.io", "v1", "priorityclasses");
    let (class, errors) = create(classes, object("c", json!({"value": 5})));
    assert!(errors.is_empty());
    assert_eq!(class["preemptionPolicy"], "PreemptLowerPriority");
    assert_eq!(
        change(classes, &class, |c| c["value"] = json!(6)),
        ["value: Forbidden: may not be changed in an update."]
    );
    let (_, errors) = create(classes, object("c", json!({"value": 2_000_000_000})));
    assert_eq!(
        errors,
        ["value: Forbidden: maximum allowed value of a user defined priority is 1000000000"]
    );
    let (_, errors) = create(classes, object("system-mine", json!({"value": 1})));
    assert_eq!(
        errors,
        [
            "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-mine is not a known system priority class"
        ]
    );
}

#[test]
fn a_namespace_carries_its_name_and_is_active() {
    let (namespace, errors) = create(kind("", "v1", "namespaces"), object("team", json!({})));
    assert!(errors.is_empty());
    assert_eq!(
        namespace["metadata"]["labels"],
        json!({"kubernetes.io/metadata.name": "team"})
    );
    assert_eq!(namespace["status"]["phase"], "Active");
}
