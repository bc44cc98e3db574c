//! Records who opens a port's page, or is refused: as the creation of `pods/proxy` or `services/proxy`. What the page asks
//! for afterwards is not recorded one by one.

use std::net::SocketAddr;

use apiserver::{ApiServer, PROXY};
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode, header};
use jiff::Timestamp;
use resources::access::{Caller, Impersonator};
use resources::audit::{
    AuditLevel, AuditStage, AuditedRequest, ObjectReference, RequestFacts, UserInfo, shortened,
};

use crate::http::WebPort;

const VERB: &str = "create";

/// Records an opening with the status of its answer, as far as the policy says.
pub async fn record<B>(api: &ApiServer, request: &Request<B>, port: &WebPort, code: StatusCode) {
    let Some(auditor) = api.auditor() else {
        return;
    };
    let received = Timestamp::now();
    let extensions = request.extensions();
    let (caller, impersonator) = (
        extensions.get::<Caller>(),
        extensions.get::<Impersonator>().map(|one| &one.0),
    );
    let author = impersonator.or(caller);
    let level = auditor.policy.level(&AuditedRequest {
        user: author.map_or("", |author| &author.user),
        groups: author.map_or(&[], |author| &author.groups),
        verb: VERB,
        resource: Some(("", &port.kind)),
        subresource: Some(PROXY),
        namespace: Some(&port.namespace),
        name: Some(&port.name),
        path: request.uri().path(),
    });
    if level == AuditLevel::None && code != StatusCode::FORBIDDEN {
        return;
    }
    let peer = extensions.get::<ConnectInfo<SocketAddr>>();
    let agent = request.headers().get(header::USER_AGENT);
    let path = request.uri().path_and_query();
    let facts = RequestFacts {
        audit_id: uuid::Uuid::new_v4().to_string(),
        level: AuditLevel::Metadata,
        stage: AuditStage::ResponseComplete,
        request_uri: path.map_or("", |path| path.as_str()),
        verb: VERB,
        user: author.map(UserInfo::from).unwrap_or_default(),
        impersonated_user: impersonator.and(caller).map(UserInfo::from),
        source: peer.map(|peer| peer.0.ip().to_canonical().to_string()),
        user_agent: agent
            .and_then(|agent| agent.to_str().ok())
            .unwrap_or_default(),
        code: code.as_u16(),
        received,
        reached: Timestamp::now(),
    };
    let mut event = facts.event();
    event.object_ref = Some(ObjectReference {
        resource: shortened(&port.kind),
        namespace: shortened(&port.namespace),
        name: shortened(&port.name),
        api_group: String::new(),
        api_version: "v1".to_owned(),
        subresource: PROXY.to_owned(),
    });
    if auditor.events.send(event).await.is_err() {
        tracing::error!("the audit log's writer ended; a request was not recorded");
    }
}
