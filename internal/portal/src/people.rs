//! What callers may do with users, passwords and sessions. The REST routes and the pages share it.
//!
//! Rights are Kubernetes' RBAC on `users` in the API group `muster.io`. A user needs none for its own record, password
//! and sessions. Only an administrator manages administrators, so that the right to manage users does not grant
//! everything.

use identity::{IssuedToken, NewUser, TokenInfo, User, UserChange};
use resources::access::{Caller, UserRole};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::problem::Problem;
use crate::state::Portal;

/// The resource that roles name.
const USERS: &str = "users";

/// The path of the page on which a user sets its password; the link's secret follows.
pub const RESET_PAGE: &str = "/ui/reset/";

/// The path of the page on which a user approves the sign-in of a program.
pub const DEVICE_PAGE: &str = "/ui/device";

/// The fields of a new user.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewPerson {
    /// The name for signing in.
    pub name: String,
    /// The role; member by default.
    pub role: Option<UserRole>,
    /// The namespaces of the role; all by default, none if the list is empty.
    pub namespaces: Option<Vec<String>>,
    /// The name for people.
    pub display_name: Option<String>,
    /// The e-mail address.
    pub email: Option<String>,
    /// The first password; without one the user sets it by a link.
    pub password: Option<String>,
}

/// Refuses a caller that may not do this to users.
pub fn require(portal: &Portal, caller: &Caller, verb: &str) -> Result<(), Problem> {
    if portal.permits_own(caller, verb, USERS) {
        return Ok(());
    }
    Err(Problem::forbidden(format!(
        "only an administrator may do this to users ({verb} {USERS}.muster.io)"
    )))
}

/// Refuses a caller that neither is the user nor may do this to users.
pub fn require_own_or(
    portal: &Portal,
    caller: &Caller,
    name: &str,
    verb: &str,
) -> Result<(), Problem> {
    if caller.user == name {
        return Ok(());
    }
    require(portal, caller, verb)
}

/// Refuses a caller that is no administrator what makes, changes or takes over one.
fn require_equal(caller: &Caller, role: UserRole) -> Result<(), Problem> {
    let administrator = caller.is_in(UserRole::Admin.group()) || caller.is_unlimited();
    if role != UserRole::Admin || administrator {
        return Ok(());
    }
    Err(Problem::forbidden(
        "role: admin: only an administrator may create, change or delete an administrator",
    ))
}

/// A user by its name.
pub fn find(portal: &Portal, name: &str) -> Result<User, Problem> {
    let missing = || identity::IdentityError::NoSuchUser {
        name: name.chars().take(80).collect(),
    };
    let user = portal.identity.user(name);
    user.ok_or_else(|| Problem::from(missing()))
}

/// All users, each with the number of its sessions.
pub fn all(portal: &Portal) -> Vec<(User, usize)> {
    let users = portal.identity.users().into_iter();
    let counted = |user: User| {
        let sessions = portal.identity.sessions(&user.name).len();
        (user, sessions)
    };
    users.map(counted).collect()
}

/// Creates a user. Without a password, the answer has the link by which the user sets it.
pub async fn create(
    portal: &Portal,
    caller: &Caller,
    new: NewPerson,
) -> Result<(User, Option<IssuedToken>), Problem> {
    require(portal, caller, "create")?;
    let role = new.role.unwrap_or(UserRole::Member);
    require_equal(caller, role)?;
    let mut asked = NewUser::new(&new.name, role);
    asked.user.namespaces = new.namespaces;
    asked.user.display_name = new.display_name.filter(|name| !name.is_empty());
    asked.user.email = new.email.filter(|email| !email.is_empty());
    let invited = new.password.is_none();
    asked.password = new.password;
    let user = portal.identity.create_user(asked).await?;
    if !invited {
        return Ok((user, None));
    }
    let link = portal
        .identity
        .issue_reset(&user.name, identity::RESET_HOURS)
        .await?;
    Ok((user, Some(link)))
}

/// Changes a user's record.
pub async fn change(
    portal: &Portal,
    caller: &Caller,
    name: &str,
    change: UserChange,
) -> Result<User, Problem> {
    require(portal, caller, "update")?;
    require_equal(caller, find(portal, name)?.role)?;
    if let Some(role) = change.role {
        require_equal(caller, role)?;
    }
    Ok(portal.identity.change_user(name, change).await?)
}

/// Deletes a user.
pub async fn delete(portal: &Portal, caller: &Caller, name: &str) -> Result<(), Problem> {
    require(portal, caller, "delete")?;
    require_equal(caller, find(portal, name)?.role)?;
    Ok(portal.identity.delete_user(name).await?)
}

/// Issues a link by which a user sets its password.
pub async fn reset_link(
    portal: &Portal,
    caller: &Caller,
    name: &str,
    hours: u64,
) -> Result<IssuedToken, Problem> {
    require(portal, caller, "update")?;
    require_equal(caller, find(portal, name)?.role)?;
    Ok(portal.identity.issue_reset(name, hours).await?)
}

/// Removes the second factor of a user, which lost it.
pub async fn reset_second_factor(
    portal: &Portal,
    caller: &Caller,
    name: &str,
) -> Result<(), Problem> {
    require(portal, caller, "update")?;
    require_equal(caller, find(portal, name)?.role)?;
    Ok(portal.identity.reset_second_factor(name).await?)
}

/// Ends one session of a user.
pub async fn end_session(
    portal: &Portal,
    caller: &Caller,
    name: &str,
    id: &str,
) -> Result<(), Problem> {
    require_own_or(portal, caller, name, "update")?;
    Ok(portal.identity.end_session(name, id).await?)
}

/// Ends all sessions of a user; returns their number.
pub async fn end_sessions(portal: &Portal, caller: &Caller, name: &str) -> Result<usize, Problem> {
    require_own_or(portal, caller, name, "update")?;
    find(portal, name)?;
    let sessions = portal.identity.sessions(name);
    for session in &sessions {
        portal.identity.revoke(&session.id).await?;
    }
    Ok(sessions.len())
}

/// The path of the page that a link opens.
pub fn reset_path(link: &IssuedToken) -> String {
    format!("{RESET_PAGE}{}", link.secret)
}

/// A link as JSON: its path on this server, and when it expires.
pub fn reset_answer(link: &IssuedToken) -> Value {
    json!({"user": link.info.user, "path": reset_path(link), "expires": link.info.expires})
}

/// A session as JSON, without its secret.
pub fn session_answer(session: &TokenInfo, current: Option<&TokenInfo>) -> Value {
    json!({
        "id": session.id, "created": session.created, "expires": session.expires,
        "current": current.is_some_and(|current| current.id == session.id),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_administrators_manage_administrators() {
        let caller = |group: &str| Caller::user("ann", [group.to_owned()]);
        for (group, role, permitted) in [
            ("muster:admin", UserRole::Admin, true),
            ("system:masters", UserRole::Admin, true),
            ("muster:lead", UserRole::Admin, false),
            ("muster:admin:team-a", UserRole::Admin, false),
            ("muster:lead", UserRole::Lead, true),
        ] {
            let answer = require_equal(&caller(group), role);
            assert_eq!(answer.is_ok(), permitted, "{group} {role:?}");
        }
    }
}
