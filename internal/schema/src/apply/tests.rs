//! Named cases of server-side apply from kube-apiserver's behaviour.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::*;

pub(super) static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| Schemas::load(&[crd()]).unwrap());
const POD: &str = "io.k8s.api.core.v1.Pod";
const SERVICE: &str = "io.k8s.api.core.v1.Service";
const JOB: &str = "io.k8s.api.batch.v1.Job";
const CONFIG_MAP: &str = "io.k8s.api.core.v1.ConfigMap";
pub(super) const WIDGET: &str = "dev.example.v1.Widget";
pub(super) const THEN: &str = "2025-01-01T00:00:00Z";
pub(super) const NOW: &str = "2025-01-01T00:01:00Z";
pub(super) const LATER: &str = "2025-01-01T00:02:00Z";

fn crd() -> Value {
    json!({
        "metadata": {"name": "widgets.example.dev"},
        "spec": {
            "group": "example.dev",
            "names": {"kind": "Widget", "listKind": "WidgetList", "plural": "widgets"},
            "scope": "Namespaced",
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "replicas": {"type": "integer", "format": "int32"},
                        "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                        "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                            "items": {"type": "object", "required": ["name"], "properties": {
                                "name": {"type": "string"}, "size": {"type": "integer"}, "note": {"type": "string"}}}},
                        "atoms": {"type": "array", "items": {"type": "string"}},
                        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                        "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
                        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}
                    }},
                    "status": {"type": "object", "properties": {"ready": {"type": "integer"}}}
                }}}
            }]
        }
    })
}

pub(super) fn manager(name: &str) -> FieldManager {
    FieldManager {
        name: name.to_owned(),
        operation: ManagerOperation::Apply,
        api_version: "v1".to_owned(),
        subresource: None,
    }
}

pub(super) fn apply_as(
    definition: &str,
    who: &str,
    live: Option<&Value>,
    config: &Value,
    force: bool,
    now: &str,
) -> Result<Value, ApplyError> {
    apply(
        &SCHEMAS,
        definition,
        live,
        config,
        &manager(who),
        force,
        now,
    )
}

pub(super) fn update_as(
    definition: &str,
    who: &str,
    live: Option<&Value>,
    new: &Value,
    now: &str,
) -> Value {
    let mut new = new.clone();
    track_update(&SCHEMAS, definition, live, &mut new, &manager(who), now);
    new
}

pub(super) fn entry<'a>(object: &'a Value, who: &str) -> &'a Value {
    object["metadata"]["managedFields"]
        .as_array()
        .and_then(|entries| entries.iter().find(|entry| entry["manager"] == who))
        .unwrap_or(&Value::Null)
}

pub(super) fn owned(object: &Value, who: &str) -> Value {
    entry(object, who)["fieldsV1"].clone()
}

pub(super) fn widget(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec})
}

#[test]
fn a_created_pod_belongs_to_its_creator_as_kube_apiserver_records_it() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "a", "namespace": "default", "uid": "u", "creationTimestamp": NOW,
            "labels": {"app": "x"}, "annotations": {"n": "1"}},
        "spec": {
            "containers": [{
                "name": "c", "image": "i", "resources": {}, "imagePullPolicy": "Always",
                "env": [{"name": "E", "value": "1"}],
                "ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 81}]
            }],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "tolerations": [{"key": "k"}],
            "nodeSelector": {"a": "b"},
            "securityContext": {},
            "restartPolicy": "Always"
        },
        "status": {"phase": "Pending"}
    });
    let created = update_as(POD, "kubectl-run", None, &pod, NOW);
    assert_eq!(
        created["metadata"]["managedFields"],
        json!([{
            "apiVersion": "v1", "fieldsType": "FieldsV1", "manager": "kubectl-run",
            "operation": "Update", "time": NOW,
            "fieldsV1": {
                "f:metadata": {
                    "f:labels": {".": {}, "f:app": {}},
                    "f:annotations": {".": {}, "f:n": {}}
                },
                "f:spec": {
                    "f:containers": {"k:{\"name\":\"c\"}": {
                        ".": {}, "f:name": {}, "f:image": {}, "f:resources": {}, "f:imagePullPolicy": {},
                        "f:env": {".": {}, "k:{\"name\":\"E\"}": {".": {}, "f:name": {}, "f:value": {}}},
                        "f:ports": {
                            ".": {},
                            "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}},
                            "k:{\"containerPort\":81,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}
                        }
                    }},
                    "f:volumes": {".": {}, "k:{\"name\":\"v\"}": {".": {}, "f:name": {}, "f:emptyDir": {}}},
                    "f:tolerations": {},
                    "f:nodeSelector": {},
                    "f:securityContext": {},
                    "f:restartPolicy": {}
                }
            }
        }])
    );
}

