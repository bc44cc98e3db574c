//! `muster port-forward`: ports of this machine that lead to ports of a running pod, or of one rank of a job. Each
//! connection has a WebSocket of its own.

use anyhow::{Context as _, Result};
use futures::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::output::ProgressReporter;
use super::{failure, ranks, socket};
use crate::arguments::PortForward;

/// The subprotocol: one channel for data and one for the reason of an end.
const PROTOCOL: &str = "v4.channel.k8s.io";
/// Bytes in one message.
const CHUNK_BYTES: usize = 32 * 1024;

const DATA: u8 = 0;
const ERROR: u8 = 1;

/// Forwards until this process is ended.
pub async fn port_forward(
    connection: &ServerConnection,
    arguments: PortForward,
) -> Result<CommandOutcome> {
    let pairs = arguments.ports.iter().map(|text| pair(text));
    let pairs: Vec<(u16, u16)> = pairs.collect::<Result<_>>()?;
    let pod = ranks::pod_named(connection, &arguments.name, arguments.rank).await?;
    let mut listening = Vec::new();
    for (local, remote) in pairs {
        let listener = listen(&format!("{}:{local}", arguments.address)).await?;
        println!("Forwarding from {} -> {remote}", listener.local_addr()?);
        listening.push(serve(connection, &pod, listener, remote));
    }
    futures::future::try_join_all(listening).await?;
    Ok(CommandOutcome::Yes)
}

/// A listening socket of this machine.
///
/// # Errors
/// The address is no address of this machine, or is in use.
pub async fn listen(address: &str) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| format!("cannot listen on {address}; name another port"))
}

/// `LOCAL:REMOTE`, `:REMOTE` with a free local port, or one number for both.
fn pair(text: &str) -> Result<(u16, u16)> {
    let (local, remote) = text.split_once(':').unwrap_or((text, text));
    let local = if local.is_empty() {
        Some(0)
    } else {
        local.parse().ok()
    };
    let remote = remote.parse().ok().filter(|port| *port != 0);
    local.zip(remote).ok_or_else(|| {
        failure::usage(format!(
            "port {text:?} must be LOCAL:REMOTE, :REMOTE or REMOTE, with numbers up to 65535"
        ))
    })
}

/// Leads the connections of a listening socket to a port of a pod, until this process is ended.
///
/// # Errors
/// No more connections can be accepted.
pub async fn serve(
    connection: &ServerConnection,
    pod: &str,
    listener: TcpListener,
    remote: u16,
) -> Result<()> {
    let mut open = futures::stream::FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted.context("no more connections can be accepted")?;
                open.push(carry(connection, pod, stream, remote));
            }
            Some(ended) = open.next(), if !open.is_empty() => {
                if let Err(error) = ended {
                    ProgressReporter::default().say(&format!("a connection to port {remote}: {error:#}"));
                }
            }
        }
    }
}

async fn carry(
    connection: &ServerConnection,
    pod: &str,
    stream: TcpStream,
    remote: u16,
) -> Result<()> {
    let port = remote.to_string();
    let parameters = [("ports", port.as_str())];
    let socket = socket::open(connection, pod, "portforward", &parameters, PROTOCOL).await?;
    let (mut to_server, mut from_server) = socket.split();
    let (mut from_client, mut to_client) = stream.into_split();
    let upwards = async {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let read = from_client.read(&mut buffer).await.unwrap_or(0);
            if read == 0 {
                // The protocol has no end of one direction: the rest of the answer still comes.
                return std::future::pending::<Result<()>>().await;
            }
            let message = [&[DATA], &buffer[..read]].concat();
            to_server.send(Message::Binary(message.into())).await?;
        }
    };
    let downwards = async {
        // The first message on each channel names its port.
        let mut begun = [false; 2];
        while let Some(Ok(message)) = from_server.next().await {
            let Message::Binary(message) = message else {
                continue;
            };
            match message.split_first() {
                Some((channel @ (&DATA | &ERROR), _)) if !begun[usize::from(*channel)] => {
                    begun[usize::from(*channel)] = true;
                }
                Some((&DATA, data)) => to_client.write_all(data).await?,
                Some((&ERROR, why)) => anyhow::bail!("{}", String::from_utf8_lossy(why)),
                _ => {}
            }
        }
        let _ = to_client.shutdown().await;
        Ok(())
    };
    tokio::select! {
        ended = upwards => ended,
        ended = downwards => ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_pairs_or_one_number() {
        let read = |text: &str| pair(text).ok();
        assert_eq!(read("8080:80"), Some((8080, 80)));
        assert_eq!(read(":80"), Some((0, 80)));
        assert_eq!(read("80"), Some((80, 80)));
        for wrong in ["", ":", "80:", "x:80", "80:70000", "80:0", "1:2:3"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
