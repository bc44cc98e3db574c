//! The driver's two sockets: one for registration with the kubelet, one for its requests. A
//! restarted kubelet finds both again without help.

use std::fmt::Display;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use devices::dra::DRIVER;
use rpc::kubelet::dra::v1::dra_plugin_server::DraPluginServer;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use super::driver::DraDriver;
use super::registration::Registration;
use crate::kubelet::{KubeletConfig, KubeletError, LOOK_EVERY, listen};

fn driver_socket(config: &KubeletConfig) -> PathBuf {
    let directory = config.directory.join("plugins").join(DRIVER);
    directory.join("dra.sock")
}

/// Serves the driver until `stop` says true.
pub(super) async fn driver(
    config: &KubeletConfig,
    driver: DraDriver,
    stop: watch::Receiver<bool>,
) -> Result<(), KubeletError> {
    let answer = |listener| {
        let router = Server::builder().add_service(DraPluginServer::new(driver.clone()));
        router.serve_with_incoming(UnixListenerStream::new(listener))
    };
    serve(&driver_socket(config), answer, stop).await
}

/// Registers the driver with the kubelet until `stop` says true.
pub(super) async fn registration(
    config: &KubeletConfig,
    stop: watch::Receiver<bool>,
) -> Result<(), KubeletError> {
    let socket = config.directory.join("plugins_registry");
    let socket = socket.join(format!("{DRIVER}-reg.sock"));
    let registration = Registration::new(&driver_socket(config));
    let answer = |listener| {
        let registration = registration.clone();
        async move { registration.serve(listener).await }
    };
    serve(&socket, answer, stop).await
}

/// A socket's file, removed when this value is dropped: a kubelet forgets a driver whose file is
/// gone.
struct SocketFile<'a> {
    path: &'a Path,
    inode: Option<u64>,
}

impl<'a> SocketFile<'a> {
    fn at(path: &'a Path) -> SocketFile<'a> {
        SocketFile {
            path,
            inode: inode(path),
        }
    }

    /// Whether the file is still the same one.
    fn is_there(&self) -> bool {
        inode(self.path) == self.inode
    }
}

impl Drop for SocketFile<'_> {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = std::fs::remove_file(self.path);
        }
    }
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|file| file.ino())
}

/// Serves on a socket, and recreates it if its file is removed.
async fn serve<F, E>(
    path: &Path,
    answer: impl Fn(UnixListener) -> F,
    mut stop: watch::Receiver<bool>,
) -> Result<(), KubeletError>
where
    F: Future<Output = Result<(), E>>,
    E: Display,
{
    loop {
        if let Some(directory) = path.parent() {
            let failed = |source| KubeletError::Socket {
                path: path.to_path_buf(),
                source,
            };
            std::fs::create_dir_all(directory).map_err(failed)?;
        }
        let listener = listen(path)?;
        let bound = SocketFile::at(path);
        let replaced = async {
            while bound.is_there() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        let socket = path.display();
        // The value that `wait_for` returns is not `Send`.
        let stopped = async {
            let _ = stop.wait_for(|stop| *stop).await;
        };
        tokio::select! {
            ended = answer(listener) => {
                if let Err(error) = ended {
                    tracing::warn!(%error, %socket, "the DRA driver's socket failed");
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
            () = replaced => tracing::warn!(%socket, "the driver's socket was removed"),
            () = stopped => return Ok(()),
        }
    }
}
