//! Writes the node health that agents report: the annotation and the condition that the scheduler
//! reads. Only the latest report is written, so that a slow store never falls behind. Makes no
//! decisions.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use resources::alerts::{self, Alert};
use resources::load::{GpuLoads, NodeLoad};
use resources::names::{ALERTS, LOAD};
use resources::node_conditions::{DISK, FABRIC, NodeCondition, SUSPICION};
use resources::node_event;
use resources::times::seconds;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::error::{FleetError, api};
use crate::node::NodeObjects;

/// The delay before a failed write is retried.
const AGAIN: Duration = Duration::from_secs(1);

/// The maximum length of an agent's text that is stored, in characters.
const TEXT_CHARS_MAX: usize = 512;

/// The health that an agent reports for its node, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportedHealth {
    /// When the report arrived, by the server's clock: agents' clocks differ.
    pub at: Timestamp,
    /// The GPUs' activity, by id.
    pub loads: GpuLoads,
    /// A problem that does not stop the node; empty if there is none.
    pub suspect: String,
    /// How the node's RDMA fails; empty if no failure was reported.
    pub fabric: String,
    /// Why the node's disk is too full; empty if it is not.
    pub disk: String,
    /// The active alerts of the node's GPUs.
    pub alerts: Vec<Alert>,
}

impl ReportedHealth {
    /// Validates a message that has just arrived.
    pub fn of(message: &rpc::agent::v1::Health) -> Result<Self, serde_json::Error> {
        let cut = |text: &str| text.chars().take(TEXT_CHARS_MAX).collect();
        Ok(ReportedHealth {
            at: Timestamp::now(),
            loads: serde_json::from_str(&message.load_json)?,
            suspect: cut(&message.suspect),
            fabric: cut(&message.fabric),
            disk: cut(&message.disk),
            alerts: match message.alerts_json.as_str() {
                // An agent of a version without alerts.
                "" => Vec::new(),
                text => serde_json::from_str(text)?,
            },
        })
    }
}

/// Stores an agent's report for the writer.
pub fn hear(
    node: &str,
    message: &rpc::agent::v1::Health,
    latest: &watch::Sender<Option<ReportedHealth>>,
) {
    match ReportedHealth::of(message) {
        Ok(health) => {
            latest.send_replace(Some(health));
        }
        Err(error) => tracing::warn!(node, %error, "the server drops a health report"),
    }
}

/// Writes an agent's reports while its session lasts.
pub async fn write(
    nodes: &NodeObjects,
    node: &str,
    mut reports: watch::Receiver<Option<ReportedHealth>>,
) {
    loop {
        let health = reports.borrow_and_update().clone();
        if let Some(health) = health
            && let Err(error) = nodes.write_health(node, &health).await
        {
            tracing::warn!(node, %error, "the server could not write a node's health; it tries again");
            tokio::time::sleep(AGAIN).await;
            // Retried with the latest report while the session lasts.
            if reports.has_changed().is_ok() {
                continue;
            }
        }
        if reports.changed().await.is_err() {
            return;
        }
    }
}

impl NodeObjects {
    /// Writes the activity of a node's GPUs, and whether the node is suspect.
    pub async fn write_health(
        &self,
        name: &str,
        health: &ReportedHealth,
    ) -> Result<(), FleetError> {
        let load = NodeLoad {
            at: health.at,
            gpus: health.loads.clone(),
        };
        let load = serde_json::to_string(&load).expect("a load is plain data and always JSON");
        let before = (self.nodes.get(name).await)
            .map_err(api(format!("reading node {name:?}")))
            .map(|node| alerts::of_node(&node))?;
        let stand = (!health.alerts.is_empty()).then(|| {
            serde_json::to_string(&health.alerts).expect("alerts are plain data and always JSON")
        });
        let patch = json!({"metadata": {"annotations": {LOAD: load, ALERTS: stand}}});
        self.nodes
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map_err(api(format!("updating node {name:?}")))?;
        for (subject, trouble) in [
            (&SUSPICION, &health.suspect),
            (&FABRIC, &health.fabric),
            (&DISK, &health.disk),
        ] {
            self.write_trouble(name, subject, trouble, health.at)
                .await?;
        }
        for news in alerts::news(&before, &health.alerts) {
            self.write_event(name, news.warns, &news.reason, &news.message)
                .await;
        }
        Ok(())
    }

