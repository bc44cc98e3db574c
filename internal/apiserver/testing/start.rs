//! Starts a server over an empty store, for tests without a runtime of their own. The module that has this file names
//! `ApiConfig` and `ApiServer`.

use store::{Options, Store};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use super::{ApiConfig, ApiServer};

/// A server, its runtime with this number of threads, and its store's directory. It serves while both exist.
pub fn start(threads: usize) -> (ApiServer, Runtime, TempDir) {
    let runtime = Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let entered = runtime.enter();
    let store = Store::open(directory.path(), Options::default()).unwrap();
    let server = ApiServer::open(store, ApiConfig::default()).unwrap();
    drop(entered);
    (server, runtime, directory)
}
