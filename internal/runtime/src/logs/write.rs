//! From a container's output to its log file: cutting into lines, stamping, rotating.
//! Owns the file while the container runs. Never gives an error to the container: what the
//! disk does not take is counted, and the log has the count once the disk takes data again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::line::{self, MAX_PIECE, OutputStream};
use crate::spec::LogSettings;

/// Cuts one output into pieces: whole lines, or parts of lines longer than [`MAX_PIECE`].
#[derive(Debug, Default)]
pub struct LineSplitter {
    rest: Vec<u8>,
}

impl LineSplitter {
    /// Takes bytes as they come and hands each finished piece to `each` as (full, text).
    pub fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(bool, &[u8])) {
        while !bytes.is_empty() {
            let newline = bytes.iter().position(|b| *b == b'\n');
            let room = MAX_PIECE - self.rest.len();
            match newline {
                Some(end) if end <= room => {
                    if self.rest.is_empty() {
                        each(true, &bytes[..end]);
                    } else {
                        self.rest.extend_from_slice(&bytes[..end]);
                        each(true, &self.rest);
                        self.rest.clear();
                    }
                    bytes = &bytes[end + 1..];
                }
                _ if bytes.len() > room => {
                    self.rest.extend_from_slice(&bytes[..room]);
                    each(false, &self.rest);
                    self.rest.clear();
                    bytes = &bytes[room..];
                }
                _ => {
                    self.rest.extend_from_slice(bytes);
                    bytes = &[];
                }
            }
        }
    }

    /// Hands over an unfinished last line.
    pub fn finish(&mut self, mut each: impl FnMut(bool, &[u8])) {
        if !self.rest.is_empty() {
            each(true, &self.rest);
            self.rest.clear();
        }
    }
}

/// Writes records to a file that rotates between records.
#[derive(Debug)]
pub struct LogWriter {
    settings: LogSettings,
    file: Option<File>,
    size: u64,
    batch: Vec<u8>,
    batched: u64,
    lost: u64,
    /// Whether the file may end in the middle of a record after a failed write.
    torn: bool,
}

impl LogWriter {
    /// Opens the log for appending and makes its directory.
    pub fn open(settings: LogSettings) -> io::Result<LogWriter> {
        if let Some(dir) = settings.path.parent() {
            fs::create_dir_all(dir)?;
        }
        let mut writer = LogWriter {
            settings,
            file: None,
            size: 0,
            batch: Vec::new(),
            batched: 0,
            lost: 0,
            torn: false,
        };
        writer.reopen()?;
        Ok(writer)
    }

    fn reopen(&mut self) -> io::Result<()> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.settings.path)?;
        self.size = file.metadata()?.len();
        self.file = Some(file);
        Ok(())
    }

    /// Adds a record; it is on disk after the next [`LogWriter::flush`].
    pub fn add(&mut self, time: Timestamp, output: OutputStream, full: bool, text: &[u8]) {
        let start = self.batch.len();
        line::print(&mut self.batch, time, output, full, text);
        let total = self.size + self.batch.len() as u64;
        if total > self.settings.max_bytes && self.size + start as u64 > 0 {
            let record = self.batch.split_off(start);
            self.flush();
            self.rotate();
            self.batch = record;
        }
        self.batched += 1;
    }

    /// Writes what was added.
    pub fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        if self.lost > 0 {
            let mut notice = Vec::new();
            let text = format!(
                "[{} lines of output were lost: the log could not be written]",
                self.lost
            );
            line::print(
                &mut notice,
                Timestamp::now(),
                OutputStream::Stderr,
                true,
                text.as_bytes(),
            );
            notice.append(&mut self.batch);
            self.batch = notice;
        }
        if self.torn {
            self.batch.insert(0, b'\n');
        }
        match self.write_batch() {
            Ok(()) => {
                self.lost = 0;
                self.torn = false;
            }
            Err(_) => {
                self.lost += self.batched;
                self.torn = true;
            }
        }
        self.batch.clear();
        self.batched = 0;
    }

    fn write_batch(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            self.reopen()?;
        }
        let Some(file) = &mut self.file else {
            return Err(io::Error::other("no log file"));
        };
        file.write_all(&self.batch)?;
        self.size += self.batch.len() as u64;
        Ok(())
    }

    /// Renames `x.log` to `x.log.1`, that to `x.log.2`, and so on; the oldest goes.
    fn rotate(&mut self) {
        let names = file_names(&self.settings.path, self.settings.max_files);
        // From the oldest: each takes the place of the one before it in age.
        for pair in names.windows(2).rev() {
            let _ = fs::rename(&pair[0], &pair[1]);
        }
        if names.len() == 1 {
            let _ = fs::remove_file(&names[0]);
        }
        self.file = None;
        self.size = 0;
        // A failure shows at the next write, which tries again.
        let _ = self.reopen();
    }
}

