//! The log's files: appending lines, syncing, rotation, and resuming after a restart. A single
//! thread owns them.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use resources::audit::AuditEvent;
use supervisor::caught;
use tokio::sync::mpsc;

use super::AuditOptions;
use super::chain::{self, ChainHead};

/// The current file.
pub(super) const CURRENT: &str = "audit.log";
/// The file with the end of the chain at the last sync.
pub(super) const HEAD: &str = "audit.head";
/// How long a written event may remain unsynced.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// The shortest time between two syncs of the log and its head, but for a rotation and the end. A
/// sync for each request would delay the store's own syncs on the same disk. No answer waits for
/// it: the guarantee is that a power cut loses at most the events of [`SYNC_EVERY`].
const SYNC_PAUSE: Duration = Duration::from_millis(150);
/// The maximum number of events in one write.
const BATCH: usize = 1024;
/// The longest line that is searched for at a file's end; an event with request and response of 1.5
/// MiB each fits.
pub(super) const LONGEST_LINE: u64 = 8 << 20;

/// Why the log could not be opened.
#[derive(Debug, thiserror::Error)]
#[error(
    "the audit log: could not {what} {path}: {error}; check the disk and the directory's owner"
)]
pub struct AuditError {
    what: &'static str,
    path: String,
    error: io::Error,
}

impl AuditError {
    pub(super) fn new(what: &'static str, path: &Path, error: io::Error) -> AuditError {
        AuditError {
            what,
            path: path.display().to_string(),
            error,
        }
    }
}

/// The files, and the end of the chain.
pub(super) struct LogFile {
    directory: PathBuf,
    file_bytes: u64,
    files: usize,
    file: File,
    length: u64,
    /// The number of the first line in the current file.
    first: u64,
    head: ChainHead,
    lost: u64,
    synced: Instant,
    dirty: bool,
}

impl LogFile {
    pub(super) fn open(options: &AuditOptions) -> Result<LogFile, AuditError> {
        let directory = options.directory.clone();
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(|error| AuditError::new("make the directory", &directory, error))?;
        if let Err(error) = durable::sweep(&directory) {
            tracing::warn!(%error, "temporary files of an earlier server are left in the audit log's directory");
        }
        let path = directory.join(CURRENT);
        let failed = |error| AuditError::new("continue with", &path, error);
        let mut file = append(&path).map_err(failed)?;
        // If the file's name were not on the disk, a power cut would remove the file with all its
        // synced lines.
        sync_names(&directory).map_err(failed)?;
        let (mut length, last) = complete_lines(&mut file).map_err(failed)?;
        let last = match last {
            Some(line) => Some(line),
            None => newest_closed_line(&directory).map_err(failed)?,
        };
        let mut head = ChainHead::default();
        if let Some(line) = last {
            match ChainHead::named_by(&line) {
                Some((sequence, _)) => {
                    head = ChainHead {
                        sequence,
                        hash: chain::hash(&line),
                    };
                }
                None => {
                    let aside = directory.join(format!(
                        "audit-damaged-{}.log",
                        jiff::Timestamp::now().as_second()
                    ));
                    fs::rename(&path, &aside).map_err(failed)?;
                    tracing::error!(
                        file = %aside.display(),
                        "the audit log's last line is not an event of Muster's; the server renames the file and begins a new chain"
                    );
                    file = append(&path).map_err(failed)?;
                    sync_names(&directory).map_err(failed)?;
                    length = 0;
                    head = after_damage(&directory, &line).map_err(failed)?;
                }
            }
        }
        let first = match first_line(&path).map_err(failed)? {
            Some(line) => {
                ChainHead::named_by(&line).map_or(head.sequence, |(sequence, _)| sequence)
            }
            None => head.sequence.saturating_add(1),
        };
        Ok(LogFile {
            directory,
            file_bytes: options.file_bytes,
            files: options.files,
            file,
            length,
            first,
            head,
            lost: 0,
            synced: Instant::now(),
            dirty: false,
        })
    }

    /// Writes events until all senders are gone, then syncs.
    pub(super) fn write_all_of(&mut self, events: &mut mpsc::Receiver<AuditEvent>) {
        let mut batch = Vec::with_capacity(BATCH);
        while events.blocking_recv_many(&mut batch, BATCH) > 0 {
            self.write(batch.drain(..));
            // A sync covers all events that arrived meanwhile; without load it follows at once.
            let pause = pause(self.synced.elapsed());
            if events.is_empty() && !pause.is_zero() {
                std::thread::sleep(pause);
            }
            if events.is_empty() || self.synced.elapsed() >= SYNC_EVERY {
                self.sync();
            }
        }
        self.sync();
    }

    fn write(&mut self, events: impl Iterator<Item = AuditEvent>) {
        let mut bytes = Vec::new();
        let (mut head, mut count, mut missing) = (self.head.clone(), 0, 0);
        for event in events {
            count += 1;
            let lost = if bytes.is_empty() { self.lost } else { 0 };
            // A panic over one event costs that event: the writer's end would cost all that follow.
            match caught(|| head.link(event, lost)) {
                Ok(Ok((line, next))) => {
                    bytes.extend_from_slice(&line);
                    bytes.push(b'\n');
                    head = next;
                }
                Ok(Err(error)) => {
                    missing += 1;
                    tracing::error!(%error, "the audit log could not encode an event");
                }
                Err(panic) => {
                    missing += 1;
                    tracing::error!(
                        %panic,
                        "the audit log's writer panicked over an event, which is lost; it goes on with the next"
                    );
                }
            }
        }
        match self.append(&bytes) {
            Ok(()) => {
                // The next line has the number of events that are missing before it.
                self.lost = match bytes.is_empty() {
                    true => self.lost + missing,
                    false => missing,
                };
                self.head = head;
                self.dirty = true;
            }
            Err(error) => {
                self.lost += count;
                tracing::error!(%error, lost = self.lost, "the audit log cannot take events; free space on its disk");
            }
        }
        if self.length >= self.file_bytes
            && let Err(error) = self.rotate()
        {
            tracing::error!(%error, "the audit log could not close its file and continues with it");
        }
    }

