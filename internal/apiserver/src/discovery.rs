//! Owns discovery: versions, groups, resources, health. All of it follows from the registry; only
//! the resources that are not stored are listed here.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::IntoResponse;
use http::{HeaderMap, HeaderValue, Response, header};
use resources::registry::{self, Kind};
use serde_json::{Value, json};

use crate::namespace;
use crate::negotiate::{self, Discovery};
use crate::path::RequestTarget;
use crate::respond;
use crate::server::ApiServer;
use crate::status::Failure;

const VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
const READ_AND_WRITE: &[&str] = &["get", "patch", "update"];

/// A resource that is not stored.
pub(crate) struct Virtual {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    singular: &'static str,
    pub(crate) namespaced: bool,
}

/// What was measured last ([`crate::usage_metrics`]).
pub(crate) static MEASURED: [Virtual; 2] = [
    Virtual {
        group: "metrics.k8s.io",
        version: "v1beta1",
        kind: "NodeMetrics",
        plural: "nodes",
        singular: "",
        namespaced: false,
    },
    Virtual {
        group: "metrics.k8s.io",
        version: "v1beta1",
        kind: "PodMetrics",
        plural: "pods",
        singular: "",
        namespaced: true,
    },
];

/// The resources that are not stored, each with its verbs.
fn not_stored() -> impl Iterator<Item = (&'static Virtual, &'static [&'static str])> {
    let created = VIRTUAL.iter().map(|one| (one, &["create"] as &[_]));
    created.chain(MEASURED.iter().map(|one| (one, &["get", "list"] as &[_])))
}

/// Those that are created only to be answered.
pub(crate) static VIRTUAL: [Virtual; 7] = [
    Virtual {
        group: "",
        version: "v1",
        kind: "Binding",
        plural: "bindings",
        singular: "binding",
        namespaced: true,
    },
    Virtual {
        group: "authentication.k8s.io",
        version: "v1",
        kind: "SelfSubjectReview",
        plural: "selfsubjectreviews",
        singular: "selfsubjectreview",
        namespaced: false,
    },
    Virtual {
        group: "authentication.k8s.io",
        version: "v1",
        kind: "TokenReview",
        plural: "tokenreviews",
        singular: "tokenreview",
        namespaced: false,
    },
    Virtual {
        group: "authorization.k8s.io",
        version: "v1",
        kind: "LocalSubjectAccessReview",
        plural: "localsubjectaccessreviews",
        singular: "localsubjectaccessreview",
        namespaced: true,
    },
    Virtual {
        group: "authorization.k8s.io",
        version: "v1",
        kind: "SelfSubjectAccessReview",
        plural: "selfsubjectaccessreviews",
        singular: "selfsubjectaccessreview",
        namespaced: false,
    },
    Virtual {
        group: "authorization.k8s.io",
        version: "v1",
        kind: "SelfSubjectRulesReview",
        plural: "selfsubjectrulesreviews",
        singular: "selfsubjectrulesreview",
        namespaced: false,
    },
    Virtual {
        group: "authorization.k8s.io",
        version: "v1",
        kind: "SubjectAccessReview",
        plural: "subjectaccessreviews",
        singular: "subjectaccessreview",
        namespaced: false,
    },
];

/// A subresource in discovery: name, the group, version and kind of its body, verbs.
struct Sub {
    name: &'static str,
    response: (&'static str, &'static str, &'static str),
    verbs: &'static [&'static str],
}

fn subresources(kind: &Kind) -> Vec<Sub> {
    let own = (kind.group, kind.version, kind.kind);
    let mut found = Vec::new();
    if kind.status {
        found.push(Sub {
            name: "status",
            response: own,
            verbs: READ_AND_WRITE,
        });
    }
    if kind.scale.is_some() {
        found.push(Sub {
            name: "scale",
            response: ("autoscaling", "v1", "Scale"),
            verbs: READ_AND_WRITE,
        });
    }
    let finalize = namespace::is_namespace(kind).then_some(&"finalize");
    for name in kind.extra_subresources.iter().chain(finalize) {
        found.push(match *name {
            "binding" => Sub {
                name,
                response: ("", "v1", "Binding"),
                verbs: &["create"],
            },
            "eviction" => Sub {
                name,
                response: ("policy", "v1", "Eviction"),
                verbs: &["create"],
            },
            "attach" => Sub {
                name,
                response: ("", "v1", "PodAttachOptions"),
                verbs: &["create", "get"],
            },
            "portforward" => Sub {
                name,
                response: ("", "v1", "PodPortForwardOptions"),
                verbs: &["create", "get"],
            },
            "proxy" => Sub {
                name,
                response: (
                    "",
                    "v1",
                    if kind.plural == "pods" {
                        "PodProxyOptions"
                    } else {
                        "ServiceProxyOptions"
                    },
                ),
                verbs: &["create", "delete", "get", "patch", "update"],
            },
            "exec" => Sub {
                name,
                response: ("", "v1", "PodExecOptions"),
                verbs: &["create", "get"],
            },
            "log" => Sub {
                name,
                response: own,
                verbs: &["get"],
            },
            "token" => Sub {
                name,
                response: ("authentication.k8s.io", "v1", "TokenRequest"),
                verbs: &["create"],
            },
            _ => Sub {
                name,
                response: own,
                verbs: &["update"],
            },
        });
    }
    found
}

/// Groups and their versions, the core group first, in the registry's order.
fn versions() -> Vec<(&'static str, &'static str)> {
    let kept = registry::served().map(|kind| (kind.group, kind.version));
    let asked = not_stored().map(|(one, _)| (one.group, one.version));
    let mut found = Vec::new();
    for pair in kept.chain(asked) {
        if !found.contains(&pair) {
            found.push(pair);
        }
    }
    found
}

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_string()
    } else {
        format!("{group}/{version}")
    }
}

