//! `muster get`: the server's tables, or the objects.

use anyhow::{Context, Error, Result};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use resources::registry::Kind;
use serde_json::Value;

use super::{CommandOutcome, ServerConnection, failure, follow, kinds, output};
use crate::arguments::{Get, Output};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

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
        eprintln!("muster: {:#}", failure::in_words(earlier, connection));
    }
    Ok(())
}

/// Adds the type, which items of a list lack, and removes managedFields unless requested.
pub fn dress(item: &mut DynamicObject, kind: &Kind, arguments: &Get) {
    item.types.get_or_insert_with(|| kube::core::TypeMeta {
        api_version: kind.api_version(),
        kind: kind.kind.to_string(),
    });
    if !arguments.show_managed_fields {
        item.metadata.managed_fields = None;
    }
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

/// Reports an empty result on standard error, away from a program's input.
pub async fn none_found(connection: &ServerConnection, kind: &Kind, namespace: Option<&str>) {
    let Some(namespace) = namespace.filter(|_| kind.namespaced) else {
        eprintln!("No {} found.", kind.plural);
        return;
    };
    let spaces: Api<Namespace> = Api::all(connection.client.clone());
    // Only a definite "not found" counts: some users may not read namespaces.
    let why = match spaces.get_opt(namespace).await {
        Ok(None) => ": there is no such namespace, `muster get namespaces` lists those there are",
        _ => ".",
    };
    eprintln!("No {} found in namespace {namespace}{why}", kind.plural);
}

/// Requests a collection or an object as the server's Table.
pub async fn table(connection: &ServerConnection, path: &str) -> Result<Value> {
    let request = http(path)?;
    Ok(connection.client.request::<Value>(request).await?)
}

/// A GET request that prefers Tables.
pub fn http(path: &str) -> Result<http::Request<Vec<u8>>> {
    http::Request::get(path)
        .header("accept", TABLE)
        .body(Vec::new())
        .context("the request could not be made")
}

/// The characters that need no encoding in a path segment or a query value: RFC 3986's unreserved characters.
const COMPONENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Percent-encodes a path segment or a query value.
pub fn escape(text: &str) -> String {
    utf8_percent_encode(text, COMPONENT).to_string()
}
