//! The machine: a paused server, clients and nodes that take all connections, and a node without the means for pods.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use e2e::{Agent, Platform, eventually, run};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use http_body_util::StreamBody;
use http_body_util::combinators::BoxBody;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Ground, SOON, pod};

/// How long a node may be silent, and for how much longer the server is paused; agents send a report every three
/// seconds.
const GRACE_SECONDS: &str = "10";
const PAUSE: Duration = Duration::from_secs(16);

/// Since when a node is ready, if it is.
pub fn ready_since(platform: &Platform, node: &str) -> Option<String> {
    let node = platform.get("node", node);
    let mut conditions = node["status"]["conditions"].as_array()?.iter();
    let ready = conditions.find(|condition| condition["type"] == "Ready")?;
    let since = ready["lastTransitionTime"].as_str();
    since
        .filter(|_| ready["status"] == "True")
        .map(str::to_owned)
}

#[test]
fn a_server_that_was_stopped_for_longer_than_the_grace_loses_no_node_and_ends_no_pod() {
    let platform = Platform::server(&["--node-grace", GRACE_SECONDS]);
    let _agent = platform.agent("n1", None, &[]);
    platform.await_nodes(1);
    platform.apply(&pod("steady", "sleep 600").to_string());
    eventually("the pod runs", SOON, || {
        (platform.phase("steady") == "Running").then_some(())
    });
    let running = || platform.get("pod", "steady")["status"]["containerStatuses"][0].clone();
    let (before, since) = (running(), ready_since(&platform, "n1"));
    assert!(since.is_some(), "the node is ready");

    let signal = |name: &str| {
        run(Command::new("kill").args([name, &platform.pid().to_string()])).ok();
    };
    signal("-STOP");
    std::thread::sleep(PAUSE);
    signal("-CONT");
    // After two more reports of this node, every node has been judged.
    let renewed = || {
        let lease = ["-n", "kube-node-lease", "get", "lease", "n1", "-o"];
        let path = ["jsonpath={.spec.renewTime}"];
        platform.kubectl(&[&lease[..], &path[..]].concat()).ok()
    };
    let mut last = renewed();
    for _ in 0..2 {
        last = eventually("the node is heard of", SOON, || {
            Some(renewed()).filter(|now| *now != last)
        });
    }
    assert!(
        platform.logged().contains("did not run for a while"),
        "the server noticed"
    );
    assert_eq!(ready_since(&platform, "n1"), since);
    assert_eq!(running(), before, "the container runs on");
    let metadata = platform.get("pod", "steady")["metadata"].clone();
    assert!(metadata["deletionTimestamp"].is_null(), "{metadata}");
}

/// The files that the server may open; its limits follow from it (`ListenerLimits::of`): half of three quarters of these are
/// the connections from one address of this machine.
const OPEN_FILES: usize = 256;
const PER_LOOPBACK: usize = OPEN_FILES / 4 * 3 / 2;

/// The number of connections that the server has not closed.
async fn still_open(connections: &mut [TlsStream<tokio::net::TcpStream>]) -> usize {
    let looks = connections.iter_mut().map(|stream| {
        // The server sends nothing on them: a connection that does not end within this time is open.
        tokio::time::timeout(Duration::from_millis(200), stream.read_u8())
    });
    let looks = futures::future::join_all(looks).await;
    looks.iter().filter(|look| look.is_err()).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_handshakes_end_and_idle_connections_make_room_for_others() {
    let files = format!("--nofile={OPEN_FILES}:{OPEN_FILES}");
    let ground = Ground::of(Platform::server_by(&["prlimit", &files], &[])).await;
    let mut silent = TcpStream::connect(&ground.platform.listen).expect("it listens");
    silent.set_read_timeout(Some(SOON)).expect("a bound");
    // The first byte of a handshake, and no more.
    silent.write_all(&[0x16]).expect("it reads");
    let read = silent.read(&mut [0; 1]);
    let ended = match &read {
        Ok(bytes) => *bytes == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    };
    assert!(ended, "{read:?}");

    let mut idle = Vec::new();
    for _ in 0..PER_LOOPBACK + 50 {
        idle.push(ground.admin.open().await);
    }
    ground.healthy().await;
    let begin = Instant::now();
    while still_open(&mut idle).await > PER_LOOPBACK {
        assert!(begin.elapsed() < SOON, "the oldest connections stay open");
    }
    ground.healthy().await;
}

#[test]
fn a_node_that_may_not_mount_says_so_and_no_pod_is_charged_for_it() {
    e2e::require_root();
    let platform = Platform::server(&[]);
    let without = ["setpriv", "--bounding-set=-sys_admin"];
    let without = without.map(str::to_owned).to_vec();
    let unfit = platform.agent_by("unfit", without, &[], &[]);
    platform.await_nodes(1);
    let fit = |node: &str| {
        let labels = platform.get("node", node)["metadata"]["labels"].clone();
        labels["muster.io/runtime.process"].clone()
    };
    assert_eq!(fit("unfit"), Value::from("false"));
    assert!(
        unfit.logged().contains("starts no pods"),
        "the agent says why"
    );
    platform.apply(&pod("waits", "sleep 600").to_string());
    eventually("the scheduler says why it waits", SOON, || {
        let pod = platform.get("pod", "waits");
        let mut conditions = pod["status"]["conditions"].as_array()?.iter();
        let placed = conditions.find(|condition| condition["type"] == "PodScheduled")?;
        (placed["status"] == "False").then_some(())
    });
    assert_eq!(platform.phase("waits"), "Pending");
    eventually(
        "the explanation has the node's own words and the remedy",
        SOON,
        || {
            let explained = platform.cli(&["explain", "pod/waits"]).out;
            let all = [
                "unfit: pods without an image cannot be started",
                "CAP_SYS_ADMIN",
            ];
            all.iter()
                .all(|words| explained.contains(words))
                .then_some(())
        },
    );
    let _fit = platform.agent("fit", None, &[]);
    platform.await_nodes(2);
    assert_eq!(fit("fit"), Value::from("true"));
    eventually("it runs where it can", SOON, || {
        (platform.phase("waits") == "Running").then_some(())
    });
    let pod = platform.get("pod", "waits");
    assert_eq!(pod["spec"]["nodeName"], "fit");
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
}

/// Runs packaging/down.sh at its end.
struct Down<'a>(&'a std::path::Path);

