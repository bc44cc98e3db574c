//! Checks the log: every line's number and hash, over all retained files. Reads only.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use super::chain::{self, ChainHead};
use super::log::{self, AuditError, LONGEST_LINE};

/// The maximum number of reported problems; further ones are counted.
const PROBLEMS_MAX: usize = 100;
/// How often the log is read again after a concurrent rotation.
const TRIES: u32 = 5;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainVerdict {
    /// Files read.
    pub files: usize,
    /// Lines read.
    pub events: u64,
    /// The number of the first retained line; higher than 1 after rotation removed older files.
    pub first: u64,
    /// The number of the last line.
    pub last: u64,
    /// The hash of the last line, to be compared with a copy stored elsewhere.
    pub head: String,
    /// The number of events that the log reports as lost.
    pub lost: u64,
    /// The problems, at most [`PROBLEMS_MAX`].
    pub problems: Vec<String>,
    /// The number of further problems.
    pub more: u64,
}

impl ChainVerdict {
    /// True if the log has no problems.
    #[must_use]
    pub fn sound(&self) -> bool {
        self.problems.is_empty()
    }

    fn notify(&mut self, problem: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        } else {
            self.more += 1;
        }
    }
}

/// Checks the log in a directory. The server may write it meanwhile.
///
/// # Errors
/// If the directory or a file in it cannot be read.
pub fn verify(directory: &Path) -> Result<ChainVerdict, AuditError> {
    let failed = |error| AuditError::new("read", directory, error);
    let mut tries = 1;
    loop {
        let before = log::closed_files(directory).map_err(failed)?;
        let verdict = verify_files(directory);
        // A rotation moves lines from a file that was not read yet to one that was already read.
        let rotated = log::closed_files(directory).map_err(failed)? != before;
        if !rotated || tries == TRIES {
            return verdict;
        }
        tries += 1;
    }
}

fn verify_files(directory: &Path) -> Result<ChainVerdict, AuditError> {
    let failed = |error| AuditError::new("read", directory, error);
    // Read before the files: the log may only grow meanwhile.
    let kept = log::read_head(directory).map_err(failed)?;
    let mut files = log::closed_files(directory).map_err(failed)?;
    files.push(directory.join(log::CURRENT));
    let mut verdict = ChainVerdict::default();
    let mut end: Option<ChainHead> = None;
    let mut head_seen = false;
    for path in &files {
        let file = match File::open(path) {
            // A server that ended in the middle of a rotation leaves closed files only.
            Err(error) if error.kind() == io::ErrorKind::NotFound && files.len() > 1 => continue,
            opened => opened.map_err(|error| AuditError::new("read", path, error))?,
        };
        verdict.files += 1;
        let mut reader = BufReader::new(file);
        let mut number = 0u64;
        while let Some(line) = next_line(&mut reader).map_err(failed)? {
            number += 1;
            let place = || {
                format!(
                    "{} line {number}",
                    path.file_name().unwrap_or_default().to_string_lossy()
                )
            };
            verdict.events += 1;
            let hash = chain::hash(&line);
            let Some((sequence, previous)) = ChainHead::named_by(&line) else {
                verdict.notify(format!(
                    "{}: is not an event of Muster's audit log; it was changed or inserted",
                    place()
                ));
                continue;
            };
            match &end {
                None => verdict.first = sequence,
                Some(end) if sequence != end.sequence + 1 => verdict.notify(format!(
                    "{}: event {sequence} follows event {}; the events between them were removed",
                    place(),
                    end.sequence
                )),
                Some(end) if previous != end.hash => verdict.notify(format!(
                    "{}: event {} differs from the event that event {sequence} names; it was changed",
                    place(),
                    end.sequence
                )),
                Some(_) => {}
            }
            if sequence == 1 && previous != chain::FIRST {
                verdict.notify(format!("{}: event 1 names an event before it", place()));
            }
            verdict.lost = verdict.lost.saturating_add(lost(&line));
            if kept.as_ref().is_some_and(|kept| kept.sequence == sequence) {
                head_seen = true;
                if kept.as_ref().is_some_and(|kept| kept.hash != hash) {
                    verdict.notify(format!(
                        "{}: event {sequence} is not the one that was synced; it was changed",
                        place()
                    ));
                }
            }
            end = Some(ChainHead { sequence, hash });
        }
    }
    if let Some(end) = end {
        (verdict.last, verdict.head) = (end.sequence, end.hash);
    }
    if let Some(kept) = kept
        && !head_seen
    {
        verdict.notify(format!(
            "event {} was synced but is missing; the log's end, {}, was cut off",
            kept.sequence, verdict.last
        ));
    }
    Ok(verdict)
}

fn lost(line: &[u8]) -> u64 {
    let event: Option<resources::audit::AuditEvent> = serde_json::from_slice(line).ok();
    let lost = event.and_then(|event| event.annotations.get(chain::LOST)?.parse().ok());
    lost.unwrap_or_default()
}

/// The next complete line without its line feed; an incomplete one at the end is still being
/// written.
fn next_line(reader: &mut BufReader<File>) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader
        .by_ref()
        .take(LONGEST_LINE)
        .read_until(b'\n', &mut line)?;
    Ok((line.pop() == Some(b'\n')).then_some(line))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

#[cfg(test)]
#[path = "fuzz_tests.rs"]
mod fuzz_tests;
