//! Owns the version of a store: the format that was written, the oldest format whose binaries may
//! still read it, and the version of muster that last wrote it. Decides whether this binary may open
//! the store and which steps bring it up to date; changes no record.
//!
//! Problem: a new version must be able to go back to the version before. Method: an upgrade has two
//! halves. When a newer binary opens the store, its migration steps make changes that binaries of
//! the older format still read; `readable_from` stays. `Store::finalize` raises `readable_from` to
//! the newest format, after which older binaries refuse the store; records that they could not read
//! may be written only then (`Store::writes_format`).
//!
//! Example: a binary of format 2 opens a store of format 1. Then `format` is 2 and `readable_from`
//! is 1: a binary of format 1 still opens it. After finalization both are 2.
//!
//! Two files have it. `format` names `readable_from`, in the form that binaries of format 1 compare
//! with their own format. `version` has the rest; a store without it was written by a binary that
//! did not know it. While an upgrade is not finalized, every start runs its steps again, because an
//! older binary may have written records in between; the steps change nothing that is up to date.
//! Cost: one pass over the objects for each step.

use std::fs;
use std::io;
use std::path::Path;

use bytes::Bytes;

use crate::entry::{Entry, EntryMeta, Revision};
use crate::error::{OpenError, damaged, io_error};

const FORMAT_NAME: &str = "muster-store";
const FORMAT_FILE: &str = "format";
const VERSION_FILE: &str = "version";
const VERSION_NAME: &str = "muster-store-version";

/// The writer of a store or backup that does not name it.
const UNRECORDED: &str = "0.1.0-dev";
/// The longest version of muster that is recorded, in bytes.
const WRITER_MAX: usize = 64;

/// The version of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreVersion {
    /// The format whose migration steps ran over the store.
    pub format: u32,
    /// The oldest format whose binaries may read the store.
    pub readable_from: u32,
    /// The version of muster that last opened the store.
    pub written_by: String,
}

/// The result of a migration step for one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// The object is up to date.
    Keep,
    /// The object's new state.
    Put(EntryMeta, Bytes),
    /// The object is no longer needed.
    Delete,
}

/// One step from a format to the next one. It is pure, and it changes nothing that is up to date.
/// Binaries of the format before read its results.
#[derive(Clone, Copy, Debug)]
pub struct MigrationStep {
    /// Returns what becomes of an object; the revision is that of the new state.
    pub rewrite: fn(&Entry, Revision) -> Rewrite,
}

/// The formats that a binary knows.
#[derive(Clone, Copy, Debug)]
pub struct Formats {
    /// The newest format, which the binary writes.
    pub newest: u32,
    /// The steps to the newest format, the last one last. Stores that are older than the first step
    /// are refused.
    pub steps: &'static [MigrationStep],
    /// The version of muster.
    pub product: &'static str,
}

/// Whether a binary may open a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FormatVerdict {
    Opens,
    TooNew,
    TooOld { oldest: u32 },
}

impl Formats {
    /// The formats of this binary. A release that changes what is stored raises `newest` and adds
    /// one step.
    pub const CURRENT: Formats = Formats {
        newest: 1,
        steps: &[],
        product: env!("CARGO_PKG_VERSION"),
    };

    /// The oldest format that the steps bring up to date.
    fn oldest(&self) -> u32 {
        let steps = u32::try_from(self.steps.len()).unwrap_or(u32::MAX);
        self.newest.saturating_sub(steps)
    }

    /// The version of a store that this binary creates, or whose upgrade it finalizes.
    pub(crate) fn of_new_store(&self) -> StoreVersion {
        StoreVersion {
            format: self.newest,
            readable_from: self.newest,
            written_by: self.product.to_owned(),
        }
    }

    /// The version of a store after this binary has brought it up to date.
    pub(crate) fn after(&self, found: &StoreVersion) -> StoreVersion {
        StoreVersion {
            readable_from: found.readable_from,
            ..self.of_new_store()
        }
    }

    pub(crate) fn judge(&self, found: &StoreVersion) -> FormatVerdict {
        let oldest = self.oldest();
        if found.readable_from > self.newest {
            FormatVerdict::TooNew
        } else if found.readable_from < oldest {
            FormatVerdict::TooOld { oldest }
        } else {
            FormatVerdict::Opens
        }
    }

    /// The steps to run over a store that may be opened.
    pub(crate) fn steps_for(&self, found: &StoreVersion) -> &'static [MigrationStep] {
        let done = found.readable_from.saturating_sub(self.oldest()) as usize;
        self.steps.get(done..).unwrap_or_default()
    }
}

impl StoreVersion {
    /// The version of a store or backup that does not record it.
    pub(crate) fn unrecorded() -> StoreVersion {
        StoreVersion {
            format: 1,
            readable_from: 1,
            written_by: UNRECORDED.to_owned(),
        }
    }

    /// The version as text.
    pub(crate) fn text(&self) -> String {
        format!(
            "{VERSION_NAME}\nformat {}\nreadable-from {}\nwritten-by {}\n",
            self.format, self.readable_from, self.written_by
        )
    }

    /// Reads what [`StoreVersion::text`] wrote. Lines of later versions are ignored.
    pub(crate) fn parse(bytes: &[u8]) -> Option<StoreVersion> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.lines();
        if lines.next() != Some(VERSION_NAME) {
            return None;
        }
        let (mut format, mut readable_from, mut written_by) = (None, None, None);
        for line in lines {
            match line.split_once(' ') {
                Some(("format", number)) => format = number.parse().ok(),
                Some(("readable-from", number)) => readable_from = number.parse().ok(),
                Some(("written-by", writer)) => written_by = Some(writer),
                _ => {}
            }
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "-+._".contains(c);
        let written_by = written_by.filter(|writer| {
            (1..=WRITER_MAX).contains(&writer.len()) && writer.chars().all(plain)
        })?;
        Some(StoreVersion {
            format: format.filter(|format: &u32| *format > 0)?,
            readable_from: readable_from.filter(|format: &u32| *format > 0)?,
            written_by: written_by.to_owned(),
        })
    }
}