/// The current file and those it was rotated to, newest first, `max_files` in all.
pub fn file_names(path: &Path, max_files: u32) -> Vec<PathBuf> {
    (0..max_files.max(1))
        .map(|age| {
            if age == 0 {
                return path.to_path_buf();
            }
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{age}"));
            PathBuf::from(name)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cut(chunks: &[Vec<u8>]) -> Vec<(bool, Vec<u8>)> {
        let mut splitter = LineSplitter::default();
        let mut pieces = Vec::new();
        for chunk in chunks {
            splitter.push(chunk, |full, text| pieces.push((full, text.to_vec())));
        }
        splitter.finish(|full, text| pieces.push((full, text.to_vec())));
        pieces
    }

    proptest! {
        #[test]
        fn however_output_is_chunked_its_bytes_are_kept(chunks in proptest::collection::vec(proptest::collection::vec((0usize..20_000, any::<bool>()), 0..5), 0..4)) {
            let chunks: Vec<Vec<u8>> = chunks
                .into_iter()
                .map(|runs| runs.into_iter().flat_map(|(length, newline)| {
                    let mut run = vec![b'x'; length];
                    run.extend(newline.then_some(b'\n'));
                    run
                }).collect())
                .collect();
            let mut whole: Vec<u8> = chunks.concat();
            let mut joined = Vec::new();
            for (full, text) in cut(&chunks) {
                prop_assert!(text.len() <= MAX_PIECE);
                joined.extend_from_slice(&text);
                if full { joined.push(b'\n'); }
            }
            // A last line without a newline gets one.
            if !whole.is_empty() && whole.last() != Some(&b'\n') && joined.last() == Some(&b'\n') { whole.push(b'\n'); }
            prop_assert_eq!(joined, whole);
        }
    }

    #[test]
    fn rotation_keeps_whole_lines_in_order_and_no_more_files_than_asked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/0.log");
        let settings = LogSettings {
            path: path.clone(),
            max_bytes: 400,
            max_files: 3,
        };
        let mut writer = LogWriter::open(settings).unwrap();
        for number in 0..100 {
            writer.add(
                Timestamp::UNIX_EPOCH,
                OutputStream::Stdout,
                true,
                format!("line {number}").as_bytes(),
            );
            if number % 7 == 0 {
                writer.flush();
            }
        }
        writer.flush();
        let names = file_names(&path, 3);
        let mut kept = Vec::new();
        for name in names.iter().rev() {
            let bytes = fs::read(name).unwrap();
            assert!(bytes.len() <= 400 && bytes.ends_with(b"\n"));
            for record in bytes.strip_suffix(b"\n").unwrap().split(|b| *b == b'\n') {
                kept.push(String::from_utf8(line::parse(record).unwrap().text.to_vec()).unwrap());
            }
        }
        let first = 100 - kept.len();
        let expected: Vec<String> = (first..100).map(|n| format!("line {n}")).collect();
        assert_eq!(kept, expected);
        assert!(kept.len() > 10);
        assert!(!file_names(&path, 4)[3].exists());
    }

    #[test]
    fn a_line_larger_than_a_file_is_still_written_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut writer = LogWriter::open(LogSettings {
            path: path.clone(),
            max_bytes: 10,
            max_files: 2,
        })
        .unwrap();
        writer.add(
            Timestamp::UNIX_EPOCH,
            OutputStream::Stdout,
            true,
            &[b'x'; 5000],
        );
        writer.add(Timestamp::UNIX_EPOCH, OutputStream::Stdout, true, b"next");
        writer.flush();
        assert!(fs::read(&file_names(&path, 2)[1]).unwrap().len() > 5000);
        assert!(fs::read(&path).unwrap().ends_with(b"next\n"));
    }
}
