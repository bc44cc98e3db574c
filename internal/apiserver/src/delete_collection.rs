//! Owns DELETE of a collection: the deletion of each object chosen. The answer is the list of them, as kube-apiserver's;
//! of many it is a Status, so that the memory of a request does not grow with the collection.

use std::pin::pin;

use axum::body::Body;
use futures::{StreamExt, stream};
use http::Response;
use serde_json::{Value, json};

use crate::call::Call;
use crate::delete_options::DeleteOptions;
use crate::limits::MOST_DELETED_BYTES;
use crate::respond;
use crate::select::ObjectSelection;
use crate::status::{self, Failure};
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
                Ok((rewritten, _)) => Ok(Some(rewritten.bytes)),
                // Another request deleted it first.
                Err(failure) if failure.reason() == "NotFound" => Ok(None),
                Err(failure) => Err(failure),
            }
        }
    });
    let mut answer = Answer::default();
    let mut results = pin!(stream::iter(deletions).buffered(AT_ONCE));
    let mut failed = None;
    // All are tried, whichever fails; the first failure is the answer.
    while let Some(result) = results.next().await {
        let added = result.and_then(|deleted| match deleted {
            Some(bytes) => answer.add(&bytes),
            None => Ok(()),
        });
        failed = failed.or(added.err());
    }
    if let Some(failure) = failed {
        return Err(failure);
    }
    let value = match answer.items {
        Some(items) => json!({
            "kind": call.kind.list_kind, "apiVersion": call.kind.api_version(),
            "metadata": {"resourceVersion": call.server.0.store.revision().to_string()}, "items": items,
        }),
        None => status::deleted(call.kind, "", ""),
    };
    respond::value(call, &value)
}

/// The deleted objects, while their bytes are within the bound.
struct Answer {
    items: Option<Vec<Value>>,
    bytes: usize,
}

impl Default for Answer {
    fn default() -> Answer {
        Answer {
            items: Some(Vec::new()),
            bytes: 0,
        }
    }
}

impl Answer {
    fn add(&mut self, object: &[u8]) -> Result<(), Failure> {
        self.bytes = self.bytes.saturating_add(object.len());
        if self.bytes > MOST_DELETED_BYTES {
            self.items = None;
        }
        if let Some(items) = &mut self.items {
            items.push(serde_json::from_slice(object).map_err(Failure::internal)?);
        }
        Ok(())
    }
}