    /// Writes a node's trouble, which is empty if there is none, if it changed.
    pub(crate) async fn write_trouble(
        &self,
        name: &str,
        subject: &NodeCondition,
        trouble: &str,
        at: Timestamp,
    ) -> Result<(), FleetError> {
        let conditions = |node: &Node| condition(node, subject, trouble, at);
        if (self.write_conditions(name, json!({}), conditions)).await? {
            let (_, reason, message) = subject.says(trouble);
            self.write_event(name, !trouble.is_empty(), reason, message)
                .await;
        }
        Ok(())
    }

    /// Records the change as an event too. A failed write loses the event, as in Kubernetes.
    async fn write_event(&self, name: &str, warning: bool, reason: &str, message: &str) {
        let event = node_event::of(name, warning, reason, message, Timestamp::now());
        let written = self.events.create(&PostParams::default(), &event).await;
        if let Err(error) = written {
            tracing::debug!(node = name, %error, "the server could not write an event");
        }
    }
}

/// The node's conditions with the reported ones; none if nothing changes.
fn condition(node: &Node, subject: &NodeCondition, now: &str, at: Timestamp) -> Option<Vec<Value>> {
    let current = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.clone())
        .unwrap_or_default();
    let own = current
        .iter()
        .find(|condition| condition.type_ == subject.condition);
    let stored = own.filter(|condition| condition.status == "True");
    let stored = stored.map_or("", |condition| condition.message.as_deref().unwrap_or(""));
    if stored == now {
        return None;
    }
    let (status, reason, _) = subject.says(now);
    let since = own
        .filter(|condition| condition.status == status)
        .and_then(|condition| condition.last_transition_time.as_ref())
        .map_or(at, |time| time.0);
    let mut all: Vec<Value> = current
        .iter()
        .filter(|condition| condition.type_ != subject.condition)
        .filter_map(|condition| serde_json::to_value(condition).ok())
        .collect();
    all.push(json!({
        "type": subject.condition,
        "status": status,
        "reason": reason,
        "message": now,
        "lastHeartbeatTime": seconds(at),
        "lastTransitionTime": seconds(since),
    }));
    Some(all)
}

#[cfg(test)]
mod tests {
    use resources::names::{FABRIC_FAILED, SUSPECT};

    use super::*;

    proptest::proptest! {
        #[test]
        fn no_report_of_health_panics(
            loads in crate::documents::changed(vec![json!({}), json!({"GPU-1": {"utilisation": 50, "celsius": 40}})]),
            alerts in crate::documents::changed(vec![json!([]), json!([{"gpu": "GPU-1", "since": "2026-01-01T00:00:00Z"}])]),
            suspect in "\\PC{0,600}",
        ) {
            let message = rpc::agent::v1::Health {
                load_json: loads.to_string(),
                alerts_json: alerts.to_string(),
                fabric: suspect.clone(),
                disk: suspect.clone(),
                suspect,
            };
            if let Ok(health) = ReportedHealth::of(&message) {
                let _ = alerts::news(&[], &health.alerts);
                assert!(health.suspect.chars().count() <= TEXT_CHARS_MAX);
            }
        }
    }

    #[test]
    fn a_suspicion_becomes_a_condition_once_and_ends_when_nothing_is_found() {
        let suspicion = |node: &Node, trouble: &str, second: i64| {
            let at = Timestamp::from_second(second).unwrap();
            condition(node, &SUSPICION, trouble, at)
        };
        let node = |conditions: Vec<Value>| -> Node {
            let status = json!({"conditions": conditions});
            serde_json::from_value(json!({"metadata": {"name": "n"}, "status": status})).unwrap()
        };
        let ready = json!({"type": "Ready", "status": "True"});
        let well = node(vec![ready]);
        assert_eq!(suspicion(&well, "", 1), None);
        let all = suspicion(&well, "GPU 2 is lost", 1).unwrap();
        assert_eq!(
            (&all[0]["type"], &all[1]["type"]),
            (&json!("Ready"), &json!(SUSPECT))
        );
        assert_eq!(
            (&all[1]["status"], &all[1]["message"]),
            (&json!("True"), &json!("GPU 2 is lost"))
        );
        let suspect = node(all);
        assert_eq!(suspicion(&suspect, "GPU 2 is lost", 5), None);
        // Conditions of other types stay.
        let at = Timestamp::from_second(7).unwrap();
        let both = condition(&suspect, &FABRIC, "mlx5_0/1: down", at).unwrap();
        assert_eq!((both.len(), &both[2]["type"]), (3, &json!(FABRIC_FAILED)));
        assert_eq!(both[2]["reason"], "RdmaFails");
        let all = suspicion(&suspect, "", 9).unwrap();
        assert_eq!((all.len(), &all[1]["status"]), (2, &json!("False")));
        assert_eq!(all[1]["lastTransitionTime"], "1970-01-01T00:00:09Z");
    }
}
