//! The HTTPS client of ACME, verified by this machine's CA certificates or by those of a file.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, Result};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::ClientConfig;

use crate::serve::root_certificates::root_certificates;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most bytes of an answer. A chain of certificates has some 10 KiB.
const ANSWER_MAX: usize = 1 << 20;

type Bytes = axum::body::Bytes;

struct Transport(Client<HttpsConnector<HttpConnector>, BodyWrapper<Bytes>>);

/// The client.
///
/// # Errors
/// There are no CA certificates, or the file is unusable.
pub fn client(root: Option<&Path>) -> Result<Box<dyn HttpClient>> {
    let builder = HttpsConnectorBuilder::new();
    let builder = match root {
        None => builder.with_native_roots().context(
            "this machine has no CA certificates that verify the ACME server; install ca-certificates, or use \
             --acme-root FILE",
        )?,
        Some(path) => builder.with_tls_config(verified_by(path)?),
    };
    let connector = builder.https_only().enable_http1().build();
    Ok(Box::new(Transport(
        Client::builder(TokioExecutor::new()).build(connector),
    )))
}

fn verified_by(path: &Path) -> Result<ClientConfig> {
    let roots = root_certificates("--acme-root", path)?;
    Ok(ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth())
}

impl HttpClient for Transport {
    fn request(
        &self,
        request: axum::http::Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let answer = self.0.request(request);
        Box::pin(async move {
            let read = async {
                let answer = answer
                    .await
                    .map_err(|error| Error::Other(Box::new(error)))?;
                let (parts, body) = answer.into_parts();
                let body = http_body_util::Limited::new(body, ANSWER_MAX);
                let body = http_body_util::BodyExt::collect(body)
                    .await
                    .map_err(Error::Other)?;
                let body = axum::body::Body::from(body.to_bytes());
                Ok(BytesResponse::from(axum::http::Response::from_parts(
                    parts, body,
                )))
            };
            tokio::time::timeout(PATIENCE, read)
                .await
                .map_err(|_| Error::Other("no answer within 30 s".into()))?
        })
    }
}
