//! `muster user`.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use super::connection::ServerConnection;
use super::outcome::CommandOutcome;
use super::output::{self, Table};
use super::password_input;
use super::platform::escape;
use crate::arguments::{NewUserArguments, Output, UserCommand};

/// Manages users.
pub async fn user(connection: &ServerConnection, command: UserCommand) -> Result<CommandOutcome> {
    match command {
        UserCommand::Create(new) => create(connection, new).await?,
        UserCommand::List(listing) => list(connection, listing.output).await?,
        UserCommand::Show { name, output } => show(connection, &name, output).await?,
        UserCommand::Disable { name } => {
            change(connection, &name, &json!({"disabled": true})).await?;
            output::put_line(&format!(
                "user {name} disabled; its sessions have ended, and its tokens are refused"
            ))?;
        }
        UserCommand::Enable { name } => {
            change(connection, &name, &json!({"disabled": false})).await?;
            output::put_line(&format!("user {name} enabled"))?;
        }
        UserCommand::Delete { name } => {
            connection
                .call("DELETE", &path(&name), &Value::Null)
                .await?;
            output::put_line(&format!(
                "user {name} deleted, with its sessions and tokens"
            ))?;
        }
        UserCommand::ResetPassword { name, hours } => {
            let body = json!({"hours": hours});
            let path = format!("{}/reset-link", path(&name));
            let link = connection.call("POST", &path, &body).await?;
            put_link(connection, &link)?;
        }
        UserCommand::ResetTotp { name } => {
            let path = format!("{}/second-factor", path(&name));
            connection.call("DELETE", &path, &Value::Null).await?;
            output::put_line(&format!("second factor of user {name} removed"))?;
        }
        UserCommand::Passwd { password_file } => {
            passwd(connection, password_file.as_deref()).await?
        }
        UserCommand::SetRole {
            name,
            role,
            namespaces,
            all_namespaces,
            no_namespaces,
        } => {
            let mut body = json!({"role": role.as_str()});
            if all_namespaces {
                body["allNamespaces"] = json!(true);
            } else if no_namespaces || !namespaces.is_empty() {
                body["namespaces"] = json!(namespaces);
            }
            let user = change(connection, &name, &body).await?;
            output::put_line(&format!(
                "user {name} is {} in {}",
                role.as_str(),
                namespaces_of(&user)
            ))?;
        }
        UserCommand::ExplainSignIn(arguments) => {
            return super::explain_sign_in::explain(&arguments);
        }
        UserCommand::Sessions { name } => sessions(connection, name).await?,
        UserCommand::EndSessions { name, id } => {
            let name = own_unless(connection, name).await?;
            let mut path = format!("{}/sessions", path(&name));
            if let Some(id) = &id {
                path = format!("{path}/{}", escape(id));
            }
            let answer = connection.call("DELETE", &path, &Value::Null).await?;
            let count = answer["ended"].as_u64().unwrap_or(1);
            output::put_line(&format!("{count} session(s) of user {name} ended"))?;
        }
    }
    Ok(CommandOutcome::Yes)
}

fn path(name: &str) -> String {
    format!("/api/v1/users/{}", escape(name))
}

async fn change(connection: &ServerConnection, name: &str, body: &Value) -> Result<Value> {
    connection.call("PATCH", &path(name), body).await
}

async fn create(connection: &ServerConnection, new: NewUserArguments) -> Result<()> {
    let password = new.password_file.as_deref();
    let password = password.map(password_input::from_file).transpose()?;
    let everywhere = new.namespaces.is_empty() && !new.no_namespaces;
    let namespaces = (!everywhere).then_some(new.namespaces);
    let body = json!({
        "name": new.name, "role": new.role.as_str(), "namespaces": namespaces,
        "displayName": new.display_name, "email": new.email, "password": password,
    });
    let answer = connection.call("POST", "/api/v1/users", &body).await?;
    output::tell(&format!("user {} created", new.name))?;
    if answer["resetLink"].is_object() {
        put_link(connection, &answer["resetLink"])?;
    }
    Ok(())
}

/// Prints the link alone on standard output, for programs, and its use on standard error.
fn put_link(connection: &ServerConnection, link: &Value) -> Result<()> {
    let path = link["path"].as_str().unwrap_or_default();
    output::put_line(&format!("{}{path}", connection.server))?;
    let user = link["user"].as_str().unwrap_or_default();
    let expires = link["expires"].as_str().unwrap_or_default();
    output::tell(&format!(
        "user {user} sets its password with this link, once, until {expires}"
    ))
}

