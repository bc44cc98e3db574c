//! `muster login`: gets an access token for a person that approves in a browser (RFC 8628), and writes it to a
//! kubeconfig.

mod authority;
mod exchange;
mod files;
mod logout;
mod merge;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use self::exchange::{Codes, Exchange};
use self::files::KubeconfigFile;
use self::merge::LoginEntry;
use super::connection::{self, ServerConnection};
use super::exit::ExitCause;
use super::outcome::CommandOutcome;
use super::platform::escape;
use super::{error_message, failure, open, output};
use crate::arguments::{Global, Login};

pub use authority::fingerprint;
pub use logout::logout;

/// The path of the page that shows a code.
const PAGE: &str = "/ui/device";

/// The longest name that the server takes, in bytes.
const NAME_MAX: usize = 64;

const DAY: u64 = 24 * 3600;

/// Signs in.
///
/// # Errors
/// The kubeconfig cannot be read or written, the server cannot be reached or is not trusted, or the person refused.
pub async fn login(global: &Global, arguments: Login) -> Result<CommandOutcome> {
    let file = KubeconfigFile::for_login(global)?;
    let server = server_of(&file, arguments.server.as_deref())?;
    let authority = authority_of(&file, &server, &arguments).await?;
    let exchange = Exchange::open(&server, authority.as_deref()).await?;
    let asked = exchange::Asked {
        client: arguments.name.clone().unwrap_or_else(own_name),
        user: arguments.user.clone(),
        lifetime: Duration::from_secs(arguments.days * DAY),
    };
    let codes = exchange.start(&asked).await?;
    show(&server, &codes, arguments.no_browser)?;
    let token = exchange.wait(&codes).await?;
    let me = match store(global, &file, &server, authority.as_deref(), &token).await {
        Ok(me) => me,
        Err(error) => {
            // No file has the token, so that no program needs it.
            let _ = logout::revoke(&server, authority.as_deref(), &token).await;
            return Err(error);
        }
    };
    report(global, &file.path, &server, &me)?;
    Ok(CommandOutcome::Yes)
}

/// The name of the entries in a kubeconfig for a server.
fn entry_name(server: &str) -> String {
    let host = server.strip_prefix("https://").unwrap_or(server);
    format!("muster-{}", host.trim_end_matches('/'))
}

fn server_of(file: &KubeconfigFile, asked: Option<&str>) -> Result<String> {
    let known = || merge::current_server(&file.document);
    let server = asked.map(str::to_owned).or_else(known);
    let server = server.map(|server| server.trim_end_matches('/').to_owned());
    server.ok_or_else(|| {
        failure::usage(format!(
            "--server is missing, and {} has no server: use --server https://HOST:PORT",
            file.path.display()
        ))
    })
}

/// The certificate authority in PEM; none for those that this machine trusts.
async fn authority_of(
    file: &KubeconfigFile,
    server: &str,
    arguments: &Login,
) -> Result<Option<String>> {
    if let Some(ca) = &arguments.ca {
        return authority::from_file(ca).map(Some);
    }
    if let Some(pin) = &arguments.pin {
        return authority::pinned(server, pin).await.map(Some);
    }
    merge::authority(&file.document, server, file.directory())
}

/// The name that this client gives itself.
fn own_name() -> String {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user = variable("USER").or_else(|| variable("LOGNAME"));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    presentable(&user.unwrap_or_else(|| "a user".to_owned()), host.trim())
}

/// User and host, in the characters and the length that the server takes.
fn presentable(user: &str, host: &str) -> String {
    let joined = match host {
        "" => user.to_owned(),
        host => format!("{user}@{host}"),
    };
    let shown = |c: char| match c {
        ' '..='~' => c,
        _ => '?',
    };
    joined.chars().take(NAME_MAX).map(shown).collect()
}

