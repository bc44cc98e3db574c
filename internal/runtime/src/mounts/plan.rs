//! The plan: from the volumes wanted and what the node has to the steps that mount them.
//! Pure but for the questions it asks a [`HostTree`]; mounts nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// Entries of a directory that may be bound one by one; a larger one is refused.
pub const MAX_ENTRIES: usize = 4096;

/// Entries that may be bound one by one for one container. The kernel bounds the mounts of a
/// namespace (100,000 by default), and those that hold the container come last.
pub const MAX_BOUND: usize = 4 * MAX_ENTRIES;

/// What a path is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A directory.
    Directory,
    /// Anything that is bound onto a file: regular files, devices, sockets.
    File,
    /// A symbolic link, and where it leads.
    Link(PathBuf),
}

/// A directory's entries can't be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {source}", dir.display())]
pub struct UnreadableDirectory {
    /// The directory.
    pub dir: PathBuf,
    /// The kernel's answer.
    pub source: std::io::Error,
}

/// What the plan needs to know of the node's files.
pub trait HostTree {
    /// What is at `path`, not following a link at its end; `None` if nothing.
    fn kind(&self, path: &Path) -> Option<PathKind>;
    /// The entries of a directory, or why they cannot be had.
    fn entries(&self, dir: &Path) -> Result<Vec<(OsString, PathKind)>, UnreadableDirectory>;
}

/// A volume to be seen at `target`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedMount {
    /// Which of the caller's volumes this is.
    pub index: usize,
    /// Where it is to be seen.
    pub target: PathBuf,
    /// Whether it shows a directory or a file.
    pub is_directory: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// The directory of the node that it shows, where it shows one.
    pub source: Option<PathBuf>,
}

/// One step. Paths are as seen in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountStep {
    /// Put a memory file system in the place of `dir` and bind these of its entries into it.
    Hollow {
        /// The directory; `/` means a new root.
        dir: PathBuf,
        /// What was in it.
        entries: Vec<(OsString, PathKind)>,
    },
    /// Make a mount point (and the directories above it) if it is missing.
    Point {
        /// Where.
        path: PathBuf,
        /// A directory or an empty file.
        is_directory: bool,
    },
    /// Mount the `index`th volume at `target`.
    Mount {
        /// Which.
        index: usize,
        /// Where, with the node's links followed.
        target: PathBuf,
    },
}

/// Why a set of volumes cannot be mounted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Two volumes at the same path.
    #[error("two volumes are mounted at {0}; give each a path of its own")]
    Twice(String),
    /// A file where a directory is to be mounted, or the reverse.
    #[error("{path} is a {found} on this node, and the volume is a {wanted}; mount it elsewhere")]
    Mismatch {
        /// The path.
        path: String,
        /// What is there.
        found: &'static str,
        /// What was to be mounted.
        wanted: &'static str,
    },
    /// A directory too large, or unreadable, to hold up a private copy of.
    #[error(
        "{dir} lacks {missing}, which cannot be added for this container only: {detail}; make that directory on the node"
    )]
    Crowded {
        /// The directory.
        dir: String,
        /// The mount point.
        missing: String,
        /// Why.
        detail: String,
    },
    /// Links that lead in a circle, or nowhere.
    #[error("{path} cannot be resolved on this node: {detail}")]
    Links {
        /// The mount point.
        path: String,
        /// Why.
        detail: String,
    },
}

/// Links followed in one path at most, as in the kernel.
const MAX_LINKS: usize = 40;

/// The steps that mount `wanted`, in order.
pub fn plan(wanted: &[WantedMount], host: &dyn HostTree) -> Result<Vec<MountStep>, PlanError> {
    let mut resolved = Vec::new();
    let mut taken = BTreeSet::new();
    for volume in wanted {
        let target = resolve(&volume.target, host)?;
        if !taken.insert(target.clone()) {
            return Err(PlanError::Twice(volume.target.display().to_string()));
        }
        resolved.push((target, volume));
    }
    // Shallow before deep, so that a volume inside a volume lands inside it.
    resolved
        .sort_by(|(a, _), (b, _)| (a.components().count(), a).cmp(&(b.components().count(), b)));

    let mut planner = MountPlanner {
        host,
        hollowed: BTreeSet::new(),
        made: BTreeSet::new(),
        mounted: BTreeMap::new(),
        bound: 0,
        first: Vec::new(),
        then: Vec::new(),
    };
    for (target, volume) in resolved {
        planner.place(target, volume)?;
    }
    // Hollowing the root changes what all later paths mean, so it comes before all; the
    // others in order of depth, each before anything is mounted.
    planner.first.sort_by_key(|step| match step {
        MountStep::Hollow { dir, .. } => dir.components().count(),
        _ => usize::MAX,
    });
    planner.first.append(&mut planner.then);
    Ok(planner.first)
}

struct MountPlanner<'a> {
    host: &'a dyn HostTree,
    hollowed: BTreeSet<PathBuf>,
    /// Directories that exist only in hollowed ones.
    made: BTreeSet<PathBuf>,
    mounted: BTreeMap<PathBuf, &'a WantedMount>,
    /// Entries of all hollowed directories.
    bound: usize,
    first: Vec<MountStep>,
    then: Vec<MountStep>,
}