/// Answers GET of paths that are not resources.
pub(crate) fn answer(
    target: &RequestTarget,
    headers: &HeaderMap,
) -> Result<Response<Body>, Failure> {
    let form = negotiate::discovery(headers);
    match (target, form) {
        (RequestTarget::LegacyVersions, Discovery::Aggregated(version)) => {
            Ok(aggregated(version, |group| group.is_empty()))
        }
        (RequestTarget::Groups, Discovery::Aggregated(version)) => {
            Ok(aggregated(version, |group| !group.is_empty()))
        }
        (RequestTarget::LegacyVersions, Discovery::Legacy) => Ok(respond::json(&json!({
            "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [],
        }))),
        (RequestTarget::Groups, Discovery::Legacy) => {
            let mut groups: Vec<Value> = Vec::new();
            for (group, _) in versions() {
                if !group.is_empty() && !groups.iter().any(|one| one["name"] == group) {
                    groups.push(group_of(group));
                }
            }
            Ok(respond::json(
                &json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}),
            ))
        }
        (RequestTarget::Group(group), _)
            if !group.is_empty() && versions().iter().any(|(known, _)| known == group) =>
        {
            let mut answer = group_of(group);
            answer["kind"] = "APIGroup".into();
            answer["apiVersion"] = "v1".into();
            Ok(respond::json(&answer))
        }
        (RequestTarget::Resources { group, version }, _)
            if versions()
                .iter()
                .any(|(known, at)| known == group && at == version) =>
        {
            Ok(respond::json(&resource_list(group, version)))
        }
        _ => Err(Failure::no_such_resource()),
    }
}

fn group_of(group: &str) -> Value {
    let versions: Vec<Value> = versions()
        .into_iter()
        .filter(|(known, _)| *known == group)
        .map(|(group, version)| json!({"groupVersion": group_version(group, version), "version": version}))
        .collect();
    json!({"name": group, "preferredVersion": versions.first(), "versions": versions})
}

