//! How a volume's `subPath` is handed to a container runtime, which takes paths of the node alone.
//!
//! A pod may change its volume while one of its containers starts: it may put a link where the subPath
//! was a directory. A path in the volume could then lead the container runtime, which is root, out of
//! it. So each subPath is bound onto a place of the agent's own, as the kubelet does: the bind shows
//! what was opened, whatever the volume says later. A started container has a mount of its own, and
//! the bind goes.
//!
//! Agent and container runtime must see the same mounts of the node.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, umount2};

use crate::error::RuntimeError;
use crate::mounts::MountError;
use crate::mounts::apply::bind_beneath;
use crate::spec::{ContainerSpec, MountSource};

/// Why a container's subPaths are not bound; the container's status shows the text.
#[derive(Debug, thiserror::Error)]
pub enum SubPathError {
    /// One of them can't be opened or bound to its place.
    #[error("subPath {sub} of the volume at {}: {reason}", target.display())]
    Unbound {
        /// The subPath.
        sub: String,
        /// Where it is to be seen.
        target: PathBuf,
        /// Why not.
        reason: Box<MountError>,
    },
    /// The task that binds them ended early.
    #[error("{0}")]
    Ended(#[source] tokio::task::JoinError),
}

/// The places of one container's subPaths. Dropped, they are unmounted and removed.
#[derive(Debug)]
pub struct SubPaths {
    dir: PathBuf,
    /// Where each subPath is, by its mount's index in the description.
    places: BTreeMap<usize, PathBuf>,
}

impl SubPaths {
    /// Binds each subPath of a container to a place below `top`. It may wait for a volume's server.
    pub fn bind(top: &Path, spec: &ContainerSpec) -> Result<SubPaths, SubPathError> {
        let mut bound = SubPaths {
            dir: top.join(spec.id.as_str()),
            places: BTreeMap::new(),
        };
        for (index, volume) in spec.mounts.iter().enumerate() {
            let (MountSource::Bind(source), Some(sub)) = (&volume.source, &volume.sub_path) else {
                continue;
            };
            if sub.is_empty() {
                continue;
            }
            let unbound = |reason: MountError| SubPathError::Unbound {
                sub: sub.clone(),
                target: volume.target.clone(),
                reason: Box::new(reason),
            };
            private_dir(&bound.dir)
                .map_err(MountError::io("make", &bound.dir))
                .map_err(unbound)?;
            let place = bound.dir.join(index.to_string());
            bind_beneath(source, Path::new(sub), &place).map_err(unbound)?;
            bound.places.insert(index, place);
        }
        Ok(bound)
    }

