//! The leanest client of a resource API: it knows HTTP, TLS and a token, and nothing else. With the
//! server on the same cores, whatever a client does beyond that would be measured as the server's.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use kube::config::Kubeconfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::TlsConnector;

/// Where requests go, and what is needed to get there.
pub struct Target {
    address: String,
    token: String,
    tls: TlsConnector,
}

/// A write that is about to be sent.
pub struct Write {
    /// `POST` or `PATCH`; a patch is a merge.
    pub method: Method,
    /// The path, from the first slash.
    pub path: String,
    /// The object as JSON.
    pub body: Bytes,
}

impl Write {
    /// Makes an object of a collection.
    pub fn create(path: &str, object: &serde_json::Value) -> Write {
        Write {
            method: Method::POST,
            path: path.to_owned(),
            body: Bytes::from(object.to_string()),
        }
    }

    /// Changes an object by a merge.
    pub fn merge(path: String, change: &serde_json::Value) -> Write {
        Write {
            method: Method::PATCH,
            path,
            body: Bytes::from(change.to_string()),
        }
    }
}

impl Target {
    /// The server and the user that a kubeconfig names.
    pub fn of(kubeconfig: &Path) -> Target {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
        let text = serde_json::to_value(&kubeconfig).expect("a kubeconfig");
        let said = |pointer: &str| {
            let found = text.pointer(pointer).and_then(|value| value.as_str());
            found.unwrap_or_else(|| panic!("the kubeconfig has no {pointer}"))
        };
        let authority = said("/clusters/0/cluster/certificate-authority-data");
        let authority: k8s_openapi::ByteString =
            serde_json::from_value(authority.into()).expect("base64");
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&authority.0) {
            roots
                .add(certificate.expect("a certificate"))
                .expect("an authority");
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("TLS versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Target {
            address: said("/clusters/0/cluster/server")
                .trim_start_matches("https://")
                .to_string(),
            token: said("/users/0/user/token").to_string(),
            tls: TlsConnector::from(Arc::new(tls)),
        }
    }

    async fn connect(&self) -> SendRequest<Full<Bytes>> {
        let stream = tokio::net::TcpStream::connect(&self.address)
            .await
            .expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        let host = self.address.split(':').next().unwrap_or_default();
        let name = ServerName::try_from(host.to_string()).expect("a name");
        let stream = self.tls.connect(name, stream).await.expect("TLS");
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .expect("HTTP");
        tokio::spawn(connection);
        sender
    }

    async fn send(&self, connection: &mut SendRequest<Full<Bytes>>, write: &Write) {
        let kind = match write.method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = http::Request::builder()
            .method(&write.method)
            .uri(&write.path)
            .header("host", &self.address)
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", kind)
            .header("user-agent", "bench")
            .body(Full::new(write.body.clone()))
            .expect("a request");
        connection.ready().await.expect("a connection");
        let mut answer = connection.send_request(request).await.expect("an answer");
        assert!(
            answer.status().is_success(),
            "{} {}: {}",
            write.method,
            write.path,
            answer.status()
        );
        while let Some(frame) = answer.frame().await {
            frame.expect("the answer goes on");
        }
    }

    /// Sends them all, so many at once, each on a connection of its own that is there before the
    /// clock starts; fails unless every one is accepted. Answers how long it took.
    pub async fn send_all(self: &Arc<Target>, in_flight: usize, writes: Vec<Write>) -> Duration {
        let writes = Arc::new(writes);
        let next = Arc::new(AtomicUsize::new(0));
        let mut connections = Vec::new();
        for _ in 0..in_flight {
            connections.push(self.connect().await);
        }
        let begin = Instant::now();
        let senders: Vec<_> = connections
            .into_iter()
            .map(|mut connection| {
                let (target, next, writes) = (self.clone(), next.clone(), writes.clone());
                tokio::spawn(async move {
                    while let Some(write) = writes.get(next.fetch_add(1, Ordering::Relaxed)) {
                        target.send(&mut connection, write).await;
                    }
                })
            })
            .collect();
        for sender in senders {
            sender.await.expect("a sender");
        }
        begin.elapsed()
    }
}