fn resource_list(group: &str, version: &str) -> Value {
    let mut resources = Vec::new();
    for kind in registry::served().filter(|kind| kind.group == group && kind.version == version) {
        let mut main = json!({
            "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind,
            "verbs": VERBS,
        });
        if !kind.short_names.is_empty() {
            main["shortNames"] = kind.short_names.into();
        }
        if !kind.categories.is_empty() {
            main["categories"] = kind.categories.into();
        }
        resources.push(main);
        for sub in subresources(kind) {
            let (group, version, body) = sub.response;
            let mut entry = json!({
                "name": format!("{}/{}", kind.plural, sub.name), "singularName": "", "namespaced": kind.namespaced,
                "kind": body, "verbs": sub.verbs,
            });
            if (group, version) != (kind.group, kind.version) {
                entry["group"] = group.into();
                entry["version"] = version.into();
            }
            resources.push(entry);
        }
    }
    for (one, verbs) in not_stored().filter(|(one, _)| one.group == group && one.version == version)
    {
        resources.push(json!({
            "name": one.plural, "singularName": one.singular, "namespaced": one.namespaced, "kind": one.kind,
            "verbs": verbs,
        }));
    }
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version(group, version),
        "resources": resources,
    })
}

fn aggregated(version: &str, wanted: impl Fn(&str) -> bool) -> Response<Body> {
    let mut items: Vec<Value> = Vec::new();
    for (group, at) in versions().into_iter().filter(|(group, _)| wanted(group)) {
        let entry = json!({"version": at, "resources": aggregated_resources(group, at), "freshness": "Current"});
        match items.iter_mut().find(|item| item["metadata"]["name"] == group) {
            Some(item) => {
                if let Some(versions) = item["versions"].as_array_mut() {
                    versions.push(entry);
                }
            }
            None if group.is_empty() => items.push(json!({"metadata": {"creationTimestamp": null}, "versions": [entry]})),
            None => items.push(json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": [entry]})),
        }
    }
    let list = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {}, "items": items,
    });
    let mut response = respond::json(&list);
    let form =
        format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
    if let Ok(form) = HeaderValue::try_from(form) {
        response.headers_mut().insert(header::CONTENT_TYPE, form);
    }
    response
}

fn aggregated_resources(group: &str, version: &str) -> Vec<Value> {
    let scope = |namespaced| if namespaced { "Namespaced" } else { "Cluster" };
    let kind_of = |(group, version, kind): (&str, &str, &str)| json!({"group": group, "version": version, "kind": kind});
    let kept = registry::served().filter(|kind| kind.group == group && kind.version == version).map(|kind| {
        let subresources: Vec<Value> = subresources(kind)
            .iter()
            .map(|sub| json!({"subresource": sub.name, "responseKind": kind_of(sub.response), "verbs": sub.verbs}))
            .collect();
        let mut entry = json!({
            "resource": kind.plural, "responseKind": kind_of((kind.group, kind.version, kind.kind)),
            "scope": scope(kind.namespaced), "singularResource": kind.singular, "verbs": VERBS,
        });
        for (key, list) in [("shortNames", kind.short_names), ("categories", kind.categories)] {
            if !list.is_empty() {
                entry[key] = list.into();
            }
        }
        if !subresources.is_empty() {
            entry["subresources"] = subresources.into();
        }
        entry
    });
    let asked = not_stored()
        .filter(|(one, _)| one.group == group && one.version == version)
        .map(|(one, verbs)| {
            json!({
                "resource": one.plural, "responseKind": kind_of((one.group, one.version, one.kind)),
                "scope": scope(one.namespaced), "singularResource": one.singular, "verbs": verbs,
            })
        });
    kept.chain(asked).collect()
}

/// `/version`: the ClusterRole `system:public-info-viewer` opens it to all users, as in Kubernetes.
pub(crate) async fn version(State(server): State<ApiServer>) -> Json<Value> {
    let text = &server.0.config.git_version;
    let mut numbers = text.trim_start_matches('v').split(['.', '+', '-']);
    let (major, minor) = (
        numbers.next().unwrap_or_default(),
        numbers.next().unwrap_or_default(),
    );
    Json(json!({
        "major": major, "minor": minor, "gitVersion": text, "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, platform()),
    }))
}

/// The processor architecture under Go's name.
fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// `/healthz`, `/livez`, `/readyz`: a server that answers has its store open.
pub(crate) async fn healthy() -> impl IntoResponse {
    "ok"
}
