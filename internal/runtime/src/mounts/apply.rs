//! Carrying a plan out, in the process that is about to become the container and already
//! has a mount namespace of its own. Changes nothing outside of it, but for making a
//! missing `subPath` or mount point inside a writable volume, as container runtimes do.

use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, SFlag, fstat, mkdirat};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{Gid, Uid, chdir, chown, pivot_root};

use super::plan::{HostTree, Kind, Step, Wanted, plan};
use crate::spec::{Mount, MountSource};

/// The node's real files.
pub struct RealTree;

impl HostTree for RealTree {
    fn kind(&self, path: &Path) -> Option<Kind> {
        let meta = fs::symlink_metadata(path).ok()?;
        Some(if meta.is_dir() {
            Kind::Directory
        } else if meta.is_symlink() {
            Kind::Link(fs::read_link(path).ok()?)
        } else {
            Kind::File
        })
    }

    fn entries(&self, dir: &Path) -> Result<Vec<(OsString, Kind)>, String> {
        let list = fs::read_dir(dir).map_err(|e| format!("cannot read {}: {e}", dir.display()))?;
        let mut entries = Vec::new();
        for entry in list {
            let entry = entry.map_err(|e| format!("cannot read {}: {e}", dir.display()))?;
            if let Some(kind) = self.kind(&entry.path()) {
                entries.push((entry.file_name(), kind));
            }
        }
        Ok(entries)
    }
}

/// A volume's source, held open so that no later mount can come between.
struct Source {
    /// `None` for a memory file system.
    fd: Option<OwnedFd>,
    is_directory: bool,
}

/// Mounts `mounts` for this process. `staging` is an empty directory of the node that
/// serves as the new root should one be needed. The whole mount tree must be private or
/// slave already.
pub fn apply(mounts: &[Mount], staging: &Path) -> Result<(), String> {
    let mut sources = Vec::new();
    let mut wanted = Vec::new();
    for (index, volume) in mounts.iter().enumerate() {
        let source = open_source(volume)?;
        let shown = source
            .fd
            .as_ref()
            .and_then(|fd| fs::read_link(magic(fd)).ok());
        wanted.push(Wanted {
            index,
            target: volume.target.clone(),
            is_directory: source.is_directory,
            read_only: volume.read_only,
            source: shown.filter(|_| source.is_directory),
        });
        sources.push(source);
    }
    let steps = plan(&wanted, &RealTree).map_err(|e| e.to_string())?;
    let mut root = PathBuf::from("/");
    for step in &steps {
        match step {
            Step::Hollow { dir, entries } if dir == Path::new("/") => {
                hollow_root(staging, entries)?;
                root = staging.to_path_buf();
            }
            Step::Hollow { dir, entries } => hollow(&within(&root, dir), entries)?,
            Step::Point { path, is_directory } => point(&within(&root, path), *is_directory)?,
            Step::Mount { index, target } => {
                mount_volume(&mounts[*index], &sources[*index], &within(&root, target))?;
            }
        }
    }
    if root != Path::new("/") {
        enter(&root)?;
    }
    Ok(())
}

/// Makes a device file unusable for this process and those after it.
pub fn hide_device(path: &Path) -> Result<(), String> {
    if !path.exists() {
        return Ok(());
    }
    bind(path, path, MsFlags::empty())?;
    remount(path, MsFlags::MS_NODEV)
}

/// Keeps mounts made here from reaching the node, and lets the node's later ones in.
pub fn detach() -> Result<(), String> {
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_SLAVE,
        None::<&str>,
    )
    .map_err(|e| format!("cannot make the mount tree private: {e}"))
}

fn within(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn magic(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn open_source(volume: &Mount) -> Result<Source, String> {
    let MountSource::Bind(path) = &volume.source else {
        return Ok(Source {
            fd: None,
            is_directory: true,
        });
    };
    let target = volume.target.display();
    let base = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|e| format!("cannot mount {} at {target}: {e}", path.display()))?;
    let fd = match volume.sub_path.as_deref().filter(|sub| !sub.is_empty()) {
        None => base,
        Some(sub) => open_beneath(&base, Path::new(sub)).map_err(|e| {
            format!(
                "cannot mount {} of {} at {target}: {e}",
                sub,
                path.display()
            )
        })?,
    };
    let mode = fstat(&fd)
        .map_err(|e| format!("cannot look at {}: {e}", path.display()))?
        .st_mode;
    let is_directory = SFlag::from_bits_truncate(mode & SFlag::S_IFMT.bits()) == SFlag::S_IFDIR;
    Ok(Source {
        fd: Some(fd),
        is_directory,
    })
}

/// Opens `sub` under `base` such that no link in it can lead outside, making directories
/// that are missing.
fn open_beneath(base: &OwnedFd, sub: &Path) -> Result<OwnedFd, String> {
    let beneath = |path: &Path| {
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        openat2(base.as_fd(), path, how)
    };
    let told = |e: Errno| match e {
        Errno::EXDEV => "subPath leads out of the volume".to_string(),
        other => other.to_string(),
    };
    match beneath(sub) {
        Err(Errno::ENOENT) => {}
        other => return other.map_err(told),
    }
    let mut so_far = PathBuf::new();
    for part in sub.components() {
        let parent = if so_far.as_os_str().is_empty() {
            PathBuf::from(".")
        } else {
            so_far.clone()
        };
        so_far.push(part);
        match beneath(&so_far) {
            Err(Errno::ENOENT) => {
                let above = beneath(&parent).map_err(told)?;
                match mkdirat(
                    above.as_fd(),
                    part.as_os_str(),
                    Mode::from_bits_truncate(0o750),
                ) {
                    Ok(()) | Err(Errno::EEXIST) => {}
                    Err(e) => return Err(told(e)),
                }
            }
            Ok(_) => {}
            Err(e) => return Err(told(e)),
        }
    }
    beneath(sub).map_err(told)
}

fn mount_volume(volume: &Mount, source: &Source, target: &Path) -> Result<(), String> {
    match (&volume.source, &source.fd) {
        (MountSource::Tmpfs(size), _) => {
            let mut options = String::from("mode=1777");
            if let Some(size) = size {
                options.push_str(&format!(",size={size}"));
            }
            tmpfs(target, &options)?;
        }
        (MountSource::Bind(_), Some(fd)) => bind(&magic(fd), target, MsFlags::MS_REC)?,
        (MountSource::Bind(from), None) => {
            return Err(format!("{} was not opened", from.display()));
        }
    }
    if volume.read_only {
        remount(target, MsFlags::MS_RDONLY)
    } else {
        Ok(())
    }
}

fn point(path: &Path, is_directory: bool) -> Result<(), String> {
    if path.exists() {
        return Ok(());
    }
    let made = if is_directory {
        fs::create_dir_all(path)
    } else {
        path.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::File::create(path).map(drop))
    };
    made.map_err(|e| format!("cannot make the mount point {}: {e}", path.display()))
}

