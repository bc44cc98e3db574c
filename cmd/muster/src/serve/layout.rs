//! The data directory: the owner, the path and the permissions of each file.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The files of one server or agent.
#[derive(Clone, Debug)]
pub struct FileLayout {
    root: PathBuf,
}

impl FileLayout {
    /// The paths below a root; creates nothing.
    pub fn of(root: &Path) -> Result<FileLayout> {
        let root = std::path::absolute(root)?;
        Ok(FileLayout { root })
    }

    /// Opens the directory and creates it if needed, accessible to its owner only. Existing files
    /// that others could read become private.
    pub fn open(root: &Path) -> Result<FileLayout> {
        let layout = FileLayout::of(root)?;
        for directory in [&layout.root, &layout.server(), &layout.agent()] {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .with_context(|| {
                    format!(
                        "--data: the directory {} cannot be created; choose one that this user may write",
                        directory.display()
                    )
                })?;
        }
        tighten(&layout.root);
        tighten(&layout.agent());
        let ours = [
            layout.server(),
            layout.store(),
            layout.decisions(),
            layout.usage(),
            layout.history(),
            layout.snapshots(),
            layout.backups(),
        ];
        for directory in &ours {
            tighten_all(directory, DEPTH_MAX);
        }
        for path in entries(&layout.root) {
            // Among the directories, the agent's has its own rules: pods' users read parts of it.
            if fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file()) {
                tighten(&path);
            }
        }
        Ok(layout)
    }

    /// Removes what killed writes left among the server's files. Only the holder of the store's lock calls this: the
    /// files of a server that runs are its own.
    pub fn sweep_server(&self) {
        if let Err(error) = durable::sweep(&self.server()) {
            tracing::warn!(%error, "temporary files of an earlier server are left over");
        }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The alerts and the notices that wait to be delivered.
    pub fn alerts(&self) -> PathBuf {
        self.server().join("alerts.json")
    }

    /// The store's directory.
    pub fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    /// The directory of the snapshots that are taken before upgrades.
    pub fn snapshots(&self) -> PathBuf {
        self.root.join("snapshots")
    }

    /// The directory of the backups that the server takes by itself, unless an option names another one.
    pub fn backups(&self) -> PathBuf {
        self.root.join("backups")
    }

    /// The file with the progress of an upgrade of the agents. Not among the server's files: a backup
    /// has nothing to do with it.
    pub fn rollout(&self) -> PathBuf {
        self.root.join("agents-upgrade.json")
    }

    /// The directory of the stored usage.
    pub fn usage(&self) -> PathBuf {
        self.root.join("usage")
    }

    /// The directory of what was measured over time.
    pub fn history(&self) -> PathBuf {
        self.root.join("history")
    }

    /// The directory of the stored decisions.
    pub fn decisions(&self) -> PathBuf {
        self.root.join("decisions")
    }

    /// The audit log's directory.
    pub fn audit(&self) -> PathBuf {
        self.root.join("audit")
    }

    /// The server's keys and files.
    pub fn server(&self) -> PathBuf {
        self.root.join("server")
    }

    /// The agent's directory.
    pub fn agent(&self) -> PathBuf {
        self.root.join("agent")
    }

    /// The administrator's kubeconfig.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.server().join("admin.kubeconfig")
    }

    /// The file with the first administrator's generated password.
    pub fn first_password(&self) -> PathBuf {
        self.server().join("first-password")
    }

    /// The account and the certificate of an ACME server.
    pub fn acme(&self) -> PathBuf {
        self.server().join("acme")
    }

    /// The CA's certificate.
    pub fn authority(&self) -> PathBuf {
        self.server().join("ca.pem")
    }
}

/// The deepest level of Muster's files below the directories of the data directory.
const DEPTH_MAX: usize = 8;

/// Removes the permissions of other users on a file or directory and logs that. If the kernel
/// refuses, the server goes on: the permissions are no worse than before.
fn tighten(path: &Path) {
    let Ok(meta) = fs::symlink_metadata(path) else {
        return;
    };
    let mode = meta.permissions().mode() & 0o7777;
    if meta.is_symlink() || mode & 0o077 == 0 {
        return;
    }
    let private = mode & !0o077;
    match fs::set_permissions(path, fs::Permissions::from_mode(private)) {
        Ok(()) => tracing::warn!(
            path = %path.display(),
            "other users could read the file (mode {mode:o}); its mode is now {private:o}"
        ),
        Err(error) => tracing::error!(
            path = %path.display(),
            %error,
            "other users can read the file (mode {mode:o}), and the mode cannot be changed"
        ),
    }
}

/// Like `tighten`, for all files below a directory; follows no links.
fn tighten_all(path: &Path, depth: usize) {
    tighten(path);
    let is_directory = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir());
    if is_directory && depth > 0 {
        for entry in entries(path) {
            tighten_all(&entry, depth - 1);
        }
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries.flatten().map(|entry| entry.path()).collect()
}

/// Writes a file that only its owner may read; returns once it is on disk.
pub fn write_private(path: &Path, text: &str) -> Result<()> {
    durable::replace(path, text.as_bytes())
        .with_context(|| format!("{} cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn what_others_could_read_is_the_owners_alone_after_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("data");
        fs::create_dir_all(root.join("store/sled")).unwrap();
        fs::create_dir_all(root.join("server")).unwrap();
        fs::create_dir_all(root.join("agent/pods")).unwrap();
        let files = ["muster.log", "store/sled/db", "server/ca.key"];
        for file in files {
            fs::write(root.join(file), "secret").unwrap();
            fs::set_permissions(root.join(file), fs::Permissions::from_mode(0o644)).unwrap();
        }
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, "").unwrap();
        fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(&elsewhere, root.join("store/link")).unwrap();
        FileLayout::open(&root).unwrap();
        for file in files {
            assert_eq!(mode(&root.join(file)), 0o600, "{file}");
        }
        for directory in ["", "store", "store/sled", "server", "agent"] {
            assert_eq!(mode(&root.join(directory)), 0o700, "{directory:?}");
        }
        assert_eq!(mode(&elsewhere), 0o644, "it is not ours");
    }

    #[test]
    fn a_private_file_is_private_whatever_lay_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("first-password");
        for leftover in [path.clone(), path.with_extension("partial")] {
            fs::write(&leftover, "old").unwrap();
            fs::set_permissions(&leftover, fs::Permissions::from_mode(0o666)).unwrap();
        }
        write_private(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(mode(&path), 0o600);
    }
}
