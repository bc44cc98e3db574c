//! `muster exec`: a command in a running container of a pod, or of one rank of a job, with input, output and terminal
//! of this process.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::{SinkExt as _, StreamExt as _};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::{Bytes, Message};

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::terminal::{RawTerminal, size};
use super::{failure, ranks, socket};
use crate::arguments::Exec;

/// The subprotocol: its client can end the input alone.
const PROTOCOL: &str = "v5.channel.k8s.io";
/// Bytes of input in one message.
const CHUNK_BYTES: usize = 32 * 1024;
/// Pieces of input that wait for the connection.
const WAITING: usize = 4;
/// How often the connection shows that this client is there.
const ALIVE: Duration = Duration::from_secs(30);

const INPUT: u8 = 0;
const OUTPUT: u8 = 1;
const ERRORS: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// Runs the command; ends with its exit status.
pub async fn exec(connection: &ServerConnection, arguments: Exec) -> Result<CommandOutcome> {
    if arguments.tty && !(arguments.stdin && std::io::stdin().is_terminal()) {
        return Err(failure::usage(
            "--tty needs --stdin, and a terminal as the standard input; leave --tty out",
        ));
    }
    let pod = ranks::pod_named(connection, &arguments.name, arguments.rank).await?;
    let remote = RemoteCommand {
        pod: &pod,
        container: arguments.container.as_deref(),
        command: &arguments.command,
        stdin: arguments.stdin,
        tty: arguments.tty,
    };
    run_in(connection, &remote).await
}

/// A command to run in a pod.
pub struct RemoteCommand<'a> {
    /// The pod.
    pub pod: &'a str,
    /// The container; the server's choice if absent.
    pub container: Option<&'a str>,
    /// The command with its arguments.
    pub command: &'a [String],
    /// Whether the command reads this process's input.
    pub stdin: bool,
    /// Whether it gets a terminal.
    pub tty: bool,
}

/// Runs a command in a pod with output, and if asked input and terminal, of this process; ends with its exit status.
pub async fn run_in(
    connection: &ServerConnection,
    remote: &RemoteCommand<'_>,
) -> Result<CommandOutcome> {
    let on = |wanted: bool| if wanted { "true" } else { "false" };
    let mut parameters = vec![
        ("stdin", on(remote.stdin)),
        ("stdout", "true"),
        ("stderr", on(!remote.tty)),
        ("tty", on(remote.tty)),
    ];
    parameters.extend(remote.container.map(|name| ("container", name)));
    let words = remote.command.iter();
    parameters.extend(words.map(|word| ("command", word.as_str())));
    let socket = socket::open(connection, remote.pod, "exec", &parameters, PROTOCOL).await?;
    // From here on the terminal's own lines would run into each other.
    let raw = match remote.tty {
        true => Some(RawTerminal::set().context("the terminal cannot be set")?),
        false => None,
    };
    let code = talk(socket, remote.stdin, remote.tty).await;
    drop(raw);
    Ok(match code? {
        0 => CommandOutcome::Yes,
        code => CommandOutcome::Ended(u8::try_from(code).unwrap_or(1)),
    })
}

async fn talk(socket: socket::Socket, stdin: bool, tty: bool) -> Result<i32> {
    let (mut to_server, mut from_server) = socket.split();
    let mut input = stdin.then(read_input);
    let mut resized = signal(SignalKind::window_change())?;
    let mut alive = tokio::time::interval(ALIVE);
    if tty && let Some(size) = size() {
        to_server.send(resize(size)).await?;
    }
    loop {
        tokio::select! {
            message = from_server.next() => match message {
                Some(Ok(Message::Binary(message))) => {
                    if let Some(status) = print(&message)? {
                        return socket::exit_code(&status);
                    }
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => {
                    bail!("the connection ended before the command did");
                }
                Some(Ok(_)) => {}
            },
            piece = next(&mut input) => {
                let message = match piece {
                    Some(piece) => on(INPUT, &piece),
                    None => {
                        input = None;
                        on(CLOSE, &[INPUT])
                    }
                };
                to_server.send(message).await?;
            }
            Some(()) = resized.recv(), if tty => {
                if let Some(size) = size() {
                    to_server.send(resize(size)).await?;
                }
            }
            _ = alive.tick() => to_server.send(Message::Ping(Bytes::new())).await?,
        }
    }
}

/// The next piece of the input; never, if there is none to read.
async fn next(input: &mut Option<mpsc::Receiver<Vec<u8>>>) -> Option<Vec<u8>> {
    match input {
        Some(input) => input.recv().await,
        None => std::future::pending().await,
    }
}

/// Reads the standard input in a thread that does not keep the process from ending.
fn read_input() -> mpsc::Receiver<Vec<u8>> {
    let (sender, pieces) = mpsc::channel(WAITING);
    std::thread::spawn(move || {
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Ok(read) = std::io::stdin().read(&mut buffer) {
            if read == 0 || sender.blocking_send(buffer[..read].to_vec()).is_err() {
                return;
            }
        }
    });
    pieces
}

/// Prints an output; the status, if that is what the message has.
fn print(message: &[u8]) -> Result<Option<Vec<u8>>> {
    let Some((channel, data)) = message.split_first() else {
        return Ok(None);
    };
    match *channel {
        OUTPUT => {
            let mut out = std::io::stdout().lock();
            out.write_all(data)?;
            out.flush()?;
        }
        ERRORS => std::io::stderr().lock().write_all(data)?,
        STATUS => return Ok(Some(data.to_vec())),
        _ => {}
    }
    Ok(None)
}

fn resize((width, height): (u16, u16)) -> Message {
    let size = json!({"Width": width, "Height": height}).to_string();
    on(RESIZE, size.as_bytes())
}

fn on(channel: u8, data: &[u8]) -> Message {
    Message::Binary([&[channel], data].concat().into())
}
