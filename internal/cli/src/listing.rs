//! What `muster get` does alike for one listing and for a watch: the requests for tables, and how objects are prepared.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::DynamicObject;
use resources::registry::Kind;
use serde_json::Value;

use super::connection::ServerConnection;
use crate::arguments::Get;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

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
