//! Which GPUs are out, on disk: an agent that starts anew must not give out what the one before
//! took out. What was kept before the machine was restarted counts no more, as every GPU was reset
//! then.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The kernel's name for the time since the machine was started.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Why a GPU is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The XID that took it out.
    pub xid: u64,
    /// Whether it has been gone since.
    pub gone: bool,
}

#[derive(Serialize, Deserialize)]
struct File {
    boot: String,
    out: BTreeMap<String, Kept>,
}

/// The file.
#[derive(Debug)]
pub struct Keep {
    path: Option<PathBuf>,
    boot: String,
    /// Whether it was said that it can't be written.
    said: bool,
}

impl Keep {
    /// Opens it, with what it says by GPU. One that can't be understood says nothing.
    pub fn open(path: Option<PathBuf>) -> (Keep, BTreeMap<String, Kept>) {
        let boot = std::fs::read_to_string(BOOT).unwrap_or_default();
        let boot = boot.trim().to_owned();
        let text = path.as_ref().and_then(|path| std::fs::read(path).ok());
        let file = text.and_then(|text| serde_json::from_slice::<File>(&text).ok());
        let out = file.filter(|file| file.boot == boot).map(|file| file.out);
        let keep = Keep {
            path,
            boot,
            said: false,
        };
        (keep, out.unwrap_or_default())
    }

    /// Writes who is out now.
    pub fn write(&mut self, out: BTreeMap<String, Kept>) {
        let Some(path) = &self.path else { return };
        let boot = self.boot.clone();
        if let Err(error) = replace(path, &File { boot, out })
            && !self.said
        {
            self.said = true;
            let path = path.display();
            tracing::warn!(
                "{path}: {error}: an agent that starts anew won't know which GPUs are out"
            );
        }
    }
}

fn replace(path: &Path, file: &File) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    durable::replace(path, &serde_json::to_vec(file)?)?;
    Ok(())
}
