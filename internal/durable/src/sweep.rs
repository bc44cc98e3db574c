//! Removes the temporary files of killed writes: regular files named as this crate names them,
//! whose writer has ended. It touches no other file and does not descend into subdirectories.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::{fs, io};

use crate::replace::{DurableStep, Error, WRITES, at};

/// Removes from a directory the temporary files of killed writes, and returns their number. The
/// directory's owner calls it when it starts. A directory that does not exist has none.
///
/// A file stays if its writer may still be running: if a process with the number in its name
/// exists, or if this process gave out the name itself.
///
/// # Errors
/// The step that failed, with its path.
pub fn sweep(directory: &Path) -> Result<usize, Error> {
    let names = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        names => names.map_err(at(DurableStep::List, directory))?,
    };
    let mut removed = 0;
    for entry in names {
        let entry = entry.map_err(at(DurableStep::List, directory))?;
        let name = entry.file_name();
        let Some(writer) = name.to_str().and_then(TemporaryName::of) else {
            continue;
        };
        if !entry.file_type().is_ok_and(|kind| kind.is_file()) || !writer.is_gone() {
            continue;
        }
        let path = entry.path();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(at(DurableStep::Remove, &path)(error));
            }
            _ => removed += 1,
        }
    }
    Ok(removed)
}

/// The parts of a temporary file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TemporaryName {
    process: u32,
    number: u64,
}

impl TemporaryName {
    /// Parses a temporary file's name; none for every other name.
    fn of(name: &str) -> Option<TemporaryName> {
        let (file, mark) = name
            .strip_prefix('.')?
            .strip_suffix(".new")?
            .rsplit_once('.')?;
        let (process, number) = mark.split_once('-')?;
        let writer = TemporaryName {
            process: process.parse().ok()?,
            number: number.parse().ok()?,
        };
        // Accepts only the written form: no sign, no leading zero.
        let same = format!("{}-{}", writer.process, writer.number) == mark;
        (same && !file.is_empty()).then_some(writer)
    }

    /// True if the write cannot be in progress any more.
    fn is_gone(self) -> bool {
        if self.process != std::process::id() {
            return !Path::new("/proc").join(self.process.to_string()).exists();
        }
        // An earlier process had the same number, as the first process of a container always does.
        // Numbers that this process has not given out belong to the earlier process, and are no
        // longer in use.
        let next = self.number.saturating_add(1);
        WRITES.fetch_max(next, Ordering::Relaxed) <= self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_temporary_files_are_read() {
        let writer = |process, number| Some(TemporaryName { process, number });
        for (name, expected) in [
            (".format.12-0.new", writer(12, 0)),
            (".a.b.json.4194304-18.new", writer(4_194_304, 18)),
            ("..x.1-2.new", writer(1, 2)),
            ("format", None),
            (".format.new", None),
            ("format.12-0.new", None),
            (".format.12-0.new.bak", None),
            (".format.12.new", None),
            (".format.12-.new", None),
            (".format.-1-0.new", None),
            (".format.+1-0.new", None),
            (".format.01-0.new", None),
            (".format.99999999999-0.new", None),
            (".1-0.new", None),
            ("..1-0.new", None),
            (".new", None),
            ("", None),
        ] {
            assert_eq!(TemporaryName::of(name), expected, "{name}");
        }
    }
}
