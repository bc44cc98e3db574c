//! Commands in running containers, for `kubectl exec`: starts a command that the server asked for,
//! and carries its input and output on a connection of its own. A command ends with its connection;
//! it does not survive the agent's session. Attached clients ([`attach`]) and forwarded ports
//! ([`forward`]) are carried in the same way.

mod attach;
mod forward;
mod sockets;

use std::sync::Arc;
use std::time::Duration;

use rpc::agent::v1::exec_frame::Body;
use rpc::agent::v1::fleet_client::FleetClient;
use rpc::agent::v1::{ExecData, ExecExit, ExecFrame, ExecOpened, OpenExec};
use rpc::{EXEC_CHUNK_BYTES, MAX_AGENT_MESSAGE_BYTES, exec_channel};
use runtime::{AttachSession, ExecCommand, ExecInput, ExecOutput, ExecSession, Terminal};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::engine::EngineError;
use crate::error::AgentError;
use crate::identity::AgentIdentity;
use crate::node::AgentNode;

/// Maximum number of commands at the same time.
const COMMANDS_MAX: usize = 256;
/// Messages to the server that wait; a command whose client does not read is slowed down by it.
const WAITING: usize = 8;
/// How long the rest of the output is read after a command's end: a process that it left behind may hold it open.
const REST: Duration = Duration::from_secs(1);
/// How long the server may take over the last message.
const GOODBYE: Duration = Duration::from_secs(10);

/// What the server asked for, started.
enum Started {
    Command(Box<ExecSession>),
    Attached(AttachSession),
    Forwarded(TcpStream),
}

