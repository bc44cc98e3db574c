//! The address that answers http-01 challenges. It is open only while an order is being validated.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::challenge::Challenges;

/// The path of the answers (RFC 8555, section 8.3).
const PATH: &str = "/.well-known/acme-challenge/";

/// The most connections at a time; further ones wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 64;

/// How long one connection may last.
const CONNECTION_LIFE: Duration = Duration::from_secs(10);

/// The bytes that a request's head may have.
const HEAD_MAX: usize = 8 << 10;

/// Opens the address.
///
/// # Errors
/// Another program uses it, or the server may not.
pub async fn open(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!(
            "--acme-http = {address}: the server cannot listen there; choose an address that no other program uses and \
             that the server's user may use (ports below 1024: the kernel's net.ipv4.ip_unprivileged_port_start)"
        )
    })
}

/// Answers for as long as the future is polled; connections end with it.
pub async fn answer(listener: &TcpListener, challenges: &Challenges) -> Infallible {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = futures::stream::FuturesUnordered::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept(), if places.available_permits() > 0 => accepted,
            Some(()) = futures::StreamExt::next(&mut connections) => continue,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            continue;
        };
        connections.push(async move {
            let _place = place;
            let service = hyper::service::service_fn(|request: Request<Incoming>| {
                let answer = response(request.uri().path(), challenges);
                async move { Ok::<_, Infallible>(answer) }
            });
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).max_buf_size(HEAD_MAX);
            let serving = http.serve_connection(TokioIo::new(stream), service);
            let _ = tokio::time::timeout(CONNECTION_LIFE, serving).await;
        });
    }
}

fn response(path: &str, challenges: &Challenges) -> Response<Body> {
    let answer = path
        .strip_prefix(PATH)
        .and_then(|token| challenges.authorization(token));
    let (status, body) = match answer {
        Some(authorization) => (StatusCode::OK, authorization),
        None => (StatusCode::NOT_FOUND, "not found\n".to_owned()),
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_current_token_has_an_answer() {
        let challenges = Challenges::default();
        challenges.answer_http("t", "t.print");
        let status = |path: &str| response(path, &challenges).status();
        assert_eq!(status("/.well-known/acme-challenge/t"), StatusCode::OK);
        for other in [
            "/",
            "/.well-known/acme-challenge/",
            "/.well-known/acme-challenge/x",
            "/t",
        ] {
            assert_eq!(status(other), StatusCode::NOT_FOUND, "{other}");
        }
    }
}
