//! Rotation of access tokens: a new token with the rights and the lifetime of an old one replaces it,
//! and the old one expires after an overlap in which its programs get the new one.

use std::time::Duration;

use jiff::Timestamp;

use crate::error::IdentityError;
use crate::identities::Identity;
use crate::limits::{LONGEST_TOKEN_TTL, TOKEN_OVERLAP_MAX};
use crate::tokens::{IssuedToken, TokenInfo, TokenPurpose, expiry};

/// What a rotation made.
#[derive(Clone, Debug)]
pub struct RotatedToken {
    /// The new token.
    pub issued: IssuedToken,
    /// The old one, with its new expiry.
    pub old: TokenInfo,
}

/// The lifetime that a token was issued with. It is that of a token which was not rotated.
fn lifetime(token: &TokenInfo) -> Duration {
    let life = token.expires.duration_since(token.created);
    let life = Duration::try_from(life).unwrap_or_default();
    life.min(LONGEST_TOKEN_TTL)
}

/// The record of a token that another one replaces: it expires after the overlap, and not later than before.
fn replaced(old: &TokenInfo, by: &str, overlap: Duration, now: Timestamp) -> TokenInfo {
    TokenInfo {
        expires: old.expires.min(expiry(now, overlap)),
        replaced_by: Some(by.to_owned()),
        ..old.clone()
    }
}

impl Identity {
    /// Issues a token with the user, label, address ranges and lifetime of an access token, which then expires after
    /// the overlap. If the old one cannot be changed, the new one is revoked again.
    ///
    /// # Errors
    /// There is no such access token, or it was rotated before; the overlap is too long; the user has the maximum
    /// number of tokens.
    pub async fn rotate_token(
        &self,
        id: &str,
        overlap: Duration,
    ) -> Result<RotatedToken, IdentityError> {
        if overlap > TOKEN_OVERLAP_MAX {
            return Err(IdentityError::BadField {
                field: "overlapSeconds",
                value: overlap.as_secs().to_string(),
                valid: format!("use at most {} (30 days)", TOKEN_OVERLAP_MAX.as_secs()),
            });
        }
        // A token is replaced by one other only.
        let _turn = self.0.writing.lock().await;
        let now = Timestamp::now();
        let known = self.tokens().into_iter().find(|token| {
            token.id == id && token.purpose == TokenPurpose::Access && token.expires > now
        });
        let old = known.ok_or_else(|| IdentityError::NoSuchToken {
            id: id.chars().take(40).collect(),
        })?;
        if let Some(by) = &old.replaced_by {
            return Err(IdentityError::TokenReplaced {
                id: old.id.clone(),
                by: by.clone(),
            });
        }
        let issued = self
            .create_token(&old.user, &old.label, lifetime(&old), old.from.clone())
            .await?;
        let old = replaced(&old, &issued.info.id, overlap, now);
        if let Err(error) = self.0.directory.replace_token(&old).await {
            if let Err(error) = self.revoke(&issued.info.id).await {
                tracing::warn!(token = issued.info.id, %error, "the token of a failed rotation was not deleted");
            }
            return Err(error);
        }
        Ok(RotatedToken { issued, old })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn token(created: i64, expires: i64) -> TokenInfo {
        TokenInfo {
            id: "0123456789ab".to_owned(),
            user: "ann".to_owned(),
            label: "ci".to_owned(),
            purpose: TokenPurpose::Access,
            created: at(created),
            expires: at(expires),
            from: Vec::new(),
            replaced_by: None,
            last_used: None,
        }
    }

    #[test]
    fn the_old_token_expires_after_the_overlap_and_not_later_than_before() {
        let old = token(0, 90 * DAY);
        for (overlap, now, expires) in [
            (DAY, 10 * DAY, 11 * DAY),
            (0, 10 * DAY, 10 * DAY),
            (30 * DAY, 80 * DAY, 90 * DAY),
        ] {
            let overlap = Duration::from_secs(overlap.unsigned_abs());
            let new = replaced(&old, "ba9876543210", overlap, at(now));
            assert_eq!(new.expires, at(expires), "{overlap:?} {now}");
            assert_eq!(new.replaced_by.as_deref(), Some("ba9876543210"));
            assert_eq!((new.id, new.created), (old.id.clone(), old.created));
        }
    }

    #[test]
    fn the_new_token_lives_as_long_as_the_old_one_was_meant_to() {
        for (created, expires, life) in [
            (DAY, 91 * DAY, Duration::from_secs(90 * 86_400)),
            (0, 1, Duration::from_secs(1)),
            (0, 1000 * DAY, LONGEST_TOKEN_TTL),
            // A record that was written by hand.
            (DAY, 0, Duration::ZERO),
        ] {
            assert_eq!(lifetime(&token(created, expires)), life);
        }
    }
}
