//! The one port: TLS for everyone (HTTP API, web UI, agents' gRPC), and plain HTTP for
//! browsers on this machine.
//!
//! Each connection's first byte tells TLS from plain HTTP. Plain HTTP from another
//! machine is sent to the https address instead, so that no password crosses a network
//! in the clear.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use resources::access::Caller;
use rpc::PeerIdentity;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

/// The most connections at once; more wait to be accepted.
const MOST_CONNECTIONS: usize = 8192;

/// How long a client may take over its first bytes and its TLS handshake.
const GREETING: Duration = Duration::from_secs(10);

/// The first byte of a TLS record that carries a handshake (RFC 8446, section 5.1).
const TLS_HANDSHAKE: u8 = 0x16;

/// Serves until told to stop.
pub async fn serve(
    listener: TcpListener,
    tls: rustls::ServerConfig,
    router: Router,
    mut stop: watch::Receiver<bool>,
) -> Result<()> {
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let permits = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let permit = permits
            .clone()
            .acquire_owned()
            .await
            .context("the listener is closed")?;
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, most likely: rest, so as not to spin.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (acceptor, router) = (acceptor.clone(), router.clone());
        tokio::spawn(async move {
            if let Err(error) = connection(stream, peer, acceptor, router).await {
                tracing::debug!(%peer, error = format!("{error:#}"), "connection ended");
            }
            drop(permit);
        });
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    acceptor: TlsAcceptor,
    router: Router,
) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut first = [0u8; 1];
    let read = tokio::time::timeout(GREETING, stream.peek(&mut first)).await??;
    if read == 0 {
        return Ok(());
    }
    if first[0] == TLS_HANDSHAKE {
        let stream = tokio::time::timeout(GREETING, acceptor.accept(stream)).await??;
        let identity = peer_identity(stream.get_ref().1);
        return http(stream, router, identity, peer).await;
    }
    let router = if peer.ip().is_loopback() {
        router
    } else {
        Router::new().fallback(to_https)
    };
    http(stream, router, None, peer).await
}

/// The common name of a verified client certificate.
fn peer_identity(connection: &rustls::ServerConnection) -> Option<PeerIdentity> {
    let certificate = connection.peer_certificates()?.first()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let common_name = certificate
        .subject()
        .iter_common_name()
        .next()?
        .as_str()
        .ok()?;
    Some(PeerIdentity {
        common_name: common_name.to_string(),
    })
}

async fn http<S>(
    stream: S,
    router: Router,
    identity: Option<PeerIdentity>,
    peer: SocketAddr,
) -> Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        if let Some(identity) = &identity {
            if let Some(node) = identity.common_name.strip_prefix("system:node:") {
                request.extensions_mut().insert(Caller::node(node));
            }
            request.extensions_mut().insert(identity.clone());
        }
        request
            .extensions_mut()
            .insert(axum::extract::ConnectInfo(peer));
        router.clone().oneshot(request.map(Body::new))
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http2().max_concurrent_streams(1024);
    builder
        .serve_connection_with_upgrades(TokioIo::new(stream), service)
        .await
        .map_err(|error| anyhow::anyhow!("{error}"))
}

async fn to_https(request: Request<Body>) -> Response<Body> {
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let mut response = Response::new(Body::from("use https\n"));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    if let Some(host) = host
        && let Ok(place) = format!("https://{host}{}", request.uri()).parse()
    {
        *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
        response.headers_mut().insert(header::LOCATION, place);
    }
    response
}
