//! The provider: its discovery document and keys, which are read when they are needed and used for an hour, and the
//! exchange of a code for an ID token.
//!
//! Keys rotate: a token that names an unknown key makes the server read the keys again, at most once in
//! [`KEYS_AGAIN`]. One request runs at a time; the others wait for its answer.

use futures::future::BoxFuture;
use futures::lock::Mutex;
use http::{Method, Request, StatusCode, header};
use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::claims::Claims;
use crate::error::{OidcError, shortened};
use crate::keys::KeySet;
use crate::limits::{FAILURE_TTL, KEYS_AGAIN, METADATA_TTL};
use crate::settings::OidcSettings;
use crate::token::UnverifiedToken;

/// Characters that a form's value has unescaped: the unreserved ones of RFC 3986.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The scopes that are asked for if the provider has them, beside `openid`. The last is not of the standard, but several
/// providers send groups only for it.
const SCOPES: [&str; 3] = ["profile", "email", "groups"];

/// Where the discovery document is, below the issuer.
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// No connection, or no answer in time.
    #[error("{0}")]
    Unreachable(String),
    /// The server's certificate is not trusted.
    #[error("{0}")]
    Certificate(String),
    /// The answer is too large.
    #[error("{0}")]
    Answer(String),
}

/// Sends requests to the provider. The implementation bounds the time and the size of an answer by [`crate::PATIENCE`]
/// and [`crate::ANSWER_MAX`], and follows no redirects.
pub trait Exchange: Send + Sync {
    /// Sends one request.
    fn send(
        &self,
        request: Request<String>,
    ) -> BoxFuture<'static, Result<(StatusCode, Vec<u8>), ExchangeError>>;
}

/// What the discovery document says.
#[derive(Clone, Debug)]
pub(crate) struct ProviderMetadata {
    pub(crate) authorization: String,
    token: String,
    keys: String,
    scopes: String,
    /// True if the client's id and secret are sent in the form; else in the header `Authorization`.
    secret_in_form: bool,
    /// True if the provider names itself in its answers (RFC 9207).
    pub(crate) names_issuer: bool,
}

#[derive(Default)]
struct KnownProvider {
    metadata: Option<(ProviderMetadata, Timestamp)>,
    keys: Option<(KeySet, Timestamp)>,
    /// Why the discovery document could not be read, and when it was asked for.
    failure: Option<(OidcError, Timestamp)>,
}

/// The provider, with what is known of it.
pub(crate) struct Provider {
    exchange: Box<dyn Exchange>,
    known: Mutex<KnownProvider>,
}

/// A code and what proves that this server began the sign-in.
pub(crate) struct CodeGrant<'a> {
    pub(crate) code: &'a str,
    pub(crate) verifier: &'a str,
    pub(crate) redirect: &'a str,
}

/// A form's or a query's text.
pub(crate) fn form(fields: &[(&str, &str)]) -> String {
    let one =
        |(name, value): &(&str, &str)| format!("{name}={}", utf8_percent_encode(value, VALUE));
    fields.iter().map(one).collect::<Vec<_>>().join("&")
}

fn is_fresh(read: Timestamp, now: Timestamp, within: std::time::Duration) -> bool {
    let age = now.duration_since(read);
    !age.is_negative() && age.unsigned_abs() < within
}

fn unusable(url: &str, problem: impl Into<String>) -> OidcError {
    OidcError::Document {
        url: url.to_owned(),
        problem: problem.into(),
    }
}

impl Provider {
    pub(crate) fn new(exchange: Box<dyn Exchange>) -> Provider {
        Provider {
            exchange,
            known: Mutex::default(),
        }
    }