    /// Appends all the bytes, or removes those that were written.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.file.write_all(bytes);
        match written {
            Ok(()) => self.length += bytes.len() as u64,
            Err(_) => self.file.set_len(self.length)?,
        }
        written
    }

    fn sync(&mut self) {
        if !self.dirty {
            return;
        }
        let synced = self.file.sync_data().and_then(|()| self.keep_head());
        match synced {
            Ok(()) => self.dirty = false,
            Err(error) => tracing::error!(%error, "the audit log could not be synced"),
        }
        self.synced = Instant::now();
    }

    /// Stores the chain's end. After a power cut it may be behind the log, never ahead of it.
    fn keep_head(&self) -> io::Result<()> {
        let text = serde_json::to_vec(&self.head).map_err(io::Error::other)?;
        durable::replace(&self.directory.join(HEAD), &text)?;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.sync();
        let current = self.directory.join(CURRENT);
        let closed = self.directory.join(closed_name(self.first));
        fs::rename(&current, &closed)?;
        match append(&current) {
            Ok(file) => self.file = file,
            Err(error) => {
                // Renames the current file back, so that the next attempt finds it.
                fs::rename(&closed, &current)?;
                return Err(error);
            }
        }
        // Before any step that can fail: the next rotation must not reuse this name.
        (self.length, self.first) = (0, self.head.sequence + 1);
        sync_names(&self.directory)?;
        let closed = closed_files(&self.directory)?;
        for old in closed.iter().take(closed.len().saturating_sub(self.files)) {
            fs::remove_file(old)?;
        }
        Ok(())
    }
}

/// The wait before the next sync, by the time since the last one.
fn pause(since: Duration) -> Duration {
    SYNC_PAUSE.saturating_sub(since)
}

fn append(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
}

/// Returns once the names of the files in the directory are on the disk.
fn sync_names(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// The start of a new chain after a damaged line: its number exceeds all known numbers, so that the
/// gap is detected and no closed file's name is reused.
fn after_damage(directory: &Path, line: &[u8]) -> io::Result<ChainHead> {
    let kept = read_head(directory)?.map_or(0, |head| head.sequence);
    let closed = closed_files(directory)?.pop();
    let closed = closed.and_then(|file| number_of(&file)).unwrap_or(0);
    let sequence = kept.max(closed);
    Ok(match sequence {
        0 => ChainHead::default(),
        sequence => ChainHead {
            sequence,
            hash: chain::hash(line),
        },
    })
}

/// The end of the chain at the last sync, if it exists and is readable.
pub(super) fn read_head(directory: &Path) -> io::Result<Option<ChainHead>> {
    match fs::read(directory.join(HEAD)) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The number of the first line in a closed file, from the file's name; none for another file.
fn number_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    let number = name.strip_prefix("audit-")?.strip_suffix(".log")?;
    let digits = number.len() == 20 && number.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| number.parse().ok()).flatten()
}

fn closed_name(first: u64) -> String {
    format!("audit-{first:020}.log")
}

/// The closed files, the oldest first.
pub(super) fn closed_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if number_of(&path).is_some() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Removes a line that was incomplete when the server died. Returns the remaining length and the
/// last line.
fn complete_lines(file: &mut File) -> io::Result<(u64, Option<Vec<u8>>)> {
    let length = file.metadata()?.len();
    let from = length.saturating_sub(LONGEST_LINE);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    file.take(LONGEST_LINE).read_to_end(&mut tail)?;
    let end = tail
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let kept = from + end as u64;
    if kept < length {
        tracing::warn!(
            bytes = length - kept,
            "the audit log ended within a line; the part was cut off"
        );
        file.set_len(kept)?;
    }
    tail.truncate(end.saturating_sub(1));
    let start = tail
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let line = tail.split_off(start.min(tail.len()));
    Ok((kept, (!line.is_empty()).then_some(line)))
}

fn newest_closed_line(directory: &Path) -> io::Result<Option<Vec<u8>>> {
    let Some(newest) = closed_files(directory)?.pop() else {
        return Ok(None);
    };
    let mut file = fs::OpenOptions::new().read(true).write(true).open(newest)?;
    Ok(complete_lines(&mut file)?.1)
}

fn first_line(path: &Path) -> io::Result<Option<Vec<u8>>> {
    use std::io::BufRead;
    let mut line = Vec::new();
    let file = File::open(path)?;
    io::BufReader::new(file.take(LONGEST_LINE)).read_until(b'\n', &mut line)?;
    line.pop();
    Ok((!line.is_empty()).then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_syncs_are_150_ms_apart() {
        let milliseconds = Duration::from_millis;
        for (since, wait) in [(0, 150), (50, 100), (149, 1), (150, 0), (5000, 0)] {
            assert_eq!(pause(milliseconds(since)), milliseconds(wait), "{since}");
        }
    }
}
