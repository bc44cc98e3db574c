//! The endpoints of the device authorization grant (RFC 8628), with the names and errors of OAuth 2.0 (RFC 6749): a
//! program such as `muster login` asks for a code, a person approves it on the page `/ui/device`, and the program fetches
//! an access token of that person. They need no credentials: the program has none yet.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::rejection::FormRejection;
use axum::extract::{ConnectInfo, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Form, Json};
use identity::audit::{EventNotes, RepeatedQuestion, SignInName};
use identity::{DeviceAnswer, DeviceRequest, Identity, IdentityError, IssuedToken};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::people::DEVICE_PAGE;

/// The most bytes of a form of these endpoints.
pub const OAUTH_FORM_MAX: usize = 4096;

/// The only client: programs that act for a person at a terminal. They keep no secret.
const CLIENT: &str = "muster-cli";

/// The only grant (RFC 8628, section 3.4).
const GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";

/// The name of a client that gives none.
const UNNAMED: &str = "a program without a name";

/// The annotation of an audit event with what happened to a program's sign-in.
const EVENT: &str = "muster.io/device-login";

/// The annotation with the program's own name.
const EVENT_CLIENT: &str = "muster.io/client";

/// The annotation with the address that the program asked from.
const EVENT_ADDRESS: &str = "muster.io/client-address";

/// The annotation with the id of the token that was issued.
const EVENT_TOKEN: &str = "muster.io/token";

/// A program's request.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct AuthorizationForm {
    client_id: String,
    scope: String,
    /// The program's name for itself.
    client_name: String,
    /// The only user that may approve.
    login_hint: String,
    /// The lifetime of the token, in seconds.
    requested_expires_in: String,
}

/// A program's question whether a person has approved.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct TokenForm {
    grant_type: String,
    device_code: String,
    client_id: String,
}

/// An error of OAuth 2.0.
#[derive(Debug)]
struct OAuthError {
    status: StatusCode,
    error: &'static str,
    description: String,
    /// How many seconds to wait before a retry.
    retry_after: Option<u64>,
}

impl OAuthError {
    fn new(error: &'static str, description: impl Into<String>) -> OAuthError {
        OAuthError {
            status: StatusCode::BAD_REQUEST,
            error,
            description: description.into(),
            retry_after: None,
        }
    }
}

impl From<IdentityError> for OAuthError {
    fn from(error: IdentityError) -> Self {
        let (status, code) = match &error {
            IdentityError::ClientName | IdentityError::LoginLifetime { .. } => {
                (StatusCode::BAD_REQUEST, "invalid_request")
            }
            IdentityError::TooManyDeviceCodes { .. } => {
                (StatusCode::TOO_MANY_REQUESTS, "temporarily_unavailable")
            }
            _ => (StatusCode::SERVICE_UNAVAILABLE, "temporarily_unavailable"),
        };
        OAuthError {
            status,
            retry_after: error.retry_after(),
            ..OAuthError::new(code, error.to_string())
        }
    }
}

/// A description in the characters that RFC 6749, section 5.2, allows.
fn described(text: &str) -> String {
    let allowed = |c: char| match c {
        '"' => '\'',
        '\\' => '/',
        ' '..='~' => c,
        _ => '?',
    };
    text.chars().map(allowed).collect()
}

/// An answer with the headers that answers with tokens have.
fn answer(status: StatusCode, body: Value) -> Response {
    let unstored = [
        (header::CACHE_CONTROL, "no-store"),
        (header::PRAGMA, "no-cache"),
    ];
    (status, unstored, Json(body)).into_response()
}

