//! Owns the scale subresource: an autoscaling/v1 Scale that maps to the fields configured for the
//! kind.

use axum::body::Body;
use http::Response;
use resources::registry::ScalePaths;
use resources::selector::LabelSelector;
use serde_json::{Map, Value, json};

use crate::call::Call;
use crate::object::{self, ObjectPart, meta_text};
use crate::prepare::{self, Tracking};
use crate::request::{self, BodyFormat};
use crate::respond;
use crate::rewrite::{absent, rewrite};
use crate::status::Failure;
use crate::{decode, patch};

fn paths(call: &Call) -> Result<ScalePaths, Failure> {
    call.kind.scale.ok_or_else(Failure::no_such_resource)
}

fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.trim_start_matches('.')
        .split('.')
        .try_fold(object, |value, step| value.get(step))
}

fn scale_of(paths: ScalePaths, live: &Value) -> Value {
    let mut meta = Map::new();
    for field in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
    ] {
        object::carry(&live["metadata"], &mut meta, field);
    }
    let count = |path| at(live, path).and_then(Value::as_i64).unwrap_or(0);
    let mut status = json!({"replicas": count(paths.status_replicas)});
    let selector = paths.label_selector.and_then(|path| at(live, path));
    if let Some(selector) = selector.and_then(selector_text) {
        status["selector"] = selector.into();
    }
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": meta,
        "spec": {"replicas": count(paths.spec_replicas)}, "status": status,
    })
}

/// A selector as text: it is text already, or a label selector.
fn selector_text(selector: &Value) -> Option<String> {
    if let Some(text) = selector.as_str() {
        return Some(text.to_owned());
    }
    let typed = serde_json::from_value(selector.clone()).ok()?;
    let parsed = LabelSelector::from_k8s(&typed).ok()?;
    Some(parsed.to_string())
}

pub(crate) fn get(call: &Call) -> Result<Response<Body>, Failure> {
    let key = call.key();
    let entry = call.server.0.store.get(&key);
    let entry = entry.ok_or_else(|| absent(call, &key, call.object_name()))?;
    respond::value(call, &scale_of(paths(call)?, &object::parse(&entry)?))
}

pub(crate) async fn update(call: &Call, body: Body) -> Result<Response<Body>, Failure> {
    let format = request::object_format(&call.headers)?;
    let sent = decode::object(&request::read(body).await?, format)?.value;
    resize(call, |_| Ok(sent.clone())).await
}

pub(crate) async fn patch(call: &Call, body: Body) -> Result<Response<Body>, Failure> {
    let format = match request::patch_format(&call.headers)? {
        // A Scale contains no lists, so that the two merges are equal.
        BodyFormat::StrategicMergePatch => BodyFormat::MergePatch,
        other => other,
    };
    let sent = decode::patch(&request::read(body).await?, format)?.value;
    resize(call, |scale| patch::plain(format, scale, &sent)).await
}

async fn resize(
    call: &Call,
    mut wanted: impl FnMut(&Value) -> Result<Value, Failure> + Send,
) -> Result<Response<Body>, Failure> {
    let paths = paths(call)?;
    let mut warnings = Vec::new();
    let rewritten = rewrite(call, |live| {
        let scale = wanted(&scale_of(paths, live))?;
        let replicas = replicas(&scale)?;
        let mut next = live.clone();
        set(&mut next, paths.spec_replicas, replicas.into());
        let pinned = meta_text(&scale, "resourceVersion");
        if !pinned.is_empty() {
            object::meta_mut(&mut next).insert("resourceVersion".into(), pinned.into());
        }
        prepare::change(
            call,
            ObjectPart::Main,
            Tracking::Update,
            live,
            next,
            &[],
            &mut warnings,
        )
    })
    .await?;
    let object: Value = serde_json::from_slice(&rewritten.bytes).map_err(Failure::internal)?;
    let mut response = respond::value(call, &scale_of(paths, &object))?;
    respond::warn(&mut response, &warnings);
    Ok(response)
}

fn replicas(scale: &Value) -> Result<i64, Failure> {
    match &scale["spec"]["replicas"] {
        // Absent means zero: a zero field is omitted.
        Value::Null => Ok(0),
        value => value.as_i64().filter(|count| (0..=i64::from(i32::MAX)).contains(count)).ok_or_else(|| {
            Failure::unprocessable(format!(
                "Scale.autoscaling \"{}\" is invalid: spec.replicas: Invalid value: {value}: must be greater than or equal to 0",
                object::name(scale)
            ))
        }),
    }
}

fn set(object: &mut Value, path: &str, value: Value) {
    match path.trim_start_matches('.').split_once('.') {
        Some((step, rest)) => {
            object::member_mut(object, step);
            set(&mut object[step], rest, value);
        }
        None => object[path.trim_start_matches('.')] = value,
    }
}
