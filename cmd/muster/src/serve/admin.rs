//! The administrator's kubeconfig: made at the first start, kept while it works.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use fleet::CertificateAuthority;
use identity::Identity;
use jiff::{SignedDuration, Timestamp};

use super::layout::{Layout, write_private};
use crate::client::kubeconfig_text;

/// How long its token is good.
const LIFE: Duration = identity::LONGEST_TOKEN_TTL;

/// It is made anew when less than this is left of it.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(30 * 24);

/// The label of that token, by which an older one is found and ended.
const LABEL: &str = "admin.kubeconfig";

/// Writes the kubeconfig, unless the one that is there still fits. It is this machine's own way in:
/// a token, which no failed sign-in of anybody slows down. Where it can't be made (on a full disk,
/// or where nobody is called `admin` any more) the server starts all the same, and says so.
pub async fn write_kubeconfig(
    layout: &Layout,
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
    layout: &Layout,
    identity: &Identity,
    ca: &CertificateAuthority,
    address: SocketAddr,
) -> Result<()> {
    let server = format!("https://{address}");
    let text = |secret: &str| {
        kubeconfig_text(&server, ca.certificate_pem(), identity::FIRST_ADMIN, secret)
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
        .create_token(identity::FIRST_ADMIN, LABEL, LIFE)
        .await?;
    write_private(&layout.admin_kubeconfig(), &text(&token.secret))?;
    for id in old {
        identity.revoke(&id).await?;
    }
    Ok(())
}

fn token_in(layout: &Layout) -> Option<String> {
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
