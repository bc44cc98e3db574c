//! Reading a container's log over its rotated files, once or following it as it grows.
//! Owns the position; writes nothing. Works the same for a running and a finished
//! container, and for files that another runtime wrote in the CRI format.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use jiff::Timestamp;

use super::line;

/// A stream's items are at most about so many bytes.
const CHUNK: usize = 64 * 1024;
/// How long a follower waits before it looks again.
const FOLLOW_POLL: Duration = Duration::from_millis(100);
/// Rotated files looked for at most.
const MAX_FILES: usize = 1000;
/// Attempts to open a file that is being renamed meanwhile.
const OPEN_TRIES: usize = 16;

/// What of a log is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogRead {
    /// Only the last so many lines; absent: all that are kept.
    pub tail_lines: Option<u64>,
    /// Only lines at or after this time.
    pub since: Option<Timestamp>,
    /// Puts each line's time before it.
    pub timestamps: bool,
    /// Goes on as the log grows, until the container has ended and all is read.
    pub follow: bool,
    /// Ends after so many bytes.
    pub limit_bytes: Option<u64>,
}

/// The log at `path` as bytes, without the CRI prefix. `finished` says whether the
/// container can write no more; it is asked only while following.
pub fn read_logs(
    path: PathBuf,
    options: LogRead,
    finished: impl Fn() -> bool + Send + Sync + 'static,
) -> BoxStream<'static, io::Result<Bytes>> {
    struct State<F> {
        reader: Option<LogReader>,
        finished: F,
    }
    let state = State {
        reader: Some(LogReader::new(path, options)),
        finished,
    };
    futures::stream::unfold(state, move |mut state| async move {
        loop {
            let mut reader = state.reader.take()?;
            // Asked before reading: what was written before the end is then surely read.
            let ended = !options.follow || (state.finished)();
            let read = tokio::task::spawn_blocking(move || {
                let chunk = reader.next_chunk();
                (reader, chunk)
            });
            match read.await {
                Err(gone) => return Some((Err(io::Error::other(gone)), state)),
                Ok((_, Err(e))) => return Some((Err(e), state)),
                Ok((reader, Ok(Some(chunk)))) => {
                    if !reader.is_over() {
                        state.reader = Some(reader);
                    }
                    return Some((Ok(chunk), state));
                }
                Ok((reader, Ok(None))) => {
                    if ended || reader.is_over() {
                        return None;
                    }
                    state.reader = Some(reader);
                    tokio::time::sleep(FOLLOW_POLL).await;
                }
            }
        }
    })
    .boxed()
}

/// A position in a log.
#[derive(Debug)]
pub struct LogReader {
    path: PathBuf,
    options: LogRead,
    current: Option<OpenLogFile>,
    started: bool,
    /// Full lines still to be passed over, for `tail_lines`.
    skip: u64,
    record: Vec<u8>,
    /// Whether the next record begins a line.
    line_start: bool,
    left: u64,
}

#[derive(Debug)]
struct OpenLogFile {
    file: BufReader<File>,
    inode: u64,
}

impl OpenLogFile {
    fn new(path: &Path) -> io::Result<OpenLogFile> {
        let file = File::open(path)?;
        let inode = file.metadata()?.ino();
        Ok(OpenLogFile {
            file: BufReader::with_capacity(CHUNK, file),
            inode,
        })
    }
}

impl LogReader {
    /// At the place where `options` begins; nothing is read yet.
    pub fn new(path: PathBuf, options: LogRead) -> LogReader {
        LogReader {
            path,
            options,
            current: None,
            started: false,
            skip: 0,
            record: Vec::new(),
            line_start: true,
            left: options.limit_bytes.unwrap_or(u64::MAX),
        }
    }

    /// Whether `limit_bytes` has been reached.
    pub fn is_over(&self) -> bool {
        self.left == 0
    }

    /// The next bytes; `None` when all that is there has been read (more may come).
    pub fn next_chunk(&mut self) -> io::Result<Option<Bytes>> {
        if !self.started {
            self.start()?;
        }
        let mut out = Vec::new();
        while out.len() < CHUNK && self.left > 0 && self.next_record()? {
            let record = std::mem::take(&mut self.record);
            self.emit(&record, &mut out);
            self.record = record;
            self.record.clear();
        }
        Ok(if out.is_empty() {
            None
        } else {
            Some(Bytes::from(out))
        })
    }

