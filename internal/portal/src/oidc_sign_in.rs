//! Signs a user in after an OpenID Connect provider has confirmed its identity: writes the user's record, gives its teams and
//! opens its session.
//!
//! The mapping is applied anew at each sign-in. The role is always the mapping's. A team that the mapping gave before, and
//! gives no longer, is taken away; a team that it never gave stays, because an administrator gave it. The teams that the
//! mapping gives are recorded in the user's record before they are given, and those that are taken away stay recorded
//! until they are, so that an interruption loses none of them. If a team cannot be taken away, the sign-in fails. If no
//! rule applies to a user any more, the sign-in is refused, and the user loses its role, the mapping's teams and its sessions.

use std::collections::{BTreeMap, BTreeSet};

use administration::team::{TeamProblem, TeamRole, Teams};
use identity::{Identity, IssuedToken, OidcLink, OidcUser, User};
use oidc::{Granted, Oidc, OidcError, Person, RoleGrant};
use resources::access::UserRole;

use crate::problem::Problem;

/// Signing in by one provider.
pub struct OidcSignIn {
    oidc: Oidc,
    /// Held while a user's record and teams are written: both depend on what was read before.
    turn: tokio::sync::Mutex<()>,
}

impl OidcSignIn {
    /// By this provider.
    pub fn new(oidc: Oidc) -> OidcSignIn {
        OidcSignIn {
            oidc,
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// The provider's name on the button.
    pub fn button(&self) -> &str {
        self.oidc.button()
    }

    pub(crate) fn oidc(&self) -> &Oidc {
        &self.oidc
    }

    /// Creates or updates the user, gives it the mapping's teams, and opens a session.
    pub(crate) async fn admit(
        &self,
        identity: &Identity,
        teams: &Teams,
        person: Person,
    ) -> Result<(User, IssuedToken), Problem> {
        let _turn = self.turn.lock().await;
        let granted = match &person.granted {
            Ok(granted) => granted,
            Err(refusal) => return Err(withdraw(identity, teams, &person, refusal).await),
        };
        let user = update(identity, teams, &person, granted).await?;
        let session = identity.open_oidc_session(&user).await?;
        Ok((user, session))
    }
}

/// Gives the user exactly what the mapping gives.
async fn update(
    identity: &Identity,
    teams: &Teams,
    person: &Person,
    granted: &Granted,
) -> Result<User, Problem> {
    let before = identity
        .oidc_user(&person.issuer, &person.subject)
        .and_then(|user| user.oidc)
        .map(|link| link.teams)
        .unwrap_or_default();
    let wanted: BTreeMap<String, TeamRole> = granted
        .teams
        .iter()
        .map(|(team, role)| (team.clone(), team_role(*role)))
        .collect();
    let both: BTreeSet<String> = before.into_iter().chain(wanted.keys().cloned()).collect();
    let user = identity
        .put_oidc_user(record(person, granted, both.clone()))
        .await?;
    let given = give(teams, &user.name, &wanted).await;
    // Also from a team that it was put into in part.
    for team in both.difference(&given) {
        take_away(teams, &user.name, team).await?;
    }
    let user = identity
        .put_oidc_user(record(person, granted, given))
        .await?;
    Ok(user)
}

/// If the mapping gives a user nothing any more: takes away what it gave before, ends the user's sessions, and returns the
/// refusal.
async fn withdraw(
    identity: &Identity,
    teams: &Teams,
    person: &Person,
    refusal: &OidcError,
) -> Problem {
    let known = identity.oidc_user(&person.issuer, &person.subject);
    if let Some(user) = known.filter(|user| !user.disabled) {
        let nothing = Granted {
            role: RoleGrant {
                role: UserRole::Member,
                namespaces: Some(Vec::new()),
            },
            teams: BTreeMap::new(),
            rules: Vec::new(),
        };
        if let Err(problem) = update(identity, teams, person, &nothing).await {
            return problem;
        }
        for session in identity.sessions(&user.name) {
            if let Err(error) = identity.revoke(&session.id).await {
                tracing::warn!(user = user.name, %error, "the server could not end a session");
            }
        }
    }
    Problem::from(refusal.clone())
}

fn team_role(role: oidc::TeamRole) -> TeamRole {
    match role {
        oidc::TeamRole::Lead => TeamRole::Lead,
        oidc::TeamRole::Member => TeamRole::Member,
        oidc::TeamRole::Viewer => TeamRole::Viewer,
    }
}

fn record(person: &Person, granted: &Granted, teams: BTreeSet<String>) -> OidcUser {
    OidcUser {
        link: OidcLink {
            issuer: person.issuer.clone(),
            subject: person.subject.clone(),
            teams,
        },
        name: person.name.clone(),
        role: granted.role.role,
        namespaces: granted.role.namespaces.clone(),
        display_name: person.display_name.clone(),
        email: person.email.clone(),
    }
}

/// Puts the user into its teams. A team that does not exist, or is full, is left out and named in the log; the others
/// are the answer.
async fn give(teams: &Teams, user: &str, wanted: &BTreeMap<String, TeamRole>) -> BTreeSet<String> {
    let mut given = BTreeSet::new();
    for (team, role) in wanted {
        match put_into(teams, user, team, *role).await {
            Ok(()) => {
                given.insert(team.clone());
            }
            Err(error) => {
                tracing::warn!(user, team, %error, "the OpenID Connect mapping names a team that the user was not added to");
            }
        }
    }
    given
}

async fn put_into(
    teams: &Teams,
    user: &str,
    team: &str,
    role: TeamRole,
) -> Result<(), TeamProblem> {
    let namespaces = teams.namespaces(team).await?;
    let members = teams.members(team, &namespaces).await?;
    if members.get(user) == Some(&role) {
        return Ok(());
    }
    teams.add_member(team, user, role).await
}

async fn take_away(teams: &Teams, user: &str, team: &str) -> Result<(), Problem> {
    match teams.remove_member(team, user).await {
        Ok(()) | Err(TeamProblem::Missing(_) | TeamProblem::NoMember { .. }) => Ok(()),
        Err(problem) => Err(Problem::from(problem)),
    }
}
