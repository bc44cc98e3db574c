//! Copies of all objects of a kind, for the parts of the server that work on them at intervals.

use std::fmt::Debug;

use futures::FutureExt;
use futures::stream::{BoxStream, StreamExt};
use kube::runtime::reflector::{self, Lookup, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

/// A copy of all objects of a kind, without what `trim` takes away, and the stream that keeps it current while it is
/// polled.
pub fn mirror<K>(client: &Client, trim: fn(&mut K)) -> (Store<K>, BoxStream<'static, ()>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let writer = reflector::store::Writer::<K>::default();
    let reader = writer.as_reader();
    let events = watcher(Api::<K>::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .modify(trim)
        .reflect(writer);
    (reader, events.map(drop).boxed())
}

/// Whether the copy has had all objects once.
pub fn is_ready<K>(store: &Store<K>) -> bool
where
    K: Lookup<DynamicType = ()> + Clone + 'static,
{
    store.wait_until_ready().now_or_never().is_some()
}
