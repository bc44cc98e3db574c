//! Numbered records that callers do not wait for: written in batches, read once at the start. A
//! power cut may lose the last batches. A ledger that cannot be read is renamed, and an empty one
//! is created.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::disk::{guarded, open_sled, private_directory};
use crate::error::LedgerError;
use crate::options::Options;

/// A record under its number; `None` deletes the record.
pub type RecordChange = (u64, Option<Vec<u8>>);

/// Records, each under its number.
pub type Records = Vec<(u64, Vec<u8>)>;

/// The longest record, in bytes: sled syncs only the values in its log, and 17 values of this size
/// stay there.
const RECORD_MAX: usize = 24 << 10;
/// The unit in which sled allocates and reclaims space, in bytes.
const SEGMENT_BYTES: usize = 2 << 20;
/// How often sled reclaims overwritten space.
const RECLAIM_EVERY_MS: u64 = 500;

/// The result of opening a ledger.
#[derive(Debug, Default)]
pub struct OpenedLedger {
    /// All records, by number.
    pub records: Records,
    /// The new path of an earlier ledger that could not be read, and the reason.
    pub put_aside: Option<(PathBuf, String)>,
}

/// The open ledger.
#[derive(Debug)]
pub struct Ledger {
    dir: PathBuf,
    sled: sled::Db,
    options: Options,
}

impl Ledger {
    /// Opens the ledger in a directory, or creates it there. A ledger that cannot be read is
    /// renamed to `DIRECTORY.damaged`, replacing an earlier directory of that name. The caller
    /// ensures that no other process has the directory open.
    ///
    /// # Errors
    /// If the directory cannot be used, or if the disk is too full.
    pub fn open(dir: &Path, options: Options) -> Result<(Ledger, OpenedLedger), LedgerError> {
        private_directory(dir).map_err(|error| failed(dir, &error))?;
        check_space(dir, &options)?;
        let ((sled, records), put_aside) = match open(dir, &options) {
            Ok(opened) => (opened, None),
            Err(sled::Error::Io(error)) if !is_of_contents(&error) => {
                return Err(failed(dir, &error));
            }
            Err(error) => {
                let aside = put_aside(dir).map_err(|error| failed(dir, &error))?;
                let opened = open(dir, &options).map_err(|error| failed(dir, &error))?;
                (opened, Some((aside, error.to_string())))
            }
        };
        let ledger = Ledger {
            dir: dir.to_owned(),
            sled,
            options,
        };
        Ok((ledger, OpenedLedger { records, put_aside }))
    }

    /// Writes and deletes records, all of them or none, and returns once the kernel has them.
    /// Blocks until then. A record of more than 24 KiB is deleted instead.
    ///
    /// # Errors
    /// [`LedgerError::NoSpace`] if the disk is too full: nothing was written, and the caller may
    /// retry. [`LedgerError::Failed`] if the disk failed: the ledger cannot be used any more.
    pub fn write(&self, changes: &[RecordChange]) -> Result<(), LedgerError> {
        check_space(&self.dir, &self.options)?;
        let mut batch = sled::Batch::default();
        for (number, record) in changes {
            let key = number.to_be_bytes();
            match record {
                Some(record) if record.len() <= RECORD_MAX => {
                    batch.insert(&key, record.as_slice());
                }
                _ => batch.remove(&key),
            }
        }
        let write = || {
            self.sled.apply_batch(batch)?;
            self.sled.flush()?;
            Ok(())
        };
        guarded(write).map_err(|error| failed(&self.dir, &error))
    }
}

fn open(dir: &Path, options: &Options) -> sled::Result<(sled::Db, Records)> {
    let config = sled::Config::new()
        .path(dir)
        .segment_size(SEGMENT_BYTES)
        .cache_capacity(options.cache_bytes)
        // Reclaims overwritten space too; each batch is flushed explicitly.
        .flush_every_ms(Some(RECLAIM_EVERY_MS));
    let sled = open_sled(&config)?;
    let mut records = Vec::new();
    let mut pairs = sled.iter();
    while let Some((key, record)) = guarded(|| pairs.next().transpose())? {
        let Ok(number) = <[u8; 8]>::try_from(&*key) else {
            return Err(sled::Error::Unsupported("a key is no number".to_owned()));
        };
        records.push((u64::from_be_bytes(number), record.to_vec()));
    }
    drop(pairs);
    Ok((sled, records))
}

/// Renames a ledger that cannot be read. Returns its new path.
fn put_aside(dir: &Path) -> io::Result<PathBuf> {
    let aside = dir.with_extension("damaged");
    if aside.exists() {
        fs::remove_dir_all(&aside)?;
    }
    fs::rename(dir, &aside)?;
    private_directory(dir)?;
    Ok(aside)
}

/// True if the error is about the content of a file. An unreachable disk says nothing about the
/// content.
fn is_of_contents(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData
    )
}

fn check_space(dir: &Path, options: &Options) -> Result<(), LedgerError> {
    let free = (options.free_bytes)(dir).map_err(|error| failed(dir, &error))?;
    let reserve = options.reserve_bytes;
    if free < reserve {
        return Err(LedgerError::NoSpace {
            free,
            reserve,
            path: dir.to_owned(),
        });
    }
    Ok(())
}

fn failed(dir: &Path, error: &dyn std::error::Error) -> LedgerError {
    LedgerError::Failed {
        path: dir.to_owned(),
        reason: error.to_string(),
    }
}
