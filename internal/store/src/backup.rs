//! Owns the backup file: a consistent copy of all objects at one revision, with the files that a
//! server needs to start on another machine. The store writes a backup while it runs; a restore
//! reads it into an empty directory. This module does not use sled and does not interpret the
//! files.
//!
//! The file is a line that names the format, then frames: a length and a checksum (four
//! bytes each, big-endian) and the content. The first frame holds the revision, the number of
//! objects, the number of files and the store's version; then come the files (the name's length, the name, the content),
//! the objects, and the sum of the checksums. Format 1 had no files. With a passphrase all of that
//! is the content of a sealed stream; see [`crate::sealed`].
//!
//! A snapshot before an upgrade is such a file too, and the version before the upgrade restores it:
//! a change of this format must stay readable for that version.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read as _, Seek as _, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Buf as _, Bytes};

use crate::backup_file::BackupFile;
use crate::codec::{self, StoreState};
use crate::disk::DiskStore;
use crate::entry::{Entry, Revision};
use crate::error::BackupError;
use crate::layout::part_count;
use crate::memory::{ObjectChanges, Objects};
use crate::options::Options;
use crate::sealed::{Opener, Seal, Sealer};
use crate::version::{FormatVerdict, StoreVersion};

const NAME: &str = "muster-backup";
const SEALED_NAME: &str = "muster-backup-sealed";
const FORMAT: u32 = 2;
const SEALED_FORMAT: u32 = 1;
/// The format from which on a backup has files.
const FORMAT_WITH_FILES: u32 = 2;
/// The maximum number of files in a backup.
const FILES_MAX: u64 = 256;
/// How far the revision jumps at a restore. The jump exceeds the number of changes between a backup
/// and the loss of the store, so that no revision is given out twice.
const RESTORE_SKIP: u64 = 1 << 32;
/// How many revisions a millisecond of the clock stands for. A restore begins at the present time
/// in these units if that exceeds the jump. Two restores of the same backup thus begin at different
/// revisions, because no server makes a million changes a second. In the year 2100 the value is
/// below 2^52.
const REVISIONS_PER_MILLISECOND: u64 = 1 << 10;
/// How many objects a restore writes in one batch.
const RESTORE_BATCH: usize = 500;
/// The longest first line that the reader accepts.
const LINE_MAX: u64 = 64;
/// The largest frame that the reader accepts.
const FRAME_MAX: u32 = 1 << 30;

/// The contents of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupSummary {
    /// The revision that the backup shows.
    pub revision: Revision,
    /// The number of objects.
    pub objects: u64,
}

/// What a backup contains in addition to the objects, and how it is protected.
#[derive(Clone, Default)]
pub struct BackupOptions {
    /// The files to include.
    pub files: Vec<BackupFile>,
    /// Encrypts the backup. A backup without a passphrase exposes all Secrets and keys to every
    /// reader.
    pub passphrase: Option<String>,
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    let path = path.to_owned();
    move |source| BackupError::Io {
        action,
        path,
        source,
    }
}

struct BackupFrames<W> {
    file: W,
    sum: u64,
}

impl<W: io::Write> BackupFrames<W> {
    fn put(&mut self, content: &[&[u8]]) -> io::Result<()> {
        let length = content.iter().map(|part| part.len()).sum::<usize>();
        let length = u32::try_from(length)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "an object over 4 GiB"))?;
        let mut hasher = crc32fast::Hasher::new();
        for part in content {
            hasher.update(part);
        }
        let crc = hasher.finalize();
        self.sum = self.sum.wrapping_add(u64::from(crc));
        self.file.write_all(&length.to_be_bytes())?;
        self.file.write_all(&crc.to_be_bytes())?;
        for part in content {
            self.file.write_all(part)?;
        }
        Ok(())
    }
}

