//! Owns PATCH in its four kinds: JSON patch, merge patch, strategic merge patch, server-side apply.
//! The `schema` crate computes them, and json-patch the merge patch; this module selects the object
//! and the time.

use axum::body::Body;
use http::Response;
use resources::access::RequestAttributes;
use resources::times;
use schema::apply::{ApplyError, FieldManager, ManagerOperation, apply};
use schema::{PatchError, json_patch, strategic};
use serde_json::{Map, Value};

use crate::call::Call;
use crate::decode::{self, Decoded};
use crate::limits::quoted;
use crate::object::{self, ObjectPart, meta_text};
use crate::prepare::{self, Tracking};
use crate::request::{self, BodyFormat};
use crate::respond::{self, WriteResult};
use crate::rewrite::rewrite;
use crate::status::{Cause, Failure};
use crate::{create, fields, limits};

/// How often an apply switches between patching and creating because the object was deleted or
/// created meanwhile.
const MAX_APPEARANCES: usize = 4;

pub(crate) async fn patch(
    call: &Call,
    body: Body,
    part: ObjectPart,
) -> Result<Response<Body>, Failure> {
    let format = request::patch_format(&call.headers)?;
    let bytes = request::read(body).await?;
    let decoded = decode::patch(&bytes, format)?;
    let written = match format {
        BodyFormat::Apply => applied(call, decoded, part).await?,
        _ if call.params.get("force").is_some() => {
            return Err(Failure::bad_request(
                "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch",
            ));
        }
        _ => patched(call, format, &decoded, part).await?,
    };
    respond::written(call, written)
}

async fn patched(
    call: &Call,
    format: BodyFormat,
    patch: &Decoded,
    part: ObjectPart,
) -> Result<WriteResult, Failure> {
    let mut warnings = Vec::new();
    let rewritten = rewrite(call, |live| {
        let wanted = transform(call, format, live, &patch.value)?;
        prepare::change(
            call,
            part,
            Tracking::Update,
            live,
            wanted,
            &patch.duplicates,
            &mut warnings,
        )
    })
    .await?;
    Ok(rewritten.with(warnings))
}

/// Carries out a patch on a value that has the call's kind.
pub(crate) fn transform(
    call: &Call,
    format: BodyFormat,
    live: &Value,
    patch: &Value,
) -> Result<Value, Failure> {
    if format == BodyFormat::StrategicMergePatch && call.kind.is_custom() {
        return Err(request::patch_not_supported(
            &request::patch_types_without_strategic(),
        ));
    }
    if format == BodyFormat::StrategicMergePatch {
        let schemas = &call.server.0.schemas;
        let mut wanted =
            strategic::apply(schemas, call.kind.schema, live, patch).map_err(refused)?;
        drop_nulls(&mut wanted);
        return Ok(wanted);
    }
    plain(format, live, patch)
}

/// The patches that need no schema.
pub(crate) fn plain(format: BodyFormat, live: &Value, patch: &Value) -> Result<Value, Failure> {
    let mut wanted = live.clone();
    match format {
        BodyFormat::JsonPatch => {
            json_patch::apply(&mut wanted, patch, &limits::JSON_PATCH).map_err(refused)?;
        }
        // RFC 7386. The recursion is as deep as the patch, whose depth was checked at decoding.
        BodyFormat::MergePatch if patch.is_object() => ::json_patch::merge(&mut wanted, patch),
        BodyFormat::MergePatch => {
            return Err(Failure::bad_request("a merge patch must be an object"));
        }
        _ => {
            return Err(request::patch_not_supported(
                &request::patch_types_without_strategic(),
            ));
        }
    }
    if !wanted.is_object() {
        return Err(Failure::unprocessable(
            "the patch removes the whole object; send an object",
        ));
    }
    drop_nulls(&mut wanted);
    Ok(wanted)
}

/// Drops null members, which have no meaning in an object, as in a body.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn refused(error: PatchError) -> Failure {
    match error {
        PatchError::Malformed(why) => Failure::bad_request(quoted(&why)),
        PatchError::TooLarge(why) => Failure::too_large_because(&quoted(&why)),
        PatchError::Unprocessable(why) => Failure::unprocessable(quoted(&why)),
    }
}

