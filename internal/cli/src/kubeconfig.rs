//! `muster kubeconfig`: a file for kubectl and SDKs, with its own token.

use std::time::Duration;

use anyhow::{Context, Result};
use kube::config::KubeConfigOptions;

use super::connection::ServerConnection;
use super::connection::kubeconfig_text;
use super::outcome::CommandOutcome;
use super::{output, tokens};
use crate::arguments::Kubeconfig;

/// Prints a kubeconfig to standard output.
pub async fn print(connection: &ServerConnection, arguments: Kubeconfig) -> Result<CommandOutcome> {
    let me = connection.ask("/api/v1/whoami").await?;
    let user = match &arguments.user {
        Some(user) => user.clone(),
        None => me["user"].as_str().unwrap_or("admin").to_string(),
    };
    let token = tokens::issue(
        connection,
        "kubeconfig",
        arguments.days,
        arguments.user.as_deref(),
        &[],
    )
    .await?;
    let server = arguments
        .server
        .unwrap_or_else(|| connection.server.clone());
    let own = connection.authority()?;
    let authority = match &arguments.certificate_authority {
        Some(file) => Some(std::fs::read_to_string(file).with_context(|| {
            format!("--certificate-authority: {} cannot be read", file.display())
        })?),
        None if own.is_some() && trusted_by_machine(&server, own.as_deref()).await => None,
        None => own,
    };
    let text = kubeconfig_text(&server, authority.as_deref(), &user, &token);
    output::put(&text)?;
    Ok(CommandOutcome::Yes)
}

/// How long a server may take to answer whether its certificate is trusted.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether the server at this address has a certificate that this authority did not sign and this machine trusts, such
/// as one of a public CA. False if the server does not answer.
async fn trusted_by_machine(server: &str, authority: Option<&str>) -> bool {
    !answers(server, authority).await && answers(server, None).await
}

/// Whether the server answers a client that trusts this authority, or this machine's.
async fn answers(server: &str, authority: Option<&str>) -> bool {
    let text = kubeconfig_text(server, authority, "check", "");
    let asked = async {
        let kubeconfig = kube::config::Kubeconfig::from_yaml(&text).ok()?;
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .ok()?;
        let client = kube::Client::try_from(config).ok()?;
        match client.apiserver_version().await {
            // Any answer over TLS says that the certificate is trusted.
            Ok(_) | Err(kube::Error::Api(_)) => Some(()),
            Err(_) => None,
        }
    };
    let asked = tokio::time::timeout(PATIENCE, asked).await;
    asked.is_ok_and(|answer| answer.is_some())
}
