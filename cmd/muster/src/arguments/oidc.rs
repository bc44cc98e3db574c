//! Options of signing in by OpenID Connect, named as kube-apiserver names them if it has them.

use std::path::PathBuf;

use clap::Args;
use oidc::RequiredClaim;

/// Help text on the file of the mapping.
pub const MAPPING: &str = "Mapping of OpenID Connect claims (--oidc-mapping):
  [[rule]]
  group = \"ml-platform\"                       # one name or a list, as the groups claim has them
  role = \"admin\"

  [[rule]]
  claim = \"department\"                        # another claim, with one value or a list
  value = \"research\"
  role = \"member\"                             # admin, lead, member or viewer
  namespaces = [\"research\", \"scratch\"]        # or \"all\"

  [[rule]]
  group = [\"vision\", \"vision-leads\"]
  team = \"vision\"                             # one team or a list
  team-role = \"member\"                        # lead, member (the default) or viewer

  everyone = true instead of group or claim applies to every user. The first rule that applies and has a role gives the
  role; every rule that applies gives its teams. A user to whom no rule applies is refused. `muster user
  explain-sign-in` shows what a mapping gives.";

/// Options of signing in by OpenID Connect.
#[derive(Args, Debug, Clone, Default)]
pub struct OidcFlags {
    /// URL of an OpenID Connect provider by which users sign in to the web UI, as the provider names itself; needs
    /// --oidc-client-id and --oidc-mapping. The provider sends browsers back to https://SERVER/ui/oidc/callback [default:
    /// none, users sign in with passwords only]
    #[arg(long, env = "MUSTER_OIDC_ISSUER_URL", value_name = "URL")]
    pub oidc_issuer_url: Option<String>,
    /// Id of this server at the provider
    #[arg(long, value_name = "ID")]
    pub oidc_client_id: Option<String>,
    /// File with this server's secret at the provider on its first line, read at the start [default: none, a public
    /// client]
    #[arg(long, value_name = "FILE")]
    pub oidc_client_secret_file: Option<PathBuf>,
    /// CA certificates that verify the provider, in PEM, read at the start [default: this machine's]
    #[arg(long, value_name = "FILE")]
    pub oidc_ca_file: Option<PathBuf>,
    /// Claim with the user's name: in lower case, up to an @, with - for . and _
    #[arg(long, value_name = "CLAIM", default_value = cli::OIDC_USERNAME_CLAIM)]
    pub oidc_username_claim: String,
    /// Claim with the user's groups
    #[arg(long, value_name = "CLAIM", default_value = cli::OIDC_GROUPS_CLAIM)]
    pub oidc_groups_claim: String,
    /// Claim that an ID token must have with this value (repeatable)
    #[arg(long = "oidc-required-claim", value_name = "CLAIM=VALUE")]
    pub oidc_required_claims: Vec<RequiredClaim>,
    /// Name of the provider on the sign-in page's button [default: single sign-on]
    #[arg(long, value_name = "NAME")]
    pub oidc_name: Option<String>,
    /// Which roles and teams claims give, in TOML, see below; read at the start
    #[arg(long, value_name = "FILE")]
    pub oidc_mapping: Option<PathBuf>,
}

/// Options of OpenID Connect that do not fit together.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum OidcOptionError {
    /// An option without a provider.
    #[error("--{0}: the option needs --oidc-issuer-url; add it, or leave this out")]
    NoIssuer(&'static str),
    /// A provider without what it needs.
    #[error("--oidc-issuer-url = {issuer}: the option needs --{missing} too; {form}")]
    Missing {
        /// The issuer.
        issuer: String,
        /// The missing option.
        missing: &'static str,
        /// What to write.
        form: &'static str,
    },
}

/// A provider, with the options that it needs.
#[derive(Debug, Clone, Copy)]
pub struct OidcProviderOptions<'a> {
    /// The provider's URL.
    pub issuer: &'a str,
    /// The server's id at the provider.
    pub client: &'a str,
    /// The file of the mapping.
    pub mapping: &'a PathBuf,
}

impl OidcFlags {
    /// The provider; none if no option names one.
    ///
    /// # Errors
    /// Options do not fit together.
    pub fn provider(&self) -> Result<Option<OidcProviderOptions<'_>>, OidcOptionError> {
        let Some(issuer) = self.oidc_issuer_url.as_deref() else {
            let given = [
                (self.oidc_client_id.is_some(), "oidc-client-id"),
                (
                    self.oidc_client_secret_file.is_some(),
                    "oidc-client-secret-file",
                ),
                (self.oidc_ca_file.is_some(), "oidc-ca-file"),
                (!self.oidc_required_claims.is_empty(), "oidc-required-claim"),
                (self.oidc_name.is_some(), "oidc-name"),
                (self.oidc_mapping.is_some(), "oidc-mapping"),
            ];
            let given = given.into_iter().find(|(given, _)| *given);
            return given.map_or(Ok(None), |(_, option)| {
                Err(OidcOptionError::NoIssuer(option))
            });
        };
        let missing = |missing, form| OidcOptionError::Missing {
            issuer: issuer.to_owned(),
            missing,
            form,
        };
        let client = self.oidc_client_id.as_deref().ok_or_else(|| {
            missing(
                "oidc-client-id",
                "write the id that the provider gave this server",
            )
        })?;
        let mapping = self.oidc_mapping.as_ref().ok_or_else(|| {
            missing(
                "oidc-mapping",
                "name a file with rules; without one no user could sign in",
            )
        })?;
        Ok(Some(OidcProviderOptions {
            issuer,
            client,
            mapping,
        }))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        oidc: OidcFlags,
    }

    fn provider(words: &[&str]) -> Result<bool, String> {
        let words = std::iter::once(&"muster").chain(words);
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        let provider = line.oidc.provider();
        provider
            .map(|provider| provider.is_some())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_provider_needs_an_id_and_a_mapping_and_the_other_options_a_provider() {
        assert_eq!(provider(&[]), Ok(false));
        let whole = [
            "--oidc-issuer-url=https://a",
            "--oidc-client-id=m",
            "--oidc-mapping=m.toml",
            "--oidc-required-claim=hd=example.org",
        ];
        assert_eq!(provider(&whole), Ok(true));
        for (words, expected) in [
            (&whole[..1], "needs --oidc-client-id too"),
            (&whole[..2], "needs --oidc-mapping too"),
            (
                &whole[1..2],
                "--oidc-client-id: the option needs --oidc-issuer-url",
            ),
            (&whole[3..], "--oidc-required-claim: the option needs"),
            (&["--oidc-required-claim=hd"], "write CLAIM=VALUE"),
        ] {
            let error = provider(words).unwrap_err();
            assert!(error.contains(expected), "{words:?}: {error}");
        }
    }

    #[test]
    fn the_mapping_in_the_help_text_is_valid() {
        let lines = MAPPING
            .lines()
            .skip(1)
            .take_while(|line| !line.starts_with("  everyone"));
        let text: String = lines.map(|line| format!("{line}\n")).collect();
        oidc::Mapping::parse(&text).unwrap();
    }
}
