//! Carrying a plan out, in the process that is about to become the container and already
//! has a mount namespace of its own. Changes nothing outside of it, but for making a
//! missing `subPath` or mount point inside a writable volume, as container runtimes do.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, mkdirat};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{Gid, Uid, chdir, chown, fchown, pivot_root};

use super::calls;
use super::plan::{HostTree, MountStep, PathKind, UnreadableDirectory, WantedMount, plan};
use super::{BeneathError, MountError};
use crate::spec::{Mount, MountSource};

/// The node's real files.
pub struct RealTree;

impl HostTree for RealTree {
    fn kind(&self, path: &Path) -> Option<PathKind> {
        let meta = fs::symlink_metadata(path).ok()?;
        Some(if meta.is_dir() {
            PathKind::Directory
        } else if meta.is_symlink() {
            PathKind::Link(fs::read_link(path).ok()?)
        } else {
            PathKind::File
        })
    }

    fn entries(&self, dir: &Path) -> Result<Vec<(OsString, PathKind)>, UnreadableDirectory> {
        let unreadable = |source: io::Error| UnreadableDirectory {
            dir: dir.to_path_buf(),
            source,
        };
        let list = fs::read_dir(dir).map_err(unreadable)?;
        let mut entries = Vec::new();
        for entry in list {
            let entry = entry.map_err(unreadable)?;
            if let Some(kind) = self.kind(&entry.path()) {
                entries.push((entry.file_name(), kind));
            }
        }
        Ok(entries)
    }
}

/// A volume's source, held open so that no later mount can come between.
struct OpenVolumeSource {
    /// `None` for a memory file system.
    fd: Option<OwnedFd>,
    /// Its mounts as they were before the host's became read-only, where they did.
    copy: Option<OwnedFd>,
    is_directory: bool,
}

/// Mounts `mounts` for this process. `staging` is an empty directory of the node that
/// serves as the new root should one be needed. The whole mount tree must be private or
/// slave already. With `read_only_host` the host's mounts are read-only for this process from then
/// on, and the volumes stay as the host has them.
pub fn apply(mounts: &[Mount], staging: &Path, read_only_host: bool) -> Result<(), MountError> {
    let mut sources = Vec::new();
    let mut wanted = Vec::new();
    for (index, volume) in mounts.iter().enumerate() {
        let source = open_source(volume)?;
        let shown = source
            .fd
            .as_ref()
            .and_then(|fd| fs::read_link(magic(fd)).ok());
        wanted.push(WantedMount {
            index,
            target: volume.target.clone(),
            is_directory: source.is_directory,
            read_only: volume.read_only,
            source: shown.filter(|_| source.is_directory),
        });
        sources.push(source);
    }
    if read_only_host {
        // In this order: what is bound from a read-only mount is read-only, too. So a read-only volume is not copied:
        // the mounts below it then are read-only as well.
        for (source, volume) in sources.iter_mut().zip(mounts) {
            if !volume.read_only {
                source.keep_writable()?;
            }
        }
        freeze_host()?;
    }
    let steps = plan(&wanted, &RealTree)?;
    let mut view = MountedView {
        root: PathBuf::from("/"),
        own: Vec::new(),
    };
    for step in &steps {
        match step {
            MountStep::Hollow { dir, entries } if dir == Path::new("/") => {
                hollow_root(staging, entries)?;
                let top = view.open(staging)?;
                view.own.push((dir.clone(), top));
                view.root = staging.to_path_buf();
            }
            MountStep::Hollow { dir, entries } => view.hollow(dir, entries)?,
            MountStep::Point { path, is_directory } => view.point(path, *is_directory)?,
            MountStep::Mount { index, target } => {
                view.mount(&mounts[*index], &sources[*index], target)?;
            }
        }
    }
    if view.root != Path::new("/") {
        enter(&view.root)?;
    }
    Ok(())
}