#[test]
fn a_created_custom_object_belongs_to_its_creator_from_the_spec_down() {
    let created = update_as(
        WIDGET,
        "",
        None,
        &widget(json!({"replicas": 1, "tags": ["a"], "free": {"x": {"y": [1]}}})),
        NOW,
    );
    assert_eq!(entry(&created, "unknown")["operation"], "Update");
    assert_eq!(
        owned(&created, "unknown"),
        json!({"f:spec": {
            ".": {}, "f:replicas": {},
            "f:tags": {".": {}, "v:\"a\"": {}},
            "f:free": {".": {}, "f:x": {".": {}, "f:y": {}}}
        }})
    );
}

#[test]
fn an_update_takes_what_it_changes_and_leaves_the_rest() {
    let live = update_as(
        WIDGET,
        "a",
        None,
        &widget(json!({"replicas": 1, "atoms": ["x"]})),
        THEN,
    );
    let mut new = live.clone();
    new["spec"]["replicas"] = json!(2);
    let new = update_as(WIDGET, "b", Some(&live), &new, NOW);
    assert_eq!(
        owned(&new, "a"),
        json!({"f:spec": {".": {}, "f:atoms": {}}})
    );
    assert_eq!(owned(&new, "b"), json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(entry(&new, "a")["time"], THEN);
    assert_eq!(entry(&new, "b")["time"], NOW);
}

#[test]
fn an_update_that_changes_nothing_leaves_the_record_alone() {
    let live = update_as(WIDGET, "a", None, &widget(json!({"replicas": 1})), THEN);
    let mut again = live.clone();
    again["metadata"]["resourceVersion"] = json!("7");
    assert_eq!(
        update_as(WIDGET, "b", Some(&live), &again, NOW)["metadata"]["managedFields"],
        live["metadata"]["managedFields"]
    );
}

#[test]
fn an_update_that_only_removes_takes_ownership_away_without_a_new_entry() {
    let live = update_as(
        WIDGET,
        "a",
        None,
        &widget(json!({"replicas": 1, "atoms": ["x"]})),
        THEN,
    );
    let mut new = live.clone();
    new["spec"].as_object_mut().unwrap().remove("atoms");
    let new = update_as(WIDGET, "b", Some(&live), &new, NOW);
    assert_eq!(
        owned(&new, "a"),
        json!({"f:spec": {".": {}, "f:replicas": {}}})
    );
    assert_eq!(entry(&new, "b"), &Value::Null);
}

#[test]
fn a_client_can_reset_the_record_and_it_stays_empty_until_an_apply() {
    let live = update_as(WIDGET, "a", None, &widget(json!({"replicas": 1})), THEN);
    for reset in [json!([]), json!([{}])] {
        let mut new = live.clone();
        new["metadata"]["managedFields"] = reset;
        let new = update_as(WIDGET, "a", Some(&live), &new, NOW);
        assert_eq!(new["metadata"].get("managedFields"), None);
        let mut next = new.clone();
        next["spec"]["replicas"] = json!(5);
        let next = update_as(WIDGET, "a", Some(&new), &next, LATER);
        assert_eq!(next["metadata"].get("managedFields"), None);
        let config = widget(json!({"replicas": 5}));
        let applied = apply_as(WIDGET, "me", Some(&next), &config, false, LATER).unwrap();
        assert_eq!(entry(&applied, "before-first-apply")["operation"], "Update");
        assert_eq!(owned(&applied, "me"), json!({"f:spec": {"f:replicas": {}}}));
    }
}

#[test]
fn a_status_update_is_recorded_with_its_subresource_and_only_for_the_status() {
    let live = update_as(WIDGET, "a", None, &widget(json!({"replicas": 1})), THEN);
    let mut new = live.clone();
    new["status"] = json!({"ready": 1});
    let who = FieldManager {
        subresource: Some("status".to_owned()),
        ..manager("controller")
    };
    track_update(&SCHEMAS, WIDGET, Some(&live), &mut new, &who, NOW);
    let written = entry(&new, "controller");
    assert_eq!(written["subresource"], "status");
    assert_eq!(
        written["fieldsV1"],
        json!({"f:status": {".": {}, "f:ready": {}}})
    );
    assert_eq!(owned(&new, "a"), owned(&live, "a"));
}

#[test]
fn too_many_updaters_are_folded_into_ancient_changes() {
    let mut live = update_as(
        WIDGET,
        "m0",
        None,
        &widget(json!({"replicas": 0, "labels": {"l": "0"}})),
        THEN,
    );
    for at in 1..=12 {
        let mut new = live.clone();
        new["spec"]["labels"][format!("l{at}")] = json!("x");
        let now = format!("2025-01-01T01:{at:02}:00Z");
        live = update_as(WIDGET, &format!("m{at}"), Some(&live), &new, &now);
    }
    let entries = live["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(entries.len(), 10);
    let ancient = owned(&live, "ancient-changes");
    for label in ["f:l", "f:l1", "f:l2", "f:l3"] {
        assert!(
            ancient["f:spec"]["f:labels"].get(label).is_some(),
            "{label}"
        );
    }
    assert_eq!(entry(&live, "m3"), &Value::Null);
    assert_ne!(entry(&live, "m4"), &Value::Null);
}

#[test]
fn applying_creates_owns_and_is_idempotent() {
    let config = widget(json!({"replicas": 2, "parts": [{"name": "a", "size": 1}]}));
    let first = apply_as(WIDGET, "me", None, &config, false, NOW).unwrap();
    assert_eq!(
        owned(&first, "me"),
        json!({"f:spec": {
            "f:replicas": {},
            "f:parts": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}, "f:size": {}}}
        }})
    );
    assert_eq!(entry(&first, "me")["operation"], "Apply");
    let second = apply_as(WIDGET, "me", Some(&first), &config, false, LATER).unwrap();
    assert_eq!(second, first);
}

