//! The settings of signing in by OpenID Connect, checked where a value alone shows that it is wrong.

use std::fmt;

use http::Uri;

use crate::claim_names::ClaimNames;
use crate::mapping::Mapping;

/// The name that users see on the button if none is set.
const DEFAULT_BUTTON: &str = "single sign-on";

/// The longest name on the button, in characters.
const BUTTON_MAX: usize = 40;

/// A client's secret; it stays out of logs.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientSecret(String);

impl ClientSecret {
    /// The secret in the first line of a text.
    ///
    /// # Errors
    /// The line is empty.
    pub fn of_text(text: &str) -> Result<ClientSecret, SettingsError> {
        let line = text.lines().next().unwrap_or_default().trim();
        match line.is_empty() {
            true => Err(SettingsError::EmptySecret),
            false => Ok(ClientSecret(line.to_owned())),
        }
    }

    pub(crate) fn value(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ClientSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientSecret(..)")
    }
}

/// The settings.
#[derive(Clone, Debug)]
pub struct OidcSettings {
    issuer: String,
    client: String,
    secret: Option<ClientSecret>,
    claims: ClaimNames,
    button: String,
    mapping: Mapping,
}

/// Why settings are invalid. The binary names the option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The issuer is no URL of the protocol.
    #[error(
        "--oidc-issuer-url = {0:?}: write https://HOST/PATH as the provider's discovery document has it in \"issuer\", without a query"
    )]
    Issuer(String),
    /// The client's id is empty.
    #[error("--oidc-client-id: it is empty; write the id that the provider gave this server")]
    Client,
    /// The secret is empty.
    #[error("its first line is empty; write the client's secret there")]
    EmptySecret,
    /// The name on the button is unusable.
    #[error("--oidc-name = {0:?}: use 1 to {BUTTON_MAX} characters")]
    Button(String),
}

impl OidcSettings {
    /// Checks the settings.
    ///
    /// # Errors
    /// The issuer is no `https` URL, the client has no id, or the name on the button is too long.
    pub fn new(
        issuer: &str,
        client: &str,
        secret: Option<ClientSecret>,
        claims: ClaimNames,
        button: Option<&str>,
        mapping: Mapping,
    ) -> Result<OidcSettings, SettingsError> {
        let url: Option<Uri> = issuer.parse().ok();
        let good = url.is_some_and(|url| {
            url.scheme_str() == Some("https") && url.host().is_some() && url.query().is_none()
        });
        if !good || issuer.contains('#') {
            return Err(SettingsError::Issuer(issuer.chars().take(200).collect()));
        }
        if client.trim().is_empty() {
            return Err(SettingsError::Client);
        }
        let button = button.unwrap_or(DEFAULT_BUTTON);
        let characters = button.chars().count();
        if !(1..=BUTTON_MAX).contains(&characters) || button.contains(char::is_control) {
            return Err(SettingsError::Button(button.chars().take(80).collect()));
        }
        Ok(OidcSettings {
            issuer: issuer.to_owned(),
            client: client.trim().to_owned(),
            secret,
            claims,
            button: button.to_owned(),
            mapping,
        })
    }

    /// The provider's URL, which is its name in tokens.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The id of this server at the provider.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// The secret of this server at the provider.
    pub(crate) fn secret(&self) -> Option<&ClientSecret> {
        self.secret.as_ref()
    }

    /// The claims that are read.
    pub fn claims(&self) -> &ClaimNames {
        &self.claims
    }

    /// The provider's name on the button.
    pub fn button(&self) -> &str {
        &self.button
    }

    /// The mapping.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}