impl IntoResponse for OAuthError {
    fn into_response(self) -> Response {
        let body = json!({"error": self.error, "error_description": described(&self.description)});
        let mut response = answer(self.status, body);
        if let Some(seconds) = self.retry_after {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// The form of a program. Pages of other sites may send one from a person's browser, where it would count for the
/// person's address.
fn form_of<T>(
    form: Result<Form<T>, FormRejection>,
    headers: &HeaderMap,
    uri: &Uri,
) -> Result<T, OAuthError> {
    if identity::is_cross_site(headers, uri) {
        let detail = "programs ask here, and pages of other sites may not";
        return Err(OAuthError {
            status: StatusCode::FORBIDDEN,
            ..OAuthError::new("invalid_request", detail)
        });
    }
    let invalid =
        |rejection: FormRejection| OAuthError::new("invalid_request", rejection.body_text());
    form.map(|Form(form)| form).map_err(invalid)
}

fn check_client(client: &str) -> Result<(), OAuthError> {
    match client {
        CLIENT => Ok(()),
        "" => Err(OAuthError::new("invalid_request", "client_id is missing")),
        _ => Err(OAuthError::new(
            "invalid_client",
            format!("client_id: use {CLIENT}"),
        )),
    }
}

/// The server's address in the request, as the program knows it.
fn origin(headers: &HeaderMap, uri: &Uri) -> Result<String, OAuthError> {
    let host = headers.get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok());
    let host = host.or_else(|| uri.authority().map(Authority::as_str));
    let host = host.and_then(|host| host.parse::<Authority>().ok());
    match host {
        Some(host) if !host.as_str().contains('@') => Ok(format!("https://{host}")),
        _ => Err(OAuthError::new(
            "invalid_request",
            "the header Host does not name this server",
        )),
    }
}

fn request_of(form: AuthorizationForm) -> Result<DeviceRequest, OAuthError> {
    check_client(&form.client_id)?;
    if !form.scope.trim().is_empty() {
        let detail = "scope: there are no scopes; a token may do what its user may";
        return Err(OAuthError::new("invalid_scope", detail));
    }
    let seconds = match form.requested_expires_in.as_str() {
        "" => identity::LOGIN_TOKEN_TTL.as_secs(),
        text => text
            .parse()
            .map_err(|_| OAuthError::new("invalid_request", "requested_expires_in: use seconds"))?,
    };
    let named = |text: String| Some(text).filter(|text| !text.is_empty());
    Ok(DeviceRequest {
        client: named(form.client_name).unwrap_or_else(|| UNNAMED.to_owned()),
        from: None,
        user: named(form.login_hint),
        token_ttl: Duration::from_secs(seconds),
    })
}

/// Gives a program its codes.
pub async fn device_authorization(
    State(identity): State<Identity>,
    peer: Option<Extension<ConnectInfo<SocketAddr>>>,
    uri: Uri,
    headers: HeaderMap,
    form: Result<Form<AuthorizationForm>, FormRejection>,
) -> Response {
    let started = || {
        let asked = request_of(form_of(form, &headers, &uri)?)?;
        let page = format!("{}{DEVICE_PAGE}", origin(&headers, &uri)?);
        let asked = DeviceRequest {
            from: peer.map(|Extension(ConnectInfo(address))| address.ip()),
            ..asked
        };
        let started = identity.start_device_login(asked)?;
        Ok::<_, OAuthError>((started, page))
    };
    match started() {
        Ok((started, page)) => answer(
            StatusCode::OK,
            json!({
                "device_code": started.device_code,
                "user_code": started.user_code,
                "verification_uri": page,
                "verification_uri_complete": format!("{page}?user_code={}", started.user_code),
                "expires_in": started.expires_in.as_secs(),
                "interval": started.interval.as_secs(),
            }),
        ),
        Err(error) => error.into_response(),
    }
}

/// Gives a program its token once a person has approved.
pub async fn token(
    State(identity): State<Identity>,
    uri: Uri,
    headers: HeaderMap,
    form: Result<Form<TokenForm>, FormRejection>,
) -> Response {
    let code = match form_of(form, &headers, &uri).and_then(code_of) {
        Ok(code) => code,
        Err(error) => return error.into_response(),
    };
    let refused = |error, description: &str| OAuthError::new(error, description).into_response();
    let repeated = |mut response: Response| {
        response.extensions_mut().insert(RepeatedQuestion);
        response
    };
    match identity.poll_device_login(&code).await {
        Ok(DeviceAnswer::Issued(token, request)) => issued(*token, request),
        Ok(DeviceAnswer::Pending) => repeated(refused(
            "authorization_pending",
            "no person has approved or refused yet",
        )),
        Ok(DeviceAnswer::SlowDown) => repeated(refused(
            "slow_down",
            "wait 5 seconds longer between two questions",
        )),
        Ok(DeviceAnswer::Denied) => refused("access_denied", "the sign-in was refused"),
        Ok(DeviceAnswer::Expired) => refused("expired_token", "the code has expired; ask again"),
        Ok(DeviceAnswer::Unknown) => refused(
            "invalid_grant",
            "device_code: there is no such code, its token was fetched already, or the server was restarted",
        ),
        Err(error) => OAuthError::from(error).into_response(),
    }
}

fn code_of(form: TokenForm) -> Result<String, OAuthError> {
    match form.grant_type.as_str() {
        GRANT => {}
        "" => return Err(OAuthError::new("invalid_request", "grant_type is missing")),
        _ => {
            let detail = format!("grant_type: use {GRANT}");
            return Err(OAuthError::new("unsupported_grant_type", detail));
        }
    }
    check_client(&form.client_id)?;
    match form.device_code.as_str() {
        "" => Err(OAuthError::new("invalid_request", "device_code is missing")),
        _ => Ok(form.device_code),
    }
}

/// What an audit event says of a program's sign-in.
pub fn notes(what: &str, request: &DeviceRequest) -> BTreeMap<&'static str, String> {
    let mut notes = BTreeMap::from([
        (EVENT, what.to_owned()),
        (EVENT_CLIENT, request.client.clone()),
    ]);
    if let Some(address) = request.from {
        notes.insert(EVENT_ADDRESS, address.to_string());
    }
    notes
}

fn issued(token: IssuedToken, request: DeviceRequest) -> Response {
    let mut notes = notes("issued", &request);
    notes.insert(EVENT_TOKEN, token.info.id.clone());
    let mut response = answer(
        StatusCode::OK,
        json!({
            "access_token": token.secret,
            "token_type": "Bearer",
            "expires_in": request.token_ttl.as_secs(),
        }),
    );
    let extensions = response.extensions_mut();
    extensions.insert(SignInName(token.info.user));
    extensions.insert(EventNotes(notes));
    response
}

#[cfg(test)]
#[path = "oauth_tests.rs"]
mod tests;