#[test]
fn conflicts_are_worded_as_kube_apiserver_words_them() {
    let live = update_as(
        WIDGET,
        "kubectl-client-side-apply",
        None,
        &widget(json!({"replicas": 1, "tags": ["a"], "parts": [{"name": "p", "size": 1}]})),
        NOW,
    );
    let one = apply_as(
        WIDGET,
        "me",
        Some(&live),
        &widget(json!({"replicas": 2})),
        false,
        LATER,
    );
    assert_eq!(
        one.unwrap_err().to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using v1: .spec.replicas"
    );
    let config = widget(json!({"replicas": 2, "parts": [{"name": "p", "size": 2}]}));
    let two = apply_as(WIDGET, "me", Some(&live), &config, false, LATER).unwrap_err();
    assert_eq!(
        two.to_string(),
        "Apply failed with 2 conflicts: conflicts with \"kubectl-client-side-apply\" using v1:\n- .spec.replicas\n- .spec.parts[name=\"p\"].size"
    );
    let ApplyError::Conflicts(conflicts) = two else {
        panic!("not conflicts");
    };
    assert_eq!(
        (conflicts[0].message().as_str(), conflicts[0].field.as_str()),
        (
            "conflict with \"kubectl-client-side-apply\" using v1",
            ".spec.replicas"
        )
    );
    let other = apply_as(
        WIDGET,
        "other",
        None,
        &widget(json!({"replicas": 1})),
        false,
        NOW,
    )
    .unwrap();
    let error = apply_as(
        WIDGET,
        "me",
        Some(&other),
        &widget(json!({"replicas": 2})),
        false,
        NOW,
    );
    assert_eq!(
        error.unwrap_err().to_string(),
        "Apply failed with 1 conflict: conflict with \"other\": .spec.replicas"
    );
}