pub(crate) fn write(
    path: &Path,
    objects: &[Arc<Entry>],
    revision: Revision,
    version: &StoreVersion,
    options: &BackupOptions,
) -> Result<BackupSummary, BackupError> {
    let mut staged = path.as_os_str().to_owned();
    staged.push(".partial");
    let staged = PathBuf::from(staged);
    let written = write_file(&staged, objects, revision, version, options)
        .and_then(|()| durable::publish(&staged, path).map_err(io::Error::from));
    if let Err(error) = written {
        // A failed removal adds nothing to the error that is being returned.
        let _ = fs::remove_file(&staged);
        return Err(io_error("cannot write the backup", path)(error));
    }
    Ok(BackupSummary {
        revision,
        objects: objects.len() as u64,
    })
}

/// Creates a file that only its owner may read.
fn private(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(durable::PRIVATE);
    options.open(path)
}

fn write_file(
    path: &Path,
    objects: &[Arc<Entry>],
    revision: Revision,
    version: &StoreVersion,
    options: &BackupOptions,
) -> io::Result<()> {
    let file = BufWriter::new(private(path)?);
    let mut file = match &options.passphrase {
        None => write_content(file, objects, revision, version, &options.files)?,
        Some(passphrase) => {
            let sealer = Sealer::new(file, Seal::new(passphrase)?)?;
            write_content(sealer, objects, revision, version, &options.files)?.finish()?
        }
    };
    file.flush()
}

fn write_content<W: Write>(
    mut file: W,
    objects: &[Arc<Entry>],
    revision: Revision,
    version: &StoreVersion,
    files: &[BackupFile],
) -> io::Result<W> {
    writeln!(file, "{NAME} {FORMAT}")?;
    let mut frames = BackupFrames { file, sum: 0 };
    frames.put(&[
        &revision.get().to_be_bytes(),
        &(objects.len() as u64).to_be_bytes(),
        &(files.len() as u64).to_be_bytes(),
        // Readers that do not know the store's version ignore the rest of this frame.
        version.text().as_bytes(),
    ])?;
    for file in files {
        let length = u32::try_from(file.name.len()).unwrap_or(u32::MAX);
        frames.put(&[&length.to_be_bytes(), file.name.as_bytes(), &file.content])?;
    }
    for entry in objects {
        let (record, _) = codec::object(&entry.key, entry.revision, &entry.meta, &entry.value);
        let key_length = u32::try_from(entry.key.len()).unwrap_or(u32::MAX);
        frames.put(&[&key_length.to_be_bytes(), entry.key.as_bytes(), &record])?;
    }
    let sum = frames.sum;
    frames.put(&[&sum.to_be_bytes()])?;
    Ok(frames.file)
}

/// The content of a backup's first frame.
struct BackupManifest {
    summary: BackupSummary,
    files: u64,
    /// The version of the store that the backup was taken of.
    version: StoreVersion,
}

struct BackupReader<'a> {
    path: &'a Path,
    file: Box<dyn BufRead>,
    sum: u64,
    format: u32,
}

/// The number of the format that a first line names after `name`.
fn format_of(line: &[u8], name: &str) -> Option<u32> {
    let line = std::str::from_utf8(line).ok()?;
    let number = line.trim_end().strip_prefix(name)?.strip_prefix(' ')?;
    number.parse().ok()
}

fn first_line(path: &Path, file: &mut dyn BufRead) -> Result<Vec<u8>, BackupError> {
    let mut line = Vec::new();
    file.take(LINE_MAX)
        .read_until(b'\n', &mut line)
        .map_err(io_error("cannot read the backup", path))?;
    Ok(line)
}

fn newer(path: &Path, found: u32, known: u32) -> BackupError {
    BackupError::NewerFormat {
        path: path.to_owned(),
        found,
        known,
    }
}

