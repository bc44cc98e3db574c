//! The metrics' port: plain HTTP with only `GET /metrics` and `GET /healthz`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use resources::exposition::CONTENT_TYPE;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::Exporter;

/// Maximum number of concurrent connections; more wait to be accepted.
const MOST_CONNECTIONS: usize = 32;
/// How long a client may take to send a request's head, also for later requests on a connection.
const HEAD: Duration = Duration::from_secs(60);
/// Pause after a connection that could not be accepted, most likely for lack of file descriptors.
const REST: Duration = Duration::from_millis(50);

/// Where metrics are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address.
    pub address: SocketAddr,
    /// Whether the agent must not start if the address is unavailable: it was configured, and is
    /// not merely the default.
    pub required: bool,
}

/// A port that can't be opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "--metrics: {address} cannot be listened on: {source}; choose another address, or off for no metrics"
)]
pub struct NoPort {
    address: SocketAddr,
    source: std::io::Error,
}

/// Opens the port. If the default address is in use (for instance by an exporter that ran here
/// before), pods still run: the conflict is logged, and no metrics are served.
pub async fn open(listen: Option<Listen>) -> Result<Option<TcpListener>, NoPort> {
    let Some(Listen { address, required }) = listen else {
        return Ok(None);
    };
    match TcpListener::bind(address).await {
        Ok(listener) => {
            if let Ok(address) = listener.local_addr() {
                tracing::info!("metrics at http://{address}/metrics");
            }
            Ok(Some(listener))
        }
        Err(source) => {
            let error = NoPort { address, source };
            if required {
                return Err(error);
            }
            tracing::warn!("no metrics are served: {error}");
            Ok(None)
        }
    }
}

/// Answers requests for as long as it is polled; without a port it waits without end.
pub async fn serve(listener: Option<TcpListener>, exporter: Exporter) {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    let exporter = Arc::new(exporter);
    let permits = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let exporter = exporter.clone();
                tokio::spawn(async move {
                    if let Err(error) = connection(stream, exporter).await {
                        tracing::debug!(%peer, %error, "a connection for metrics ended");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection for metrics could not be accepted");
                tokio::time::sleep(REST).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, exporter: Arc<Exporter>) -> hyper::Result<()> {
    let service = service_fn(move |request: Request<Incoming>| {
        let exporter = exporter.clone();
        async move { Ok::<_, Infallible>(answer(&request, &exporter).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

async fn answer(request: &Request<Incoming>, exporter: &Exporter) -> Response<Full<Bytes>> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => match exporter.page().await {
            Ok(page) => (StatusCode::OK, page),
            Err(why) => (
                StatusCode::SERVICE_UNAVAILABLE,
                Bytes::from(format!("{why}\n")),
            ),
        },
        (&Method::GET, "/healthz") => (StatusCode::OK, Bytes::from_static(b"ok\n")),
        (&Method::GET, _) => {
            let text = Bytes::from_static(b"there are /metrics and /healthz\n");
            (StatusCode::NOT_FOUND, text)
        }
        _ => {
            let text = Bytes::from_static(b"there is only GET\n");
            (StatusCode::METHOD_NOT_ALLOWED, text)
        }
    };
    let mut response = Response::new(Full::new(text));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(CONTENT_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
