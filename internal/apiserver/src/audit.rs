//! Audits requests for resources: selects the requests to record and builds their events. The
//! receiver writes the log.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use resources::access::{Caller, Impersonator};
use resources::audit::{
    self, AuditEvent, AuditLevel, AuditPolicy, AuditStage, ObjectReference, RequestFacts, UserInfo,
    shortened,
};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::client::InProcess;
use crate::decode;
use crate::path::{RequestTarget, ResourcePath};
use crate::protobuf;
use crate::request::{self, BodyFormat, Params};
use crate::status::Failure;
use crate::verb::Verb;

/// The largest object that is recorded completely, in bytes; an annotation marks larger ones.
const LARGEST_OBJECT: u64 = 256 << 10;
/// The annotation of an event whose object was too large to be recorded.
const OMITTED: &str = "audit.muster.io/object-omitted";

/// The destination of events, and the policy.
#[derive(Clone)]
pub struct Auditor {
    /// The audit policy.
    pub policy: Arc<AuditPolicy>,
    /// The log.
    pub events: mpsc::Sender<AuditEvent>,
}

/// The annotations of a request's audit event, by their keys. They are in the response's
/// extensions, also for a refused request; a response without annotations has no such extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditAnnotations(pub BTreeMap<String, String>);

/// Collects a request's [`AuditAnnotations`]. Clones share the collection.
#[derive(Clone, Default)]
pub(crate) struct AuditNotes(Arc<Mutex<BTreeMap<String, String>>>);

impl AuditNotes {
    /// Adds annotations; a later one replaces an earlier one with the same key.
    pub(crate) fn add(&self, more: &BTreeMap<String, String>) {
        let more = more.iter().map(|(key, value)| (key.clone(), value.clone()));
        self.0.lock().extend(more);
    }

    /// The collected annotations, if any.
    pub(crate) fn take(&self) -> Option<AuditAnnotations> {
        let all = std::mem::take(&mut *self.0.lock());
        (!all.is_empty()).then_some(AuditAnnotations(all))
    }
}

/// The name of a created object, if the path contains none.
#[derive(Clone, Debug)]
pub(crate) struct Created(pub(crate) String);

/// A request with an unfinished event.
pub(crate) struct AuditRecord {
    auditor: Auditor,
    received: Timestamp,
    level: AuditLevel,
    verb: &'static str,
    target: ResourcePath,
    sent: Option<Value>,
    omitted: bool,
}

/// Begins a request's event. From level `Request` on it reads the body and passes it on.
pub(crate) async fn begin(
    auditor: Option<Auditor>,
    parts: &Parts,
    body: Body,
) -> Result<(Option<AuditRecord>, Body), Failure> {
    let Some(auditor) = auditor else {
        return Ok((None, body));
    };
    let RequestTarget::Resource(target) = crate::path::parse(parts.uri.path()) else {
        return Ok((None, body));
    };
    // An invalid query is refused later; the refusal is recorded like any other.
    let watches =
        Params::parse(parts.uri.query()).is_ok_and(|params| params.switch("watch") == Some(true));
    let watching = watches && target.subresource.is_none();
    let verb = Verb::of(&parts.method, target.name.is_some(), watching).map_or("", Verb::word);
    let caller = author(parts);
    let level = auditor.policy.level(&audit::AuditedRequest {
        user: caller.map_or("", |caller| &caller.user),
        groups: caller.map_or(&[], |caller| &caller.groups),
        verb,
        resource: Some((&target.group, &target.resource)),
        subresource: target.subresource.as_deref(),
        namespace: target.namespace.as_deref(),
        name: target.name.as_deref(),
        path: parts.uri.path(),
    });
    let mut record = AuditRecord {
        auditor,
        received: Timestamp::now(),
        level,
        verb,
        target,
        sent: None,
        omitted: false,
    };
    let writes = matches!(parts.method, Method::POST | Method::PUT | Method::PATCH);
    if level < AuditLevel::Request || !writes {
        return Ok((Some(record), body));
    }
    let bytes = request::read(body).await?;
    (record.sent, record.omitted) = object(&bytes);
    Ok((Some(record), Body::from(bytes)))
}

/// The authenticated user of an impersonated request.
fn author(parts: &Parts) -> Option<&Caller> {
    let impersonator = parts.extensions.get::<Impersonator>();
    impersonator
        .map(|one| &one.0)
        .or_else(|| parts.extensions.get::<Caller>())
}

/// The impersonated user, if any.
fn impersonated(parts: &Parts) -> Option<&Caller> {
    parts.extensions.get::<Impersonator>()?;
    parts.extensions.get::<Caller>()
}

