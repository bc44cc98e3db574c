//! Records requests that are not about resources: sign-in, tokens, the portal's REST API, refused
//! credentials. The resource API records requests about resources, because it knows their objects.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use jiff::Timestamp;
use resources::access::Caller;
use resources::audit::{
    self, AuditEvent, AuditLevel, AuditPolicy, AuditStage, Impersonated, Recorded, RequestFacts,
    UserInfo,
};
use tokio::sync::mpsc;

/// The destination of events, and the policy.
#[derive(Clone)]
pub struct Recorder {
    /// The audit policy.
    pub policy: Arc<AuditPolicy>,
    /// The log.
    pub events: mpsc::Sender<AuditEvent>,
}

/// The user name of a sign-in attempt; the sign-in page sets it on its response.
#[derive(Clone, Debug)]
pub struct SignInName(pub String);

/// What a handler adds to its request's event, as annotations; it sets them on its response.
#[derive(Clone, Debug, Default)]
pub struct EventNotes(pub BTreeMap<&'static str, String>);

/// An extension of a response whose request is one of many that ask the same question, and changed nothing: it is not
/// recorded.
#[derive(Clone, Copy, Debug)]
pub struct RepeatedQuestion;

/// The gate stores the authenticated caller here, for the trace outside of it.
#[derive(Clone, Debug, Default)]
pub struct CallerSlot(Arc<OnceLock<Caller>>);

impl CallerSlot {
    /// Stores the caller; only the first call counts.
    pub fn fill(&self, caller: &Caller) {
        let _ = self.0.set(caller.clone());
    }
}

/// Middleware around all routes: records mutating requests and responses 401 and 403, unless they
/// are already recorded.
pub async fn trace(State(recorder): State<Recorder>, mut request: Request, next: Next) -> Response {
    let received = Timestamp::now();
    let slot = CallerSlot::default();
    request.extensions_mut().insert(slot.clone());
    let method = request.method().as_str().to_ascii_lowercase();
    let uri = request.uri().clone();
    let agent = request.headers().get(header::USER_AGENT).cloned();
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let peer = peer.map(|peer| peer.0.ip().to_canonical().to_string());
    let known = request.extensions().get::<Caller>().cloned();

    let answer = next.run(request).await;
    let extensions = answer.extensions();
    if extensions.get::<Recorded>().is_some() || extensions.get::<RepeatedQuestion>().is_some() {
        return answer;
    }
    let caller = slot.0.get().cloned().or(known);
    let mut user = caller.as_ref().map(UserInfo::from).unwrap_or_default();
    let sign_in = answer.extensions().get();
    if let Some(SignInName(name)) = sign_in {
        user.username = audit::shortened(name);
    }
    let impersonated = answer.extensions().get::<Impersonated>();
    let impersonated = impersonated.map(|Impersonated(user)| user.clone());
    let asked = audit::AuditedRequest {
        user: &user.username,
        groups: &user.groups,
        // The browser comes back from an identity provider by GET, and a sign-in changes something all the same.
        verb: if sign_in.is_some() { "post" } else { &method },
        path: uri.path(),
        ..audit::AuditedRequest::default()
    };
    let code = outcome(&answer);
    if recorder.policy.level(&asked) == AuditLevel::None && !matches!(code, 401 | 403) {
        return answer;
    }
    let agent = agent.as_ref().and_then(|agent| agent.to_str().ok());
    let facts = RequestFacts {
        audit_id: draw_id(),
        level: AuditLevel::Metadata,
        stage: AuditStage::ResponseComplete,
        request_uri: &shown(&uri),
        verb: &method,
        user,
        impersonated_user: impersonated,
        source: peer,
        user_agent: agent.unwrap_or_default(),
        code,
        received,
        reached: Timestamp::now(),
    };
    let mut event = facts.event();
    if let Some(EventNotes(notes)) = answer.extensions().get() {
        let notes = notes.iter();
        event.annotations = notes
            .map(|(key, value)| ((*key).to_owned(), audit::shortened(value)))
            .collect();
    }
    if recorder.events.send(event).await.is_err() {
        tracing::error!("the audit log's writer ended; a request was not recorded");
    }
    answer
}

/// The path of the pages on which a user sets its password by a link; the link's secret follows.
const LINKS: &str = "/ui/reset/";

/// The path to which a browser comes back from an identity provider; the code is in the query.
const RETURN: &str = "/ui/oidc/callback";

/// The page on which a person approves a program's sign-in; its code is in the query.
const DEVICE: &str = "/ui/device";

/// A request's URI without the secret of a link to set a password, and without the codes of an identity provider and of a
/// program that signs in.
fn shown(uri: &Uri) -> String {
    let path = uri.path();
    if path.starts_with(LINKS) {
        format!("{LINKS}...")
    } else if path == RETURN || path == DEVICE {
        path.to_owned()
    } else {
        uri.to_string()
    }
}

/// The HTTP status that says what became of a request. A refused gRPC call is answered with 200 and
/// the header `grpc-status`, by the mapping of the gRPC gateway.
fn outcome(answer: &Response) -> u16 {
    let status = answer.status().as_u16();
    let grpc = answer.headers().get("grpc-status");
    let Some(grpc) = grpc.filter(|_| status == 200) else {
        return status;
    };
    match grpc.as_bytes() {
        b"0" => 200,
        // Cancelled.
        b"1" => 499,
        // Invalid argument, failed precondition, out of range.
        b"3" | b"9" | b"11" => 400,
        // Deadline exceeded.
        b"4" => 504,
        // Not found.
        b"5" => 404,
        // Already exists, aborted.
        b"6" | b"10" => 409,
        // Permission denied.
        b"7" => 403,
        // Resource exhausted.
        b"8" => 429,
        // Unimplemented.
        b"12" => 501,
        // Unavailable.
        b"14" => 503,
        // Unauthenticated.
        b"16" => 401,
        // Unknown, internal, data loss, and numbers that do not exist.
        _ => 500,
    }
}

/// A random id in the form of a UUID of version 4. Without random bytes it returns an id that is
/// not unique.
fn draw_id() -> String {
    let mut bytes = [0u8; 16];
    if getrandom::fill(&mut bytes).is_err() {
        tracing::warn!("no randomness for an audit event's id");
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::post;
    use axum::{Router, middleware};
    use tower::ServiceExt as _;

    use super::*;

    /// What is recorded for a POST that a handler answers so.
    async fn recorded_of(uri: &str, answer: fn() -> Response) -> Option<AuditEvent> {
        let (events, mut recorded) = mpsc::channel(1);
        let recorder = Recorder {
            policy: Arc::new(AuditPolicy::built_in()),
            events,
        };
        let routes = Router::new()
            .fallback(async move || answer())
            .layer(middleware::from_fn_with_state(recorder, trace));
        let request = Request::post(uri).body(Body::empty()).unwrap();
        routes.oneshot(request).await.unwrap();
        recorded.try_recv().ok()
    }

    #[tokio::test]
    async fn an_event_has_the_handlers_notes_and_a_repeated_question_has_none() {
        let event = recorded_of("/ui/device?user_code=BCDF-GHJK", || {
            let mut answer = Response::new(Body::empty());
            let notes = BTreeMap::from([("muster.io/client", "ann@laptop".to_owned())]);
            answer.extensions_mut().insert(EventNotes(notes));
            answer.extensions_mut().insert(SignInName("ann".to_owned()));
            answer
        });
        let event = event.await.unwrap();
        assert_eq!(event.annotations["muster.io/client"], "ann@laptop");
        assert_eq!(
            (&*event.request_uri, &*event.user.username),
            ("/ui/device", "ann")
        );
        let repeated = recorded_of("/oauth2/token", || {
            let mut answer = Response::new(Body::empty());
            answer.extensions_mut().insert(RepeatedQuestion);
            answer
        });
        assert!(repeated.await.is_none());
    }

    /// The code that is recorded for an answer with this `grpc-status`.
    async fn recorded(status: Option<&'static str>) -> u16 {
        let (events, mut recorded) = mpsc::channel(1);
        let recorder = Recorder {
            policy: Arc::new(AuditPolicy::built_in()),
            events,
        };
        let answer = move || async move {
            let mut response = Response::new(Body::empty());
            if let Some(status) = status {
                let value = header::HeaderValue::from_static(status);
                response.headers_mut().insert("grpc-status", value);
            }
            response
        };
        let routes = Router::new()
            .route("/muster.agent.v1.Enrolment/Join", post(answer))
            .layer(middleware::from_fn_with_state(recorder, trace));
        let request = Request::post("/muster.agent.v1.Enrolment/Join");
        let request = request.body(Body::empty()).unwrap();
        routes.oneshot(request).await.unwrap();
        recorded.recv().await.unwrap().response_status.code
    }

    #[tokio::test]
    async fn a_refused_grpc_call_is_recorded_with_its_outcome() {
        for (status, code) in [
            (None, 200),
            (Some("0"), 200),
            (Some("3"), 400),
            (Some("4"), 504),
            (Some("7"), 403),
            (Some("8"), 429),
            (Some("13"), 500),
            (Some("14"), 503),
            (Some("16"), 401),
            (Some("99"), 500),
        ] {
            assert_eq!(recorded(status).await, code, "{status:?}");
        }
    }
}
