//! Bodies in every format through every verb that reads one.

use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::prelude::{BoxedStrategy, Strategy, any, prop_oneof};
use proptest::sample::select;
use resources::registry::{self, Kind};
use serde_json::{Value, json};

use crate::ground::{Asked, BASE, Ground, base, collection, object, try_all};
use crate::texts::{bomb, damage, damaged, manifest, protobuf, tree};

/// A number of cases that every run has time for.
const CASES: u32 = 256;
const OBJECTS: [&str; 4] = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "text/plain",
];
const PATCHES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// An endpoint that reads a body.
struct Target {
    method: &'static str,
    path: String,
    /// The kind of its object.
    kind: Option<&'static Kind>,
    /// A valid body.
    right: Value,
}

/// All endpoints that read a body.
static TARGETS: LazyLock<Vec<Target>> = LazyLock::new(|| {
    let mut all: Vec<Target> = registry::all().iter().flat_map(of_kind).collect();
    let reviews = [
        ("authentication.k8s.io/v1", "selfsubjectreviews", json!({})),
        (
            "authentication.k8s.io/v1",
            "tokenreviews",
            json!({"token": "t", "audiences": ["a"]}),
        ),
        (
            "authorization.k8s.io/v1",
            "selfsubjectaccessreviews",
            json!({"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "ns"}}),
        ),
        (
            "authorization.k8s.io/v1",
            "subjectaccessreviews",
            json!({"user": "u", "groups": ["g"], "extra": {"k": ["v"]}, "nonResourceAttributes": {"path": "/api"}}),
        ),
        (
            "authorization.k8s.io/v1",
            "namespaces/ns/localsubjectaccessreviews",
            json!({"user": "u", "resourceAttributes": {"namespace": "ns"}}),
        ),
        (
            "authorization.k8s.io/v1",
            "selfsubjectrulesreviews",
            json!({"namespace": "ns"}),
        ),
    ];
    all.extend(reviews.map(|(version, resource, spec)| Target {
        method: "POST",
        path: format!("/apis/{version}/{resource}"),
        kind: None,
        right: json!({ "spec": spec }),
    }));
    all
});

fn of_kind(kind: &'static Kind) -> Vec<Target> {
    let path = object(kind, BASE);
    let target = |method, path: String, right: Value| Target {
        method,
        path,
        kind: Some(kind),
        right,
    };
    let delete = json!({
        "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 1, "propagationPolicy": "Orphan",
        "preconditions": {"uid": "u"}, "dryRun": ["All"],
    });
    let mut all = vec![
        target("POST", collection(kind), base(kind)),
        target("PUT", path.clone(), base(kind)),
        target("PATCH", path.clone(), base(kind)),
        target("DELETE", path.clone(), delete),
    ];
    if kind.status {
        let mut with = base(kind);
        with["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        for method in ["PUT", "PATCH"] {
            all.push(target(method, format!("{path}/status"), with.clone()));
        }
    }
    if kind.scale.is_some() {
        let scale = json!({"metadata": {"name": BASE}, "spec": {"replicas": 2}});
        for method in ["PUT", "PATCH"] {
            all.push(target(method, format!("{path}/scale"), scale.clone()));
        }
    }
    for subresource in kind.extra_subresources {
        let right = match *subresource {
            "binding" => json!({
                "metadata": {"name": BASE, "annotations": {"a": "b"}}, "target": {"kind": "Node", "name": BASE},
            }),
            "eviction" => {
                json!({"metadata": {"name": BASE}, "deleteOptions": {"gracePeriodSeconds": 1}})
            }
            "token" => json!({"spec": {"audiences": ["a"], "expirationSeconds": 600}}),
            // A log is only read.
            _ => continue,
        };
        all.push(target("POST", format!("{path}/{subresource}"), right));
    }
    if kind.kind == "Pod" {
        let right = json!({"metadata": {"name": BASE}, "target": {"name": BASE}});
        let path = collection(kind).replace("/pods", "/bindings");
        all.push(target("POST", path, right));
    }
    if kind.group.is_empty() && kind.kind == "Namespace" {
        let right = json!({"metadata": {"name": BASE}, "spec": {"finalizers": ["kubernetes"]}});
        all.push(target("PUT", format!("{path}/finalize"), right));
    }
    all
}

/// A body for a target: valid, in any format, or arbitrary; then damaged.
fn body(target: &Target) -> BoxedStrategy<Vec<u8>> {
    let right = target.right.clone();
    let yaml = serde_norway::to_string(&right).unwrap().into_bytes();
    let kind = right["kind"].as_str().unwrap_or("DeleteOptions").to_owned();
    let version = right["apiVersion"].as_str().unwrap_or("v1").to_owned();
    let grown = tree().prop_map(move |tree| {
        let mut grown = right.clone();
        match tree {
            Value::Object(members) => grown.as_object_mut().unwrap().extend(members),
            other => grown["spec"] = other,
        }
        grown.to_string().into_bytes()
    });
    let sound = target.right.to_string().into_bytes();
    let any_bytes = vec(any::<u8>(), 0..200);
    let bodies = prop_oneof![
        4 => select(vec![sound, yaml]),
        4 => grown,
        2 => tree().prop_map(|tree| tree.to_string().into_bytes()),
        2 => protobuf(version, kind),
        1 => bomb(),
        1 => manifest(),
        1 => any_bytes,
    ];
    (bodies, damage())
        .prop_map(|(bytes, damage)| damaged(bytes, &damage))
        .boxed()
}

/// A request and its target.
pub(crate) fn asked() -> impl Strategy<Value = (usize, Asked)> {
    (0..TARGETS.len()).prop_flat_map(|at| {
        let target = &TARGETS[at];
        let media = match target.method {
            "PATCH" => select(PATCHES.to_vec()),
            _ => select(OBJECTS.to_vec()),
        };
        let query = match target.method {
            "PATCH" => select(vec![
                "",
                "?fieldManager=f",
                "?fieldManager=f&force=true",
                "?fieldValidation=Strict",
            ]),
            _ => select(vec![
                "",
                "?fieldValidation=Strict",
                "?fieldValidation=Ignore",
                "?dryRun=All",
            ]),
        };
        (body(target), media, query).prop_map(move |(body, media, query)| {
            let path = format!("{}{query}", target.path);
            (at, Asked::new(target.method, &path, media, body))
        })
    })
}

#[test]
fn whatever_is_sent_is_answered_well_and_leaves_a_sound_object() {
    let ground = Ground::new();
    try_all("bodies", CASES, &asked(), |(at, asked)| {
        let kind = TARGETS[at].kind;
        if let Some(kind) = kind {
            ground.restore(kind);
        }
        let answer = ground.try_out(&asked)?;
        let Some(kind) = kind else { return Ok(()) };
        ground.stands(&object(kind, BASE))?;
        let made = answer.filter(|answer| asked.method == "POST" && answer.code == 201);
        let Some(made) = made.map(|answer| answer.value()) else {
            return Ok(());
        };
        match made["metadata"]["name"].as_str() {
            Some(name)
                if name != BASE && made["kind"] == kind.kind && !asked.path.contains("dryRun") =>
            {
                ground.stands(&object(kind, name))?;
                ground.remove(kind, name)
            }
            _ => Ok(()),
        }
    });
}

#[test]
fn every_target_takes_what_it_is_meant_for() {
    let ground = Ground::new();
    for target in TARGETS.iter() {
        if let Some(kind) = target.kind {
            ground.restore(kind);
        }
        let asked = Asked::json(target.method, &target.path, &target.right);
        let answer = ground.try_out(&asked).unwrap().unwrap();
        // A valid body may still be refused because of the object's current state, but never for
        // its form or its path.
        let misled = matches!(answer.code, 400 | 404 | 405 | 415);
        assert!(!misled, "{asked:?}: {}", answer.value());
    }
}
