//! A sign-in from its begin in a browser to the person that it is: the state machine around provider, pending sign-ins,
//! claims and mapping.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use parking_lot::Mutex;
use ring::digest;

use crate::claim_names::ClaimNames;
use crate::claims::{Claims, Expected};
use crate::error::{OidcError, shortened};
use crate::limits::NEXT_PAGE_MAX;
use crate::mapping::{Granted, Mapping};
use crate::pending::{PendingSignIn, PendingSignIns};
use crate::provider::{CodeGrant, Exchange, Provider, form};
use crate::settings::OidcSettings;

/// The longest name for people and e-mail address that are taken from claims, in bytes, as in a user's record.
const DISPLAY_NAME_MAX: usize = 128;
const EMAIL_MAX: usize = 254;

/// Signing in by one provider.
pub struct Oidc {
    settings: OidcSettings,
    provider: Provider,
    pending: Mutex<PendingSignIns>,
}

/// A sign-in that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The provider's page, to which the browser goes.
    pub url: String,
    /// The value of the browser's cookie.
    pub cookie: String,
}

/// What the browser brings back from the provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Callback {
    /// The sign-in's state.
    pub state: String,
    /// The code.
    pub code: Option<String>,
    /// The provider's error.
    pub error: Option<String>,
    /// What the provider says about it.
    pub error_description: Option<String>,
    /// The provider (RFC 9207).
    pub iss: Option<String>,
    /// The value of the browser's cookie.
    pub cookie: String,
}

/// Who signed in, and what the mapping gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    /// The provider.
    pub issuer: String,
    /// The user's name at the provider, which never changes and is never given to another user.
    pub subject: String,
    /// The name for a new user in Muster.
    pub name: String,
    /// The name for people.
    pub display_name: Option<String>,
    /// The e-mail address.
    pub email: Option<String>,
    /// Role and teams; or why the claims give none, which also ends what earlier ones gave.
    pub granted: Result<Granted, OidcError>,
}

/// A sign-in that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Who signed in.
    pub person: Person,
    /// The page after signing in.
    pub next: String,
}

/// 256 random bits in base64url.
fn draw() -> Result<String, OidcError> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).map_err(|error| OidcError::Entropy(error.to_string()))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

impl Oidc {
    /// Signing in by the provider of these settings. Sends no request yet.
    pub fn new(settings: OidcSettings, exchange: Box<dyn Exchange>) -> Oidc {
        Oidc {
            settings,
            provider: Provider::new(exchange),
            pending: Mutex::default(),
        }
    }

    /// The provider's name on the button.
    pub fn button(&self) -> &str {
        self.settings.button()
    }

    /// Begins a sign-in of a browser at an address. The provider sends it back to `redirect`; `next` is the page after
    /// that.
    ///
    /// # Errors
    /// The provider's discovery document cannot be read or is not usable.
    pub async fn begin(
        &self,
        redirect: &str,
        next: &str,
        from: Option<IpAddr>,
        now: Timestamp,
    ) -> Result<Begun, OidcError> {
        let metadata = self.provider.metadata(&self.settings, now).await?;
        let [state, cookie, nonce, verifier] = [draw()?, draw()?, draw()?, draw()?];
        let challenge = digest::digest(&digest::SHA256, verifier.as_bytes());
        let challenge = URL_SAFE_NO_PAD.encode(challenge);
        let query = form(&[
            ("response_type", "code"),
            ("client_id", self.settings.client()),
            ("redirect_uri", redirect),
            ("scope", metadata.scopes()),
            ("state", state.as_str()),
            ("nonce", nonce.as_str()),
            ("code_challenge", challenge.as_str()),
            ("code_challenge_method", "S256"),
        ]);
        let joint = if metadata.authorization.contains('?') {
            '&'
        } else {
            '?'
        };
        let next = if next.len() > NEXT_PAGE_MAX { "" } else { next };
        let pending = PendingSignIn {
            browser: cookie.clone(),
            nonce,
            verifier,
            redirect: redirect.to_owned(),
            next: next.to_owned(),
            begun: now,
            from,
        };
        self.pending.lock().add(state, pending);
        Ok(Begun {
            url: format!("{}{joint}{query}", metadata.authorization),
            cookie,
        })
    }

