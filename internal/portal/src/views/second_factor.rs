//! The second factor of signing in with a password: its page after the password, and its forms on the account's page.

use std::net::{IpAddr, SocketAddr};

use askama::Template;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Form};
use identity::audit::{EventNotes, SignInName};
use identity::{GivenFactor, IdentityError, TokenInfo};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use resources::access::Caller;
use serde::Deserialize;

use super::account;
use super::sign_in::{self, own_page};
use super::{PageCaller, PageFrame, page_with};
use crate::problem::Problem;
use crate::state::Portal;

const HERE: &str = "account";

/// The annotation of an audit event with what was given as the second factor.
const EVENT: &str = "muster.io/second-factor";

type Peer = Option<Extension<ConnectInfo<SocketAddr>>>;
type Current = Option<Extension<TokenInfo>>;

/// The id of the session that a request carries.
fn session_of(current: &Current) -> String {
    let session = current.as_ref().map(|Extension(token)| token.id.clone());
    session.unwrap_or_default()
}

fn address(peer: Peer) -> Option<IpAddr> {
    peer.map(|Extension(ConnectInfo(address))| address.ip())
}

/// The form that asks for the code.
#[derive(Template)]
#[template(path = "second_factor.html")]
struct CodePage {
    problem: String,
    wait: String,
    next: String,
}

/// The code after the password.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct CodeForm {
    wait: String,
    code: String,
    next: String,
}

/// The page that asks for the code after a right password.
pub fn ask(wait: String, next: &str) -> Response {
    code_page(StatusCode::OK, String::new(), wait, next)
}

fn code_page(status: StatusCode, problem: String, wait: String, next: &str) -> Response {
    let next = own_page(next).to_owned();
    page_with(
        status,
        &CodePage {
            problem,
            wait,
            next,
        },
    )
}

/// Checks the code and sets the session's cookie.
pub async fn check(
    State(portal): State<Portal>,
    peer: Peer,
    uri: Uri,
    headers: HeaderMap,
    Form(form): Form<CodeForm>,
) -> Response {
    if identity::is_cross_site(&headers, &uri) {
        let detail = "the form must be sent from Muster's own page; sign in again";
        return Problem::forbidden(detail).into_response();
    }
    let user = portal.identity.awaited_user(&form.wait);
    let signed_in = portal
        .identity
        .sign_in_code(&form.wait, &form.code, address(peer))
        .await;
    let mut answer = match signed_in {
        Ok((session, given)) => {
            let mut answer = sign_in::opened(&headers, &session, own_page(&form.next));
            answer.extensions_mut().insert(note(given));
            answer
        }
        Err(error @ IdentityError::SignInOver) => {
            sign_in::refused(&portal, &Problem::from(error), "", &form.next)
        }
        Err(error) => {
            let problem = Problem::from(error);
            let (status, detail) = (problem.status(), problem.detail().to_owned());
            let page = code_page(status, detail, form.wait, &form.next);
            match problem.retry_after() {
                Some(wait) => ([(header::RETRY_AFTER, wait.to_string())], page).into_response(),
                None => page,
            }
        }
    };
    if let Some(user) = user {
        answer.extensions_mut().insert(SignInName(user));
    }
    answer
}

fn note(given: GivenFactor) -> EventNotes {
    let given = match given {
        GivenFactor::Code => "code",
        GivenFactor::RecoveryCode => "recovery code",
    };
    EventNotes([(EVENT, given.to_owned())].into())
}

/// The password before a set-up.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct BeginForm {
    password: String,
}

/// A code of the app.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct FactorForm {
    code: String,
}

/// The secret for the app, and the form that confirms it.
#[derive(Template)]
#[template(path = "enrolment.html")]
struct EnrolmentPage {
    frame: PageFrame,
    problem: String,
    /// In groups of four.
    secret: String,
    uri: String,
}

/// The recovery codes, which are shown once.
#[derive(Template)]
#[template(path = "recovery.html")]
struct RecoveryPage {
    frame: PageFrame,
    codes: Vec<String>,
}

/// The text that an app reads instead of the secret alone, which names server and user. There is no standard; apps take the
/// form of <https://github.com/google/google-authenticator/wiki/Key-Uri-Format>.
fn otpauth(secret: &str, user: &str, host: Option<&str>) -> String {
    let host = host.and_then(|host| host.parse::<axum::http::uri::Authority>().ok());
    let issuer = match &host {
        Some(host) => format!("Muster {}", host.host().trim_matches(['[', ']'])),
        None => "Muster".to_owned(),
    };
    let issuer = utf8_percent_encode(&issuer, NON_ALPHANUMERIC);
    let user = utf8_percent_encode(user, NON_ALPHANUMERIC);
    format!(
        "otpauth://totp/{issuer}:{user}?secret={secret}&issuer={issuer}&algorithm=SHA1&digits=6&period=30"
    )
}