    /// Where each subPath is, by its mount's index in the description.
    pub fn places(&self) -> &BTreeMap<usize, PathBuf> {
        &self.places
    }
}

impl Drop for SubPaths {
    fn drop(&mut self) {
        release_or_warn(&self.dir);
    }
}

/// Makes the directory of all places, and removes what an agent left in it that was killed while
/// containers started. A place that cannot be removed is logged and left: it belongs to no container.
pub fn clear(top: &Path) -> Result<(), RuntimeError> {
    private_dir(top).map_err(RuntimeError::io("make", top))?;
    for entry in fs::read_dir(top).map_err(RuntimeError::io("read", top))? {
        let dir = entry.map_err(RuntimeError::io("read", top))?.path();
        release_or_warn(&dir);
    }
    Ok(())
}

fn release_or_warn(dir: &Path) {
    if let Err(error) = release(dir) {
        tracing::warn!(dir = %dir.display(), %error, "the mount points of a container's subPaths could not be removed");
    }
}

fn private_dir(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
}

/// Unmounts what is in a container's directory and removes the directory. Nothing is removed that is
/// not empty: of what is still mounted all belongs to a volume.
fn release(dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let place = entry?.path();
        // An error means that nothing is mounted there, or that removing it fails.
        let _ = umount2(&place, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
        if fs::symlink_metadata(&place)?.is_dir() {
            fs::remove_dir(&place)?;
        } else {
            remove_empty(&place)?;
        }
    }
    fs::remove_dir(dir)
}

fn remove_empty(file: &Path) -> io::Result<()> {
    if fs::symlink_metadata(file)?.len() > 0 {
        return Err(io::Error::other(format!("{} is not empty", file.display())));
    }
    fs::remove_file(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::spec::{ContainerId, Mount};

    fn with(mounts: Vec<Mount>) -> ContainerSpec {
        let id = ContainerId::of("uid", "main", 0).unwrap();
        let mut spec = ContainerSpec::new(id, vec!["run".into()], "/logs/0.log".into());
        spec.mounts = mounts;
        spec
    }

    fn sub(volume: &Path, sub: &str) -> Mount {
        Mount {
            sub_path: Some(sub.into()),
            ..Mount::bind(volume, "/data")
        }
    }

    #[test]
    fn volumes_without_a_sub_path_need_no_place() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        let spec = with(vec![Mount::bind("/src", "/data"), sub(dir.path(), "")]);
        let bound = SubPaths::bind(&top, &spec).unwrap();
        assert!(bound.places().is_empty());
        drop(bound);
        assert!(!top.exists());
    }

    #[test]
    fn a_sub_path_that_leads_out_of_its_volume_is_refused_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (top, volume) = (dir.path().join("top"), dir.path().join("volume"));
        fs::create_dir(&volume).unwrap();
        symlink("/etc", volume.join("out")).unwrap();
        for path in ["out", "out/muster-new"] {
            let why = SubPaths::bind(&top, &with(vec![sub(&volume, path)]))
                .unwrap_err()
                .to_string();
            assert!(why.contains(path) && why.contains("/data"), "{why}");
            assert!(why.contains("out of the volume"), "{why}");
        }
        assert_eq!(fs::read_dir(&top).unwrap().count(), 0);
        assert!(!Path::new("/etc/muster-new").exists());
    }

    #[test]
    fn a_place_shows_what_was_opened_whatever_the_pod_puts_there_later() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("not root: nothing tested");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (top, volume) = (dir.path().join("top"), dir.path().join("volume"));
        let outside = dir.path().join("outside");
        fs::create_dir_all(volume.join("sub")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(volume.join("sub/file"), "inside").unwrap();
        fs::write(outside.join("file"), "outside").unwrap();
        let spec = with(vec![
            Mount::bind("/src", "/other"),
            sub(&volume, "sub"),
            sub(&volume, "sub/file"),
        ]);
        let bound = SubPaths::bind(&top, &spec).unwrap();
        fs::rename(volume.join("sub"), volume.join("moved")).unwrap();
        symlink(&outside, volume.join("sub")).unwrap();
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        assert_eq!(read(&bound.places()[&1].join("file")), "inside");
        assert_eq!(read(&bound.places()[&2]), "inside");
        assert_eq!(bound.places().len(), 2);
        drop(bound);
        assert_eq!(fs::read_dir(&top).unwrap().count(), 0);
        assert_eq!(read(&volume.join("moved/file")), "inside");
        // An agent that is killed leaves its places; the next one clears them.
        std::mem::forget(SubPaths::bind(&top, &with(vec![sub(&volume, "moved")])).unwrap());
        clear(&top).unwrap();
        assert_eq!(fs::read_dir(&top).unwrap().count(), 0);
        assert_eq!(read(&volume.join("moved/file")), "inside");
    }

    #[test]
    fn what_an_agent_left_is_cleared_and_nothing_that_holds_data() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        clear(&top).unwrap();
        fs::create_dir_all(top.join("uid_main_0/0")).unwrap();
        fs::write(top.join("uid_main_0/1"), "").unwrap();
        clear(&top).unwrap();
        assert_eq!(fs::read_dir(&top).unwrap().count(), 0);
        for full in ["file", "directory/file"] {
            let path = top.join("uid_main_1").join(full);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "x").unwrap();
            clear(&top).unwrap();
            assert!(path.exists(), "{full}");
            fs::remove_file(&path).unwrap();
        }
        clear(&top).unwrap();
    }
}
