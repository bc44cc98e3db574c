//! The Enrollment service: it exchanges a join token, or the current certificate, for a new
//! certificate.

use std::sync::Arc;

use jiff::Timestamp;
use rpc::PeerIdentity;
use rpc::agent::v1::enrollment_server::{Enrollment, EnrollmentServer};
use rpc::agent::v1::{Certificate, JoinRequest, RenewRequest};
use tonic::{Request, Response, Status};

use crate::admissions::Admissions;
use crate::ca::CertificateAuthority;
use crate::error::{FleetError, TokenError};
use crate::node::valid_name;
use crate::open_sessions::OpenSessions;
use crate::peer_check::admitted;
use crate::tokens::JoinTokens;

/// The maximum size of a request from an unauthenticated peer, in bytes.
const MAX_REQUEST_BYTES: usize = 64 * 1024;

/// Lets nodes join and renew their certificates.
pub struct EnrolmentService {
    /// Signs the certificates.
    pub ca: Arc<CertificateAuthority>,
    /// The tokens by which nodes join.
    pub tokens: Arc<JoinTokens>,
    /// Which nodes have joined.
    pub admissions: Arc<Admissions>,
    /// The nodes that are connected.
    pub sessions: Arc<OpenSessions>,
}

/// The service, as part of the fleet's routes.
pub fn service(enrolment: EnrolmentService) -> EnrollmentServer<impl Enrollment> {
    EnrollmentServer::new(enrolment).max_decoding_message_size(MAX_REQUEST_BYTES)
}

#[tonic::async_trait]
impl Enrollment for EnrolmentService {
    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<Certificate>, Status> {
        let request = request.into_inner();
        let name = &request.node_name;
        if !valid_name(name) {
            return Err(refused(FleetError::NodeName { name: name.clone() }));
        }
        // A token must not suffice to take over a connected node.
        if self.sessions.get(name).is_some() {
            return Err(Status::already_exists(format!(
                "node {name:?} is connected; stop its agent first, or give this machine another \
                 name with --node-name"
            )));
        }
        // Signs first: a request that cannot be signed does not use up the token.
        let admission = Admissions::draw().map_err(refused)?;
        let certificate = self.sign(name, &request.csr_pem, &admission)?;
        // Nor a disconnected node: an attacker would receive its pods' Secrets.
        let known = self.admissions.has(name).await.map_err(refused)?;
        let token = self
            .tokens
            .take(&request.token, name, known, Timestamp::now())
            .await
            .map_err(refused)?;
        (self.admissions.admit(name, &admission).await).map_err(refused)?;
        tracing::info!(node = name, token, "a node joins");
        Ok(certificate)
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<Certificate>, Status> {
        let peer = request.extensions().get::<PeerIdentity>().cloned();
        let (name, admission) = peer
            .as_ref()
            .and_then(|peer| Some((peer.node_name()?, peer.admission.as_deref()?)))
            .ok_or_else(|| {
                Status::unauthenticated(
                    "only a node with a valid certificate can renew it; join again with a token",
                )
            })?;
        admitted(&self.admissions, peer.as_ref(), Timestamp::now())?;
        tracing::info!(node = name, "a node renews its certificate");
        self.sign(name, &request.get_ref().csr_pem, admission)
    }
}

impl EnrolmentService {
    fn sign(
        &self,
        name: &str,
        csr_pem: &str,
        admission: &str,
    ) -> Result<Response<Certificate>, Status> {
        let signed = self
            .ca
            .sign_node(csr_pem, name, admission)
            .map_err(refused)?;
        Ok(Response::new(Certificate {
            certificate_pem: signed.certificate_pem,
            ca_pem: self.ca.certificate_pem().to_owned(),
            not_after: signed.not_after.as_second(),
        }))
    }
}

fn refused(error: FleetError) -> Status {
    let text = error.to_string();
    match error {
        FleetError::Token(TokenError::Busy) => Status::unavailable(text),
        FleetError::Token(_) => Status::unauthenticated(text),
        FleetError::NodeName { .. } | FleetError::Certificate { .. } => {
            Status::invalid_argument(text)
        }
        FleetError::Api { .. } => Status::unavailable(text),
        _ => Status::internal(text),
    }
}
