//! Tests of the Pod kind: defaults, kube-apiserver's error messages, updates, printing.

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;

fn pod(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "team", "uid": "u"}, "spec": spec})
}

fn defaulted(spec: Value) -> Value {
    let mut pod = pod(spec);
    (KIND.default)(&mut pod);
    pod
}

fn refusals(spec: Value) -> Vec<String> {
    (KIND.validate)(&defaulted(spec), None)
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn with(changes: &[(&str, Value)]) -> Value {
    let mut container = json!({"name": "c", "image": "busybox"});
    for (key, value) in changes {
        container[*key] = value.clone();
    }
    json!({"containers": [container]})
}

#[test]
fn a_small_pod_is_completed_as_kubernetes_completes_it() {
    let pod = defaulted(with(&[
        ("ports", json!([{"containerPort": 80}])),
        (
            "env",
            json!([{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]),
        ),
        (
            "resources",
            json!({"limits": {"cpu": 0.5, "nvidia.com/gpu": 1}}),
        ),
        ("livenessProbe", json!({"httpGet": {"port": 80}})),
    ]));
    assert_eq!(
        pod["spec"],
        json!({
            "containers": [{
                "name": "c", "image": "busybox", "imagePullPolicy": "Always",
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "env": [{"name": "IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}}],
                "resources": {
                    "limits": {"cpu": "500m", "nvidia.com/gpu": "1"},
                    "requests": {"cpu": "500m", "nvidia.com/gpu": "1"},
                },
                "livenessProbe": {
                    "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
                    "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
                },
            }],
            "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "securityContext": {},
            "terminationGracePeriodSeconds": 30, "schedulerName": "default-scheduler", "enableServiceLinks": true,
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            ],
        })
    );
    assert!((KIND.validate)(&pod, None).is_empty());
}

#[test]
fn a_process_pod_needs_a_command_and_gets_no_pull_policy() {
    let spec = json!({"containers": [{"name": "c", "command": ["true"]}]});
    assert!(
        defaulted(spec.clone())["spec"]["containers"][0]
            .get("imagePullPolicy")
            .is_none()
    );
    assert!(refusals(spec).is_empty());
    assert_eq!(
        refusals(json!({"containers": [{"name": "c"}]})),
        [
            "spec.containers[0].command: Required value: a container without an image needs a command"
        ]
    );
}

#[test]
fn volumes_get_their_modes() {
    let pod = defaulted(json!({
        "containers": [],
        "volumes": [
            {"name": "a"},
            {"name": "b", "configMap": {"name": "x"}},
            {"name": "c", "secret": {"secretName": "x"}},
            {"name": "d", "emptyDir": {"medium": "Memory", "sizeLimit": "1024Mi"}},
            {"name": "e", "hostPath": {"path": "/x"}},
        ],
    }));
    assert_eq!(
        pod["spec"]["volumes"],
        json!([
            {"name": "a", "emptyDir": {}},
            {"name": "b", "configMap": {"name": "x", "defaultMode": 420}},
            {"name": "c", "secret": {"secretName": "x", "defaultMode": 420}},
            {"name": "d", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"name": "e", "hostPath": {"path": "/x", "type": ""}},
        ])
    );
}

#[test]
fn usual_mistakes_are_refused_in_kube_apiservers_words() {
    const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
    let bad_label = format!("spec.containers[0].name: Invalid value: \"C_1\": {LABEL}");
    let table: Vec<(Value, Vec<&str>)> = vec![
        (json!({}), vec!["spec.containers: Required value"]),
        (with(&[("name", json!("C_1"))]), vec![&bad_label]),
        (
            with(&[("name", json!("a.b"))]),
            vec!["spec.containers[0].name: Invalid value: \"a.b\": must not contain dots"],
        ),
        (
            with(&[("name", json!(""))]),
            vec!["spec.containers[0].name: Required value"],
        ),
        (
            with(&[("image", json!(" x"))]),
            vec![
                "spec.containers[0].image: Invalid value: \" x\": must not have leading or trailing whitespace",
            ],
        ),
        (
            json!({"containers": [{"name": "c", "image": "x"}, {"name": "c", "image": "x"}]}),
            vec!["spec.containers[1].name: Duplicate value: \"c\""],
        ),
        (
            json!({"restartPolicy": "Sometimes", "containers": [{"name": "c", "image": "x"}]}),
            vec![
                "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            ],
        ),
        (
            with(&[("imagePullPolicy", json!("Maybe"))]),
            vec![
                "spec.containers[0].imagePullPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
            ],
        ),
        (
            with(&[("volumeMounts", json!([{"name": "data", "mountPath": "/d"}]))]),
            vec!["spec.containers[0].volumeMounts[0].name: Not found: \"data\""],
        ),
        (
            with(&[(
                "resources",
                json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
            )]),
            vec![
                "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            ],
        ),
        (
            with(&[(
                "resources",
                json!({"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}}),
            )]),
            vec![
                "spec.containers[0].resources.requests: Invalid value: \"1\": must be equal to nvidia.com/gpu limit of 2",
            ],
        ),
        (
            with(&[("resources", json!({"requests": {"nvidia.com/gpu": 1}}))]),
            vec![
                "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
            ],
        ),
        (
            with(&[("resources", json!({"limits": {"nvidia.com/gpu": "500m"}}))]),
            vec![
                "spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: \"500m\": must be an integer",
                "spec.containers[0].resources.requests[nvidia.com/gpu]: Invalid value: \"500m\": must be an integer",
            ],
        ),
        (
            with(&[("resources", json!({"requests": {"cpu": "-1"}}))]),
            vec![
                "spec.containers[0].resources.requests[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
            ],
        ),
        (
            with(&[("resources", json!({"requests": {"cpu": "lots"}}))]),
            vec![
                "spec.containers[0].resources.requests[cpu]: Invalid value: \"lots\": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            ],
        ),
        (
            with(&[("resources", json!({"requests": {"gpu": "1"}}))]),
            vec![
                "spec.containers[0].resources.requests[gpu]: Invalid value: \"gpu\": must be a standard resource type or fully qualified",
                "spec.containers[0].resources.requests[gpu]: Invalid value: \"gpu\": must be a standard resource for containers",
            ],
        ),
        (
            with(&[("ports", json!([{"containerPort": 70000}]))]),
            vec![
                "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            ],
        ),
        (
            with(&[(
                "ports",
                json!([{"name": "a", "containerPort": 1}, {"name": "a", "containerPort": 2}]),
            )]),
            vec!["spec.containers[0].ports[1].name: Duplicate value: \"a\""],
        ),
        (
            with(&[("env", json!([{"value": "x"}]))]),
            vec!["spec.containers[0].env[0].name: Required value"],
        ),
        (
            with(&[(
                "env",
                json!([{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
            )]),
            vec![
                "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
            ],
        ),
        (
            with(&[("livenessProbe", json!({}))]),
            vec!["spec.containers[0].livenessProbe: Required value: must specify a handler type"],
        ),
        (
            json!({"containers": [{"name": "c", "image": "x"}], "volumes": [{"name": "v"}, {"name": "v"}]}),
            vec!["spec.volumes[1].name: Duplicate value: \"v\""],
        ),
        (
            json!({"containers": [{"name": "c", "image": "x"}], "volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]}),
            vec!["spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"],
        ),
        (
            json!({"containers": [{"name": "c", "image": "x"}], "activeDeadlineSeconds": 0}),
            vec![
                "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
            ],
        ),
        (
            json!({"containers": [{"name": "c", "image": "x"}], "tolerations": [{"value": "x"}]}),
            vec![
                "spec.tolerations[0].operator: Invalid value: \"\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            ],
        ),
        (
            json!({"containers": [{"name": "c", "image": "x"}], "topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "z", "whenUnsatisfiable": "Never"}]}),
            vec![
                "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
                "spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: \"Never\": supported values: \"DoNotSchedule\", \"ScheduleAnyway\"",
            ],
        ),
        (
            json!({"containers": [{"name": "c", "image": "x"}], "initContainers": [{"name": "c", "image": "x", "livenessProbe": {"exec": {"command": ["x"]}}}]}),
            vec![
                "spec.initContainers[0].name: Duplicate value: \"c\"",
                "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
            ],
        ),
    ];
    for (spec, expected) in table {
        assert_eq!(refusals(spec.clone()), expected, "{spec}");
    }
}

#[test]
fn names_labels_and_owners_are_checked() {
    let mut bad = defaulted(with(&[]));
    bad["metadata"]["name"] = json!("Bad_Name");
    bad["metadata"]["labels"] = json!({"a b": "c", "ok": "-"});
    bad["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "X", "name": "", "uid": "1"}]);
    let errors: Vec<String> = (KIND.validate)(&bad, None)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(errors[0].starts_with("metadata.name: Invalid value: \"Bad_Name\": a lowercase RFC 1123 subdomain must consist"), "{errors:?}");
    assert!(
        errors[1].starts_with("metadata.labels: Invalid value: \"a b\": name part must consist"),
        "{errors:?}"
    );
    assert!(
        errors[2].starts_with(
            "metadata.labels: Invalid value: \"-\": a valid label must be an empty string"
        ),
        "{errors:?}"
    );
    assert_eq!(
        errors[3],
        "metadata.ownerReferences.name: Invalid value: \"\": must not be empty"
    );
    assert_eq!(errors.len(), 4);
}

#[test]
fn a_running_pod_may_change_little() {
    let old = defaulted(with(&[]));
    let change = |edit: &dyn Fn(&mut Value)| -> Vec<String> {
        let mut new = old.clone();
        edit(&mut new);
        (KIND.validate)(&new, Some(&old))
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    assert!(change(&|_| {}).is_empty());
    assert!(change(&|p| p["spec"]["containers"][0]["image"] = json!("other:1")).is_empty());
    assert!(change(&|p| p["spec"]["activeDeadlineSeconds"] = json!(10)).is_empty());
    assert!(change(&|p| p["metadata"]["labels"] = json!({"a": "b"})).is_empty());
    assert!(
        change(&|p| p["spec"]["nodeSelector"] = json!({})).is_empty(),
        "empty is absent"
    );
    assert!(
        change(&|p| {
            p["spec"]["tolerations"]
                .as_array_mut()
                .unwrap()
                .push(json!({"operator": "Exists"}));
        })
        .is_empty()
    );
    assert_eq!(
        change(&|p| p["spec"]["tolerations"] = json!([])),
        [
            "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"
        ]
    );
    for (key, value) in [
        ("nodeName", json!("n1")),
        ("priority", json!(1)),
        ("hostNetwork", json!(true)),
    ] {
        let errors = change(&|p| p["spec"][key] = value.clone());
        assert_eq!(errors.len(), 1);
        assert!(errors[0].starts_with("spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`"));
        assert!(
            errors[0].ends_with(&format!("changed: spec.{key}")),
            "{errors:?}"
        );
    }
    assert_eq!(
        change(&|p| p["spec"]["containers"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "d", "image": "x"})))[0],
        "spec.containers: Forbidden: pod updates may not add or remove containers"
    );
    assert_eq!(
        change(&|p| p["spec"]["schedulingGates"] = json!([{"name": "g"}]))[0],
        "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'g'"
    );
    assert_eq!(
        change(&|p| p["metadata"]["uid"] = json!("v"))[0],
        "metadata.uid: Invalid value: \"v\": field is immutable"
    );
}

#[test]
fn deadlines_only_come_nearer() {
    let mut old = defaulted(with(&[]));
    old["spec"]["activeDeadlineSeconds"] = json!(10);
    let mut new = old.clone();
    new["spec"]["activeDeadlineSeconds"] = json!(11);
    let error = (KIND.validate)(&new, Some(&old)).remove(0).to_string();
    assert_eq!(
        error,
        "spec.activeDeadlineSeconds: Invalid value: 11: must be less than or equal to previous value"
    );
    new["spec"]["activeDeadlineSeconds"] = json!(9);
    assert!((KIND.validate)(&new, Some(&old)).is_empty());
}

#[test]
fn a_new_pod_is_pending_whatever_its_manifest_says() {
    let mut pod = defaulted(with(&[(
        "resources",
        json!({"limits": {"cpu": "1", "memory": "1Gi"}}),
    )]));
    pod["status"] = json!({"phase": "Running"});
    (KIND.prepare)(&mut pod, None);
    assert_eq!(
        pod["status"],
        json!({"phase": "Pending", "qosClass": "Guaranteed"})
    );
}

#[test]
fn quality_of_service_follows_from_cpu_and_memory() {
    let class = |resources: Value| qos_class(&with(&[("resources", resources)]));
    assert_eq!(class(json!({})), "BestEffort");
    assert_eq!(
        class(json!({"limits": {"nvidia.com/gpu": 1}})),
        "BestEffort"
    );
    assert_eq!(class(json!({"requests": {"cpu": "1"}})), "Burstable");
    assert_eq!(
        class(
            json!({"limits": {"cpu": "1", "memory": "1"}, "requests": {"cpu": "1", "memory": "1"}})
        ),
        "Guaranteed"
    );
    assert_eq!(
        class(json!({"limits": {"cpu": "2", "memory": "1"}, "requests": {"cpu": "1"}})),
        "Burstable"
    );
}

fn row(pod: &Value) -> Vec<String> {
    let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
    KIND.columns
        .iter()
        .map(|c| c.cell(pod, now).as_str().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn rows_read_as_kubectl_prints_them() {
    let base = |status: Value| {
        json!({
            "metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"nodeName": "n1", "containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]},
            "status": status,
        })
    };
    let running = json!({"name": "a", "ready": true, "restartCount": 0, "state": {"running": {}}});
    let ended = |reason: &str, code: i64| json!({"name": "b", "restartCount": 1, "state": {"terminated": {"reason": reason, "exitCode": code}}});
    let table = [
        (json!({"phase": "Pending"}), ["0/2", "Pending", "0"]),
        (
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "restartCount": 0, "state": {"running": {}}}]}),
            ["0/2", "Init:0/1", "0"],
        ),
        (
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}),
            ["0/2", "Init:CrashLoopBackOff", "2"],
        ),
        (
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "restartCount": 0, "state": {"terminated": {"exitCode": 3}}}]}),
            ["0/2", "Init:ExitCode:3", "0"],
        ),
        (
            json!({"phase": "Running", "containerStatuses": [running, {"name": "b", "ready": true, "restartCount": 0, "state": {"running": {}}}]}),
            ["2/2", "Running", "0"],
        ),
        (
            json!({"phase": "Running", "containerStatuses": [running, ended("Completed", 0)], "conditions": [{"type": "Ready", "status": "True"}]}),
            ["1/2", "Running", "1"],
        ),
        (
            json!({"phase": "Running", "containerStatuses": [running, ended("Completed", 0)]}),
            ["1/2", "NotReady", "1"],
        ),
        (
            json!({"phase": "Failed", "containerStatuses": [ended("Error", 1)]}),
            ["0/2", "Error", "1"],
        ),
        (
            json!({"phase": "Failed", "containerStatuses": [ended("OOMKilled", 137)]}),
            ["0/2", "OOMKilled", "1"],
        ),
        (
            json!({"phase": "Failed", "reason": "NodeLost"}),
            ["0/2", "NodeLost", "0"],
        ),
        (
            json!({"phase": "Running", "containerStatuses": [{"name": "a", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"finishedAt": "2026-01-01T00:55:00Z"}}}]}),
            ["0/2", "CrashLoopBackOff", "3 (5m ago)"],
        ),
    ];
    for (status, cells) in table {
        let pod = base(status);
        assert_eq!(row(&pod)[1..4], cells, "{pod}");
        assert_eq!(status_word(&pod), cells[1]);
    }
    let mut leaving = base(json!({"phase": "Running", "podIP": "10.0.0.1"}));
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:59:00Z");
    assert_eq!(
        row(&leaving),
        [
            "p",
            "0/2",
            "Terminating",
            "0",
            "60m",
            "10.0.0.1",
            "n1",
            "<none>",
            "<none>"
        ]
    );
}

#[test]
fn field_selectors_see_what_schedulers_and_agents_ask_for() {
    let pod = json!({"metadata": {"name": "p", "namespace": "team"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}});
    let fields = KIND.selectable(&pod);
    assert_eq!(fields["spec.nodeName"], "n1");
    assert_eq!(fields["status.phase"], "Running");
    assert_eq!(fields["metadata.name"], "p");
    assert_eq!(fields["spec.hostNetwork"], "false");
    assert!(KIND.is_selectable("status.podIP") && !KIND.is_selectable("spec.containers"));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-5_i64..70_000).prop_map(Value::from),
        "[a-zA-Z0-9./_-]{0,8}".prop_map(Value::from),
    ];
    let keys = prop_oneof![
        Just("metadata"),
        Just("spec"),
        Just("status"),
        Just("containers"),
        Just("initContainers"),
        Just("volumes"),
        Just("name"),
        Just("resources"),
        Just("limits"),
        Just("requests"),
        Just("cpu"),
        Just("env"),
        Just("ports"),
        Just("livenessProbe"),
        Just("tolerations"),
        Just("affinity"),
        Just("labels"),
        Just("template"),
        Just("items"),
        Just("pytorchReplicaSpecs"),
        Just("Worker"),
        Just("elasticPolicy"),
        Just("runPolicy"),
        Just("hard"),
        Just("containerStatuses"),
        Just("conditions"),
        Just("state"),
        Just("volumeMounts"),
        Just("emptyDir"),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(keys.clone().prop_map(str::to_owned), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_json_makes_any_kind_panic(value in any_json(), other in any_json()) {
        let now = Timestamp::UNIX_EPOCH;
        for kind in crate::registry::all() {
            let mut object = value.clone();
            (kind.default)(&mut object);
            let once = object.clone();
            (kind.default)(&mut object);
            prop_assert_eq!(&object, &once, "{:?}: defaulting twice differs from once", kind);
            (kind.prepare)(&mut object, None);
            let _ = (kind.validate)(&object, None);
            let _ = (kind.validate)(&object, Some(&other));
            let _ = (kind.validate_status)(&object, &other);
            let _ = kind.selectable(&object);
            for column in kind.columns {
                let _ = column.cell(&object, now);
            }
            let _ = crate::admission::quota::usage_of(kind, &object);
            let _ = crate::admission::limit_ranges(&mut object, &[]);
            let _ = crate::admission::priority(&mut object, &[]);
        }
    }
}
