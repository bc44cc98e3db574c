//! The bounds of sessions and access tokens.

use std::time::Duration;

/// How long a browser's session lasts without signing in again.
pub const SESSION_TTL: Duration = Duration::from_secs(12 * 3600);

/// The maximum number of sessions of one user; a further session ends the oldest one.
pub const SESSIONS_PER_USER_MAX: usize = 64;

/// The longest lifetime of an access token: one year.
pub const LONGEST_TOKEN_TTL: Duration = Duration::from_secs(366 * 24 * 3600);

/// The maximum number of access tokens of one user; the user must revoke one before another is
/// issued.
pub const TOKENS_PER_USER_MAX: usize = 256;

/// The longest label of an access token, in bytes.
pub const TOKEN_LABEL_MAX: usize = 256;
