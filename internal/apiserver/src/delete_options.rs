//! Owns reading the deletion options from the body or the query.

use bytes::Bytes;
use serde_json::Value;

use crate::call::Call;
use crate::status::Failure;
use crate::{decode, request};

/// The propagation policy for the deleted object's dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Propagation {
    /// Background: the dependents are deleted afterwards.
    Background,
    /// Foreground: the dependents are deleted first.
    Foreground,
    /// Orphan: the dependents stay.
    Orphan,
}

/// The options of a deletion.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DeleteOptions {
    pub(crate) grace: Option<i64>,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) propagation: Option<Propagation>,
    pub(crate) dry_run: bool,
}

impl DeleteOptions {
    /// Reads the request's options; a body takes precedence over the query.
    pub(crate) fn of(call: &Call, body: &Bytes) -> Result<Self, Failure> {
        if body.is_empty() {
            return Self::of_query(call);
        }
        let format = request::object_format(&call.headers)?;
        let sent = decode::object(body, format)?.value;
        match sent["kind"].as_str() {
            None | Some("" | "DeleteOptions") => Self::of_value(&sent),
            Some(other) => Err(Failure::bad_request(format!(
                "the body of a deletion must be DeleteOptions, not {other}"
            ))),
        }
    }

    fn of_query(call: &Call) -> Result<Self, Failure> {
        let params = &call.params;
        Ok(DeleteOptions {
            grace: checked_grace(params.number("gracePeriodSeconds")?)?,
            propagation: propagation(
                params.get("propagationPolicy"),
                params.switch("orphanDependents"),
            )?,
            ..DeleteOptions::default()
        })
    }

    /// Reads a DeleteOptions object.
    pub(crate) fn of_value(sent: &Value) -> Result<Self, Failure> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let grace = match &sent["gracePeriodSeconds"] {
            Value::Null => None,
            value => Some(value.as_i64().ok_or_else(|| {
                Failure::bad_request(format!(
                    "gracePeriodSeconds: Invalid value: {value}: must be an integer"
                ))
            })?),
        };
        Ok(DeleteOptions {
            grace: checked_grace(grace)?,
            uid: text(&sent["preconditions"]["uid"]),
            resource_version: text(&sent["preconditions"]["resourceVersion"]),
            propagation: propagation(
                sent["propagationPolicy"].as_str(),
                sent["orphanDependents"].as_bool(),
            )?,
            dry_run: sent["dryRun"]
                .as_array()
                .is_some_and(|list| list.iter().any(|one| one == "All")),
        })
    }
}

fn checked_grace(grace: Option<i64>) -> Result<Option<i64>, Failure> {
    match grace {
        Some(seconds) if seconds < 0 => Err(Failure::bad_request(format!(
            "gracePeriodSeconds: Invalid value: {seconds}: must be greater than or equal to 0"
        ))),
        grace => Ok(grace),
    }
}

fn propagation(policy: Option<&str>, orphan: Option<bool>) -> Result<Option<Propagation>, Failure> {
    match (policy, orphan) {
        (Some(_), Some(_)) => Err(Failure::bad_request(
            "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: orphanDependents and deletionPropagation cannot be both set",
        )),
        (Some("Background"), None) => Ok(Some(Propagation::Background)),
        (Some("Foreground"), None) => Ok(Some(Propagation::Foreground)),
        (Some("Orphan"), None) => Ok(Some(Propagation::Orphan)),
        (Some(other), None) => Err(Failure::bad_request(format!(
            "DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"{other}\": supported values: \"Background\", \"Foreground\", \"Orphan\""
        ))),
        (None, Some(true)) => Ok(Some(Propagation::Orphan)),
        (None, Some(false)) => Ok(Some(Propagation::Background)),
        (None, None) => Ok(None),
    }
}
