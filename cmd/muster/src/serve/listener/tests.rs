//! The listener with real sockets: which connections it closes and which it keeps. No test depends on timing: each
//! waits for the expected event.

use std::convert::Infallible;

use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

use super::*;

/// Longer than any test runs.
const NEVER: Duration = Duration::from_secs(3600);

/// Too short to slow a test down.
const SOON: Duration = Duration::from_millis(20);

fn patient() -> ListenerLimits {
    ListenerLimits {
        greeting: NEVER,
        headers: NEVER,
        idle: NEVER,
        body_pause: NEVER,
        body_total: NEVER,
        unread: NEVER,
        ..ListenerLimits::of(1024)
    }
}

/// A listener, and senders for the bodies of `/watch`, one watch after the other.
struct Served {
    address: SocketAddr,
    watches: mpsc::UnboundedSender<mpsc::UnboundedReceiver<Result<&'static str, Infallible>>>,
    _stop: watch::Sender<bool>,
    _changes: watch::Sender<u64>,
}

async fn serve_with(limits: ListenerLimits) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let ca = fleet::CertificateAuthority::load_or_create(dir.path()).unwrap();
    let names = crate::serve::certificate::ServerNames {
        dns: vec!["localhost".to_string()],
        addresses: Vec::new(),
    };
    let certificate = crate::serve::certificate::Certificate::issue(&ca, &names).unwrap();
    let tls = crate::serve::certificate::tls(&ca, certificate).unwrap();
    let (watches, bodies) = mpsc::unbounded_channel();
    let bodies = Arc::new(tokio::sync::Mutex::new(bodies));
    let watching = move || async move {
        let pieces: mpsc::UnboundedReceiver<Result<&'static str, Infallible>> =
            bodies.lock().await.recv().await.unwrap();
        let pieces = futures::stream::unfold(pieces, |mut pieces| async move {
            Some((pieces.recv().await?, pieces))
        });
        Body::from_stream(pieces)
    };
    let upload = |body: Body| async move {
        match axum::body::to_bytes(body, 1 << 20).await {
            Ok(_) => StatusCode::OK,
            Err(_) => StatusCode::REQUEST_TIMEOUT,
        }
    };
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/watch", get(watching))
        .route("/upload", post(upload));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = watch::channel(false);
    let (changed, changes) = watch::channel(0);
    let config = ListenerConfig {
        tls: Arc::new(tls),
        router: route_layer::around(router, Arc::default()),
        limits,
        certificates: Certificates {
            counts: Arc::new(|_| true),
            changes,
        },
        streams: Arc::new(|_| false),
        requests: Arc::default(),
    };
    tokio::spawn(serve(listener, config, stopped));
    Served {
        address,
        watches,
        _stop: stop,
        _changes: changed,
    }
}

