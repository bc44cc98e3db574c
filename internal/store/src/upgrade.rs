//! Brings a store that another version of muster wrote up to date, before it is served: a snapshot,
//! then the migration steps, then the record of the version. `version` decides what to do; this
//! module does it. A start that is killed in between changes nothing that the next one does not
//! repeat.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::backup::{self, BackupOptions};
use crate::codec;
use crate::disk::{DiskStore, private_directory};
use crate::entry::{Entry, Event, EventKind, Revision};
use crate::error::{OpenError, SnapshotError, StoreError, io_error};
use crate::layout::part_count;
use crate::memory::{Loaded, ObjectChanges};
use crate::options::Options;
use crate::version::{MigrationStep, Rewrite, StoreVersion};

/// How many snapshots are kept; an older one is removed when a new one is written.
pub const SNAPSHOTS_MAX: usize = 5;
/// The snapshots' directory in the store's, unless the options name another.
const DIRECTORY: &str = "snapshots";
const ENDING: &str = ".backup";
const BETWEEN: &str = "-to-";
const BEFORE_REVISION: &str = "-revision-";
/// How many objects a step changes in one write.
const BATCH: usize = 500;

/// A snapshot on disk. It is a backup, and `Backup` restores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was written.
    pub taken: SystemTime,
    /// The version of muster that had written the store.
    pub from: String,
    /// The version of muster that took the snapshot, before its first change.
    pub to: String,
}

/// The snapshots in a directory, the newest first. Other files are ignored.
///
/// # Errors
/// If the directory exists and cannot be read.
pub fn snapshots(directory: &Path) -> io::Result<Vec<Snapshot>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some((from, to)) = name.to_str().and_then(versions_in) else {
            continue;
        };
        let metadata = entry.metadata()?;
        found.push(Snapshot {
            path: entry.path(),
            bytes: metadata.len(),
            taken: metadata.modified()?,
            from: from.to_owned(),
            to: to.to_owned(),
        });
    }
    found.sort_by(|a, b| (b.taken, &b.path).cmp(&(a.taken, &a.path)));
    Ok(found)
}

fn name_of(from: &str, to: &str, revision: Revision) -> String {
    format!("{from}{BETWEEN}{to}{BEFORE_REVISION}{revision}{ENDING}")
}

/// The versions in a snapshot's name.
fn versions_in(name: &str) -> Option<(&str, &str)> {
    let (versions, revision) = name.strip_suffix(ENDING)?.rsplit_once(BEFORE_REVISION)?;
    revision.parse::<u64>().ok()?;
    versions.split_once(BETWEEN)
}

/// Brings the store up to date and returns its version. Does nothing to a store that this version of
/// muster wrote and finalized.
pub(crate) fn bring_up_to_date(
    dir: &Path,
    disk: &mut DiskStore,
    loaded: &mut Loaded,
    options: &Options,
) -> Result<StoreVersion, OpenError> {
    let formats = options.formats;
    let Some(found) = loaded.found.clone() else {
        return Ok(formats.of_new_store());
    };
    let after = formats.after(&found);
    if after != found {
        let snapshot =
            snapshot(dir, loaded, &found, options).map_err(|reason| OpenError::Snapshot {
                path: dir.to_owned(),
                written_by: found.written_by.clone(),
                reason,
            })?;
        let data = dir.parent().unwrap_or(dir);
        tracing::info!(
            snapshot = %snapshot.display(),
            "muster {} wrote the store; a snapshot was taken before muster {} changes it. To go back: stop the server, \
             install muster {0}, move {} aside and run `muster --data {} restore {}`",
            found.written_by,
            formats.product,
            dir.display(),
            data.display(),
            snapshot.display(),
        );
    }
    let mut changed = 0;
    for step in formats.steps_for(&found) {
        changed += run_step(disk, loaded, step).map_err(|source| OpenError::Migration {
            path: dir.to_owned(),
            source,
        })?;
    }
    if after != found {
        disk.finish(&after)
            .map_err(|error| io_error(dir)(error.into()))?;
        tracing::info!(
            format = after.format,
            readable_from = after.readable_from,
            changed,
            "the store is up to date"
        );
    }
    Ok(after)
}

