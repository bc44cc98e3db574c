//! `muster get`, `muster nodes`, `muster queue`: the server's tables, or the objects.

use anyhow::{Context, Result, bail};
use futures::{AsyncBufReadExt, TryStreamExt};
use kube::api::ListParams;
use resources::registry::Kind;
use serde_json::Value;

use super::{Answer, Connection, kinds, output};
use crate::arguments::{Get, Listing, Output};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// Lists or shows.
pub async fn get(connection: &Connection, arguments: Get) -> Result<Answer> {
    let (kind, names) = kinds::split(&arguments.what, &arguments.names)?;
    match arguments.output {
        None | Some(Output::Wide) => tables(connection, kind, &names, &arguments).await,
        Some(form) if names.is_empty() => {
            let api = if arguments.all_namespaces {
                kube::Api::all_with(connection.client.clone(), &kinds::api_resource(kind))
            } else {
                connection.api(kind)
            };
            let mut parameters = ListParams::default();
            if let Some(selector) = &arguments.selector {
                parameters = parameters.labels(selector);
            }
            let mut items = api.list(&parameters).await?.items;
            // Items of a typed list carry no type of their own on the wire.
            for item in &mut items {
                item.types.get_or_insert_with(|| kube::core::TypeMeta {
                    api_version: kind.api_version(),
                    kind: kind.kind.to_string(),
                });
            }
            output::print_list(&items, kind, form)?;
            Ok(Answer::Yes)
        }
        Some(form) => {
            for name in &names {
                let object = connection.api(kind).get(name).await?;
                output::print_object(&object, kind, form)?;
            }
            Ok(Answer::Yes)
        }
    }
}

/// Lists all of one kind.
pub async fn list_of(connection: &Connection, what: &str, listing: Listing) -> Result<Answer> {
    let arguments = Get {
        what: what.to_string(),
        names: Vec::new(),
        all_namespaces: false,
        selector: None,
        watch: false,
        output: listing.output.or(Some(Output::Wide)),
    };
    get(connection, arguments).await
}

async fn tables(
    connection: &Connection,
    kind: &Kind,
    names: &[String],
    arguments: &Get,
) -> Result<Answer> {
    let namespace = (!arguments.all_namespaces).then_some(connection.namespace.as_str());
    let collection = connection.collection(kind, namespace);
    let wide = arguments.output == Some(Output::Wide);
    let with_namespace = arguments.all_namespaces && kind.namespaced;
    let mut query = Vec::new();
    if let Some(selector) = &arguments.selector {
        query.push(format!("labelSelector={}", escape(selector)));
    }
    if arguments.watch {
        if let [name] = names {
            query.push(format!(
                "fieldSelector={}",
                escape(&format!("metadata.name={name}"))
            ));
        } else if !names.is_empty() {
            bail!("watch one resource, or all of a kind");
        }
        return watch(connection, &collection, &query, wide, with_namespace).await;
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
    for path in paths {
        let mut table = table(connection, &path).await?;
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
    if merged["rows"].as_array().is_none_or(Vec::is_empty) {
        let place = match namespace.filter(|_| kind.namespaced) {
            Some(namespace) => format!(" in namespace {namespace}"),
            None => String::new(),
        };
        eprintln!("No {} found{place}.", kind.plural);
        return Ok(Answer::Yes);
    }
    print!(
        "{}",
        output::server_table(&merged, wide, with_namespace).render()
    );
    Ok(Answer::Yes)
}

async fn table(connection: &Connection, path: &str) -> Result<Value> {
    let request = http(path)?;
    Ok(connection.client.request::<Value>(request).await?)
}

fn http(path: &str) -> Result<axum::http::Request<Vec<u8>>> {
    axum::http::Request::get(path)
        .header("accept", TABLE)
        .body(Vec::new())
        .context("the request could not be made")
}

async fn watch(
    connection: &Connection,
    collection: &str,
    query: &[String],
    wide: bool,
    with_namespace: bool,
) -> Result<Answer> {
    let query = query
        .iter()
        .map(String::as_str)
        .chain(["watch=true"])
        .collect::<Vec<_>>();
    let path = format!("{collection}?{}", query.join("&"));
    let mut lines = Box::pin(connection.client.request_stream(http(&path)?).await?).lines();
    let mut columns = None;
    while let Some(line) = lines.try_next().await? {
        let mut event: Value = serde_json::from_str(&line)?;
        if event["type"] == "ERROR" {
            bail!(
                "{}",
                event["object"]["message"]
                    .as_str()
                    .unwrap_or("the watch ended")
            );
        }
        let mut table = event["object"].take();
        // Only the first table of a watch has its columns; later ones leave them out.
        let first = columns.is_none();
        if first {
            columns = Some(table["columnDefinitions"].clone());
        } else if let Some(columns) = &columns {
            table["columnDefinitions"] = columns.clone();
        }
        let text = output::server_table(&table, wide, with_namespace).render();
        match text.split_once('\n') {
            Some((_, rows)) if !first => print!("{rows}"),
            _ => print!("{text}"),
        }
    }
    Ok(Answer::Yes)
}

/// Percent-encodes what a query's value may not hold.
pub fn escape(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes()
        .map(|b| {
            if plain(b) {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}
