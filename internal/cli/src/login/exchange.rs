//! The requests of the device authorization grant (RFC 8628) to the server, and the wait for the person's decision.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use serde_json::Value;

use super::unreachable;
use crate::connection;
use crate::exit::ExitCause;
use crate::failure;
use crate::platform::escape;

const AUTHORIZATION: &str = "/oauth2/device_authorization";
const TOKEN: &str = "/oauth2/token";
const CLIENT: &str = "muster-cli";
const GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";

/// The most bytes of an answer.
const ANSWER_MAX: usize = 64 * 1024;

/// How much longer this client waits after each `slow_down` (RFC 8628, section 3.5).
const SLOWER: Duration = Duration::from_secs(5);

/// The longest wait between two questions.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is asked for.
pub struct Asked {
    /// This client's name.
    pub client: String,
    /// The only user that may approve.
    pub user: Option<String>,
    /// The lifetime of the token.
    pub lifetime: Duration,
}

/// The codes of a sign-in.
#[derive(Debug, PartialEq, Eq)]
pub struct Codes {
    device_code: String,
    /// The code for the person.
    pub user_code: String,
    /// How long both are valid.
    pub expires_in: Duration,
    interval: Duration,
}

/// The server's answer to the question whether the person has approved.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Token(String),
    /// Ask again.
    Later,
    /// Ask again, and less often.
    SlowDown,
    /// It is over, for this reason.
    Over(String),
}

/// The server, without credentials.
pub struct Exchange {
    client: kube::Client,
    server: String,
    /// True if this machine's authorities are trusted, and no other.
    trusts_machine: bool,
}

impl Exchange {
    /// Prepares requests to a server with this authority, or one that this machine trusts.
    pub async fn open(server: &str, authority: Option<&str>) -> Result<Exchange> {
        let kubeconfig = connection::kubeconfig_of(server, authority, None)?;
        let mut config = connection::config_of(kubeconfig).await?;
        config.read_timeout = Some(PATIENCE);
        config.default_retry = false;
        Ok(Exchange {
            client: kube::Client::try_from(config)?,
            server: server.to_owned(),
            trusts_machine: authority.is_none(),
        })
    }

    async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Result<(StatusCode, Value)> {
        let pair = |(name, value): &(&str, &str)| format!("{name}={}", escape(value));
        let form: Vec<String> = fields.iter().map(pair).collect();
        let request = Request::post(path)
            .header("content-type", "application/x-www-form-urlencoded")
            .header("accept", "application/json")
            .body(Body::from(form.join("&").into_bytes()))
            .context("the request could not be made")?;
        let sent = self.client.send(request).await;
        let (head, body) = sent
            .map_err(|error| unreachable(&self.server, self.trusts_machine, &error))?
            .into_parts();
        let read = Limited::new(body, ANSWER_MAX).collect().await;
        let read = read.map_err(|error| {
            let text = format!("no answer from {}: {error}", self.server);
            failure::with(ExitCause::Unreachable, text)
        })?;
        let answer = serde_json::from_slice(&read.to_bytes()).unwrap_or_default();
        Ok((head.status, answer))
    }

    /// Asks for codes.
    pub async fn start(&self, asked: &Asked) -> Result<Codes> {
        let lifetime = asked.lifetime.as_secs().to_string();
        let mut fields = vec![
            ("client_id", CLIENT),
            ("client_name", &asked.client),
            ("requested_expires_in", &lifetime),
        ];
        if let Some(user) = &asked.user {
            fields.push(("login_hint", user));
        }
        let (status, answer) = self.post(AUTHORIZATION, &fields).await?;
        if status == StatusCode::NOT_FOUND {
            let text = format!(
                "{} has no sign-in for terminals: it is an older server, or none of Muster; `muster kubeconfig` on the \
                 server's machine prints a kubeconfig",
                self.server
            );
            return Err(failure::with(ExitCause::Refused, text));
        }
        codes_of(status, &answer).map_err(|text| failure::with(ExitCause::Refused, text))
    }

    /// Waits until the person approves, and returns the token.
    pub async fn wait(&self, codes: &Codes) -> Result<String> {
        let begun = Instant::now();
        let mut interval = codes.interval;
        loop {
            tokio::time::sleep(interval).await;
            let fields = [
                ("grant_type", GRANT),
                ("device_code", &codes.device_code),
                ("client_id", CLIENT),
            ];
            let answer = match self.post(TOKEN, &fields).await {
                Ok((status, answer)) => answer_of(status, &answer),
                // The server may be starting again; the code says how long that is worth a wait.
                Err(error) if begun.elapsed() >= codes.expires_in => return Err(error),
                Err(_) => Answer::SlowDown,
            };
            match answer {
                Answer::Token(token) => return Ok(token),
                Answer::Over(text) => return Err(failure::with(ExitCause::Refused, text)),
                Answer::SlowDown => interval = (interval + SLOWER).min(WAIT_MAX),
                Answer::Later => {}
            }
            if begun.elapsed() >= codes.expires_in + WAIT_MAX {
                return Err(failure::with(ExitCause::TimedOut, EXPIRED));
            }
        }
    }
}

