//! Secrets that requests carry: whose they are, and why one is refused.

use std::net::IpAddr;

use jiff::Timestamp;
use resources::access::Caller;

use crate::address_range;
use crate::identities::Identity;
use crate::tokens::{self, OfferedSecret, TokenInfo, TokenPurpose};

/// Why the secret of a request is refused. Its text is the answer to the client; it does not have the
/// ranges, which only the token's user may know.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BearerRefusal {
    /// It has the form of none, or a wrong checksum; nothing was looked up.
    #[error(
        "the bearer token is mistyped: its last 6 characters, a checksum, do not fit the rest; copy the whole token again, or ask for a new one (`muster token create`)"
    )]
    Mistyped,
    /// It is not known, was revoked or has expired, or its user is disabled.
    #[error(
        "the bearer token is unknown, revoked or expired; sign in again (`muster login`) or ask for a new one (`muster token create`)"
    )]
    Unknown,
    /// The token is valid, but not from this address.
    #[error(
        "token {id} is refused from {}, which is in none of the token's address ranges; send the request from one of them (`muster token list` shows them), or ask for a token for this address (`muster token create --from`)",
        shown(*address)
    )]
    Elsewhere {
        /// The user that it would act as, for the audit log.
        caller: Box<Caller>,
        /// The token's public id.
        id: String,
        /// The request's address.
        address: Option<IpAddr>,
    },
}

fn shown(address: Option<IpAddr>) -> String {
    let unknown = || "an unknown address".to_owned();
    address.map_or_else(unknown, |address| format!("address {address}"))
}

impl Identity {
    /// The user whose request from this address carries this secret. Notes the use of an access token.
    pub(crate) fn authenticate(
        &self,
        secret: &str,
        from: Option<IpAddr>,
    ) -> Result<(Caller, TokenInfo), BearerRefusal> {
        let now = Timestamp::now();
        let (caller, info) = self.verify(secret, from, now)?;
        if info.purpose == TokenPurpose::Access {
            self.0.directory.note_use(&info, now);
        }
        Ok((caller, info))
    }

    /// Like [`Identity::authenticate`], but notes no use: for a request that lasts and is checked again.
    pub(crate) fn verify(
        &self,
        secret: &str,
        from: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<(Caller, TokenInfo), BearerRefusal> {
        let id = match tokens::offered(secret) {
            OfferedSecret::Token { id } => id,
            OfferedSecret::Mistyped => return Err(BearerRefusal::Mistyped),
            OfferedSecret::Other => return Err(BearerRefusal::Unknown),
        };
        let found = self.0.directory.find_token(id, secret, now);
        let (info, user) = found.ok_or(BearerRefusal::Unknown)?;
        if info.purpose == TokenPurpose::Reset || user.disabled {
            return Err(BearerRefusal::Unknown);
        }
        let caller = user.caller();
        if !address_range::admits(&info.from, from) {
            return Err(BearerRefusal::Elsewhere {
                caller: Box::new(caller),
                id: info.id,
                address: from,
            });
        }
        Ok((caller, info))
    }

    /// The user with this secret, if the secret is known and not expired, and the user is not disabled. A token with
    /// address ranges has none, because the address is not known here.
    pub fn bearer(&self, secret: &str) -> Option<(Caller, TokenInfo)> {
        self.verify(secret, None, Timestamp::now()).ok()
    }
}
