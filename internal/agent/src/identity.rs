//! The node's identity: a key that is created here and never leaves, and the certificate that the
//! server issued for it on a join token. Stored in the data directory; renewed while in use.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{CertificateParams, KeyPair};
use rpc::agent::v1::enrollment_client::EnrollmentClient;
use rpc::agent::v1::{Certificate, JoinRequest, RenewRequest};
use serde::{Deserialize, Serialize};
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

use crate::disk::{private_dir, replace};
use crate::error::{AgentError, file};
use crate::trust::{PinnedAuthority, parse_fingerprint};

/// Pause before a failed renewal is retried.
const RENEW_AGAIN: Duration = Duration::from_secs(60);

/// The longest sleep before a renewal: the clock may be changed, and the machine may be suspended.
const RENEW_LOOK: Duration = Duration::from_secs(600);

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);

/// Interval of keep-alive pings on an idle connection, and the timeout of an answer.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(10);

/// How the server is verified before there is an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// By its authority's certificate, a PEM file.
    AuthorityFile(PathBuf),
    /// By that certificate's SHA-256 fingerprint.
    Fingerprint(String),
}

/// Key and certificates in one file, which is replaced atomically: after an interrupted renewal the
/// previous identity is intact.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentIdentity {
    node: String,
    issued: Timestamp,
    not_after: Timestamp,
    key_pem: String,
    certificate_pem: String,
    ca_pem: String,
}

const FILE: &str = "identity.json";

/// Files of earlier versions, which stored key and certificates beside that file. Their
/// certificates name no admission, so no server accepts them any more.
const EARLIER: [&str; 3] = ["node.key", "node.pem", "ca.pem"];

impl AgentIdentity {
    /// Reads the identity of an earlier start; `None` if the node hasn't joined.
    pub fn load(dir: &Path, node: &str) -> Result<Option<AgentIdentity>, AgentError> {
        let path = dir.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        let damaged = |error: serde_json::Error| {
            AgentError::Certificate(format!(
                "{}: {error}; remove {} to join again with a token",
                path.display(),
                dir.display()
            ))
        };
        let text = fs::read_to_string(&path).map_err(file("read", &path))?;
        let kept: serde_json::Value = serde_json::from_str(&text).map_err(damaged)?;
        if kept["notAfter"].is_string() && kept["keyPem"].is_null() {
            tracing::warn!(
                "the node's certificate is of an earlier version of Muster; it joins again with a \
                 token"
            );
            return Ok(None);
        }
        let identity: AgentIdentity = serde_json::from_value(kept).map_err(damaged)?;
        if identity.node != node {
            return Err(AgentError::Setting {
                field: "node-name",
                value: node.to_owned(),
                detail: format!(
                    "this data directory belongs to node {:?}; use that name or another directory",
                    identity.node
                ),
            });
        }
        Ok(Some(identity))
    }

    /// Joins with a token. [`AgentError::Connection`] may be retried, other errors must not.
    pub async fn join(
        dir: &Path,
        server: &str,
        trust: &Trust,
        token: &str,
        node: &str,
    ) -> Result<AgentIdentity, AgentError> {
        let endpoint = endpoint(server)?;
        let host = host(&endpoint);
        let verifier = match trust {
            Trust::AuthorityFile(path) => {
                let pem = fs::read_to_string(path).map_err(file("read", path))?;
                PinnedAuthority::by_certificate(&pem, host)?
            }
            Trust::Fingerprint(text) => {
                PinnedAuthority::by_fingerprint(parse_fingerprint(text)?, host)?
            }
        };
        let endpoint = endpoint
            .tls_config_with_verifier(tls(), verifier)
            .map_err(|error| AgentError::Certificate(deep(&error)))?;
        let channel = connect(server, &endpoint).await?;
        let (key_pem, csr_pem) = request(node)?;
        let answer = EnrollmentClient::new(channel)
            .join(JoinRequest {
                token: token.to_owned(),
                node_name: node.to_owned(),
                csr_pem,
            })
            .await
            .map_err(|status| refused(server, node, &status))?;
        let identity = AgentIdentity::of(node, key_pem, answer.into_inner(), Timestamp::now());
        identity.keep(dir)?;
        Ok(identity)
    }