    async fn send(
        &self,
        url: &str,
        request: http::request::Builder,
        body: String,
    ) -> Result<(StatusCode, Vec<u8>), OidcError> {
        let request = request
            .uri(url)
            .header(header::ACCEPT, "application/json")
            .header(
                header::USER_AGENT,
                concat!("muster/", env!("CARGO_PKG_VERSION")),
            )
            .body(body)
            .map_err(|error| unusable(url, error.to_string()))?;
        let answer = self.exchange.send(request).await;
        answer.map_err(|error| match error {
            ExchangeError::Unreachable(problem) => OidcError::Unreachable {
                url: url.to_owned(),
                problem,
            },
            ExchangeError::Certificate(problem) => OidcError::Certificate {
                url: url.to_owned(),
                problem,
            },
            ExchangeError::Answer(problem) => unusable(url, problem),
        })
    }

    async fn get(&self, url: &str) -> Result<Value, OidcError> {
        let request = Request::builder().method(Method::GET);
        let (status, body) = self.send(url, request, String::new()).await?;
        if status.is_server_error() {
            return Err(OidcError::Unreachable {
                url: url.to_owned(),
                problem: format!("it answered {status}"),
            });
        }
        if status != StatusCode::OK {
            return Err(unusable(url, format!("it answered {status}")));
        }
        serde_json::from_slice(&body).map_err(|_| unusable(url, "it is not JSON"))
    }

    /// What the discovery document says.
    pub(crate) async fn metadata(
        &self,
        settings: &OidcSettings,
        now: Timestamp,
    ) -> Result<ProviderMetadata, OidcError> {
        let mut known = self.known.lock().await;
        if let Some((metadata, read)) = &known.metadata
            && is_fresh(*read, now, METADATA_TTL)
        {
            return Ok(metadata.clone());
        }
        if let Some((error, asked)) = &known.failure
            && is_fresh(*asked, now, FAILURE_TTL)
        {
            return Err(error.clone());
        }
        let url = format!("{}{DISCOVERY}", settings.issuer().trim_end_matches('/'));
        let read = match self.get(&url).await {
            Ok(document) => metadata_of(&document, &url, settings),
            Err(error) => Err(error),
        };
        let metadata = match read {
            Ok(metadata) => metadata,
            Err(error) => {
                known.failure = Some((error.clone(), now));
                return Err(error);
            }
        };
        known.failure = None;
        known.metadata = Some((metadata.clone(), now));
        Ok(metadata)
    }

    /// Exchanges a code for the claims of a token that one of the provider's keys signed.
    pub(crate) async fn claims(
        &self,
        settings: &OidcSettings,
        grant: CodeGrant<'_>,
        now: Timestamp,
    ) -> Result<Claims, OidcError> {
        let metadata = self.metadata(settings, now).await?;
        let text = self.id_token(settings, &metadata, grant).await?;
        let token = UnverifiedToken::of_text(&text)?;
        let keys = self.keys(&metadata, &token, now).await?;
        token.verified(&keys)
    }

    async fn id_token(
        &self,
        settings: &OidcSettings,
        metadata: &ProviderMetadata,
        grant: CodeGrant<'_>,
    ) -> Result<String, OidcError> {
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", grant.code),
            ("redirect_uri", grant.redirect),
            ("code_verifier", grant.verifier),
        ];
        let mut request = Request::builder()
            .method(Method::POST)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        match settings.secret() {
            Some(secret) if metadata.secret_in_form => {
                fields.push(("client_id", settings.client()));
                fields.push(("client_secret", secret.value()));
            }
            Some(secret) => {
                request = request.header(
                    header::AUTHORIZATION,
                    basic(settings.client(), secret.value()),
                );
            }
            None => fields.push(("client_id", settings.client())),
        }
        let url = &metadata.token;
        let (status, body) = self.send(url, request, form(&fields)).await?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        if status.is_server_error() {
            return Err(OidcError::Unreachable {
                url: url.clone(),
                problem: format!("it answered {status}"),
            });
        }
        if status != StatusCode::OK {
            let error = answer["error"].as_str().unwrap_or_default();
            let description = answer["error_description"].as_str().unwrap_or_default();
            let words = [error, description].map(shortened);
            return Err(OidcError::TokenRequest {
                problem: format!("{status} {}", words.join(" ")).trim().to_owned(),
            });
        }
        let token = answer["id_token"].as_str().map(str::to_owned);
        token.ok_or_else(|| unusable(url, "the answer has no id_token"))
    }

    /// The keys, read again if they are old, or if the token names one that is not among them.
    async fn keys(
        &self,
        metadata: &ProviderMetadata,
        token: &UnverifiedToken<'_>,
        now: Timestamp,
    ) -> Result<KeySet, OidcError> {
        let mut known = self.known.lock().await;
        if let Some((keys, read)) = &known.keys {
            // A token that names no key may be signed by a new one.
            let unknown = token.names_unknown_key(keys) || !token.signed_by(keys);
            let within = if unknown { KEYS_AGAIN } else { METADATA_TTL };
            if is_fresh(*read, now, within) {
                return Ok(keys.clone());
            }
        }
        let url = &metadata.keys;
        let document = self.get(url).await?;
        let keys = KeySet::of_document(&document)
            .ok_or_else(|| unusable(url, "it is no JSON Web Key Set"))?;
        known.keys = Some((keys.clone(), now));
        Ok(keys)
    }
}

