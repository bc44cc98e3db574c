//! The operations on users, sessions and access tokens.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use resources::access::UserRole;
use supervisor::keep_running;

use crate::address_range::AddressRange;
use crate::device_logins::DeviceLogins;
use crate::directory::{self, NewUser, UserDirectory};
use crate::error::IdentityError;
use crate::factor_checks::FactorChecks;
use crate::limits::{LONGEST_TOKEN_TTL, SESSIONS_PER_USER_MAX, USERS_MAX};
use crate::mirror::KeptSessions;
use crate::passwords::{self, Hashing};
use crate::throttle::Throttle;
use crate::tokens::{self, IssuedToken, TokenInfo, TokenPurpose};
use crate::user::User;

/// The name of the administrator that exists from the first start.
pub const FIRST_ADMIN: &str = "admin";

/// The parameters of [`Identity::open`].
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The first administrator's password, used only while no user exists. Without it, a password
    /// is generated and returned once in [`OpenedIdentity::first_admin`].
    pub first_password: Option<String>,
}

/// The generated password of the first administrator; it cannot be read again later.
#[derive(Clone, Debug)]
pub struct FirstAdmin {
    /// The user's name.
    pub user: String,
    /// The password, in the clear.
    pub password: String,
}

/// The result of opening the directory of users.
pub struct OpenedIdentity {
    /// The identities.
    pub identity: Identity,
    /// Set if this start created the first administrator with a generated password.
    pub first_admin: Option<FirstAdmin>,
}

/// Users, tokens and sessions. Cheap to clone.
#[derive(Clone)]
pub struct Identity(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) directory: Arc<UserDirectory>,
    throttle: Throttle,
    /// The attempts to give a second factor: apart from those of passwords, which a right password resets.
    pub(crate) code_throttle: Throttle,
    pub(crate) factor_checks: parking_lot::Mutex<FactorChecks>,
    hashing: Hashing,
    /// The programs that wait for a person's approval.
    pub(crate) device_logins: parking_lot::Mutex<DeviceLogins>,
    /// Held while a user is changed: a change depends on what it read, such as the other administrators.
    pub(crate) writing: tokio::sync::Mutex<()>,
}