/// True if the directory names a format.
pub(crate) fn exists(dir: &Path) -> bool {
    dir.join(FORMAT_FILE).exists()
}

/// The version of the store in a directory; none if there is no store.
pub(crate) fn read(dir: &Path) -> Result<Option<StoreVersion>, OpenError> {
    let text = match fs::read_to_string(dir.join(FORMAT_FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(damaged(dir, "its `format` file is not text"));
        }
        Err(error) => return Err(io_error(dir)(error)),
    };
    let readable_from = text
        .trim_end()
        .strip_prefix(FORMAT_NAME)
        .and_then(|rest| rest.strip_prefix(' '))
        .and_then(|number| number.parse::<u32>().ok())
        .filter(|number| *number > 0)
        .ok_or_else(|| damaged(dir, "its `format` file does not name a format"))?;
    let recorded = match fs::read(dir.join(VERSION_FILE)) {
        Ok(bytes) => StoreVersion::parse(&bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(io_error(dir)(error)),
    };
    // A `version` file that cannot be read is like none: the steps run again and change nothing.
    let recorded = recorded.unwrap_or_else(|| StoreVersion {
        format: readable_from,
        ..StoreVersion::unrecorded()
    });
    Ok(Some(StoreVersion {
        // `format` is written first when an upgrade is finalized, and `version` first otherwise.
        readable_from: readable_from.max(recorded.readable_from),
        ..recorded
    }))
}

/// Records a version. The `format` file is the last one: a store is complete once it is there.
pub(crate) fn write(dir: &Path, version: &StoreVersion) -> Result<(), durable::Error> {
    durable::replace(&dir.join(VERSION_FILE), version.text().as_bytes())?;
    write_format(dir, version)
}

/// Records a version that older binaries may not read. The `format` file is the first one: they look
/// at no other.
pub(crate) fn finalize(dir: &Path, version: &StoreVersion) -> Result<(), durable::Error> {
    write_format(dir, version)?;
    durable::replace(&dir.join(VERSION_FILE), version.text().as_bytes())
}

fn write_format(dir: &Path, version: &StoreVersion) -> Result<(), durable::Error> {
    let text = format!("{FORMAT_NAME} {}\n", version.readable_from);
    durable::replace(&dir.join(FORMAT_FILE), text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: MigrationStep = MigrationStep {
        rewrite: |_, _| Rewrite::Keep,
    };

    fn formats(newest: u32, steps: &'static [MigrationStep]) -> Formats {
        Formats {
            newest,
            steps,
            product: "9.9.9",
        }
    }

    fn version(format: u32, readable_from: u32) -> StoreVersion {
        StoreVersion {
            format,
            readable_from,
            written_by: "0.1.0".to_owned(),
        }
    }

    #[test]
    fn a_binary_opens_what_it_reads_and_runs_the_steps_that_are_not_final() {
        let three = formats(3, &[KEEP, KEEP]);
        for (format, readable_from, verdict, steps) in [
            (1, 1, FormatVerdict::Opens, 2),
            (2, 2, FormatVerdict::Opens, 1),
            // An upgrade that is not finalized: its steps run again.
            (3, 2, FormatVerdict::Opens, 1),
            (3, 3, FormatVerdict::Opens, 0),
            // A newer binary's upgrade that is not finalized either.
            (4, 3, FormatVerdict::Opens, 0),
            (4, 4, FormatVerdict::TooNew, 0),
        ] {
            let found = version(format, readable_from);
            assert_eq!(three.judge(&found), verdict, "{found:?}");
            assert_eq!(three.steps_for(&found).len(), steps, "{found:?}");
        }
        let late = formats(3, &[KEEP]);
        let refused = FormatVerdict::TooOld { oldest: 2 };
        assert_eq!(late.judge(&version(1, 1)), refused);
        assert_eq!(late.judge(&version(2, 2)), FormatVerdict::Opens);
    }

    #[test]
    fn the_version_reads_back_and_a_damaged_one_counts_as_not_recorded() {
        let written = version(3, 2);
        assert_eq!(
            StoreVersion::parse(written.text().as_bytes()),
            Some(written.clone())
        );
        let later = format!("{}checksum of-a-later-version\n", written.text());
        assert_eq!(StoreVersion::parse(later.as_bytes()), Some(written));
        for bad in [
            "",
            "muster-store-version\n",
            "muster-store-version\nformat 0\nreadable-from 1\nwritten-by x\n",
            "muster-store-version\nformat 1\nreadable-from 1\nwritten-by ../x\n",
            "other\nformat 1\nreadable-from 1\nwritten-by x\n",
        ] {
            assert_eq!(StoreVersion::parse(bad.as_bytes()), None, "{bad:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &version(2, 1)).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(version(2, 1)));
        fs::write(dir.path().join(VERSION_FILE), "half").unwrap();
        let read = read(dir.path()).unwrap();
        assert_eq!(read, Some(StoreVersion::unrecorded()));
    }

    #[test]
    fn a_power_cut_within_a_finalization_leaves_a_store_that_older_binaries_refuse() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &version(2, 1)).unwrap();
        write_format(dir.path(), &version(2, 2)).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(version(2, 2)));
    }
}
