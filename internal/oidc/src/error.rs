//! Why a sign-in by OpenID Connect failed: what failed, and what the user or the administrator does about it.

use jiff::Timestamp;

use crate::limits::{CLOCK_SKEW, GROUPS_MAX, SIGN_IN_TTL};

/// Why a sign-in failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OidcError {
    /// The provider cannot be reached.
    #[error(
        "the identity provider cannot be reached ({url}: {problem}); try again when it answers, or sign in with a password"
    )]
    Unreachable {
        /// The requested URL.
        url: String,
        /// The problem.
        problem: String,
    },
    /// The provider's certificate is not trusted.
    #[error(
        "the identity provider's certificate is not trusted ({url}: {problem}); an administrator names the provider's CA by --oidc-ca-file, or renews the certificate"
    )]
    Certificate {
        /// The requested URL.
        url: String,
        /// The problem.
        problem: String,
    },
    /// The provider's answer is no document of the protocol.
    #[error(
        "the identity provider's answer is not usable ({url}: {problem}); an administrator compares --oidc-issuer-url with the provider's settings"
    )]
    Document {
        /// The requested URL.
        url: String,
        /// The problem.
        problem: String,
    },
    /// The provider refused the client or the code.
    #[error(
        "the identity provider refused the server's request for a token ({problem}); sign in again, and if that fails an administrator compares --oidc-client-id and --oidc-client-secret-file with the provider's settings"
    )]
    TokenRequest {
        /// The provider's error.
        problem: String,
    },
    /// The provider refused the user's sign-in.
    #[error("the identity provider refused the sign-in: {problem}")]
    Refused {
        /// The provider's error.
        problem: String,
    },
    /// No such sign-in is pending for this browser.
    #[error(
        "this sign-in was begun in another browser, has ended already, or took longer than {} minutes; sign in again",
        SIGN_IN_TTL.as_secs() / 60
    )]
    UnknownState,
    /// Another provider answered.
    #[error(
        "the answer is from the provider {found:?}, and not from {expected:?}, where this sign-in began; sign in again"
    )]
    OtherProvider {
        /// The configured issuer.
        expected: String,
        /// The issuer in the answer.
        found: String,
    },
    /// The ID token is not valid.
    #[error("the ID token is not valid: {problem}; sign in again")]
    Token {
        /// The problem.
        problem: String,
    },
    /// The clocks of server and provider differ, or the token is old.
    #[error(
        "the ID token {problem} at {token}, and this server's clock says {now}; they may differ by {CLOCK_SKEW} s: an administrator sets the clocks of server and provider by NTP"
    )]
    Clock {
        /// What happens at the token's time.
        problem: &'static str,
        /// The time in the token.
        token: Timestamp,
        /// The server's time.
        now: Timestamp,
    },
    /// A claim that the name is read from is missing or unusable.
    #[error(
        "the ID token's claim {claim:?} {problem}; an administrator adds it at the provider, or names another claim by --oidc-username-claim"
    )]
    Username {
        /// The claim's name.
        claim: String,
        /// The problem.
        problem: String,
    },
    /// The e-mail address that names the user is not verified.
    #[error(
        "the provider has not verified the e-mail address {email:?}; verify it at the provider, and sign in again"
    )]
    UnverifiedEmail {
        /// The address.
        email: String,
    },
    /// The groups are not in the token.
    #[error(
        "the provider left the groups out of the ID token, because they are too many (claim {claim:?}); an administrator limits the groups that the provider sends to those of the mapping, at most {GROUPS_MAX}"
    )]
    TooManyGroups {
        /// The claim's name.
        claim: String,
    },
    /// A required claim does not have its value.
    #[error(
        "the ID token's claim {claim:?} is not {value:?}, which --oidc-required-claim demands; ask an administrator whether this account may use Muster"
    )]
    RequiredClaim {
        /// The claim's name.
        claim: String,
        /// The required value.
        value: String,
    },
    /// No rule of the mapping applies.
    #[error(
        "no rule of this server gives {name:?} access (the provider sent {groups}); ask an administrator to add one of your groups to the mapping, or you to a group of it"
    )]
    NoRule {
        /// The user's name.
        name: String,
        /// The groups in the token, for people.
        groups: String,
    },
    /// The operating system returned no random bytes.
    #[error("the operating system gave no random bytes: {0}; retry, or look at the system's log")]
    Entropy(String),
}

impl OidcError {
    /// True if the provider, and not this sign-in, is the cause.
    pub fn is_of_provider(&self) -> bool {
        matches!(
            self,
            OidcError::Unreachable { .. }
                | OidcError::Certificate { .. }
                | OidcError::Document { .. }
                | OidcError::TokenRequest { .. }
        )
    }
}

/// The beginning of a text of the provider, without control characters.
pub(crate) fn shortened(text: &str) -> String {
    let text: String = text.trim().chars().take(200).collect();
    text.replace(char::is_control, " ")
}
