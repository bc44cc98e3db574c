//! Loading, checking, pruning and defaulting through the crate's public API.

use std::sync::LazyLock;

use schema::{Invalid, SchemaError, Schemas};
use serde_json::{Value, json};

const POD: &str = "io.k8s.api.core.v1.Pod";
const WIDGET: &str = "dev.example.v1.Widget";

fn crd() -> Value {
    json!({
        "metadata": {"name": "widgets.example.dev"},
        "spec": {
            "group": "example.dev",
            "names": {"kind": "Widget", "listKind": "WidgetList", "plural": "widgets"},
            "versions": [{"name": "v1", "served": true, "schema": {"openAPIV3Schema": {
                "type": "object", "required": ["spec"], "properties": {"spec": {
                    "type": "object", "required": ["mode"], "properties": {
                        "mode": {"type": "string", "enum": ["fast", "safe"], "default": "safe"},
                        "size": {"type": "integer", "minimum": 1, "maximum": 9},
                        "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
                        "note": {"type": "string", "nullable": true, "maxLength": 3},
                        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                            "properties": {"known": {"type": "object", "properties": {"a": {"type": "string"}}}}},
                        "template": {"type": "object", "x-kubernetes-embedded-resource": true,
                            "x-kubernetes-preserve-unknown-fields": true},
                        "items": {"type": "array", "minItems": 1, "items": {"type": "object", "properties": {
                            "name": {"type": "string"}, "weight": {"type": "integer", "default": 1}}}},
                        "quotas": {"type": "object", "additionalProperties": {"type": "object", "properties": {"max": {"type": "integer", "default": 5}}}}
                    }
                }}
            }}}]
        }
    })
}

static SCHEMAS: LazyLock<Schemas> =
    LazyLock::new(|| Schemas::load(&[crd()]).expect("the definition is whole"));

fn widget(spec: Value) -> Value {
    json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec})
}

fn invalid(path: &str, reason: &'static str, message: &str) -> Invalid {
    Invalid {
        path: path.to_owned(),
        reason,
        message: message.to_owned(),
    }
}

#[test]
fn unknown_fields_are_named_by_their_path() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "lables": {}, "labels": {"any": "x"}},
        "spec": {"containers": [{"name": "a"}, {"name": "b", "imagee": "x", "resources": {"limits": {"any.thing/x": "1"}}}], "foo": 1}
    });
    let found = SCHEMAS.check(POD, &pod);
    assert_eq!(
        found.unknown,
        ["metadata.lables", "spec.containers[1].imagee", "spec.foo"]
    );
    assert_eq!((found.errors, found.invalid), (vec![], vec![]));
}

#[test]
fn type_errors_are_worded_as_kube_apiservers_decoder_words_them() {
    let table = [
        (
            json!({"spec": {"priority": "high"}}),
            "spec.priority",
            "json: cannot unmarshal string into Go struct field PodSpec.spec.priority of type int32",
        ),
        (
            json!({"spec": {"priority": 3_000_000_000_i64}}),
            "spec.priority",
            "json: cannot unmarshal number 3000000000 into Go struct field PodSpec.spec.priority of type int32",
        ),
        (
            json!({"spec": {"containers": {"name": "a"}}}),
            "spec.containers",
            "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            json!({"spec": {"containers": [{"name": 1}]}}),
            "spec.containers[0].name",
            "json: cannot unmarshal number into Go struct field Container.spec.containers.name of type string",
        ),
        (
            json!({"metadata": {"labels": {"a": 1}}}),
            "metadata.labels.a",
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels.a of type string",
        ),
        (
            json!({"metadata": {"labels": ["a"]}}),
            "metadata.labels",
            "json: cannot unmarshal array into Go struct field ObjectMeta.metadata.labels of type map[string]string",
        ),
        (
            json!({"spec": {"hostNetwork": "yes"}}),
            "spec.hostNetwork",
            "json: cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork of type bool",
        ),
    ];
    for (pod, path, message) in table {
        let found = SCHEMAS.check(POD, &pod);
        assert_eq!(found.errors, [(path.to_owned(), message.to_owned())]);
        assert!(found.unknown.is_empty() && found.invalid.is_empty());
    }
    let secret = json!({"data": {"good": "YQ==", "bad": "Y*=="}});
    assert_eq!(
        SCHEMAS.check("io.k8s.api.core.v1.Secret", &secret).errors,
        [(
            "data.bad".to_owned(),
            "illegal base64 data at input byte 1".to_owned()
        )]
    );
}

#[test]
fn what_several_types_may_hold_is_accepted() {
    let pod = json!({
        "spec": {"containers": [{
            "name": "a", "command": null,
            "resources": {"limits": {"cpu": 1, "memory": "1Gi"}},
            "livenessProbe": {"httpGet": {"port": "http"}}, "readinessProbe": {"httpGet": {"port": 80}}
        }]},
        "status": {"startTime": null}
    });
    assert!(SCHEMAS.check(POD, &pod).is_clean());
}

