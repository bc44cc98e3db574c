//! The data directory: who keeps what where, and with which permissions.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The files of one server or agent.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Opens the directory, creating it for its owner alone.
    pub fn open(root: &Path) -> Result<Layout> {
        let layout = Layout {
            root: std::path::absolute(root)?,
        };
        for directory in [&layout.root, &layout.server(), &layout.agent()] {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .with_context(|| {
                    format!(
                        "--data: the directory {} can't be made; choose one that this user may write",
                        directory.display()
                    )
                })?;
        }
        Ok(layout)
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The store's directory.
    pub fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    /// The directory of the decisions that are kept.
    pub fn decisions(&self) -> PathBuf {
        self.root.join("decisions")
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

    /// The first administrator's drawn password.
    pub fn first_password(&self) -> PathBuf {
        self.server().join("first-password")
    }

    /// The CA's certificate.
    pub fn authority(&self) -> PathBuf {
        self.server().join("ca.pem")
    }
}

/// Writes a file that only its owner may read, whole or not at all.
pub fn write_private(path: &Path, text: &str) -> Result<()> {
    let partial = path.with_extension("partial");
    let write = || -> std::io::Result<()> {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&partial)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    write().with_context(|| format!("{} can't be written", path.display()))
}