/// The seal of a backup that has one, made with the passphrase.
fn seal_of(path: &Path, passphrase: Option<&str>) -> Result<Option<Seal>, BackupError> {
    let file = File::open(path).map_err(io_error("cannot read the backup", path))?;
    let mut file = BufReader::new(file);
    let line = first_line(path, &mut file)?;
    match (format_of(&line, SEALED_NAME), passphrase) {
        (Some(found), _) if found != SEALED_FORMAT => Err(newer(path, found, SEALED_FORMAT)),
        (Some(_), None) => Err(BackupError::Sealed {
            path: path.to_owned(),
        }),
        (None, Some(_)) => Err(BackupError::NotSealed {
            path: path.to_owned(),
        }),
        (None, None) => Ok(None),
        (Some(_), Some(passphrase)) => Seal::read(&mut file, passphrase)
            .map(Some)
            .map_err(io_error("cannot read the backup", path)),
    }
}

impl<'a> BackupReader<'a> {
    fn open(path: &'a Path, seal: Option<&Seal>) -> Result<BackupReader<'a>, BackupError> {
        let mut file = File::open(path).map_err(io_error("cannot read the backup", path))?;
        let mut file: Box<dyn BufRead> = match seal {
            None => Box::new(BufReader::new(file)),
            Some(seal) => {
                file.seek(SeekFrom::Start(seal.header_len()))
                    .map_err(io_error("cannot read the backup", path))?;
                let opener = Opener::new(BufReader::new(file), seal.clone());
                Box::new(BufReader::new(opener))
            }
        };
        let line = first_line(path, &mut *file)?;
        let reader = BackupReader {
            path,
            file,
            sum: 0,
            format: format_of(&line, NAME).unwrap_or_default(),
        };
        match reader.format {
            0 => Err(reader.damaged("the file does not begin like a backup")),
            found if found > FORMAT => Err(newer(path, found, FORMAT)),
            _ => Ok(reader),
        }
    }

    fn damaged(&self, what: impl Into<String>) -> BackupError {
        BackupError::Damaged {
            path: self.path.to_owned(),
            what: what.into(),
        }
    }

    fn exactly(&mut self, length: usize) -> Result<Bytes, BackupError> {
        // Reads through a limit: a wrong length must not become an allocation.
        let mut bytes = Vec::new();
        let read = self
            .file
            .by_ref()
            .take(length as u64)
            .read_to_end(&mut bytes);
        read.map_err(io_error("cannot read the backup", self.path))?;
        if bytes.len() < length {
            return Err(self.damaged("it is cut short"));
        }
        Ok(bytes.into())
    }

    fn frame(&mut self) -> Result<Bytes, BackupError> {
        let mut header = self.exactly(8)?;
        let (length, crc) = (header.get_u32(), header.get_u32());
        if length > FRAME_MAX {
            return Err(self.damaged("a length is wrong"));
        }
        let content = self.exactly(length as usize)?;
        if crc32fast::hash(&content) != crc {
            return Err(self.damaged("a checksum is wrong"));
        }
        self.sum = self.sum.wrapping_add(u64::from(crc));
        Ok(content)
    }

    fn summary(&mut self) -> Result<BackupManifest, BackupError> {
        let mut content = self.frame()?;
        let (revision, objects) = (content.try_get_u64(), content.try_get_u64());
        let files = if self.format >= FORMAT_WITH_FILES {
            content.try_get_u64()
        } else {
            Ok(0)
        };
        match (revision, objects, files) {
            (Ok(revision), Ok(objects), Ok(files)) if files <= FILES_MAX => Ok(BackupManifest {
                summary: BackupSummary {
                    revision: Revision::new(revision),
                    objects,
                },
                files,
                version: StoreVersion::parse(&content).unwrap_or_else(StoreVersion::unrecorded),
            }),
            (Ok(_), Ok(_), Ok(_)) => Err(self.damaged("the backup names too many files")),
            _ => Err(self.damaged("its summary is too short")),
        }
    }

    fn file(&mut self) -> Result<BackupFile, BackupError> {
        let mut content = self.frame()?;
        let length = content.try_get_u32().unwrap_or(u32::MAX) as usize;
        if length > content.len() {
            return Err(self.damaged("a file is too short"));
        }
        let name = String::from_utf8(content.split_to(length).to_vec())
            .map_err(|_| self.damaged("a file's name is not text"))?;
        // A name has one component, so that a forged backup cannot write to another directory.
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            return Err(self.damaged(format!("{name:?} is not a file's name")));
        }
        Ok(BackupFile {
            name,
            content: content.to_vec(),
        })
    }