#[test]
fn forcing_takes_the_field_from_its_owner() {
    let live = apply_as(
        WIDGET,
        "other",
        None,
        &widget(json!({"replicas": 1, "atoms": ["a"]})),
        false,
        NOW,
    )
    .unwrap();
    let taken = apply_as(
        WIDGET,
        "me",
        Some(&live),
        &widget(json!({"replicas": 2})),
        true,
        LATER,
    )
    .unwrap();
    assert_eq!(taken["spec"], json!({"replicas": 2, "atoms": ["a"]}));
    assert_eq!(owned(&taken, "other"), json!({"f:spec": {"f:atoms": {}}}));
    assert_eq!(owned(&taken, "me"), json!({"f:spec": {"f:replicas": {}}}));
}

#[test]
fn the_same_value_is_owned_together_and_removed_with_its_last_owner() {
    let config = widget(json!({"replicas": 1, "labels": {"a": "x"}}));
    let one = apply_as(WIDGET, "one", None, &config, false, NOW).unwrap();
    let both = apply_as(WIDGET, "two", Some(&one), &config, false, NOW).unwrap();
    assert_eq!(owned(&both, "one"), owned(&both, "two"));
    let less = widget(json!({"replicas": 1}));
    let still = apply_as(WIDGET, "one", Some(&both), &less, false, LATER).unwrap();
    assert_eq!(still["spec"]["labels"], json!({"a": "x"}));
    let gone = apply_as(WIDGET, "two", Some(&still), &less, false, LATER).unwrap();
    assert_eq!(gone["spec"], json!({"replicas": 1}));
}

#[test]
fn applying_less_removes_only_fields_without_another_owner() {
    let live = apply_as(
        WIDGET,
        "me",
        None,
        &widget(json!({"replicas": 1, "tags": ["a", "b"], "parts": [{"name": "p", "size": 1}, {"name": "q"}]})),
        false,
        NOW,
    )
    .unwrap();
    let other = widget(json!({"parts": [{"name": "p", "note": "kept"}]}));
    let live = apply_as(WIDGET, "other", Some(&live), &other, false, NOW).unwrap();
    let after = apply_as(
        WIDGET,
        "me",
        Some(&live),
        &widget(json!({"tags": ["b"]})),
        false,
        LATER,
    )
    .unwrap();
    assert_eq!(
        after["spec"],
        json!({"tags": ["b"], "parts": [{"name": "p", "note": "kept"}]})
    );
}

#[test]
fn ports_are_told_apart_by_their_defaulted_protocol() {
    let service = |ports: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": ports}});
    let live = apply_as(
        SERVICE,
        "me",
        None,
        &service(json!([{"port": 53}, {"port": 53, "protocol": "UDP"}])),
        false,
        NOW,
    )
    .unwrap();
    assert_eq!(
        owned(&live, "me")["f:spec"]["f:ports"],
        json!({
            "k:{\"port\":53,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}},
            "k:{\"port\":53,\"protocol\":\"UDP\"}": {".": {}, "f:port": {}, "f:protocol": {}}
        })
    );
    let mut defaulted = live.clone();
    defaulted["spec"]["ports"][0]["protocol"] = json!("TCP");
    let after = apply_as(
        SERVICE,
        "me",
        Some(&defaulted),
        &service(json!([{"port": 53, "name": "dns"}])),
        false,
        LATER,
    )
    .unwrap();
    assert_eq!(
        after["spec"]["ports"],
        json!([{"port": 53, "protocol": "TCP", "name": "dns"}])
    );
}

