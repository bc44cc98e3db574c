//! The `paths` of both documents: the operations of each kind and their parameters. kubectl reads the actions, the
//! kinds and the parameters of PATCH. It must not know schemas.

use serde_json::{Map, Value, json};

use super::KindRoute;
use super::definitions::{list_definition, reference, subresource_definition};

const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
/// The definitions of the kinds whose deletion answers with the object, as in Kubernetes; that of other kinds answers with
/// a Status once the object is gone.
pub const ANSWERED_WITH_OBJECT: [&str; 5] = [
    "io.k8s.api.core.v1.Pod",
    "io.k8s.api.core.v1.Service",
    "io.k8s.api.core.v1.ServiceAccount",
    "io.k8s.api.core.v1.PersistentVolumeClaim",
    "io.k8s.api.core.v1.ResourceQuota",
];
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
const ANSWERS: [&str; 2] = ["application/json", "application/yaml"];
/// The last one is for built-in kinds only.
const PATCHES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

/// The version of the document.
#[derive(Clone, Copy, PartialEq)]
enum DocumentVersion {
    Swagger,
    OpenApi,
}

/// OpenAPI 3 paths.
pub(crate) fn v3(kinds: &[&KindRoute]) -> Value {
    paths(kinds, DocumentVersion::OpenApi)
}

/// Swagger 2.0 paths.
pub(crate) fn v2(kinds: &[&KindRoute]) -> Value {
    paths(kinds, DocumentVersion::Swagger)
}

fn paths(kinds: &[&KindRoute], form: DocumentVersion) -> Value {
    let mut paths = Map::new();
    for kind in kinds {
        kind_paths(kind, form, &mut paths);
    }
    Value::Object(paths)
}

/// An operation before it is written.
struct PendingOperation<'a> {
    method: &'static str,
    /// x-kubernetes-action.
    name: &'static str,
    /// The first word of the operation's id and description.
    verb: &'static str,
    gvk: Value,
    sends: Option<&'a str>,
    answers: Option<&'a str>,
    parameters: &'static [(&'static str, &'static str)],
}

const WRITE: &[(&str, &str)] = &[
    ("dryRun", "string"),
    ("fieldManager", "string"),
    ("fieldValidation", "string"),
];
const APPLY: &[(&str, &str)] = &[
    ("dryRun", "string"),
    ("fieldManager", "string"),
    ("fieldValidation", "string"),
    ("force", "boolean"),
];
const LIST: &[(&str, &str)] = &[
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];
const DELETE: &[(&str, &str)] = &[
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
];
const ATTACH: &[(&str, &str)] = &[
    ("container", "string"),
    ("stderr", "boolean"),
    ("stdin", "boolean"),
    ("stdout", "boolean"),
    ("tty", "boolean"),
];
const FORWARD: &[(&str, &str)] = &[("ports", "integer")];
const PROXY: &[(&str, &str)] = &[("path", "string")];
const EXEC: &[(&str, &str)] = &[
    ("command", "string"),
    ("container", "string"),
    ("stderr", "boolean"),
    ("stdin", "boolean"),
    ("stdout", "boolean"),
    ("tty", "boolean"),
];
const LOG: &[(&str, &str)] = &[
    ("container", "string"),
    ("follow", "boolean"),
    ("limitBytes", "integer"),
    ("previous", "boolean"),
    ("sinceSeconds", "integer"),
    ("tailLines", "integer"),
    ("timestamps", "boolean"),
];

/// The end of the name of the kind that a subresource's parameters have in Kubernetes, as in `PodExecOptions`.
fn options_of(subresource: &str) -> Option<&'static str> {
    Some(match subresource {
        "attach" => "AttachOptions",
        "exec" => "ExecOptions",
        "portforward" => "PortForwardOptions",
        "proxy" => "ProxyOptions",
        _ => return None,
    })
}

