//! Owns DELETE of a collection: the deletion of each object chosen.

use axum::body::Body;
use futures::{StreamExt, stream};
use http::Response;
use serde_json::{Value, json};

use crate::call::Call;
use crate::delete_options::DeleteOptions;
use crate::respond;
use crate::select::ObjectSelection;
use crate::status::Failure;
use crate::{delete, request};

/// The maximum number of concurrent deletions; concurrent ones share a flush.
const AT_ONCE: usize = 64;

pub(crate) async fn delete_collection(call: &Call, body: Body) -> Result<Response<Body>, Failure> {
    let body = request::read(body).await?;
    let options = DeleteOptions::of(call, &body)?;
    let selection = ObjectSelection::of(call)?;
    let page = call
        .server
        .0
        .store
        .list(&selection.prefix, None, usize::MAX);
    let chosen = page
        .entries
        .into_iter()
        .filter(|entry| selection.takes(&entry.meta));
    let deletions = chosen.map(|entry| {
        let options = &options;
        async move {
            let name = entry.key.rsplit('/').next().unwrap_or_default();
            match delete::delete_one(call, name, entry.key.to_string(), options).await {
                Ok((rewritten, _)) => serde_json::from_slice(&rewritten.bytes)
                    .map(Some)
                    .map_err(Failure::internal),
                // Another request deleted it first.
                Err(failure) if failure.reason() == "NotFound" => Ok(None),
                Err(failure) => Err(failure),
            }
        }
    });
    let results: Vec<Result<Option<Value>, Failure>> =
        stream::iter(deletions).buffered(AT_ONCE).collect().await;
    let mut items = Vec::with_capacity(results.len());
    for result in results {
        items.extend(result?);
    }
    let list = json!({
        "kind": call.kind.list_kind, "apiVersion": call.kind.api_version(),
        "metadata": {"resourceVersion": call.server.0.store.revision().to_string()}, "items": items,
    });
    respond::value(call, &list)
}
