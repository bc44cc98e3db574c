//! Questions to the host's resolvers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::message::Transport;

/// The port of DNS.
pub(crate) const PORT: u16 = 53;
/// How long one resolver may take; the next one is asked then.
const PATIENCE: Duration = Duration::from_secs(2);
/// The largest message that is read, in bytes.
pub(crate) const MESSAGE_MAX: usize = 65_535;

/// Asks one resolver after the other; none if none of them answers.
pub(crate) async fn ask(
    resolvers: &[IpAddr],
    question: &[u8],
    transport: Transport,
) -> Option<Vec<u8>> {
    for resolver in resolvers {
        let to = SocketAddr::new(*resolver, PORT);
        let asked = async {
            match transport {
                Transport::Udp => by_datagram(to, question).await,
                Transport::Tcp => by_connection(to, question).await,
            }
        };
        match timeout(PATIENCE, asked).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => tracing::debug!(%resolver, %error, "a resolver of the host fails"),
            Err(_) => tracing::debug!(%resolver, "a resolver of the host does not answer"),
        }
    }
    None
}

async fn by_datagram(to: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    // Its own port for each question, which only that resolver can answer to.
    let any: IpAddr = match to.is_ipv4() {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(to).await?;
    socket.send(question).await?;
    let mut answer = vec![0; MESSAGE_MAX];
    loop {
        let length = socket.recv(&mut answer).await?;
        if answer.get(..2) == question.get(..2) && length > 2 {
            answer.truncate(length);
            return Ok(answer);
        }
    }
}

async fn by_connection(to: SocketAddr, question: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(to).await?;
    write(&mut stream, question).await?;
    read(&mut stream).await
}

/// Writes a message with its length before it.
pub(crate) async fn write(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut framed = length.to_be_bytes().to_vec();
    framed.extend_from_slice(message);
    stream.write_all(&framed).await
}

/// Reads a message.
pub(crate) async fn read(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut message = vec![0; usize::from(length)];
    stream.read_exact(&mut message).await?;
    Ok(message)
}
