//! Who is calling: users, passwords, sessions and access tokens, and the gate in front of
//! every HTTP request that turns them into a [`resources::access::Caller`].
//!
//! What a caller may do is decided in `resources::access`, never here. Users and tokens
//! are Secrets in the `muster-system` namespace, so they are as durable as everything
//! else; nothing secret is stored in the clear (argon2id for passwords, SHA-256 for
//! tokens, which are 256 random bits).

mod directory;
mod error;
mod gate;
mod passwords;
mod throttle;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use resources::access::{Caller, Role};

pub use directory::{NewUser, User};
pub use error::IdentityError;
pub use gate::{SESSION_COOKIE, require_caller};
pub use tokens::{IssuedToken, TokenInfo, TokenPurpose};

use directory::Directory;
use throttle::Throttle;

/// How long a browser's session lasts without signing in again.
pub const SESSION_TTL: Duration = Duration::from_secs(12 * 3600);

/// The longest life an access token may be given: one year.
pub const LONGEST_TOKEN_TTL: Duration = Duration::from_secs(366 * 24 * 3600);

/// The name of the administrator who exists from the first start.
pub const FIRST_ADMIN: &str = "admin";

/// What [`Identity::open`] needs to know.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The first administrator's password, used only while no user exists. Without one, a
    /// password is drawn and handed back once in [`Opened::first_admin`].
    pub first_password: Option<String>,
}

/// The password drawn for the first administrator; it can't be read again later.
#[derive(Clone, Debug)]
pub struct FirstAdmin {
    /// The user's name.
    pub user: String,
    /// The password, in the clear.
    pub password: String,
}

/// What opening the directory of users gives.
pub struct Opened {
    /// The identities.
    pub identity: Identity,
    /// Set when this start created the first administrator with a drawn password.
    pub first_admin: Option<FirstAdmin>,
}

/// Users, tokens and sessions. Cheap to clone.
#[derive(Clone)]
pub struct Identity(Arc<Inner>);

struct Inner {
    directory: Directory,
    throttle: Throttle,
}

impl Identity {
    /// Reads users and tokens, drops expired ones, and creates the first administrator
    /// when there is no user yet.
    pub async fn open(client: kube::Client, options: Options) -> Result<Opened, IdentityError> {
        let directory = Directory::load(client).await?;
        let identity = Identity(Arc::new(Inner {
            directory,
            throttle: Throttle::default(),
        }));
        identity.drop_expired(Timestamp::now()).await?;
        let mut first_admin = None;
        if identity.users().is_empty() {
            let drawn = options.first_password.is_none();
            let password = match options.first_password {
                Some(password) => password,
                None => tokens::draw_password()?,
            };
            identity
                .create_user(NewUser {
                    name: FIRST_ADMIN.to_string(),
                    password: password.clone(),
                    role: Role::Admin,
                    namespaces: None,
                })
                .await?;
            first_admin = drawn.then(|| FirstAdmin {
                user: FIRST_ADMIN.to_string(),
                password,
            });
        }
        Ok(Opened {
            identity,
            first_admin,
        })
    }

    /// Every user, by name.
    pub fn users(&self) -> Vec<User> {
        self.0.directory.users()
    }

    /// Creates a user; the name must be free and the password long enough.
    pub async fn create_user(&self, user: NewUser) -> Result<User, IdentityError> {
        directory::check_new(&user)?;
        let hash = hash_off_thread(user.password.clone()).await?;
        self.0.directory.insert_user(user, hash).await
    }

    /// Replaces a user's password and ends all of the user's sessions.
    pub async fn set_password(&self, user: &str, password: &str) -> Result<(), IdentityError> {
        passwords::check_strength(password)?;
        let hash = hash_off_thread(password.to_string()).await?;
        self.0.directory.set_password(user, hash).await?;
        self.0.directory.end_sessions(user).await
    }

    /// Checks a password and opens a session for a browser.
    ///
    /// A wrong password and an unknown user are told apart neither by the answer nor by
    /// the time it takes; repeated failures for one name are slowed down.
    pub async fn sign_in(&self, user: &str, password: &str) -> Result<IssuedToken, IdentityError> {
        let now = Timestamp::now();
        self.0.throttle.admit(user, now)?;
        let stored = self
            .0
            .directory
            .password_hash(user)
            .unwrap_or_else(|| passwords::DECOY.to_string());
        let offered = password.to_string();
        let right = tokio::task::spawn_blocking(move || passwords::verify(&offered, &stored))
            .await
            .map_err(|_| IdentityError::Interrupted)?;
        if !right {
            self.0.throttle.failed(user, now);
            return Err(IdentityError::WrongPassword);
        }
        self.0.throttle.succeeded(user);
        self.issue(user, "browser session", TokenPurpose::Session, SESSION_TTL)
            .await
    }

    /// Issues an access token that acts as `user` until `ttl` is over.
    pub async fn create_token(
        &self,
        user: &str,
        label: &str,
        ttl: Duration,
    ) -> Result<IssuedToken, IdentityError> {
        if ttl > LONGEST_TOKEN_TTL || ttl.is_zero() {
            return Err(IdentityError::TokenLifetime { asked: ttl });
        }
        self.issue(user, label, TokenPurpose::Access, ttl).await
    }

    async fn issue(
        &self,
        user: &str,
        label: &str,
        purpose: TokenPurpose,
        ttl: Duration,
    ) -> Result<IssuedToken, IdentityError> {
        let now = Timestamp::now();
        self.drop_expired(now).await?;
        let expires = tokens::expiry(now, ttl);
        let drawn = tokens::draw()?;
        let info = TokenInfo {
            id: drawn.id.clone(),
            user: user.to_string(),
            label: label.to_string(),
            purpose,
            created: now,
            expires,
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

    /// Who the bearer of this secret is, if it is known and not expired.
    pub fn bearer(&self, secret: &str) -> Option<(Caller, TokenInfo)> {
        let (info, user) = self.0.directory.find_token(secret, Timestamp::now())?;
        Some((user.caller(), info))
    }

    async fn drop_expired(&self, now: Timestamp) -> Result<(), IdentityError> {
        for token in self.tokens() {
            if token.expires <= now {
                self.0.directory.remove_token(&token.id).await?;
            }
        }
        Ok(())
    }
}

async fn hash_off_thread(password: String) -> Result<String, IdentityError> {
    tokio::task::spawn_blocking(move || passwords::hash(&password))
        .await
        .map_err(|_| IdentityError::Interrupted)?
}
