//! Cases of the apps/v1 kinds: defaults, validation, what a status says, columns.

use serde_json::{Value, json};

use super::super::{Kind, by_kind};

fn kind(name: &str) -> &'static Kind {
    by_kind("apps", "v1", name).unwrap()
}

fn object(name: &str, spec: &Value) -> Value {
    let mut object = json!({
        "metadata": {"name": "web", "namespace": "team"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "x"}]}}},
    });
    for (key, value) in spec.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    (kind(name).default)(&mut object);
    object
}

fn errors(name: &str, object: &Value, old: Option<&Value>) -> Vec<String> {
    let errors = (kind(name).validate)(object, old);
    errors.iter().map(ToString::to_string).collect()
}

const SETS: [&str; 4] = ["DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"];

#[test]
fn the_smallest_objects_are_completed_as_kubernetes_does() {
    for name in SETS {
        let mut made = object(name, &json!({}));
        assert_eq!(errors(name, &made, None), Vec::<String>::new(), "{name}");
        let before = made.clone();
        (kind(name).default)(&mut made);
        assert_eq!(made, before, "{name}: a second run changes nothing");
    }
    let deployment = object("Deployment", &json!({}));
    let spec = &deployment["spec"];
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}});
    assert_eq!(spec["strategy"], rolling);
    let numbers = [
        "replicas",
        "revisionHistoryLimit",
        "progressDeadlineSeconds",
    ];
    assert_eq!(numbers.map(|key| spec[key].as_i64().unwrap()), [1, 10, 600]);
    assert_eq!(spec["template"]["spec"]["restartPolicy"], "Always");
    let set = object("StatefulSet", &json!({}));
    assert_eq!(set["spec"]["podManagementPolicy"], "OrderedReady");
    let partition = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}});
    assert_eq!(set["spec"]["updateStrategy"], partition);
    let set = object("DaemonSet", &json!({}));
    let rolling =
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}});
    assert_eq!(set["spec"]["updateStrategy"], rolling);
    let set = object("ReplicaSet", &json!({}));
    assert_eq!(set["metadata"]["labels"], json!({"app": "web"}));
}

#[test]
fn what_kubernetes_refuses_is_refused_in_its_words() {
    let no_end = json!({"metadata": {"labels": {"app": "web"}}, "spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}});
    for name in SETS {
        let table = [
            (
                json!({"selector": {"matchLabels": {"app": "other"}}}),
                "`selector` does not match template `labels`",
            ),
            (json!({"selector": {}}), "empty selector is invalid for"),
            (
                json!({"template": no_end}),
                "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            ),
            (
                json!({"minReadySeconds": -1}),
                "spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0",
            ),
        ];
        for (spec, text) in table {
            let found = errors(name, &object(name, &spec), None);
            assert!(
                found.len() == 1 && found[0].contains(text),
                "{name} {spec}: {found:?}"
            );
        }
    }
    let rolling = |surge: Value, down: Value| json!({"rollingUpdate": {"maxSurge": surge, "maxUnavailable": down}});
    let table = [
        (
            "Deployment",
            json!({"strategy": rolling(json!(0), json!("0%"))}),
            "may not be 0 when `maxSurge` is 0",
        ),
        (
            "Deployment",
            json!({"strategy": rolling(json!(1), json!("101%"))}),
            "must not be greater than 100%",
        ),
        (
            "Deployment",
            json!({"strategy": rolling(json!("x"), json!(1))}),
            "a valid percent string must be",
        ),
        (
            "Deployment",
            json!({"strategy": {"type": "Recreate", "rollingUpdate": {}}}),
            "may not be specified when strategy",
        ),
        (
            "Deployment",
            json!({"minReadySeconds": 600}),
            "must be greater than minReadySeconds",
        ),
        (
            "DaemonSet",
            json!({"updateStrategy": rolling(json!(1), json!(1))}),
            "may not be set when maxUnavailable is non-zero",
        ),
        (
            "DaemonSet",
            json!({"updateStrategy": rolling(json!(0), json!(0))}),
            "cannot be 0 when maxSurge is 0",
        ),
        (
            "StatefulSet",
            json!({"podManagementPolicy": "Random"}),
            "spec.podManagementPolicy: Unsupported value",
        ),
        (
            "StatefulSet",
            json!({"serviceName": "A_b"}),
            "spec.serviceName: Invalid value",
        ),
        (
            "StatefulSet",
            json!({"updateStrategy": {"type": "OnDelete", "rollingUpdate": {}}}),
            "only allowed for updateStrategy 'RollingUpdate'",
        ),
        (
            "StatefulSet",
            json!({"volumeClaimTemplates": [{"metadata": {}}]}),
            "spec.volumeClaimTemplates[0].metadata.name: Required value",
        ),
    ];
    for (name, spec, text) in table {
        let found = errors(name, &object(name, &spec), None);
        assert!(
            found.len() == 1 && found[0].contains(text),
            "{name} {spec}: {found:?}"
        );
    }
}

#[test]
fn containers_mount_the_claims_of_a_stateful_set() {
    let mount = json!([{"name": "data", "mountPath": "/data"}]);
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {
        "containers": [{"name": "c", "image": "x", "volumeMounts": mount}]}});
    let claims = json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}}]);
    let with = object(
        "StatefulSet",
        &json!({"template": template, "volumeClaimTemplates": claims}),
    );
    assert_eq!(errors("StatefulSet", &with, None), Vec::<String>::new());
    assert_eq!(
        with["spec"]["volumeClaimTemplates"][0]["spec"]["volumeMode"],
        "Filesystem"
    );
    let without = object("StatefulSet", &json!({"template": template}));
    assert_eq!(errors("StatefulSet", &without, None).len(), 1);
}

#[test]
fn selectors_and_most_of_a_stateful_set_do_not_change() {
    for name in SETS {
        let old = object(name, &json!({}));
        let mut new = old.clone();
        new["spec"]["selector"]["matchLabels"]["more"] = "x".into();
        new["spec"]["template"]["metadata"]["labels"]["more"] = "x".into();
        let found = errors(name, &new, Some(&old));
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        let mut new = old.clone();
        new["spec"]["template"]["spec"]["containers"][0]["image"] = "y".into();
        assert_eq!(
            errors(name, &new, Some(&old)),
            Vec::<String>::new(),
            "{name}"
        );
    }
    let old = object("StatefulSet", &json!({}));
    let mut new = old.clone();
    new["spec"]["serviceName"] = "other".into();
    assert!(
        errors("StatefulSet", &new, Some(&old))[0]
            .starts_with("spec: Forbidden: updates to statefulset spec")
    );
}

#[test]
fn a_revision_holds_an_object_that_never_changes() {
    let revision = |data: Value| json!({"metadata": {"name": "web-1", "namespace": "team"}, "revision": 1, "data": data});
    let check = |new: &Value, old: Option<&Value>| errors("ControllerRevision", new, old);
    let good = revision(json!({"spec": {"a": 1}}));
    assert_eq!(check(&good, Some(&good)), Vec::<String>::new());
    assert_eq!(
        check(&revision(Value::Null), None),
        ["data: Required value: data is mandatory"]
    );
    assert_eq!(check(&revision(json!([])), None).len(), 1);
    assert_eq!(
        check(&revision(json!({"spec": {"a": 2}})), Some(&good)).len(),
        1
    );
}
