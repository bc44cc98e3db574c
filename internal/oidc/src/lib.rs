//! Signing in by OpenID Connect: the authorization code flow with PKCE, the checks of the ID token, and the mapping of
//! its claims to a role and teams. Knows no user records and no sessions: the answer is a [`Person`], and the
//! portal signs that person in.
//!
//! Method: [`Oidc::begin`] draws state, nonce, PKCE verifier and a secret for the browser's cookie, and remembers them
//! once. [`Oidc::finish`] takes them out again, exchanges the code, verifies the ID token by the provider's keys, checks
//! its claims and applies the mapping. Requests to the provider go through [`Exchange`], which the binary implements.
//!
//! The sources are OpenID Connect Core 1.0 and Discovery 1.0, RFC 7636 (PKCE), RFC 7515 to 7518 (JOSE), RFC 9207 (`iss`
//! in the authorization response) and RFC 9700 (best current practice). `tests` holds the whole flow against forged
//! answers.

mod claim_names;
mod claims;
mod error;
mod flow;
mod keys;
mod limits;
mod mapping;
mod pending;
mod provider;
mod settings;
#[cfg(test)]
mod tests;
mod token;

pub use claim_names::{ClaimNames, RequiredClaim, RequiredClaimError};
pub use claims::Claims;
pub use error::OidcError;
pub use flow::{Begun, Callback, Finished, Oidc, Person, explain};
pub use limits::{ANSWER_MAX, CLOCK_SKEW, NEXT_PAGE_MAX, PATIENCE, SIGN_IN_TTL};
pub use mapping::{Granted, Mapping, MappingError, RoleGrant, RuleHit, RuleProblem, TeamRole};
pub use provider::{Exchange, ExchangeError};
pub use settings::{ClientSecret, OidcSettings, SettingsError};