impl OpenVolumeSource {
    fn keep_writable(&mut self) -> Result<(), MountError> {
        let copied = self.fd.as_ref().map(calls::copy_tree).transpose();
        self.copy = copied.map_err(MountError::CopyVolume)?;
        Ok(())
    }
}

/// Makes every mount of this namespace read-only. Devices, sockets and pipes on them can still be
/// written to. A file system that the host mounts later is seen as the host mounts it.
fn freeze_host() -> Result<(), MountError> {
    calls::make_read_only(c"/").map_err(MountError::ReadOnlyHost)
}

/// Tries what [`apply`] needs to make the host read-only; this process needs a mount namespace of its own.
pub fn try_read_only_host() -> Result<(), MountError> {
    let failed = MountError::NoCopies;
    let null =
        open("/dev/null", OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(failed)?;
    let copy = calls::copy_tree(&null).map_err(failed)?;
    calls::mount_copy(&copy, &null).map_err(failed)?;
    freeze_host()
}

/// What has been mounted so far.
///
/// In a volume, and in its home, the pod's own processes may put links and move directories, also
/// while another of its containers starts, and this process is root. So what lies below a mount
/// made here is opened from that mount's root, out of which no link leads, and what was opened is
/// used by its descriptor.
struct MountedView {
    root: PathBuf,
    /// The mounts made here, by where they are seen, each opened at its root.
    own: Vec<(PathBuf, OwnedFd)>,
}

impl MountedView {
    /// The deepest mount made here above a path, and the way from there.
    fn above<'a>(&self, path: &'a Path) -> Option<(&OwnedFd, &'a Path)> {
        let above = |target: &Path| target != path && path.starts_with(target);
        let (target, top) = self
            .own
            .iter()
            .filter(|(target, _)| above(target))
            .max_by_key(|(target, _)| target.components().count())?;
        Some((top, path.strip_prefix(target).ok()?))
    }

    /// Opens what is seen at a path now.
    fn open(&self, path: &Path) -> Result<OwnedFd, MountError> {
        let opened = match self.above(path) {
            Some((volume, way)) => beneath(volume, way),
            None => open(
                &within(&self.root, path),
                OFlag::O_PATH | OFlag::O_CLOEXEC,
                Mode::empty(),
            ),
        };
        opened.map_err(|e| MountError::Open {
            path: path.to_path_buf(),
            reason: e.into(),
        })
    }

    fn mount(
        &mut self,
        volume: &Mount,
        source: &OpenVolumeSource,
        target: &Path,
    ) -> Result<(), MountError> {
        let failed = |e: MountError| MountError::Volume {
            target: target.to_path_buf(),
            reason: Box::new(e),
        };
        let point = self.open(target)?;
        let before = mounts_now()?;
        mount_volume(&volume.source, source, &point).map_err(failed)?;
        let top = self.newly_mounted(target, &before)?;
        if volume.read_only {
            remount(&magic(&top), MsFlags::MS_RDONLY).map_err(failed)?;
        }
        self.own.push((target.to_path_buf(), top));
        Ok(())
    }

    /// Replaces `dir` by a memory file system with the same entries.
    fn hollow(&mut self, dir: &Path, entries: &[(OsString, PathKind)]) -> Result<(), MountError> {
        let real = self.open(dir)?;
        let meta = fstat(&real).map_err(MountError::call("look at", dir))?;
        let before = mounts_now()?;
        tmpfs(&magic(&real), &format!("mode={:o}", meta.st_mode & 0o7777))?;
        let top = self.newly_mounted(dir, &before)?;
        let owner = (Uid::from_raw(meta.st_uid), Gid::from_raw(meta.st_gid));
        let _ = chown(&magic(&top), Some(owner.0), Some(owner.1));
        rebind(&magic(&real), &magic(&top), entries)?;
        // It may cover a volume, and is what is seen in its place.
        self.own.retain(|(target, _)| target != dir);
        self.own.push((dir.to_path_buf(), top));
        Ok(())
    }

    /// Opens the mount just made at a path; none but a new one is taken for it.
    fn newly_mounted(&self, path: &Path, before: &BTreeSet<String>) -> Result<OwnedFd, MountError> {
        let top = self.open(path)?;
        if before.contains(&mount_of(&top)?) {
            return Err(MountError::Moved(path.to_path_buf()));
        }
        Ok(top)
    }

    /// Makes a mount point where there is none.
    fn point(&self, path: &Path, is_directory: bool) -> Result<(), MountError> {
        let failed = |reason: BeneathError| MountError::Point {
            path: path.to_path_buf(),
            reason,
        };
        let (volume, way) = (self.above(path)).ok_or_else(|| failed(BeneathError::NothingAbove))?;
        if is_directory {
            return open_beneath(volume, way).map(drop).map_err(failed);
        }
        match beneath(volume, way) {
            Err(Errno::ENOENT) => {}
            found => return found.map(drop).map_err(|e| failed(e.into())),
        }
        let parent = match way.parent().filter(|above| !above.as_os_str().is_empty()) {
            Some(above) => open_beneath(volume, above).map_err(failed)?,
            None => volume
                .try_clone()
                .map_err(|e| failed(BeneathError::Io(e)))?,
        };
        // A link to nothing is not followed: what it names may lie outside.
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let name = way.file_name().unwrap_or_default();
        openat(&parent, name, flags, Mode::from_bits_truncate(0o644))
            .map(drop)
            .map_err(|e| failed(BeneathError::Call(e)))
    }
}

