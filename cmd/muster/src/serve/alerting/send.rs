//! Sends one delivery to its receiver: one POST, without redirects.

use std::path::{Path, PathBuf};
use std::time::Duration;

use alerting::{DueDelivery, ReceiverKind, Secret};
use anyhow::Context;
use axum::body::Bytes;
use axum::http::{Method, Request, StatusCode, Uri, header};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use jiff::Timestamp;
use ring::hmac;

/// How long a receiver may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// The most bytes of an answer that are read.
const ANSWER_MAX: usize = 64 * 1024;
/// The most characters of an answer that are remembered.
const WORDS_MAX: usize = 200;
/// The least bytes of a key.
const KEY_LEAST: usize = 16;
/// What Standard Webhooks writes before the key, and before the signature.
const KEY_PREFIX: &str = "whsec_";
const SIGNATURE_PREFIX: &str = "v1,";

/// Why a receiver was not notified.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// A file that the receiver names is unusable.
    #[error("{field} = {}: {problem}", path.display())]
    File {
        /// The field that names it.
        field: &'static str,
        /// The file.
        path: PathBuf,
        /// The problem and the valid form.
        problem: String,
    },
    /// The URL in the file is none.
    #[error("the URL is not valid: {0}")]
    Url(String),
    /// It cannot be reached.
    #[error("the receiver cannot be reached: {0}")]
    Unreachable(String),
    /// It did not answer in time.
    #[error("the receiver did not answer within {} s", PATIENCE.as_secs())]
    Late,
    /// It answered with an error.
    #[error("the receiver answered {status}{words}")]
    Refused {
        /// The status.
        status: StatusCode,
        /// The beginning of its text, after a colon.
        words: String,
    },
    /// The machine has no CA certificates.
    #[error("this machine has no CA certificates; install ca-certificates and restart the server")]
    NoAuthorities,
}

/// The HTTP client.
pub struct Sender(Option<Client<HttpsConnector<HttpConnector>, Full<Bytes>>>);

impl Sender {
    /// A client that verifies servers by this machine's CA certificates, which must exist if it is needed.
    ///
    /// # Errors
    /// It is needed, and there are none.
    pub fn new(needed: bool) -> anyhow::Result<Sender> {
        if !needed {
            return Ok(Sender(None));
        }
        let builder = HttpsConnectorBuilder::new().with_native_roots().context(
            "--alert-receivers: this machine has no CA certificates that verify the receivers' servers; install \
             ca-certificates",
        )?;
        let connector = builder.https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Sender(Some(client)))
    }

    /// Sends a delivery. Files are read at each attempt, so that a changed one needs no restart.
    ///
    /// # Errors
    /// The receiver did not take it.
    pub async fn send(&self, due: &DueDelivery) -> Result<(), SendError> {
        let client = self.0.as_ref().ok_or(SendError::NoAuthorities)?;
        let request = request(due, Timestamp::now())?;
        let answered = async {
            let answer = client.request(request).await;
            let answer = answer.map_err(|error| {
                SendError::Unreachable(format!("{:#}", anyhow::Error::from(error)))
            })?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
            if status.is_success() {
                return Ok(());
            }
            let body = body.map(|body| body.to_bytes()).unwrap_or_default();
            let words = words(&String::from_utf8_lossy(&body));
            Err(SendError::Refused { status, words })
        };
        let answered = tokio::time::timeout(PATIENCE, answered).await;
        answered.map_err(|_| SendError::Late)?
    }
}

/// The beginning of an answer, without control characters.
fn words(text: &str) -> String {
    let text: String = text.trim().chars().take(WORDS_MAX).collect();
    let text = text.replace(|c: char| c.is_control(), " ");
    if text.is_empty() {
        return text;
    }
    format!(": {text}")
}

