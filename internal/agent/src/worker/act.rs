//! Starts the state machine's actions: starts and ends of runs, hooks, probes. Waits for none of
//! them; their results are sent to the worker.

use std::collections::BTreeMap;
use std::sync::Arc;

use runtime::ContainerId;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::Worker;
use crate::container::{self, ContainerError, DEFAULT_MESSAGE_PATH, Parts};
use crate::engine::ContainerEngine;
use crate::lifecycle::WorkerAction;
use crate::prober::Prober;
use crate::probes::{self, ProbeKind};
use crate::runs::{self, RunningContainer};
use crate::volumes::VolumePaths;

impl Worker {
    /// The container as the runtime takes it.
    pub(super) fn describe(
        &self,
        name: &str,
        attempt: u32,
        engine: &dyn ContainerEngine,
    ) -> Result<runtime::ContainerSpec, ContainerError> {
        let container = self
            .container(name)
            .ok_or_else(|| ContainerError::Unknown(name.to_owned()))?;
        let empty = VolumePaths::new();
        let machine = self.node.machine_now();
        let resolv_conf = self.own_resolvers.then(|| self.dir.resolv_conf());
        let parts = Parts {
            pod: &self.pod,
            container,
            resolved: self.assigned.env.iter().find(|env| env.container == name),
            node: &self.facts,
            machine: &machine,
            places: self.places.as_ref().unwrap_or(&empty),
            hosts_file: &self.dir.hosts(),
            resolv_conf: resolv_conf.as_deref(),
            network: (self.network.as_ref()).map(|network| network.namespace.as_path()),
            message_file: &self.dir.message(name, attempt),
            log: self.node.logs.path(
                &self.plan.namespace,
                &self.plan.name,
                &self.plan.uid,
                name,
                attempt,
            ),
            in_image: engine.renumbers_devices(),
            dev: &self.node.dev,
            owner: self.owner.as_ref(),
            bounds: &self.node.bounds,
        };
        container::describe(&parts, attempt)
    }

    /// Starts an action of the state machine.
    pub(super) fn act(&mut self, action: WorkerAction) {
        match action {
            WorkerAction::Start { container, attempt } => self.start(container, attempt),
            WorkerAction::Kill {
                container,
                attempt,
                grace,
                why,
            } => self.kill(container, attempt, grace, &why),
            WorkerAction::BackOff { container } => {
                let text = format!(
                    "Back-off restarting failed container {container} in pod {}_{}({})",
                    self.plan.name, self.plan.namespace, self.plan.uid
                );
                self.note(true, "BackOff", text, Some(&container));
            }
        }
    }

    fn start(&mut self, container: String, attempt: u32) {
        let Ok(engine) = self.engine.clone() else {
            return;
        };
        let described = self.describe(&container, attempt, engine.as_ref());
        let made = described.and_then(|spec| {
            self.dir
                .make_message(&container, attempt)
                .map_err(|error| ContainerError::Message {
                    path: DEFAULT_MESSAGE_PATH,
                    error: error.to_string(),
                })?;
            Ok(spec)
        });
        let beginning = runs::begin(engine, made, &container, attempt, self.to_self.clone());
        self.begun.insert(container, beginning);
    }

    fn kill(&mut self, container: String, attempt: u32, grace: u32, why: &str) {
        let text = format!("Stopping container {container}: {why}");
        self.note(false, "Killing", text, Some(&container));
        let Some(run) = self.run_of(&container, attempt) else {
            return;
        };
        let record = self.machine.containers.get(&container);
        // The hook runs once, even if the grace period is shortened again.
        let first = self.ending.insert(run.id.clone());
        let running = first && record.is_some_and(|record| record.is_running());
        let beginning = self
            .begun
            .get(&container)
            .filter(|beginning| beginning.attempt == attempt);
        runs::end(run, running, grace, beginning);
    }

    /// Runs the postStart hook of a started run, if it has one.
    pub(super) fn post_start(&self, name: &str, attempt: u32) {
        if let Some(run) = self.run_of(name, attempt) {
            runs::post_start(run);
        }
    }

    fn run_of(&self, name: &str, attempt: u32) -> Option<RunningContainer> {
        Some(RunningContainer {
            engine: self.engine.clone().ok()?,
            id: ContainerId::of(&self.plan.uid, name, attempt).ok()?,
            container: self.container(name)?.clone(),
            attempt,
            ip: self.facts.of_pod().to_owned(),
            to_worker: self.to_self.clone(),
        })
    }

    /// Starts the probes of each running container and stops all others.
    pub(super) fn follow_probes(&mut self) {
        let running: BTreeMap<String, u32> = self
            .machine
            .containers
            .iter()
            .filter(|(_, record)| record.is_running() && record.killed.is_none())
            .map(|(name, record)| (name.clone(), record.attempt))
            .collect();
        self.probing.retain(|name, (attempt, tasks)| {
            let keep = running.get(name) == Some(attempt);
            if !keep {
                tasks.iter().for_each(AbortHandle::abort);
            }
            keep
        });
        for (name, attempt) in running {
            if self.probing.contains_key(&name) {
                continue;
            }
            let tasks = self.begin_probes(&name, attempt);
            self.probing.insert(name, (attempt, tasks));
        }
    }

    fn begin_probes(&self, name: &str, attempt: u32) -> Vec<AbortHandle> {
        let (Some(container), Ok(engine), Ok(id)) = (
            self.container(name).cloned(),
            self.engine.clone(),
            ContainerId::of(&self.plan.uid, name, attempt),
        ) else {
            return Vec::new();
        };
        let started = self.machine.containers.get(name).is_some_and(|r| r.started);
        let (has_started, wait_started) = watch::channel(started);
        let has_started = Arc::new(has_started);
        let mut tasks = Vec::new();
        for (kind, probe) in probes::of(&container) {
            if kind == ProbeKind::Startup && started {
                continue;
            }
            let prober = Prober {
                engine: engine.clone(),
                id: id.clone(),
                container: container.clone(),
                ip: self.facts.of_pod().to_owned(),
                kind,
                name: name.to_owned(),
                attempt,
                to_worker: self.to_self.clone(),
                has_started: has_started.clone(),
                wait_started: wait_started.clone(),
            };
            tasks.push(tokio::spawn(prober.run(probe)).abort_handle());
        }
        tasks
    }
}
