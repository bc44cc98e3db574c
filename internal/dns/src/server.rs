//! The server: datagrams and connections at one address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::in_flight::InFlight;
use crate::message::{self, Step, Transport};
use crate::resolv_conf::{HOST_FILE, ResolvConf};
use crate::upstream::{self, PORT};
use crate::zone::Zone;

/// The most connections at a time.
const CONNECTIONS_MAX: usize = 64;
/// How long a connection may wait for its next question.
const IDLE: Duration = Duration::from_secs(10);
/// The largest question in a datagram, in bytes.
const DATAGRAM_MAX: usize = 4096;
/// The pause after the kernel refused a connection or a datagram.
const AGAIN: Duration = Duration::from_millis(100);

/// Why the server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// The address is not to be had.
    #[error(
        "the cluster's DNS server cannot listen on {address}: {source}; stop the other DNS server of this machine that \
         listens on all addresses, or have it listen on its own only"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The names that a server knows; shared between those who change and those who read them.
#[derive(Clone, Debug, Default)]
pub struct Names(Arc<RwLock<Option<Arc<Zone>>>>);

impl Names {
    /// Replaces the names.
    pub fn set(&self, zone: Zone) {
        *self.0.write() = Some(Arc::new(zone));
    }

    fn now(&self) -> Option<Arc<Zone>> {
        self.0.read().clone()
    }
}

/// A DNS server that listens.
pub struct DnsServer {
    address: Ipv4Addr,
    datagrams: UdpSocket,
    connections: TcpListener,
    shared: Arc<Shared>,
}

struct Shared {
    address: Ipv4Addr,
    names: Names,
    in_flight: InFlight,
}

impl DnsServer {
    /// Listens at an address of the machine.
    ///
    /// # Errors
    ///
    /// When another program listens there.
    pub async fn listen(address: Ipv4Addr, names: Names) -> Result<DnsServer, DnsError> {
        let at = SocketAddr::from((address, PORT));
        let refused = |source| DnsError::Listen {
            address: at,
            source,
        };
        Ok(DnsServer {
            address,
            datagrams: UdpSocket::bind(at).await.map_err(refused)?,
            connections: TcpListener::bind(at).await.map_err(refused)?,
            shared: Arc::new(Shared {
                address,
                names,
                in_flight: InFlight::default(),
            }),
        })
    }

    /// Answers until it is dropped.
    pub async fn serve(self) {
        tracing::info!(address = %self.address, "the cluster's DNS server listens");
        let datagrams = Arc::new(self.datagrams);
        tokio::join!(
            by_datagram(datagrams, &self.shared),
            by_connection(self.connections, &self.shared)
        );
    }
}

async fn by_datagram(socket: Arc<UdpSocket>, shared: &Arc<Shared>) {
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                tracing::debug!(%error, "a datagram was not received");
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        let question = buffer.get(..length).unwrap_or_default();
        match message::step(question, Transport::Udp, shared.names.now().as_deref()) {
            Step::Ignore => {}
            Step::Answer(answer) => drop(socket.send_to(&answer, from).await),
            elsewhere => {
                let Some(place) = shared.in_flight.take(from.ip()) else {
                    if let Step::Answer(answer) = message::failure(question, Transport::Udp) {
                        drop(socket.send_to(&answer, from).await);
                    }
                    continue;
                };
                let (socket, shared) = (socket.clone(), shared.clone());
                let question = question.to_vec();
                tokio::spawn(async move {
                    let _place = place;
                    let answer = ask(&shared, &question, Transport::Udp, elsewhere).await;
                    if let Step::Answer(answer) = answer {
                        drop(socket.send_to(&answer, from).await);
                    }
                });
            }
        }
    }
}

/// Asks the host's resolvers, whose list is read again for each question: networks of machines change.
async fn ask(shared: &Shared, question: &[u8], transport: Transport, step: Step) -> Step {
    let host = tokio::fs::read_to_string(HOST_FILE).await;
    let host = ResolvConf::parse(&host.unwrap_or_default());
    let resolvers: Vec<IpAddr> = host.resolvers(shared.address);
    let answer = match step {
        Step::Forward => upstream::ask(&resolvers, question, transport)
            .await
            .map(Step::Answer),
        Step::Follow {
            question: followed,
            aliases,
        } => upstream::ask(&resolvers, &followed, transport)
            .await
            .map(|answer| message::followed(question, transport, &aliases, &answer)),
        step @ (Step::Ignore | Step::Answer(_)) => Some(step),
    };
    answer.unwrap_or_else(|| message::failure(question, transport))
}

async fn by_connection(listener: TcpListener, shared: &Arc<Shared>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        let shared = shared.clone();
        tokio::spawn(async move {
            let _place = place;
            converse(stream, from.ip(), &shared).await;
        });
    }
}

/// Answers the questions of one connection, one after the other.
async fn converse(mut stream: TcpStream, from: IpAddr, shared: &Shared) {
    while let Ok(Ok(question)) = timeout(IDLE, upstream::read(&mut stream)).await {
        let zone = shared.names.now();
        let answer = match message::step(&question, Transport::Tcp, zone.as_deref()) {
            step @ (Step::Ignore | Step::Answer(_)) => step,
            elsewhere => match shared.in_flight.take(from) {
                Some(_place) => ask(shared, &question, Transport::Tcp, elsewhere).await,
                None => message::failure(&question, Transport::Tcp),
            },
        };
        let Step::Answer(answer) = answer else { return };
        if !matches!(
            timeout(IDLE, upstream::write(&mut stream, &answer)).await,
            Ok(Ok(()))
        ) {
            return;
        }
    }
}
