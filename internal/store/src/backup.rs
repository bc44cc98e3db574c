//! Owns the backup file: a consistent copy of all objects at one revision, written while
//! the store runs and read back into an empty directory. It knows nothing of sled.
//!
//! The file is a line that names the format, then frames: a length and a checksum (four
//! bytes each, big-endian) and the content. The first frame holds the revision and the
//! number of objects, each further one an object, the last one the sum of the checksums.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf as _, Bytes};

use crate::codec::{self, State};
use crate::disk::{Disk, part_count, sync_dir};
use crate::entry::{Entry, Revision};
use crate::error::BackupError;
use crate::memory::{Changes, Objects};
use crate::options::Options;

const NAME: &str = "muster-backup";
const FORMAT: u32 = 1;
/// How far revisions jump at a restore: more than were ever taken between a backup and
/// the loss that it heals, so that no revision means two things.
const RESTORE_SKIP: u64 = 1 << 32;
/// How many objects are restored in one write.
const RESTORE_BATCH: usize = 500;
/// The longest first line that is read.
const LINE_MAX: u64 = 64;
/// The largest frame that is believed.
const FRAME_MAX: u32 = 1 << 30;

/// What a backup holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupSummary {
    /// The revision it shows.
    pub revision: Revision,
    /// How many objects it has.
    pub objects: u64,
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    let path = path.to_owned();
    move |source| BackupError::Io {
        action,
        path,
        source,
    }
}

struct Frames<W> {
    file: W,
    sum: u64,
}

impl<W: io::Write> Frames<W> {
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
) -> Result<BackupSummary, BackupError> {
    let mut staged = path.as_os_str().to_owned();
    staged.push(".partial");
    let staged = PathBuf::from(staged);
    let written = write_file(&staged, objects, revision).and_then(|()| fs::rename(&staged, path));
    if let Err(error) = written {
        // Its own failure adds nothing to the one that led here.
        let _ = fs::remove_file(&staged);
        return Err(io_error("cannot write the backup", path)(error));
    }
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    sync_dir(parent.unwrap_or(Path::new(".")))
        .map_err(io_error("cannot write the backup", path))?;
    Ok(BackupSummary {
        revision,
        objects: objects.len() as u64,
    })
}

fn write_file(path: &Path, objects: &[Arc<Entry>], revision: Revision) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    writeln!(file, "{NAME} {FORMAT}")?;
    let mut frames = Frames { file, sum: 0 };
    let count = objects.len() as u64;
    frames.put(&[&revision.get().to_be_bytes(), &count.to_be_bytes()])?;
    for entry in objects {
        let (record, _) = codec::object(&entry.key, entry.revision, &entry.meta, &entry.value);
        let key_length = u32::try_from(entry.key.len()).unwrap_or(u32::MAX);
        frames.put(&[&key_length.to_be_bytes(), entry.key.as_bytes(), &record])?;
    }
    let sum = frames.sum;
    frames.put(&[&sum.to_be_bytes()])?;
    frames
        .file
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .sync_all()
}

struct Reader<'a> {
    path: &'a Path,
    file: BufReader<File>,
    sum: u64,
}

impl<'a> Reader<'a> {
    fn open(path: &'a Path) -> Result<Reader<'a>, BackupError> {
        let file = File::open(path).map_err(io_error("cannot read the backup", path))?;
        let mut reader = Reader {
            path,
            file: BufReader::new(file),
            sum: 0,
        };
        let mut line = Vec::new();
        let mut start = reader.file.by_ref().take(LINE_MAX);
        start
            .read_until(b'\n', &mut line)
            .map_err(io_error("cannot read the backup", path))?;
        let found = std::str::from_utf8(&line)
            .ok()
            .and_then(|line| line.trim_end().strip_prefix(NAME)?.strip_prefix(' '))
            .and_then(|number| number.parse::<u32>().ok())
            .ok_or_else(|| reader.damaged("it does not begin as a backup does"))?;
        if found > FORMAT {
            return Err(BackupError::NewerFormat {
                path: path.to_owned(),
                found,
                known: FORMAT,
            });
        }
        Ok(reader)
    }

    fn damaged(&self, what: impl Into<String>) -> BackupError {
        BackupError::Damaged {
            path: self.path.to_owned(),
            what: what.into(),
        }
    }

    fn exactly(&mut self, length: usize) -> Result<Bytes, BackupError> {
        // Read through a limit: a length that lies must not become an allocation.
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

    fn summary(&mut self) -> Result<BackupSummary, BackupError> {
        let mut content = self.frame()?;
        match (content.try_get_u64(), content.try_get_u64()) {
            (Ok(revision), Ok(objects)) => Ok(BackupSummary {
                revision: Revision::new(revision),
                objects,
            }),
            _ => Err(self.damaged("its summary is too short")),
        }
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
            .map_err(|broken| self.damaged(format!("the object {key}: {}", broken.0)))
    }

    fn end(&mut self) -> Result<(), BackupError> {
        let expected = self.sum;
        let sum = self.frame()?.try_get_u64();
        if sum == Ok(expected) {
            Ok(())
        } else {
            Err(self.damaged("its sum is wrong"))
        }
    }
}

pub(crate) fn restore(
    path: &Path,
    dir: &Path,
    options: Options,
) -> Result<BackupSummary, BackupError> {
    // Twice through the file: nothing is written before all of it is known to be whole.
    let mut reader = Reader::open(path)?;
    let summary = reader.summary()?;
    for _ in 0..summary.objects {
        reader.object()?;
    }
    reader.end()?;

    fs::create_dir_all(dir).map_err(io_error("cannot create", dir))?;
    let mut there = fs::read_dir(dir).map_err(io_error("cannot read", dir))?;
    if there.next().is_some() {
        return Err(BackupError::NotEmpty {
            path: dir.to_owned(),
        });
    }
    let mut reader = Reader::open(path)?;
    reader.summary()?;
    let (mut disk, _) = Disk::open(dir, options, false)?;
    let revision = Revision::new(summary.revision.get().saturating_add(RESTORE_SKIP));
    let mut state = State {
        revision,
        ..State::default()
    };
    let mut left = summary.objects;
    loop {
        let mut changes = Changes::new();
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
    disk.finish()
        .map_err(io_error("cannot finish the store in", dir))?;
    Ok(summary)
}