/// The numbers of the mounts that this process sees.
fn mounts_now() -> Result<BTreeSet<String>, MountError> {
    let table = fs::read_to_string("/proc/self/mountinfo").map_err(MountError::Table)?;
    let numbers = table.lines().filter_map(|line| line.split(' ').next());
    Ok(numbers.map(str::to_owned).collect())
}

/// The number of the mount that an open file or directory was reached through.
fn mount_of(fd: &OwnedFd) -> Result<String, MountError> {
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(MountError::FileInfo { path, source }),
    };
    let number = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    number
        .map(|number| number.trim().to_owned())
        .ok_or(MountError::NoMount(path))
}

/// Opens what a path below `base` leads to; no link in it leads outside.
fn beneath(base: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(base, path, how)
}

/// Binds `sub` of the directory `base` onto `place`, which is made for it. `sub` is made as a directory
/// if it is missing, and refused if a link in it leads outside.
///
/// What was opened is what is bound. A process that puts a link in its place later, while another
/// program reads `place`, changes nothing.
pub fn bind_beneath(base: &Path, sub: &Path, place: &Path) -> Result<(), MountError> {
    let found = opened_beneath(base, sub)?;
    let mode = fstat(&found).map_err(BeneathError::Call)?.st_mode;
    let is_directory = SFlag::from_bits_truncate(mode & SFlag::S_IFMT.bits()) == SFlag::S_IFDIR;
    let made = match is_directory {
        true => fs::create_dir(place),
        false => fs::File::create_new(place).map(drop),
    };
    made.map_err(MountError::io("make", place))?;
    bind(&magic(&found), place, MsFlags::MS_REC)?;
    // A bind is a peer of what it shows. Unmounting it would otherwise unmount there, too, what is
    // mounted below.
    mount(
        None::<&str>,
        place,
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        None::<&str>,
    )
    .map_err(|source| MountError::Peer {
        path: place.to_path_buf(),
        source,
    })
}

/// Opens `sub` of the directory `base`, made as a directory if it is missing; refused if a link in it
/// leads outside.
fn opened_beneath(base: &Path, sub: &Path) -> Result<OwnedFd, MountError> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let opened = open(base, flags, Mode::empty()).map_err(|source| MountError::Base {
        path: base.to_path_buf(),
        source,
    })?;
    Ok(open_beneath(&opened, sub)?)
}

/// Makes a device file unusable for this process and those after it.
pub fn hide_device(path: &Path) -> Result<(), MountError> {
    if !path.exists() {
        return Ok(());
    }
    bind(path, path, MsFlags::empty())?;
    remount(path, MsFlags::MS_NODEV)
}

