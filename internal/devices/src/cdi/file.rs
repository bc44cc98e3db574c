//! Writes a kind's file atomically, and removes it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::CdiSpec;

/// Container runtimes may run as another user.
const READABLE_BY_ALL: u32 = 0o644;

/// The file of a kind: `muster.io-gpu.json`. If a kind has several files, each has a suffix:
/// `muster.io-gpu_MARK.json`.
pub fn path(directory: &Path, kind: &str, mark: Option<&str>) -> PathBuf {
    let kind = kind.replace('/', "-");
    let mark = mark.map(|mark| format!("_{mark}")).unwrap_or_default();
    directory.join(format!("{kind}{mark}.json"))
}

/// Writes a kind's file atomically, readable by all. Runtimes that read meanwhile see the previous
/// file.
///
/// # Errors
///
/// The operating system's error, with the directory or the file.
pub fn write(path: &Path, spec: &CdiSpec) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    // Runtimes read only files that end in json or yaml, so not the temporary one. The file is on
    // disk before a device is allocated: a partition's spec says that this driver created it.
    durable::replace_with_mode(path, &serde_json::to_vec_pretty(spec)?, READABLE_BY_ALL)?;
    Ok(())
}

/// Removes a kind's file, if it exists.
///
/// # Errors
///
/// The operating system's error.
pub fn remove(path: &Path) -> io::Result<()> {
    durable::remove(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_whole_renewed_and_taken_away() {
        let root = tempfile::tempdir().expect("a directory");
        let directory = root.path().join("run/cdi");
        let at = path(&directory, "muster.io/gpu", None);
        assert_eq!(at, directory.join("muster.io-gpu.json"));
        let marked = path(&directory, "muster.io/claim", Some("u-1"));
        assert_eq!(marked, directory.join("muster.io-claim_u-1.json"));
        remove(&at).expect("there is none");
        let mut spec = CdiSpec {
            kind: "muster.io/gpu".into(),
            ..CdiSpec::default()
        };
        for kind in ["muster.io/gpu", "muster.io/other"] {
            spec.kind = kind.into();
            write(&at, &spec).expect("it is written");
            let text = fs::read_to_string(&at).expect("it is there");
            assert!(text.contains(kind), "{text}");
        }
        let names: Vec<_> = fs::read_dir(&directory).expect("it is there").collect();
        assert_eq!(names.len(), 1, "nothing is left over");
        remove(&at).expect("it can be taken away");
        assert!(!at.exists());
        fs::write(directory.join("file"), "").expect("it is written");
        let below = path(&directory.join("file"), "muster.io/gpu", None);
        assert!(write(&below, &spec).is_err());
    }
}
