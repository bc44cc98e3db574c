//! WebSockets with running pods, by the subprotocols of Kubernetes' remote commands: how one is opened, and the end
//! that a command reports.

use anyhow::{Context, Result, bail};
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::connection::ServerConnection;

/// The most bytes of a refusal that are read.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

/// An open WebSocket.
pub type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

/// Opens the subresource of a pod with these parameters, by this subprotocol.
///
/// # Errors
/// If the server refuses it, or answers something else than a WebSocket.
pub async fn open(
    connection: &ServerConnection,
    pod: &str,
    subresource: &str,
    parameters: &[(&str, &str)],
    protocol: &'static str,
) -> Result<Socket> {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let query: Vec<String> = parameters
        .iter()
        .map(|(name, value)| format!("{name}={}", encoded(value)))
        .collect();
    let path = format!(
        "/api/v1/namespaces/{}/pods/{}/{subresource}?{}",
        encoded(&connection.namespace),
        encoded(pod),
        query.join("&")
    );
    let key = generate_key();
    let mut request = Request::get(path).body(Body::empty())?;
    let headers = request.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(
        header::SEC_WEBSOCKET_VERSION,
        HeaderValue::from_static("13"),
    );
    headers.insert(header::SEC_WEBSOCKET_KEY, HeaderValue::from_str(&key)?);
    headers.insert(
        header::SEC_WEBSOCKET_PROTOCOL,
        HeaderValue::from_static(protocol),
    );
    let response = connection.client.send(request).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refusal(response).await?.into());
    }
    let answer =
        |headers: &HeaderMap, name| headers.get(name).map(|value| value.as_bytes().to_vec());
    let accepted = answer(response.headers(), header::SEC_WEBSOCKET_ACCEPT);
    let chosen = answer(response.headers(), header::SEC_WEBSOCKET_PROTOCOL);
    if accepted.as_deref() != Some(derive_accept_key(key.as_bytes()).as_bytes())
        || chosen.as_deref() != Some(protocol.as_bytes())
    {
        bail!(
            "the server answered the request for a WebSocket with something else; is it Muster's?"
        );
    }
    let upgraded = hyper::upgrade::on(response).await;
    let upgraded = upgraded.context("the connection did not become a WebSocket")?;
    Ok(WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, None).await)
}

/// The server's refusal, as every other command gets it.
async fn refusal(response: http::Response<Body>) -> Result<kube::Error> {
    use futures::TryStreamExt as _;
    let code = response.status().as_u16();
    let mut pieces = std::pin::pin!(http_body_util::BodyDataStream::new(response.into_body()));
    let mut text = Vec::new();
    while let Some(piece) = pieces
        .try_next()
        .await
        .context("the refusal cannot be read")?
    {
        text.extend_from_slice(&piece);
        if text.len() > REFUSAL_BYTES_MAX {
            break;
        }
    }
    match serde_json::from_slice(&text) {
        Ok(status) => Ok(kube::Error::Api(Box::new(status))),
        Err(_) => bail!(
            "the server answered {code}: {}",
            String::from_utf8_lossy(&text)
        ),
    }
}

/// The end of a command that the server reports: its exit code, or why that is not known.
pub fn exit_code(status: &[u8]) -> Result<i32> {
    let status: Value = serde_json::from_slice(status).context("the command's end is no status")?;
    if status["status"] == "Success" {
        return Ok(0);
    }
    let causes = status["details"]["causes"].as_array().into_iter().flatten();
    let code = causes
        .filter(|cause| cause["reason"] == "ExitCode")
        .find_map(|cause| cause["message"].as_str()?.parse().ok());
    match code {
        Some(code) => Ok(code),
        None => bail!(
            "{}",
            status["message"].as_str().unwrap_or("the command failed")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commands_end_is_its_exit_code_or_a_reason() {
        let code = |text: &str| exit_code(text.as_bytes()).map_err(|error| error.to_string());
        assert_eq!(code(r#"{"status": "Success"}"#), Ok(0));
        let ended = r#"{"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "7"}]}}"#;
        assert_eq!(code(ended), Ok(7));
        let lost = r#"{"status": "Failure", "message": "the node is gone"}"#;
        assert_eq!(code(lost), Err("the node is gone".into()));
        assert!(code("nonsense").is_err());
    }
}