/// What a person reads about an expired code.
const EXPIRED: &str = "the code has expired before it was approved; run `muster login` again";

/// What the server says of its refusal.
fn description(status: StatusCode, answer: &Value) -> String {
    let told = answer["error_description"].as_str();
    let told = told.or_else(|| answer["detail"].as_str());
    let told = told.or_else(|| answer["message"].as_str());
    match told {
        Some(text) => format!("the server refused the sign-in: {text}"),
        None => format!(
            "the server refused the sign-in, with status {}",
            status.as_u16()
        ),
    }
}

fn codes_of(status: StatusCode, answer: &Value) -> Result<Codes, String> {
    if status != StatusCode::OK {
        return Err(description(status, answer));
    }
    let text = |field: &str| answer[field].as_str().map(str::to_owned);
    let seconds = |field: &str| answer[field].as_u64().map(Duration::from_secs);
    let codes = || {
        Some(Codes {
            device_code: text("device_code")?,
            user_code: text("user_code")?,
            expires_in: seconds("expires_in")?,
            interval: seconds("interval").unwrap_or(SLOWER),
        })
    };
    let mut codes = codes().ok_or("the server's answer has no codes; is it a server of Muster?")?;
    // A terminal shows it.
    if codes.user_code.chars().any(|c| !c.is_ascii_graphic()) {
        return Err("the server's answer has an unreadable code".to_owned());
    }
    codes.interval = codes.interval.clamp(Duration::from_secs(1), WAIT_MAX);
    codes.expires_in = codes.expires_in.min(Duration::from_secs(3600));
    Ok(codes)
}

fn answer_of(status: StatusCode, answer: &Value) -> Answer {
    if status == StatusCode::OK {
        return match answer["access_token"].as_str() {
            Some(token) if !token.is_empty() => Answer::Token(token.to_owned()),
            _ => Answer::Over("the server's answer has no token".to_owned()),
        };
    }
    if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
        return Answer::SlowDown;
    }
    match answer["error"].as_str() {
        Some("authorization_pending") => Answer::Later,
        Some("slow_down") => Answer::SlowDown,
        Some("access_denied") => Answer::Over("the sign-in was refused".to_owned()),
        Some("expired_token") => Answer::Over(EXPIRED.to_owned()),
        _ => Answer::Over(description(status, answer)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_are_read_as_the_grant_defines_them() {
        let over = |text: &str| Answer::Over(text.to_owned());
        for (status, body, answer) in [
            (
                200,
                json!({"access_token": "t", "token_type": "Bearer"}),
                Answer::Token("t".into()),
            ),
            (200, json!({}), over("the server's answer has no token")),
            (
                400,
                json!({"error": "authorization_pending"}),
                Answer::Later,
            ),
            (400, json!({"error": "slow_down"}), Answer::SlowDown),
            (
                400,
                json!({"error": "access_denied"}),
                over("the sign-in was refused"),
            ),
            (400, json!({"error": "expired_token"}), over(EXPIRED)),
            (
                400,
                json!({"error": "invalid_grant", "error_description": "gone"}),
                over("the server refused the sign-in: gone"),
            ),
            (
                401,
                Value::Null,
                over("the server refused the sign-in, with status 401"),
            ),
            (429, Value::Null, Answer::SlowDown),
            (503, Value::Null, Answer::SlowDown),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(answer_of(status, &body), answer, "{status} {body}");
        }
    }

    #[test]
    fn codes_are_read_within_bounds() {
        let whole = json!({
            "device_code": "d", "user_code": "BCDF-GHJK", "expires_in": 600, "interval": 5,
        });
        let codes = codes_of(StatusCode::OK, &whole).unwrap();
        assert_eq!((codes.interval, codes.expires_in.as_secs()), (SLOWER, 600));
        let with = |field: &str, value: Value| {
            let mut changed = whole.clone();
            changed[field] = value;
            codes_of(StatusCode::OK, &changed)
        };
        assert_eq!(with("interval", Value::Null).unwrap().interval, SLOWER);
        assert_eq!(with("interval", json!(0)).unwrap().interval.as_secs(), 1);
        assert_eq!(
            with("interval", json!(u64::MAX)).unwrap().interval,
            WAIT_MAX
        );
        assert_eq!(
            with("expires_in", json!(u64::MAX))
                .unwrap()
                .expires_in
                .as_secs(),
            3600
        );
        for (field, value) in [
            ("device_code", Value::Null),
            ("user_code", json!(7)),
            ("user_code", json!("A\u{1b}[31m")),
            ("expires_in", json!("soon")),
        ] {
            assert!(with(field, value.clone()).is_err(), "{field} {value}");
        }
        let refused = json!({"error": "invalid_request", "error_description": "too long"});
        let error = codes_of(StatusCode::BAD_REQUEST, &refused).unwrap_err();
        assert_eq!(error, "the server refused the sign-in: too long");
    }
}
