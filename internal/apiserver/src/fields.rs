//! Owns `fieldValidation`: what becomes of fields that the schema does not know, that stand twice, or that have
//! the wrong type.

use serde_json::Value;

use crate::call::Call;
use crate::object;
use crate::status::{Cause, Failure};

#[derive(Clone, Copy, PartialEq)]
enum Level {
    Ignore,
    Warn,
    Strict,
}

fn level(call: &Call) -> Result<Level, Failure> {
    match call.params.get("fieldValidation") {
        None | Some("Warn") => Ok(Level::Warn),
        Some("Ignore") => Ok(Level::Ignore),
        Some("Strict") => Ok(Level::Strict),
        Some(other) => Err(Failure::bad_request(format!(
            "fieldValidation: Unsupported value: \"{other}\": supported values: \"Ignore\", \"Strict\", \"Warn\""
        ))),
    }
}

/// Checks an object against its definition and leaves only fields that the definition knows. Answers with the
/// warnings to give.
pub(crate) fn check(
    call: &Call,
    object: &mut Value,
    duplicates: &[String],
) -> Result<Vec<String>, Failure> {
    let level = level(call)?;
    let schemas = &call.server.0.schemas;
    let definition = call.kind.schema;
    let found = schemas.check(definition, object);
    if let Some((_, message)) = found.errors.first() {
        return Err(undecodable(call, message));
    }
    let mut complaints = Vec::new();
    if level != Level::Ignore {
        complaints.extend(
            duplicates
                .iter()
                .map(|path| format!("duplicate field \"{path}\"")),
        );
        complaints.extend(
            found
                .unknown
                .iter()
                .map(|path| format!("unknown field \"{path}\"")),
        );
    }
    if level == Level::Strict && !complaints.is_empty() {
        return Err(undecodable(
            call,
            &format!("strict decoding error: {}", complaints.join(", ")),
        ));
    }
    if !found.unknown.is_empty() {
        schemas.prune(definition, object);
    }
    if !found.invalid.is_empty() {
        let causes = found.invalid.into_iter().map(Cause::from).collect();
        return Err(Failure::invalid(call.kind, object::name(object), causes));
    }
    if !call.kind.strategic {
        schemas.default(definition, object);
    }
    Ok(complaints)
}

fn undecodable(call: &Call, why: &str) -> Failure {
    let (kind, version) = (call.kind.kind, call.kind.version);
    Failure::bad_request(format!(
        "{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"
    ))
}
