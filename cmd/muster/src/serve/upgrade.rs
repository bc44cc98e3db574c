//! Upgrades of the server: opens the store with a snapshot before another version's store is changed,
//! and connects the portal with what store and fleet do about upgrades.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result};
use cli::{CommandOutcome, Global};
use fleet::{Fleet, RolloutError, RolloutOptions};
use portal::{UpgradeBackend, UpgradeRefusal};
use resources::release::Release;
use resources::upgrade::{SnapshotStatus, StoreStatus, UpgradeStatus, left_behind};
use store::{Options, Snapshot, SnapshotOptions, Store, StoreVersion};

use super::layout::FileLayout;
use super::{backup, data};

/// The version of this binary.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The most agents that a refusal names.
const NAMED_MAX: usize = 10;

/// Opens the server's store and brings it up to date.
pub async fn open_store(layout: &FileLayout) -> Result<Store> {
    let (directory, server) = (layout.store(), layout.server());
    let files =
        move || backup::files(&server).map_err(|error| io::Error::other(format!("{error:#}")));
    let options = Options {
        snapshot: SnapshotOptions {
            directory: Some(layout.snapshots()),
            files: Some(Arc::new(files)),
        },
        ..Options::default()
    };
    Ok(tokio::task::spawn_blocking(move || Store::open(&directory, options)).await??)
}

fn store_status(store: &Store) -> StoreStatus {
    let version = store.version();
    StoreStatus {
        format: version.format,
        readable_from: version.readable_from,
        finalized: store.is_finalized(),
    }
}

fn failed(error: impl std::fmt::Display) -> UpgradeRefusal {
    UpgradeRefusal::Failed(error.to_string())
}

async fn status(
    fleet: &Fleet,
    store: &Store,
    snapshots: PathBuf,
) -> Result<UpgradeStatus, UpgradeRefusal> {
    let found = tokio::task::spawn_blocking(move || store::snapshots(&snapshots));
    let found = found.await.map_err(failed)?.map_err(failed)?;
    let snapshots = found.into_iter().map(|snapshot| {
        let taken = snapshot
            .taken
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        SnapshotStatus {
            path: snapshot.path.display().to_string(),
            bytes: snapshot.bytes,
            taken: i64::try_from(taken.as_secs()).unwrap_or(i64::MAX),
            from: snapshot.from,
            to: snapshot.to,
        }
    });
    Ok(UpgradeStatus {
        server: VERSION.to_owned(),
        store: store_status(store),
        agents: fleet.agents().await.map_err(failed)?,
        snapshots: snapshots.collect(),
        rollout: fleet.rollout(),
    })
}

async fn finalize(fleet: &Fleet, store: Store) -> Result<StoreStatus, UpgradeRefusal> {
    let version: Release = VERSION.parse().map_err(failed)?;
    let agents = fleet.agents().await.map_err(failed)?;
    let behind = left_behind(version, &agents);
    if !behind.is_empty() {
        let count = behind.len();
        let named: Vec<String> = behind.into_iter().take(NAMED_MAX).collect();
        return Err(UpgradeRefusal::Conflict(format!(
            "{count} nodes would be left behind, since no older server could take them back: {}; upgrade or remove them, \
             then finalize",
            named.join("; ")
        )));
    }
    let finalized = tokio::task::spawn_blocking(move || {
        store.finalize()?;
        Ok::<_, store::FinalizeError>(store_status(&store))
    });
    let finalized = finalized.await.map_err(failed)?.map_err(failed)?;
    tracing::info!(
        format = finalized.format,
        "the upgrade is final: a muster of an older format cannot read the store any more"
    );
    Ok(finalized)
}

/// Prints the snapshots and the commands that go back to the version before.
pub fn rollback(global: &Global) -> Result<CommandOutcome> {
    let layout = FileLayout::of(&data(global))?;
    let version = Store::version_in(&layout.store())?;
    let found = store::snapshots(&layout.snapshots())
        .with_context(|| format!("{} can't be read", layout.snapshots().display()))?;
    print!("{}", way_back(&layout, version.as_ref(), &found));
    Ok(if found.is_empty() {
        CommandOutcome::No
    } else {
        CommandOutcome::Yes
    })
}