impl Drop for Down<'_> {
    fn drop(&mut self) {
        let script = e2e::repository().join("packaging/down.sh");
        let _ = Command::new(script).env("MUSTER_DATA", self.0).output();
    }
}

#[test]
fn make_up_on_a_machine_that_may_not_mount_ends_with_the_cause_and_the_remedy() {
    e2e::require_root();
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let _down = Down(&data);
    let script = e2e::repository().join("packaging/up.sh");
    let up = run(Command::new("setpriv")
        .arg("--bounding-set=-sys_admin")
        .arg(script)
        .env("MUSTER_DATA", &data)
        .env("MUSTER_BINARY", e2e::muster())
        .env("MUSTER_LISTEN", e2e::free_address())
        .env("MUSTER_UP_ARGUMENTS", "--metrics off"));
    assert_eq!(up.code, Some(1), "{}\n{}", up.out, up.err);
    for words in [
        "no node can run the example's pods",
        "to fix it:",
        "muster doctor",
    ] {
        assert!(up.err.contains(words), "{words:?} in\n{}", up.err);
    }
    assert!(!up.out.contains("submitting"), "{}", up.out);
}

/// An HTTP/2 connection with the identity of an agent.
async fn as_node(agent: &Agent, server: &str) -> SendRequest<BoxBody<Bytes, Infallible>> {
    let file = agent.data.join("agent/identity/identity.json");
    let identity: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let pem = |name: &str| identity[name].as_str().unwrap().as_bytes();
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(pem("caPem")).unwrap())
        .unwrap();
    let certificate = CertificateDer::from_pem_slice(pem("certificatePem")).unwrap();
    let key = PrivateKeyDer::from_pem_slice(pem("keyPem")).unwrap();
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("agents.muster.internal").unwrap();
    let stream = tokio::net::TcpStream::connect(server).await.unwrap();
    let stream = connector.connect(name, stream).await.unwrap();
    let io = TokioIo::new(stream);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Opens a session and never sends its Hello. Returns the answer's status and message in gRPC's headers.
async fn silent_session(mut sender: SendRequest<BoxBody<Bytes, Infallible>>) -> (String, String) {
    let request =
        http::Request::post("https://agents.muster.internal/muster.agent.v1.Fleet/Session")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(BoxBody::new(StreamBody::new(futures::stream::pending())))
            .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
    (header("grpc-status"), header("grpc-message"))
}

#[tokio::test]
async fn a_nodes_fifth_opening_session_is_refused_and_its_agent_returns() {
    let platform = Platform::server(&[]);
    let mut agent = platform.agent("n1", None, &["--metrics", "off"]);
    platform.await_nodes(1);
    agent.kill();
    let sender = as_node(&agent, &platform.listen).await;
    let mut five: FuturesUnordered<_> = (0..5).map(|_| silent_session(sender.clone())).collect();
    // Four wait for their Hello, which the server awaits for 10 seconds.
    let (status, message) = five.next().await.unwrap();
    assert_eq!(status, "8", "RESOURCE_EXHAUSTED, not {message}");
    assert!(
        message.contains("are%20being%20opened%20already"),
        "{message}"
    );
    assert!(five.next().now_or_never().is_none());
    drop((five, sender));
    agent.restart();
    eventually("the agent has a session", SOON, || {
        let logged = agent.logged();
        (logged.matches("a session with the server begins").count() >= 2).then_some(())
    });
}
