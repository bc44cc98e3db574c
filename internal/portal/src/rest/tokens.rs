//! Access tokens for programs, and join tokens for agents.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use identity::{AddressRange, RotatedToken, TOKEN_OVERLAP, TokenInfo, TokenPurpose};
use jiff::Timestamp;
use resources::access::{Caller, Impersonator};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::problem::Problem;
use crate::state::{NewJoinToken, NodeRequestProblem, Portal, SignedIn};

const DAY: u64 = 24 * 3600;

/// The longest validity of a join token, in minutes: a week.
const LONGEST_JOIN_MINUTES: u64 = 7 * 24 * 60;

/// The options of a new token.
#[derive(Deserialize)]
pub struct NewToken {
    #[serde(default)]
    label: String,
    days: u64,
    user: Option<String>,
    /// The ranges of addresses from which it is accepted; all if there is none.
    #[serde(default)]
    from: Vec<String>,
}

/// The options of a rotation.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rotation {
    /// How long the old token stays valid; a day by default.
    overlap_seconds: Option<u64>,
}

/// The options of a join token.
#[derive(Deserialize)]
pub struct JoinRequest {
    /// How long it is valid.
    minutes: u64,
    /// The only node that may join with it; any node if none.
    node: Option<String>,
    /// How many joins it is valid for; one by default.
    uses: Option<u32>,
}

/// True if the caller may do this to other users' tokens.
fn others(portal: &Portal, caller: &Caller, verb: &str) -> bool {
    portal.permits_own(caller, verb, "tokens")
}

/// Lists the caller's valid tokens; for an administrator all users' tokens.
pub async fn list(State(portal): State<Portal>, SignedIn(caller): SignedIn) -> Json<Value> {
    let mut items = portal.identity.tokens();
    let all = others(&portal, &caller, "list");
    let now = Timestamp::now();
    items.retain(|token| {
        token.purpose == TokenPurpose::Access
            && token.expires > now
            && (all || token.user == caller.user)
    });
    Json(json!({"items": items}))
}

/// Why a caller may not get an access token, if so. A token that could issue another would outlive
/// its own revocation: a token issued by a leaked one would stay valid after the leaked one is
/// revoked.
fn refusal(
    credential: Option<TokenPurpose>,
    own: bool,
    administrator: bool,
) -> Option<&'static str> {
    if administrator {
        return None;
    }
    if !own {
        return Some("only an administrator may issue tokens for other users");
    }
    (credential != Some(TokenPurpose::Session)).then_some(
        "an access token cannot issue another token; sign in, or ask an administrator for `muster token create --user`",
    )
}

/// Refuses a caller that may not get an access token for itself.
///
/// # Errors
/// The caller impersonates a user, or its credential is an access token and it is no administrator.
pub fn may_issue_token(
    portal: &Portal,
    caller: &Caller,
    impersonates: bool,
    credential: Option<TokenPurpose>,
) -> Result<(), Problem> {
    // A token would outlive the right to impersonate.
    if impersonates {
        return Err(Problem::forbidden(
            "a caller that impersonates a user cannot issue a token; send the request without impersonation and name the user",
        ));
    }
    let administrator = others(portal, caller, "create");
    refusal(credential, true, administrator).map_or(Ok(()), |why| Err(Problem::forbidden(why)))
}

/// Issues a token: for the user of a session, and for every user if an administrator asks.
pub async fn create(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    impersonator: Option<Extension<Impersonator>>,
    credential: Option<Extension<TokenInfo>>,
    Json(new): Json<NewToken>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let user = new.user.unwrap_or_else(|| caller.user.clone());
    let credential = credential.map(|Extension(token)| token.purpose);
    may_issue_for(&portal, &caller, &user, impersonator.is_some(), credential)?;
    let ttl = Duration::from_secs(new.days.saturating_mul(DAY));
    let from = AddressRange::read_all(&new.from)?;
    let issued = portal
        .identity
        .create_token(&user, &new.label, ttl, from)
        .await?;
    let body = json!({"secret": issued.secret, "token": issued.info});
    Ok((StatusCode::CREATED, Json(body)))
}

/// Refuses a caller that may not get an access token of this user.
fn may_issue_for(
    portal: &Portal,
    caller: &Caller,
    user: &str,
    impersonates: bool,
    credential: Option<TokenPurpose>,
) -> Result<(), Problem> {
    if user == caller.user || impersonates {
        return may_issue_token(portal, caller, impersonates, credential);
    }
    let administrator = others(portal, caller, "create");
    refusal(credential, false, administrator).map_or(Ok(()), |why| Err(Problem::forbidden(why)))
}