#[test]
fn custom_schemas_are_validated_with_reasons() {
    let found = SCHEMAS.check(
        WIDGET,
        &widget(json!({
            "size": 10, "port": "http", "note": "long", "free": {"x": [1], "known": {"b": 1}},
            "items": [], "quotas": {"a": {"max": "x"}}, "zoo": 1, "template": {"kind": 1, "any": true}
        })),
    );
    assert_eq!(found.unknown, ["spec.free.known.b", "spec.zoo"]);
    assert_eq!(
        found.invalid,
        [
            invalid(
                "spec.items",
                "FieldValueInvalid",
                "Invalid value: 0: spec.items in body should have at least 1 items"
            ),
            invalid(
                "spec.note",
                "FieldValueTooLong",
                "Too long: may not be more than 3 bytes"
            ),
            invalid(
                "spec.quotas.a.max",
                "FieldValueTypeInvalid",
                "Invalid value: \"string\": spec.quotas.a.max in body must be of type integer: \"string\""
            ),
            invalid(
                "spec.size",
                "FieldValueInvalid",
                "Invalid value: 10: spec.size in body should be less than or equal to 9"
            ),
            invalid(
                "spec.template.kind",
                "FieldValueTypeInvalid",
                "Invalid value: \"integer\": spec.template.kind in body must be of type string: \"integer\""
            ),
            invalid("spec.mode", "FieldValueRequired", "Required value"),
        ]
    );
    let found = SCHEMAS.check(
        WIDGET,
        &widget(json!({"mode": "slow", "note": null, "size": null})),
    );
    assert_eq!(
        found.invalid,
        [
            invalid(
                "spec.mode",
                "FieldValueNotSupported",
                "Unsupported value: \"slow\": supported values: \"fast\", \"safe\""
            ),
            invalid(
                "spec.size",
                "FieldValueTypeInvalid",
                "Invalid value: \"null\": spec.size in body must be of type integer: \"null\""
            ),
        ]
    );
    let found = SCHEMAS.check(WIDGET, &json!({"metadata": {"labels": 1}}));
    assert_eq!(found.errors.len(), 1);
    assert_eq!(
        found.invalid,
        [invalid("spec", "FieldValueRequired", "Required value")]
    );
}

#[test]
fn pruning_drops_what_is_unknown_and_keeps_what_is_free() {
    let mut object = widget(
        json!({"mode": "fast", "zoo": 1, "free": {"x": 1, "known": {"a": "1", "b": 2}}, "note": null}),
    );
    SCHEMAS.prune(WIDGET, &mut object);
    assert_eq!(
        object,
        widget(json!({"mode": "fast", "free": {"x": 1, "known": {"a": "1"}}, "note": null}))
    );
    let mut pod = json!({"metadata": {"creationTimestamp": null, "labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "x": 1, "env": null}]}});
    SCHEMAS.prune(POD, &mut pod);
    assert_eq!(
        pod,
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a"}]}})
    );
}

#[test]
fn declared_defaults_fill_what_is_absent() {
    let mut object = widget(json!({"items": [{"name": "a"}, {"weight": 2}], "quotas": {"x": {}}}));
    SCHEMAS.default(WIDGET, &mut object);
    assert_eq!(
        object["spec"],
        json!({"mode": "safe", "items": [{"name": "a", "weight": 1}, {"weight": 2}], "quotas": {"x": {"max": 5}}})
    );
    let mut pod =
        json!({"spec": {"containers": [{"name": "a", "ports": [{"containerPort": 80}]}]}});
    SCHEMAS.default(POD, &mut pod);
    assert_eq!(
        pod,
        json!({"spec": {"containers": [{"name": "a", "ports": [{"containerPort": 80, "protocol": "TCP"}]}]}})
    );
}

#[test]
fn a_definition_that_cannot_be_served_is_refused_with_what_is_wrong() {
    for (broken, problem) in [
        (
            json!({"metadata": {"name": "x"}}),
            "/spec/group must be a string",
        ),
        (
            json!({"metadata": {"name": "x"}, "spec": {"group": "g", "names": {"kind": "K"}, "versions": [{"name": "v1"}]}}),
            "version v1 needs schema.openAPIV3Schema",
        ),
    ] {
        match Schemas::load(&[broken]) {
            Err(SchemaError::Definition {
                name,
                problem: found,
            }) => {
                assert_eq!((name.as_str(), found.as_str()), ("x", problem));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn definitions_are_found_by_name_and_kind() {
    assert_eq!(
        SCHEMAS.custom_definition("example.dev", "v1", "Widget"),
        Some(WIDGET)
    );
    assert!(SCHEMAS.is_custom(WIDGET) && !SCHEMAS.is_custom(POD) && !SCHEMAS.has("nope"));
    // An unknown definition permits any value.
    assert!(SCHEMAS.check("nope", &json!({"any": 1})).is_clean());
}

#[test]
fn a_hostile_document_gets_a_bounded_answer() {
    let fields: serde_json::Map<String, Value> = (0..10_000)
        .map(|at| (format!("f{at}"), Value::Null))
        .collect();
    let found = SCHEMAS.check(POD, &json!({"spec": fields}));
    assert!(found.unknown.len() <= 100);
}
