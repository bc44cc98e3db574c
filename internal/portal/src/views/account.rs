//! The page of a user's own account, and the page on which a user sets its password by a link.

use std::net::SocketAddr;

use askama::Template;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use axum::{Extension, Form};
use identity::{RotatedToken, SecondFactorState, TOKEN_OVERLAP, TokenInfo, User};
use jiff::Timestamp;
use resources::access::{Caller, Impersonator, UserRole};
use serde::Deserialize;

use super::when::When;
use super::{PageCaller, PageFrame, message, page_with};
use crate::people;
use crate::problem::Problem;
use crate::rest::may_issue_token;
use crate::state::Portal;

const HERE: &str = "account";

/// The fields of a change of a password.
#[derive(Deserialize)]
pub struct PasswordForm {
    old: String,
    new: String,
    again: String,
}

/// The fields of a password that is set by a link.
#[derive(Deserialize)]
pub struct ResetForm {
    link: String,
    new: String,
    again: String,
}

/// An access token on the page.
struct TokenRow {
    info: TokenInfo,
    /// When it was used last.
    used: When,
    /// From where it is accepted and what replaces it; empty if there is nothing to say.
    remarks: String,
}

#[derive(Template)]
#[template(path = "account.html")]
struct Account {
    frame: PageFrame,
    user: User,
    sessions: Vec<TokenInfo>,
    tokens: Vec<TokenRow>,
    factor: Option<SecondFactorState>,
    current: String,
    problem: String,
    done: String,
    /// The secret of a token that this request made; it is shown only now.
    secret: String,
}

#[derive(Template)]
#[template(path = "reset.html")]
struct Reset {
    /// The user; empty if the link is not valid.
    user: String,
    link: String,
    problem: String,
    done: bool,
}

/// A role's name for people.
pub fn role_name(role: UserRole) -> &'static str {
    match role {
        UserRole::Admin => "admin",
        UserRole::Lead => "lead",
        UserRole::Member => "member",
        UserRole::Viewer => "viewer",
    }
}

/// The namespaces of a user's role, in words. An administrator has its role everywhere.
pub fn namespaces_of(user: &User) -> String {
    match &user.namespaces {
        None => "all".to_owned(),
        Some(_) if user.role == UserRole::Admin => "all".to_owned(),
        Some(names) if names.is_empty() => "none".to_owned(),
        Some(names) => names.join(", "),
    }
}

impl Account {
    fn role(&self) -> &'static str {
        role_name(self.user.role)
    }

    fn namespaces(&self) -> String {
        namespaces_of(&self.user)
    }
}

impl TokenRow {
    fn of(info: TokenInfo, now: Timestamp) -> TokenRow {
        let mut remarks = Vec::new();
        if !info.from.is_empty() {
            let ranges: Vec<String> = info.from.iter().map(ToString::to_string).collect();
            remarks.push(format!("only from {}", ranges.join(", ")));
        }
        if let Some(by) = &info.replaced_by {
            remarks.push(format!("replaced by {by}"));
        }
        let used = match info.last_used {
            Some(used) => When::of(used, now),
            None => When::read("never"),
        };
        TokenRow {
            used,
            remarks: remarks.join("; "),
            info,
        }
    }
}

/// The account's page, with what a request on it did.
pub(super) fn account(
    portal: &Portal,
    caller: &Caller,
    current: Option<&TokenInfo>,
    outcome: Result<&str, &Problem>,
) -> Response {
    account_with(portal, caller, current, outcome, String::new())
}

/// The account's page, with the secret of a token that the request made.
fn account_with(
    portal: &Portal,
    caller: &Caller,
    current: Option<&TokenInfo>,
    outcome: Result<&str, &Problem>,
    secret: String,
) -> Response {
    let Some(user) = portal.identity.user(&caller.user) else {
        let detail = format!("{:?} is no user of Muster and has no account", caller.user);
        let problem = Problem::new(StatusCode::NOT_FOUND, "not-found", detail);
        return message(caller, HERE, &problem);
    };
    let (status, done, problem) = match outcome {
        Ok(done) => (StatusCode::OK, done.to_owned(), String::new()),
        Err(problem) => (problem.status(), String::new(), problem.detail().to_owned()),
    };
    let now = Timestamp::now();
    let tokens = portal.identity.access_tokens(&user.name);
    let tokens = tokens.into_iter().map(|info| TokenRow::of(info, now));
    let template = Account {
        frame: PageFrame::still(caller, HERE),
        sessions: portal.identity.sessions(&user.name),
        tokens: tokens.collect(),
        factor: portal.identity.second_factor(&user.name),
        current: current
            .map(|session| session.id.clone())
            .unwrap_or_default(),
        user,
        problem,
        done,
        secret,
    };
    page_with(status, &template)
}

/// The account's page.
pub async fn show(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    credential: Option<Extension<TokenInfo>>,
) -> Response {
    let current = credential.map(|Extension(token)| token);
    account(&portal, &caller, current.as_ref(), Ok(""))
}

/// Refuses a new password that was typed differently the second time.
fn same(new: &str, again: &str) -> Result<(), Problem> {
    if new == again {
        return Ok(());
    }
    Err(Problem::invalid(
        "again: the two new passwords differ; type the same one twice",
    ))
}