impl Identity {
    /// Reads users and tokens, deletes expired ones, and creates the first administrator if no user
    /// exists, or if that user's Secret is unreadable. Access to this machine's data is therefore
    /// sufficient to sign in.
    pub async fn open(
        client: kube::Client,
        options: Options,
    ) -> Result<OpenedIdentity, IdentityError> {
        let directory = Arc::new(UserDirectory::load(client).await?);
        let weak = Arc::downgrade(&directory);
        let follow = move || directory::follow(weak.clone());
        tokio::spawn(keep_running("the watch of users and tokens", follow));
        let weak = Arc::downgrade(&directory);
        let write = move || directory::write_last_uses(weak.clone());
        tokio::spawn(keep_running("the writes of tokens' last uses", write));
        let identity = Identity(Arc::new(Inner {
            directory,
            throttle: Throttle::default(),
            code_throttle: Throttle::default(),
            factor_checks: parking_lot::Mutex::default(),
            hashing: Hashing::default(),
            device_logins: parking_lot::Mutex::default(),
            writing: tokio::sync::Mutex::default(),
        }));
        identity.drop_expired(Timestamp::now()).await;
        let mut first_admin = None;
        let damaged = identity.0.directory.is_damaged(FIRST_ADMIN);
        if identity.users().is_empty() || damaged {
            let drawn = options.first_password.is_none();
            let password = match options.first_password {
                Some(password) => password,
                None => tokens::draw_password()?,
            };
            let created = identity
                .create_user(NewUser {
                    password: Some(password.clone()),
                    ..NewUser::new(FIRST_ADMIN, UserRole::Admin)
                })
                .await;
            match created {
                Ok(_) => {
                    first_admin = drawn.then(|| FirstAdmin {
                        user: FIRST_ADMIN.to_string(),
                        password,
                    });
                }
                // The server starts in any case; the next start retries.
                Err(error) if damaged => {
                    tracing::error!(%error, "the server could not create the administrator again");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(OpenedIdentity {
            identity,
            first_admin,
        })
    }

    /// Every user, by name.
    pub fn users(&self) -> Vec<User> {
        self.0.directory.users()
    }

    /// One user.
    pub fn user(&self, name: &str) -> Option<User> {
        self.0.directory.user(name)
    }

    /// Creates a user; the name must be free and the password, if there is one, hard to guess. Without a password the
    /// user cannot sign in until it sets one by a link ([`Identity::issue_reset`]).
    ///
    /// # Errors
    /// A field is out of bounds, the name is taken, or there are too many users.
    pub async fn create_user(&self, new: NewUser) -> Result<User, IdentityError> {
        let NewUser { user, password } = new;
        user.check()?;
        let hash = match password {
            Some(password) => {
                passwords::check_strength(&user.name, &password)?;
                self.hash(password).await?
            }
            None => passwords::NO_PASSWORD.to_owned(),
        };
        let _turn = self.0.writing.lock().await;
        let held = self.users().len();
        if held >= USERS_MAX {
            return Err(IdentityError::TooManyUsers { held });
        }
        self.0.directory.insert_user(user, hash).await
    }

    /// Checks a user's password, offered from an address; a wrong one counts as a failed attempt. An outdated hash is
    /// replaced by one of the present parameters.
    pub(crate) async fn check_password(
        &self,
        user: &str,
        password: &str,
        from: Option<IpAddr>,
    ) -> Result<(), IdentityError> {
        let attempt = self.0.throttle.begin(user, from, Timestamp::now())?;
        tokio::time::sleep(attempt.delay()).await;
        let stored = self.0.directory.password_hash(user);
        // A disabled user is refused like an unknown one, after the same work.
        let enabled = self.user(user).is_some_and(|user| !user.disabled);
        let outdated = stored.as_deref().is_some_and(passwords::is_outdated);
        let hash = stored.clone();
        let hash = hash.unwrap_or_else(|| passwords::DECOY.to_string());
        let offered = password.to_string();
        let verify = move || passwords::verify(&offered, &hash);
        let right = match self.0.hashing.run(verify).await {
            Ok(right) => right,
            Err(error) => {
                // No password was checked.
                attempt.take_back();
                return Err(error);
            }
        };
        if !right || !enabled {
            return Err(IdentityError::WrongPassword);
        }
        attempt.succeeded();
        if outdated && let Err(error) = self.hash_again(user, password, stored).await {
            tracing::warn!(user, %error, "the user's password stays under its outdated hash");
        }
        Ok(())
    }

    /// Stores the same password under a new hash, unless the password has changed meanwhile. Sessions stay.
    async fn hash_again(
        &self,
        name: &str,
        password: &str,
        stored: Option<String>,
    ) -> Result<(), IdentityError> {
        let hash = self.hash(password.to_string()).await?;
        let _turn = self.0.writing.lock().await;
        if self.0.directory.password_hash(name) != stored {
            return Ok(());
        }
        let Some(user) = self.user(name) else {
            return Ok(());
        };
        self.0.directory.announce(name, &hash, KeptSessions::All);
        self.0.directory.replace_user(&user, Some(hash)).await
    }

    /// Makes room for one more session of the user.
    pub(crate) async fn end_oldest_session(&self, user: &str) {
        let mut sessions = self.tokens();
        sessions.retain(|token| token.user == user && token.purpose == TokenPurpose::Session);
        if sessions.len() < SESSIONS_PER_USER_MAX {
            return;
        }
        let Some(oldest) = sessions.iter().min_by_key(|token| token.created) else {
            return;
        };
        if let Err(error) = self.revoke(&oldest.id).await {
            tracing::warn!(user, %error, "the user's oldest session was ended, but not deleted");
        }
    }

    /// Issues an access token that acts as `user` until `ttl` has passed, from these addresses; from all if the list is
    /// empty.
    pub async fn create_token(
        &self,
        user: &str,
        label: &str,
        ttl: Duration,
        from: Vec<AddressRange>,
    ) -> Result<IssuedToken, IdentityError> {
        if ttl > LONGEST_TOKEN_TTL || ttl.is_zero() {
            return Err(IdentityError::TokenLifetime { asked: ttl });
        }
        tokens::check_new(label, self.access_tokens(user).len())?;
        self.issue_from(user, label, TokenPurpose::Access, ttl, from)
            .await
    }

    /// The access tokens of a user that have not expired, newest first.
    pub fn access_tokens(&self, user: &str) -> Vec<TokenInfo> {
        let now = Timestamp::now();
        let mut tokens = self.tokens();
        tokens.retain(|token| {
            token.user == user && token.purpose == TokenPurpose::Access && token.expires > now
        });
        tokens.sort_by_key(|token| std::cmp::Reverse(token.created));
        tokens
    }

    pub(crate) async fn issue(
        &self,
        user: &str,
        label: &str,
        purpose: TokenPurpose,
        ttl: Duration,
    ) -> Result<IssuedToken, IdentityError> {
        self.issue_from(user, label, purpose, ttl, Vec::new()).await
    }

    async fn issue_from(
        &self,
        user: &str,
        label: &str,
        purpose: TokenPurpose,
        ttl: Duration,
        from: Vec<AddressRange>,
    ) -> Result<IssuedToken, IdentityError> {
        let now = Timestamp::now();
        self.drop_expired(now).await;
        let expires = tokens::expiry(now, ttl);
        let drawn = tokens::draw()?;
        let info = TokenInfo {
            id: drawn.id.clone(),
            user: user.to_string(),
            label: label.to_string(),
            purpose,
            created: now,
            expires,
            from,
            replaced_by: None,
            last_used: None,
        };
        self.0
            .directory
            .insert_token(info.clone(), drawn.digest)
            .await?;
        Ok(IssuedToken {
            secret: drawn.secret,
            info,
        })
    }

    /// Every token and session that has not expired, by id; never their secrets.
    pub fn tokens(&self) -> Vec<TokenInfo> {
        self.0.directory.tokens()
    }

    /// Ends a token or a session at once.
    pub async fn revoke(&self, id: &str) -> Result<(), IdentityError> {
        self.0.directory.remove_token(id).await
    }

    /// Removes expired tokens. They are invalid in any case: a failed removal is retried with the
    /// next token.
    async fn drop_expired(&self, now: Timestamp) {
        for token in self.tokens() {
            if token.expires <= now
                && let Err(error) = self.0.directory.remove_token(&token.id).await
            {
                tracing::debug!(token = token.id, %error, "an expired token was not removed");
            }
        }
    }

    pub(crate) async fn hash(&self, password: String) -> Result<String, IdentityError> {
        self.0
            .hashing
            .run(move || passwords::hash(&password))
            .await?
    }
}
