//! `muster logout`: revokes the token of the kubeconfig's current context, and removes it from the file.

use anyhow::Result;
use serde_json::Value;

use super::files::KubeconfigFile;
use super::{connection_of, merge};
use crate::arguments::{Global, Logout};
use crate::outcome::CommandOutcome;
use crate::platform::escape;
use crate::{error_message, failure, output};

/// What Muster's access tokens begin with.
const PREFIX: &str = "muster_";

/// Signs out.
///
/// # Errors
/// The kubeconfig has no token of Muster, cannot be written, or the server does not answer.
pub async fn logout(global: &Global, arguments: Logout) -> Result<CommandOutcome> {
    let file = KubeconfigFile::for_login(global)?;
    let shown = file.path.display();
    let Some(login) = merge::current_login(&file.document) else {
        return Err(failure::not_found(format!(
            "the current context of {shown} has no token; nothing to sign out from"
        )));
    };
    if id_of(&login.token).is_none() {
        return Err(failure::usage(format!(
            "the token of user {:?} in {shown} is none of `muster login`; remove it with kubectl",
            login.user
        )));
    }
    if !arguments.local {
        let authority = merge::authority(&file.document, &login.server, file.directory())?;
        revoke(&login.server, authority.as_deref(), &login.token).await?;
    }
    file.replace(|document| merge::remove(document, &login.user))?;
    let done = match arguments.local {
        true => "its token is removed, and valid until it expires",
        false => "its token is revoked and removed",
    };
    output::put_line(&format!(
        "signed out from {}: {done} ({shown})",
        login.server
    ))?;
    Ok(CommandOutcome::Yes)
}

/// The public id in a token.
fn id_of(token: &str) -> Option<&str> {
    let (id, _) = token.strip_prefix(PREFIX)?.split_once('_')?;
    (!id.is_empty()).then_some(id)
}

/// Revokes a token with itself. A token that the server no longer knows is no error.
pub async fn revoke(server: &str, authority: Option<&str>, token: &str) -> Result<()> {
    let Some(id) = id_of(token) else {
        return Ok(());
    };
    let connection = connection_of(server, authority, token).await?;
    let path = format!("/api/v1/tokens/{}", escape(id));
    match connection.call("DELETE", &path, &Value::Null).await {
        Ok(_) => Ok(()),
        Err(error) if failure::has_code(&error, 401) || failure::has_code(&error, 404) => Ok(()),
        Err(error) => Err(error_message::in_words(error, &connection)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_token_is_its_second_part() {
        assert_eq!(id_of("muster_0123456789ab_ff"), Some("0123456789ab"));
        for other in ["", "muster_", "muster__ff", "eyJhbGciOi", "ghp_0_1"] {
            assert_eq!(id_of(other), None, "{other}");
        }
    }
}
