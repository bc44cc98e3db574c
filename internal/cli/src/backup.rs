//! `muster backup`.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::connection::ServerConnection;
use super::connection::absolute;
use super::outcome::CommandOutcome;
use super::output;

/// The minimum length of a passphrase, in characters.
const SHORTEST: usize = 8;
/// The maximum length, in bytes.
const LONGEST: usize = 1024;

/// The option with the file of a backup's passphrase.
pub const PASSPHRASE_FILE: &str = "--passphrase-file";

/// Reads a passphrase: the first line of the file that an option names.
pub fn passphrase(option: &str, file: &Path) -> Result<String> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("{option}: {} cannot be read", file.display()))?;
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() < SHORTEST || line.len() > LONGEST {
        bail!(
            "{option}: the first line of {} has {} characters; use {SHORTEST} to {LONGEST}",
            file.display(),
            line.chars().count()
        );
    }
    Ok(line.to_owned())
}

/// Asks the server to write a backup to its own disk.
pub async fn backup(
    connection: &ServerConnection,
    file: &Path,
    passphrase_file: Option<&Path>,
) -> Result<CommandOutcome> {
    let passphrase = passphrase_file
        .map(|file| passphrase(PASSPHRASE_FILE, file))
        .transpose()?;
    let path = absolute(file);
    connection
        .call(
            "POST",
            "/api/v1/backups",
            &json!({"path": path, "passphrase": passphrase}),
        )
        .await?;
    output::put_line(&format!("backup written to {}", path.display()))?;
    if passphrase.is_none() {
        output::tell(
            "warning: it is not encrypted, and holds every Secret and the server's private keys; keep it as safe as \
             these, or give --passphrase-file",
        )?;
    }
    Ok(CommandOutcome::Yes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passphrase_is_a_files_first_line_within_its_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passphrase");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            passphrase(PASSPHRASE_FILE, &file)
        };
        assert_eq!(read("12345678\nmore\n").unwrap(), "12345678");
        assert!(read("1234567\n").is_err());
        assert!(read("").is_err());
        assert!(read(&"x".repeat(LONGEST)).is_ok());
        assert!(read(&"x".repeat(LONGEST + 1)).is_err());
        assert!(passphrase(PASSPHRASE_FILE, &dir.path().join("none")).is_err());
    }
}
