//! Users that sign in by OpenID Connect: their link to a subject of a provider, and the record that the provider's claims
//! make at each sign-in. A record without this link is never taken over.

use resources::access::UserRole;

use crate::directory::NewUser;
use crate::error::IdentityError;
use crate::identities::{FIRST_ADMIN, Identity};
use crate::limits::{SESSION_TTL, USERS_MAX};
use crate::passwords;
use crate::tokens::{IssuedToken, TokenPurpose};
use crate::user::{OidcLink, User, is_email};

/// What a sign-in makes of a user.
#[derive(Clone, Debug)]
pub struct OidcUser {
    /// The user at the provider, and the teams to record.
    pub link: OidcLink,
    /// The name, if the user is new.
    pub name: String,
    /// The role.
    pub role: UserRole,
    /// The namespaces of the role: all if absent, none if empty.
    pub namespaces: Option<Vec<String>>,
    /// The name for people; the present one stays if the provider sends none.
    pub display_name: Option<String>,
    /// The e-mail address; the present one stays if the provider sends none.
    pub email: Option<String>,
}

impl Identity {
    /// The user that is linked to this subject of this provider.
    pub fn oidc_user(&self, issuer: &str, subject: &str) -> Option<User> {
        let linked = |user: &User| {
            let link = user.oidc.as_ref();
            link.is_some_and(|link| link.issuer == issuer && link.subject == subject)
        };
        self.users().into_iter().find(linked)
    }

    /// Creates or updates the user that is linked to a subject of a provider.
    ///
    /// # Errors
    /// The user is disabled; or the user is new, and its name is taken or there are too many users.
    pub async fn put_oidc_user(&self, new: OidcUser) -> Result<User, IdentityError> {
        let _turn = self.0.writing.lock().await;
        let email = new.email.filter(|email| is_email(email));
        if let Some(user) = self.oidc_user(&new.link.issuer, &new.link.subject) {
            if user.disabled {
                return Err(IdentityError::Disabled { name: user.name });
            }
            let next = User {
                role: new.role,
                namespaces: new.namespaces,
                display_name: new.display_name.or_else(|| user.display_name.clone()),
                email: email.or_else(|| user.email.clone()),
                oidc: Some(new.link),
                ..user.clone()
            };
            next.check()?;
            if next != user {
                self.0.directory.replace_user(&next, None).await?;
            }
            return Ok(next);
        }
        let directory = &self.0.directory;
        // The name of the first administrator is this machine's own way in, also while no user has it.
        let taken = new.name == FIRST_ADMIN
            || self.user(&new.name).is_some()
            || directory.is_damaged(&new.name);
        if taken {
            return Err(IdentityError::NameOfAnother { name: new.name });
        }
        let held = self.users().len();
        if held >= USERS_MAX {
            return Err(IdentityError::TooManyUsers { held });
        }
        let user = User {
            namespaces: new.namespaces,
            display_name: new.display_name,
            email,
            oidc: Some(new.link),
            ..NewUser::new(&new.name, new.role).user
        };
        user.check()?;
        let hash = passwords::NO_PASSWORD.to_owned();
        directory.insert_user(user, hash).await
    }

    /// Opens a session for a browser whose user the provider has vouched for.
    ///
    /// # Errors
    /// The session could not be stored.
    pub async fn open_oidc_session(&self, user: &User) -> Result<IssuedToken, IdentityError> {
        self.end_oldest_session(&user.name).await;
        let purpose = TokenPurpose::Session;
        self.issue(&user.name, "browser session", purpose, SESSION_TTL)
            .await
    }
}
