//! One line of the audit log: an Event of audit.k8s.io/v1 in kube-apiserver's format, so that tools for its log can
//! read Muster's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::AuditLevel;
use crate::access::Caller;

/// The API version of events and policies.
pub const API_VERSION: &str = "audit.k8s.io/v1";

/// The stage of a request when its event was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuditStage {
    /// The headers of a long answer (a watch, a log) were sent.
    ResponseStarted,
    /// The answer is complete.
    ResponseComplete,
}

/// A user as the event names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserInfo {
    /// The name; empty where the request carried no valid credentials.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub username: String,
    /// The groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

impl From<&Caller> for UserInfo {
    fn from(caller: &Caller) -> Self {
        UserInfo {
            username: caller.user.clone(),
            groups: caller.groups.clone(),
        }
    }
}

/// The object that a request is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    /// The plural of the kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// The namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The API group; empty for the core group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// The API version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// The subresource.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subresource: String,
}

/// The status of the response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseStatus {
    /// Always empty; kube-apiserver writes it.
    #[serde(default)]
    pub metadata: BTreeMap<String, Value>,
    /// The HTTP status code.
    pub code: u16,
    /// `Failure` where the request failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// The machine-readable reason of a failure.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The message of a failure, as the client received it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// An audit event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditEvent {
    /// `AuditEvent`.
    pub kind: String,
    /// [`API_VERSION`].
    pub api_version: String,
    /// The level of detail of the event.
    pub level: AuditLevel,
    /// The request's own id.
    #[serde(rename = "auditID")]
    pub audit_id: String,
    /// The stage of the request.
    pub stage: AuditStage,
    /// The request's path and query.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// The verb: of a resource, or the HTTP method in lower case.
    pub verb: String,
    /// The user that made the request.
    pub user: UserInfo,
    /// The impersonated user, if the request impersonates one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub impersonated_user: Option<UserInfo>,
    /// The addresses that the request came from; `in-process` for the server's own parts.
    #[serde(default, rename = "sourceIPs", skip_serializing_if = "Vec::is_empty")]
    pub source_ips: Vec<String>,
    /// The program that made the request.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user_agent: String,
    /// The object, for requests about resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_ref: Option<ObjectReference>,
    /// The status of the response.
    pub response_status: ResponseStatus,
    /// The request body, from level `Request` on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_object: Option<Value>,
    /// The response body, at level `RequestResponse`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_object: Option<Value>,
    /// When the request arrived: RFC 3339 with microseconds, UTC.
    pub request_received_timestamp: String,
    /// When the request reached this stage.
    pub stage_timestamp: String,
    /// Further annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// An extension of a response: the impersonated user that the request was carried out as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impersonated(pub UserInfo);

/// An extension of a response whose request the resource API has recorded or, by policy, omitted: no other log records
/// it again.
#[derive(Clone, Copy, Debug)]
pub struct Recorded;
