//! Owns the resources that are asked and not kept: what the caller may do, who the caller is, and bindings posted
//! to their own collection.

use axum::body::Body;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use resources::access::{Attributes, Caller, permits};
use resources::registry::{self, Kind};
use serde_json::{Value, json};

use crate::admission::kind_of;
use crate::call::Call;
use crate::path::ResourcePath;
use crate::request::Params;
use crate::server::ApiServer;
use crate::status::Failure;
use crate::{binding, decode, negotiate, object, request, respond};

/// The verbs that a rule is made of.
const VERBS: [&str; 8] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
];

pub(crate) async fn answer(
    server: &ApiServer,
    caller: &Caller,
    target: ResourcePath,
    parts: &Parts,
    body: Body,
) -> Result<Response<Body>, Failure> {
    let asked = (
        target.group.as_str(),
        target.version.as_str(),
        target.resource.as_str(),
    );
    let known = matches!(
        asked,
        (
            "authorization.k8s.io",
            "v1",
            "selfsubjectaccessreviews" | "selfsubjectrulesreviews"
        ) | ("authentication.k8s.io", "v1", "selfsubjectreviews")
            | ("", "v1", "bindings")
    );
    if !known || target.name.is_some() {
        return Err(Failure::no_such_resource());
    }
    if parts.method != Method::POST {
        return Err(Failure::method_not_allowed());
    }
    let format = request::object_format(&parts.headers)?;
    let mut sent = decode::object(&request::read(body).await?, format)?.value;
    match asked.2 {
        "selfsubjectaccessreviews" => {
            sent["status"] = json!({"allowed": allowed(caller, &sent["spec"])})
        }
        "selfsubjectrulesreviews" => {
            sent["status"] = rules(caller, sent["spec"]["namespace"].as_str())
        }
        "selfsubjectreviews" => {
            sent["status"] =
                json!({"userInfo": {"username": caller.user, "groups": caller.groups}});
        }
        _ => return bind(server, caller, target.namespace, parts, &sent).await,
    }
    let mut response = respond::json(&sent);
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

fn allowed(caller: &Caller, spec: &Value) -> bool {
    if spec["nonResourceAttributes"].is_object() {
        return spec["nonResourceAttributes"]["verb"] == "get";
    }
    let wanted = &spec["resourceAttributes"];
    let text = |field: &str| wanted[field].as_str().filter(|text| !text.is_empty());
    permits(
        caller,
        &Attributes {
            verb: text("verb").unwrap_or_default(),
            group: text("group").unwrap_or_default(),
            resource: text("resource").unwrap_or_default(),
            subresource: text("subresource"),
            namespace: text("namespace"),
            name: text("name"),
        },
    )
}

/// What the caller may do in a namespace, kind by kind.
fn rules(caller: &Caller, namespace: Option<&str>) -> Value {
    let verbs = |kind: &Kind| -> Vec<&str> {
        let may = |verb: &str| {
            let namespace = namespace.filter(|_| kind.namespaced);
            permits(
                caller,
                &Attributes {
                    verb,
                    group: kind.group,
                    resource: kind.plural,
                    namespace,
                    ..Attributes::default()
                },
            )
        };
        VERBS.into_iter().filter(|verb| may(verb)).collect()
    };
    let rule = |kind: &Kind| {
        let verbs = verbs(kind);
        (!verbs.is_empty())
            .then(|| json!({"verbs": verbs, "apiGroups": [kind.group], "resources": [kind.plural]}))
    };
    let rules: Vec<Value> = registry::all().iter().filter_map(rule).collect();
    json!({"resourceRules": rules, "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["*"]}], "incomplete": false})
}

async fn bind(
    server: &ApiServer,
    caller: &Caller,
    namespace: Option<String>,
    parts: &Parts,
    sent: &Value,
) -> Result<Response<Body>, Failure> {
    let kind = kind_of("", "Pod");
    let name = object::name(sent).to_string();
    let wanted = Attributes {
        verb: "create",
        resource: kind.plural,
        subresource: Some("binding"),
        namespace: namespace.as_deref(),
        name: Some(&name),
        ..Attributes::default()
    };
    if !permits(caller, &wanted) {
        return Err(Failure::not_permitted(caller, &wanted));
    }
    let params = Params::parse(parts.uri.query());
    let call = Call {
        server: server.clone(),
        caller: caller.clone(),
        kind,
        namespace: Some(namespace.ok_or_else(Failure::no_such_resource)?),
        name: Some(name),
        dry_run: params.dry_run()?,
        params,
        headers: parts.headers.clone(),
        form: negotiate::PLAIN,
        without_managers: false,
    };
    binding::bind(&call, sent).await
}
