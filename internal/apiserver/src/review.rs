//! Owns the resources that are not stored: access reviews, token reviews, and bindings posted to
//! their own collection.

use std::collections::BTreeMap;

use axum::body::Body;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use resources::access::{Caller, RequestAttributes};
use resources::rbac::compact;
use serde_json::{Value, json};

use crate::call::Call;
use crate::core_kinds::kind_of;
use crate::discovery::VIRTUAL;
use crate::path::ResourcePath;
use crate::request::Params;
use crate::server::ApiServer;
use crate::service_account::ISSUER;
use crate::status::Failure;
use crate::work_threads::By;
use crate::{binding, fields, object, request, respond};

pub(crate) async fn answer(
    server: &ApiServer,
    caller: &Caller,
    target: ResourcePath,
    parts: &Parts,
    body: Body,
) -> Result<Response<Body>, Failure> {
    let asked = VIRTUAL.iter().find(|one| {
        (one.group, one.version, one.plural)
            == (
                target.group.as_str(),
                target.version.as_str(),
                target.resource.as_str(),
            )
    });
    let known = asked.filter(|one| one.namespaced == target.namespace.is_some());
    let Some(asked) = known.filter(|_| target.name.is_none()) else {
        return Err(Failure::no_such_resource());
    };
    if parts.method != Method::POST {
        return Err(Failure::method_not_allowed());
    }
    let namespace = target.namespace.as_deref();
    // A binding is authorised as the pod's subresource, once its pod is known.
    if asked.plural != "bindings" {
        server.require(
            caller,
            &RequestAttributes {
                verb: "create",
                group: asked.group,
                resource: asked.plural,
                namespace,
                ..RequestAttributes::default()
            },
        )?;
    }
    let format = request::object_format(&parts.headers)?;
    let bytes = request::read(body).await?;
    let by = By::of(caller);
    let mut sent = server.0.large.decode(bytes, format, &by).await?.value;
    if asked.plural == "bindings" {
        return bind(server, caller, target.namespace, parts, &sent).await;
    }
    let group = asked.group.split('.').next().unwrap_or_default();
    let definition = format!("io.k8s.api.{group}.{}.{}", asked.version, asked.kind);
    fields::typed(server, &definition, asked.kind, &sent)?;
    sent["apiVersion"] = format!("{}/{}", asked.group, asked.version).into();
    sent["kind"] = asked.kind.into();
    let spec = &sent["spec"];
    let status = match asked.plural {
        "selfsubjectaccessreviews" => allowed(server, caller, spec),
        "subjectaccessreviews" => allowed(server, &subject(spec)?, spec),
        "localsubjectaccessreviews" => {
            let about = spec["resourceAttributes"]["namespace"].as_str();
            if about != namespace {
                return Err(Failure::bad_request(
                    "spec.resourceAttributes.namespace: must be the namespace that the review is posted to",
                ));
            }
            allowed(server, &subject(spec)?, spec)
        }
        "selfsubjectrulesreviews" => rules(server, caller, spec["namespace"].as_str()),
        "selfsubjectreviews" => json!({"userInfo": user_info(caller)}),
        _ => token(server, spec),
    };
    sent["status"] = status;
    let mut response = respond::json(&sent);
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

fn user_info(caller: &Caller) -> Value {
    let mut info = json!({"username": caller.user, "groups": caller.groups});
    if !caller.uid.is_empty() {
        info["uid"] = caller.uid.as_str().into();
    }
    if !caller.extra.is_empty() {
        info["extra"] = json!(caller.extra);
    }
    info
}

fn texts(list: &Value) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items
        .filter_map(|one| one.as_str().map(str::to_owned))
        .collect()
}

/// The caller that a SubjectAccessReview asks about.
fn subject(spec: &Value) -> Result<Caller, Failure> {
    let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
    let extra: BTreeMap<String, Vec<String>> = spec["extra"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, values)| (key.clone(), texts(values)))
        .collect();
    let subject = Caller {
        user: text("user"),
        groups: texts(&spec["groups"]),
        uid: text("uid"),
        extra,
    };
    if subject.user.is_empty() && subject.groups.is_empty() {
        return Err(Failure::bad_request(
            "spec.user: Required value: at least one of user or groups must be specified",
        ));
    }
    Ok(subject)
}

/// The status of an access review.
fn allowed(server: &ApiServer, caller: &Caller, spec: &Value) -> Value {
    let path = &spec["nonResourceAttributes"];
    if path.is_object() {
        let text = |field: &str| path[field].as_str().unwrap_or_default();
        return json!({"allowed": server.permits_path(caller, text("verb"), text("path"))});
    }
    let wanted = &spec["resourceAttributes"];
    let text = |field: &str| wanted[field].as_str().filter(|text| !text.is_empty());
    let wanted = RequestAttributes {
        verb: text("verb").unwrap_or_default(),
        group: text("group").unwrap_or_default(),
        resource: text("resource").unwrap_or_default(),
        subresource: text("subresource"),
        namespace: text("namespace"),
        name: text("name"),
    };
    let selector = spec["resourceAttributes"]["fieldSelector"]["rawSelector"]
        .as_str()
        .unwrap_or_default();
    json!({"allowed": server.permits_selected(caller, &wanted, selector)})
}

/// The rules that a caller has in a namespace, for `kubectl auth can-i --list`.
fn rules(server: &ApiServer, caller: &Caller, namespace: Option<&str>) -> Value {
    let policy = server.policy();
    let held: Vec<_> = policy.rules(caller, namespace).cloned().collect();
    let (mut resources, mut paths) = (Vec::new(), Vec::new());
    if caller.is_unlimited() {
        resources.push(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        paths.push(json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
    }
    for rule in compact(&held) {
        match json!(rule) {
            path if path["nonResourceURLs"].is_array() => paths.push(path),
            resource => resources.push(resource),
        }
    }
    let mut status =
        json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false});
    if caller.node_name().is_some() {
        status["incomplete"] = true.into();
        status["evaluationError"] =
            "the rights of a node depend on the pods bound to it; the rules do not contain them"
                .into();
    }
    status
}

/// The status of a TokenReview.
fn token(server: &ApiServer, spec: &Value) -> Value {
    let token = spec["token"].as_str().unwrap_or_default();
    let wanted = match texts(&spec["audiences"]) {
        named if named.is_empty() => vec![ISSUER.to_owned()],
        named => named,
    };
    let of_user = || {
        let caller = (server.users()?.bearer)(token)?;
        Some((caller, vec![ISSUER.to_owned()]))
    };
    let found = server.service_account(token).or_else(of_user);
    let Some((caller, audiences)) = found else {
        return json!({"authenticated": false, "error": "the token is unknown, revoked or expired"});
    };
    let shared: Vec<&String> = wanted
        .iter()
        .filter(|one| audiences.contains(one))
        .collect();
    if shared.is_empty() {
        return json!({"authenticated": false, "error": "the token is for other audiences"});
    }
    json!({"authenticated": true, "user": user_info(&caller), "audiences": shared})
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
    server.require(
        caller,
        &RequestAttributes {
            verb: "create",
            resource: kind.plural,
            subresource: Some("binding"),
            namespace: namespace.as_deref(),
            name: Some(&name),
            ..RequestAttributes::default()
        },
    )?;
    let params = Params::parse(parts.uri.query())?;
    let call = Call {
        namespace: Some(namespace.ok_or_else(Failure::no_such_resource)?),
        name: Some(name),
        dry_run: params.dry_run()?,
        ..Call::on_stored(server, caller, kind, params, &parts.headers)
    };
    binding::bind(&call, sent).await
}