fn kind_paths(kind: &KindRoute, form: DocumentVersion, paths: &mut Map<String, Value>) {
    let root = kind.root();
    let (definition, list) = (kind.definition.as_str(), list_definition(&kind.definition));
    let scope: &[&str] = if kind.namespaced { &["namespace"] } else { &[] };
    let collection = if kind.namespaced {
        format!("{root}/namespaces/{{namespace}}/{}", kind.plural)
    } else {
        format!("{root}/{}", kind.plural)
    };
    let of_kind = |method, name, verb, sends, answers, parameters| PendingOperation {
        method,
        name,
        verb,
        gvk: kind.gvk(),
        sends,
        answers,
        parameters,
    };
    let listing = of_kind("get", "list", "list", None, Some(list.as_str()), LIST);
    if kind.namespaced {
        paths.insert(
            format!("{root}/{}", kind.plural),
            path_item(kind, form, "ForAllNamespaces", &[], &[listing]),
        );
    }
    let listing = of_kind("get", "list", "list", None, Some(list.as_str()), LIST);
    let both = Some(definition);
    paths.insert(
        collection.clone(),
        path_item(
            kind,
            form,
            "",
            scope,
            &[
                listing,
                of_kind("post", "post", "create", both, both, WRITE),
                of_kind(
                    "delete",
                    "deletecollection",
                    "deletecollection",
                    Some(DELETE_OPTIONS),
                    Some(STATUS),
                    DELETE,
                ),
            ],
        ),
    );
    let named: Vec<&str> = scope.iter().copied().chain(["name"]).collect();
    let item = format!("{collection}/{{name}}");
    paths.insert(
        item.clone(),
        path_item(
            kind,
            form,
            "",
            &named,
            &[
                of_kind("get", "get", "read", None, both, &[]),
                of_kind("put", "put", "replace", both, both, WRITE),
                of_kind("patch", "patch", "patch", Some(PATCH), both, APPLY),
                of_kind(
                    "delete",
                    "delete",
                    "delete",
                    Some(DELETE_OPTIONS),
                    match ANSWERED_WITH_OBJECT.contains(&definition) {
                        true => both,
                        false => Some(STATUS),
                    },
                    DELETE,
                ),
            ],
        ),
    );
    for subresource in &kind.subresources {
        let other = subresource_definition(subresource);
        let gvk = match other {
            Some("io.k8s.api.autoscaling.v1.Scale") => {
                json!({"group": "autoscaling", "kind": "Scale", "version": "v1"})
            }
            Some("io.k8s.api.core.v1.Binding") => {
                json!({"group": "", "kind": "Binding", "version": "v1"})
            }
            Some("io.k8s.api.policy.v1.Eviction") => {
                json!({"group": "policy", "kind": "Eviction", "version": "v1"})
            }
            // kubectl takes what it may send to a kind from all operations with the kind's own name.
            _ => match options_of(subresource) {
                Some(options) => {
                    json!({"group": "", "kind": format!("{}{options}", kind.kind), "version": "v1"})
                }
                None => kind.gvk(),
            },
        };
        let both = Some(other.unwrap_or(definition));
        let act = |method, name, verb, sends, answers, parameters| PendingOperation {
            method,
            name,
            verb,
            gvk: gvk.clone(),
            sends,
            answers,
            parameters,
        };
        let actions = match subresource.as_str() {
            "attach" | "exec" | "portforward" => {
                let options = match subresource.as_str() {
                    "attach" => ATTACH,
                    "exec" => EXEC,
                    _ => FORWARD,
                };
                vec![
                    act("get", "connect", "connectGet", None, None, options),
                    act("post", "connect", "connectPost", None, None, options),
                ]
            }
            "proxy" => {
                let connect = |method, verb| act(method, "connect", verb, None, None, PROXY);
                vec![
                    connect("get", "connectGet"),
                    connect("post", "connectPost"),
                    connect("put", "connectPut"),
                    connect("patch", "connectPatch"),
                    connect("delete", "connectDelete"),
                ]
            }
            "log" => vec![act("get", "get", "read", None, None, LOG)],
            "token" => vec![act("post", "post", "create", both, both, WRITE)],
            "binding" | "eviction" => {
                vec![act("post", "post", "create", both, Some(STATUS), WRITE)]
            }
            _ => vec![
                act("get", "get", "read", None, both, &[]),
                act("put", "put", "replace", both, both, WRITE),
                act("patch", "patch", "patch", Some(PATCH), both, APPLY),
            ],
        };
        paths.insert(
            format!("{item}/{subresource}"),
            path_item(kind, form, &capitalised(subresource), &named, &actions),
        );
    }
}