async fn applied(call: &Call, decoded: Decoded, part: ObjectPart) -> Result<WriteResult, Failure> {
    if call.params.get("fieldManager").is_none() {
        return Err(Failure::bad_request(
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        ));
    }
    if !decoded.value.is_object() {
        return Err(Failure::bad_request("an apply patch must be an object"));
    }
    let force = call.params.switch("force") == Some(true);
    let manager = prepare::manager(call, ManagerOperation::Apply, part)?;
    let mut config = owned_part(call, decoded.value, part);
    let unknown = fields::declared(call, &mut config)?;
    for _ in 0..MAX_APPEARANCES {
        let exists = call.server.0.store.get(&call.key()).is_some();
        let attempt = match (exists, part) {
            (true, _) => onto(call, &config, &decoded.duplicates, &manager, force, part).await,
            (false, ObjectPart::Main) => {
                anew(call, &config, &decoded.duplicates, &manager, force).await
            }
            (false, ObjectPart::Status) => {
                return Err(Failure::not_found(call.kind, call.object_name()));
            }
        };
        match attempt {
            Err(failure) if exists && failure.reason() == "NotFound" => {}
            Err(failure) if !exists && failure.reason() == "AlreadyExists" => {}
            other => {
                return other.map(|mut written| {
                    let mut warnings = unknown;
                    warnings.append(&mut written.warnings);
                    WriteResult {
                        warnings,
                        ..written
                    }
                });
            }
        }
    }
    Err(Failure::modified(call.kind, call.object_name()))
}

/// Applies a configuration to an existing object.
async fn onto(
    call: &Call,
    config: &Value,
    duplicates: &[String],
    manager: &FieldManager,
    force: bool,
    part: ObjectPart,
) -> Result<WriteResult, Failure> {
    let mut warnings = Vec::new();
    let rewritten = rewrite(call, |live| {
        let pinned = meta_text(config, "resourceVersion");
        if !pinned.is_empty() && pinned != meta_text(live, "resourceVersion") {
            return Err(Failure::modified(call.kind, call.object_name()));
        }
        let wanted = merged(call, Some(live), config, manager, force)?;
        prepare::change(
            call,
            part,
            Tracking::Applied,
            live,
            wanted,
            duplicates,
            &mut warnings,
        )
    })
    .await?;
    Ok(rewritten.with(warnings))
}

/// Creates the applied object. Requires the right to create in addition to the right to patch, as
/// in Kubernetes.
async fn anew(
    call: &Call,
    config: &Value,
    duplicates: &[String],
    manager: &FieldManager,
    force: bool,
) -> Result<WriteResult, Failure> {
    if !meta_text(config, "resourceVersion").is_empty() || !meta_text(config, "uid").is_empty() {
        return Err(Failure::conflict(
            call.kind,
            call.object_name(),
            "the object to apply to no longer exists",
        ));
    }
    call.server.require(
        &call.caller,
        &RequestAttributes {
            verb: "create",
            group: call.kind.group,
            resource: call.kind.plural,
            subresource: None,
            namespace: call.namespace.as_deref(),
            name: call.name.as_deref(),
        },
    )?;
    let object = merged(call, None, config, manager, force)?;
    let created = create::new_object(call, object, duplicates, Tracking::Applied).await?;
    Ok(created.0)
}

fn merged(
    call: &Call,
    live: Option<&Value>,
    config: &Value,
    manager: &FieldManager,
    force: bool,
) -> Result<Value, Failure> {
    let now = times::seconds(call.server.now());
    let server = &call.server.0;
    apply(
        &server.schemas,
        call.kind.schema,
        live,
        config,
        manager,
        force,
        &now,
    )
    .map_err(|error| {
        let message = error.to_string();
        match error {
            ApplyError::Conflicts(conflicts) => {
                let causes = conflicts.iter().map(|conflict| Cause {
                    reason: "FieldManagerConflict".into(),
                    message: conflict.message(),
                    field: conflict.field.clone(),
                });
                Failure::apply_conflict(message, causes.collect())
            }
            ApplyError::BadRequest(why) | ApplyError::Typed(why) => {
                Failure::bad_request(quoted(&why))
            }
        }
    })
}

/// The part of an applied configuration that this endpoint writes; an apply here does not own the
/// rest.
fn owned_part(call: &Call, mut config: Value, part: ObjectPart) -> Value {
    let kind = call.kind;
    config["apiVersion"] = config
        .get("apiVersion")
        .cloned()
        .unwrap_or_else(|| kind.api_version().into());
    config["kind"] = config
        .get("kind")
        .cloned()
        .unwrap_or_else(|| kind.kind.into());
    let meta = object::meta_mut(&mut config);
    meta.entry("name")
        .or_insert_with(|| call.object_name().into());
    if let Some(namespace) = &call.namespace {
        meta.entry("namespace")
            .or_insert_with(|| namespace.as_str().into());
    }
    let Some(members) = config.as_object_mut() else {
        return config;
    };
    match part {
        ObjectPart::Main if kind.status => {
            members.remove("status");
        }
        ObjectPart::Main => {}
        ObjectPart::Status => {
            let kept = ["apiVersion", "kind", "metadata", "status"];
            members.retain(|key, _| kept.contains(&key.as_str()));
            let named: Map<String, Value> = object::meta_mut(&mut config)
                .iter()
                .filter(|(key, _)| {
                    matches!(
                        key.as_str(),
                        "name" | "namespace" | "resourceVersion" | "uid"
                    )
                })
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            config["metadata"] = Value::Object(named);
        }
    }
    config
}
