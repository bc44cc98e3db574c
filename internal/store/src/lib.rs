//! The embedded engine's state: every resource as bytes under its key, one revision for
//! each change, a bounded history that watches resume from, all of it on disk before a
//! write is acknowledged.
//!
//! It also contains a [`Ledger`]: numbered records, of which a power cut may lose the last ones.
//!
//! This is the only crate that uses sled. It knows nothing of Kubernetes: it receives keys, bytes
//! and the few strings that selectors use.

mod backup;
mod backup_file;
mod codec;
mod commit;
mod disk;
mod entry;
mod error;
mod layout;
mod ledger;
mod load;
mod memory;
mod options;
mod quarantine;
mod sealed;
mod sizes;
mod space;
mod store;
mod topic;
mod upgrade;
mod version;
mod watch;

pub use backup::{Backup, BackupOptions, BackupSummary};
pub use backup_file::{BackupFile, SnapshotFiles};
pub use commit::{Purpose, TransactionView};
pub use entry::{Entry, EntryMeta, Event, EventKind, ListPage, Revision};
pub use error::{
    BackupError, CommitError, FinalizeError, LedgerError, OpenError, SnapshotError, StoreError,
    WatchError,
};
pub use ledger::{Ledger, OpenedLedger, RecordChange, Records};
pub use load::{DamageEffect, DamagedRecord};
pub use options::{FreeBytes, Options, SnapshotOptions};
pub use quarantine::Quarantined;
pub use store::{CheckReport, Store};
pub use upgrade::{SNAPSHOTS_MAX, Snapshot, snapshots};
pub use version::{Formats, MigrationStep, Rewrite, StoreVersion};
pub use watch::Watch;
