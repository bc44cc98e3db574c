//! Tests of the registrations, and of the rules of each kind except Pod, whose tests are in its directory.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::json;

use super::*;

fn kind(group: &str, version: &str, plural: &str) -> &'static Kind {
    find(group, version, plural).unwrap_or_else(|| panic!("{group}/{version} {plural}"))
}

fn object(name: &str, rest: Value) -> Value {
    let mut object = rest;
    object["metadata"] = json!({"name": name, "namespace": "team", "uid": "u-1"});
    object
}

/// Defaults, prepares and checks a new object.
fn create(kind: &Kind, mut object: Value) -> (Value, Vec<String>) {
    if !kind.namespaced
        && let Some(meta) = object["metadata"].as_object_mut()
    {
        meta.remove("namespace");
    }
    (kind.default)(&mut object);
    (kind.prepare)(&mut object, None);
    let errors = (kind.validate)(&object, None)
        .iter()
        .map(ToString::to_string)
        .collect();
    (object, errors)
}

fn change(kind: &Kind, old: &Value, edit: impl Fn(&mut Value)) -> Vec<String> {
    let mut new = old.clone();
    edit(&mut new);
    (kind.default)(&mut new);
    (kind.validate)(&new, Some(old))
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn every_registration_is_whole_and_its_names_are_its_own() {
    let mut seen = BTreeSet::new();
    for kind in all() {
        for text in [
            kind.version,
            kind.kind,
            kind.plural,
            kind.singular,
            kind.schema,
        ] {
            assert!(!text.is_empty(), "{kind:?}");
        }
        assert_eq!(kind.list_kind, format!("{}List", kind.kind));
        assert!(kind.columns.iter().any(|c| c.format == "name"), "{kind:?}");
        for name in kind.short_names.iter().chain([&kind.plural]) {
            assert!(seen.insert((kind.group, *name)), "{kind:?} {name}");
        }
        assert!(std::ptr::eq(
            by_kind(kind.group, kind.version, kind.kind).unwrap(),
            kind
        ));
        assert!(
            kind.schema
                .ends_with(&format!("{}.{}", kind.version, kind.kind))
        );
    }
}

#[test]
fn keys_sort_by_namespace_then_name() {
    let pods = kind("", "v1", "pods");
    assert_eq!(pods.key(Some("a"), "p"), "/core/pods/a/p");
    assert_eq!(pods.prefix(Some("a")), "/core/pods/a/");
    assert_eq!(pods.prefix(None), "/core/pods/");
    let queues = kind("scheduling.volcano.sh", "v1beta1", "queues");
    assert_eq!(queues.key(None, "q"), "/scheduling.volcano.sh/queues/-/q");
    assert_eq!(
        (pods.api_version(), queues.api_version()),
        ("v1".into(), "scheduling.volcano.sh/v1beta1".into())
    );
    assert_eq!(queues.qualified(), "queues.scheduling.volcano.sh");
}

#[test]
fn objects_find_their_kind() {
    assert_eq!(
        of(&json!({"apiVersion": "batch/v1", "kind": "Job"}))
            .unwrap()
            .plural,
        "jobs"
    );
    assert_eq!(
        of(&json!({"apiVersion": "v1", "kind": "Pod"}))
            .unwrap()
            .plural,
        "pods"
    );
    assert!(of(&json!({"kind": "Pod"})).is_none());
}

#[test]
fn a_job_must_let_its_pods_end() {
    let jobs = kind("batch", "v1", "jobs");
    let job = |spec: Value| {
        create(
            jobs,
            object("j", json!({"spec": {"template": {"spec": spec}}})),
        )
    };
    let (_, errors) = job(json!({"containers": [{"name": "c", "image": "x"}]}));
    assert_eq!(
        errors,
        [
            "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""
        ]
    );
    let (made, errors) =
        job(json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}));
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(
        (&made["spec"]["completions"], &made["spec"]["parallelism"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(made["metadata"]["labels"]["job-name"], "j");
    assert_eq!(
        change(jobs, &made, |j| j["spec"]["completions"] = json!(2)),
        ["spec.completions: Invalid value: 2: field is immutable"]
    );
    assert!(change(jobs, &made, |j| j["spec"]["parallelism"] = json!(5)).is_empty());
    assert!(change(jobs, &made, |j| j["spec"]["suspend"] = json!(true)).is_empty());
    let errors = change(jobs, &made, |j| {
        j["spec"]["template"]["spec"]["restartPolicy"] = json!("OnFailure")
    });
    assert!(
        errors[0].starts_with("spec.template: Invalid value: {")
            && errors[0].ends_with(": field is immutable"),
        "{errors:?}"
    );
}

#[test]
fn an_indexed_job_needs_its_completions() {
    let jobs = kind("batch", "v1", "jobs");
    let template =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}});
    let spec = json!({"completionMode": "Indexed", "parallelism": 2, "template": template});
    let (_, errors) = create(jobs, object("j", json!({"spec": spec})));
    assert_eq!(
        errors,
        ["spec.completions: Required value: when completion mode is Indexed"]
    );
}

