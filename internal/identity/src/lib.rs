//! Authentication: users, passwords, sessions and access tokens, and the gate in front of every
//! HTTP request that turns them into a [`resources::access::Caller`].
//!
//! A user's role becomes the groups that roles are bound to (`resources::access::UserRole`); only the
//! resource API decides what the groups permit. Users and tokens are Secrets in the `muster-system`
//! namespace, with the same durability as all objects. Nothing secret is stored in clear (argon2id
//! for passwords, SHA-256 for tokens, which are 256 random bits).

mod accounts;
mod address_range;
pub mod audit;
mod bearer;
mod device;
mod device_logins;
mod directory;
#[cfg(test)]
#[path = "../../resources/testing/documents.rs"]
mod documents;
mod error;
mod factor_checks;
mod gate;
#[cfg(test)]
#[path = "../../resources/testing/headers.rs"]
mod headers;
mod identities;
mod last_uses;
mod limits;
mod mirror;
mod oidc;
mod passwords;
mod rotation;
mod second_factor;
mod throttle;
mod tokens;
mod totp;
mod two_factor;
mod user;
mod user_code;

pub use address_range::AddressRange;
pub use device::{DeviceAnswer, StartedDeviceLogin};
pub use device_logins::{DeviceLogin, DeviceRequest};
pub use directory::NewUser;
pub use error::IdentityError;
pub use gate::{
    SECURE_SESSION_COOKIE, SESSION_COOKIE, cookie_named, is_cross_site, require_caller,
};
pub use identities::{FIRST_ADMIN, FirstAdmin, Identity, OpenedIdentity, Options};
pub use limits::{
    DEVICE_CLIENT_MAX, LOGIN_TOKEN_TTL, LONGEST_TOKEN_TTL, RESET_HOURS, RESET_HOURS_MAX,
    SESSION_TTL, SESSIONS_PER_USER_MAX, TOKEN_LABEL_MAX, TOKEN_OVERLAP, TOKEN_OVERLAP_MAX,
    TOKEN_RANGES_MAX, TOKENS_PER_USER_MAX,
};
pub use oidc::OidcUser;
pub use rotation::RotatedToken;
pub use tokens::{IssuedToken, TokenInfo, TokenPurpose};
pub use two_factor::{GivenFactor, PasswordAnswer, SecondFactorState};
pub use user::{OidcLink, SavedView, User, UserChange};
