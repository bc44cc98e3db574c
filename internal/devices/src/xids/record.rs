//! The file of GPUs that are withheld because of an XID: a restarted agent must not allocate a GPU
//! that the previous agent withheld. Entries from before the last boot are ignored, because a boot
//! resets every GPU.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The kernel's id of the current boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Why a GPU is withheld.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithheldReason {
    /// The XID for which the GPU is withheld.
    pub xid: u64,
    /// Whether the GPU has disappeared since.
    pub gone: bool,
}

#[derive(Serialize, Deserialize)]
struct WithheldFile {
    boot: String,
    out: BTreeMap<String, WithheldReason>,
}

/// The state file.
#[derive(Debug)]
pub struct XidRecord {
    path: Option<PathBuf>,
    boot: String,
    /// Whether the failure to write the file was logged.
    logged: bool,
}

impl XidRecord {
    /// Opens the file and returns its entries by GPU. A file that cannot be parsed has no entries.
    pub fn open(path: Option<PathBuf>) -> (XidRecord, BTreeMap<String, WithheldReason>) {
        let boot = std::fs::read_to_string(BOOT).unwrap_or_default();
        let boot = boot.trim().to_owned();
        let text = path.as_ref().and_then(|path| std::fs::read(path).ok());
        let file = text.and_then(|text| serde_json::from_slice::<WithheldFile>(&text).ok());
        let out = file.filter(|file| file.boot == boot).map(|file| file.out);
        let keep = XidRecord {
            path,
            boot,
            logged: false,
        };
        (keep, out.unwrap_or_default())
    }

    /// Writes the GPUs that are withheld now.
    pub fn write(&mut self, out: BTreeMap<String, WithheldReason>) {
        let Some(path) = &self.path else { return };
        let boot = self.boot.clone();
        if let Err(error) = replace(path, &WithheldFile { boot, out })
            && !self.logged
        {
            self.logged = true;
            let path = path.display();
            tracing::warn!(
                "{path}: {error}: a restarted agent will not know which GPUs are withheld"
            );
        }
    }
}

fn replace(path: &Path, file: &WithheldFile) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    durable::replace(path, &serde_json::to_vec(file)?)?;
    Ok(())
}
