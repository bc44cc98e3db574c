//! Records requests that are not about resources: sign-in, tokens, the portal's REST API, refused
//! credentials. The resource API records requests about resources, because it knows their objects.

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
    if answer.extensions().get::<Recorded>().is_some() {
        return answer;
    }
    let caller = slot.0.get().cloned().or(known);
    let mut user = caller.as_ref().map(UserInfo::from).unwrap_or_default();
    if let Some(SignInName(name)) = answer.extensions().get() {
        user.username = audit::shortened(name);
    }
    let impersonated = answer.extensions().get::<Impersonated>();
    let impersonated = impersonated.map(|Impersonated(user)| user.clone());
    let asked = audit::AuditedRequest {
        user: &user.username,
        groups: &user.groups,
        verb: &method,
        path: uri.path(),
        ..audit::AuditedRequest::default()
    };
    let code = answer.status().as_u16();
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
    let event = facts.event();
    if recorder.events.send(event).await.is_err() {
        tracing::error!("the audit log's writer ended; a request was not recorded");
    }
    answer
}

/// The path of the pages on which a user sets its password by a link; the link's secret follows.
const LINKS: &str = "/ui/reset/";

/// A request's URI without the secret of a link to set a password.
fn shown(uri: &Uri) -> String {
    if uri.path().starts_with(LINKS) {
        format!("{LINKS}...")
    } else {
        uri.to_string()
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
