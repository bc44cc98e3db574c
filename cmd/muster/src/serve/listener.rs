//! The one port: TLS for everyone (HTTP API, web UI, agents' gRPC), and plain HTTP for
//! browsers on this machine.
//!
//! The first byte of each connection distinguishes TLS from plain HTTP. Plain HTTP from another machine is
//! redirected to the https address, so that no password crosses a network in clear text.
//!
//! Every connection takes a place (`places`) and has limits (`limits`): an idle connection is
//! closed, and if there are too many connections an idle one makes room for a new one. The accept
//! loop waits for no connection. Every request takes a place too (`request_slots`); without one it is
//! answered 429.

mod body;
mod connection_slots;
mod limits;
mod request_slots;
mod slow_readers;
mod streams;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use resources::access::Caller;
use rpc::PeerIdentity;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::metrics::RequestMetrics;
use super::{plain_http, route_layer};

pub use limits::ListenerLimits;

use body::{CountedBody, Upload};
use connection_slots::{Activity, ConnectionSlot, ConnectionSlots};
use request_slots::{RequestOrigin, RequestSlots, TooManyRequests};
use slow_readers::SlowReaderTimeout;
use streams::{SendProgress, Streams};

/// The first byte of a TLS record that carries a handshake (RFC 8446, section 5.1).
const TLS_HANDSHAKE: u8 = 0x16;

/// The path prefix of the agents' sessions; these requests last as long as the connection.
const SESSIONS: &str = "/muster.agent.v1.Fleet/";

/// How long an idle connection may take to end after a shutdown notice.
const GOODBYE: Duration = Duration::from_secs(1);

/// Interval at which a node's certificate is checked again during its connection: it may expire.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Decides which client certificates are valid now.
#[derive(Clone)]
pub struct Certificates {
    /// Whether this certificate is valid.
    pub counts: Arc<dyn Fn(&PeerIdentity) -> bool + Send + Sync>,
    /// Changes whenever a certificate may have become invalid.
    pub changes: watch::Receiver<u64>,
}

/// Decides which requests stream their bodies.
pub type StreamingRequests = Arc<dyn Fn(&Request<Incoming>) -> bool + Send + Sync>;

/// What the listener serves: certificates, routes and limits.
pub struct ListenerConfig {
    /// The server's certificate, and how clients' are verified.
    pub tls: Arc<rustls::ServerConfig>,
    /// The routes.
    pub router: Router,
    /// The limits.
    pub limits: ListenerLimits,
    /// The validity of client certificates.
    pub certificates: Certificates,
    /// True for requests to programs in pods: their bodies may take as long as they flow.
    pub streams: StreamingRequests,
    /// Counts the requests that the listener itself refuses; the routes count the others.
    pub requests: Arc<RequestMetrics>,
}

/// The places of connections and requests.
struct Places {
    connections: Arc<ConnectionSlots>,
    requests: Arc<RequestSlots>,
}

/// Permits for TLS handshakes.
struct Handshakes {
    loopback: Semaphore,
    others: Semaphore,
}

/// Serves until `stop`.
pub async fn serve(
    listener: TcpListener,
    config: ListenerConfig,
    mut stop: watch::Receiver<bool>,
) -> Result<()> {
    let places = Arc::new(Places {
        connections: ConnectionSlots::new(config.limits),
        requests: RequestSlots::new(config.limits),
    });
    let handshakes = Arc::new(Handshakes {
        loopback: Semaphore::new(config.limits.handshakes),
        others: Semaphore::new(config.limits.handshakes),
    });
    let config = Arc::new(config);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Probably out of file descriptors: pause, so as not to spin.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(place) = places.connections.take(connection_slots::origin(peer.ip())) else {
            tracing::debug!(%peer, "a connection is refused: too many are at work");
            continue;
        };
        let (config, handshakes) = (config.clone(), handshakes.clone());
        let requests = places.requests.clone();
        tokio::spawn(async move {
            let served = tokio::select! {
                served = connection(stream, peer, &place, &requests, &config, &handshakes) => served,
                () = place.activity.evicted() => Ok(()),
            };
            if let Err(error) = served {
                tracing::debug!(%peer, error = format!("{error:#}"), "connection ended");
            }
        });
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    place: &ConnectionSlot,
    requests: &Arc<RequestSlots>,
    config: &ListenerConfig,
    handshakes: &Handshakes,
) -> Result<()> {
    let loopback = peer.ip().to_canonical().is_loopback();
    stream.set_nodelay(true)?;
    let mut first = [0u8; 1];
    let greeting = config.limits.greeting;
    let read = tokio::time::timeout(greeting, stream.peek(&mut first)).await??;
    if read == 0 {
        return Ok(());
    }
    if first[0] == TLS_HANDSHAKE {
        let turn = if loopback {
            &handshakes.loopback
        } else {
            &handshakes.others
        };
        let handshake = async {
            let _turn = turn.acquire().await?;
            let acceptor = TlsAcceptor::from(config.tls.clone());
            anyhow::Ok(acceptor.accept(stream).await?)
        };
        let stream = tokio::time::timeout(greeting, handshake).await??;
        let certificates = stream.get_ref().1.peer_certificates();
        let identity = certificates
            .and_then(|chain| chain.first())
            .and_then(|certificate| fleet::peer_identity(certificate));
        let router = config.router.clone();
        let client = Client { identity, peer };
        return http(stream, router, client, &place.activity, requests, config).await;
    }
    let router = if loopback {
        plain_http::marked(config.router.clone())
    } else {
        route_layer::around(Router::new().fallback(to_https), Arc::default())
    };
    let client = Client {
        identity: None,
        peer,
    };
    http(stream, router, client, &place.activity, requests, config).await
}