impl<'a> MountPlanner<'a> {
    fn place(&mut self, target: PathBuf, volume: &'a WantedMount) -> Result<(), PlanError> {
        let under = self
            .mounted
            .iter()
            .rev()
            .find(|(above, _)| target.starts_with(above))
            .map(|(above, volume)| (above.clone(), *volume));
        match under {
            Some((above, outer)) => self.inside(&target, volume, &above, outer)?,
            None => self.on_host(&target, volume)?,
        }
        self.then.push(MountStep::Mount {
            index: volume.index,
            target: target.clone(),
        });
        self.mounted.insert(target, volume);
        Ok(())
    }

    fn on_host(&mut self, target: &Path, volume: &WantedMount) -> Result<(), PlanError> {
        if let Some(kind) = self.host.kind(target) {
            return matches(target, &kind, volume.is_directory);
        }
        let parent = target
            .ancestors()
            .skip(1)
            .find(|above| self.made.contains(*above) || self.host.kind(above).is_some())
            .unwrap_or(Path::new("/"))
            .to_path_buf();
        if !self.made.contains(&parent) {
            self.hollow(&parent, &parent, target, true)?;
        }
        for above in target
            .ancestors()
            .skip(1)
            .take_while(|above| **above != *parent)
        {
            self.made.insert(above.to_path_buf());
        }
        self.then.push(MountStep::Point {
            path: target.to_path_buf(),
            is_directory: volume.is_directory,
        });
        Ok(())
    }

    /// A volume inside another volume.
    fn inside(
        &mut self,
        target: &Path,
        volume: &WantedMount,
        above: &Path,
        outer: &WantedMount,
    ) -> Result<(), PlanError> {
        let relative = target.strip_prefix(above).unwrap_or(Path::new(""));
        if !outer.is_directory {
            return Err(PlanError::Mismatch {
                path: above.display().to_string(),
                found: "file",
                wanted: "directory",
            });
        }
        if let Some(source) = &outer.source {
            if let Some(kind) = self.host.kind(&source.join(relative)) {
                return matches(target, &kind, volume.is_directory);
            }
            if outer.read_only && !self.made.contains(target.parent().unwrap_or(above)) {
                // Nothing can be made in it: cover the deepest directory that it has.
                let inner = relative
                    .ancestors()
                    .skip(1)
                    .find(|part| self.host.kind(&source.join(part)).is_some())
                    .unwrap_or(Path::new(""));
                let dir = if inner.as_os_str().is_empty() {
                    above.to_path_buf()
                } else {
                    above.join(inner)
                };
                self.hollow(&dir, &source.join(inner), target, false)?;
                for part in target.ancestors().skip(1).take_while(|part| **part != *dir) {
                    self.made.insert(part.to_path_buf());
                }
            }
        }
        self.then.push(MountStep::Point {
            path: target.to_path_buf(),
            is_directory: volume.is_directory,
        });
        Ok(())
    }

    fn hollow(
        &mut self,
        dir: &Path,
        real: &Path,
        missing: &Path,
        before_all: bool,
    ) -> Result<(), PlanError> {
        if !self.hollowed.insert(dir.to_path_buf()) {
            return Ok(());
        }
        let crowded = |detail: String| PlanError::Crowded {
            dir: dir.display().to_string(),
            missing: missing.display().to_string(),
            detail,
        };
        let entries = self.host.entries(real);
        let mut entries = entries.map_err(|error| crowded(error.to_string()))?;
        if entries.len() > MAX_ENTRIES {
            return Err(crowded(format!(
                "it has {} entries, more than {MAX_ENTRIES}",
                entries.len()
            )));
        }
        self.bound += entries.len();
        if self.bound > MAX_BOUND {
            return Err(crowded(format!(
                "with those of the other volumes that is {} entries, more than {MAX_BOUND}",
                self.bound
            )));
        }
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        let step = MountStep::Hollow {
            dir: dir.to_path_buf(),
            entries,
        };
        if before_all {
            self.first.push(step)
        } else {
            self.then.push(step)
        }
        Ok(())
    }
}

fn matches(path: &Path, kind: &PathKind, is_directory: bool) -> Result<(), PlanError> {
    let name = |directory| if directory { "directory" } else { "file" };
    let found = *kind == PathKind::Directory;
    if found == is_directory {
        return Ok(());
    }
    Err(PlanError::Mismatch {
        path: path.display().to_string(),
        found: name(found),
        wanted: name(is_directory),
    })
}

/// Follows the node's links in the part of `path` that exists.
fn resolve(path: &Path, host: &dyn HostTree) -> Result<PathBuf, PlanError> {
    let fault = |detail: &str| PlanError::Links {
        path: path.display().to_string(),
        detail: detail.into(),
    };
    let mut left: Vec<OsString> = parts(path);
    left.reverse();
    let mut found = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = left.pop() {
        if part == ".." {
            found.pop();
            continue;
        }
        let next = found.join(&part);
        if let Some(PathKind::Link(to)) = host.kind(&next) {
            links += 1;
            if links > MAX_LINKS {
                return Err(fault("too many levels of symbolic links"));
            }
            if to.is_absolute() {
                found = PathBuf::from("/");
            }
            left.extend(parts(&to).into_iter().rev());
        } else {
            found = next;
        }
    }
    if found == Path::new("/") {
        return Err(fault("it leads to the root, which cannot be covered"));
    }
    // Mounting itself goes by /proc, and a volume there could answer in the kernel's place.
    if found.starts_with("/proc") {
        return Err(fault("it leads into /proc, which is the kernel's"));
    }
    Ok(found)
}

fn parts(path: &Path) -> Vec<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_os_string()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests;
