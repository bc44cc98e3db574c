//! A pod's table row, with kubectl's status column: the phase, or the state of a container.

use jiff::Timestamp;
use serde_json::Value;

use crate::json;
use crate::registry::TableColumn;
use crate::registry::columns::{AGE, NAME, column, instant, or_none, since, wide};

pub(super) const COLUMNS: &[TableColumn] = &[
    NAME,
    column(
        "Ready",
        "string",
        "Containers that are ready, of all.",
        |pod, _| {
            let summary = summary(pod);
            Value::from(format!("{}/{}", summary.ready, summary.total))
        },
    ),
    column("Status", "string", "The state of the pod.", |pod, _| {
        Value::from(summary(pod).word)
    }),
    column(
        "Restarts",
        "string",
        "How often its containers were restarted, and when last.",
        |pod, now| {
            let summary = summary(pod);
            Value::from(match summary.last_restart {
                Some(at) if summary.restarts > 0 => {
                    format!(
                        "{} ({} ago)",
                        summary.restarts,
                        since(&Value::from(at.to_string()), now)
                    )
                }
                _ => summary.restarts.to_string(),
            })
        },
    ),
    AGE,
    wide("IP", "string", "The pod's address.", |pod, _| {
        let first = json::items(pod, &["status", "podIPs"])
            .first()
            .map_or("", |ip| json::text(ip, &["ip"]));
        or_none(if first.is_empty() {
            json::text(pod, &["status", "podIP"])
        } else {
            first
        })
    }),
    wide("Node", "string", "The node it runs on.", |pod, _| {
        or_none(json::text(pod, &["spec", "nodeName"]))
    }),
    wide(
        "Nominated Node",
        "string",
        "The node on which the scheduler makes room for the pod.",
        |pod, _| or_none(json::text(pod, &["status", "nominatedNodeName"])),
    ),
    wide(
        "Readiness Gates",
        "string",
        "Further conditions for readiness that hold, of all.",
        |pod, _| gates(pod),
    ),
];

struct PodSummary {
    ready: usize,
    total: usize,
    word: String,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

/// The text under STATUS: `Running`, `Completed`, `CrashLoopBackOff`, `Init:0/1`, `Terminating`, ...
pub fn status_word(pod: &Value) -> String {
    summary(pod).word
}

fn condition_is_true(pod: &Value, kind: &str) -> bool {
    json::items(pod, &["status", "conditions"])
        .iter()
        .any(|c| json::text(c, &["type"]) == kind && json::text(c, &["status"]) == "True")
}

fn ended_word(terminated: &Value) -> String {
    let reason = json::text(terminated, &["reason"]);
    if !reason.is_empty() {
        return reason.to_owned();
    }
    match json::int(terminated, &["signal"]).unwrap_or(0) {
        0 => format!(
            "ExitCode:{}",
            json::int(terminated, &["exitCode"]).unwrap_or(0)
        ),
        signal => format!("Signal:{signal}"),
    }
}

fn last_end(status: &Value) -> Option<Timestamp> {
    instant(json::at(status, &["lastState", "terminated", "finishedAt"]))
}

fn summary(pod: &Value) -> PodSummary {
    let phase = json::text(pod, &["status", "phase"]);
    let reason = json::text(pod, &["status", "reason"]);
    let mut word = if reason.is_empty() { phase } else { reason }.to_owned();
    let gated = |c: &Value| {
        json::text(c, &["type"]) == "PodScheduled"
            && json::text(c, &["reason"]) == "SchedulingGated"
    };
    if json::items(pod, &["status", "conditions"])
        .iter()
        .any(gated)
    {
        "SchedulingGated".clone_into(&mut word);
    }
    let inits = json::items(pod, &["spec", "initContainers"]);
    let restartable = |name: &str| {
        inits.iter().any(|c| {
            json::text(c, &["name"]) == name && json::text(c, &["restartPolicy"]) == "Always"
        })
    };
    let sidecars = inits
        .iter()
        .filter(|c| json::text(c, &["restartPolicy"]) == "Always")
        .count();
    let mut summary = PodSummary {
        ready: 0,
        total: json::items(pod, &["spec", "containers"]).len() + sidecars,
        word,
        restarts: 0,
        last_restart: None,
    };
    let mut sidecar_restarts = (0, None);
    let mut initializing = false;
    for (i, status) in json::items(pod, &["status", "initContainerStatuses"])
        .iter()
        .enumerate()
    {
        let sidecar = restartable(json::text(status, &["name"]));
        let count = json::int(status, &["restartCount"]).unwrap_or(0);
        summary.restarts += count;
        summary.last_restart = summary.last_restart.max(last_end(status));
        if sidecar {
            sidecar_restarts = (
                sidecar_restarts.0 + count,
                sidecar_restarts.1.max(last_end(status)),
            );
        }
        let ended = json::at(status, &["state", "terminated"]);
        if !ended.is_null() && json::int(ended, &["exitCode"]).unwrap_or(0) == 0 {
            continue;
        }
        if sidecar && json::truth(status, &["started"]) {
            summary.ready += usize::from(json::truth(status, &["ready"]));
            continue;
        }
        let waiting = json::text(status, &["state", "waiting", "reason"]);
        summary.word = if !ended.is_null() {
            format!("Init:{}", ended_word(ended))
        } else if !matches!(waiting, "" | "PodInitializing") {
            format!("Init:{waiting}")
        } else {
            format!("Init:{i}/{}", inits.len())
        };
        initializing = true;
        break;
    }
    if !initializing || condition_is_true(pod, "Initialized") {
        (summary.restarts, summary.last_restart) = sidecar_restarts;
        containers(pod, &mut summary);
    }
    if json::has(pod, &["metadata", "deletionTimestamp"]) {
        if matches!(reason, "NodeLost") {
            "Unknown".clone_into(&mut summary.word);
        } else if !matches!(phase, "Succeeded" | "Failed") {
            "Terminating".clone_into(&mut summary.word);
        }
    }
    summary
}

fn containers(pod: &Value, summary: &mut PodSummary) {
    let mut running = false;
    for status in json::items(pod, &["status", "containerStatuses"])
        .iter()
        .rev()
    {
        let restarts = json::int(status, &["restartCount"]).unwrap_or(0);
        summary.restarts = summary.restarts.saturating_add(restarts);
        summary.last_restart = summary.last_restart.max(last_end(status));
        let waiting = json::text(status, &["state", "waiting", "reason"]);
        let ended = json::at(status, &["state", "terminated"]);
        if !waiting.is_empty() {
            waiting.clone_into(&mut summary.word);
        } else if !ended.is_null() {
            summary.word = ended_word(ended);
        } else if json::truth(status, &["ready"]) && json::has(status, &["state", "running"]) {
            running = true;
            summary.ready += 1;
        }
    }
    if summary.word == "Completed" && running {
        let word = if condition_is_true(pod, "Ready") {
            "Running"
        } else {
            "NotReady"
        };
        word.clone_into(&mut summary.word);
    }
}

fn gates(pod: &Value) -> Value {
    let gates = json::items(pod, &["spec", "readinessGates"]);
    if gates.is_empty() {
        return or_none("");
    }
    let met = gates
        .iter()
        .filter(|gate| condition_is_true(pod, json::text(gate, &["conditionType"])))
        .count();
    Value::from(format!("{met}/{}", gates.len()))
}