#[test]
fn a_suspended_jobs_placement_may_change() {
    let jobs = kind("batch", "v1", "jobs");
    let template =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}});
    let (made, errors) = create(
        jobs,
        object(
            "j",
            json!({"spec": {"suspend": true, "template": template}}),
        ),
    );
    assert!(errors.is_empty());
    let edit = |j: &mut Value| j["spec"]["template"]["spec"]["nodeSelector"] = json!({"a": "b"});
    assert!(change(jobs, &made, edit).is_empty());
}

fn pytorch(spec: Value) -> (Value, Vec<String>) {
    create(
        kind("kubeflow.org", "v1", "pytorchjobs"),
        object("train", json!({"spec": spec})),
    )
}

fn replica(count: Option<i64>) -> Value {
    let mut replica =
        json!({"template": {"spec": {"containers": [{"name": "pytorch", "image": "x"}]}}});
    if let Some(count) = count {
        replica["replicas"] = json!(count);
    }
    replica
}

#[test]
fn a_training_job_is_completed_as_the_operator_completes_it() {
    let (job, errors) = pytorch(
        json!({"pytorchReplicaSpecs": {"master": replica(None), "WORKER": replica(Some(2))}}),
    );
    assert!(errors.is_empty(), "{errors:?}");
    let specs = &job["spec"]["pytorchReplicaSpecs"];
    assert_eq!(
        (&specs["Master"]["replicas"], &specs["Worker"]["replicas"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(specs["Master"]["restartPolicy"], "OnFailure");
    assert_eq!(
        job["spec"]["runPolicy"],
        json!({"cleanPodPolicy": "None", "suspend": false})
    );
    assert_eq!(job["spec"]["nprocPerNode"], "auto");
    // The template stays as written: defaulting applies to its pods at their creation.
    assert!(
        specs["Master"]["template"]["spec"]
            .get("restartPolicy")
            .is_none()
    );
}

#[test]
fn an_elastic_job_defaults_to_the_workers_it_has() {
    let (job, errors) =
        pytorch(json!({"elasticPolicy": {}, "pytorchReplicaSpecs": {"Worker": replica(Some(3))}}));
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(
        job["spec"]["elasticPolicy"],
        json!({"minReplicas": 3, "maxReplicas": 3, "rdzvBackend": "c10d"})
    );
}

#[test]
fn a_training_job_that_cannot_be_is_refused() {
    let table = [
        (
            json!({}),
            "spec.pytorchReplicaSpecs: Required value: must be specified",
        ),
        (
            json!({"pytorchReplicaSpecs": {"Master": replica(Some(2))}}),
            "spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1",
        ),
        (
            json!({"pytorchReplicaSpecs": {"Chief": replica(None)}}),
            "spec.pytorchReplicaSpecs[Chief]: Unsupported value: \"Chief\": supported values: \"Master\", \"Worker\"",
        ),
        (
            json!({"pytorchReplicaSpecs": {"Worker": {}}}),
            "spec.pytorchReplicaSpecs[Worker].template.spec.containers: Required value: must be specified",
        ),
        (
            json!({"elasticPolicy": {"minReplicas": 3, "maxReplicas": 2}, "pytorchReplicaSpecs": {"Worker": replica(Some(2))}}),
            "spec.elasticPolicy.minReplicas: Invalid value: 3: must be less than or equal to maxReplicas 2",
        ),
        (
            json!({"nprocPerNode": "many", "pytorchReplicaSpecs": {"Worker": replica(None)}}),
            "spec.nprocPerNode: Invalid value: \"many\": must be auto, cpu, gpu or a number greater than 0",
        ),
        (
            json!({"runPolicy": {"cleanPodPolicy": "Some"}, "pytorchReplicaSpecs": {"Worker": replica(None)}}),
            "spec.runPolicy.cleanPodPolicy: Unsupported value: \"Some\": supported values: \"All\", \"Running\", \"None\"",
        ),
    ];
    for (spec, message) in table {
        assert_eq!(pytorch(spec).1, [message]);
    }
    let mut bad = replica(None);
    bad["template"]["spec"]["containers"][0]["resources"] =
        json!({"requests": {"nvidia.com/gpu": 1}});
    assert_eq!(
        pytorch(json!({"pytorchReplicaSpecs": {"Worker": bad}})).1,
        [
            "spec.pytorchReplicaSpecs[Worker].template.spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources"
        ]
    );
}

#[test]
fn a_training_job_has_no_more_pods_than_a_gang_may() {
    let errors = |spec: Value| pytorch(spec).1;
    let whole = |workers: i64| json!({"pytorchReplicaSpecs": {"Master": replica(None), "Worker": replica(Some(workers))}});
    assert!(errors(whole(19_999)).is_empty());
    let too_many = |field: &str, count: i64, most: i64| {
        format!(
            "spec.{field}: Invalid value: {count}: must be at most {most}, because a job has at most 20000 pods"
        )
    };
    for count in [20_000, i64::from(i32::MAX), i64::MAX] {
        assert_eq!(
            errors(whole(count)),
            [too_many(
                "pytorchReplicaSpecs[Worker].replicas",
                count,
                19_999
            )]
        );
    }
    let workers = |workers: i64| json!({"Worker": replica(Some(workers))});
    assert!(errors(json!({"pytorchReplicaSpecs": workers(20_000)})).is_empty());
    let elastic = json!({
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": i32::MAX},
        "pytorchReplicaSpecs": workers(2),
    });
    assert_eq!(
        errors(elastic),
        [too_many(
            "elasticPolicy.maxReplicas",
            i64::from(i32::MAX),
            20_000
        )]
    );
}

#[test]
fn a_job_that_was_stored_with_more_pods_can_still_be_let_go() {
    let spec = json!({"pytorchReplicaSpecs": {"Worker": replica(Some(i64::from(i32::MAX)))}});
    let jobs = kind("kubeflow.org", "v1", "pytorchjobs");
    let stored = object("train", json!({"spec": spec}));
    let let_go = |job: &mut Value| job["metadata"]["finalizers"] = json!([]);
    assert!(change(jobs, &stored, let_go).is_empty());
    let other = |job: &mut Value| {
        job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = json!(20_001);
    };
    assert_eq!(change(jobs, &stored, other).len(), 1);
}

#[test]
fn an_object_names_a_bounded_number_of_owners() {
    let maps = kind("", "v1", "configmaps");
    let owned = |count: usize| {
        let owner = |n: usize| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": format!("u-{n}")});
        let owners: Vec<Value> = (0..count).map(owner).collect();
        let mut map = object("c", json!({}));
        map["metadata"]["ownerReferences"] = json!(owners);
        map
    };
    assert!(create(maps, owned(1_000)).1.is_empty());
    assert_eq!(
        create(maps, owned(1_001)).1,
        ["metadata.ownerReferences: Too many: 1001: must have at most 1000 items"]
    );
    // An object that was stored before the bound may remove owners but not add any.
    let old = owned(15_000);
    let with = |count: usize| {
        let new = owned(count);
        change(maps, &old, |map| *map = new.clone())
    };
    assert!(with(15_000).is_empty() && with(14_999).is_empty() && with(0).is_empty());
    assert_eq!(with(15_001).len(), 1);
}

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

#[test]
fn tables_read_as_kubectl_prints_them() {
    let now: Timestamp = "2026-01-01T00:01:30Z".parse().unwrap();
    let row = |kind: &Kind, object: &Value| -> Vec<String> {
        kind.columns
            .iter()
            .map(|c| match c.cell(object, now) {
                Value::String(text) => text,
                other => other.to_string(),
            })
            .collect()
    };
    let at = "2026-01-01T00:00:00Z";
    let node = json!({
        "metadata": {"name": "n1", "creationTimestamp": at, "labels": {"node-role.kubernetes.io/gpu": ""}},
        "spec": {"unschedulable": true},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "muster-0.1.0", "kernelVersion": "6.1"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        },
    });
    assert_eq!(
        row(kind("", "v1", "nodes"), &node),
        [
            "n1",
            "Ready,SchedulingDisabled",
            "gpu",
            "90s",
            "muster-0.1.0",
            "10.0.0.1",
            "<none>",
            "<unknown>",
            "6.1",
            "<unknown>"
        ]
    );
    let job = json!({
        "metadata": {"name": "j", "creationTimestamp": at},
        "spec": {"completions": 2, "template": {"spec": {"containers": [{"name": "c", "image": "x"}]}}, "selector": {"matchLabels": {"a": "b"}}},
        "status": {"succeeded": 2, "startTime": at, "completionTime": "2026-01-01T00:00:20Z", "conditions": [{"type": "Complete", "status": "True"}]},
    });
    assert_eq!(
        row(kind("batch", "v1", "jobs"), &job),
        ["j", "Complete", "2/2", "20s", "90s", "c", "x", "a=b"]
    );
    let event = json!({
        "metadata": {"name": "e"}, "type": "Normal", "reason": "Scheduled", "message": " placed ", "lastTimestamp": at,
        "involvedObject": {"kind": "Pod", "name": "p"}, "reportingComponent": "muster", "reportingInstance": "s",
    });
    assert_eq!(
        row(kind("", "v1", "events"), &event),
        [
            "90s",
            "Normal",
            "Scheduled",
            "pod/p",
            "",
            "muster, s",
            "placed",
            "<unknown>",
            "1",
            "e"
        ]
    );
    let quota = json!({
        "metadata": {"name": "q", "creationTimestamp": at},
        "status": {"hard": {"pods": "2", "limits.cpu": "4"}, "used": {"pods": "1"}},
    });
    assert_eq!(
        row(kind("", "v1", "resourcequotas"), &quota),
        ["q", "pods: 1/2", "limits.cpu: 0/4", "90s"]
    );
    let training = json!({
        "metadata": {"name": "t", "creationTimestamp": at},
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 2}}},
        "status": {
            "conditions": [{"type": "Created", "status": "True"}, {"type": "Running", "status": "True"}, {"type": "Suspended", "status": "False"}],
            "replicaStatuses": {"Master": {"active": 1}, "Worker": {"active": 1}},
        },
    });
    assert_eq!(
        row(kind("kubeflow.org", "v1", "pytorchjobs"), &training),
        ["t", "Running", "90s", "2/3", "default"]
    );
    let service = json!({"metadata": {"name": "s", "creationTimestamp": at}, "spec": {"type": "ClusterIP", "clusterIP": "None", "ports": [{"port": 80, "protocol": "TCP"}]}});
    assert_eq!(
        row(kind("", "v1", "services"), &service),
        [
            "s",
            "ClusterIP",
            "None",
            "<none>",
            "80/TCP",
            "90s",
            "<none>"
        ]
    );
}

