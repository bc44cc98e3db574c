//! The bounds of signing in by OpenID Connect.

use std::time::Duration;

/// The largest answer of the provider that is read, in bytes.
pub const ANSWER_MAX: usize = 512 * 1024;

/// How long the provider may take to answer one request.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How long a user may take to sign in at the provider.
pub const SIGN_IN_TTL: Duration = Duration::from_secs(600);

/// The maximum number of sign-ins that have begun and not ended; a further one ends the oldest.
pub const PENDING_MAX: usize = 4096;

/// The same for one address, or one /64 network of IPv6.
pub const PENDING_PER_ADDRESS_MAX: usize = 64;

/// The longest address of the page after signing in that is kept, in bytes.
pub const NEXT_PAGE_MAX: usize = 2048;

/// By how many seconds the clocks of server and provider may differ.
pub const CLOCK_SKEW: u64 = 60;

/// How long the provider's discovery document and keys are used before they are read again.
pub const METADATA_TTL: Duration = Duration::from_secs(3600);

/// How long a provider that could not be asked is not asked again. Longer than [`PATIENCE`]: sign-ins that waited for the
/// same answer fail with it.
pub const FAILURE_TTL: Duration = Duration::from_secs(12);

/// The least time between two requests for the provider's keys because a token names an unknown one.
pub const KEYS_AGAIN: Duration = Duration::from_secs(10);

/// The maximum number of the provider's keys that are used.
pub const KEYS_MAX: usize = 64;

/// The maximum number of rules in a mapping.
pub const RULES_MAX: usize = 1000;

/// The maximum number of teams that a mapping gives to one user.
pub const TEAMS_PER_USER_MAX: usize = 50;

/// The maximum number of groups in a token's claim; a token with more is refused.
pub const GROUPS_MAX: usize = 2000;

/// The longest subject in a token, in bytes (OpenID Connect Core, section 2).
pub const SUBJECT_MAX: usize = 255;
