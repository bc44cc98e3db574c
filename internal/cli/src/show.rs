//! `muster get`: the server's tables, or the objects.

use anyhow::{Error, Result};
use kube::Api;
use kube::api::ListParams;
use resources::registry::Kind;
use serde_json::Value;

use super::connection::ServerConnection;
use super::listing::{dress, none_found, table};
use super::outcome::CommandOutcome;
use super::platform::escape;
use super::{error_message, failure, follow, kinds, output};
use crate::arguments::{Get, Output};

/// Lists objects or shows named ones.
pub async fn get(connection: &ServerConnection, arguments: Get) -> Result<CommandOutcome> {
    let (kind, names) = kinds::split(&arguments.what, &arguments.names)?;
    if !names.is_empty() && (arguments.all_namespaces || arguments.selector.is_some()) {
        return Err(failure::usage(
            "names go with neither --all-namespaces nor --selector: they say exactly what is meant",
        ));
    }
    if arguments.watch {
        return follow::get(connection, kind, &names, &arguments).await;
    }
    match arguments.output {
        None | Some(Output::Wide) => tables(connection, kind, &names, &arguments).await,
        Some(form) => objects(connection, kind, &names, &arguments, form).await,
    }
}

async fn objects(
    connection: &ServerConnection,
    kind: &Kind,
    names: &[String],
    arguments: &Get,
    form: Output,
) -> Result<CommandOutcome> {
    let mut items = Vec::new();
    let mut missing = None;
    for name in names {
        match connection.api(kind).get(name).await {
            Ok(item) => items.push(item),
            Err(error) => note(&mut missing, error.into(), connection)?,
        }
    }
    if names.is_empty() {
        let api = if arguments.all_namespaces {
            Api::all_with(connection.client.clone(), &kinds::api_resource(kind))
        } else {
            connection.api(kind)
        };
        let mut parameters = ListParams::default();
        if let Some(selector) = &arguments.selector {
            parameters = parameters.labels(selector);
        }
        items = api.list(&parameters).await?.items;
    }
    for item in &mut items {
        dress(item, kind, arguments);
    }
    match items.as_slice() {
        [] if missing.is_some() => {}
        [only] if names.len() == 1 => output::print_object(only, kind, form)?,
        items => output::print_list(items, kind, form)?,
    }
    missing.map_or(Ok(CommandOutcome::Yes), Err)
}

/// Prints the found objects although others are missing: keeps the last not-found error as the result, and prints the
/// one before it.
fn note(missing: &mut Option<Error>, error: Error, connection: &ServerConnection) -> Result<()> {
    if !failure::has_code(&error, 404) {
        return Err(error);
    }
    if let Some(earlier) = missing.replace(error) {
        eprintln!("muster: {:#}", error_message::in_words(earlier, connection));
    }
    Ok(())
}

/// Lists all objects of a kind as `get` does.
pub async fn list_of(
    connection: &ServerConnection,
    what: &str,
    form: Output,
) -> Result<CommandOutcome> {
    let arguments = Get {
        what: what.to_string(),
        names: Vec::new(),
        all_namespaces: false,
        selector: None,
        watch: false,
        show_managed_fields: false,
        output: Some(form),
    };
    get(connection, arguments).await
}

async fn tables(
    connection: &ServerConnection,
    kind: &Kind,
    names: &[String],
    arguments: &Get,
) -> Result<CommandOutcome> {
    let namespace = (!arguments.all_namespaces).then_some(connection.namespace.as_str());
    let collection = connection.collection(kind, namespace);
    let wide = arguments.output == Some(Output::Wide);
    let with_namespace = arguments.all_namespaces && kind.namespaced;
    let mut query = Vec::new();
    if let Some(selector) = &arguments.selector {
        query.push(format!("labelSelector={}", escape(selector)));
    }
    let paths = if names.is_empty() {
        vec![format!("{collection}?{}", query.join("&"))]
    } else {
        names
            .iter()
            .map(|name| format!("{collection}/{name}"))
            .collect()
    };
    let mut merged: Option<Value> = None;
    let mut missing = None;
    for path in paths {
        let mut table = match table(connection, &path).await {
            Ok(table) => table,
            Err(error) if names.is_empty() => return Err(error),
            Err(error) => {
                note(&mut missing, error, connection)?;
                continue;
            }
        };
        match &mut merged {
            None => merged = Some(table),
            Some(merged) => {
                if let (Some(rows), Some(more)) =
                    (merged["rows"].as_array_mut(), table["rows"].as_array_mut())
                {
                    rows.append(more);
                }
            }
        }
    }
    let merged = merged.unwrap_or_default();
    let none = merged["rows"].as_array().is_none_or(Vec::is_empty);
    match &missing {
        Some(_) if none => {}
        None if none => none_found(connection, kind, namespace).await,
        _ => output::put(&output::server_table(&merged, wide, with_namespace).render())?,
    }
    missing.map_or(Ok(CommandOutcome::Yes), Err)
}