/// The other end of a connection.
struct Client {
    /// Of its certificate, which may be invalid by now.
    identity: Option<PeerIdentity>,
    peer: SocketAddr,
}

async fn http<S>(
    stream: S,
    router: Router,
    client: Client,
    activity: &Arc<Activity>,
    requests: &Arc<RequestSlots>,
    config: &ListenerConfig,
) -> Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = config.limits;
    let Client { identity, peer } = client;
    let revoked = revoked(config.certificates.clone(), identity.clone());
    let counts = config.certificates.counts.clone();
    let busy = activity.clone();
    let (slots, metrics) = (requests.clone(), config.requests.clone());
    let streams = config.streams.clone();
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let in_progress = busy.begin();
        let mut origin = RequestOrigin::Address(connection_slots::origin(peer.ip()));
        if let Some(identity) = &identity {
            // A caller with an invalid certificate is anonymous to the API; the fleet reports the
            // reason.
            if let Some(node) = identity.node_name()
                && counts(identity)
            {
                request.extensions_mut().insert(Caller::node(node));
                origin = RequestOrigin::Node(node.to_owned());
            }
            request.extensions_mut().insert(identity.clone());
        }
        request
            .extensions_mut()
            .insert(axum::extract::ConnectInfo(peer));
        let lasting = request.uri().path().starts_with(SESSIONS);
        let streamed = streams(&request);
        let slot = slots.take(origin);
        if slot.is_err() {
            let refused = StatusCode::TOO_MANY_REQUESTS;
            metrics.count(request.method(), refused, Duration::ZERO);
        }
        let router = router.clone();
        async move {
            let (answer, slot) = match slot {
                Ok(slot) => {
                    let request = request.map(|body| match (lasting, streamed) {
                        (true, _) => Body::new(body),
                        // The proxy passes on what it reads, and so holds none of it.
                        (_, true) => Body::new(Upload::new(body, None, limits.of_stream())),
                        _ => Body::new(Upload::new(body, Some(slot.body_bytes()), limits)),
                    });
                    let answer = router.oneshot(request).await?;
                    // Whatever a route answers to a body that ends with an error.
                    let answer = slot.refused().map_or(answer, refusal);
                    (answer, Some(slot))
                }
                Err(why) => (refusal(&why), None),
            };
            let progress = SendProgress::current();
            Ok::<_, std::convert::Infallible>(
                answer.map(|body| CountedBody::new(body, in_progress, slot, progress)),
            )
        }
    });
    let mut builder = Builder::new(Streams(limits.unread));
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.headers)
        .max_buf_size(usize::try_from(limits.header_bytes).unwrap_or(usize::MAX));
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(limits.ping)
        .keep_alive_timeout(limits.pong)
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(limits.header_bytes);
    let serving = {
        let stream = SlowReaderTimeout::new(stream, limits.unread);
        builder.serve_connection_with_upgrades(TokioIo::new(stream), service)
    };
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        ended = serving.as_mut() => return ended.map_err(|error| anyhow::anyhow!("{error}")),
        () = revoked => return Ok(()),
        () = activity.idle(limits.idle, limits.headers) => {}
    }
    // The shutdown notice goes to the client, which may just have sent a request.
    serving.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(GOODBYE, serving).await;
    Ok(())
}

/// The answer to a request that got no place.
fn refusal(why: &TooManyRequests) -> Response<Body> {
    tracing::debug!(%why, "a request is refused");
    let mut answer = apiserver::too_many_requests(&why.to_string());
    route_layer::protect(answer.headers_mut());
    answer
}

/// Returns when a valid certificate becomes invalid.
async fn revoked(certificates: Certificates, identity: Option<PeerIdentity>) {
    let Certificates {
        counts,
        mut changes,
    } = certificates;
    let Some(identity) = identity else {
        return std::future::pending().await;
    };
    let mut counted = false;
    loop {
        let now = counts(&identity);
        if counted && !now {
            return;
        }
        counted = now;
        tokio::select! {
            changed = changes.changed() => if changed.is_err() {
                // The server is stopping.
                return std::future::pending().await;
            },
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
    }
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