/// The snapshots and the commands in words.
fn way_back(layout: &FileLayout, version: Option<&StoreVersion>, found: &[Snapshot]) -> String {
    let Some(last) = found.first() else {
        return format!(
            "there is no snapshot in {}: the server takes one when it first opens the store of another version; a \
             backup (`muster backup`) is restored with `muster restore`\n",
            layout.snapshots().display()
        );
    };
    let mut out = String::new();
    for snapshot in found {
        out.push_str(&format!(
            "{}: the store of muster {}, before muster {} changed it\n",
            snapshot.path.display(),
            snapshot.from,
            snapshot.to
        ));
    }
    if let Some(version) = version.filter(|version| version.format > version.readable_from) {
        out.push_str(&format!(
            "\nThe upgrade is not finalized. A muster of store format {} opens the store as it is, with all changes since: \
             stop the server, install that version, start the server.\n",
            version.readable_from
        ));
    }
    let (root, store) = (layout.root().display(), layout.store());
    let (from, to, path) = (&last.from, &last.to, last.path.display());
    out.push_str(&format!(
        "\nTo go back to the newest snapshot, without the changes since (agents and pods run on):\n  \
         systemctl stop muster-server\n  \
         # install muster {from}: its package, or its binary in place of this one\n  \
         mv {store} {store}.of-{to}\n  \
         muster --data {root} restore {path}\n  \
         systemctl start muster-server\n",
        store = store.display(),
    ));
    out
}

/// What the portal asks about upgrades.
pub fn backend(fleet: &Arc<Fleet>, store: &Store, layout: &FileLayout) -> UpgradeBackend {
    let (observed, own, snapshots) = (fleet.clone(), store.clone(), layout.snapshots());
    let (checked, finalized) = (fleet.clone(), store.clone());
    let (begun, stopped) = (fleet.clone(), fleet.clone());
    UpgradeBackend {
        status: Box::new(move || {
            let (fleet, store, snapshots) = (observed.clone(), own.clone(), snapshots.clone());
            Box::pin(async move { status(&fleet, &store, snapshots).await })
        }),
        finalize: Box::new(move || {
            let (fleet, store) = (checked.clone(), finalized.clone());
            Box::pin(async move { finalize(&fleet, store).await })
        }),
        roll_out: Box::new(move |request| {
            let fleet = begun.clone();
            Box::pin(async move {
                let options = RolloutOptions {
                    max_unavailable: request.max_unavailable,
                    binary: request.binary,
                };
                fleet.roll_out(options).await.map_err(|error| match error {
                    RolloutError::Record(_) => failed(error),
                    _ => UpgradeRefusal::Conflict(error.to_string()),
                })
            })
        }),
        stop: Box::new(move || {
            let fleet = stopped.clone();
            Box::pin(async move { fleet.stop_rollout().map_err(failed) })
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn the_way_back_names_the_newest_snapshot_and_the_commands() {
        let layout = FileLayout::of(Path::new("/d")).unwrap();
        let text = way_back(&layout, None, &[]);
        assert!(text.contains("no snapshot in /d/snapshots"), "{text}");
        let snapshot = |from: &str, to: &str| Snapshot {
            path: format!("/d/snapshots/{from}-to-{to}-revision-7.backup").into(),
            bytes: 1,
            taken: SystemTime::UNIX_EPOCH,
            from: from.to_owned(),
            to: to.to_owned(),
        };
        let found = [snapshot("0.2.0", "0.3.0"), snapshot("0.1.0", "0.2.0")];
        let mut version = StoreVersion {
            format: 3,
            readable_from: 2,
            written_by: "0.3.0".to_owned(),
        };
        let text = way_back(&layout, Some(&version), &found);
        assert!(
            text.contains("A muster of store format 2 opens the store"),
            "{text}"
        );
        for line in [
            "  # install muster 0.2.0: its package, or its binary in place of this one",
            "  mv /d/store /d/store.of-0.3.0",
            "  muster --data /d restore /d/snapshots/0.2.0-to-0.3.0-revision-7.backup",
        ] {
            assert!(text.lines().any(|other| other == line), "{text}");
        }
        version.readable_from = 3;
        assert!(!way_back(&layout, Some(&version), &found).contains("not finalized"));
    }
}