/// Why a command was not started.
#[derive(Debug, thiserror::Error)]
enum ExecError {
    /// No engine runs such a container.
    #[error("container {container:?} of pod {pod:?} does not run on this node now")]
    NotRunning {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// The engine refused it.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The port is not forwarded.
    #[error(transparent)]
    Forward(#[from] forward::ForwardError),
}

/// The commands of one session with the server.
pub struct Execs {
    node: Arc<AgentNode>,
    identity: AgentIdentity,
    server: String,
    room: Arc<Semaphore>,
    tasks: parking_lot::Mutex<JoinSet<()>>,
}

impl Execs {
    /// No commands yet.
    pub fn new(node: Arc<AgentNode>, identity: AgentIdentity, server: &str) -> Execs {
        Execs {
            node,
            identity,
            server: server.to_owned(),
            room: Arc::new(Semaphore::new(COMMANDS_MAX)),
            tasks: parking_lot::Mutex::default(),
        }
    }

    /// Starts a command that the server asked for. The tasks end with this object.
    pub fn open(&self, open: OpenExec) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        // The server bounds them, too: a node gets no more than it takes.
        let Ok(turn) = self.room.clone().try_acquire_owned() else {
            tracing::warn!(
                "{COMMANDS_MAX} commands run in containers of this node; another is refused"
            );
            return;
        };
        let (node, identity, server) = (
            self.node.clone(),
            self.identity.clone(),
            self.server.clone(),
        );
        tasks.spawn(async move {
            let _turn = turn;
            let id = open.stream_id;
            if let Err(error) = carry(&node, &identity, &server, open).await {
                tracing::warn!(id, %error, "a command in a container lost its connection with the server");
            }
        });
    }
}

/// Starts the command, and carries its input and output until it ends.
async fn carry(
    node: &AgentNode,
    identity: &AgentIdentity,
    server: &str,
    open: OpenExec,
) -> Result<(), AgentError> {
    let channel = identity.connect(server).await?;
    let mut client = FleetClient::new(channel)
        .max_decoding_message_size(MAX_AGENT_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_AGENT_MESSAGE_BYTES);
    let (outbound, stream) = mpsc::channel::<ExecFrame>(WAITING);
    let (started, error) = match begin(node, &open).await {
        Ok(started) => (Some(started), String::new()),
        Err(error) => (None, error.to_string()),
    };
    let opened = Body::Opened(ExecOpened {
        stream_id: open.stream_id,
        error,
    });
    // The receiver still exists, so there is room for the first message.
    let _ = outbound.try_send(frame(opened));
    let broken = |status: tonic::Status| AgentError::Connection {
        what: "the command's connection with",
        server: server.to_owned(),
        detail: status.to_string(),
    };
    let inbound = client.exec(ReceiverStream::new(stream)).await;
    let inbound = inbound.map_err(broken)?.into_inner();
    match started {
        // The server ends the call once it has read the error.
        None => outbound.closed().await,
        Some(Started::Command(session)) => run(*session, &open, inbound, outbound).await,
        Some(Started::Attached(session)) => attach::run(session, &open, inbound, outbound).await,
        Some(Started::Forwarded(connection)) => forward::run(connection, inbound, outbound).await,
    }
    Ok(())
}

async fn begin(node: &AgentNode, open: &OpenExec) -> Result<Started, ExecError> {
    if open.forward_port != 0 {
        return Ok(Started::Forwarded(forward::connect(node, open).await?));
    }
    let running = node.engines().into_iter().find_map(|engine| {
        let status = engine.list().into_iter().find(|status| {
            status.pod.uid == open.uid && status.name == open.container && status.is_running()
        })?;
        Some((engine, status.id))
    });
    let Some((engine, id)) = running else {
        return Err(ExecError::NotRunning {
            pod: open.pod.clone(),
            container: open.container.clone(),
        });
    };
    if open.attach {
        return Ok(Started::Attached(engine.attach(&id, open.stdin).await?));
    }
    let command = ExecCommand {
        command: open.command.clone(),
        stdin: open.stdin,
        tty: open.tty,
    };
    let session = engine.exec_session(&id, command)?;
    Ok(Started::Command(Box::new(session)))
}

/// Carries input and output until the command ends or the server ends the call; the command is
/// killed with the session.
async fn run(
    mut session: ExecSession,
    open: &OpenExec,
    inbound: Streaming<ExecFrame>,
    outbound: mpsc::Sender<ExecFrame>,
) {
    let mut outputs = JoinSet::new();
    let wanted = [
        (
            session.output.take(),
            exec_channel::OUTPUT,
            open.stdout || open.tty,
        ),
        (session.errors.take(), exec_channel::ERRORS, open.stderr),
    ];
    for (output, channel, wanted) in wanted {
        if let Some(output) = output {
            let to = wanted.then(|| outbound.clone());
            outputs.spawn(send(output, channel, to));
        }
    }
    let input = take_input(inbound, session.input.take(), session.terminal.clone());
    let mut input = std::pin::pin!(input);
    let mut input_over = false;
    let ended = loop {
        tokio::select! {
            ended = session.wait() => break ended,
            connected = input.as_mut(), if !input_over => {
                if !connected {
                    return;
                }
                input_over = true;
            }
            () = outbound.closed() => return,
        }
    };
    let rest = async { while outputs.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(REST, rest).await;
    outputs.abort_all();
    let exit = match ended {
        Ok(code) => ExecExit {
            code,
            error: String::new(),
        },
        Err(error) => ExecExit {
            code: 0,
            error: error.to_string(),
        },
    };
    say_goodbye(&outbound, exit).await;
}

/// Carries what has no exit code of its own until its output ends or the connection does.
async fn relay(
    output: impl Future<Output = ExecExit>,
    input: impl Future<Output = ()>,
    outbound: mpsc::Sender<ExecFrame>,
) {
    let exit = tokio::select! {
        exit = output => exit,
        () = input => return,
        () = outbound.closed() => return,
    };
    say_goodbye(&outbound, exit).await;
}

async fn say_goodbye(outbound: &mpsc::Sender<ExecFrame>, exit: ExecExit) {
    let last = async {
        if outbound.send(frame(Body::Exit(exit))).await.is_ok() {
            // The server ends the call once it has read this.
            outbound.closed().await;
        }
    };
    let _ = tokio::time::timeout(GOODBYE, last).await;
}

/// Sends an output to its end; an unwanted one is read all the same, so that the command goes on.
async fn send(mut output: ExecOutput, channel: u32, to: Option<mpsc::Sender<ExecFrame>>) {
    let mut buffer = vec![0; EXEC_CHUNK_BYTES];
    while let Ok(read) = output.read(&mut buffer).await {
        if read == 0 {
            return;
        }
        let Some(to) = &to else { continue };
        let data = Body::Data(ExecData {
            channel,
            data: buffer[..read].to_vec(),
        });
        if to.send(frame(data)).await.is_err() {
            return;
        }
    }
}

/// Takes the input and the terminal's sizes; true if the input is over and the command goes on,
/// false if the connection has ended.
async fn take_input(
    mut inbound: Streaming<ExecFrame>,
    mut input: Option<ExecInput>,
    terminal: Option<Arc<Terminal>>,
) -> bool {
    loop {
        match inbound.message().await {
            Ok(Some(ExecFrame { body: Some(body) })) => match body {
                Body::Data(data) => {
                    if let Some(writer) = &mut input
                        && writer.write(&data.data).await.is_err()
                    {
                        // The command reads no more; it may go on without.
                        input = None;
                    }
                }
                Body::InputEnd(_) => input = None,
                Body::Resize(size) => {
                    let bounded = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
                    if let Some(terminal) = &terminal {
                        let _ = terminal.resize(bounded(size.width), bounded(size.height));
                    }
                }
                Body::Opened(_) | Body::Exit(_) => {}
            },
            Ok(Some(ExecFrame { body: None })) => {}
            Ok(None) | Err(_) => return false,
        }
    }
}

fn frame(body: Body) -> ExecFrame {
    ExecFrame { body: Some(body) }
}
