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

/// The maximum number of address ranges of one access token.
pub const TOKEN_RANGES_MAX: usize = 16;

/// How long a rotated access token stays valid beside the one that replaces it, unless its user chooses another time.
pub const TOKEN_OVERLAP: Duration = Duration::from_secs(24 * 3600);

/// The longest such time: 30 days.
pub const TOKEN_OVERLAP_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// The time of an access token's last use is written to the store again when the stored one is this much older.
pub const LAST_USE_WRITE_INTERVAL: Duration = Duration::from_secs(3600);

/// The maximum number of access tokens whose last use is held in memory, written or not.
pub const LAST_USES_MAX: usize = 4096;

/// How long the server waits after the store refused such a write.
pub const LAST_USE_RETRY: Duration = Duration::from_secs(60);

/// How long a link to set a password is valid, unless the administrator chooses another time, in hours.
pub const RESET_HOURS: u64 = 24;

/// The longest validity of a link to set a password, in hours: a week.
pub const RESET_HOURS_MAX: u64 = 7 * 24;

/// The maximum number of users; further ones are refused.
pub const USERS_MAX: usize = 10_000;

/// The longest name of a user for people, in bytes.
pub const DISPLAY_NAME_MAX: usize = 128;

/// The longest e-mail address, in bytes (RFC 5321).
pub const EMAIL_MAX: usize = 254;

/// The maximum number of views of the list of jobs that a user keeps.
pub const VIEWS_PER_USER_MAX: usize = 20;

/// The longest name of a view, in characters.
pub const VIEW_NAME_MAX: usize = 40;

/// The longest filters of a view, in bytes.
pub const VIEW_QUERY_MAX: usize = 1024;

/// The maximum number of namespaces that a user's record names.
pub const USER_NAMESPACES_MAX: usize = 100;

/// How long the code of a user whose password was right is awaited.
pub const CODE_WAIT_TTL: Duration = Duration::from_secs(300);

/// The maximum number of users and browsers whose code is awaited; a further one ends the oldest.
pub const CODE_WAITS_MAX: usize = 1024;

/// The same for one user.
pub const CODE_WAITS_PER_USER_MAX: usize = 8;

/// How long a user has to confirm a second factor that it sets up.
pub const ENROLMENT_TTL: Duration = Duration::from_secs(900);

/// The maximum number of wrong codes of one user, from all addresses, within [`WRONG_CODES_WINDOW`].
pub const WRONG_CODES_MAX: usize = 20;

/// The time in which these are counted.
pub const WRONG_CODES_WINDOW: Duration = Duration::from_secs(3600);

/// How long a code of `muster login` is valid.
pub const DEVICE_CODE_TTL: Duration = Duration::from_secs(10 * 60);

/// How long a code is remembered after its end, so that its client is told that it has expired.
pub const DEVICE_CODE_KEPT: Duration = Duration::from_secs(60);

/// The maximum number of codes that are held; a further one ends the oldest code of the address that has the most.
pub const DEVICE_CODES_MAX: usize = 1024;

/// The maximum number of codes of one address, or one /64 network of IPv6; further ones are refused.
pub const DEVICE_CODES_PER_ADDRESS_MAX: usize = 16;

/// The time that a client waits between two questions whether its code is approved.
pub const DEVICE_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The longest such time: each question that comes too early adds [`DEVICE_POLL_INTERVAL`] up to this.
pub const DEVICE_POLL_INTERVAL_MAX: Duration = Duration::from_secs(60);

/// The longest name that a client gives itself, in bytes.
pub const DEVICE_CLIENT_MAX: usize = 64;

/// The maximum number of codes that are none, of one user, within [`DEVICE_CODE_TTL`].
pub const DEVICE_GUESSES_MAX: usize = 10;

/// The lifetime of a token of `muster login`, unless its client asks for another.
pub const LOGIN_TOKEN_TTL: Duration = Duration::from_secs(30 * 24 * 3600);

/// The longest lifetime of such a token.
pub const LOGIN_TOKEN_TTL_MAX: Duration = Duration::from_secs(90 * 24 * 3600);