fn path_item(
    kind: &KindRoute,
    form: DocumentVersion,
    suffix: &str,
    in_path: &[&str],
    actions: &[PendingOperation<'_>],
) -> Value {
    let mut item = Map::new();
    for action in actions {
        item.insert(
            action.method.to_owned(),
            operation(kind, form, suffix, action),
        );
    }
    let parameters: Vec<Value> = in_path
        .iter()
        .map(|name| {
            let description = match *name {
                "name" => format!("name of the {}", kind.kind),
                _ => "object name and auth scope, such as for teams and projects".to_owned(),
            };
            let mut parameter = parameter(form, name, "string", "path");
            parameter["description"] = description.into();
            parameter["required"] = true.into();
            parameter
        })
        .collect();
    if !parameters.is_empty() {
        item.insert("parameters".to_owned(), Value::Array(parameters));
    }
    Value::Object(item)
}

fn parameter(form: DocumentVersion, name: &str, kind: &str, place: &str) -> Value {
    match form {
        DocumentVersion::Swagger => {
            json!({"in": place, "name": name, "type": kind, "uniqueItems": true})
        }
        DocumentVersion::OpenApi => {
            json!({"in": place, "name": name, "schema": {"type": kind, "uniqueItems": true}})
        }
    }
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

fn operation(
    kind: &KindRoute,
    form: DocumentVersion,
    suffix: &str,
    action: &PendingOperation<'_>,
) -> Value {
    let group = if kind.group.is_empty() {
        "core"
    } else {
        kind.group.split('.').next().unwrap_or("core")
    };
    let scope = if kind.namespaced && suffix != "ForAllNamespaces" {
        "Namespaced"
    } else {
        ""
    };
    let id = format!(
        "{}{}{}{scope}{}{suffix}",
        action.verb,
        capitalised(group),
        capitalised(&kind.version),
        kind.kind
    );
    let mut parameters: Vec<Value> = action
        .parameters
        .iter()
        .map(|(name, kind)| parameter(form, name, kind, "query"))
        .collect();
    let mut operation = json!({
        "description": format!("{} {}", action.verb, kind.kind),
        "operationId": id,
        "tags": [format!("{group}_{}", kind.version)],
        "x-kubernetes-action": action.name,
        "x-kubernetes-group-version-kind": action.gvk,
    });
    let reads: &[&str] = match action.method {
        "patch" if kind.strategic => &PATCHES,
        "patch" => &PATCHES[..PATCHES.len() - 1],
        _ => &ANSWERS,
    };
    let required = action.method != "delete";
    match form {
        DocumentVersion::Swagger => {
            if let Some(sends) = action.sends {
                parameters.push(json!({
                    "in": "body", "name": "body", "required": required,
                    "schema": {"$ref": format!("#/definitions/{sends}")},
                }));
                operation["consumes"] = json!(reads);
            }
            operation["produces"] = json!(ANSWERS);
            operation["schemes"] = json!(["https"]);
            operation["responses"] = json!({
                "200": match action.answers {
                    Some(answers) => json!({
                        "description": "OK",
                        "schema": {"$ref": format!("#/definitions/{answers}")},
                    }),
                    None => json!({"description": "OK", "schema": {"type": "string"}}),
                },
                "401": {"description": "Unauthorized"},
            });
        }
        DocumentVersion::OpenApi => {
            let content = |types: &[&str], schema: &Value| -> Value {
                types
                    .iter()
                    .map(|media| ((*media).to_owned(), json!({ "schema": schema })))
                    .collect::<Map<String, Value>>()
                    .into()
            };
            if let Some(sends) = action.sends {
                let schema = reference(sends);
                operation["requestBody"] =
                    json!({"content": content(reads, &schema), "required": required});
            }
            // The response to a deletion is the object if it stays for a while, and for some kinds always.
            let answered = |definition: &str| match action.name {
                "delete" if definition == STATUS => {
                    json!({"anyOf": [reference(definition), reference(&kind.definition)]})
                }
                _ => reference(definition),
            };
            operation["responses"] = json!({
                "200": match action.answers {
                    Some(answers) => {
                        json!({"content": content(&ANSWERS, &answered(answers)), "description": "OK"})
                    }
                    None => json!({
                        "content": {"text/plain": {"schema": {"type": "string"}}},
                        "description": "OK",
                    }),
                },
                "401": {"description": "Unauthorized"},
            });
            if let Some(answers) = action.answers
                && matches!(action.method, "post" | "put" | "patch")
            {
                let content = content(&ANSWERS, &answered(answers));
                operation["responses"]["201"] =
                    json!({"content": content, "description": "Created"});
            }
        }
    }
    if !parameters.is_empty() {
        operation["parameters"] = Value::Array(parameters);
    }
    operation
}