/// Replaces `dir` by a memory file system with the same entries.
fn hollow(dir: &Path, entries: &[(OsString, Kind)]) -> Result<(), String> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let real = open(dir, flags, Mode::empty())
        .map_err(|e| format!("cannot open {}: {e}", dir.display()))?;
    let meta = fs::metadata(dir).map_err(|e| format!("cannot look at {}: {e}", dir.display()))?;
    tmpfs(
        dir,
        &format!("mode={:o}", meta.permissions().mode() & 0o7777),
    )?;
    let _ = chown(
        dir,
        Some(Uid::from_raw(meta.uid())),
        Some(Gid::from_raw(meta.gid())),
    );
    rebind(&magic(&real), dir, entries)
}

fn hollow_root(staging: &Path, entries: &[(OsString, Kind)]) -> Result<(), String> {
    tmpfs(staging, "mode=0755")?;
    // The node's tree is bound into this one recursively, and this one is inside that tree.
    mount(
        None::<&str>,
        staging,
        None::<&str>,
        MsFlags::MS_UNBINDABLE,
        None::<&str>,
    )
    .map_err(|e| format!("cannot prepare {}: {e}", staging.display()))?;
    rebind(Path::new("/"), staging, entries)
}

fn rebind(from: &Path, to: &Path, entries: &[(OsString, Kind)]) -> Result<(), String> {
    for (name, kind) in entries {
        let (source, target) = (from.join(name), to.join(name));
        let made = match kind {
            Kind::Directory => fs::create_dir(&target),
            Kind::File => fs::File::create(&target).map(drop),
            Kind::Link(to) => symlink(to, &target),
        };
        made.map_err(|e| format!("cannot make {}: {e}", target.display()))?;
        if matches!(kind, Kind::Link(_)) {
            continue;
        }
        match mount(
            Some(&source),
            &target,
            None::<&str>,
            MsFlags::MS_BIND | MsFlags::MS_REC,
            None::<&str>,
        ) {
            // Gone since the plan was made.
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(e) => return Err(format!("cannot bind {}: {e}", target.display())),
        }
    }
    Ok(())
}

fn enter(root: &Path) -> Result<(), String> {
    let fault = |what: &str, e: Errno| format!("cannot {what} {}: {e}", root.display());
    chdir(root).map_err(|e| fault("enter", e))?;
    pivot_root(".", ".").map_err(|e| fault("take as root", e))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(|e| fault("leave the old root for", e))?;
    chdir("/").map_err(|e| fault("enter", e))
}

fn tmpfs(target: &Path, options: &str) -> Result<(), String> {
    mount(
        Some("tmpfs"),
        target,
        Some("tmpfs"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
        Some(options),
    )
    .map_err(|e| {
        format!(
            "cannot mount a memory file system on {}: {e}",
            target.display()
        )
    })
}

fn bind(source: &Path, target: &Path, more: MsFlags) -> Result<(), String> {
    mount(
        Some(source),
        target,
        None::<&str>,
        MsFlags::MS_BIND | more,
        None::<&str>,
    )
    .map_err(|e| format!("cannot bind onto {}: {e}", target.display()))
}

/// Adds a flag to a mount, keeping those it has (some cannot be taken off).
fn remount(target: &Path, add: MsFlags) -> Result<(), String> {
    let told = |e: Errno| format!("cannot remount {}: {e}", target.display());
    let has = statvfs(target).map_err(told)?.flags();
    let mut flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | add;
    for (present, flag) in [
        (FsFlags::ST_RDONLY, MsFlags::MS_RDONLY),
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_NODIRATIME, MsFlags::MS_NODIRATIME),
        (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
    ] {
        if has.contains(present) {
            flags |= flag;
        }
    }
    mount(None::<&str>, target, None::<&str>, flags, None::<&str>).map_err(told)
}
