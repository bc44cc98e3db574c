//! A minimal client of a resource API: HTTP, TLS and a token, nothing else. With the server on the
//! same cores, any further work of the client would be measured as the server's.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use kube::config::Kubeconfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The server's address and the credentials.
#[derive(Clone)]
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
    /// Creates an object in a collection.
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

/// The response to a request.
#[derive(Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

impl Answer {
    /// The body as JSON; null if it is not JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Target {
    /// The server and the user of a kubeconfig.
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

    /// The same server with another bearer token; an empty one sends no credentials.
    pub fn with_token(&self, token: &str) -> Target {
        Target {
            token: token.to_owned(),
            ..self.clone()
        }
    }

    /// A TLS connection without any request yet.
    pub async fn open(&self) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(&self.address)
            .await
            .expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        let host = self.address.split(':').next().unwrap_or_default();
        let name = ServerName::try_from(host.to_string()).expect("a name");
        self.tls.connect(name, stream).await.expect("TLS")
    }

    async fn connect(&self) -> SendRequest<Full<Bytes>> {
        let stream = self.open().await;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .expect("HTTP");
        tokio::spawn(connection);
        sender
    }

    /// Sends one request on its own connection. An error says how the exchange failed.
    pub async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Answer, String> {
        let mut connection = self.connect().await;
        let mut request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.address);
        if !self.token.is_empty() {
            request = request.header("authorization", format!("Bearer {}", self.token));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into()));
        let request = request.map_err(|error| error.to_string())?;
        let broken = |error: hyper::Error| format!("{method} {path}: {error:?}");
        connection.ready().await.map_err(broken)?;
        let answer = connection.send_request(request).await.map_err(broken)?;
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.map_err(broken)?;
        Ok(Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: body.to_bytes(),
        })
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

    /// Sends all writes, `in_flight` at once, each on its own connection that is open before the
    /// clock starts; fails unless every write is accepted. Returns the time taken.
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
