//! Which claims tell who a user is, and which ones a token must have.

use std::str::FromStr;

/// A claim that a token must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequiredClaim {
    /// The claim's name.
    pub claim: String,
    /// The value, or one of the values.
    pub value: String,
}

/// Why a required claim is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write CLAIM=VALUE, as in hd=example.org")]
pub struct RequiredClaimError;

impl FromStr for RequiredClaim {
    type Err = RequiredClaimError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((claim, value)) if !claim.is_empty() && !value.is_empty() => Ok(RequiredClaim {
                claim: claim.to_owned(),
                value: value.to_owned(),
            }),
            _ => Err(RequiredClaimError),
        }
    }
}

/// The claims that tell who a user is, and those that a token must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimNames {
    /// The claim with the user's name.
    pub username: String,
    /// The claim with the user's groups.
    pub groups: String,
    /// What a token must have.
    pub required: Vec<RequiredClaim>,
}