#[test]
fn the_configurations_order_of_list_items_wins() {
    let parts = |names: &[&str]| {
        widget(json!({"parts": names.iter().map(|n| json!({"name": n})).collect::<Vec<_>>()}))
    };
    let live = apply_as(WIDGET, "other", None, &parts(&["a", "b", "c"]), false, NOW).unwrap();
    for (config, wanted) in [
        (&["c", "a"][..], &["b", "c", "a"][..]),
        (&["d", "a"][..], &["d", "a", "b", "c"][..]),
        (&["a", "d"][..], &["a", "b", "c", "d"][..]),
        (&["c", "b", "a"][..], &["c", "b", "a"][..]),
    ] {
        let after = apply_as(WIDGET, "me", Some(&live), &parts(config), false, NOW).unwrap();
        let names: Vec<&str> = after["spec"]["parts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, wanted, "{config:?}");
    }
}

#[test]
fn atomic_values_are_replaced_and_owned_whole() {
    let live = apply_as(
        WIDGET,
        "a",
        None,
        &widget(json!({"atoms": ["x", "y"], "whole": {"k": "v"}})),
        false,
        NOW,
    )
    .unwrap();
    assert_eq!(
        owned(&live, "a"),
        json!({"f:spec": {"f:atoms": {}, "f:whole": {}}})
    );
    let conflict = apply_as(
        WIDGET,
        "b",
        Some(&live),
        &widget(json!({"whole": {"l": "v"}})),
        false,
        NOW,
    );
    assert_eq!(
        conflict.unwrap_err().to_string(),
        "Apply failed with 1 conflict: conflict with \"a\": .spec.whole"
    );
    let forced = apply_as(
        WIDGET,
        "b",
        Some(&live),
        &widget(json!({"whole": {"l": "v"}})),
        true,
        NOW,
    )
    .unwrap();
    assert_eq!(
        forced["spec"],
        json!({"atoms": ["x", "y"], "whole": {"l": "v"}})
    );
}

#[test]
fn metadata_that_the_server_sets_has_no_owner() {
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "c", "namespace": "n", "labels": {"a": "b"}, "finalizers": ["x/y"]},
        "data": {"k": "v"}
    });
    let made = apply_as(CONFIG_MAP, "me", None, &config, false, NOW).unwrap();
    assert_eq!(
        owned(&made, "me"),
        json!({
            "f:data": {"f:k": {}},
            "f:metadata": {"f:labels": {"f:a": {}}, "f:finalizers": {"v:\"x/y\"": {}}}
        })
    );
}

#[test]
fn bad_configurations_are_refused_with_their_path() {
    let table = [
        (
            widget(json!({"foo": 1})),
            ".spec.foo: field not declared in schema",
        ),
        (
            widget(json!({"parts": [{"name": "a"}, {"name": "a"}]})),
            ".spec.parts: duplicate entries for key [name=\"a\"]",
        ),
        (
            widget(json!({"parts": [{"size": 1}]})),
            ".spec.parts: element 0: associative list with keys has an element that omits all key fields [\"name\"] (and doesn't have default values for any key fields)",
        ),
        (
            widget(json!({"tags": "x"})),
            ".spec.tags: expected list, got &{\"x\"}",
        ),
    ];
    for (config, wanted) in table {
        let error = apply_as(WIDGET, "me", None, &config, false, NOW).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("failed to create typed patch object (/w; v1, Kind=Widget): {wanted}")
        );
    }
    let mut config = widget(json!({}));
    config["metadata"]["managedFields"] = json!([]);
    assert_eq!(
        apply_as(WIDGET, "me", None, &config, false, NOW),
        Err(ApplyError::BadRequest(
            "metadata.managedFields must be nil".to_owned()
        ))
    );
}

#[test]
fn a_refusal_lists_the_first_conflicts_and_cuts_their_paths() {
    let labels = |count: usize, value: &str| {
        let long = "x".repeat(2 * LONGEST_FIELD);
        let labels: serde_json::Map<String, Value> = (0..count)
            .map(|at| (format!("{at:05}{long}"), json!(value)))
            .collect();
        json!({"apiVersion": "v1", "kind": "Widget", "metadata": {"name": "w", "labels": labels}})
    };
    let conflicts = |count: usize| {
        let live = apply_as(WIDGET, "one", None, &labels(count, "1"), false, NOW).unwrap();
        let two =
            apply_as(WIDGET, "two", Some(&live), &labels(count, "2"), false, NOW).unwrap_err();
        let words = two.to_string();
        let ApplyError::Conflicts(conflicts) = two else {
            panic!("{words}");
        };
        (conflicts, words)
    };
    let (below, words) = conflicts(MOST_CONFLICTS - 1);
    assert_eq!(below.len(), MOST_CONFLICTS - 1);
    assert!(!words.contains("only the first"), "{words}");
    let (above, words) = conflicts(MOST_CONFLICTS + 1);
    assert_eq!(above.len(), MOST_CONFLICTS);
    assert!(words.contains("(only the first 100 are listed)"), "{words}");
    for conflict in above {
        assert!(
            conflict.field.len() <= LONGEST_FIELD + 3,
            "{}",
            conflict.field.len()
        );
        assert!(conflict.field.ends_with("..."));
    }
}