/// Keeps mounts made here from reaching the node, and lets the node's later ones in.
pub fn detach() -> Result<(), MountError> {
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_SLAVE,
        None::<&str>,
    )
    .map_err(MountError::Private)
}

fn within(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn magic(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn open_source(volume: &Mount) -> Result<OpenVolumeSource, MountError> {
    let MountSource::Bind(path) = &volume.source else {
        return Ok(OpenVolumeSource {
            fd: None,
            copy: None,
            is_directory: true,
        });
    };
    let base = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(|source| {
        MountError::Source {
            path: path.clone(),
            target: volume.target.clone(),
            source,
        }
    })?;
    let fd = match volume.sub_path.as_deref().filter(|sub| !sub.is_empty()) {
        None => base,
        Some(sub) => open_beneath(&base, Path::new(sub)).map_err(|reason| MountError::SubPath {
            sub: sub.to_owned(),
            path: path.clone(),
            target: volume.target.clone(),
            reason,
        })?,
    };
    let mode = fstat(&fd)
        .map_err(MountError::call("look at", path))?
        .st_mode;
    let is_directory = SFlag::from_bits_truncate(mode & SFlag::S_IFMT.bits()) == SFlag::S_IFDIR;
    Ok(OpenVolumeSource {
        fd: Some(fd),
        copy: None,
        is_directory,
    })
}

/// Opens `sub` under `base` such that no link in it can lead outside, making directories that are
/// missing: with the owner and the mode of `base`, or the pod could not use them.
fn open_beneath(base: &OwnedFd, sub: &Path) -> Result<OwnedFd, BeneathError> {
    match beneath(base, sub) {
        Err(Errno::ENOENT) => {}
        other => return Ok(other?),
    }
    let like = fstat(base).map_err(BeneathError::Call)?;
    let mut so_far = PathBuf::new();
    for part in sub.components() {
        let parent = if so_far.as_os_str().is_empty() {
            PathBuf::from(".")
        } else {
            so_far.clone()
        };
        so_far.push(part);
        match beneath(base, &so_far) {
            Err(Errno::ENOENT) => {
                let above = beneath(base, &parent)?;
                make_like(&above, part.as_os_str(), &like)?;
            }
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(beneath(base, sub)?)
}

/// Makes a directory with the owner and the mode of another; one that is there stays as it is.
fn make_like(above: &OwnedFd, name: &OsStr, like: &FileStat) -> Result<(), BeneathError> {
    match mkdirat(above, name, Mode::from_bits_truncate(0o700)) {
        Ok(()) => {}
        Err(Errno::EEXIST) => return Ok(()),
        Err(e) => return Err(e.into()),
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let made = openat(above, name, flags, Mode::empty())?;
    // Where owners can't be changed, as on some network volumes, it is the caller's own.
    let _ = fchown(
        &made,
        Some(Uid::from_raw(like.st_uid)),
        Some(Gid::from_raw(like.st_gid)),
    );
    fchmod(&made, Mode::from_bits_truncate(like.st_mode & 0o7777))?;
    Ok(())
}

fn mount_volume(
    volume: &MountSource,
    source: &OpenVolumeSource,
    point: &OwnedFd,
) -> Result<(), MountError> {
    if let Some(copy) = &source.copy {
        return calls::mount_copy(copy, point).map_err(MountError::Copy);
    }
    let target = &magic(point);
    match (volume, &source.fd) {
        (MountSource::Tmpfs(size), _) => {
            let mut options = String::from("mode=1777");
            if let Some(size) = size {
                options.push_str(&format!(",size={size}"));
            }
            tmpfs(target, &options)
        }
        (MountSource::Bind(_), Some(fd)) => bind(&magic(fd), target, MsFlags::MS_REC),
        (MountSource::Bind(from), None) => Err(MountError::NotOpened(from.clone())),
    }
}

fn hollow_root(staging: &Path, entries: &[(OsString, PathKind)]) -> Result<(), MountError> {
    tmpfs(staging, "mode=0755")?;
    // The node's tree is bound into this one recursively, and this one is inside that tree.
    mount(
        None::<&str>,
        staging,
        None::<&str>,
        MsFlags::MS_UNBINDABLE,
        None::<&str>,
    )
    .map_err(MountError::call("prepare", staging))?;
    rebind(Path::new("/"), staging, entries)
}

fn rebind(from: &Path, to: &Path, entries: &[(OsString, PathKind)]) -> Result<(), MountError> {
    for (name, kind) in entries {
        let (source, target) = (from.join(name), to.join(name));
        let made = match kind {
            PathKind::Directory => fs::create_dir(&target),
            PathKind::File => fs::File::create_new(&target).map(drop),
            PathKind::Link(to) => symlink(to, &target),
        };
        made.map_err(MountError::io("make", &target))?;
        if matches!(kind, PathKind::Link(_)) {
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
            Err(e) => return Err(MountError::call("bind", &target)(e)),
        }
    }
    Ok(())
}

fn enter(root: &Path) -> Result<(), MountError> {
    chdir(root).map_err(MountError::call("enter", root))?;
    pivot_root(".", ".").map_err(MountError::call("take as root", root))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(MountError::call("leave the old root for", root))?;
    chdir("/").map_err(MountError::call("enter", root))
}

pub(super) fn tmpfs(target: &Path, options: &str) -> Result<(), MountError> {
    mount(
        Some("tmpfs"),
        target,
        Some("tmpfs"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
        Some(options),
    )
    .map_err(MountError::call("mount a memory file system on", target))
}

pub(super) fn bind(source: &Path, target: &Path, more: MsFlags) -> Result<(), MountError> {
    mount(
        Some(source),
        target,
        None::<&str>,
        MsFlags::MS_BIND | more,
        None::<&str>,
    )
    .map_err(MountError::call("bind onto", target))
}

/// Adds a flag to a mount, keeping those it has (some cannot be taken off).
pub(super) fn remount(target: &Path, add: MsFlags) -> Result<(), MountError> {
    let has = statvfs(target)
        .map_err(MountError::call("remount", target))?
        .flags();
    let mut flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | add;
    // relatime is what the kernel takes without ST_NOATIME, and musl has no name for it.
    for (present, flag) in [
        (FsFlags::ST_RDONLY, MsFlags::MS_RDONLY),
        (FsFlags::ST_NOSUID, MsFlags::MS_NOSUID),
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_NODIRATIME, MsFlags::MS_NODIRATIME),
    ] {
        if has.contains(present) {
            flags |= flag;
        }
    }
    mount(None::<&str>, target, None::<&str>, flags, None::<&str>)
        .map_err(MountError::call("remount", target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_volume_is_opened_without_leaving_it() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        fs::create_dir_all(volume.join("inside")).unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        for (link, to) in [
            ("absolute", dir.path().join("outside")),
            ("relative", "../outside".into()),
            ("itself", "itself".into()),
            ("fine", "inside".into()),
        ] {
            symlink(to, volume.join(link)).unwrap();
        }
        let opened = |sub: &str| {
            let found = opened_beneath(&volume, Path::new(sub)).map_err(|e| e.to_string())?;
            fs::read_link(magic(&found)).map_err(|e| e.to_string())
        };
        for sub in [
            "absolute",
            "relative",
            "absolute/new",
            "relative/new",
            "fine/../..",
        ] {
            let why = opened(sub).unwrap_err();
            assert!(why.contains("out of the volume"), "{sub}: {why}");
        }
        assert!(opened("itself").is_err());
        assert!(!dir.path().join("outside/new").exists());
        let real = volume.canonicalize().unwrap();
        for (sub, place) in [
            ("a/b", "a/b"),
            ("fine", "inside"),
            ("fine/new", "inside/new"),
        ] {
            assert_eq!(opened(sub), Ok(real.join(place)), "{sub}");
        }
    }
}
