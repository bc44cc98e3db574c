//! What administrators do with users, and users with their own passwords and sessions.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;

use crate::error::IdentityError;
use crate::identities::Identity;
use crate::limits::RESET_HOURS_MAX;
use crate::mirror::KeptSessions;
use crate::passwords;
use crate::tokens::{self, IssuedToken, TokenInfo, TokenPurpose};
use crate::user::{SavedView, User, UserChange};

impl Identity {
    /// Changes a user's record. Disabling it ends its sessions, and its access tokens are refused until it is enabled
    /// again.
    ///
    /// # Errors
    /// A field is out of bounds, or no administrator would be left that can sign in.
    pub async fn change_user(&self, name: &str, change: UserChange) -> Result<User, IdentityError> {
        let _turn = self.0.writing.lock().await;
        let user = self.existing(name)?;
        let next = user.changed(change)?;
        if user.is_lasting_admin() && !next.is_lasting_admin() {
            self.require_other_admin(name)?;
        }
        self.0.directory.replace_user(&next, None).await?;
        Ok(next)
    }

    /// Saves a view of a user under its name, in place of an earlier one of that name.
    ///
    /// # Errors
    /// The user does not exist, the name or the query is out of bounds, or the user has as many views as it may.
    pub async fn save_view(&self, user: &str, view: SavedView) -> Result<(), IdentityError> {
        let _turn = self.0.writing.lock().await;
        let next = self.existing(user)?.with_view(view)?;
        self.0.directory.replace_user(&next, None).await
    }

    /// Removes a user's view; nothing happens if there is none of this name.
    ///
    /// # Errors
    /// The user does not exist.
    pub async fn remove_view(&self, user: &str, view: &str) -> Result<(), IdentityError> {
        let _turn = self.0.writing.lock().await;
        let now = self.existing(user)?;
        let next = now.without_view(view);
        if next == now {
            return Ok(());
        }
        self.0.directory.replace_user(&next, None).await
    }

    /// Deletes a user, with its sessions and tokens.
    ///
    /// # Errors
    /// The user does not exist, or is the last administrator that can sign in.
    pub async fn delete_user(&self, name: &str) -> Result<(), IdentityError> {
        let _turn = self.0.writing.lock().await;
        if self.existing(name)?.is_lasting_admin() {
            self.require_other_admin(name)?;
        }
        self.0.directory.delete_user(name).await
    }

    /// Changes a user's own password, for which the user gives the old one. Ends the user's other sessions; `session`
    /// stays.
    ///
    /// # Errors
    /// The old password is wrong, or the new one is too easy to guess. Wrong passwords count as failed sign-ins.
    pub async fn change_password(
        &self,
        name: &str,
        old: &str,
        new: &str,
        session: Option<&TokenInfo>,
        from: Option<IpAddr>,
    ) -> Result<(), IdentityError> {
        passwords::check_strength(name, new)?;
        if old == new {
            return Err(IdentityError::WeakPassword {
                reason: "it is the old one; use another one".to_owned(),
            });
        }
        self.check_password(name, old, from).await?;
        let kept = session.map(|session| session.id.clone());
        self.store_password(name, new, kept).await
    }

    /// Issues a link with which a user sets its password, once. Earlier links of the user end; its password stays
    /// valid until the new one is set.
    ///
    /// # Errors
    /// The user does not exist, is disabled or signs in by OpenID Connect, or the time is out of range.
    pub async fn issue_reset(&self, name: &str, hours: u64) -> Result<IssuedToken, IdentityError> {
        if !(1..=RESET_HOURS_MAX).contains(&hours) {
            return Err(IdentityError::LinkLifetime { hours });
        }
        let _turn = self.0.writing.lock().await;
        let user = self.existing(name)?;
        if user.disabled {
            return Err(IdentityError::Disabled {
                name: name.to_owned(),
            });
        }
        if user.oidc.is_some() {
            return Err(IdentityError::NoPassword {
                name: name.to_owned(),
            });
        }
        for link in self.of_user(name, TokenPurpose::Reset) {
            self.revoke(&link.id).await?;
        }
        let ttl = Duration::from_secs(hours * 3600);
        self.issue(name, "password link", TokenPurpose::Reset, ttl)
            .await
    }

    /// The user whose password a link sets; none if the link was used, has expired or never existed.
    pub fn reset_user(&self, secret: &str) -> Option<String> {
        let id = tokens::id_of(secret)?;
        let (info, user) = (self.0.directory).find_token(id, secret, Timestamp::now())?;
        (info.purpose == TokenPurpose::Reset && !user.disabled).then_some(user.name)
    }

    /// Sets a password by a link, which ends, as do all sessions of the user. The user then signs in.
    ///
    /// # Errors
    /// The link is not valid, or the password is too easy to guess; the link stays valid then.
    pub async fn reset_password(&self, secret: &str, new: &str) -> Result<String, IdentityError> {
        let name = self.reset_user(secret).ok_or(IdentityError::DeadLink)?;
        passwords::check_strength(&name, new)?;
        let hash = self.hash(new.to_owned()).await?;
        let _turn = self.0.writing.lock().await;
        // Another request may have used the link meanwhile.
        if self.reset_user(secret).is_none() {
            return Err(IdentityError::DeadLink);
        }
        let user = self.existing(&name)?;
        self.0.directory.replace_user(&user, Some(hash)).await?;
        for purpose in [TokenPurpose::Reset, TokenPurpose::Session] {
            for token in self.of_user(&name, purpose) {
                self.revoke(&token.id).await?;
            }
        }
        Ok(name)
    }

    /// A user's sessions, the newest first.
    pub fn sessions(&self, name: &str) -> Vec<TokenInfo> {
        let now = Timestamp::now();
        let mut sessions = self.of_user(name, TokenPurpose::Session);
        sessions.retain(|session| session.expires > now);
        sessions.sort_by_key(|session| std::cmp::Reverse(session.created));
        sessions
    }

    /// Ends one session of a user at once.
    ///
    /// # Errors
    /// The user has no such session.
    pub async fn end_session(&self, name: &str, id: &str) -> Result<(), IdentityError> {
        if !self.sessions(name).iter().any(|session| session.id == id) {
            return Err(IdentityError::NoSuchSession {
                user: name.to_owned(),
                id: id.chars().take(40).collect(),
            });
        }
        self.revoke(id).await
    }

    async fn store_password(
        &self,
        name: &str,
        new: &str,
        kept: Option<String>,
    ) -> Result<(), IdentityError> {
        let hash = self.hash(new.to_owned()).await?;
        let _turn = self.0.writing.lock().await;
        let user = self.existing(name)?;
        if let Some(id) = kept {
            let kept = KeptSessions::One(id);
            self.0.directory.announce(name, &hash, kept);
        }
        self.0.directory.replace_user(&user, Some(hash)).await
    }

    fn of_user(&self, name: &str, purpose: TokenPurpose) -> Vec<TokenInfo> {
        let mut all = self.tokens();
        all.retain(|token| token.user == name && token.purpose == purpose);
        all
    }

    pub(crate) fn existing(&self, name: &str) -> Result<User, IdentityError> {
        self.user(name).ok_or_else(|| IdentityError::NoSuchUser {
            name: name.chars().take(80).collect(),
        })
    }

    fn require_other_admin(&self, name: &str) -> Result<(), IdentityError> {
        let other = |user: &User| user.name != name && user.is_lasting_admin();
        if self.users().iter().any(other) {
            return Ok(());
        }
        Err(IdentityError::LastAdministrator {
            name: name.to_owned(),
        })
    }
}
