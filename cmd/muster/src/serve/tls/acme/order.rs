//! An ACME account, and one order of a certificate.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, ChallengeType, HttpClient, Identifier,
    NewAccount, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use serde::{Deserialize, Serialize};

use super::challenge::Challenges;
use super::http_challenge;
use crate::arguments::AcmeSettings;
use crate::serve::layout::write_private;
use crate::serve::tls::pair::PairText;

/// How long the ACME server may take to validate, and then to issue.
const PATIENCE: Duration = Duration::from_secs(120);

/// An account as it is stored: it is the directory's own.
#[derive(Serialize, Deserialize)]
struct StoredAccount {
    directory: String,
    credentials: AccountCredentials,
}

/// The account of an earlier order, or a new one.
///
/// # Errors
/// The ACME server cannot be reached, or refuses.
pub async fn account(
    settings: &AcmeSettings,
    file: &Path,
    client: Box<dyn HttpClient>,
) -> Result<Account> {
    let directory = settings.directory.clone();
    let reached = || format!("--acme-directory = {directory:?}");
    if let Ok(text) = std::fs::read_to_string(file)
        && let Ok(stored) = serde_json::from_str::<StoredAccount>(&text)
        && stored.directory == directory
    {
        return Account::builder_with_http(client)
            .from_credentials(stored.credentials)
            .await
            .with_context(reached);
    }
    let contacts: Vec<String> = settings
        .contacts
        .iter()
        .map(|contact| format!("mailto:{contact}"))
        .collect();
    let contacts: Vec<&str> = contacts.iter().map(String::as_str).collect();
    let wanted = NewAccount {
        contact: &contacts,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let (account, credentials) = Account::builder_with_http(client)
        .create(&wanted, directory.clone(), None)
        .await
        .with_context(reached)?;
    let stored = StoredAccount {
        directory,
        credentials,
    };
    write_private(file, &serde_json::to_string(&stored)?)?;
    Ok(account)
}

/// A new certificate for the settings' names, with a new key.
///
/// # Errors
/// The ACME server refuses, could not validate a name, or does not answer in time.
pub async fn certificate(
    account: &Account,
    settings: &AcmeSettings,
    challenges: &Challenges,
) -> Result<PairText> {
    let _answers = challenges.of_order();
    let names: Vec<Identifier> = settings
        .domains
        .iter()
        .cloned()
        .map(Identifier::Dns)
        .collect();
    let mut order = account
        .new_order(&NewOrder::new(&names))
        .await
        .context("the order was refused")?;
    match settings.http {
        None => validate(&mut order, &ChallengeType::TlsAlpn01, challenges).await?,
        Some(address) => {
            let listener = http_challenge::open(address).await?;
            tokio::select! {
                validated = validate(&mut order, &ChallengeType::Http01, challenges) => validated?,
                never = http_challenge::answer(&listener, challenges) => match never {},
            }
        }
    }
    let key = KeyPair::generate().context("a key was not made")?;
    let mut request = CertificateParams::new(settings.domains.clone())
        .context("the certificate request was not made")?;
    request.distinguished_name = DistinguishedName::new();
    let request = request
        .serialize_request(&key)
        .context("the certificate request was not made")?;
    order
        .finalize_csr(request.der())
        .await
        .context("the certificate request was refused")?;
    let patience = RetryPolicy::new().timeout(PATIENCE);
    let chain = order
        .poll_certificate(&patience)
        .await
        .context("no certificate was issued")?;
    Ok(PairText {
        chain,
        key: key.serialize_pem(),
    })
}

/// Answers the challenges of an order and waits until the ACME server has validated all names.
async fn validate(order: &mut Order, kind: &ChallengeType, challenges: &Challenges) -> Result<()> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.context("an authorization was refused")?;
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        let name = authorization.identifier().to_string();
        let mut challenge = authorization.challenge(kind.clone()).ok_or_else(|| {
            anyhow!(
                "{name}: the ACME server offers no {kind:?} challenge; use another (--acme-http)"
            )
        })?;
        let answer = challenge.key_authorization();
        match kind {
            ChallengeType::Http01 => challenges.answer_http(&challenge.token, answer.as_str()),
            _ => challenges.answer_tls(&name, answer.digest().as_ref())?,
        }
        challenge
            .set_ready()
            .await
            .with_context(|| format!("{name}: the challenge was refused"))?;
    }
    let patience = RetryPolicy::new().timeout(PATIENCE);
    let polled = order.poll_ready(&patience).await;
    if matches!(polled, Ok(OrderStatus::Ready)) {
        return Ok(());
    }
    let mut reasons = reasons(order).await;
    if reasons.is_empty() {
        reasons.push(match polled {
            Ok(status) => format!("the order is {status:?}"),
            Err(error) => error.to_string(),
        });
    }
    bail!(
        "the ACME server could not validate the names: {}; port 80 (--acme-http) or 443 of each name must lead to this \
         server",
        reasons.join("; ")
    )
}

/// For each name that was not validated, the ACME server's reason.
async fn reasons(order: &mut Order) -> Vec<String> {
    let mut reasons = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let name = authorization.identifier().to_string();
        let Ok(state) = authorization.refresh().await else {
            continue;
        };
        let errors = state.challenges.iter();
        let errors = errors.filter_map(|challenge| challenge.error.as_ref());
        reasons.extend(errors.map(|error| format!("{name}: {error}")));
    }
    reasons
}
