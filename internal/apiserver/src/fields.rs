//! Owns `fieldValidation`: the treatment of unknown fields, duplicate fields and fields with the
//! wrong type.

use serde_json::Value;

use crate::bounded;
use crate::call::Call;
use crate::object;
use crate::server::ApiServer;
use crate::status::{Cause, Failure};

#[derive(Clone, Copy, PartialEq)]
enum FieldLevel {
    Ignore,
    Warn,
    Strict,
}

fn level(call: &Call) -> Result<FieldLevel, Failure> {
    match call.params.get("fieldValidation") {
        None | Some("Warn") => Ok(FieldLevel::Warn),
        Some("Ignore") => Ok(FieldLevel::Ignore),
        Some("Strict") => Ok(FieldLevel::Strict),
        Some(other) => Err(Failure::bad_request(format!(
            "fieldValidation: Unsupported value: \"{other}\": supported values: \"Ignore\", \"Strict\", \"Warn\""
        ))),
    }
}

/// Checks an object against its definition and drops unknown fields. Returns the warnings.
pub(crate) fn check(
    call: &Call,
    object: &mut Value,
    duplicates: &[String],
) -> Result<Vec<String>, Failure> {
    bounded::object(object)?;
    let level = level(call)?;
    let schemas = &call.server.0.schemas;
    let definition = call.kind.schema;
    let found = schemas.check(definition, object);
    if let Some((_, message)) = found.errors.first() {
        return Err(undecodable(call, message));
    }
    let mut complaints = Vec::new();
    if level != FieldLevel::Ignore {
        complaints.extend_from_slice(duplicates);
        complaints.extend(unknown(&found.unknown));
    }
    refuse_if_strict(call, level, &complaints)?;
    if !found.unknown.is_empty() {
        schemas.prune(definition, object);
    }
    if !found.invalid.is_empty() {
        let causes = found.invalid.into_iter().map(Cause::from).collect();
        return Err(Failure::invalid(call.kind, object::name(object), causes));
    }
    if call.kind.is_custom() {
        schemas.default(definition, object);
    } else {
        // No other step sets required zero values of the status; validation checks the spec.
        schemas.fill_required(definition, "status", object);
    }
    Ok(complaints)
}

/// Drops unknown fields from a configuration that is about to be applied, because the merge would
/// refuse them. Returns the warnings. Nulls stay: they are significant until the configuration is
/// merged.
pub(crate) fn declared(call: &Call, config: &mut Value) -> Result<Vec<String>, Failure> {
    bounded::object(config)?;
    let level = level(call)?;
    let schemas = &call.server.0.schemas;
    let found = schemas.check(call.kind.schema, config);
    if found.unknown.is_empty() {
        return Ok(Vec::new());
    }
    schemas.prune_unknown(call.kind.schema, config);
    if level == FieldLevel::Ignore {
        return Ok(Vec::new());
    }
    let complaints = unknown(&found.unknown);
    refuse_if_strict(call, level, &complaints)?;
    Ok(complaints)
}

/// Refuses a body with fields of the wrong type if no kind is registered for it: a review, a
/// binding, an eviction.
pub(crate) fn typed(
    server: &ApiServer,
    definition: &str,
    kind: &str,
    body: &Value,
) -> Result<(), Failure> {
    bounded::object(body)?;
    match server.0.schemas.check(definition, body).errors.first() {
        None => Ok(()),
        Some((_, message)) => Err(Failure::bad_request(format!(
            "the request's body cannot be handled as a {kind}: {message}"
        ))),
    }
}

fn unknown(paths: &[String]) -> Vec<String> {
    paths
        .iter()
        .map(|path| format!("unknown field \"{path}\""))
        .collect()
}

fn refuse_if_strict(call: &Call, level: FieldLevel, complaints: &[String]) -> Result<(), Failure> {
    if level != FieldLevel::Strict || complaints.is_empty() {
        return Ok(());
    }
    Err(undecodable(
        call,
        &format!("strict decoding error: {}", complaints.join(", ")),
    ))
}

fn undecodable(call: &Call, why: &str) -> Failure {
    let (kind, version) = (call.kind.kind, call.kind.version);
    Failure::bad_request(format!(
        "{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"
    ))
}
