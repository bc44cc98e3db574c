//! The bounds on a session's beginning, each at its edge: how large its first message may be, how
//! long it may take, and how many sessions of one node may be opening at once.

use rpc::MAX_AGENT_MESSAGE_BYTES;
use rpc::agent::v1::fleet_client::FleetClient;
use rpc::agent::v1::{AgentMessage, Hello, Inventory, server_message};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status, Streaming};

use crate::server::{Server, until};
use crate::stand_in::StandIn;

/// A connection with the certificate of a node that has joined.
async fn connection(server: &Server, node: &str) -> Channel {
    let engine = StandIn::new();
    let agent = server.agent(node, &engine).await;
    until("the session", async || {
        (server.fleet.connected_nodes() == [node]).then_some(())
    })
    .await;
    agent.end().await.unwrap();
    until("the end of the session", async || {
        server.fleet.connected_nodes().is_empty().then_some(())
    })
    .await;
    let file = server.data(node).join("identity/identity.json");
    let identity: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let text = |field: &str| identity[field].as_str().unwrap().to_owned();
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(text("caPem")))
        .identity(Identity::from_pem(text("certificatePem"), text("keyPem")));
    let address = server.config(node, None).server;
    let endpoint = Endpoint::from_shared(address).unwrap();
    endpoint.tls_config(tls).unwrap().connect().await.unwrap()
}

type Opened = Result<Streaming<rpc::agent::v1::ServerMessage>, Status>;

/// Opens a session; the sender holds it open.
fn open(channel: &Channel) -> (mpsc::Sender<AgentMessage>, JoinHandle<Opened>) {
    let (send, messages) = mpsc::channel(4);
    let mut client = FleetClient::new(channel.clone());
    let opening = tokio::spawn(async move {
        let opened = client.session(ReceiverStream::new(messages)).await;
        opened.map(tonic::Response::into_inner)
    });
    (send, opening)
}

/// A Hello whose message has this many bytes.
fn hello(bytes: usize) -> AgentMessage {
    let of = |spaces: usize| -> AgentMessage {
        let json = format!("{{{}}}", " ".repeat(spaces));
        let hello = Hello {
            node_name: "n1".to_owned(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            inventory: Some(Inventory { json }),
            ..Hello::default()
        };
        hello.into()
    };
    let length = |message: &AgentMessage| prost::Message::encoded_len(message);
    // The lengths' own encodings grow with the text, by a few bytes.
    let mut spaces = bytes - length(&of(bytes)).saturating_sub(bytes);
    while length(&of(spaces)) > bytes {
        spaces -= 1;
    }
    let message = of(spaces);
    assert_eq!(length(&message), bytes);
    message
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_above_the_bound_is_refused_and_one_at_the_bound_begins_a_session() {
    let server = Server::start().await;
    let channel = connection(&server, "n1").await;
    for bytes in [MAX_AGENT_MESSAGE_BYTES + 1, 16 << 20] {
        let (send, opening) = open(&channel);
        send.send(hello(bytes)).await.unwrap();
        let refused = opening.await.unwrap().err().unwrap();
        assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
        assert!(server.fleet.connected_nodes().is_empty());
    }
    let (send, opening) = open(&channel);
    send.send(hello(MAX_AGENT_MESSAGE_BYTES)).await.unwrap();
    let mut session = opening.await.unwrap().unwrap();
    let first = session.message().await.unwrap().unwrap();
    assert!(matches!(first.body, Some(server_message::Body::Welcome(_))));
    assert_eq!(server.fleet.connected_nodes(), ["n1"]);
}