    /// Whether the certificate has expired: only a join gives another.
    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.not_after <= now
    }

    /// Waits until the certificate is due for renewal, renews it, and returns the new identity;
    /// retries for as long as that fails.
    pub async fn renew_in_time(&self, dir: &Path, server: &str) -> AgentIdentity {
        loop {
            let left = self.until_renewal(Timestamp::now());
            if !left.is_zero() {
                tokio::time::sleep(left.min(RENEW_LOOK)).await;
                continue;
            }
            match self.renew(dir, server).await {
                Ok(renewed) => return renewed,
                Err(error) => {
                    tracing::warn!(%error, until = %self.not_after, "the node's certificate was not renewed; trying again");
                    tokio::time::sleep(RENEW_AGAIN).await;
                }
            }
        }
    }

    /// The time until the certificate is due for renewal.
    fn until_renewal(&self, now: Timestamp) -> Duration {
        let due = rpc::renewal_second(self.issued.as_second(), self.not_after.as_second());
        Duration::from_secs(u64::try_from(due - now.as_second()).unwrap_or_default())
    }

    /// Requests a new certificate with this one.
    async fn renew(&self, dir: &Path, server: &str) -> Result<AgentIdentity, AgentError> {
        let channel = self.connect(server).await?;
        let (key_pem, csr_pem) = request(&self.node)?;
        let answer = EnrollmentClient::new(channel)
            .renew(RenewRequest { csr_pem })
            .await
            .map_err(|status| refused(server, &self.node, &status))?;
        let node = &self.node;
        let identity = AgentIdentity::of(node, key_pem, answer.into_inner(), Timestamp::now());
        identity.keep(dir)?;
        Ok(identity)
    }

    /// A mutually authenticated connection.
    pub async fn connect(&self, server: &str) -> Result<Channel, AgentError> {
        let identity = tonic::transport::Identity::from_pem(&self.certificate_pem, &self.key_pem);
        let endpoint = endpoint(server)?;
        let verifier = PinnedAuthority::by_certificate(&self.ca_pem, host(&endpoint))?;
        let endpoint = endpoint
            .tls_config_with_verifier(tls().identity(identity), verifier)
            .map_err(|error| AgentError::Certificate(deep(&error)))?;
        connect(server, &endpoint).await
    }

    fn of(node: &str, key_pem: String, answer: Certificate, now: Timestamp) -> AgentIdentity {
        AgentIdentity {
            node: node.to_owned(),
            issued: now,
            not_after: Timestamp::from_second(answer.not_after).unwrap_or(Timestamp::MAX),
            key_pem,
            certificate_pem: answer.certificate_pem,
            ca_pem: answer.ca_pem,
        }
    }

    fn keep(&self, dir: &Path) -> Result<(), AgentError> {
        private_dir(dir)?;
        let text = serde_json::to_string(self).expect("an identity is plain data and always JSON");
        replace(&dir.join(FILE), text.as_bytes())?;
        for name in EARLIER {
            // The files are not used any more; a file that stays is as private as the directory.
            let _ = fs::remove_file(dir.join(name));
        }
        Ok(())
    }
}

fn request(node: &str) -> Result<(String, String), AgentError> {
    let failed = |error: rcgen::Error| AgentError::Certificate(format!("making a key: {error}"));
    let key = KeyPair::generate().map_err(failed)?;
    let mut params = CertificateParams::default();
    let name = rpc::PeerIdentity::node_common_name(node);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    let csr = params.serialize_request(&key).map_err(failed)?;
    Ok((key.serialize_pem(), csr.pem().map_err(failed)?))
}

