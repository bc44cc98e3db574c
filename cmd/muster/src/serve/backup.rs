//! Selects the server's files for a backup, restores them together with the store, and checks a
//! store that no server has open. The store crate owns the formats.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cli::{CommandOutcome, Global, PASSPHRASE_FILE};
use store::{Backup, BackupFile, OpenError, Options, Store};

use super::data;
use super::layout::FileLayout;
use super::process;

/// Extensions of the files that a server needs on another machine: keys, certificates and
/// settings. Files that each start creates again (the administrator's kubeconfig) are left out.
const KEPT: [&str; 5] = ["json", "key", "pem", "toml", "yaml"];
/// The largest such file, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Prefix of the authority's file names: a restore never replaces these files.
const AUTHORITY: &str = "ca.";

/// The files of a server's directory that go into a backup, by name.
///
/// # Errors
/// A file cannot be read, or is larger than `FILE_MAX`.
pub fn files(server: &Path) -> Result<Vec<BackupFile>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(server).with_context(|| server.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        let metadata = path
            .symlink_metadata()
            .with_context(|| path.display().to_string())?;
        if !metadata.is_file() || !ending.is_some_and(|ending| KEPT.contains(&ending)) {
            continue;
        }
        if metadata.len() > FILE_MAX {
            bail!(
                "{} has {} bytes, and a backup takes files of up to {FILE_MAX}; move it out of the server's directory",
                path.display(),
                metadata.len()
            );
        }
        let content = fs::read(&path).with_context(|| path.display().to_string())?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        found.push(BackupFile {
            name: name.into_owned(),
            content,
        });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Restores files over the existing ones. If another authority's files exist, nothing is written:
/// nodes may trust that authority.
fn put_back(server: &Path, files: &[BackupFile]) -> Result<()> {
    for file in files.iter().filter(|file| file.name.starts_with(AUTHORITY)) {
        let path = server.join(&file.name);
        match fs::read(&path) {
            Ok(there) if there != file.content => bail!(
                "{} exists and differs from the backup's file; move it aside, or restore into another --data directory",
                path.display()
            ),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| path.display().to_string());
            }
            _ => {}
        }
    }
    for file in files {
        durable::replace(&server.join(&file.name), &file.content)?;
    }
    Ok(())
}

/// Restores a backup's store and keys into an empty data directory.
pub async fn restore(
    global: Global,
    file: PathBuf,
    passphrase_file: Option<PathBuf>,
) -> Result<CommandOutcome> {
    process::keep_files_private();
    let passphrase = passphrase_file.as_deref();
    let passphrase = passphrase
        .map(|file| cli::passphrase(PASSPHRASE_FILE, file))
        .transpose()?;
    let layout = FileLayout::open(&data(&global))?;
    let (to, server) = (layout.store(), layout.server());
    let restore = move || -> Result<usize> {
        let backup = Backup::open(&file, passphrase.as_deref())?;
        Backup::check_target(&to)?;
        put_back(&server, backup.files())?;
        backup.restore(&to, Options::default())?;
        Ok(backup.files().len())
    };
    let files = tokio::task::spawn_blocking(restore).await??;
    println!(
        "restored into {}, with {files} files of keys and settings; start the server with --data {}",
        layout.store().display(),
        layout.root().display()
    );
    Ok(CommandOutcome::Yes)
}

/// Prints what a store holds and which records are damaged. Answers no if any record is damaged.
pub async fn check_store(global: Global) -> Result<CommandOutcome> {
    let directory = data(&global).join("store");
    let of = directory.clone();
    let check = move || Store::check(&of, Options::default());
    let report = match tokio::task::spawn_blocking(check).await? {
        Err(error @ OpenError::Held { .. }) => {
            bail!("{error}; a store can be checked while no server uses it")
        }
        checked => checked?,
    };
    println!(
        "{}: {} objects, revision {}, watches resume from revision {}",
        directory.display(),
        report.objects,
        report.revision,
        report.history_from.get().saturating_sub(1)
    );
    for found in &report.findings {
        println!("damaged: {}: {}: {}", found.key, found.reason, found.effect);
    }
    for record in &report.quarantined {
        println!(
            "lost: {}: {}; its record is kept in {}",
            record.key,
            record.reason,
            record.file.display()
        );
    }
    if report.findings.is_empty() && report.quarantined.is_empty() {
        println!("nothing is damaged");
        return Ok(CommandOutcome::Yes);
    }
    Ok(CommandOutcome::No)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_settings_are_taken_and_come_back_and_no_other_key_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        fs::create_dir_all(old.join("a.key")).unwrap();
        fs::create_dir_all(&new).unwrap();
        for name in ["ca.pem", "ca.key", "admin.kubeconfig", "first-password"] {
            fs::write(old.join(name), name).unwrap();
        }
        fs::write(old.join(".ca.key.1-2.new"), "half").unwrap();
        let taken = files(&old).unwrap();
        let names: Vec<&str> = taken.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["ca.key", "ca.pem"]);
        put_back(&new, &taken).unwrap();
        assert!(files(&new).unwrap() == taken);
        put_back(&new, &taken).unwrap();
        fs::write(new.join("server.key"), "renewed since").unwrap();
        let mut more = taken.clone();
        more.push(BackupFile {
            name: "server.key".to_owned(),
            content: b"older".to_vec(),
        });
        put_back(&new, &more).unwrap();
        assert_eq!(fs::read(new.join("server.key")).unwrap(), b"older");
        fs::write(new.join("ca.pem"), "another's").unwrap();
        fs::remove_file(new.join("ca.key")).unwrap();
        let refused = put_back(&new, &taken).unwrap_err().to_string();
        assert!(refused.contains("ca.pem exists"), "{refused}");
        assert!(!new.join("ca.key").exists(), "nothing was written");
    }

    #[test]
    fn a_file_that_is_no_key_by_its_size_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("big.json");
        for (size, fits) in [(FILE_MAX, true), (FILE_MAX + 1, false)] {
            let file = fs::File::create(&path).unwrap();
            file.set_len(size).unwrap();
            assert_eq!(files(dir.path()).is_ok(), fits, "{size}");
        }
    }
}
