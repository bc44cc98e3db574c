//! Queries a container for probes and hooks: commands, HTTP requests and connections.

use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Container, ExecAction, HTTPGetAction, LifecycleHandler, Probe, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use runtime::{ContainerId, ExecOutcome};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::engine::{ContainerEngine, EngineError};
use crate::trust::{self, TlsError};

/// The most that is read of a response, in bytes; only its first line matters.
const MAX_ANSWER: usize = 1024;

/// The most of a command's output that a message shows, in bytes.
const MAX_OUTPUT: usize = 1024;

/// Why a probe or hook failed.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The runtime can't run the command.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The command ended with another code than 0.
    #[error("exit code {code}: {output}")]
    Exit {
        /// The exit code.
        code: i32,
        /// The start of its output.
        output: String,
    },
    /// The command did not end in time.
    #[error("the command did not end within {0} s")]
    CommandTimeout(u64),
    /// The container did not answer a probe in time.
    #[error("no answer within {0} s")]
    NoAnswer(u64),
    /// A hook did not end in time.
    #[error("not done within {0} s")]
    HookTimeout(u64),
    /// The probe names no action.
    #[error("the probe has no handler; write exec, httpGet, tcpSocket or grpc")]
    NoHandler,
    /// A number that is no port.
    #[error("{0} is not a port; write a number from 1 to 65535")]
    Port(i32),
    /// A port's name that the container lacks.
    #[error("container {container:?} has no port named {name:?}")]
    NoPort {
        /// The container.
        container: String,
        /// The port's name.
        name: String,
    },
    /// The connection failed.
    #[error("dial tcp {host}:{port}: {source}")]
    Connect {
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// TLS failed.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A path or header that would become another request.
    #[error("the probe's path or headers have spaces or line breaks; leave them out")]
    Request,
    /// The exchange failed.
    #[error("HTTP request failed: {0}")]
    Http(#[source] std::io::Error),
    /// The server speaks another protocol.
    #[error("the answer is not HTTP/1")]
    NotHttp,
    /// The server answered with another status than 200 to 399.
    #[error("HTTP probe failed with statuscode: {0}")]
    Status(u16),
}

/// The container to query.
pub struct CheckedContainer<'a> {
    /// The runtime that runs it.
    pub engine: &'a dyn ContainerEngine,
    /// The run.
    pub id: &'a ContainerId,
    /// The container.
    pub container: &'a Container,
    /// The pod's address.
    pub ip: &'a str,
}

impl CheckedContainer<'_> {
    /// One try of a probe.
    pub async fn probe(&self, probe: &Probe, timeout: Duration) -> Result<(), CheckError> {
        if let Some(exec) = &probe.exec {
            return self.exec(exec, timeout).await;
        }
        let limited = async {
            if let Some(http) = &probe.http_get {
                self.http(http).await
            } else if let Some(tcp) = &probe.tcp_socket {
                self.tcp(tcp).await
            } else if let Some(grpc) = &probe.grpc {
                // Of a gRPC server, only the connection is checked here.
                let port = u16::try_from(grpc.port).map_err(|_| CheckError::Port(grpc.port))?;
                connect(self.ip, port).await.map(drop)
            } else {
                Err(CheckError::NoHandler)
            }
        };
        tokio::time::timeout(timeout, limited)
            .await
            .unwrap_or_else(|_| Err(CheckError::NoAnswer(timeout.as_secs())))
    }

    /// Runs a hook.
    pub async fn hook(&self, hook: &LifecycleHandler, timeout: Duration) -> Result<(), CheckError> {
        if let Some(exec) = &hook.exec {
            return self.exec(exec, timeout).await;
        }
        let limited = async {
            if let Some(sleep) = &hook.sleep {
                let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                Ok(())
            } else if let Some(http) = &hook.http_get {
                self.http(http).await
            } else if let Some(tcp) = &hook.tcp_socket {
                self.tcp(tcp).await
            } else {
                Ok(())
            }
        };
        tokio::time::timeout(timeout, limited)
            .await
            .unwrap_or_else(|_| Err(CheckError::HookTimeout(timeout.as_secs())))
    }

    async fn exec(&self, action: &ExecAction, timeout: Duration) -> Result<(), CheckError> {
        let command = action.command.clone().unwrap_or_default();
        match self.engine.exec(self.id, command, timeout).await? {
            ExecOutcome::Exited { code: 0, .. } => Ok(()),
            ExecOutcome::Exited { code, output } => {
                let shown = String::from_utf8_lossy(&output[..output.len().min(MAX_OUTPUT)]);
                let output = shown.trim().to_owned();
                Err(CheckError::Exit { code, output })
            }
            ExecOutcome::TimedOut => Err(CheckError::CommandTimeout(timeout.as_secs())),
        }
    }

    async fn tcp(&self, action: &TCPSocketAction) -> Result<(), CheckError> {
        let host = action.host.as_deref().unwrap_or(self.ip);
        connect(host, port(&action.port, self.container)?)
            .await
            .map(drop)
    }

    async fn http(&self, action: &HTTPGetAction) -> Result<(), CheckError> {
        let host = action.host.as_deref().unwrap_or(self.ip);
        let port = port(&action.port, self.container)?;
        let request = http_request(action, host, port)?;
        let stream = connect(host, port).await?;
        let status = if action.scheme.as_deref() == Some("HTTPS") {
            let stream = trust::unverified(stream, host).await?;
            ask(stream, &request).await?
        } else {
            ask(stream, &request).await?
        };
        if (200..400).contains(&status) {
            Ok(())
        } else {
            Err(CheckError::Status(status))
        }
    }
}

