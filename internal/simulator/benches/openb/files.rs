//! Finds and reads the files of the openb benchmark, packed (`.gz`, by the `gzip` program) or not.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Why a file of the benchmark can't be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file, or the program that unpacks it, fails.
    #[error("{what}: {error}")]
    Io {
        /// The file, and what was done with it.
        what: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// There is no such file, packed or not.
    #[error("neither {0} nor {0}.gz is there")]
    Missing(String),
    /// The file can't be unpacked.
    #[error("{path}: {reason}")]
    Packed {
        /// The file.
        path: String,
        /// The error output of `gzip`.
        reason: String,
    },
    /// The folder has no file of these names.
    #[error("{dir} has none of {names}")]
    NoneOf {
        /// The folder.
        dir: String,
        /// The names.
        names: String,
    },
}

/// Where the benchmark's data is: `OPENB`, or `shared/openb` beside the workspace or above it.
/// None if there is no such folder.
pub fn folder() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("OPENB") {
        return Some(named.into()).filter(|dir: &PathBuf| dir.is_dir());
    }
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    ["../../shared/openb", "../../../shared/openb"]
        .into_iter()
        .map(|from| crate_dir.join(from))
        .find(|dir| dir.is_dir())
}

/// The text of `name` in `dir`, or of `name.gz`.
pub fn text(dir: &Path, name: &str) -> Result<String, FileError> {
    let plain = dir.join(name);
    if plain.is_file() {
        return std::fs::read_to_string(&plain).map_err(|error| {
            let what = plain.display().to_string();
            FileError::Io { what, error }
        });
    }
    let packed = dir.join(format!("{name}.gz"));
    if !packed.is_file() {
        return Err(FileError::Missing(plain.display().to_string()));
    }
    let out = Command::new("gzip").arg("-dc").arg(&packed).output();
    let out = out.map_err(|error| {
        let what = format!("gzip, to unpack {}", packed.display());
        FileError::Io { what, error }
    })?;
    let refused = |reason: &str| FileError::Packed {
        path: packed.display().to_string(),
        reason: reason.to_owned(),
    };
    if !out.status.success() {
        let why = String::from_utf8_lossy(&out.stderr);
        return Err(refused(why.trim()));
    }
    String::from_utf8(out.stdout).map_err(|error| refused(&error.to_string()))
}

/// The first of these names that is in `dir`, packed or not, with its text.
pub fn first(dir: &Path, names: &[String]) -> Result<(String, String), FileError> {
    let there =
        |name: &&String| dir.join(name).is_file() || dir.join(format!("{name}.gz")).is_file();
    let name = names.iter().find(there);
    let name = name.ok_or_else(|| FileError::NoneOf {
        dir: dir.display().to_string(),
        names: names.join(", "),
    })?;
    Ok((name.clone(), text(dir, name)?))
}