const RBAC: &str = "rbac.authorization.k8s.io";

#[test]
fn rules_need_verbs_and_are_about_resources_or_paths() {
    let (roles, cluster_roles) = (kind(RBAC, "v1", "roles"), kind(RBAC, "v1", "clusterroles"));
    let errors = |kind: &Kind, rule: Value| create(kind, object("r", json!({"rules": [rule]}))).1;
    let table = [
        (
            json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}),
            vec![],
        ),
        (
            json!({}),
            vec![
                "rules[0].verbs: Required value: verbs must contain at least one value",
                "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                "rules[0].resources: Required value: resource rules must supply at least one resource",
            ],
        ),
        (
            json!({"verbs": ["get"], "nonResourceURLs": ["/x"], "resources": ["pods"]}),
            vec![
                "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: rules cannot apply to both regular resources and non-resource URLs",
            ],
        ),
    ];
    for (rule, expected) in table {
        assert_eq!(errors(cluster_roles, rule.clone()), expected, "{rule}");
    }
    assert_eq!(
        errors(roles, json!({"verbs": ["get"], "nonResourceURLs": ["/x"]})),
        [
            "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs"
        ]
    );
    let (_, errors) = create(cluster_roles, object("r", json!({"aggregationRule": {}})));
    assert_eq!(
        errors,
        [
            "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if aggregationRule is non-nil"
        ]
    );
    let (_, errors) = create(cluster_roles, object("system:a%b", json!({})));
    assert_eq!(
        errors,
        ["metadata.name: Invalid value: \"system:a%b\": may not contain '%'"]
    );
    // A longer name would exceed the line of the request that deletes it.
    let (_, errors) = create(cluster_roles, object(&"r".repeat(1024), json!({})));
    assert_eq!(errors, [""; 0]);
    let (_, errors) = create(cluster_roles, object(&"r".repeat(1025), json!({})));
    assert!(
        errors[0].ends_with("must be no more than 1024 bytes"),
        "{errors:?}"
    );
}