/// Parses JSON or protobuf, which `kubectl create` sends, as an object; also returns true if it was omitted, for its size
/// or because it is neither.
fn object(bytes: &Bytes) -> (Option<Value>, bool) {
    if bytes.is_empty() {
        return (None, false);
    }
    let small = bytes.len() as u64 <= LARGEST_OBJECT;
    let value = small.then(|| parsed(bytes)).flatten();
    let omitted = value.is_none();
    (value, omitted)
}

fn parsed(bytes: &Bytes) -> Option<Value> {
    if bytes.starts_with(protobuf::MAGIC) {
        let decoded = decode::object(bytes, BodyFormat::Protobuf);
        return decoded.ok().map(|decoded| decoded.value);
    }
    serde_json::from_slice(bytes).ok()
}

impl AuditRecord {
    /// Completes a request's event: sends it if the policy records it, or if the response is a
    /// refusal.
    pub(crate) async fn finish(mut self, parts: &Parts, answer: Response<Body>) -> Response<Body> {
        let code = answer.status().as_u16();
        if self.level == AuditLevel::None {
            if !matches!(code, 401 | 403) {
                return answer;
            }
            self.level = AuditLevel::Metadata;
        }
        let (head, body) = answer.into_parts();
        // Long responses have no exact size and are never buffered here.
        let short = body
            .size_hint()
            .exact()
            .is_some_and(|size| size <= LARGEST_OBJECT);
        let whole = short && (code >= 400 || self.level == AuditLevel::RequestResponse);
        let stage = if body.size_hint().exact().is_some() {
            AuditStage::ResponseComplete
        } else {
            AuditStage::ResponseStarted
        };
        let (answered, body) = if whole {
            match body.collect().await {
                Ok(collected) => {
                    let bytes = collected.to_bytes();
                    (
                        serde_json::from_slice::<Value>(&bytes).ok(),
                        Body::from(bytes),
                    )
                }
                Err(error) => {
                    tracing::warn!(%error, "the audit log could not read a response");
                    (None, Body::empty())
                }
            }
        } else {
            (None, body)
        };
        let answer = Response::from_parts(head, body);
        let events = self.auditor.events.clone();
        let event = self.event(parts, &answer, stage, answered);
        if events.send(event).await.is_err() {
            tracing::error!("the audit log's writer ended; a request was not recorded");
        }
        answer
    }

    fn event(
        self,
        parts: &Parts,
        answer: &Response<Body>,
        stage: AuditStage,
        answered: Option<Value>,
    ) -> AuditEvent {
        let code = answer.status().as_u16();
        let path = parts.uri.path_and_query();
        let facts = RequestFacts {
            audit_id: uuid::Uuid::new_v4().to_string(),
            level: self.level,
            stage,
            request_uri: path.map_or("", |path| path.as_str()),
            verb: self.verb,
            user: author(parts).map(UserInfo::from).unwrap_or_default(),
            impersonated_user: impersonated(parts).map(UserInfo::from),
            source: source(parts),
            user_agent: agent(parts),
            code,
            received: self.received,
            reached: Timestamp::now(),
        };
        let mut event = facts.event();
        let word = |field: &str| {
            let text = answered
                .as_ref()
                .filter(|_| code >= 400)
                .and_then(|status| status[field].as_str());
            shortened(text.unwrap_or_default())
        };
        event.response_status.reason = word("reason");
        event.response_status.message = word("message");
        if self.omitted {
            event.annotations.insert(
                OMITTED.to_owned(),
                "larger than is recorded, or not JSON".to_owned(),
            );
        }
        if let Some(AuditAnnotations(more)) = answer.extensions().get() {
            event.annotations.extend(more.clone());
        }
        let created = answer.extensions().get::<Created>();
        let name = self
            .target
            .name
            .or_else(|| created.map(|created| created.0.clone()));
        event.object_ref = Some(ObjectReference {
            resource: shortened(&self.target.resource),
            namespace: shortened(&self.target.namespace.unwrap_or_default()),
            name: shortened(&name.unwrap_or_default()),
            api_group: shortened(&self.target.group),
            api_version: shortened(&self.target.version),
            subresource: shortened(&self.target.subresource.unwrap_or_default()),
        });
        event.request_object = self.sent;
        event.response_object = answered.filter(|_| self.level == AuditLevel::RequestResponse);
        event
    }
}

fn source(parts: &Parts) -> Option<String> {
    if parts.extensions.get::<InProcess>().is_some() {
        return Some("in-process".to_owned());
    }
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
    peer.map(|peer| peer.0.ip().to_canonical().to_string())
}

fn agent(parts: &Parts) -> &str {
    let agent = parts.headers.get(header::USER_AGENT);
    agent
        .and_then(|agent| agent.to_str().ok())
        .unwrap_or_default()
}
