//! Access tokens for programs, and join tokens for agents.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use identity::TokenPurpose;
use resources::access::{Caller, Role};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Problem;
use crate::state::{Portal, SignedIn};

const DAY: u64 = 24 * 3600;

/// The longest life of a join token, in minutes: a week.
const LONGEST_JOIN_MINUTES: u64 = 7 * 24 * 60;

/// What a new token should be.
#[derive(Deserialize)]
pub struct NewToken {
    #[serde(default)]
    label: String,
    days: u64,
    user: Option<String>,
}

/// How long a join token should work.
#[derive(Deserialize)]
pub struct NewJoinToken {
    minutes: u64,
}

fn is_admin(caller: &Caller) -> bool {
    matches!(caller.role, Role::Admin | Role::Component)
}

/// Lists the caller's tokens; an administrator sees everyone's.
pub async fn list(State(portal): State<Portal>, SignedIn(caller): SignedIn) -> Json<Value> {
    let mut items = portal.identity.tokens();
    items.retain(|token| {
        token.purpose == TokenPurpose::Access && (is_admin(&caller) || token.user == caller.user)
    });
    Json(json!({"items": items}))
}

/// Issues a token; only an administrator may issue one for somebody else.
pub async fn create(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Json(new): Json<NewToken>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let user = new.user.unwrap_or_else(|| caller.user.clone());
    if user != caller.user && !is_admin(&caller) {
        return Err(Problem::forbidden(
            "only an administrator issues tokens for other users",
        ));
    }
    let ttl = Duration::from_secs(new.days.saturating_mul(DAY));
    let issued = portal.identity.create_token(&user, &new.label, ttl).await?;
    let body = json!({"secret": issued.secret, "token": issued.info});
    Ok((StatusCode::CREATED, Json(body)))
}

/// Ends a token of the caller's own, or any for an administrator.
pub async fn revoke(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    let owner = portal
        .identity
        .tokens()
        .into_iter()
        .find(|token| token.id == id);
    if owner.is_some_and(|token| token.user != caller.user) && !is_admin(&caller) {
        return Err(Problem::forbidden(
            "only an administrator ends other users' tokens",
        ));
    }
    portal.identity.revoke(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Issues a join token; administrators only, for a node that joins runs everyone's pods.
pub async fn join(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Json(new): Json<NewJoinToken>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    if !is_admin(&caller) {
        return Err(Problem::forbidden("only an administrator lets nodes join"));
    }
    if !(1..=LONGEST_JOIN_MINUTES).contains(&new.minutes) {
        return Err(Problem::invalid(format!(
            "minutes: Invalid value: {}: use 1 to {LONGEST_JOIN_MINUTES}",
            new.minutes
        )));
    }
    let ttl = Duration::from_secs(new.minutes * 60);
    let issued = (portal.hooks.issue_join_token)(ttl)
        .await
        .map_err(|detail| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail))?;
    let body = json!({"token": issued.secret, "expires": issued.expires});
    Ok((StatusCode::CREATED, Json(body)))
}
