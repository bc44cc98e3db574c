//! Ports without TLS and without authentication, of a server for a Kubernetes cluster: health and metrics, and the
//! extender for a stock kube-scheduler. The connections of each are bounded, and every request has a time limit.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::ServiceExt;

/// The most connections for health and metrics: kubelets and Prometheus have a few.
pub const CONNECTIONS_MAX: usize = 128;

/// How long a client may take from one answer to the end of its next request's head. kube-scheduler keeps idle
/// connections for 90 seconds, and opens another one after that.
const HEAD: Duration = Duration::from_secs(60);

/// How long one request may take, with its body.
const REQUEST: Duration = Duration::from_secs(60);

/// Pause after a connection that could not be accepted, most likely for lack of file descriptors.
const REST: Duration = Duration::from_millis(50);

/// How long requests in progress may take after a stop.
const GOODBYE: Duration = Duration::from_secs(5);

/// Serves requests until `stop`, on at most this many connections; further ones wait to be accepted.
pub async fn serve(
    socket: TcpListener,
    router: Router,
    connections_max: usize,
    mut stop: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            // A dropped sender counts as a stop.
            _ = stop.wait_for(|stop| *stop) => break,
            Some(_) = connections.join_next() => continue,
            accepted = socket.accept(), if connections.len() < connections_max => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                connections.spawn(connection(stream, router.clone(), stop.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(REST).await;
            }
        }
    }
    drop(socket);
    let ended = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(GOODBYE, ended).await;
}

async fn connection(stream: TcpStream, router: Router, mut stop: watch::Receiver<bool>) {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let answer = tokio::time::timeout(REQUEST, router.clone().oneshot(request.map(Body::new)));
        async move {
            Ok::<Response<Body>, Infallible>(match answer.await {
                Ok(Ok(answer)) => answer,
                Err(_) => {
                    (StatusCode::REQUEST_TIMEOUT, "the request took too long\n").into_response()
                }
            })
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD);
    let mut serving = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        _ = serving.as_mut() => return,
        _ = stop.wait_for(|stop| *stop) => {}
    }
    serving.as_mut().graceful_shutdown();
    let _ = serving.await;
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn answer(stream: &mut TcpStream) -> String {
        let ask = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        stream.write_all(ask.as_bytes()).await.unwrap();
        let mut read = vec![0; 1024];
        let count = stream.read(&mut read).await.unwrap();
        String::from_utf8_lossy(&read[..count]).into_owned()
    }

    #[tokio::test]
    async fn connections_beyond_the_bound_wait_until_one_ends_and_a_stop_ends_idle_ones() {
        let socket = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        let router = Router::new().route("/", get(async || "hello"));
        let (stop, stopped) = watch::channel(false);
        let serving = tokio::spawn(serve(socket, router, 2, stopped));
        let connect = || async { TcpStream::connect(address).await.unwrap() };
        let (mut first, mut second) = (connect().await, connect().await);
        assert!(answer(&mut first).await.ends_with("hello"));
        assert!(answer(&mut second).await.ends_with("hello"));
        let mut third = connect().await;
        let waiting = tokio::spawn(async move {
            let said = answer(&mut third).await;
            (third, said)
        });
        assert!(answer(&mut first).await.ends_with("hello"));
        assert!(!waiting.is_finished());
        drop(second);
        let (mut third, said) = waiting.await.unwrap();
        assert!(said.ends_with("hello"));
        stop.send(true).unwrap();
        serving.await.unwrap();
        assert_eq!(third.read(&mut [0; 8]).await.unwrap_or(0), 0);
    }
}
