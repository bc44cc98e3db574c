//! Owns every error response of the API: the `Status` object and its texts. Clients match on the
//! texts, so they are the Kubernetes API's own. Does not depend on requests or the store.

use std::collections::HashSet;

use axum::body::Body;
use http::{HeaderValue, Response, StatusCode, header};
use resources::access::{Caller, RequestAttributes};
use resources::field::FieldError;
use resources::registry::Kind;
use serde_json::{Map, Value, json};

use crate::limits::{MOST_CAUSES, TRY_AGAIN_AFTER, quoted};

/// One of the reasons why an object was refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Cause {
    /// Machine-readable reason, such as `FieldValueInvalid`.
    pub reason: String,
    /// The text for users.
    pub message: String,
    /// The path of the invalid field; empty if no single field is invalid.
    pub field: String,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Details {
    name: String,
    group: String,
    kind: String,
    uid: String,
    causes: Vec<Cause>,
    retry_after_seconds: u32,
}

/// A refused request, boxed because it is rare and results are moved often.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure(Box<Inner>);

#[derive(Debug, Clone, PartialEq)]
struct Inner {
    code: StatusCode,
    reason: &'static str,
    message: String,
    details: Option<Details>,
    continue_token: Option<String>,
}

impl Failure {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Failure(Box::new(Inner {
            code,
            reason,
            message: message.into(),
            details: None,
            continue_token: None,
        }))
    }

    fn about(mut self, kind: &Kind, name: &str) -> Self {
        self.0.details = Some(Details {
            name: name.into(),
            group: kind.group.into(),
            kind: kind.plural.into(),
            ..Details::default()
        });
        self
    }

    /// The details of an error without an object; Go clients expect them in every error.
    fn without_subject(mut self) -> Self {
        self.0.details = Some(Details::default());
        self
    }

    fn causes(mut self, mut causes: Vec<Cause>) -> Self {
        causes.truncate(MOST_CAUSES);
        for cause in &mut causes {
            cause.message = quoted(&cause.message);
            cause.field = quoted(&cause.field);
        }
        self.0.details.get_or_insert_with(Details::default).causes = causes;
        self
    }

    /// The HTTP status of this failure.
    #[cfg(test)]
    pub fn code(&self) -> StatusCode {
        self.0.code
    }

    /// The machine-readable reason, such as `NotFound`.
    pub fn reason(&self) -> &'static str {
        self.0.reason
    }

    /// The text for users.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// 404 for one object.
    pub fn not_found(kind: &Kind, name: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            format!("{} \"{name}\" not found", kind.qualified()),
        )
        .about(kind, name)
    }

    /// 404 for what is not stored, such as a log; the text gives the reason.
    pub fn not_found_because(why: String) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", why).without_subject()
    }

    /// 404 for a path that is not a resource.
    pub fn no_such_resource() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            "the server could not find the requested resource",
        )
        .without_subject()
    }

    /// 409 for a name that is already used.
    pub fn already_exists(kind: &Kind, name: &str) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "AlreadyExists",
            format!("{} \"{name}\" already exists", kind.qualified()),
        )
        .about(kind, name)
    }

    /// 409 for a write that lost a race or failed a precondition.
    pub fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": {why}",
            kind.qualified()
        );
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(kind, name)
    }

    /// 409 from a subresource.
    pub fn conflict_on(kind: &Kind, subresource: &str, name: &str, why: &str) -> Self {
        let resource = format!("{}/{subresource}", kind.qualified());
        let message = format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}");
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(kind, name)
    }

    /// 409 for a stale resourceVersion.
    pub fn modified(kind: &Kind, name: &str) -> Self {
        Self::conflict(
            kind,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 409 for a server-side apply that conflicts with other managers' fields.
    pub fn apply_conflict(message: String, causes: Vec<Cause>) -> Self {
        Self::new(StatusCode::CONFLICT, "Conflict", message).causes(causes)
    }

    /// 422 with one cause for each invalid field.
    pub fn invalid(kind: &Kind, name: &str, causes: Vec<Cause>) -> Self {
        let joined = aggregate(&causes);
        let qualified = if kind.group.is_empty() {
            kind.kind.to_string()
        } else {
            format!("{}.{}", kind.kind, kind.group)
        };
        let mut failure = Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            format!("{qualified} \"{name}\" is invalid: {joined}"),
        )
        .about(kind, name)
        .causes(causes);
        if let Some(details) = &mut failure.0.details {
            details.kind = kind.kind.into();
        }
        failure
    }

    /// 422 for a patch that cannot be applied to the object.
    pub fn unprocessable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
    }

    /// 403 by admission (quota, limits, a namespace being deleted).
    pub fn forbidden(kind: &Kind, name: &str, why: &str) -> Self {
        let subject = if name.is_empty() {
            kind.qualified()
        } else {
            format!("{} \"{name}\"", kind.qualified())
        };
        Self::new(
            StatusCode::FORBIDDEN,
            "Forbidden",
            format!("{subject} is forbidden: {why}"),
        )
        .about(kind, name)
    }

    /// 403 because the namespace is being deleted; controllers check the cause.
    pub fn namespace_terminating(kind: &Kind, name: &str, namespace: &str) -> Self {
        let why = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        Self::forbidden(kind, name, &why).causes(vec![Cause {
            reason: "NamespaceTerminating".into(),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".into(),
        }])
    }

    /// 403 by authorisation.
    pub fn not_permitted(caller: &Caller, wanted: &RequestAttributes) -> Self {
        let full = match wanted.subresource {
            None => wanted.resource.to_string(),
            Some(subresource) => format!("{}/{subresource}", wanted.resource),
        };
        let place = match wanted.namespace {
            None => "at the cluster scope".to_string(),
            Some(namespace) => format!("in the namespace \"{namespace}\""),
        };
        let qualified = if wanted.group.is_empty() {
            wanted.resource.to_string()
        } else {
            format!("{}.{}", wanted.resource, wanted.group)
        };
        let subject = match wanted.name {
            None => qualified,
            Some(name) => format!("{qualified} \"{name}\""),
        };
        let message = format!(
            "{subject} is forbidden: User \"{}\" cannot {} resource \"{full}\" in API group \"{}\" {place}",
            caller.user, wanted.verb, wanted.group
        );
        let mut failure = Self::new(StatusCode::FORBIDDEN, "Forbidden", message);
        failure.0.details = Some(Details {
            name: wanted.name.unwrap_or_default().to_string(),
            group: wanted.group.to_string(),
            kind: wanted.resource.to_string(),
            ..Details::default()
        });
        failure
    }

    /// 403 by authorisation, for a path that is not a resource.
    pub fn path_not_permitted(caller: &Caller, verb: &str, path: &str) -> Self {
        let message = format!(
            "forbidden: User \"{}\" cannot {verb} path \"{path}\"",
            caller.user
        );
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// 403 for a request that asks for impersonation if it is not available.
    pub fn not_impersonating(user: &str, why: &str) -> Self {
        let message = format!("forbidden: User \"{user}\" cannot impersonate: {why}");
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// 401: the request has no caller.
    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// 405 for a verb that the path does not support.
    pub fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    /// 415 for a body in an unsupported format.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {}",
                accepted.join(", ")
            ),
        )
    }

    /// 406 for an Accept header without a supported format.
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        Self::new(
            StatusCode::NOT_ACCEPTABLE,
            "NotAcceptable",
            format!(
                "only the following media types are accepted: {}",
                accepted.join(", ")
            ),
        )
    }

    /// 429: an eviction would violate a PodDisruptionBudget; the client may retry later.
    pub fn disruption_budget(budget: &str, needs: usize, has: usize) -> Self {
        Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "TooManyRequests",
            "Cannot evict pod as it would violate the pod's disruption budget.",
        )
        .causes(vec![Cause {
            reason: "DisruptionBudget".to_owned(),
            message: format!(
                "The disruption budget {budget} needs {needs} healthy pods and has {has} currently"
            ),
            field: String::new(),
        }])
    }

    /// 410: the history no longer contains the requested revision.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// 410 for a list whose revision expired between pages; `token` continues with the current
    /// state.
    pub fn expired_continue(token: &str) -> Self {
        let mut failure = Self::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new \
             list without the continue parameter, or use the continue token in this response to retrieve the \
             remainder of the results. Continuing with the provided token results in an inconsistent list - objects \
             that were created, modified, or deleted between the time the first chunk was returned and now may show \
             up in the list.",
        );
        failure.0.continue_token = Some(token.to_string());
        failure
    }

    /// 504: the requested revision lies in the future.
    pub fn too_large_resource_version(asked: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {current}");
        let mut failure = Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "Timeout",
            format!("Timeout: {message}"),
        )
        .causes(vec![Cause {
            reason: "ResourceVersionTooLarge".into(),
            message: "Too large resource version".into(),
            field: String::new(),
        }]);
        if let Some(details) = &mut failure.0.details {
            details.retry_after_seconds = 1;
        }
        failure
    }

    /// 413.
    pub fn too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {limit}"),
        )
    }

    /// 413 for a request that exceeds a bound other than the body's bytes.
    pub fn too_large_because(why: &str) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            format!("Request entity too large: {why}"),
        )
    }

    /// 414 for a query string that is too long.
    pub fn query_too_long(limit: usize) -> Self {
        Self::new(
            StatusCode::URI_TOO_LONG,
            "RequestURITooLong",
            format!("the query takes more than {limit} bytes; send fewer or shorter parameters"),
        )
    }

    /// 429: too many large requests are in progress.
    pub fn too_many_large_requests() -> Self {
        Self::too_many_requests("too many large requests are waiting, please try again later")
    }

    /// 429 with `Retry-After`, as API priority and fairness gives it.
    pub fn too_many_requests(message: &str) -> Self {
        let mut failure =
            Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).without_subject();
        if let Some(details) = &mut failure.0.details {
            details.retry_after_seconds = u32::try_from(TRY_AGAIN_AFTER.as_secs()).unwrap_or(1);
        }
        failure
    }

    /// 503: the store accepts no writes; the message contains the remedy.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailable",
            message,
        )
    }

    /// 429 for a caller that has as much of something as it may have; the message names the bound.
    pub fn too_many(message: &str) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
    }

    /// 500: an internal error.
    pub fn internal(message: impl std::fmt::Display) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            format!("Internal error occurred: {message}"),
        )
    }

    /// The `Status` object.
    pub fn to_value(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.0.message, "reason": self.0.reason, "code": self.0.code.as_u16(),
        });
        if let Some(details) = &self.0.details {
            status["details"] = details_value(details);
        }
        if let Some(token) = &self.0.continue_token {
            status["metadata"]["continue"] = token.as_str().into();
        }
        status
    }

    /// The HTTP response.
    pub fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.to_value().to_string()));
        *response.status_mut() = self.0.code;
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        if let Some(seconds) = self
            .0
            .details
            .as_ref()
            .map(|d| d.retry_after_seconds)
            .filter(|s| *s > 0)
        {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

fn details_value(details: &Details) -> Value {
    let mut out = Map::new();
    for (key, text) in [
        ("name", &details.name),
        ("group", &details.group),
        ("kind", &details.kind),
        ("uid", &details.uid),
    ] {
        if !text.is_empty() {
            out.insert(key.into(), Value::String(text.clone()));
        }
    }
    if !details.causes.is_empty() {
        let causes = details.causes.iter().map(cause_value).collect();
        out.insert("causes".into(), Value::Array(causes));
    }
    if details.retry_after_seconds > 0 {
        out.insert(
            "retryAfterSeconds".into(),
            details.retry_after_seconds.into(),
        );
    }
    Value::Object(out)
}

fn cause_value(cause: &Cause) -> Value {
    let mut out = Map::new();
    for (key, text) in [
        ("reason", &cause.reason),
        ("message", &cause.message),
        ("field", &cause.field),
    ] {
        if !text.is_empty() {
            out.insert(key.into(), Value::String(text.clone()));
        }
    }
    Value::Object(out)
}

impl From<&FieldError> for Cause {
    fn from(error: &FieldError) -> Self {
        Cause {
            reason: error.cause_reason().to_string(),
            message: error.body(),
            field: error.path.clone(),
        }
    }
}

impl From<schema::Invalid> for Cause {
    fn from(broken: schema::Invalid) -> Self {
        Cause {
            reason: broken.reason.to_string(),
            message: broken.message,
            field: broken.path,
        }
    }
}

/// The causes as one message: a single one alone, or `[a, b]` without duplicates, and the number of
/// further causes above a bound.
fn aggregate(causes: &[Cause]) -> String {
    let mut seen = HashSet::new();
    let mut words: Vec<String> = Vec::new();
    for cause in causes.iter().take(MOST_CAUSES) {
        let text = format!("{}: {}", quoted(&cause.field), quoted(&cause.message));
        if seen.insert(text.clone()) {
            words.push(text);
        }
    }
    if causes.len() > MOST_CAUSES {
        words.push(format!("and {} more", causes.len() - MOST_CAUSES));
    }
    if words.len() == 1 {
        words.remove(0)
    } else {
        format!("[{}]", words.join(", "))
    }
}

/// The response 429 with `Retry-After`, for requests that do not reach the API.
pub fn too_many_requests(message: &str) -> Response<Body> {
    Failure::too_many_requests(message).into_response()
}

/// The `Status` of a completed deletion.
pub fn deleted(kind: &Kind, name: &str, uid: &str) -> Value {
    let details = Details {
        name: name.into(),
        group: kind.group.into(),
        kind: kind.plural.into(),
        uid: uid.into(),
        ..Details::default()
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": details_value(&details),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn causes(count: usize) -> Vec<Cause> {
        let cause = |at: usize| Cause {
            reason: "FieldValueInvalid".into(),
            message: "Invalid value: \"x\": no".into(),
            field: format!("spec.f{at}"),
        };
        (0..count).map(cause).collect()
    }

    #[test]
    fn causes_are_listed_up_to_their_bound_and_the_rest_counted() {
        let kind = resources::registry::by_kind("", "v1", "Pod").unwrap();
        let listed = |count: usize| {
            let value = Failure::invalid(kind, "p", causes(count)).to_value();
            let message = value["message"].as_str().unwrap().to_owned();
            (
                value["details"]["causes"].as_array().unwrap().len(),
                message,
            )
        };
        let (all, message) = listed(MOST_CAUSES);
        assert_eq!(all, MOST_CAUSES);
        assert!(!message.contains("more]"), "{message}");
        let (first, message) = listed(MOST_CAUSES + 7);
        assert_eq!(first, MOST_CAUSES);
        assert!(message.ends_with(", and 7 more]"), "{message}");
    }

    #[test]
    fn a_refusal_about_no_object_has_empty_details() {
        let value = Failure::no_such_resource().to_value();
        assert_eq!(value["details"], json!({}));
        let busy = Failure::too_many_large_requests();
        assert_eq!(busy.to_value()["details"]["retryAfterSeconds"], 1);
        assert_eq!(busy.into_response().headers()[header::RETRY_AFTER], "1");
    }
}
