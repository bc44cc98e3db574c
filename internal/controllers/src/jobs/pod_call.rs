//! Calls of programs in pods, through the API's subresource `pods/proxy`.

use std::time::Duration;

use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use kube::Client;
use kube::client::Body;
use serde_json::Value;

/// The most bytes of an answer.
const BYTES_MAX: usize = 4 << 20;
/// The most characters of a refusal that are kept: a traceback of Ray names its cause last.
const REFUSAL_MAX: usize = 20_000;
/// How long Ray's dashboard may take to answer.
pub(crate) const ANSWER: Duration = Duration::from_secs(30);

/// Why a program in a pod gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PodCallError {
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("{0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("it took more than {} s", .0.as_secs())]
    Late(Duration),
    #[error("{text}")]
    Refused {
        /// The status of the answer.
        status: StatusCode,
        /// Whether the API answered, and not the program.
        of_api: bool,
        /// The message of the API, or the program's text.
        text: String,
    },
    #[error("its answer is no JSON: {0}")]
    NoJson(serde_json::Error),
}

/// Calls a program in a pod; an answer other than 200 is an error with its text.
pub(crate) async fn call_pod(
    client: &Client,
    namespace: &str,
    (method, pod, path): (Method, &str, &str),
    body: Vec<u8>,
    patience: Duration,
) -> Result<Vec<u8>, PodCallError> {
    let uri = format!("/api/v1/namespaces/{namespace}/pods/{pod}/proxy/{path}");
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Body::from(body))?;
    let exchange = async {
        let (parts, body) = client.send(request).await?.into_parts();
        let read = Limited::new(body, BYTES_MAX).collect().await;
        let read = read.map_err(PodCallError::Body)?;
        Ok::<_, PodCallError>((parts.status, read.to_bytes().to_vec()))
    };
    let answered = tokio::time::timeout(patience, exchange).await;
    let (status, bytes) = answered.map_err(|_| PodCallError::Late(patience))??;
    match status {
        StatusCode::OK => Ok(bytes),
        status => Err(refusal(status, &bytes)),
    }
}

/// What an answer says that is none: the message of a Status of the API, or the program's text.
fn refusal(status: StatusCode, bytes: &[u8]) -> PodCallError {
    let parsed: Option<Value> = serde_json::from_slice(bytes).ok();
    let of_api = parsed.filter(|answer| answer["kind"] == "Status");
    let message = of_api
        .as_ref()
        .and_then(|answer| answer["message"].as_str());
    let text = String::from_utf8_lossy(bytes);
    let text = message.unwrap_or(text.trim());
    let text: String = text.chars().take(REFUSAL_MAX).collect();
    PodCallError::Refused {
        status,
        of_api: of_api.is_some(),
        text: match text.is_empty() {
            true => status.to_string(),
            false => text,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_the_apis_message_or_the_programs_text() {
        let read = |bytes: &[u8]| match refusal(StatusCode::BAD_REQUEST, bytes) {
            PodCallError::Refused { of_api, text, .. } => (of_api, text),
            other => panic!("{other:?}"),
        };
        let of_api = br#"{"kind": "Status", "message": "no process listens"}"#;
        assert_eq!(read(of_api), (true, "no process listens".to_owned()));
        let of_ray = b" Traceback\nValueError \n";
        assert_eq!(read(of_ray), (false, "Traceback\nValueError".to_owned()));
        assert_eq!(read(b""), (false, "400 Bad Request".to_owned()));
        let (_, text) = read("x".repeat(3 * REFUSAL_MAX).as_bytes());
        assert_eq!(text.len(), REFUSAL_MAX);
    }
}
