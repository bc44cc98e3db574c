//! kube-apiserver's audit log, read as it grows: the author and the completion time of each write.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use jiff::Timestamp;
use serde_json::Value;

/// One write that the API server accepted.
pub(super) struct Entry {
    /// The time at which its answer was complete.
    pub(super) at: Timestamp,
    user: String,
    /// The resource, with its subresource: `pods/binding`.
    pub(super) what: String,
    /// The object's name.
    pub(super) name: String,
}

/// The writes that were accepted since the log was opened.
pub(super) struct Audit {
    log: File,
    /// Data that has not been parsed yet, up to an incomplete last line.
    rest: Vec<u8>,
    /// The number of lines so far.
    lines: usize,
    entries: Vec<Entry>,
}

impl Audit {
    /// Reads the log from its current end.
    pub(super) fn behind(path: &Path) -> Audit {
        let mut log = File::open(path).expect("the audit log is there");
        log.seek(SeekFrom::End(0)).expect("a file has an end");
        Audit {
            log,
            rest: Vec::new(),
            lines: 0,
            entries: Vec::new(),
        }
    }

    /// The number of writes, accepted or not. Cheap for the measured binder, unlike parsing each line.
    pub(super) fn tried(&mut self) -> usize {
        let before = self.rest.len();
        let read = self.log.read_to_end(&mut self.rest);
        read.expect("the audit log can be read");
        let new = self.rest[before..].iter().filter(|byte| **byte == b'\n');
        self.lines += new.count();
        self.lines
    }

    /// Reads the new lines.
    pub(super) fn read(&mut self) {
        self.tried();
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            return;
        };
        let lines = self.rest[..end].split(|byte| *byte == b'\n');
        let entries: Vec<Entry> = lines.filter_map(entry).collect();
        self.entries.extend(entries);
        self.rest.drain(..=end);
    }

    /// The writes of one user except leases, which are renewed by time as long as it runs.
    pub(super) fn by(&self, user: &str) -> impl Iterator<Item = &Entry> {
        (self.entries.iter()).filter(move |entry| entry.user == user && entry.what != "leases")
    }

    /// Every binding, by any author.
    pub(super) fn bindings(&self) -> impl Iterator<Item = &Entry> {
        (self.entries.iter()).filter(|entry| entry.what == "pods/binding")
    }
}

/// A line's write; none if it was refused, or is a review, which changes nothing.
fn entry(line: &[u8]) -> Option<Entry> {
    let line: Value = serde_json::from_slice(line).expect("the audit log has JSON in each line");
    let code = line["responseStatus"]["code"].as_u64()?;
    let text = |pointer: &str| {
        let found = line.pointer(pointer).and_then(Value::as_str);
        found.unwrap_or_default().to_owned()
    };
    let (resource, part) = (text("/objectRef/resource"), text("/objectRef/subresource"));
    if !(200..300).contains(&code) || resource.ends_with("reviews") {
        return None;
    }
    let what = match part.as_str() {
        "" => resource,
        part => format!("{resource}/{part}"),
    };
    Some(Entry {
        at: text("/stageTimestamp").parse().expect("a time"),
        user: text("/user/username"),
        what,
        name: text("/objectRef/name"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_who_wrote_what_and_what_was_refused_is_left_out() {
        let line = |code: u16| {
            format!(
                r#"{{"stageTimestamp":"2026-01-01T00:00:00.250000Z","user":{{"username":"u"}},
                "responseStatus":{{"code":{code}}},"objectRef":{{"resource":"pods","subresource":
                "binding","name":"p"}}}}"#
            )
        };
        let taken = entry(line(201).as_bytes()).expect("a write");
        assert_eq!(
            (
                taken.user.as_str(),
                taken.what.as_str(),
                taken.name.as_str()
            ),
            ("u", "pods/binding", "p")
        );
        assert_eq!(taken.at.to_string(), "2026-01-01T00:00:00.25Z");
        assert!(entry(line(409).as_bytes()).is_none());
    }
}
