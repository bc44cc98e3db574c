//! The containers' directories and the table of what is known of them: making, reading back,
//! looking again, removing. Owns the order in which disk and table change.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::{ProcessEntry, ProcessState, ProcessTable, watch};
use crate::error::RuntimeError;
use crate::spec::{ContainerId, ContainerSpec};
use crate::state::{ContainerState, ContainerStatus, SPEC_FILE, load, load_state, save};

impl ProcessState {
    pub(super) fn table(&self) -> MutexGuard<'_, ProcessTable> {
        // A panic while holding it left no half-made change: each is one insertion.
        self.table
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(super) fn dir(&self, id: &ContainerId) -> PathBuf {
        self.config.root.join(id.as_str())
    }

    /// Puts a new container's directory on disk; its number in the table.
    pub(super) fn prepare(&self, spec: ContainerSpec) -> Result<u64, RuntimeError> {
        let (id, dir) = (spec.id.clone(), self.dir(&spec.id));
        fs::create_dir(&dir).map_err(|e| match e.kind() {
            std::io::ErrorKind::AlreadyExists => RuntimeError::Exists(id.clone()),
            _ => RuntimeError::io("make", &dir)(e),
        })?;
        let status = ContainerStatus::of(&spec, None);
        let number = {
            let mut table = self.table();
            table.made += 1;
            let number = table.made;
            let spec = Arc::new(spec.clone());
            let entry = ProcessEntry {
                number,
                starting: true,
                spec,
                status,
            };
            table.known.insert(id.clone(), entry);
            number
        };
        let made = self
            .watcher
            .add(&dir, &id)
            .and_then(|()| save(&dir, SPEC_FILE, &spec));
        if made.is_err() {
            self.forget(&id);
        }
        made.map(|()| number)
    }

    /// The shim of the container made as `number` has spoken, or is gone: from now on its
    /// silence means something.
    pub(super) fn started(&self, id: &ContainerId, number: u64) {
        if let Some(entry) = self.table().known.get_mut(id)
            && entry.number == number
        {
            entry.starting = false;
        }
    }

    /// Undoes [`ProcessState::prepare`] for a container that has no shim.
    pub(super) fn forget(&self, id: &ContainerId) {
        self.table().known.remove(id);
        self.watcher.remove(id);
        let _ = fs::remove_dir_all(self.dir(id));
    }

    pub(super) fn recover(&self) -> Result<Vec<ContainerStatus>, RuntimeError> {
        let root = &self.config.root;
        let list = fs::read_dir(root).map_err(RuntimeError::io("read", root))?;
        let mut found = Vec::new();
        for entry in list.flatten() {
            let Some(id) = entry
                .file_name()
                .to_str()
                .and_then(|name| ContainerId::new(name).ok())
            else {
                continue;
            };
            if self
                .table()
                .known
                .get(&id)
                .is_some_and(|entry| entry.starting)
            {
                continue;
            }
            match self.recover_one(&id) {
                Ok(Some(status)) => found.push(status),
                Ok(None) => {}
                // Its container may run: an agent that went on without it might run it twice.
                Err(e @ RuntimeError::OtherFormat { .. }) => return Err(e),
                Err(e) => tracing::warn!(container = %id, "cannot recover: {e}"),
            }
        }
        Ok(found)
    }

    pub(super) fn recover_one(
        &self,
        id: &ContainerId,
    ) -> Result<Option<ContainerStatus>, RuntimeError> {
        let dir = self.dir(id);
        if !dir.is_dir() {
            return Ok(None);
        }
        let Some(spec) = load::<ContainerSpec>(&dir, SPEC_FILE)? else {
            // The agent died between making the directory and describing the container.
            fs::remove_dir_all(&dir).map_err(RuntimeError::io("remove", &dir))?;
            return Ok(None);
        };
        if watch::removed_unstarted(&dir)? {
            // The agent died between describing the container and starting its shim.
            return Ok(None);
        }
        self.watcher.add(&dir, id)?;
        let state = load_state(&dir)?;
        let status = ContainerStatus::of(&spec, state.as_ref());
        {
            let mut table = self.table();
            table.made += 1;
            let (number, spec) = (table.made, Arc::new(spec));
            let entry = ProcessEntry {
                number,
                starting: false,
                spec,
                status,
            };
            table.known.insert(id.clone(), entry);
        }
        self.observe(id)?;
        Ok(self.table().known.get(id).map(|entry| entry.status.clone()))
    }

    /// Reads a container's state again, gives it up if its shim is gone, and reports a change.
    pub(super) fn observe(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        // Not while it is removed, after which the same id may name another.
        let _alone = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, spec) = match self.table().known.get(id) {
            Some(entry) if entry.status.exit().is_none() => (entry.number, entry.spec.clone()),
            _ => return Ok(()),
        };
        let dir = self.dir(id);
        let mut state = load_state(&dir)?;
        let ended = state
            .as_ref()
            .is_some_and(|file| progress(&file.state) == 2);
        let starting = self
            .table()
            .known
            .get(id)
            .is_none_or(|entry| entry.starting);
        if !ended && !starting {
            state = watch::give_up_if_orphaned(&dir)?.or(state);
        }
        let status = ContainerStatus::of(&spec, state.as_ref());
        {
            let mut table = self.table();
            let Some(entry) = table
                .known
                .get_mut(id)
                .filter(|entry| entry.number == number)
            else {
                return Ok(());
            };
            if entry.status == status || progress(&status.state) < progress(&entry.status.state) {
                return Ok(());
            }
            entry.status = status.clone();
        }
        // No receiver is no fault: the table has it.
        let _ = self.changes.send(status);
        Ok(())
    }

    pub(super) fn remove(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let _alone = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = self.dir(id);
        if let Ok(Some(state)) = load_state(&dir) {
            state.cgroup.remove();
        }
        match fs::remove_dir_all(&dir) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(RuntimeError::io("remove", &dir)(e)),
        }
        self.watcher.remove(id);
        self.table().known.remove(id);
        Ok(())
    }
}

/// How far along a state is: a container never goes back.
fn progress(state: &ContainerState) -> u8 {
    match state {
        ContainerState::Starting => 0,
        ContainerState::Running { .. } => 1,
        ContainerState::Exited(_) => 2,
    }
}
