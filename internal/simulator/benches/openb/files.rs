//! Finds and reads the files of the openb benchmark, packed (`.gz`, by the `gzip` program) or not.

use std::path::{Path, PathBuf};
use std::process::Command;

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

/// Where placements are written unless another folder is named.
#[allow(dead_code, reason = "tests share this file and write none")]
pub fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/openb")
}

/// The text of `name` in `dir`, or of `name.gz`.
pub fn text(dir: &Path, name: &str) -> Result<String, String> {
    let plain = dir.join(name);
    if plain.is_file() {
        return std::fs::read_to_string(&plain).map_err(|e| format!("{}: {e}", plain.display()));
    }
    let packed = dir.join(format!("{name}.gz"));
    if !packed.is_file() {
        return Err(format!("neither {} nor {0}.gz is there", plain.display()));
    }
    let out = Command::new("gzip").arg("-dc").arg(&packed).output();
    let out = out.map_err(|e| format!("gzip, to unpack {}: {e}", packed.display()))?;
    if !out.status.success() {
        let why = String::from_utf8_lossy(&out.stderr);
        return Err(format!("{}: {}", packed.display(), why.trim()));
    }
    String::from_utf8(out.stdout).map_err(|e| format!("{}: {e}", packed.display()))
}

/// The first of these names that is in `dir`, packed or not, with its text.
pub fn first(dir: &Path, names: &[String]) -> Result<(String, String), String> {
    let there =
        |name: &&String| dir.join(name).is_file() || dir.join(format!("{name}.gz")).is_file();
    let name = names.iter().find(there);
    let name = name.ok_or_else(|| format!("{} has none of {}", dir.display(), names.join(", ")))?;
    Ok((name.clone(), text(dir, name)?))
}