    /// Ends a sign-in with what the browser brought back from the provider.
    ///
    /// # Errors
    /// The sign-in is unknown, the provider refused it or does not answer, or the token or its claims are not valid.
    pub async fn finish(&self, callback: Callback, now: Timestamp) -> Result<Finished, OidcError> {
        let pending = {
            let mut all = self.pending.lock();
            all.take(&callback.state, &callback.cookie, now)
        };
        let pending = pending.ok_or(OidcError::UnknownState)?;
        let metadata = self.provider.metadata(&self.settings, now).await?;
        let foreign = match &callback.iss {
            Some(issuer) => issuer != self.settings.issuer(),
            None => metadata.names_issuer,
        };
        if foreign {
            return Err(OidcError::OtherProvider {
                expected: self.settings.issuer().to_owned(),
                found: shortened(callback.iss.as_deref().unwrap_or_default()),
            });
        }
        if let Some(error) = callback.error {
            let description = callback.error_description.unwrap_or_default();
            let words = [error, description].map(|text| shortened(&text)).join(" ");
            return Err(OidcError::Refused {
                problem: words.trim().to_owned(),
            });
        }
        let code = callback.code.ok_or_else(|| OidcError::Refused {
            problem: "its answer has no code".to_owned(),
        })?;
        let grant = CodeGrant {
            code: &code,
            verifier: &pending.verifier,
            redirect: &pending.redirect,
        };
        let claims = self.provider.claims(&self.settings, grant, now).await?;
        claims.check(&Expected {
            issuer: self.settings.issuer(),
            client: self.settings.client(),
            nonce: &pending.nonce,
            now,
        })?;
        Ok(Finished {
            person: self.person(&claims)?,
            next: pending.next,
        })
    }

    fn person(&self, claims: &Claims) -> Result<Person, OidcError> {
        let names = self.settings.claims();
        let granted = granted(claims, names, self.settings.mapping());
        // The other faults are the provider's, and say nothing about what the user may do.
        let gives_none = |error: &OidcError| {
            matches!(
                error,
                OidcError::NoRule { .. } | OidcError::RequiredClaim { .. }
            )
        };
        let granted = match granted {
            Err(error) if !gives_none(&error) => return Err(error),
            decided => decided,
        };
        let text = |claim: &str, longest: usize| {
            let text = claims.text(claim)?.trim();
            let fits = !text.is_empty() && text.len() <= longest;
            (fits && !text.contains(char::is_control)).then(|| text.to_owned())
        };
        Ok(Person {
            issuer: self.settings.issuer().to_owned(),
            subject: claims.text("sub").unwrap_or_default().to_owned(),
            name: claims.username(names)?,
            display_name: text("name", DISPLAY_NAME_MAX),
            email: text("email", EMAIL_MAX),
            granted,
        })
    }
}

/// The user's name and what the mapping gives, for a token with these claims.
///
/// # Errors
/// A required claim does not have its value, the name or the groups are not usable, or no rule applies.
pub fn explain(
    claims: &Claims,
    names: &ClaimNames,
    mapping: &Mapping,
) -> Result<(String, Granted), OidcError> {
    let granted = granted(claims, names, mapping)?;
    Ok((claims.username(names)?, granted))
}

fn granted(claims: &Claims, names: &ClaimNames, mapping: &Mapping) -> Result<Granted, OidcError> {
    claims.require(&names.required)?;
    let name = claims.username(names)?;
    let groups = claims.groups(names)?;
    let granted = mapping.apply(claims, &groups);
    granted.ok_or_else(|| claims.no_rule(name, names, &groups))
}