/// Writes the snapshot, unless an earlier start wrote it, and removes the oldest ones.
fn snapshot(
    dir: &Path,
    loaded: &Loaded,
    found: &StoreVersion,
    options: &Options,
) -> Result<PathBuf, SnapshotError> {
    let directory = match &options.snapshot.directory {
        Some(directory) => directory.clone(),
        None => dir.join(DIRECTORY),
    };
    let in_directory = |source: io::Error| SnapshotError::Directory {
        path: directory.clone(),
        source,
    };
    private_directory(&directory).map_err(in_directory)?;
    if let Err(error) = durable::sweep(&directory) {
        tracing::warn!(%error, "temporary files of an earlier server are left among the snapshots");
    }
    let revision = loaded.state.revision;
    let path = directory.join(name_of(
        &found.written_by,
        options.formats.product,
        revision,
    ));
    // A file of this name is complete, and the store has not changed since.
    if !path.exists() {
        let files = options.snapshot.files.as_ref().map_or_else(
            || Ok(Vec::new()),
            |files| files().map_err(SnapshotError::Files),
        )?;
        let objects: Vec<Arc<Entry>> = loaded.objects.values().cloned().collect();
        let contents = BackupOptions {
            files,
            passphrase: None,
        };
        backup::write(&path, &objects, revision, found, &contents)
            .map_err(|error| SnapshotError::Backup(Box::new(error)))?;
    }
    let kept = snapshots(&directory).map_err(in_directory)?;
    for old in kept.iter().skip(SNAPSHOTS_MAX) {
        if old.path != path
            && let Err(error) = durable::remove(&old.path)
        {
            tracing::warn!(%error, "an old snapshot could not be removed");
        }
    }
    Ok(path)
}

/// Runs one step over all objects, in writes of a bounded size; returns how many it changed. Each
/// change takes a revision, so that watches that resume later receive it.
fn run_step(
    disk: &mut DiskStore,
    loaded: &mut Loaded,
    step: &MigrationStep,
) -> Result<usize, StoreError> {
    let objects: Vec<Arc<Entry>> = loaded.objects.values().cloned().collect();
    let mut changed = 0;
    for batch in objects.chunks(BATCH) {
        let (mut changes, mut events) = (ObjectChanges::new(), Vec::new());
        let mut state = loaded.state;
        for old in batch {
            let revision = state.revision.next();
            let (kind, entry) = match (step.rewrite)(old, revision) {
                Rewrite::Keep => continue,
                Rewrite::Put(meta, value) => {
                    let (record, crc) = codec::object(&old.key, revision, &meta, &value);
                    let entry = Entry {
                        key: Arc::clone(&old.key),
                        value,
                        revision,
                        meta: Arc::new(meta),
                        crc,
                        parts: part_count(record.len()),
                    };
                    (EventKind::Modified, Arc::new(entry))
                }
                Rewrite::Delete => {
                    let entry = Entry {
                        key: Arc::clone(&old.key),
                        value: old.value.clone(),
                        revision,
                        meta: Arc::clone(&old.meta),
                        crc: 0,
                        parts: 0,
                    };
                    (EventKind::Deleted, Arc::new(entry))
                }
            };
            state.revision = revision;
            state.digest = state.digest.wrapping_sub(codec::fingerprint(old));
            let kept = (kind == EventKind::Modified).then(|| Arc::clone(&entry));
            match &kept {
                Some(new) => state.digest = state.digest.wrapping_add(codec::fingerprint(new)),
                None => state.objects -= 1,
            }
            changes.insert(Arc::clone(&old.key), kept);
            events.push(Event {
                kind,
                entry,
                previous: Some(Arc::clone(&old.meta)),
            });
        }
        if events.is_empty() {
            continue;
        }
        disk.check_space()?;
        disk.write(&loaded.objects, &changes, &events, Revision::ZERO, state)?;
        changed += events.len();
        loaded.state = state;
        loaded.events.extend(events);
        for (key, change) in changes {
            match change {
                Some(entry) => loaded.objects.insert(key, entry),
                None => loaded.objects.remove(&key),
            };
        }
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshots_name_has_its_versions_and_other_names_have_none() {
        let name = name_of("0.1.0", "0.2.0-rc.1", Revision::new(7));
        assert_eq!(name, "0.1.0-to-0.2.0-rc.1-revision-7.backup");
        assert_eq!(versions_in(&name), Some(("0.1.0", "0.2.0-rc.1")));
        for other in [
            "x.backup",
            "a-to-b.backup",
            "a-to-b-revision-x.backup",
            "a-to-b-revision-7.backup.partial",
        ] {
            assert_eq!(versions_in(other), None, "{other}");
        }
    }
}
