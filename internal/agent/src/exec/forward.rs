//! Forwarded ports, for `kubectl port-forward`: connects to a port of a pod, and carries the connection.
//!
//! A pod may share its node's network, and must not become a way to the node's other services: only a port on
//! which a process of the pod listens is connected to. The listening sockets are compared before and after the
//! connection is made, so that a socket that took the port meanwhile gets no data.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use rpc::EXEC_CHUNK_BYTES;
use rpc::agent::v1::exec_frame::Body;
use rpc::agent::v1::{ExecData, ExecExit, ExecFrame, OpenExec};
use rpc::exec_channel;
use runtime::ContainerId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tonic::Streaming;

use super::sockets::{listeners, owned, target};
use super::{frame, relay};
use crate::engine::ContainerEngine;
use crate::node::AgentNode;

/// How long a process of the pod may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// Why a port is not forwarded.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardError {
    /// The pod has no process here.
    #[error("pod {0:?} has no running process whose ports this node could forward")]
    NoProcess(String),
    /// The port is not the pod's.
    #[error(
        "no process of pod {pod:?} alone listens on port {port}; start a server in the pod that listens there, on a \
         port that no other process of the node uses"
    )]
    NotListening { pod: String, port: u16 },
    /// The number is no port.
    #[error("port {0} is not between 1 and 65535")]
    NoPort(u32),
    /// The connection failed.
    #[error("cannot connect to port {port} of pod {pod:?}: {source}")]
    Connect {
        pod: String,
        port: u16,
        source: io::Error,
    },
}

/// Connects to a port of the pod.
pub(super) async fn connect(node: &AgentNode, open: &OpenExec) -> Result<TcpStream, ForwardError> {
    let port = u16::try_from(open.forward_port)
        .ok()
        .filter(|port| *port != 0);
    let port = port.ok_or(ForwardError::NoPort(open.forward_port))?;
    let pod = open.pod.clone();
    let mut containers = Vec::new();
    for engine in node.engines() {
        let of_pod = engine.list().into_iter();
        let of_pod = of_pod.filter(|status| status.pod.uid == open.uid && status.is_running());
        containers.extend(of_pod.map(|status| (engine.clone(), status.id)));
    }
    let failed = {
        let pod = pod.clone();
        move |source| ForwardError::Connect { pod, port, source }
    };
    let (sender, connected) = tokio::sync::oneshot::channel();
    // A thread of its own, which may have changed its network namespace.
    let thread = std::thread::Builder::new().name("port-forward".into());
    let spawned = thread.spawn(move || {
        let _ = sender.send(reach(&containers, pod, port));
    });
    if let Err(source) = spawned {
        return Err(failed(source));
    }
    let connection = match connected.await {
        Ok(reached) => reached?,
        Err(_) => return Err(failed(io::Error::other("the connecting thread ended"))),
    };
    let prepared = connection.set_nonblocking(true);
    prepared
        .and_then(|()| TcpStream::from_std(connection))
        .map_err(failed)
}

type Containers = [(Arc<dyn ContainerEngine>, ContainerId)];

fn reach(
    containers: &Containers,
    pod: String,
    port: u16,
) -> Result<std::net::TcpStream, ForwardError> {
    let Some((pid, address, takers)) = find(containers, port, &pod)? else {
        return Err(ForwardError::NotListening { pod, port });
    };
    let connection = enter_network(pid)
        .and_then(|()| {
            std::net::TcpStream::connect_timeout(&SocketAddr::new(address, port), CONNECT)
        })
        .map_err(|source| ForwardError::Connect {
            pod: pod.clone(),
            port,
            source,
        })?;
    // The sockets that could take the connection before must be those that could afterwards.
    match find(containers, port, &pod)? {
        Some((_, same, still)) if same == address && still == takers => Ok(connection),
        _ => Err(ForwardError::NotListening { pod, port }),
    }
}

/// One of the pod's processes, the address of the port in its network, and the sockets that take the connection.
fn find(
    containers: &Containers,
    port: u16,
    pod: &str,
) -> Result<Option<(i32, IpAddr, BTreeSet<u64>)>, ForwardError> {
    let pids: Vec<i32> = containers
        .iter()
        .flat_map(|(engine, id)| engine.processes(id))
        .collect();
    let Some(pid) = pids.first().copied() else {
        return Err(ForwardError::NoProcess(pod.to_owned()));
    };
    let table = |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}"));
    let all: Vec<_> = ["tcp", "tcp6"]
        .iter()
        .flat_map(|name| listeners(&table(name).unwrap_or_default()))
        .collect();
    Ok(target(&all, port, &owned(&pids)).map(|(address, takers)| (pid, address, takers)))
}

/// Moves this thread into a process's network namespace, if that is another one.
fn enter_network(pid: i32) -> io::Result<()> {
    let theirs = File::open(format!("/proc/{pid}/ns/net"))?;
    let mine = fs::metadata("/proc/thread-self/ns/net")?;
    if theirs.metadata()?.ino() != mine.ino() {
        setns(&theirs, CloneFlags::CLONE_NEWNET)?;
    }
    Ok(())
}

/// Carries until the pod's process ends the connection, or the server ends the call.
pub(super) async fn run(
    connection: TcpStream,
    inbound: Streaming<ExecFrame>,
    outbound: mpsc::Sender<ExecFrame>,
) {
    let (from_pod, to_pod) = connection.into_split();
    let output = send(from_pod, outbound.clone());
    relay(output, take(inbound, to_pod), outbound).await;
}

async fn send(mut from_pod: OwnedReadHalf, outbound: mpsc::Sender<ExecFrame>) -> ExecExit {
    let mut buffer = vec![0; EXEC_CHUNK_BYTES];
    loop {
        match from_pod.read(&mut buffer).await {
            Ok(0) => return ExecExit::default(),
            Ok(read) => {
                let data = ExecData {
                    channel: exec_channel::OUTPUT,
                    data: buffer[..read].to_vec(),
                };
                // A closed connection is seen by the caller.
                let _ = outbound.send(frame(Body::Data(data))).await;
            }
            Err(error) => {
                return ExecExit {
                    code: 0,
                    error: format!("the connection in the pod broke: {error}"),
                };
            }
        }
    }
}

/// Takes the client's data; returns once the server's call has ended.
async fn take(mut inbound: Streaming<ExecFrame>, mut to_pod: OwnedWriteHalf) {
    while let Ok(Some(message)) = inbound.message().await {
        // If the process reads no more, the connection's end is on its way.
        let _ = match message.body {
            Some(Body::Data(data)) => to_pod.write_all(&data.data).await,
            Some(Body::InputEnd(_)) => to_pod.shutdown().await,
            _ => Ok(()),
        };
    }
}
