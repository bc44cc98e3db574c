//! The errors of identities, with their remedies.

use std::time::Duration;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The user name or the password is wrong.
    #[error("the user name or the password is wrong; an administrator can set a new password")]
    WrongPassword,
    /// Too many wrong passwords came from this address.
    #[error("too many failed attempts from this address; try again in {} s", wait.as_secs().max(1))]
    TooManyAttempts {
        /// How long to wait.
        wait: Duration,
    },
    /// Too many sign-ins are in progress.
    #[error("too many sign-ins at this moment; try again in {} s", wait.as_secs().max(1))]
    Busy {
        /// How long to wait.
        wait: Duration,
    },
    /// The password is invalid.
    #[error("password: {reason}")]
    WeakPassword {
        /// The problem and the expected form.
        reason: String,
    },
    /// The user's name is invalid.
    #[error(
        "user name {name:?}: use 1 to 40 lower-case letters, digits and '-', beginning and ending with a letter or digit"
    )]
    BadName {
        /// The given name.
        name: String,
    },
    /// The name is taken.
    #[error("user {name:?} exists already; choose another name")]
    UserExists {
        /// The name.
        name: String,
    },
    /// A user of another account has the name that the identity provider gives.
    #[error(
        "user {name:?} of this server is not linked to your account at the identity provider, and is not given to it; ask an administrator to delete that user (`muster user delete {name}`) if it is yours, or to give your account another name at the provider"
    )]
    NameOfAnother {
        /// The name.
        name: String,
    },
    /// The user signs in by OpenID Connect.
    #[error(
        "user {name:?} signs in by OpenID Connect and has no password; change its account at the identity provider"
    )]
    NoPassword {
        /// The user.
        name: String,
    },
    /// The user does not exist.
    #[error("there is no user {name:?}; `muster user list` lists the users")]
    NoSuchUser {
        /// The name.
        name: String,
    },
    /// A field of a user's record is invalid.
    #[error("{field}: Invalid value: {value:?}: {valid}")]
    BadField {
        /// The field.
        field: &'static str,
        /// The given value, shortened.
        value: String,
        /// The valid form.
        valid: String,
    },
    /// The change would leave no administrator that can sign in with a password.
    #[error(
        "user {name:?} is the last administrator that can sign in with a password; make another user an administrator first (`muster user set-role NAME admin`)"
    )]
    LastAdministrator {
        /// The administrator.
        name: String,
    },
    /// There are too many users.
    #[error(
        "there are {held} users, and no more are created; delete some with `muster user delete`"
    )]
    TooManyUsers {
        /// The present number.
        held: usize,
    },
    /// The user is disabled.
    #[error("user {name:?} is disabled; `muster user enable {name}` enables it")]
    Disabled {
        /// The user.
        name: String,
    },
    /// Another request changed the user meanwhile.
    #[error("user {name:?} was changed by another request meanwhile; try again")]
    Changed {
        /// The user.
        name: String,
    },
    /// A link to set a password is unknown, used or expired.
    #[error(
        "this link was used already, has expired or was replaced; ask an administrator for a new one"
    )]
    DeadLink,
    /// The requested validity of a link is not allowed.
    #[error(
        "hours: Invalid value: {hours}: use 1 to {}",
        crate::limits::RESET_HOURS_MAX
    )]
    LinkLifetime {
        /// The requested hours.
        hours: u64,
    },
    /// The session does not exist.
    #[error(
        "user {user:?} has no session {id:?}; `muster user sessions {user}` lists the sessions"
    )]
    NoSuchSession {
        /// The user.
        user: String,
        /// The session's id.
        id: String,
    },
    /// The token does not exist.
    #[error("there is no token {id:?}; `muster token list` lists the tokens")]
    NoSuchToken {
        /// The token's public id.
        id: String,
    },
    /// The token was rotated before.
    #[error("token {id:?} was replaced by token {by:?} already; rotate that one")]
    TokenReplaced {
        /// The token's public id.
        id: String,
        /// The id of the token that replaced it.
        by: String,
    },
    /// The requested lifetime of a token is not allowed.
    #[error("the token's life of {} s is out of range; choose between 1 s and 366 days", asked.as_secs())]
    TokenLifetime {
        /// The requested lifetime.
        asked: Duration,
    },
    /// A token's label is too long.
    #[error(
        "label: it has {bytes} bytes; use at most {}",
        crate::limits::TOKEN_LABEL_MAX
    )]
    TokenLabel {
        /// The label's length.
        bytes: usize,
    },
    /// The user has the maximum number of access tokens.
    #[error(
        "the user has {held} access tokens, and no more than {} are issued to one; end some with `muster token revoke`",
        crate::limits::TOKENS_PER_USER_MAX
    )]
    TooManyTokens {
        /// The maximum number.
        held: usize,
    },
    /// A program that signs in gives itself a name that is not allowed.
    #[error(
        "the client's name: use 1 to {} printable ASCII characters",
        crate::limits::DEVICE_CLIENT_MAX
    )]
    ClientName,
    /// A program asks for a token of a lifetime that is not allowed.
    #[error(
        "the lifetime of {} s is out of range; choose between 1 hour and {} days", asked.as_secs(),
        crate::limits::LOGIN_TOKEN_TTL_MAX.as_secs() / 86_400
    )]
    LoginLifetime {
        /// The requested lifetime.
        asked: Duration,
    },
    /// Too many programs at this address wait for an approval.
    #[error(
        "{} programs at this address wait for an approval already; try again in {} s",
        crate::limits::DEVICE_CODES_PER_ADDRESS_MAX, wait.as_secs().max(1)
    )]
    TooManyDeviceCodes {
        /// How long to wait.
        wait: Duration,
    },
    /// No program waits with this code.
    #[error(
        "no program waits for an approval with this code: compare it with the one in the terminal; a code is valid for {} minutes, and a restart of the server ends it: `muster login` shows a new one",
        crate::limits::DEVICE_CODE_TTL.as_secs() / 60
    )]
    NoSuchUserCode,
    /// The code was approved or refused before.
    #[error("this code was used already; `muster login` shows a new one")]
    UserCodeUsed,
    /// The code is for another user.
    #[error(
        "this code is for another user: sign in as the user that `muster login --user` names, or run it without --user"
    )]
    UserCodeOfAnother,
    /// The user typed too many wrong codes.
    #[error("too many wrong codes; try again in {} s", wait.as_secs().max(1))]
    TooManyCodes {
        /// How long to wait.
        wait: Duration,
    },
    /// The code of the second factor is wrong.
    #[error(
        "the code is wrong or was used already; wait for the next one of your app, or use a recovery code"
    )]
    WrongCode,
    /// The code of the second factor is no longer awaited.
    #[error("this sign-in is over; begin again with the password")]
    SignInOver,
    /// The user has a second factor.
    #[error("you have a second factor already; remove it first")]
    SecondFactorExists,
    /// The user has no second factor.
    #[error("you have no second factor")]
    NoSecondFactor,
    /// The set-up of a second factor is no longer awaited.
    #[error("this set-up is over; begin again")]
    EnrolmentOver,
    /// A stored user or token cannot be read.
    #[error(
        "the stored identity {secret:?} in namespace muster-system cannot be read ({reason}); delete that Secret, or restore a backup"
    )]
    Damaged {
        /// The Secret's name.
        secret: String,
        /// The reason.
        reason: String,
    },
    /// The operating system returned no random bytes.
    #[error("the operating system gave no random bytes: {0}; retry, or look at the system's log")]
    Entropy(String),
    /// Hashing failed.
    #[error("the server could not hash the password: {0}")]
    Hashing(String),
    /// A shutdown interrupted the work.
    #[error("the server is stopping; try again when it is back")]
    Interrupted,
    /// The resource API refused.
    #[error("the identity could not be stored: {0}")]
    Store(#[from] Box<kube::Error>),
}

impl IdentityError {
    /// How many seconds to wait before a retry, if a retry can succeed.
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            IdentityError::TooManyAttempts { wait }
            | IdentityError::Busy { wait }
            | IdentityError::TooManyDeviceCodes { wait }
            | IdentityError::TooManyCodes { wait } => Some(wait.as_secs().max(1)),
            _ => None,
        }
    }
}

impl From<kube::Error> for IdentityError {
    fn from(error: kube::Error) -> Self {
        IdentityError::Store(Box::new(error))
    }
}
