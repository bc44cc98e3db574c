//! Users, their passwords and their sessions.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use identity::{TokenInfo, User, UserChange};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::people::{self, NewPerson};
use crate::problem::Problem;
use crate::state::{Portal, SignedIn};

/// The options of a link to set a password.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResetRequest {
    /// How long it is valid.
    hours: Option<u64>,
}

/// A change of a user's own password.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PasswordChange {
    old: String,
    new: String,
}

/// A user as JSON, with whether it has a second factor.
fn answer(portal: &Portal, user: &User) -> Value {
    let mut answer = json!(user);
    answer["secondFactor"] = portal.identity.second_factor(&user.name).is_some().into();
    answer
}

/// Lists the users, for administrators.
pub async fn list(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
) -> Result<Json<Value>, Problem> {
    people::require(&portal, &caller, "list")?;
    let row = |(user, sessions): (User, usize)| {
        let mut row = answer(&portal, &user);
        row["sessions"] = sessions.into();
        row
    };
    let items: Vec<Value> = people::all(&portal).into_iter().map(row).collect();
    Ok(Json(json!({"items": items})))
}

/// Creates a user. Without a password the answer has a link by which the user sets it.
pub async fn create(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Json(new): Json<NewPerson>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let (user, link) = people::create(&portal, &caller, new).await?;
    let link = link.as_ref().map(people::reset_answer);
    let body = json!({"user": user, "resetLink": link});
    Ok((StatusCode::CREATED, Json(body)))
}

/// One user: for administrators and for itself.
pub async fn one(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    people::require_own_or(&portal, &caller, &name, "get")?;
    Ok(Json(answer(&portal, &people::find(&portal, &name)?)))
}

/// Changes a user's record, for administrators.
pub async fn change(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
    Json(change): Json<UserChange>,
) -> Result<Json<User>, Problem> {
    Ok(Json(people::change(&portal, &caller, &name, change).await?))
}

/// Deletes a user, for administrators.
pub async fn delete(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    people::delete(&portal, &caller, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Issues a link by which a user sets its password, for administrators.
pub async fn reset_link(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
    Json(asked): Json<ResetRequest>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let hours = asked.hours.unwrap_or(identity::RESET_HOURS);
    let link = people::reset_link(&portal, &caller, &name, hours).await?;
    Ok((StatusCode::CREATED, Json(people::reset_answer(&link))))
}

/// Removes a user's second factor, for administrators.
pub async fn reset_second_factor(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    people::reset_second_factor(&portal, &caller, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Changes the caller's own password, with the old one. Its other sessions end.
pub async fn password(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    peer: Option<Extension<ConnectInfo<SocketAddr>>>,
    credential: Option<Extension<TokenInfo>>,
    Path(name): Path<String>,
    Json(change): Json<PasswordChange>,
) -> Result<StatusCode, Problem> {
    if caller.user != name {
        people::require(&portal, &caller, "update")?;
        return Err(Problem::invalid(
            "a user changes only its own password; issue a link for another user (`muster user reset-password NAME`)",
        ));
    }
    let from = peer.map(|Extension(ConnectInfo(address))| address.ip());
    let session = credential.map(|Extension(token)| token);
    portal
        .identity
        .change_password(&name, &change.old, &change.new, session.as_ref(), from)
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists a user's sessions: for administrators and for itself.
pub async fn sessions(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    credential: Option<Extension<TokenInfo>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    people::require_own_or(&portal, &caller, &name, "get")?;
    people::find(&portal, &name)?;
    let current = credential.map(|Extension(token)| token);
    let sessions = portal.identity.sessions(&name);
    let items: Vec<Value> = sessions
        .iter()
        .map(|session| people::session_answer(session, current.as_ref()))
        .collect();
    Ok(Json(json!({"items": items})))
}

/// Ends all sessions of a user: for administrators and for itself.
pub async fn end_sessions(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    let ended = people::end_sessions(&portal, &caller, &name).await?;
    Ok(Json(json!({"ended": ended})))
}

/// Ends one session of a user: for administrators and for itself.
pub async fn end_session(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path((name, id)): Path<(String, String)>,
) -> Result<StatusCode, Problem> {
    people::end_session(&portal, &caller, &name, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
