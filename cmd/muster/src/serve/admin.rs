//! The administrator's kubeconfig: created at the first start, kept while it is valid.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use cli::kubeconfig_text;
use fleet::CertificateAuthority;
use identity::Identity;
use jiff::{SignedDuration, Timestamp};

use super::layout::{FileLayout, write_private};

/// Lifetime of its token.
const LIFE: Duration = identity::LONGEST_TOKEN_TTL;

/// A kubeconfig with less time left than this is replaced.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Label of that token, by which a start finds and revokes the previous one.
const LABEL: &str = "admin.kubeconfig";

/// Writes the kubeconfig, unless the existing one is still valid. It is this machine's own access:
/// a token, which failed sign-ins of others do not slow down. If it cannot be created (the disk is
/// full, or no user is called `admin` any more), the server logs that and starts all the same.
pub async fn write_kubeconfig(
    layout: &FileLayout,
    identity: &Identity,
    ca: &CertificateAuthority,
    address: SocketAddr,
) {
    if let Err(error) = try_write(layout, identity, ca, address).await {
        tracing::error!(
            file = %layout.admin_kubeconfig().display(),
            error = format!("{error:#}"),
            "the administrator's kubeconfig was not written"
        );
    }
}

async fn try_write(
    layout: &FileLayout,
    identity: &Identity,
    ca: &CertificateAuthority,
    address: SocketAddr,
) -> Result<()> {
    let server = format!("https://{address}");
    let text = |secret: &str| {
        let authority = Some(ca.certificate_pem());
        kubeconfig_text(&server, authority, identity::FIRST_ADMIN, secret)
    };
    if let Some(kept) = token_in(layout).filter(|secret| still_good(identity, secret)) {
        let there = std::fs::read_to_string(layout.admin_kubeconfig());
        if there.is_ok_and(|there| there == text(&kept)) {
            return Ok(());
        }
    }
    let old: Vec<String> = identity
        .tokens()
        .into_iter()
        .filter(|token| token.user == identity::FIRST_ADMIN && token.label == LABEL)
        .map(|token| token.id)
        .collect();
    let token = identity
        .create_token(identity::FIRST_ADMIN, LABEL, LIFE, Vec::new())
        .await?;
    write_private(&layout.admin_kubeconfig(), &text(&token.secret))?;
    for id in old {
        identity.revoke(&id).await?;
    }
    Ok(())
}

fn token_in(layout: &FileLayout) -> Option<String> {
    let text = std::fs::read_to_string(layout.admin_kubeconfig()).ok()?;
    let config: serde_json::Value = serde_norway::from_str(&text).ok()?;
    config["users"][0]["user"]["token"]
        .as_str()
        .map(str::to_string)
}

fn still_good(identity: &Identity, secret: &str) -> bool {
    let soon = Timestamp::now()
        .checked_add(RENEW_BEFORE)
        .unwrap_or(Timestamp::MAX);
    identity
        .bearer(secret)
        .is_some_and(|(_, token)| token.expires > soon)
}