/// Changes the password.
pub async fn password(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    peer: Option<Extension<ConnectInfo<SocketAddr>>>,
    credential: Option<Extension<TokenInfo>>,
    Form(form): Form<PasswordForm>,
) -> Response {
    let current = credential.map(|Extension(token)| token);
    let from = peer.map(|Extension(ConnectInfo(address))| address.ip());
    let changed = match same(&form.new, &form.again) {
        Ok(()) => portal
            .identity
            .change_password(&caller.user, &form.old, &form.new, current.as_ref(), from)
            .await
            .map_err(|error| match error {
                identity::IdentityError::WrongPassword => {
                    Problem::invalid("old: the old password is wrong")
                }
                error => Problem::from(error),
            }),
        Err(problem) => Err(problem),
    };
    let done = "The password is changed. Your other sessions have ended.";
    let outcome = changed.as_ref().map(|()| done);
    account(&portal, &caller, current.as_ref(), outcome)
}

/// Ends one of the user's sessions.
pub async fn end_session(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    credential: Option<Extension<TokenInfo>>,
    Path(id): Path<String>,
) -> Response {
    let current = credential.map(|Extension(token)| token);
    match people::end_session(&portal, &caller, &caller.user, &id).await {
        Ok(()) => Redirect::to("/ui/account").into_response(),
        Err(problem) => account(&portal, &caller, current.as_ref(), Err(&problem)),
    }
}

/// Revokes one of the user's access tokens.
pub async fn revoke_token(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    credential: Option<Extension<TokenInfo>>,
    Path(id): Path<String>,
) -> Response {
    let current = credential.map(|Extension(token)| token);
    let own = portal.identity.access_tokens(&caller.user);
    let revoked = match own.iter().any(|token| token.id == id) {
        true => portal.identity.revoke(&id).await,
        false => Err(identity::IdentityError::NoSuchToken { id }),
    };
    match revoked {
        Ok(()) => Redirect::to("/ui/account").into_response(),
        Err(error) => account(&portal, &caller, current.as_ref(), Err(&error.into())),
    }
}

/// Rotates one of the user's access tokens, and shows the new one.
pub async fn rotate_token(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    impersonator: Option<Extension<Impersonator>>,
    credential: Option<Extension<TokenInfo>>,
    Path(id): Path<String>,
) -> Response {
    let current = credential.map(|Extension(token)| token);
    let purpose = current.as_ref().map(|token| token.purpose);
    if let Err(problem) = may_issue_token(&portal, &caller, impersonator.is_some(), purpose) {
        return message(&caller, HERE, &problem);
    }
    let own = portal.identity.access_tokens(&caller.user);
    let rotated = match own.iter().any(|token| token.id == id) {
        true => portal.identity.rotate_token(&id, TOKEN_OVERLAP).await,
        false => Err(identity::IdentityError::NoSuchToken { id }),
    };
    match rotated {
        Ok(RotatedToken { issued, old }) => {
            let done = format!(
                "Token {} replaces {}, which expires {}. This is the new token; it is shown only now.",
                issued.info.id,
                old.id,
                When::seen(&old.expires).words
            );
            let secret = issued.secret;
            account_with(
                &portal,
                &caller,
                current.as_ref(),
                Ok(done.as_str()),
                secret,
            )
        }
        Err(error) => account(&portal, &caller, current.as_ref(), Err(&error.into())),
    }
}

fn reset_page(status: StatusCode, user: String, link: String, problem: String) -> Response {
    let template = Reset {
        user,
        link,
        problem,
        done: false,
    };
    page_with(status, &template)
}

/// The form of a link.
pub async fn reset_form(State(portal): State<Portal>, Path(link): Path<String>) -> Response {
    match portal.identity.reset_user(&link) {
        Some(user) => reset_page(StatusCode::OK, user, link, String::new()),
        None => {
            let dead = Problem::from(identity::IdentityError::DeadLink);
            let detail = dead.detail().to_owned();
            reset_page(dead.status(), String::new(), String::new(), detail)
        }
    }
}

/// Sets the password by a link; the user then signs in.
pub async fn reset(
    State(portal): State<Portal>,
    uri: Uri,
    headers: HeaderMap,
    Form(form): Form<ResetForm>,
) -> Response {
    if identity::is_cross_site(&headers, &uri) {
        let detail = "the form must be sent from Muster's own page; open the link and try again";
        return Problem::forbidden(detail).into_response();
    }
    let set = match same(&form.new, &form.again) {
        Ok(()) => portal
            .identity
            .reset_password(&form.link, &form.new)
            .await
            .map_err(Problem::from),
        Err(problem) => Err(problem),
    };
    match set {
        Ok(user) => page_with(
            StatusCode::OK,
            &Reset {
                user,
                link: String::new(),
                problem: String::new(),
                done: true,
            },
        ),
        Err(problem) => {
            let user = portal.identity.reset_user(&form.link).unwrap_or_default();
            let detail = problem.detail().to_owned();
            reset_page(problem.status(), user, form.link, detail)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_when_a_token_was_used_from_where_it_is_accepted_and_what_replaces_it() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let row = |more: serde_json::Value| {
            let mut record = serde_json::json!({
                "id": "1", "user": "ann", "label": "ci", "purpose": "access",
                "created": "2026-01-01T00:00:00Z", "expires": "2026-04-01T00:00:00Z",
            });
            for (key, value) in more.as_object().unwrap() {
                record[key] = value.clone();
            }
            TokenRow::of(serde_json::from_value(record).unwrap(), now)
        };
        let fresh = row(serde_json::json!({}));
        assert_eq!(
            (fresh.used.words.as_str(), fresh.remarks.as_str()),
            ("never", "")
        );
        let old = row(serde_json::json!({
            "lastUsed": "2026-01-01T11:00:00Z", "from": ["10.0.0.0/8", "::1/128"], "replacedBy": "2",
        }));
        assert_eq!(
            old.used.words,
            When::of("2026-01-01T11:00:00Z".parse().unwrap(), now).words
        );
        assert_eq!(old.remarks, "only from 10.0.0.0/8, ::1/128; replaced by 2");
    }
}