#[test]
fn kubectl_takes_over_what_its_client_side_apply_wrote() {
    let annotated = |replicas: i32| {
        let mut object = widget(json!({"replicas": replicas}));
        object["metadata"]["annotations"] =
            json!({LAST_APPLIED: widget(json!({"replicas": 1})).to_string()});
        object
    };
    let live = update_as(
        WIDGET,
        "kubectl-client-side-apply",
        None,
        &annotated(1),
        NOW,
    );
    let config = widget(json!({"replicas": 3}));
    assert!(apply_as(WIDGET, "me", Some(&live), &config, false, LATER).is_err());
    let taken = apply_as(WIDGET, "kubectl", Some(&live), &config, false, LATER).unwrap();
    assert_eq!(taken["spec"]["replicas"], 3);
    let annotation = taken["metadata"]["annotations"][LAST_APPLIED]
        .as_str()
        .unwrap();
    assert_eq!(serde_json::from_str::<Value>(annotation).unwrap(), config);
    // Another manager changed the field since: kubectl no longer owns it.
    let changed = update_as(
        WIDGET,
        "hpa",
        Some(&live),
        &{
            let mut new = live.clone();
            new["spec"]["replicas"] = json!(9);
            new
        },
        NOW,
    );
    assert!(apply_as(WIDGET, "kubectl", Some(&changed), &config, false, LATER).is_err());
}

#[test]
fn a_jobs_template_merges_through_its_containers() {
    let job = |env: Value| {
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": {"spec": {
            "containers": [{"name": "c", "image": "i", "env": env}]}}}})
    };
    let live = apply_as(
        JOB,
        "a",
        None,
        &job(json!([{"name": "A", "value": "1"}])),
        false,
        NOW,
    )
    .unwrap();
    let both = apply_as(
        JOB,
        "b",
        Some(&live),
        &job(json!([{"name": "B", "value": "2"}])),
        false,
        NOW,
    )
    .unwrap();
    assert_eq!(
        both["spec"]["template"]["spec"]["containers"][0]["env"],
        json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}])
    );
}

#[test]
fn a_null_in_a_configuration_changes_nothing_that_merges() {
    let live = apply_as(
        WIDGET,
        "a",
        None,
        &widget(json!({"labels": {"x": "y"}})),
        false,
        NOW,
    )
    .unwrap();
    let after = apply_as(
        WIDGET,
        "b",
        Some(&live),
        &widget(json!({"labels": null})),
        false,
        NOW,
    )
    .unwrap();
    assert_eq!(after["spec"]["labels"], json!({"x": "y"}));
}

#[test]
fn field_sets_print_in_canonical_order() {
    let json = json!({
        "f:spec": {".": {}, "f:b": {}, "f:a": {}, "k:{\"b\":1,\"a\":\"x\"}": {".": {}, "f:z": {}},
            "v:10": {}, "v:9": {}, "v:\"s\"": {}, "i:2": {}}
    });
    let set = PathSet::parse(&json).unwrap();
    assert_eq!(
        set.canonical(),
        r#"{"f:spec":{".":{},"f:a":{},"f:b":{},"k:{\"a\":\"x\",\"b\":1}":{".":{},"f:z":{}},"v:9":{},"v:10":{},"v:\"s\"":{},"i:2":{}}}"#
    );
    assert!(PathSet::parse(&json!({"spec": {}})).is_err());
    assert!(PathSet::parse(&json!({"k:nope": {}})).is_err());
}
