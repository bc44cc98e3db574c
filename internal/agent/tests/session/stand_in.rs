//! A stand-in for a container runtime: keeps containers in memory, writes a line to each one's
//! log, and lets a test end them. It outlives the agents that use it, as shims do.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent::{ContainerEngine, EngineError, NotStarted};
use futures::future::BoxFuture;
use jiff::Timestamp;
use runtime::{
    ContainerExit, ContainerId, ContainerSpec, ContainerState, ContainerStatus, ExecOutcome,
    ExitReason,
};
use tokio::sync::broadcast;

pub struct StandIn {
    table: Mutex<BTreeMap<ContainerId, (ContainerSpec, ContainerStatus)>>,
    changes: broadcast::Sender<ContainerStatus>,
    /// Every start and end, in order.
    pub history: Mutex<Vec<String>>,
    /// Whether containers that were asked to stop wait for the test to end them.
    pub stubborn: Mutex<bool>,
    /// How often removing a container of the pod `wild` panics.
    pub panics: Mutex<u32>,
    /// Whether it can run containers as other users.
    pub root: Mutex<bool>,
}

impl StandIn {
    pub fn new() -> Arc<StandIn> {
        Arc::new(StandIn {
            table: Mutex::default(),
            changes: broadcast::channel(1024).0,
            history: Mutex::default(),
            stubborn: Mutex::default(),
            panics: Mutex::default(),
            root: Mutex::default(),
        })
    }

    /// The spec of a pod's container, if it was started.
    pub fn spec(&self, pod: &str) -> Option<ContainerSpec> {
        let table = self.table.lock().unwrap();
        let mut found = table.values().filter(|(spec, _)| spec.pod.name == pod);
        found.next_back().map(|(spec, _)| spec.clone())
    }

    /// Whether a pod's container runs.
    pub fn runs(&self, pod: &str) -> bool {
        let table = self.table.lock().unwrap();
        table
            .values()
            .any(|(spec, status)| spec.pod.name == pod && status.is_running())
    }

    /// Ends a pod's running container.
    pub fn end(&self, pod: &str, code: i32) {
        let mut table = self.table.lock().unwrap();
        for (spec, status) in table.values_mut() {
            if spec.pod.name != pod || !status.is_running() {
                continue;
            }
            status.state = ContainerState::Exited(ContainerExit {
                code,
                signal: None,
                oom_killed: false,
                reason: if code == 0 {
                    ExitReason::Completed
                } else {
                    ExitReason::Error
                },
                message: String::new(),
                started_at: None,
                finished_at: Timestamp::now(),
            });
            self.history.lock().unwrap().push(format!("-{pod}"));
            let _ = self.changes.send(status.clone());
        }
    }
}

fn refused(why: &str) -> EngineError {
    EngineError::Refused(why.to_owned())
}

impl ContainerEngine for StandIn {
    fn name(&self) -> String {
        "stand-in://1".to_owned()
    }

    fn renumbers_devices(&self) -> bool {
        false
    }

    fn changes_users(&self) -> bool {
        *self.root.lock().unwrap()
    }

    fn start(&self, spec: ContainerSpec) -> BoxFuture<'_, Result<ContainerStatus, NotStarted>> {
        Box::pin(async move {
            fs::create_dir_all(spec.log.path.parent().unwrap()).unwrap();
            let line = format!(
                "{} stdout F hello from {}\n",
                Timestamp::now(),
                spec.pod.name
            );
            fs::write(&spec.log.path, line).unwrap();
            let mut status = ContainerStatus::of(&spec, None);
            status.state = ContainerState::Running {
                process: runtime::proc::ProcessId {
                    pid: 1,
                    start_ticks: 0,
                },
                started_at: Timestamp::now(),
            };
            self.history
                .lock()
                .unwrap()
                .push(format!("+{}", spec.pod.name));
            let mut table = self.table.lock().unwrap();
            if table.contains_key(&spec.id) {
                let why = format!("container {} exists already", spec.id);
                return Err(NotStarted::Failed(why));
            }
            table.insert(spec.id.clone(), (spec, status.clone()));
            let _ = self.changes.send(status.clone());
            Ok(status)
        })
    }

    fn stop<'a>(
        &'a self,
        id: &'a ContainerId,
        _: Duration,
    ) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let pod = {
                let table = self.table.lock().unwrap();
                let (spec, _) = table.get(id).ok_or_else(|| refused("no such container"))?;
                spec.pod.name.clone()
            };
            if !*self.stubborn.lock().unwrap() {
                self.end(&pod, 143);
            }
            Ok(())
        })
    }

    fn remove<'a>(&'a self, id: &'a ContainerId) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move {
            let of = |(spec, _): &(ContainerSpec, ContainerStatus)| spec.pod.name == "wild";
            let wild = self.table.lock().unwrap().get(id).is_some_and(of);
            let panics = wild && {
                let mut left = self.panics.lock().unwrap();
                let panics = *left > 0;
                *left = left.saturating_sub(1);
                panics
            };
            assert!(!panics, "over wild");
            let mut table = self.table.lock().unwrap();
            if table.get(id).is_some_and(|(_, status)| status.is_running()) {
                return Err(refused(&format!("container {id} runs")));
            }
            table.remove(id);
            Ok(())
        })
    }

    fn exec<'a>(
        &'a self,
        _: &'a ContainerId,
        _: Vec<String>,
        _: Duration,
    ) -> BoxFuture<'a, Result<ExecOutcome, EngineError>> {
        Box::pin(std::future::ready(Ok(ExecOutcome::Exited {
            code: 0,
            output: Vec::new(),
        })))
    }

    fn recover(&self) -> BoxFuture<'_, Result<Vec<ContainerStatus>, EngineError>> {
        Box::pin(std::future::ready(Ok(self.list())))
    }

    fn list(&self) -> Vec<ContainerStatus> {
        let table = self.table.lock().unwrap();
        table.values().map(|(_, status)| status.clone()).collect()
    }

    fn changes(&self) -> broadcast::Receiver<ContainerStatus> {
        self.changes.subscribe()
    }
}
