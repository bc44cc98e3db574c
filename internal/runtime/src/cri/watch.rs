//! Noticing what becomes of containers, by asking, and keeping their logs within bounds: the
//! runtime writes the log but leaves rotating it to its client. Owns no state of its own.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::{CALL_LIMIT, ContainerEntry, CriState, api, convert};
use crate::error::RuntimeError;
use crate::logs::write::file_names;
use crate::spec::LogSettings;
use crate::state::{ContainerExit, ContainerState};

/// Between two rounds of asking.
const ROUND: Duration = Duration::from_secs(1);
/// Rounds between two looks at the logs' sizes.
const LOG_ROUNDS: u64 = 10;
/// Rounds between two lines in our own log while the runtime does not answer.
const COMPLAIN_ROUNDS: u64 = 60;

/// Asks until the last clone of the runtime is dropped.
pub fn start(shared: &Arc<CriState>) {
    let weak = Arc::downgrade(shared);
    tokio::spawn(async move {
        let mut failed = 0u64;
        for round in 1u64.. {
            tokio::time::sleep(ROUND).await;
            let Some(shared) = weak.upgrade() else { return };
            match shared.observe().await {
                Ok(()) => failed = 0,
                Err(error) => {
                    if failed.is_multiple_of(COMPLAIN_ROUNDS) {
                        tracing::warn!("{error}; asking again");
                    }
                    failed += 1;
                }
            }
            if round.is_multiple_of(LOG_ROUNDS) {
                shared.rotate_logs().await;
            }
        }
    });
}

impl CriState {
    /// Takes in the state of every container of this owner.
    pub(super) async fn observe(&self) -> Result<(), RuntimeError> {
        // What is made after this moment is not missed in the list below.
        let known: BTreeSet<String> = self
            .table()
            .values()
            .map(|entry| entry.cri_id.clone())
            .collect();
        let label_selector =
            HashMap::from([(convert::OWNER.to_string(), self.config.owner.clone())]);
        let filter = Some(api::ContainerFilter {
            label_selector,
            ..api::ContainerFilter::default()
        });
        let request = api::ListContainersRequest { filter };
        let listed = self
            .call(
                "list containers",
                CALL_LIMIT,
                self.runtime().list_containers(request),
            )
            .await?
            .containers;
        let present: BTreeSet<&str> = listed
            .iter()
            .map(|container| container.id.as_str())
            .collect();
        for container in &listed {
            if self.is_news(container) {
                self.inspect(&container.id).await?;
            }
        }
        let gone: Vec<_> = {
            let table = self.table();
            let missing = table.values().filter(|entry| {
                known.contains(&entry.cri_id) && !present.contains(entry.cri_id.as_str())
            });
            missing
                .map(|entry| (entry.status.id.clone(), started(entry)))
                .collect()
        };
        for (id, started_at) in gone {
            let exit = ContainerExit::unknown(
                "another client removed the container",
                started_at,
                Timestamp::now(),
            );
            self.settle(&id, ContainerState::Exited(exit));
        }
        Ok(())
    }

    /// Whether a listed container is in another state than the one known.
    fn is_news(&self, container: &api::Container) -> bool {
        let table = self.table();
        let entry = table.values().find(|entry| entry.cri_id == container.id);
        let state = container.state();
        match entry.map(|entry| &entry.status.state) {
            None => true,
            Some(ContainerState::Starting) => state != api::ContainerState::ContainerCreated,
            Some(ContainerState::Running { .. }) => state != api::ContainerState::ContainerRunning,
            Some(ContainerState::Exited(_)) => false,
        }
    }

    /// Takes in the state of one container.
    pub(super) async fn inspect(&self, cri_id: &str) -> Result<(), RuntimeError> {
        let request = api::ContainerStatusRequest {
            container_id: cri_id.into(),
            verbose: true,
        };
        let answer = self
            .call(
                "look at a container",
                CALL_LIMIT,
                self.runtime().container_status(request),
            )
            .await?;
        let Some(status) = answer
            .status
            .and_then(|found| convert::status(&found, &answer.info))
        else {
            return Ok(());
        };
        let (id, state) = (status.id.clone(), status.state.clone());
        let new = {
            let mut table = self.table();
            let new = !table.contains_key(&id);
            if new {
                let log = LogSettings::new(status.log_path.clone());
                table.insert(
                    id.clone(),
                    ContainerEntry {
                        cri_id: cri_id.into(),
                        status: status.clone(),
                        log,
                    },
                );
            }
            new
        };
        if new {
            let _ = self.changes.send(status);
        } else {
            self.settle(&id, state);
        }
        Ok(())
    }

    /// Rotates the logs that have grown too large. Until the runtime has opened the new file
    /// it goes on writing to the renamed one, and a reader reads that to its end first.
    async fn rotate_logs(&self) {
        let running: Vec<(String, LogSettings)> = {
            let table = self.table();
            let running = table.values().filter(|entry| entry.status.is_running());
            running
                .map(|entry| (entry.cri_id.clone(), entry.log.clone()))
                .collect()
        };
        for (container_id, log) in running {
            if fs::metadata(&log.path).map_or(0, |meta| meta.len()) < log.max_bytes {
                continue;
            }
            for pair in file_names(&log.path, log.max_files.max(2)).windows(2).rev() {
                let _ = fs::rename(&pair[0], &pair[1]);
            }
            let request = api::ReopenContainerLogRequest { container_id };
            if let Err(error) = self
                .call(
                    "reopen a log",
                    CALL_LIMIT,
                    self.runtime().reopen_container_log(request),
                )
                .await
            {
                tracing::warn!("{error}");
            }
        }
    }
}

fn started(entry: &ContainerEntry) -> Option<Timestamp> {
    match entry.status.state {
        ContainerState::Running { started_at, .. } => Some(started_at),
        _ => None,
    }
}
