//! `muster whoami`: the server, the user that commands act as, and its token.

use anyhow::Result;
use serde_json::{Value, json};

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::{login, output};
use crate::arguments::{Output, WhoAmI};

/// Prints them.
pub async fn whoami(connection: &ServerConnection, arguments: WhoAmI) -> Result<CommandOutcome> {
    let mut me = connection.ask("/api/v1/whoami").await?;
    let authority = connection.authority()?;
    let pin = authority.as_deref().and_then(login::fingerprint);
    me["server"] = json!(connection.server);
    me["authority"] = json!(pin);
    match arguments.output {
        Some(Output::Json) => output::put_line(&serde_json::to_string_pretty(&me)?)?,
        Some(Output::Yaml) => output::put(&serde_norway::to_string(&me)?)?,
        Some(Output::Name) => output::put_line(&format!("user/{}", text(&me["user"])))?,
        None | Some(Output::Wide) => output::put(&described(&me, &connection.origin))?,
    }
    Ok(CommandOutcome::Yes)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn described(me: &Value, origin: &str) -> String {
    let mut lines = vec![
        ("User", text(&me["user"]).to_owned()),
        ("Server", text(&me["server"]).to_owned()),
        ("Kubeconfig", origin.to_owned()),
    ];
    if let Some(role) = me["role"].as_str() {
        let namespaces = match me["namespaces"].as_array() {
            Some(names) if names.is_empty() => "no namespace".to_owned(),
            Some(names) => names.iter().map(text).collect::<Vec<_>>().join(", "),
            None => "all namespaces".to_owned(),
        };
        lines.push(("Role", format!("{role} in {namespaces}")));
    }
    let token = &me["token"];
    if token.is_object() {
        let label = text(&token["label"]);
        lines.push(("Token", format!("{} ({label})", text(&token["id"]))));
        lines.push(("Expires", text(&token["expires"]).to_owned()));
    }
    if let Some(pin) = me["authority"].as_str() {
        lines.push(("Authority", pin.to_owned()));
    }
    let line = |(name, value): (&str, String)| format!("{:<12}{value}\n", format!("{name}:"));
    lines.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_is_printed() {
        let node =
            json!({"user": "system:node:n1", "role": null, "token": null, "server": "https://s"});
        let shown = described(&node, "f");
        assert_eq!(
            shown,
            "User:       system:node:n1\nServer:     https://s\nKubeconfig: f\n"
        );
        let ann = json!({
            "user": "ann", "role": "member", "namespaces": ["a", "b"], "server": "https://s",
            "token": {"id": "0", "label": "l", "expires": "soon"}, "authority": "sha256:00",
        });
        let shown = described(&ann, "f");
        let last = "Role:       member in a, b\nToken:      0 (l)\nExpires:    soon\nAuthority:  sha256:00\n";
        assert!(shown.ends_with(last), "{shown}");
    }
}