/// Rotates an access token by the rules for issuing one: the new token would outlive the revocation of the old one, so
/// a token cannot rotate itself.
pub async fn rotate(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    impersonator: Option<Extension<Impersonator>>,
    credential: Option<Extension<TokenInfo>>,
    Path(id): Path<String>,
    Json(asked): Json<Rotation>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let all = portal.identity.tokens();
    let owner = all.into_iter().find(|token| token.id == id);
    let user = owner.map_or_else(|| caller.user.clone(), |token| token.user);
    let credential = credential.map(|Extension(token)| token.purpose);
    may_issue_for(&portal, &caller, &user, impersonator.is_some(), credential)?;
    let overlap = asked
        .overlap_seconds
        .map_or(TOKEN_OVERLAP, Duration::from_secs);
    let RotatedToken { issued, old } = portal.identity.rotate_token(&id, overlap).await?;
    let body = json!({"secret": issued.secret, "token": issued.info, "old": old});
    Ok((StatusCode::CREATED, Json(body)))
}

/// Revokes one of the caller's tokens, or any token for an administrator.
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
    if owner.is_some_and(|token| token.user != caller.user) && !others(&portal, &caller, "delete") {
        return Err(Problem::forbidden(
            "only an administrator may revoke other users' tokens",
        ));
    }
    portal.identity.revoke(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn require(
    portal: &Portal,
    caller: &Caller,
    verb: &str,
    resource: &str,
    what: &str,
) -> Result<(), Problem> {
    if portal.permits_own(caller, verb, resource) {
        return Ok(());
    }
    Err(Problem::forbidden(format!(
        "only an administrator may {what}"
    )))
}

/// Converts an error of a request about nodes; keeps its text.
fn refused(problem: NodeRequestProblem) -> Problem {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let code = match status {
        StatusCode::UNPROCESSABLE_ENTITY => "invalid",
        _ => "unavailable",
    };
    Problem::new(status, code, problem.detail)
}

/// Issues a join token. Administrators only, because a node that joins runs all users' pods.
pub async fn join(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Json(new): Json<JoinRequest>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    require(&portal, &caller, "create", "jointokens", "let nodes join")?;
    if !(1..=LONGEST_JOIN_MINUTES).contains(&new.minutes) {
        return Err(Problem::invalid(format!(
            "minutes: Invalid value: {}: use 1 to {LONGEST_JOIN_MINUTES}",
            new.minutes
        )));
    }
    let asked = NewJoinToken {
        ttl: Duration::from_secs(new.minutes * 60),
        node: new.node,
        uses: new.uses.unwrap_or(1),
    };
    let issued = (portal.hooks.issue_join_token)(asked)
        .await
        .map_err(refused)?;
    let body = json!({
        "token": issued.secret,
        "id": issued.id,
        "expires": issued.expires,
        "server": issued.server,
    });
    Ok((StatusCode::CREATED, Json(body)))
}

/// Lists the join tokens; never their secrets.
pub async fn list_joins(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
) -> Result<Json<Value>, Problem> {
    require(
        &portal,
        &caller,
        "list",
        "jointokens",
        "see the join tokens",
    )?;
    let items = (portal.hooks.list_join_tokens)().await.map_err(refused)?;
    Ok(Json(json!({"items": items})))
}

/// Revokes a join token.
pub async fn revoke_join(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    require(
        &portal,
        &caller,
        "delete",
        "jointokens",
        "revoke join tokens",
    )?;
    let there = (portal.hooks.revoke_join_token)(id.clone())
        .await
        .map_err(refused)?;
    if there {
        return Ok(StatusCode::NO_CONTENT);
    }
    let detail =
        format!("there is no join token {id:?}; `muster token list` lists the join tokens");
    Err(Problem::new(StatusCode::NOT_FOUND, "not-found", detail))
}

/// Removes a node and revokes its certificates.
pub async fn remove_node(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    removed(&portal, &caller, &name, None).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Removes a node as a caller that may, unless something else is wrong with the request.
pub async fn removed(
    portal: &Portal,
    caller: &Caller,
    name: &str,
    wrong: Option<Problem>,
) -> Result<(), Problem> {
    require(portal, caller, "delete", "joinednodes", "remove nodes")?;
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    let there = (portal.hooks.remove_node)(name.to_owned())
        .await
        .map_err(refused)?;
    if there {
        return Ok(());
    }
    let detail = format!("there is no node {name:?}; `muster nodes` lists the nodes");
    Err(Problem::new(StatusCode::NOT_FOUND, "not-found", detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_issues_tokens_of_its_user_an_administrator_all_and_a_token_none() {
        let (session, access) = (Some(TokenPurpose::Session), Some(TokenPurpose::Access));
        for (credential, own, administrator, issued) in [
            (session, true, false, true),
            (session, false, false, false),
            (access, true, false, false),
            (access, false, false, false),
            // A service account's token or a certificate.
            (None, true, false, false),
            (session, false, true, true),
            (access, true, true, true),
            (access, false, true, true),
        ] {
            let refused = refusal(credential, own, administrator);
            assert_eq!(
                refused.is_none(),
                issued,
                "{credential:?} own {own} administrator {administrator}"
            );
        }
    }
}