fn text(user: &Value, field: &str) -> String {
    user[field].as_str().unwrap_or_default().to_owned()
}

fn namespaces_of(user: &Value) -> String {
    let Some(names) = user["namespaces"].as_array() else {
        return "all namespaces".to_owned();
    };
    let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
    if names.is_empty() {
        return "no namespace".to_owned();
    }
    names.join(",")
}

fn state_of(user: &Value) -> &'static str {
    match user["disabled"].as_bool() {
        Some(true) => "disabled",
        _ => "enabled",
    }
}

async fn list(connection: &ServerConnection, form: Option<Output>) -> Result<()> {
    let answer = connection.ask("/api/v1/users").await?;
    if put_document(&answer, form)? {
        return Ok(());
    }
    let mut table = Table::new([
        "NAME",
        "STATE",
        "ROLE",
        "NAMESPACES",
        "SESSIONS",
        "FULL NAME",
        "E-MAIL",
    ]);
    for user in answer["items"].as_array().into_iter().flatten() {
        table.row([
            text(user, "name"),
            state_of(user).to_owned(),
            text(user, "role"),
            namespaces_of(user),
            user["sessions"].as_u64().unwrap_or_default().to_string(),
            text(user, "displayName"),
            text(user, "email"),
        ]);
    }
    output::put(&table.render())
}

async fn show(connection: &ServerConnection, name: &str, form: Option<Output>) -> Result<()> {
    let user = connection.ask(&path(name)).await?;
    if put_document(&user, form)? {
        return Ok(());
    }
    let mut lines = vec![
        ("Name", text(&user, "name")),
        ("State", state_of(&user).to_owned()),
        ("Role", text(&user, "role")),
        ("Namespaces", namespaces_of(&user)),
    ];
    if user["secondFactor"] == json!(true) {
        lines.push(("Factors", "password and code".to_owned()));
    }
    for (label, field) in [("Full name", "displayName"), ("E-mail", "email")] {
        if user[field].is_string() {
            lines.push((label, text(&user, field)));
        }
    }
    if user["oidc"].is_object() {
        lines.push(("Provider", text(&user["oidc"], "issuer")));
        lines.push(("Subject", text(&user["oidc"], "subject")));
    }
    for (label, value) in lines {
        output::put_line(&format!("{:<12}{value}", format!("{label}:")))?;
    }
    Ok(())
}

/// Prints a document for programs; false if none is asked for.
fn put_document(document: &Value, form: Option<Output>) -> Result<bool> {
    match form {
        Some(Output::Json) => output::put_line(&serde_json::to_string_pretty(document)?)?,
        Some(Output::Yaml) => output::put(&serde_norway::to_string(document)?)?,
        Some(Output::Name) => {
            let one = std::slice::from_ref(document);
            let items = document["items"].as_array().map_or(one, Vec::as_slice);
            for user in items {
                output::put_line(&format!("user/{}", text(user, "name")))?;
            }
        }
        None | Some(Output::Wide) => return Ok(false),
    }
    Ok(true)
}

/// The user of the command's credential.
async fn own_name(connection: &ServerConnection) -> Result<String> {
    let own = connection.ask("/api/v1/whoami").await?;
    Ok(text(&own, "user"))
}

async fn own_unless(connection: &ServerConnection, name: Option<String>) -> Result<String> {
    match name {
        Some(name) => Ok(name),
        None => own_name(connection).await,
    }
}

async fn passwd(connection: &ServerConnection, file: Option<&Path>) -> Result<()> {
    let name = own_name(connection).await?;
    let old = password_input::ask(&format!("Old password of {name}"))?;
    let new = match file {
        Some(file) => password_input::from_file(file)?,
        None => {
            let new = password_input::ask("New password")?;
            let again = password_input::ask("New password again")?;
            anyhow::ensure!(
                new == again,
                "the two new passwords differ; type the same one twice"
            );
            new
        }
    };
    let body = json!({"old": old, "new": new});
    let path = format!("{}/password", path(&name));
    connection.call("POST", &path, &body).await?;
    output::put_line(&format!(
        "password of user {name} changed; its sessions have ended"
    ))
}

async fn sessions(connection: &ServerConnection, name: Option<String>) -> Result<()> {
    let name = own_unless(connection, name).await?;
    let path = format!("{}/sessions", path(&name));
    let answer = connection.ask(&path).await?;
    let mut table = Table::new(["ID", "SIGNED IN", "ENDS"]);
    for session in answer["items"].as_array().into_iter().flatten() {
        table.row(["id", "created", "expires"].map(|field| text(session, field)));
    }
    output::put(&table.render())
}
