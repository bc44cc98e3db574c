//! The node's identity: a key made here that never leaves, and the certificate that the server
//! gave for it against a join token. Kept in the data directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, KeyPair};
use rpc::agent::v1::enrollment_client::EnrollmentClient;
use rpc::agent::v1::{Certificate, JoinRequest, RenewRequest};
use serde::{Deserialize, Serialize};
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

use crate::disk::replace;
use crate::error::{AgentError, file};
use crate::trust::{PinnedAuthority, parse_fingerprint};

/// A certificate with less than this left is renewed.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(24 * 120);

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);

/// Signs of life on an idle connection, and how long to wait for an answer to one.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(10);

/// How the server is known before there is an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// By its authority's certificate, a PEM file.
    AuthorityFile(PathBuf),
    /// By that certificate's SHA-256 fingerprint.
    Fingerprint(String),
}

/// Key and certificates.
#[derive(Clone)]
pub struct Identity {
    key_pem: String,
    certificate_pem: String,
    ca_pem: String,
    about: About,
}

/// What is kept beside the certificates, to know them by.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct About {
    node: String,
    not_after: Timestamp,
}

const KEY: &str = "node.key";
const CERTIFICATE: &str = "node.pem";
const CA: &str = "ca.pem";
const ABOUT: &str = "identity.json";

impl Identity {
    /// Reads the identity of an earlier start; none if the node hasn't joined.
    pub fn load(dir: &Path, node: &str) -> Result<Option<Identity>, AgentError> {
        let about_path = dir.join(ABOUT);
        // Written last: what is there is whole.
        if !about_path.exists() {
            return Ok(None);
        }
        let read = |name: &str| {
            let path = dir.join(name);
            fs::read_to_string(&path).map_err(file("read", path))
        };
        let about: About = serde_json::from_str(&read(ABOUT)?).map_err(|error| {
            AgentError::Certificate(format!(
                "{}: {error}; remove {} to join again with a token",
                about_path.display(),
                dir.display()
            ))
        })?;
        if about.node != node {
            return Err(AgentError::Setting {
                field: "node-name",
                value: node.to_owned(),
                detail: format!(
                    "this data directory belongs to node {:?}; use that name or another directory",
                    about.node
                ),
            });
        }
        Ok(Some(Identity {
            key_pem: read(KEY)?,
            certificate_pem: read(CERTIFICATE)?,
            ca_pem: read(CA)?,
            about,
        }))
    }

    /// Joins with a token. [`AgentError::Connection`] is worth another try, others aren't.
    pub async fn join(
        dir: &Path,
        server: &str,
        trust: &Trust,
        token: &str,
        node: &str,
    ) -> Result<Identity, AgentError> {
        let endpoint = endpoint(server)?;
        let endpoint = match trust {
            Trust::AuthorityFile(path) => {
                let pem = fs::read_to_string(path).map_err(file("read", path))?;
                let ca = tonic::transport::Certificate::from_pem(pem);
                endpoint.tls_config(ClientTlsConfig::new().ca_certificate(ca))
            }
            Trust::Fingerprint(text) => endpoint.tls_config_with_verifier(
                ClientTlsConfig::new(),
                PinnedAuthority::new(parse_fingerprint(text)?),
            ),
        };
        let endpoint = endpoint.map_err(|error| AgentError::Certificate(deep(&error)))?;
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
        let identity = Identity::of(node, key_pem, answer.into_inner());
        identity.keep(dir)?;
        Ok(identity)
    }

    /// Asks for a new certificate with this one, if it is time.
    pub async fn renewed(
        &self,
        dir: &Path,
        server: &str,
        now: Timestamp,
    ) -> Result<Option<Identity>, AgentError> {
        if self.about.not_after.duration_since(now) > RENEW_BEFORE {
            return Ok(None);
        }
        let channel = self.connect(server).await?;
        let (key_pem, csr_pem) = request(&self.about.node)?;
        let answer = EnrollmentClient::new(channel)
            .renew(RenewRequest { csr_pem })
            .await
            .map_err(|status| refused(server, &self.about.node, &status))?;
        let identity = Identity::of(&self.about.node, key_pem, answer.into_inner());
        identity.keep(dir)?;
        Ok(Some(identity))
    }

    /// A connection on which both ends have shown who they are.
    pub async fn connect(&self, server: &str) -> Result<Channel, AgentError> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(tonic::transport::Certificate::from_pem(&self.ca_pem))
            .identity(tonic::transport::Identity::from_pem(
                &self.certificate_pem,
                &self.key_pem,
            ));
        let endpoint = endpoint(server)?
            .tls_config(tls)
            .map_err(|error| AgentError::Certificate(deep(&error)))?;
        connect(server, &endpoint).await
    }

    fn of(node: &str, key_pem: String, answer: Certificate) -> Identity {
        Identity {
            key_pem,
            certificate_pem: answer.certificate_pem,
            ca_pem: answer.ca_pem,
            about: About {
                node: node.to_owned(),
                not_after: Timestamp::from_second(answer.not_after).unwrap_or(Timestamp::MAX),
            },
        }
    }

    fn keep(&self, dir: &Path) -> Result<(), AgentError> {
        use std::os::unix::fs::PermissionsExt;
        fs::create_dir_all(dir).map_err(file("make", dir))?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
            .map_err(file("protect", dir))?;
        let about = serde_json::to_string(&self.about)
            .expect("what is known of an identity is plain data and always JSON");
        // A renewal interrupted here leaves key and certificate that don't fit; then the node
        // joins again.
        match fs::remove_file(dir.join(ABOUT)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(file("remove", dir.join(ABOUT))(error));
            }
            _ => {}
        }
        for (name, content) in [
            (KEY, &self.key_pem),
            (CERTIFICATE, &self.certificate_pem),
            (CA, &self.ca_pem),
            (ABOUT, &about),
        ] {
            replace(&dir.join(name), content.as_bytes())?;
        }
        Ok(())
    }
}

fn request(node: &str) -> Result<(String, String), AgentError> {
    let told = |error: rcgen::Error| AgentError::Certificate(format!("making a key: {error}"));
    let key = KeyPair::generate().map_err(told)?;
    let mut params = CertificateParams::default();
    let name = rpc::PeerIdentity::node(node).common_name;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    let csr = params.serialize_request(&key).map_err(told)?;
    Ok((key.serialize_pem(), csr.pem().map_err(told)?))
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

/// An error with all that caused it; the outermost alone says only "transport error".
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

    fn identity(node: &str) -> Identity {
        Identity::of(
            node,
            "key".to_owned(),
            Certificate {
                certificate_pem: "certificate".to_owned(),
                ca_pem: "ca".to_owned(),
                not_after: 2_000_000_000,
            },
        )
    }

    #[test]
    fn an_identity_is_found_again_by_its_node_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Identity::load(dir.path(), "a").unwrap().is_none());
        identity("a").keep(dir.path()).unwrap();
        let found = Identity::load(dir.path(), "a").unwrap().unwrap();
        assert_eq!(found.key_pem, "key");
        let other = Identity::load(dir.path(), "b").err().unwrap();
        assert!(other.to_string().contains("belongs to node \"a\""));
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
