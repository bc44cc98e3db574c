//! Access to any registered kind through the API, and helpers to classify the API's answers. No
//! decisions.

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream;
use kube::api::{ApiResource, DynamicObject};
use kube::core::{GroupVersionKind, PartialObjectMeta};
use kube::{Api, Client};
use resources::registry::Kind;

use crate::retry::guarded;

/// How many writes of one loop are in flight at once.
pub(super) const WRITES_MAX: usize = 8;

/// An object of any kind, metadata only.
pub(super) type Metadata = PartialObjectMeta<DynamicObject>;

/// How the client names a kind.
pub(super) fn api_resource(kind: &Kind) -> ApiResource {
    let gvk = GroupVersionKind::gvk(kind.group, kind.version, kind.kind);
    ApiResource::from_gvk_with_plural(&gvk, kind.plural)
}

/// All objects of a kind.
pub(super) fn everywhere(client: &Client, kind: &Kind) -> Api<Metadata> {
    Api::all_with(client.clone(), &api_resource(kind))
}

/// The objects of a kind in a namespace, or all of a cluster-scoped kind.
pub(super) fn within(client: &Client, kind: &Kind, namespace: &str) -> Api<Metadata> {
    if kind.namespaced {
        Api::namespaced_with(client.clone(), namespace, &api_resource(kind))
    } else {
        everywhere(client, kind)
    }
}

/// Whether the API answered with this HTTP status.
pub(super) fn answered(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// A write whose object is gone counts as successful.
pub(super) fn unless_gone<T>(outcome: kube::Result<T>) -> kube::Result<Option<T>> {
    match outcome {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if answered(&error, 404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Performs all of these writes, a bounded number at a time. Returns the first error, once all were
/// tried. A write that panics counts as failed.
pub(super) async fn together(writes: Vec<BoxFuture<'_, kube::Result<()>>>) -> kube::Result<()> {
    let mut caught: Vec<BoxFuture<'_, kube::Result<()>>> = Vec::with_capacity(writes.len());
    for write in writes {
        caught.push(Box::pin(guarded(write)));
    }
    let done = stream::iter(caught).buffer_unordered(WRITES_MAX);
    let outcomes: Vec<_> = done.collect().await;
    outcomes.into_iter().collect()
}
