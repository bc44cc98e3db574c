//! The kubeconfig that signing in and out change: the one that `--kubeconfig` names, else the one that kubectl would
//! change. It is replaced whole, readable by its owner only.

use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::arguments::Global;
use crate::failure;

/// The most bytes of a kubeconfig.
const BYTES_MAX: u64 = 4 * 1024 * 1024;

/// A kubeconfig as it was read.
pub struct KubeconfigFile {
    /// Its path.
    pub path: PathBuf,
    /// Its content; null if there is no such file.
    pub document: Value,
}

/// The files that kubectl would read, the first of which takes precedence.
fn kubectl_files() -> Result<Vec<PathBuf>> {
    if let Some(files) = std::env::var_os("KUBECONFIG") {
        let named = std::env::split_paths(&files).filter(|file| !file.as_os_str().is_empty());
        let named: Vec<PathBuf> = named.collect();
        if !named.is_empty() {
            return Ok(named);
        }
    }
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let Some(home) = home else {
        return Err(failure::usage(
            "there is no home directory (HOME): name a kubeconfig with --kubeconfig",
        ));
    };
    Ok(vec![PathBuf::from(home).join(".kube").join("config")])
}

/// As kubectl chooses the file of a new entry: the first one that exists.
fn chosen(mut files: Vec<PathBuf>) -> Option<PathBuf> {
    let there = files.iter().position(|file| file.exists());
    match (there, files.is_empty()) {
        (_, true) => None,
        (at, false) => Some(files.swap_remove(at.unwrap_or(0))),
    }
}

impl KubeconfigFile {
    /// The file to change.
    ///
    /// # Errors
    /// It is no kubeconfig, or cannot be read.
    pub fn for_login(global: &Global) -> Result<KubeconfigFile> {
        let files = match &global.kubeconfig {
            Some(file) => vec![file.clone()],
            None => kubectl_files()?,
        };
        let path = chosen(files).context("KUBECONFIG names no file")?;
        // The administrator's own, which the server writes.
        if path
            .file_name()
            .is_some_and(|name| name == "admin.kubeconfig")
        {
            return Err(failure::usage(format!(
                "{} is the server's own: name another file with --kubeconfig",
                path.display()
            )));
        }
        // A link stays a link.
        let path = path.canonicalize().unwrap_or(path);
        let document = read(&path)?;
        Ok(KubeconfigFile { path, document })
    }

    /// The directory to which relative names in it belong.
    pub fn directory(&self) -> &Path {
        let parent = self.path.parent();
        let parent = parent.filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new("."))
    }

    /// Reads the file again, changes it and replaces it, while no other client that respects kubectl's lock does.
    ///
    /// # Errors
    /// Another client holds the lock, or the file cannot be read or written.
    pub fn replace<T>(&self, change: impl FnOnce(&mut Value) -> Result<T>) -> Result<T> {
        let directory = self.directory();
        if !directory.is_dir() {
            let made = std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory);
            made.with_context(|| format!("{} cannot be made", directory.display()))?;
        }
        let _lock = FileLock::take(&self.path)?;
        let mut document = read(&self.path)?;
        let changed = change(&mut document)
            .with_context(|| format!("{} is left as it is", self.path.display()))?;
        let text = serde_norway::to_string(&document)?;
        durable::replace(&self.path, text.as_bytes())?;
        Ok(changed)
    }
}

fn read(path: &Path) -> Result<Value> {
    let unread = || format!("the kubeconfig {} cannot be read", path.display());
    let found = match std::fs::metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Value::Null),
        Err(error) => return Err(error).with_context(unread),
    };
    check(path, &found)?;
    let text = std::fs::read_to_string(path).with_context(unread)?;
    serde_norway::from_str(&text).with_context(unread)
}

fn check(path: &Path, found: &Metadata) -> Result<()> {
    if !found.is_file() || found.len() > BYTES_MAX {
        bail!(
            "{} is no kubeconfig: it is no file, or larger than 4 MiB",
            path.display()
        );
    }
    Ok(())
}

/// The lock that kubectl takes too while it changes a kubeconfig: a file beside it.
struct FileLock(PathBuf);

impl FileLock {
    fn take(path: &Path) -> Result<FileLock> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let lock = PathBuf::from(name);
        match File::options().write(true).create_new(true).open(&lock) {
            Ok(_) => Ok(FileLock(lock)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!(
                "another client changes {} at this moment; if none does, remove {}",
                path.display(),
                lock.display()
            ),
            Err(error) => Err(error).with_context(|| format!("{} cannot be made", lock.display())),
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    fn global(file: &Path) -> Global {
        Global {
            data: None,
            kubeconfig: Some(file.to_owned()),
            namespace: None,
        }
    }

    #[test]
    fn a_file_is_replaced_for_its_owner_only_and_a_link_stays() {
        let here = tempfile::tempdir().unwrap();
        let real = here.path().join("real");
        std::fs::write(&real, "current-context: a\n").unwrap();
        std::fs::set_permissions(&real, PermissionsExt::from_mode(0o644)).unwrap();
        let link = here.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let file = KubeconfigFile::for_login(&global(&link)).unwrap();
        assert_eq!(file.document, json!({"current-context": "a"}));
        let set = |document: &mut Value| {
            document["current-context"] = json!("b");
            Ok(7)
        };
        assert_eq!(file.replace(set).unwrap(), 7);
        assert!(link.is_symlink());
        let found = std::fs::metadata(&real).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&real).unwrap(), json!({"current-context": "b"}));
    }

    #[test]
    fn a_new_file_and_its_directory_are_made_and_a_lock_is_respected() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join(".kube/config");
        let file = KubeconfigFile::for_login(&global(&path)).unwrap();
        assert_eq!(file.document, Value::Null);
        let set = |document: &mut Value| {
            *document = json!({"kind": "Config"});
            Ok(())
        };
        file.replace(set).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        let lock = here.path().join(".kube/config.lock");
        assert!(!lock.exists());
        std::fs::write(&lock, "").unwrap();
        let error = file.replace(set).unwrap_err().to_string();
        assert!(error.contains("config.lock") && lock.exists(), "{error}");
    }

    #[test]
    fn a_failed_change_and_a_damaged_file_leave_the_file() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("config");
        std::fs::write(&path, "kind: Config\n").unwrap();
        let file = KubeconfigFile::for_login(&global(&path)).unwrap();
        let failed = file.replace::<()>(|_| bail!("no"));
        assert!(failed.is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kind: Config\n");
        std::fs::write(&path, "a: [").unwrap();
        assert!(KubeconfigFile::for_login(&global(&path)).is_err());
        assert!(KubeconfigFile::for_login(&global(here.path())).is_err());
        let own = here.path().join("admin.kubeconfig");
        assert!(KubeconfigFile::for_login(&global(&own)).is_err());
    }

    #[test]
    fn the_first_file_that_exists_is_chosen() {
        let here = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| here.path().join(name));
        let both = || vec![a.clone(), b.clone()];
        assert_eq!(chosen(both()), Some(a.clone()));
        std::fs::write(&b, "").unwrap();
        assert_eq!(chosen(both()), Some(b.clone()));
        std::fs::write(&a, "").unwrap();
        assert_eq!(chosen(both()), Some(a.clone()));
        assert_eq!(chosen(Vec::new()), None);
    }
}