fn grouped(secret: &str) -> String {
    let mut text = String::new();
    for (at, letter) in secret.chars().enumerate() {
        if at > 0 && at % 4 == 0 {
            text.push(' ');
        }
        text.push(letter);
    }
    text
}

fn enrolment(
    caller: &Caller,
    headers: &HeaderMap,
    uri: &Uri,
    secret: &str,
    problem: Option<&Problem>,
) -> Response {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let host = host.or_else(|| uri.authority().map(|host| host.as_str()));
    let page = EnrolmentPage {
        frame: PageFrame::still(caller, HERE),
        problem: problem.map_or_else(String::new, |problem| problem.detail().to_owned()),
        secret: grouped(secret),
        uri: otpauth(secret, &caller.user, host),
    };
    page_with(problem.map_or(StatusCode::OK, Problem::status), &page)
}

/// What a form of a signed-in user is answered with after an error: 401 would say that it is not signed in.
fn of_form(error: IdentityError) -> Problem {
    match error {
        IdentityError::WrongPassword => Problem::invalid("password: it is wrong"),
        error @ IdentityError::WrongCode => Problem::invalid(error.to_string()),
        error => Problem::from(error),
    }
}

fn account_page(
    portal: &Portal,
    caller: &Caller,
    current: Current,
    outcome: Result<&str, &Problem>,
) -> Response {
    let current = current.map(|Extension(token)| token);
    account::account(portal, caller, current.as_ref(), outcome)
}

fn recovery(caller: &Caller, codes: Vec<String>) -> Response {
    let page = RecoveryPage {
        frame: PageFrame::still(caller, HERE),
        codes,
    };
    page_with(StatusCode::OK, &page)
}

/// True for a caller with a record; others have no account.
fn is_user(portal: &Portal, caller: &Caller) -> bool {
    portal.identity.user(&caller.user).is_some()
}

/// Begins a set-up: shows the secret.
pub async fn begin(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    peer: Peer,
    current: Current,
    uri: Uri,
    headers: HeaderMap,
    Form(form): Form<BeginForm>,
) -> Response {
    if !is_user(&portal, &caller) {
        return account_page(&portal, &caller, current, Ok(""));
    }
    let session = session_of(&current);
    let begun = portal
        .identity
        .begin_second_factor(&caller.user, &form.password, &session, address(peer))
        .await;
    match begun {
        Ok(secret) => enrolment(&caller, &headers, &uri, &secret, None),
        Err(error) => account_page(&portal, &caller, current, Err(&of_form(error))),
    }
}

/// Confirms a set-up by a code: shows the recovery codes.
pub async fn confirm(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    current: Current,
    uri: Uri,
    headers: HeaderMap,
    Form(form): Form<FactorForm>,
) -> Response {
    let session = session_of(&current);
    let confirmed = portal
        .identity
        .confirm_second_factor(&caller.user, &form.code, &session)
        .await;
    let error = match confirmed {
        Ok(codes) => return recovery(&caller, codes),
        Err(error) => of_form(error),
    };
    let unconfirmed = portal.identity.unconfirmed_secret(&caller.user, &session);
    match unconfirmed {
        Some(secret) => enrolment(&caller, &headers, &uri, &secret, Some(&error)),
        None => account_page(&portal, &caller, current, Err(&error)),
    }
}

/// Replaces the recovery codes.
pub async fn renew(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    peer: Peer,
    current: Current,
    Form(form): Form<FactorForm>,
) -> Response {
    if !is_user(&portal, &caller) {
        return account_page(&portal, &caller, current, Ok(""));
    }
    let renewed = portal
        .identity
        .renew_recovery_codes(&caller.user, &form.code, address(peer))
        .await;
    match renewed {
        Ok(codes) => recovery(&caller, codes),
        Err(error) => account_page(&portal, &caller, current, Err(&of_form(error))),
    }
}

/// Removes the second factor.
pub async fn remove(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    peer: Peer,
    current: Current,
    Form(form): Form<FactorForm>,
) -> Response {
    if !is_user(&portal, &caller) {
        return account_page(&portal, &caller, current, Ok(""));
    }
    let removed = portal
        .identity
        .remove_second_factor(&caller.user, &form.code, address(peer))
        .await;
    let removed = removed.map_err(of_form);
    let done = "The second factor is removed: your password alone signs you in.";
    account_page(&portal, &caller, current, removed.as_ref().map(|()| done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_app_reads_secret_server_and_user() {
        let uri = otpauth("ABCD", "ann", Some("gpu1.example:8443"));
        let issuer = "Muster%20gpu1%2Eexample";
        assert_eq!(
            uri,
            format!(
                "otpauth://totp/{issuer}:ann?secret=ABCD&issuer={issuer}&algorithm=SHA1&digits=6&period=30"
            )
        );
        for host in [None, Some("a b"), Some("\"><script>")] {
            assert!(otpauth("A", "ann", host).starts_with("otpauth://totp/Muster:ann?"));
        }
        assert_eq!(grouped("ABCDEFGHI"), "ABCD EFGH I");
    }
}