/// Shows the code, and where to approve it.
fn show(server: &str, codes: &Codes, no_browser: bool) -> Result<()> {
    let address = format!(
        "{}{PAGE}?user_code={}",
        open::browser_address(server),
        escape(&codes.user_code)
    );
    output::tell(&format!(
        "Open {address}\nin a browser, check that the page shows this code, and approve it within {} minutes:\n\n    {}\n",
        codes.expires_in.as_secs() / 60,
        codes.user_code
    ))?;
    open::browse(&address, no_browser);
    Ok(())
}

/// Writes the token to the kubeconfig, and revokes the one that it replaces. Returns who signed in.
async fn store(
    global: &Global,
    file: &KubeconfigFile,
    server: &str,
    authority: Option<&str>,
    token: &str,
) -> Result<Value> {
    let name = entry_name(server);
    let connection = connection_of(server, authority, token).await?;
    let me = connection.ask("/api/v1/whoami").await;
    let me = me.map_err(|error| error_message::in_words(error, &connection))?;
    let own = me["namespaces"].as_array().map(Vec::as_slice);
    let namespace = global.namespace.as_deref().or(match own {
        Some([only]) => only.as_str(),
        _ => None,
    });
    let entry = LoginEntry {
        name: &name,
        server,
        authority,
        token,
        namespace,
    };
    let before = file.replace(|document| {
        let before = merge::token_of_user(document, &name);
        merge::put(document, &entry)?;
        Ok(before)
    })?;
    if let Some(before) = before.filter(|before| before != token) {
        // It is replaced in any case, and expires.
        let _ = logout::revoke(server, authority, &before).await;
    }
    Ok(me)
}

fn report(global: &Global, path: &Path, server: &str, me: &Value) -> Result<()> {
    let context = entry_name(server);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    output::put_line(&format!(
        "signed in at {server} as {} until {}\ncontext {context} in {} is the current one",
        text(&me["user"]),
        text(&me["token"]["expires"]),
        path.display()
    ))?;
    let used = connection::kubeconfig_file(global);
    if let Some(other) = used.filter(|used| used.as_path() != path) {
        output::tell(&format!(
            "on this machine, muster goes on using {}: name the other one with --kubeconfig {} or MUSTER_KUBECONFIG",
            other.display(),
            path.display()
        ))?;
    }
    Ok(())
}

/// The error for a server whose certificate is not trusted, or that does not answer.
fn unreachable(server: &str, trusts_machine: bool, error: &kube::Error) -> anyhow::Error {
    let reason = error_message::innermost(error);
    let untrusted = reason.to_lowercase().contains("certificate");
    let advice = match (untrusted, trusts_machine) {
        (true, true) => {
            "name the server's certificate authority by --ca FILE, or its fingerprint by --pin; `muster whoami` prints it \
             on the server's machine"
        }
        (true, false) => "the server has a certificate of another authority: was it set up again?",
        (false, _) => "is the server up, and is the address right?",
    };
    let text = format!("no answer from {server}: {reason}\n  {advice}");
    failure::with(ExitCause::Unreachable, text)
}

/// Requests with this token.
async fn connection_of(
    server: &str,
    authority: Option<&str>,
    token: &str,
) -> Result<ServerConnection> {
    let credentials = connection::kubeconfig_of(server, authority, Some(token))?;
    let connection = ServerConnection::of(credentials, "the kubeconfig".to_owned(), None).await;
    connection.context("the token cannot be used")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_named_after_the_server() {
        for (server, name) in [
            ("https://gpu.example:8443", "muster-gpu.example:8443"),
            ("https://[::1]:8443/", "muster-[::1]:8443"),
        ] {
            assert_eq!(entry_name(server), name);
        }
    }

    #[test]
    fn a_clients_name_has_the_form_that_the_server_takes() {
        assert_eq!(presentable("ann", "laptop"), "ann@laptop");
        assert_eq!(presentable("ann", ""), "ann");
        assert_eq!(presentable("ännchen\u{202e}", "x"), "?nnchen?@x");
        assert_eq!(presentable(&"x".repeat(100), "h").len(), NAME_MAX);
    }
}
