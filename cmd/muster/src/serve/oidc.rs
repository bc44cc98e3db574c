//! Signing in by OpenID Connect: the settings from options and files, and the HTTPS client for the provider. The provider
//! is asked when a user signs in, and not at the start, so that the server starts while it is down.

use std::error::Error as StdError;
use std::path::Path;

use anyhow::{Context, Result};
use axum::body::Bytes;
use axum::http::{Request, StatusCode};
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use oidc::{
    ANSWER_MAX, ClaimNames, ClientSecret, Exchange, ExchangeError, Mapping, Oidc, OidcSettings,
    PATIENCE,
};
use portal::OidcSignIn;
use rustls::ClientConfig;

use super::root_certificates::root_certificates;
use crate::arguments::OidcFlags;

/// Signing in by the provider of the options; none if they name no provider.
///
/// # Errors
/// An option or a file is invalid.
pub fn sign_in(options: &OidcFlags) -> Result<Option<OidcSignIn>> {
    let Some(settings) = settings(options)? else {
        return Ok(None);
    };
    let client = ProviderClient::new(options.oidc_ca_file.as_deref())?;
    let oidc = Oidc::new(settings, Box::new(client));
    Ok(Some(OidcSignIn::new(oidc)))
}

/// Checks options and files as a start does.
///
/// # Errors
/// An option or a file is invalid.
pub fn check(options: &OidcFlags) -> Result<()> {
    settings(options)?;
    options.oidc_ca_file.as_deref().map_or(Ok(()), |path| {
        root_certificates("--oidc-ca-file", path)?;
        Ok(())
    })
}

fn settings(options: &OidcFlags) -> Result<Option<OidcSettings>> {
    let Some(provider) = options.provider()? else {
        return Ok(None);
    };
    let read = |option: &str, path: &Path| {
        std::fs::read_to_string(path).with_context(|| {
            format!(
                "--{option} = {}: name a file that the server's user may read",
                path.display()
            )
        })
    };
    let secret = match &options.oidc_client_secret_file {
        None => None,
        Some(path) => {
            let secret = ClientSecret::of_text(&read("oidc-client-secret-file", path)?);
            let secret = secret
                .with_context(|| format!("--oidc-client-secret-file = {}", path.display()))?;
            Some(secret)
        }
    };
    let mapping = Mapping::parse(&read("oidc-mapping", provider.mapping)?)
        .with_context(|| format!("--oidc-mapping = {}", provider.mapping.display()))?;
    let claims = ClaimNames {
        username: options.oidc_username_claim.clone(),
        groups: options.oidc_groups_claim.clone(),
        required: options.oidc_required_claims.clone(),
    };
    let name = options.oidc_name.as_deref();
    let settings = OidcSettings::new(
        provider.issuer,
        provider.client,
        secret,
        claims,
        name,
        mapping,
    );
    Ok(Some(settings?))
}

/// The HTTPS client, without redirects.
struct ProviderClient(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

impl ProviderClient {
    /// A client that verifies the provider by the certificates of a file, or by this machine's.
    fn new(file: Option<&Path>) -> Result<ProviderClient> {
        let builder = HttpsConnectorBuilder::new();
        let builder = match file {
            None => builder.with_native_roots().context(
                "--oidc-issuer-url: this machine has no CA certificates that verify the provider; install \
                 ca-certificates, or use --oidc-ca-file FILE",
            )?,
            Some(path) => {
                let config = ClientConfig::builder().with_root_certificates(root_certificates("--oidc-ca-file", path)?);
                builder.with_tls_config(config.with_no_client_auth())
            }
        };
        let connector = builder.https_only().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(ProviderClient(client))
    }
}

impl Exchange for ProviderClient {
    fn send(
        &self,
        request: Request<String>,
    ) -> BoxFuture<'static, Result<(StatusCode, Vec<u8>), ExchangeError>> {
        let answer = self.0.request(request.map(|body| Full::new(body.into())));
        Box::pin(async move {
            let read = async {
                let answer = answer.await.map_err(|error| unanswered(error.into()))?;
                let status = answer.status();
                let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
                let body = body.map_err(|error| match error.is::<LengthLimitError>() {
                    true => ExchangeError::Answer(format!("it is over {ANSWER_MAX} bytes long")),
                    false => ExchangeError::Unreachable(error.to_string()),
                })?;
                Ok((status, body.to_bytes().to_vec()))
            };
            let late = || {
                let words = format!("no answer within {} s", PATIENCE.as_secs());
                ExchangeError::Unreachable(words)
            };
            tokio::time::timeout(PATIENCE, read)
                .await
                .map_err(|_| late())?
        })
    }
}

/// Why a request has no answer: its certificate, or something else.
fn unanswered(error: anyhow::Error) -> ExchangeError {
    let cause = innermost(error.as_ref());
    let words = cause.to_string();
    match cause.downcast_ref() {
        Some(rustls::Error::InvalidCertificate(_)) => ExchangeError::Certificate(words),
        _ => ExchangeError::Unreachable(words),
    }
}

/// The first cause of an error. An I/O error does not count the error inside of it as its source.
fn innermost<'a>(mut error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    loop {
        let inner = error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref);
        let next = match inner {
            Some(inner) => Some(inner as &'a (dyn StdError + 'static)),
            None => error.source(),
        };
        match next {
            Some(next) => error = next,
            None => return error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_is_not_trusted_is_told_from_a_server_that_is_away() {
        let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let inner = std::io::Error::new(std::io::ErrorKind::InvalidData, unknown);
        let error = unanswered(std::io::Error::other(inner).into());
        assert!(matches!(error, ExchangeError::Certificate(_)), "{error:?}");
        let away = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = unanswered(anyhow::Error::from(away).context("connect"));
        assert!(
            matches!(&error, ExchangeError::Unreachable(words) if words == "connection refused"),
            "{error:?}"
        );
    }
}
