//! Reports a pod to the server: its status, events, and the termination messages of its containers.
//! Does not change the pod.

use std::io::Read;
use std::path::Path;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rpc::agent::v1::{EventNote, PodStatus};
use runtime::ContainerStatus;

use super::Worker;
use crate::lifecycle::PodLifecycle;
use crate::lifecycle::status::{Addresses, MAX_MESSAGE_BYTES, status};

/// How many lines of a log's end explain a failure (`FallbackToLogsOnError`).
const FALLBACK_LINES: u64 = 80;
const FALLBACK_BYTES: usize = 2048;

impl Worker {
    /// The content of a container's termination message file, or the end of its log.
    pub(super) fn termination_message(
        &self,
        status: &ContainerStatus,
        failed: bool,
    ) -> Option<String> {
        let container = self.container(&status.name)?;
        let path = self.dir.message(&status.name, status.attempt);
        let text = read_start(&path, MAX_MESSAGE_BYTES);
        if !text.is_empty() {
            return Some(text);
        }
        let fallback =
            container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
        if !failed || !fallback {
            return None;
        }
        let options = runtime::LogRead {
            tail_lines: Some(FALLBACK_LINES),
            ..runtime::LogRead::default()
        };
        let mut reader = runtime::logs::read::LogReader::new(status.log_path.clone(), options);
        let mut bytes = Vec::new();
        while let Ok(Some(chunk)) = reader.next_chunk() {
            bytes.extend_from_slice(&chunk);
        }
        let from = bytes.len().saturating_sub(FALLBACK_BYTES);
        let text = String::from_utf8_lossy(&bytes[from..]).into_owned();
        (!text.is_empty()).then_some(text)
    }

    /// Reports the pod's present status.
    pub(super) fn report(&self) {
        let addresses = Addresses {
            host: self.node.facts.ip.clone(),
            pod: match self.facts.pod_ip.is_none() && self.has_own_network() {
                true => String::new(),
                false => self.facts.of_pod().to_owned(),
            },
        };
        let mut now = status(
            &self.machine,
            &self.plan,
            &self.gates,
            &addresses,
            Timestamp::now(),
        );
        // The server sets the times of conditions; here they would make equal statuses differ.
        for condition in now.conditions.iter_mut().flatten() {
            if let Some(start) = self.machine.start_time {
                condition.last_transition_time = Some(Time(last_change(&self.machine, start)));
            }
        }
        let status_json =
            serde_json::to_string(&now).expect("a status is plain data and always JSON");
        self.node.outbox.status(PodStatus {
            namespace: self.plan.namespace.clone(),
            name: self.plan.name.clone(),
            uid: self.plan.uid.clone(),
            status_json,
        });
        let phase = crate::lifecycle::status::phase(&self.machine, &self.plan);
        self.node.note_running(
            &self.plan.uid,
            !matches!(phase, "Succeeded" | "Failed") || self.machine.is_alive(),
        );
    }

    /// Reports an event of the pod, or of one of its containers.
    pub(super) fn note(
        &self,
        warning: bool,
        reason: &str,
        message: String,
        container: Option<&str>,
    ) {
        let init = container.is_some_and(|name| self.plan.init.iter().any(|c| c.name == name));
        let list = if init { "initContainers" } else { "containers" };
        self.node.outbox.event(EventNote {
            namespace: self.plan.namespace.clone(),
            name: self.plan.name.clone(),
            uid: self.plan.uid.clone(),
            warning,
            reason: reason.to_owned(),
            message,
            field_path: container.map_or_else(String::new, |name| format!("spec.{list}{{{name}}}")),
        });
    }
}

/// When the pod's containers last changed, to the second.
fn last_change(machine: &PodLifecycle, start: Timestamp) -> Timestamp {
    let latest = machine
        .containers
        .values()
        .filter_map(|record| match &record.run {
            crate::lifecycle::RunState::Running { since } => Some(*since),
            crate::lifecycle::RunState::Ended(end) => Some(end.finished_at),
            _ => None,
        })
        .fold(start, Timestamp::max);
    Timestamp::from_second(latest.as_second()).unwrap_or(latest)
}

fn read_start(path: &Path, limit: usize) -> String {
    let mut bytes = Vec::new();
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    if let Ok(file) = std::fs::File::open(path) {
        let _ = file.take(limit).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