async fn connect(host: &str, port: u16) -> Result<TcpStream, CheckError> {
    let connected = TcpStream::connect((host, port)).await;
    connected.map_err(|source| CheckError::Connect {
        host: host.to_owned(),
        port,
        source,
    })
}

/// A port by its number, or by its name among the container's ports.
fn port(port: &IntOrString, container: &Container) -> Result<u16, CheckError> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => name.parse().ok().or_else(|| {
            let named = container.ports.iter().flatten();
            let mut named = named.filter(|port| port.name.as_deref() == Some(name));
            named.next().map(|port| port.container_port)
        }),
    };
    number
        .and_then(|number| u16::try_from(number).ok())
        .filter(|number| *number > 0)
        .ok_or_else(|| match port {
            IntOrString::Int(number) => CheckError::Port(*number),
            IntOrString::String(name) => CheckError::NoPort {
                container: container.name.clone(),
                name: name.clone(),
            },
        })
}

fn http_request(action: &HTTPGetAction, host: &str, port: u16) -> Result<String, CheckError> {
    let path = action
        .path
        .as_deref()
        .filter(|path| !path.is_empty())
        .unwrap_or("/");
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut request = format!("GET {slash}{path} HTTP/1.1\r\n");
    let mut headers = vec![
        ("Host".to_owned(), format!("{host}:{port}")),
        ("User-Agent".to_owned(), "muster-probe".to_owned()),
        ("Accept".to_owned(), "*/*".to_owned()),
        ("Connection".to_owned(), "close".to_owned()),
    ];
    for header in action.http_headers.iter().flatten() {
        headers.retain(|(name, _)| !name.eq_ignore_ascii_case(&header.name));
        headers.push((header.name.clone(), header.value.clone()));
    }
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    let lines = request.matches(['\r', '\n']).count();
    let meant = 2 * (request.matches("\r\n").count());
    if lines != meant || path.contains([' ', '\r', '\n']) {
        return Err(CheckError::Request);
    }
    request.push_str("\r\n");
    Ok(request)
}

/// Sends a request; returns the status code.
async fn ask(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &str,
) -> Result<u16, CheckError> {
    let failed = CheckError::Http;
    stream.write_all(request.as_bytes()).await.map_err(failed)?;
    stream.flush().await.map_err(failed)?;
    let mut answer = Vec::new();
    let mut buffer = [0; 256];
    while answer.len() < MAX_ANSWER && !answer.contains(&b'\n') {
        let read = stream.read(&mut buffer).await.map_err(failed)?;
        if read == 0 {
            break;
        }
        answer.extend_from_slice(&buffer[..read]);
    }
    status_code(&answer).ok_or(CheckError::NotHttp)
}

fn status_code(answer: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(answer.split(|byte| *byte == b'\n').next()?).ok()?;
    let mut words = text.split_ascii_whitespace();
    words
        .next()
        .filter(|version| version.starts_with("HTTP/1."))?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ports_are_found_by_number_and_by_name() {
        let container: Container = serde_json::from_value(json!({
            "name": "main", "ports": [{"name": "web", "containerPort": 8080}]}))
        .unwrap();
        let name = |name: &str| port(&IntOrString::String(name.to_owned()), &container);
        assert_eq!(name("web").unwrap(), 8080);
        assert_eq!(name("81").unwrap(), 81);
        assert!(name("none").is_err());
        assert_eq!(port(&IntOrString::Int(80), &container).unwrap(), 80);
        assert!(port(&IntOrString::Int(0), &container).is_err());
        assert!(port(&IntOrString::Int(70_000), &container).is_err());
    }

    #[test]
    fn a_request_has_the_headers_asked_for_and_no_others_can_be_smuggled_in() {
        let action =
            |value: serde_json::Value| -> HTTPGetAction { serde_json::from_value(value).unwrap() };
        let request = http_request(
            &action(
                json!({"port": 1, "path": "ok", "httpHeaders": [{"name": "host", "value": "x"}]}),
            ),
            "h",
            1,
        )
        .unwrap();
        assert!(request.starts_with("GET /ok HTTP/1.1\r\n"));
        assert!(request.contains("host: x\r\n") && !request.contains("Host: h"));
        for bad in [
            json!({"port": 1, "path": "/ HTTP/1.1\r\nX: y"}),
            json!({"port": 1, "httpHeaders": [{"name": "a", "value": "b\nc: d"}]}),
        ] {
            assert!(http_request(&action(bad), "h", 1).is_err());
        }
    }

    #[test]
    fn the_status_code_is_read_from_the_first_line() {
        assert_eq!(status_code(b"HTTP/1.1 204 No Content\r\nX: y"), Some(204));
        assert_eq!(status_code(b"HTTP/1.0 500"), Some(500));
        assert_eq!(status_code(b"SSH-2.0-x\r\n"), None);
        assert_eq!(status_code(b""), None);
    }

    #[tokio::test]
    async fn a_server_on_loopback_answers_a_probe() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = [0; 512];
            let read = stream.read(&mut buffer).await.unwrap();
            assert!(buffer[..read].starts_with(b"GET /healthz HTTP/1.1\r\n"));
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        });
        let stream = connect("127.0.0.1", address.port()).await.unwrap();
        let action: HTTPGetAction =
            serde_json::from_value(json!({"port": address.port(), "path": "/healthz"})).unwrap();
        let request = http_request(&action, "127.0.0.1", address.port()).unwrap();
        assert_eq!(ask(stream, &request).await.unwrap(), 200);
        server.await.unwrap();
    }
}