impl Served {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A connection after one answered request.
    async fn answered(&self) -> TcpStream {
        let mut stream = self.connect().await;
        send(&mut stream, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        until(&mut stream, "hello").await;
        stream
    }

    /// A watch that has begun, and the sender of its pieces.
    async fn watch(
        &self,
    ) -> (
        TcpStream,
        mpsc::UnboundedSender<Result<&'static str, Infallible>>,
    ) {
        let (sender, pieces) = mpsc::unbounded_channel();
        sender.send(Ok("first")).unwrap();
        self.watches.send(pieces).unwrap();
        let mut stream = self.connect().await;
        send(&mut stream, "GET /watch HTTP/1.1\r\nHost: a\r\n\r\n").await;
        until(&mut stream, "first").await;
        (stream, sender)
    }
}

async fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// Reads until this text arrives.
async fn until(stream: &mut TcpStream, text: &str) {
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains(text) {
        let mut piece = [0; 1024];
        let count = stream.read(&mut piece).await.unwrap();
        assert!(count > 0, "it ended before {text:?}");
        read.extend_from_slice(&piece[..count]);
    }
}

/// Reads until the other end closes; returns the data before that.
async fn closed(mut stream: TcpStream) -> String {
    let mut read = Vec::new();
    let mut piece = [0; 1024];
    // A reset counts as an end.
    while let Ok(count @ 1..) = stream.read(&mut piece).await {
        read.extend_from_slice(&piece[..count]);
    }
    String::from_utf8_lossy(&read).into_owned()
}

#[tokio::test]
async fn who_says_nothing_or_says_its_headers_too_slowly_is_dropped() {
    let served = serve_with(ListenerLimits {
        greeting: SOON,
        headers: SOON,
        ..patient()
    })
    .await;
    assert_eq!(closed(served.connect().await).await, "");
    let mut slow = served.connect().await;
    send(&mut slow, "GET / HTTP/1.1\r\nHost: ").await;
    closed(slow).await;
    // Half a handshake.
    let mut tls = served.connect().await;
    tls.write_all(&[0x16, 3, 1]).await.unwrap();
    closed(tls).await;
}

#[tokio::test]
async fn an_idle_connection_is_dropped_and_a_quiet_watch_is_not() {
    let served = serve_with(ListenerLimits {
        idle: SOON,
        ..patient()
    })
    .await;
    let (mut watch, pieces) = served.watch().await;
    // By now the watch has been quiet for as long as the other connection was idle.
    closed(served.answered().await).await;
    pieces.send(Ok("second")).unwrap();
    until(&mut watch, "second").await;
    // After the watch's end the connection counts as idle.
    drop(pieces);
    closed(watch).await;
}

#[tokio::test]
async fn an_address_with_too_many_connections_loses_its_oldest_idle_one() {
    let served = serve_with(ListenerLimits {
        per_loopback: 2,
        ..patient()
    })
    .await;
    let (mut watch, pieces) = served.watch().await;
    let idle = served.answered().await;
    let (_second, _pieces) = served.watch().await;
    assert_eq!(closed(idle).await, "");
    // Both are busy: the next connection is refused at once, and neither is disturbed.
    assert_eq!(closed(served.connect().await).await, "");
    pieces.send(Ok("on")).unwrap();
    until(&mut watch, "on").await;
}

#[tokio::test]
async fn a_body_that_pauses_or_trickles_is_given_up() {
    for limits in [
        ListenerLimits {
            body_pause: SOON,
            ..patient()
        },
        ListenerLimits {
            body_total: SOON,
            ..patient()
        },
    ] {
        let served = serve_with(limits).await;
        let mut slow = served.connect().await;
        send(
            &mut slow,
            "POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc",
        )
        .await;
        until(&mut slow, "408").await;
        let mut quick = served.connect().await;
        send(
            &mut quick,
            "POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        )
        .await;
        until(&mut quick, "200").await;
    }
}

#[tokio::test]
async fn a_certificate_that_stops_counting_ends_what_it_opened() {
    let counts = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (changed, changes) = watch::channel(0);
    let asked = counts.clone();
    let certificates = Certificates {
        counts: Arc::new(move |_| asked.load(std::sync::atomic::Ordering::SeqCst)),
        changes,
    };
    let identity = PeerIdentity {
        common_name: PeerIdentity::node_common_name("n1"),
        admission: None,
        not_after: 0,
    };
    let (end, ended) = oneshot::channel();
    tokio::spawn(async move {
        revoked(certificates, Some(identity)).await;
        end.send(()).unwrap();
    });
    // The certificate is invalid, then valid, then invalid: only the last change ends the connection.
    tokio::task::yield_now().await;
    changed.send_modify(|count| *count += 1);
    tokio::task::yield_now().await;
    assert!(ended.is_empty());
    counts.store(true, std::sync::atomic::Ordering::SeqCst);
    changed.send_modify(|count| *count += 1);
    tokio::task::yield_now().await;
    counts.store(false, std::sync::atomic::Ordering::SeqCst);
    changed.send_modify(|count| *count += 1);
    ended.await.unwrap();
}

/// A hand-written HTTP/2 connection whose streams begin with this window, because no client leaves a window at zero.
async fn http2(served: &Served, window: u32) -> TcpStream {
    let mut stream = served.connect().await;
    let mut opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS with INITIAL_WINDOW_SIZE (RFC 9113, sections 4.1 and 6.5).
    opening.extend([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4]);
    opening.extend(window.to_be_bytes());
    stream.write_all(&opening).await.unwrap();
    stream
}

/// Requests `/watch` on a stream.
async fn ask(connection: &mut TcpStream, stream: u8) {
    // :method GET, :scheme http, :path /watch, :authority a (RFC 7541, appendix A).
    let mut fields = vec![0x82, 0x86, 0x04, 6];
    fields.extend(b"/watch");
    fields.extend([0x01, 1, b'a']);
    // HEADERS that end the headers and the request.
    let length = u8::try_from(fields.len()).unwrap();
    let mut frame = vec![0, 0, length, 1, 0x05, 0, 0, 0, stream];
    frame.extend(fields);
    connection.write_all(&frame).await.unwrap();
}

/// The type and the payload of the next frame on this stream other than HEADERS.
async fn next_frame(connection: &mut TcpStream, stream: u8) -> (u8, Vec<u8>) {
    loop {
        let mut head = [0; 9];
        connection.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut carried = vec![0; usize::try_from(length).unwrap()];
        connection.read_exact(&mut carried).await.unwrap();
        if head[5..] == [0, 0, 0, stream] && head[3] != HEADERS {
            return (head[3], carried);
        }
    }
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;

impl Served {
    /// The sender of the next watch's pieces, after the first one has arrived.
    fn next_watch(&self) -> mpsc::UnboundedSender<Result<&'static str, Infallible>> {
        let (sender, pieces) = mpsc::unbounded_channel();
        sender.send(Ok("first")).unwrap();
        self.watches.send(pieces).unwrap();
        sender
    }
}

#[tokio::test]
async fn an_http2_stream_whose_window_stays_at_zero_is_reset_and_a_quiet_watch_goes_on() {
    let served = serve_with(ListenerLimits {
        unread: SOON,
        ..patient()
    })
    .await;
    let quiet = served.next_watch();
    let mut reading = http2(&served, 65_535).await;
    ask(&mut reading, 1).await;
    let first = next_frame(&mut reading, 1).await;
    assert_eq!(first, (DATA, b"first".to_vec()));

    let stuck = served.next_watch();
    let mut closed_window = http2(&served, 0).await;
    ask(&mut closed_window, 1).await;
    let (what, _) = next_frame(&mut closed_window, 1).await;
    assert_eq!(what, RST_STREAM);
    stuck.closed().await;

    quiet.send(Ok("second")).unwrap();
    let second = next_frame(&mut reading, 1).await;
    assert_eq!(second, (DATA, b"second".to_vec()));
    // The connection itself stays open.
    let _third = served.next_watch();
    ask(&mut closed_window, 3).await;
    let (what, _) = next_frame(&mut closed_window, 3).await;
    assert_eq!(what, RST_STREAM);
}

#[tokio::test]
async fn a_client_that_reads_nothing_of_its_answer_is_let_go_and_one_with_nothing_to_read_is_not() {
    let served = serve_with(ListenerLimits {
        unread: SOON,
        ..patient()
    })
    .await;
    let (mut quiet, pieces) = served.watch().await;
    let (_stuck, flood) = served.watch().await;
    let much: &'static str = Box::leak("x".repeat(1 << 20).into_boxed_str());
    // More data than the kernel buffers.
    for _ in 0..64 {
        let _ = flood.send(Ok(much));
    }
    flood.closed().await;
    pieces.send(Ok("second")).unwrap();
    until(&mut quiet, "second").await;
}

/// Reads the next answer's head and body on HTTP/1.
async fn refused(stream: &mut TcpStream) -> String {
    let mut read = Vec::new();
    // The last byte of the answer's JSON.
    while !read.ends_with(b"}") {
        let mut piece = [0; 1024];
        let count = stream.read(&mut piece).await.unwrap();
        assert!(count > 0, "it ended before the answer did");
        read.extend_from_slice(&piece[..count]);
    }
    String::from_utf8(read).unwrap()
}

#[tokio::test]
async fn one_more_request_than_an_address_may_have_gets_429_until_a_watch_ends() {
    let served = serve_with(ListenerLimits {
        requests_per_loopback: 2,
        ..patient()
    })
    .await;
    // Two streams of one connection are as many as the address may have.
    let (first, second) = (served.next_watch(), served.next_watch());
    let mut streams = http2(&served, 65_535).await;
    for stream in [1, 3] {
        ask(&mut streams, stream).await;
        let begun = next_frame(&mut streams, stream).await;
        assert_eq!(begun, (DATA, b"first".to_vec()));
    }
    ask(&mut streams, 5).await;
    let (what, answer) = next_frame(&mut streams, 5).await;
    assert_eq!(what, DATA);
    let status: serde_json::Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(status["reason"], "TooManyRequests");
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    let message = "too many requests: 2 requests of the address 127.0.0.1 are in progress, and an open watch counts as \
                   one; end some, or please try again later";
    assert_eq!(status["message"], message);

    // Another connection of the address is no way around it, and keeps working.
    let mut other = served.connect().await;
    let begin = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    send(&mut other, begin).await;
    let answer = refused(&mut other).await.to_lowercase();
    assert!(answer.starts_with("http/1.1 429 "), "{answer}");
    assert!(answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
    assert!(
        answer.contains("\r\nx-content-type-options: nosniff\r\n"),
        "{answer}"
    );

    // A watch ends; its place is free again, and is taken and freed by one request after another.
    drop(first);
    let (what, _) = next_frame(&mut streams, 1).await;
    assert_eq!(what, DATA);
    for _ in 0..3 {
        send(&mut other, begin).await;
        until(&mut other, "hello").await;
    }
    second.send(Ok("on")).unwrap();
    let on = next_frame(&mut streams, 3).await;
    assert_eq!(on, (DATA, b"on".to_vec()));
    // A client that leaves frees its places as well.
    drop(streams);
    second.closed().await;
    let (mut third, pieces) = served.watch().await;
    pieces.send(Ok("third")).unwrap();
    until(&mut third, "third").await;
}

#[tokio::test]
async fn bodies_beyond_the_bytes_of_an_address_are_answered_429_whatever_the_route_says() {
    let served = serve_with(ListenerLimits {
        body_bytes_per_loopback: 1000,
        ..patient()
    })
    .await;
    let head = |length: usize| {
        format!("POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n")
    };
    // This body stays in progress with 600 bytes.
    let mut first = served.connect().await;
    send(&mut first, &head(700)).await;
    send(&mut first, &"x".repeat(600)).await;
    loop {
        let mut second = served.connect().await;
        send(&mut second, &head(500)).await;
        send(&mut second, &"x".repeat(500)).await;
        let mut read = vec![0; 4096];
        let count = second.read(&mut read).await.unwrap();
        let answer = String::from_utf8_lossy(&read[..count]).into_owned();
        // Until the server has read the first body.
        if answer.starts_with("HTTP/1.1 200") {
            continue;
        }
        assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
        let lower = answer.to_lowercase();
        assert!(lower.contains("retry-after: "), "{answer}");
        break;
    }
    send(&mut first, &"x".repeat(100)).await;
    until(&mut first, "200 OK").await;
    let mut third = served.connect().await;
    send(&mut third, &head(1000)).await;
    send(&mut third, &"x".repeat(1000)).await;
    until(&mut third, "200 OK").await;
}
