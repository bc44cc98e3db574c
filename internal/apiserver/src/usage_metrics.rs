//! Owns `metrics.k8s.io/v1beta1`: what nodes and pods used at their last measurement, which `kubectl top` and
//! autoscalers read. Nothing of it is stored: the objects are made of the stored nodes and pods, for their names, labels
//! and selectors, and of what a source says. The form is that of Kubernetes' metrics-server; a GPU's resource is there
//! beside `cpu` and `memory`, in thousandths of a busy GPU.
//!
//! Cost: that of a list of the same nodes or pods, and of parsing each, because a measurement is of a pod's uid.

use std::collections::BTreeMap;

use axum::body::Body;
use http::Response;
use http::request::Parts;
use resources::access::{Caller, RequestAttributes};
use resources::quantity::Quantity;
use resources::times::seconds;
use serde_json::{Map, Value, json};
use store::Entry;

use crate::call::Call;
use crate::core_kinds::kind_of;
use crate::discovery::{MEASURED, Virtual};
use crate::path::ResourcePath;
use crate::request::Params;
use crate::select::ObjectSelection;
use crate::server::ApiServer;
use crate::status::Failure;
use crate::usage_source::{UsageOf, UsageSource};
use crate::verb::Verb;
use crate::{list, object, respond};

/// The resource of `metrics.k8s.io` that a path is about.
pub(crate) fn target(path: &ResourcePath) -> Option<&'static Virtual> {
    MEASURED.iter().find(|one| {
        (one.group, one.version, one.plural)
            == (
                path.group.as_str(),
                path.version.as_str(),
                path.resource.as_str(),
            )
    })
}

pub(crate) fn answer(
    server: &ApiServer,
    caller: &Caller,
    of: &'static Virtual,
    path: ResourcePath,
    parts: &Parts,
) -> Result<Response<Body>, Failure> {
    let ResourcePath {
        namespace,
        name,
        subresource,
        ..
    } = path;
    let misplaced = match of.namespaced {
        true => namespace.is_none() && name.is_some(),
        false => namespace.is_some(),
    };
    if subresource.is_some() || misplaced {
        return Err(Failure::no_such_resource());
    }
    let params = Params::parse(parts.uri.query())?;
    let watching = params.switch("watch") == Some(true);
    let verb = Verb::of(&parts.method, name.is_some(), watching)
        .ok_or_else(Failure::method_not_allowed)?;
    server.require(
        caller,
        &RequestAttributes {
            verb: verb.word(),
            group: of.group,
            resource: of.plural,
            namespace: namespace.as_deref(),
            name: name.as_deref(),
            ..RequestAttributes::default()
        },
    )?;
    if !matches!(verb, Verb::Get | Verb::List) {
        return Err(Failure::method_not_allowed());
    }
    let source = server.0.usage.read().clone();
    let source = source.ok_or_else(|| {
        Failure::unavailable("this server has no measurements of nodes and pods yet; try again")
    })?;
    let kind = kind_of("", if of.namespaced { "Pod" } else { "Node" });
    let call = Call {
        namespace,
        name,
        ..Call::on_stored(server, caller, kind, params, &parts.headers)
    };
    let selection = ObjectSelection::of(&call)?;
    let found = list::all(&call, &selection);
    let mut items = Vec::new();
    for entry in found {
        items.extend(measured(of, &entry, &source)?);
    }
    if let Some(name) = &call.name {
        let item = items.into_iter().next();
        let item = item.ok_or_else(|| {
            Failure::not_found_because(format!(
                "{}.{} \"{name}\" not found: nothing was measured of it in the last minute; agents measure what runs each 15 seconds",
                of.plural, of.group
            ))
        })?;
        return Ok(respond::json(&item));
    }
    Ok(respond::json(&json!({
        "kind": format!("{}List", of.kind), "apiVersion": api_version(of), "metadata": {}, "items": items,
    })))
}

fn api_version(of: &Virtual) -> String {
    format!("{}/{}", of.group, of.version)
}

/// The object of a node or a pod; none if it was not measured.
fn measured(of: &Virtual, entry: &Entry, source: &UsageSource) -> Result<Option<Value>, Failure> {
    let stored = object::parse(entry)?;
    let meta = |field: &str| stored["metadata"][field].as_str().unwrap_or_default();
    let about = match of.namespaced {
        true => UsageOf::Pod {
            namespace: meta("namespace"),
            name: meta("name"),
            uid: meta("uid"),
        },
        false => UsageOf::Node(meta("name")),
    };
    let Some(usage) = source(about) else {
        return Ok(None);
    };
    let mut own = Map::new();
    for field in ["name", "namespace", "creationTimestamp", "labels"] {
        object::carry(&stored["metadata"], &mut own, field);
    }
    let mut item = json!({
        "kind": of.kind, "apiVersion": api_version(of), "metadata": own,
        "timestamp": seconds(usage.at), "window": format!("{}s", usage.window.as_secs()),
    });
    if !of.namespaced {
        let amounts = usage.used.get("").map(amounts);
        item["usage"] = amounts.unwrap_or_else(|| json!({}));
        return Ok(Some(item));
    }
    let containers = stored["spec"]["containers"]
        .as_array()
        .into_iter()
        .flatten();
    let containers: Vec<Value> = containers
        .filter_map(|container| {
            let name = container["name"].as_str()?;
            let used = usage.used.get(name)?;
            Some(json!({"name": name, "usage": amounts(used)}))
        })
        .collect();
    item["containers"] = containers.into();
    Ok(Some(item))
}

fn amounts(used: &BTreeMap<String, Quantity>) -> Value {
    let amounts = used
        .iter()
        .map(|(resource, amount)| (resource.clone(), Value::from(amount.to_string())));
    Value::Object(amounts.collect())
}