#[test]
fn a_binding_keeps_its_role_and_its_subjects_are_known() {
    let bindings = kind(RBAC, "v1", "rolebindings");
    let role = json!({"kind": "ClusterRole", "name": "view"});
    let user = json!({"kind": "User", "name": "ann"});
    let (made, errors) = create(
        bindings,
        object("b", json!({"roleRef": role, "subjects": [user]})),
    );
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(made["roleRef"]["apiGroup"], RBAC);
    assert_eq!(made["subjects"][0]["apiGroup"], RBAC);
    let errors = change(bindings, &made, |b| b["roleRef"]["name"] = json!("edit"));
    assert!(
        errors[0].starts_with("roleRef: Invalid value: {")
            && errors[0].ends_with(": cannot change roleRef"),
        "{errors:?}"
    );
    assert!(change(bindings, &made, |b| b["subjects"] = json!([])).is_empty());
    let cluster = kind(RBAC, "v1", "clusterrolebindings");
    let table = [
        (
            json!({"roleRef": {"kind": "Role", "name": "r"}}),
            "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"",
        ),
        (
            json!({"roleRef": {"kind": "ClusterRole"}}),
            "roleRef.name: Required value",
        ),
        (
            json!({"roleRef": {"kind": "ClusterRole", "name": "r", "apiGroup": "x"}}),
            "roleRef.apiGroup: Unsupported value: \"x\": supported values: \"rbac.authorization.k8s.io\"",
        ),
        (
            json!({"roleRef": role, "subjects": [{"kind": "ServiceAccount", "name": "s"}]}),
            "subjects[0].namespace: Required value",
        ),
        (
            json!({"roleRef": role, "subjects": [{"kind": "Robot", "name": "s"}]}),
            "subjects[0].kind: Unsupported value: \"Robot\": supported values: \"ServiceAccount\", \"User\", \"Group\"",
        ),
        (
            json!({"roleRef": role, "subjects": [{"kind": "User", "name": ""}]}),
            "subjects[0].name: Required value",
        ),
    ];
    for (value, expected) in table {
        let (_, errors) = create(cluster, object("b", value.clone()));
        assert_eq!(errors, [expected], "{value}");
    }
}

#[test]
fn bindings_list_their_subjects() {
    let bindings = kind(RBAC, "v1", "rolebindings");
    let binding = json!({
        "metadata": {"name": "b", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [
            {"kind": "User", "name": "ann"}, {"kind": "User", "name": "bob"}, {"kind": "Group", "name": "team"},
            {"kind": "ServiceAccount", "name": "s", "namespace": "a"},
        ],
    });
    let now: Timestamp = "2026-01-01T00:01:30Z".parse().unwrap();
    let cells: Vec<Value> = bindings
        .columns
        .iter()
        .map(|column| column.cell(&binding, now))
        .collect();
    assert_eq!(cells, ["b", "Role/r", "90s", "ann, bob", "team", "a/s"]);
}
