//! Reads and replaces the files that `muster setup` writes.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The mode of a new file without secrets.
const MODE: u32 = 0o644;

/// A file's text; empty if the file does not exist.
///
/// # Errors
/// The file exists and can't be read.
pub fn text_of(path: &Path) -> Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        text => text.with_context(|| format!("{} cannot be read", path.display())),
    }
}

/// Replaces a file durably, and makes its directory. A private file is readable by its owner only; another one keeps
/// its mode.
///
/// # Errors
/// The file or its directory can't be written.
pub fn replace(path: &Path, text: &str, private: bool) -> Result<()> {
    // A link stays a link: what it points to is replaced.
    let target: PathBuf = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut mode = fs::metadata(&target).map_or(MODE, |meta| meta.permissions().mode() & 0o777);
    if private {
        mode &= durable::PRIVATE;
    }
    if let Some(directory) = target.parent() {
        fs::create_dir_all(directory)
            .with_context(|| format!("{} cannot be made", directory.display()))?;
    }
    durable::replace_with_mode(&target, text.as_bytes(), mode)
        .with_context(|| format!("{} cannot be written", path.display()))
}