    fn object(&mut self) -> Result<Entry, BackupError> {
        let mut content = self.frame()?;
        let length = content.try_get_u32().unwrap_or(u32::MAX) as usize;
        if length > content.len() {
            return Err(self.damaged("an object is too short"));
        }
        let key = content.split_to(length);
        let key = std::str::from_utf8(&key).map_err(|_| self.damaged("a key is not text"))?;
        let parts = part_count(content.len());
        codec::read_object(key, content, parts)
            .map_err(|broken| self.damaged(format!("the object {key}: {broken}")))
    }

    fn end(&mut self) -> Result<(), BackupError> {
        let expected = self.sum;
        let sum = self.frame()?.try_get_u64();
        if sum == Ok(expected) {
            Ok(())
        } else {
            Err(self.damaged("the sum of its objects is wrong"))
        }
    }
}

/// A backup that was read completely and passed all checks.
pub struct Backup {
    path: PathBuf,
    seal: Option<Seal>,
    summary: BackupSummary,
    files: Vec<BackupFile>,
    version: StoreVersion,
}

impl Backup {
    /// Reads a backup and verifies all of it. A backup made with a passphrase needs the same one.
    ///
    /// # Errors
    /// If the file is not a complete backup, or if the passphrase is wrong.
    pub fn open(path: &Path, passphrase: Option<&str>) -> Result<Backup, BackupError> {
        let seal = seal_of(path, passphrase)?;
        let mut reader = BackupReader::open(path, seal.as_ref())?;
        let BackupManifest {
            summary,
            files,
            version,
        } = reader.summary()?;
        let files = (0..files)
            .map(|_| reader.file())
            .collect::<Result<Vec<_>, _>>()?;
        for _ in 0..summary.objects {
            reader.object()?;
        }
        reader.end()?;
        Ok(Backup {
            path: path.to_owned(),
            seal,
            summary,
            files,
            version,
        })
    }

    /// The contents of the backup.
    #[must_use]
    pub fn summary(&self) -> BackupSummary {
        self.summary
    }

    /// The version of the store that the backup was taken of.
    #[must_use]
    pub fn version(&self) -> &StoreVersion {
        &self.version
    }

    /// The files that the backup contains in addition to the objects.
    #[must_use]
    pub fn files(&self) -> &[BackupFile] {
        &self.files
    }

    /// Checks that a store can be created in a directory: the directory is empty or can be created.
    ///
    /// # Errors
    /// If the directory is not empty or cannot be created.
    pub fn check_target(dir: &Path) -> Result<(), BackupError> {
        fs::create_dir_all(dir).map_err(io_error("cannot create", dir))?;
        let mut there = fs::read_dir(dir).map_err(io_error("cannot read", dir))?;
        if there.next().is_some() {
            return Err(BackupError::NotEmpty {
                path: dir.to_owned(),
            });
        }
        Ok(())
    }

