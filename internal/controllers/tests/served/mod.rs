//! The embedded API over a store of its own, for the tests of this crate.

use apiserver::{ApiConfig, ApiServer};
use kube::Client;
use resources::access::Caller;
use tempfile::TempDir;

/// A new API, with the access of this component of Muster. It lasts as long as the folder is held.
pub async fn served(component: &str) -> (TempDir, Client) {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().to_owned();
    let opening = tokio::task::spawn_blocking(move || {
        let store = store::Store::open(&dir, store::Options::default()).unwrap();
        ApiServer::open(store, ApiConfig::default()).unwrap()
    });
    let server = opening.await.unwrap();
    (data, server.client(Caller::component(component)))
}
