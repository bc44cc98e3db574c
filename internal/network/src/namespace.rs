//! Network namespaces that outlive the agent: each is bound to a file, so it exists while the file is mounted or a
//! process is in it.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statfs::{NSFS_MAGIC, statfs};

use crate::error::{NetworkError, kernel};

/// The most mounts on one file that are taken off.
const MOUNTS_MAX: usize = 16;

/// Whether a namespace is bound to the file.
pub(crate) fn exists(file: &Path) -> bool {
    statfs(file).is_ok_and(|found| found.filesystem_type() == NSFS_MAGIC)
}

/// Makes a namespace, binds it to a new file, and runs `inside` in it.
pub(crate) fn create(
    file: &Path,
    inside: impl FnOnce() -> Result<(), NetworkError> + Send,
) -> Result<(), NetworkError> {
    let shown = file.display();
    make_file(file)?;
    on_a_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET).map_err(kernel("make a network namespace"))?;
        let none = None::<&str>;
        mount(
            Some("/proc/thread-self/ns/net"),
            file,
            none,
            MsFlags::MS_BIND,
            none,
        )
        .map_err(kernel(format!("bind a network namespace to {shown}")))?;
        inside()
    })
}

/// Binds the namespace of a process to a new file.
pub(crate) fn bind(pid: i32, file: &Path) -> Result<(), NetworkError> {
    make_file(file)?;
    let none = None::<&str>;
    let source = format!("/proc/{pid}/ns/net");
    mount(Some(source.as_str()), file, none, MsFlags::MS_BIND, none)
        .map_err(kernel(format!("bind {source} to {}", file.display())))
}

/// Makes an empty file that does not exist yet.
fn make_file(file: &Path) -> Result<(), NetworkError> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .map(drop)
        .map_err(kernel(format!("make {}", file.display())))
}

/// Unbinds the namespace and removes the file, if they exist. The file's removal also unbinds it in the mount namespaces
/// of other processes.
pub(crate) fn remove(file: &Path) -> Result<(), NetworkError> {
    for _ in 0..MOUNTS_MAX {
        match umount2(file, MntFlags::MNT_DETACH) {
            Ok(()) => {}
            // No mount, or no file.
            Err(Errno::EINVAL | Errno::ENOENT) => break,
            Err(error) => return Err(kernel(format!("unmount {}", file.display()))(error)),
        }
    }
    match fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(kernel(format!("remove {}", file.display()))(error))
        }
        _ => Ok(()),
    }
}

/// A thread of its own, which changes its network and ends.
fn on_a_thread<T: Send>(
    work: impl FnOnce() -> Result<T, NetworkError> + Send,
) -> Result<T, NetworkError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("pod-network".into());
        let started = thread.spawn_scoped(scope, work);
        let thread = started.map_err(kernel("start a thread"))?;
        thread.join().unwrap_or_else(|_| {
            let why = std::io::Error::other("the thread panicked");
            Err(kernel("work in a network namespace")(why))
        })
    })
}