    fn emit(&mut self, record: &[u8], out: &mut Vec<u8>) {
        let Some(line) = line::parse(record) else {
            return;
        };
        let begins = std::mem::replace(&mut self.line_start, line.full);
        if self.skip > 0 {
            self.skip -= u64::from(line.full);
            return;
        }
        if let Some(since) = self.options.since
            && line.at().is_some_and(|at| at < since)
        {
            return;
        }
        let before = out.len();
        if self.options.timestamps && begins {
            out.extend_from_slice(line.time.as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(line.text);
        if line.full {
            out.push(b'\n');
        }
        let added = (out.len() - before) as u64;
        if added > self.left {
            out.truncate(before + self.left as usize);
        }
        self.left = self.left.saturating_sub(added);
    }

    /// Finds the first file to read and how many lines of it to pass over. If there is
    /// nothing yet, the next call tries again.
    fn start(&mut self) -> io::Result<()> {
        // Held open, so that rotation meanwhile takes nothing away.
        let mut files: Vec<OpenLogFile> = Vec::new();
        for path in existing(&self.path) {
            match OpenLogFile::new(&path) {
                Ok(open) if files.iter().all(|f| f.inode != open.inode) => files.push(open),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        self.started = !files.is_empty();
        let Some(wanted) = self.options.tail_lines else {
            self.current = files.pop();
            return Ok(());
        };
        let mut seen = 0;
        for mut open in files {
            seen += count_lines(&mut open.file)?;
            open.file.rewind()?;
            self.current = Some(open);
            if seen >= wanted {
                break;
            }
        }
        self.skip = seen.saturating_sub(wanted);
        Ok(())
    }

    /// Reads one record into `self.record`, without its newline; false when none is whole yet.
    fn next_record(&mut self) -> io::Result<bool> {
        for _ in 0..MAX_FILES {
            if self.fill()? {
                return Ok(true);
            }
            let Some(next) = self.newer()? else {
                return Ok(false);
            };
            // The writer finishes a file before it starts the next one: what it added since
            // we last looked is there now, and nothing comes after it.
            if self.fill()? {
                return Ok(true);
            }
            self.record.clear();
            self.current = Some(next);
        }
        Ok(false)
    }

    fn fill(&mut self) -> io::Result<bool> {
        let Some(open) = &mut self.current else {
            return Ok(false);
        };
        open.file.read_until(b'\n', &mut self.record)?;
        if self.record.last() == Some(&b'\n') {
            self.record.pop();
            return Ok(true);
        }
        Ok(false)
    }

    /// The file after the current one in time, if there is one.
    fn newer(&self) -> io::Result<Option<OpenLogFile>> {
        for _ in 0..OPEN_TRIES {
            let files: Vec<(PathBuf, u64)> = existing(&self.path)
                .into_iter()
                .filter_map(|path| {
                    let inode = std::fs::metadata(&path).ok()?.ino();
                    Some((path, inode))
                })
                .collect();
            let mine = self.current.as_ref().map(|open| open.inode);
            let next = match files.iter().position(|(_, inode)| Some(*inode) == mine) {
                Some(0) => return Ok(None),
                Some(age) => files.get(age - 1),
                None => files.last(),
            };
            let Some((path, inode)) = next else {
                return Ok(None);
            };
            match OpenLogFile::new(path) {
                Ok(open) if open.inode == *inode => return Ok(Some(open)),
                // Renamed between the look and the opening: look again.
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }
}

/// The log's files that exist, newest first. While they are renamed one name at a time may
/// be missing, so the list ends at two missing in a row.
fn existing(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut missing = 0;
    for age in 0..MAX_FILES {
        let name = if age == 0 {
            path.to_path_buf()
        } else {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{age}"));
            PathBuf::from(name)
        };
        if name.exists() {
            missing = 0;
            found.push(name);
        } else {
            missing += 1;
            if missing == 2 {
                break;
            }
        }
    }
    found
}

/// How many lines end in a file.
fn count_lines(file: &mut impl BufRead) -> io::Result<u64> {
    let mut count = 0;
    let mut record = Vec::new();
    while file.read_until(b'\n', &mut record)? > 0 {
        if record.last() == Some(&b'\n')
            && line::parse(&record[..record.len() - 1]).is_some_and(|l| l.full)
        {
            count += 1;
        }
        record.clear();
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::line::OutputStream;
    use super::super::write::LogWriter;
    use super::*;
    use crate::spec::LogSettings;

    fn writer(dir: &Path, max_bytes: u64, max_files: u32) -> LogWriter {
        LogWriter::open(LogSettings {
            path: dir.join("0.log"),
            max_bytes,
            max_files,
        })
        .expect("a writable directory")
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn say(writer: &mut LogWriter, second: i64, text: &str) {
        writer.add(at(second), OutputStream::Stdout, true, text.as_bytes());
        writer.flush();
    }

    fn read(dir: &Path, options: LogRead) -> String {
        let mut reader = LogReader::new(dir.join("0.log"), options);
        let mut all = Vec::new();
        while let Some(chunk) = reader.next_chunk().expect("readable files") {
            all.extend_from_slice(&chunk);
        }
        String::from_utf8(all).expect("text")
    }

    #[test]
    fn a_log_over_several_files_reads_as_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = writer(dir.path(), 200, 50);
        let expected: String = (0..60).map(|n| format!("line {n}\n")).collect();
        for n in 0..60 {
            say(&mut writer, n, &format!("line {n}"));
        }
        assert!(dir.path().join("0.log.3").exists());
        assert_eq!(read(dir.path(), LogRead::default()), expected);
        let tail = |n| {
            read(
                dir.path(),
                LogRead {
                    tail_lines: Some(n),
                    ..LogRead::default()
                },
            )
        };
        assert_eq!(tail(2), "line 58\nline 59\n");
        assert_eq!(
            tail(13),
            expected.split_inclusive('\n').skip(47).collect::<String>()
        );
        assert_eq!(tail(0), "");
        assert_eq!(tail(1000), expected);
        let since = LogRead {
            since: Some(at(57)),
            timestamps: true,
            ..LogRead::default()
        };
        assert_eq!(
            read(dir.path(), since),
            "1970-01-01T00:00:57.000000000Z line 57\n1970-01-01T00:00:58.000000000Z line 58\n1970-01-01T00:00:59.000000000Z line 59\n"
        );
        assert_eq!(
            read(
                dir.path(),
                LogRead {
                    limit_bytes: Some(10),
                    ..LogRead::default()
                }
            ),
            "line 0\nlin"
        );
    }

    #[test]
    fn parts_of_a_line_are_joined_and_stamped_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = writer(dir.path(), 1000, 2);
        writer.add(at(1), OutputStream::Stdout, false, b"be");
        writer.add(at(1), OutputStream::Stdout, true, b"gin");
        writer.flush();
        assert_eq!(read(dir.path(), LogRead::default()), "begin\n");
        let stamped = read(
            dir.path(),
            LogRead {
                timestamps: true,
                ..LogRead::default()
            },
        );
        assert_eq!(stamped, "1970-01-01T00:00:01.000000000Z begin\n");
    }

    #[test]
    fn a_reader_that_keeps_up_loses_nothing_to_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = writer(dir.path(), 300, 3);
        let mut reader = LogReader::new(dir.path().join("0.log"), LogRead::default());
        let mut all = String::new();
        for n in 0..200 {
            say(&mut writer, n, &format!("line {n}"));
            if n % 5 == 0 {
                while let Some(chunk) = reader.next_chunk().unwrap() {
                    all.push_str(std::str::from_utf8(&chunk).unwrap());
                }
            }
        }
        while let Some(chunk) = reader.next_chunk().unwrap() {
            all.push_str(std::str::from_utf8(&chunk).unwrap());
        }
        assert_eq!(
            all,
            (0..200).map(|n| format!("line {n}\n")).collect::<String>()
        );
    }

    #[tokio::test]
    async fn following_starts_before_the_file_exists_and_ends_with_the_container() {
        let dir = tempfile::tempdir().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let ask = over.clone();
        let options = LogRead {
            follow: true,
            ..LogRead::default()
        };
        let mut stream = read_logs(dir.path().join("0.log"), options, move || {
            ask.load(Ordering::SeqCst)
        });
        let mut writer = writer(dir.path(), 1000, 2);
        say(&mut writer, 1, "one");
        assert_eq!(stream.next().await.unwrap().unwrap(), "one\n");
        say(&mut writer, 2, "two");
        assert_eq!(stream.next().await.unwrap().unwrap(), "two\n");
        say(&mut writer, 3, "three");
        over.store(true, Ordering::SeqCst);
        assert_eq!(stream.next().await.unwrap().unwrap(), "three\n");
        assert!(stream.next().await.is_none());
    }

    #[tokio::test]
    async fn a_log_that_is_not_there_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let mut stream = read_logs(dir.path().join("none.log"), LogRead::default(), || true);
        assert!(stream.next().await.is_none());
    }
}