/// The header's value of RFC 6749, section 2.3.1: id and secret are encoded as in a form.
fn basic(client: &str, secret: &str) -> String {
    use base64::Engine as _;
    let encoded = |text| utf8_percent_encode(text, VALUE).to_string();
    let pair = format!("{}:{}", encoded(client), encoded(secret));
    format!(
        "Basic {}",
        base64::engine::general_purpose::STANDARD.encode(pair)
    )
}

fn metadata_of(
    document: &Value,
    url: &str,
    settings: &OidcSettings,
) -> Result<ProviderMetadata, OidcError> {
    let issuer = document["issuer"].as_str().unwrap_or_default();
    if issuer != settings.issuer() {
        return Err(unusable(
            url,
            format!(
                "its issuer is {:?}, and --oidc-issuer-url is {:?}",
                shortened(issuer),
                settings.issuer()
            ),
        ));
    }
    let endpoint = |field: &str| {
        let text = document[field].as_str().unwrap_or_default();
        let parsed: Option<http::Uri> = text.parse().ok();
        let https = parsed.is_some_and(|parsed| parsed.scheme_str() == Some("https"));
        match https && !text.contains('#') {
            true => Ok(text.to_owned()),
            false => Err(unusable(url, format!("{field} is no https URL"))),
        }
    };
    let words = |field: &str| -> Option<Vec<&str>> {
        let all = document.get(field)?.as_array()?;
        Some(all.iter().filter_map(Value::as_str).collect())
    };
    let methods = words("code_challenge_methods_supported");
    if methods.is_some_and(|methods| !methods.contains(&"S256")) {
        return Err(unusable(
            url,
            "it has no PKCE with S256 (code_challenge_methods_supported)",
        ));
    }
    // Without the list, `groups` is not asked for: some providers refuse scopes that they do not know.
    let supported = words("scopes_supported").unwrap_or_else(|| vec!["profile", "email"]);
    let asked = SCOPES.into_iter().filter(|scope| supported.contains(scope));
    let scopes: Vec<&str> = std::iter::once("openid").chain(asked).collect();
    let secrets = words("token_endpoint_auth_methods_supported");
    Ok(ProviderMetadata {
        authorization: endpoint("authorization_endpoint")?,
        token: endpoint("token_endpoint")?,
        keys: endpoint("jwks_uri")?,
        scopes: scopes.join(" "),
        secret_in_form: secrets.is_some_and(|methods| {
            !methods.contains(&"client_secret_basic") && methods.contains(&"client_secret_post")
        }),
        names_issuer: document["authorization_response_iss_parameter_supported"] == true,
    })
}

impl ProviderMetadata {
    /// The scopes to ask for.
    pub(crate) fn scopes(&self) -> &str {
        &self.scopes
    }
}
