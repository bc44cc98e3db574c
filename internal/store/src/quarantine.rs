//! Owns the quarantine: records that were found damaged, each in a separate file next to the store,
//! with its key and the reason. It does not decide which records are damaged, and the store never
//! reads an object from here.
//!
//! A file has lines of text (`muster-quarantine 1`, `key`, `reason`, `revision`), an empty line and
//! the record's raw bytes. Records may contain Secrets: only their owner may read them. While a key
//! is quarantined and no object has replaced it, reads of the key fail: after a "not found" the
//! garbage collector would delete the objects that the lost object owns. A new object under the key
//! releases it, and the file is kept under the ending `.released`.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::entry::Revision;

/// The directory's name in the store's directory.
pub(crate) const DIRECTORY: &str = "quarantine";
/// The maximum number of records in the quarantine. A store with more damage is refused.
pub(crate) const RECORDS_MAX: usize = 1000;
/// The maximum length of the text before a record, in bytes.
const TEXT_MAX: u64 = 64 << 10;
const FIRST_LINE: &str = "muster-quarantine 1";
const HELD: &str = "held";
const RELEASED: &str = "released";

/// A record in the quarantine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// The object's key.
    pub key: String,
    /// The reason why the record is damaged.
    pub reason: String,
    /// The revision in the damaged record, which may be wrong too.
    pub revision: Option<Revision>,
    /// The path of the file.
    pub file: PathBuf,
}

/// Stores a record. The name follows from key and content, so that a repeated call has no effect.
pub(crate) fn keep(
    dir: &Path,
    key: &str,
    reason: &str,
    revision: Option<Revision>,
    raw: &[u8],
) -> io::Result<Quarantined> {
    let directory = dir.join(DIRECTORY);
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)?;
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key.as_bytes());
    hasher.update(raw);
    let name = format!("{:08x}-{}.{HELD}", hasher.finalize(), raw.len());
    let file = directory.join(name);
    let number = revision.map_or_else(|| "unknown".to_owned(), |revision| revision.to_string());
    let key = escaped(key);
    let text = format!("{FIRST_LINE}\nkey {key}\nreason {reason}\nrevision {number}\n\n");
    let mut content = text.into_bytes();
    content.extend_from_slice(raw);
    durable::replace(&file, &content)?;
    durable::sync_directory(dir)?;
    Ok(Quarantined {
        key,
        reason: reason.to_owned(),
        revision,
        file,
    })
}

/// A key in one line. Keys of objects have no control characters and stay unchanged, because they
/// are compared with the store's keys.
fn escaped(key: &str) -> String {
    if key.chars().any(char::is_control) {
        key.escape_debug().to_string()
    } else {
        key.to_owned()
    }
}

/// The records whose keys are quarantined, in the order of their keys. A file that cannot be parsed
/// is logged and skipped.
pub(crate) fn held(dir: &Path) -> io::Result<Vec<Quarantined>> {
    let entries = match fs::read_dir(dir.join(DIRECTORY)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let file = entry?.path();
        if file.extension().is_none_or(|ending| ending != HELD) {
            continue;
        }
        match read(&file) {
            Ok(record) => found.push(record),
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "the store cannot read a quarantined record and leaves it alone");
            }
        }
    }
    found.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(found)
}

fn read(file: &Path) -> io::Result<Quarantined> {
    let text = BufReader::new(fs::File::open(file)?.take(TEXT_MAX));
    let mut lines = text.split(b'\n');
    let mut next = |name: &str| -> io::Result<String> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, format!("it has no {name}"));
        let line = lines.next().ok_or_else(wrong)??;
        let line = String::from_utf8(line).map_err(|_| wrong())?;
        match line.strip_prefix(name) {
            Some(rest) => Ok(rest.trim_start().to_owned()),
            None => Err(wrong()),
        }
    };
    next(FIRST_LINE)?;
    Ok(Quarantined {
        key: next("key ")?,
        reason: next("reason ")?,
        revision: next("revision ")?.parse().ok().map(Revision::new),
        file: file.to_owned(),
    })
}

/// Releases a key after a new object replaced the damaged one. The record is kept.
pub(crate) fn release(file: &Path) -> io::Result<()> {
    fs::rename(file, file.with_extension(RELEASED))?;
    durable::sync_directory(file.parent().unwrap_or(Path::new(".")))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_record_is_kept_privately_listed_and_released() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(held(dir.path()).unwrap(), []);
        let seven = Some(Revision::new(7));
        let kept = keep(
            dir.path(),
            "/a/b",
            "its checksum is wrong",
            seven,
            b"\n\nraw",
        )
        .unwrap();
        let again = keep(
            dir.path(),
            "/a/b",
            "its checksum is wrong",
            seven,
            b"\n\nraw",
        )
        .unwrap();
        assert_eq!(kept, again);
        keep(dir.path(), "/a/a", "it is cut short", None, b"").unwrap();
        let found = held(dir.path()).unwrap();
        let keys: Vec<&str> = found.iter().map(|record| record.key.as_str()).collect();
        assert_eq!(keys, ["/a/a", "/a/b"]);
        assert_eq!(found[1], kept);
        assert_eq!(found[0].revision, None);
        let mode = fs::metadata(&kept.file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(fs::read(&kept.file).unwrap().ends_with(b"\n\nraw"));
        release(&kept.file).unwrap();
        assert_eq!(held(dir.path()).unwrap().len(), 1);
        // Names of roles may have such characters.
        let quoted = r#"/a/o'neil "x"\y"#;
        keep(dir.path(), quoted, "it is cut short", None, b"").unwrap();
        let found = held(dir.path()).unwrap();
        assert!(found.iter().any(|record| record.key == quoted), "{found:?}");
        let lines = keep(dir.path(), "/a\nkey /b", "it is cut short", None, b"").unwrap();
        assert_eq!(lines.key, r"/a\nkey /b");
        for file in [quoted, "/a\nkey /b"] {
            let record = keep(dir.path(), file, "it is cut short", None, b"").unwrap();
            release(&record.file).unwrap();
        }
        let other = dir.path().join(DIRECTORY).join("x.held");
        fs::write(&other, "something else").unwrap();
        assert_eq!(held(dir.path()).unwrap().len(), 1);
    }
}