fn request(due: &DueDelivery, now: Timestamp) -> Result<Request<Full<Bytes>>, SendError> {
    let receiver = &due.receiver;
    let mut url = match &receiver.url {
        Secret::Value(url) => url.clone(),
        Secret::File(path) => first_line("url-file", path)?,
    };
    if receiver.kind == ReceiverKind::Alertmanager {
        url = format!("{}/api/v2/alerts", url.trim_end_matches('/'));
    }
    // The URL may be a secret: an error does not repeat it.
    let uri: Uri = url
        .parse()
        .map_err(|error: axum::http::uri::InvalidUri| SendError::Url(error.to_string()))?;
    let body = due.body.to_string();
    let mut builder = Request::builder()
        .method(Method::POST)
        .uri(uri)
        .header(header::CONTENT_TYPE, "application/json")
        .header(
            header::USER_AGENT,
            concat!("muster/", env!("CARGO_PKG_VERSION")),
        );
    if let Some(path) = &receiver.token {
        let token = first_line("token-file", path)?;
        builder = builder.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    if receiver.kind == ReceiverKind::Webhook {
        let second = now.as_second();
        builder = builder
            .header("webhook-id", &due.id)
            .header("webhook-timestamp", second);
        if let Some(path) = &receiver.key {
            let key = key(path)?;
            let signature = signature(&key, &due.id, second, &body);
            builder = builder.header("webhook-signature", signature);
        }
    }
    let request = builder.body(Full::new(Bytes::from(body)));
    request.map_err(|error| SendError::Url(error.to_string()))
}

fn first_line(field: &'static str, path: &Path) -> Result<String, SendError> {
    let problem = |problem: String| SendError::File {
        field,
        path: path.to_owned(),
        problem,
    };
    let text = std::fs::read_to_string(path).map_err(|error| {
        problem(format!(
            "{error}; name a file that the server's user may read"
        ))
    })?;
    let line = text.lines().next().unwrap_or_default().trim().to_owned();
    if line.is_empty() {
        return Err(problem("its first line is empty".to_owned()));
    }
    Ok(line)
}

/// The key of a file: base64 after `whsec_`, else the text.
fn key(path: &Path) -> Result<Vec<u8>, SendError> {
    let problem = |problem: &str| SendError::File {
        field: "key-file",
        path: path.to_owned(),
        problem: problem.to_owned(),
    };
    let line = first_line("key-file", path)?;
    let key = match line.strip_prefix(KEY_PREFIX) {
        Some(encoded) => STANDARD
            .decode(encoded)
            .map_err(|_| problem("the text after whsec_ is not base64"))?,
        None => line.into_bytes(),
    };
    if key.len() < KEY_LEAST {
        return Err(problem("a key has at least 16 bytes"));
    }
    Ok(key)
}

/// The signature of Standard Webhooks 1.0: HMAC-SHA256 over id, time and body.
fn signature(key: &[u8], id: &str, second: i64, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let tag = hmac::sign(&key, format!("{id}.{second}.{body}").as_bytes());
    format!("{SIGNATURE_PREFIX}{}", STANDARD.encode(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example in the specification of Standard Webhooks.
    #[test]
    fn a_signature_is_that_of_the_specification() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("key");
        std::fs::write(&file, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
        let key = key(&file).unwrap();
        let body = r#"{"test": 2432232314}"#;
        assert_eq!(
            signature(&key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }

    #[test]
    fn a_bad_key_is_refused_with_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("key");
        for (text, words) in [
            ("whsec_%%", "is not base64"),
            ("short", "at least 16 bytes"),
            ("", "its first line is empty"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = key(&file).unwrap_err().to_string();
            assert!(
                error.starts_with("key-file = ") && error.ends_with(words),
                "{error}"
            );
        }
        assert!(
            key(&directory.path().join("none"))
                .unwrap_err()
                .to_string()
                .contains("No such file")
        );
    }

    #[test]
    fn an_answer_is_cut_and_has_no_control_characters() {
        assert_eq!(words("  \n"), "");
        assert_eq!(words("no\x1b[31m such hook\n"), ": no [31m such hook");
        assert_eq!(words(&"x".repeat(1000)).len(), 2 + WORDS_MAX);
    }
}