fn endpoint(server: &str) -> Result<Endpoint, AgentError> {
    let wrong = |detail: String| AgentError::Setting {
        field: "server",
        value: server.to_owned(),
        detail: format!("{detail}; use https://HOST:PORT"),
    };
    if !server.starts_with("https://") {
        return Err(wrong("agents speak TLS only".to_owned()));
    }
    let endpoint =
        Endpoint::from_shared(server.to_owned()).map_err(|error| wrong(error.to_string()))?;
    Ok(endpoint
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_ANSWER)
        .keep_alive_while_idle(true))
}

/// The host of an endpoint, an IPv6 address without its brackets.
fn host(endpoint: &Endpoint) -> &str {
    let host = endpoint.uri().host().unwrap_or_default();
    host.trim_start_matches('[').trim_end_matches(']')
}

/// TLS by the name for which the server's certificate is of Muster's own authority.
fn tls() -> ClientTlsConfig {
    ClientTlsConfig::new().domain_name(rpc::AGENT_SERVER_NAME)
}

async fn connect(server: &str, endpoint: &Endpoint) -> Result<Channel, AgentError> {
    endpoint
        .connect()
        .await
        .map_err(|error| AgentError::Connection {
            what: "connecting to",
            server: server.to_owned(),
            detail: deep(&error),
        })
}

fn refused(server: &str, node: &str, status: &tonic::Status) -> AgentError {
    match status.code() {
        tonic::Code::Unauthenticated
        | tonic::Code::InvalidArgument
        | tonic::Code::PermissionDenied => AgentError::JoinRefused {
            node: node.to_owned(),
            detail: status.message().to_owned(),
        },
        _ => AgentError::Connection {
            what: "joining",
            server: server.to_owned(),
            detail: status.message().to_owned(),
        },
    }
}

/// An error with all its causes; the outermost alone only says "transport error".
pub fn deep(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        source = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(node: &str) -> AgentIdentity {
        AgentIdentity::of(
            node,
            "key".to_owned(),
            Certificate {
                certificate_pem: "certificate".to_owned(),
                ca_pem: "ca".to_owned(),
                not_after: 2_000_000_000,
            },
            Timestamp::from_second(1_999_999_700).unwrap(),
        )
    }

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_of_its_life_and_expires_at_its_end() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let identity = identity("a");
        let left = |second| identity.until_renewal(at(second)).as_secs();
        assert_eq!(left(1_999_999_890), 10);
        assert_eq!(left(1_999_999_900), 0);
        assert_eq!(left(2_000_000_900), 0);
        assert!(!identity.has_expired(at(1_999_999_999)));
        assert!(identity.has_expired(at(2_000_000_000)));
    }

    #[test]
    fn an_identity_is_found_again_by_its_node_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        assert!(AgentIdentity::load(dir.path(), "a").unwrap().is_none());
        identity("a").keep(dir.path()).unwrap();
        let found = AgentIdentity::load(dir.path(), "a").unwrap().unwrap();
        assert_eq!(found.key_pem, "key");
        let other = AgentIdentity::load(dir.path(), "b").err().unwrap();
        assert!(other.to_string().contains("belongs to node \"a\""));
    }

    #[test]
    fn an_identity_of_an_earlier_version_is_none_until_the_node_joins_again() {
        let dir = tempfile::tempdir().unwrap();
        let earlier = r#"{"node":"a","notAfter":"2033-05-18T03:33:20Z"}"#;
        fs::write(dir.path().join(FILE), earlier).unwrap();
        for name in EARLIER {
            fs::write(dir.path().join(name), "pem").unwrap();
        }
        assert!(AgentIdentity::load(dir.path(), "a").unwrap().is_none());
        identity("a").keep(dir.path()).unwrap();
        assert!(AgentIdentity::load(dir.path(), "a").unwrap().is_some());
        assert!(!dir.path().join("node.key").exists());
        fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(AgentIdentity::load(dir.path(), "a").is_err());
    }

    #[test]
    fn only_servers_with_tls_are_spoken_to() {
        assert!(endpoint("https://127.0.0.1:7443").is_ok());
        for bad in [
            "http://127.0.0.1:1",
            "127.0.0.1:1",
            "https://",
            "https://a b",
        ] {
            assert!(endpoint(bad).is_err(), "{bad}");
        }
    }
}