    /// Creates a store from the objects in an empty directory. Its revisions begin above every
    /// revision that an earlier server may have given out, and its history is empty: each watch
    /// that began before the restore has to list again.
    ///
    /// # Errors
    /// If the directory is not empty or cannot be written.
    pub fn restore(&self, dir: &Path, options: Options) -> Result<BackupSummary, BackupError> {
        Self::check_target(dir)?;
        let mut reader = BackupReader::open(&self.path, self.seal.as_ref())?;
        let BackupManifest { summary, files, .. } = reader.summary()?;
        if options.formats.judge(&self.version) == FormatVerdict::TooNew {
            return Err(BackupError::NewerStore {
                path: self.path.clone(),
                found: self.version.readable_from,
                known: options.formats.newest,
                written_by: self.version.written_by.clone(),
            });
        }
        for _ in 0..files {
            reader.file()?;
        }
        let (mut disk, _) = DiskStore::open(dir, options, false)?;
        let revision = restored_revision(summary.revision, SystemTime::now());
        let mut state = StoreState {
            revision,
            ..StoreState::default()
        };
        let mut left = summary.objects;
        loop {
            let mut changes = ObjectChanges::new();
            while left > 0 && changes.len() < RESTORE_BATCH {
                left -= 1;
                let entry = reader.object()?;
                state.objects += 1;
                state.digest = state.digest.wrapping_add(codec::fingerprint(&entry));
                changes.insert(Arc::clone(&entry.key), Some(Arc::new(entry)));
            }
            disk.check_space()?;
            disk.write(&Objects::new(), &changes, &[], revision, state)?;
            if left == 0 {
                break;
            }
        }
        // The next start brings a store of an earlier version up to date.
        disk.finish(&self.version)
            .map_err(|error| io_error("cannot finish the store in", dir)(error.into()))?;
        Ok(summary)
    }
}

/// The first revision of a restored store: above the backup's revision, and above the first
/// revision of every earlier restore from any backup.
fn restored_revision(backup: Revision, now: SystemTime) -> Revision {
    let milliseconds = now
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| u64::try_from(since.as_millis()).ok())
        .unwrap_or_default();
    let by_clock = milliseconds.saturating_mul(REVISIONS_PER_MILLISECOND);
    Revision::new(backup.get().saturating_add(RESTORE_SKIP).max(by_clock))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_restore_begins_above_the_backup_and_above_every_earlier_restore() {
        let at = |milliseconds| UNIX_EPOCH + Duration::from_millis(milliseconds);
        let year_2026 = 1_780_000_000_000;
        let first = restored_revision(Revision::new(70_000), at(year_2026));
        // The first restored server made a million changes within the next second.
        let later = Revision::new(first.get() + 1_000_000);
        let second = restored_revision(Revision::new(70_000), at(year_2026 + 1_000));
        assert!(second > later, "{second} is not above {later}");
        // If the clock is at its epoch, only the jump counts.
        let jumped = restored_revision(Revision::new(70_000), at(0));
        assert_eq!(jumped.get(), 70_000 + RESTORE_SKIP);
        let high = Revision::new(first.get() * 2);
        assert!(restored_revision(high, at(year_2026)) > high);
    }

    #[test]
    fn a_backup_of_the_first_format_which_had_no_files_is_still_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backup");
        let mut file = Vec::new();
        writeln!(file, "{NAME} 1").unwrap();
        let mut frames = BackupFrames { file, sum: 0 };
        let (seven, one) = (7_u64.to_be_bytes(), 1_u64.to_be_bytes());
        frames.put(&[&seven, &one]).unwrap();
        let meta = crate::entry::EntryMeta::default();
        let (record, _) = codec::object("/a", Revision::new(7), &meta, b"{}");
        let length = 2_u32.to_be_bytes();
        frames.put(&[&length, b"/a", &record]).unwrap();
        let sum = frames.sum.to_be_bytes();
        frames.put(&[&sum]).unwrap();
        fs::write(&path, frames.file).unwrap();
        let backup = Backup::open(&path, None).unwrap();
        assert_eq!(backup.summary().revision, Revision::new(7));
        assert!(backup.files().is_empty());
        let store = dir.path().join("store");
        assert_eq!(
            backup.restore(&store, Options::default()).unwrap().objects,
            1
        );
    }
}
