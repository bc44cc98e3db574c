//! The private temporary directories of an isolated process, which replace the node's own. They are
//! in memory, which counts as the container's and is limited: on disk a pod could fill the node's.
//! Mounts nothing.

use std::path::Path;

use runtime::{Mount, MountSource};

/// Directories of the node in which all users may write files.
const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// The shared memory directory, with the kernel's default size (half of the machine's memory),
/// because data loaders put their batches there.
const SHARED_MEMORY: &str = "/dev/shm";

/// The mounts of these directories, except those that a volume replaces and those that are links.
pub fn private(mounts: &[Mount], temporary: u64) -> Vec<Mount> {
    let sizes = TEMPORARY.map(|path| (path, Some(temporary)));
    let all = sizes.into_iter().chain([(SHARED_MEMORY, None)]);
    let own = |path: &Path| {
        let real = path.canonicalize().is_ok_and(|real| real == path);
        real && path.is_dir() && mounts.iter().all(|mount| mount.target != path)
    };
    all.filter(|(path, _)| own(Path::new(path)))
        .map(|(path, bytes)| Mount {
            target: path.into(),
            source: MountSource::Tmpfs(bytes),
            sub_path: None,
            read_only: false,
        })
        .collect()
}
