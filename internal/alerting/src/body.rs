//! The documents that receivers get.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::book::FiringAlert;
use crate::conditions::{Subject, SubjectKind};
use crate::outbox::{Notice, NoticeStatus};
use crate::receivers::ReceiverKind;
use crate::rule::Rule;

/// The document of a delivery. `url` is the console's address, for links.
#[must_use]
pub fn body(kind: ReceiverKind, receiver: &str, notices: &[Notice], url: &str) -> Value {
    match kind {
        ReceiverKind::Webhook => webhook(receiver, notices, url),
        ReceiverKind::Slack => json!({"text": text(notices, url)}),
        ReceiverKind::Alertmanager => alertmanager(notices, url),
    }
}

/// Alertmanager's webhook document, version 4, which its many receivers read.
fn webhook(receiver: &str, notices: &[Notice], url: &str) -> Value {
    let firing = |notice: &&Notice| notice.status == NoticeStatus::Firing;
    let any = notices.iter().any(|notice| firing(&notice));
    let alerts: Vec<Value> = notices
        .iter()
        .map(|notice| {
            json!({
                "status": notice.status,
                "labels": labels(notice),
                "annotations": annotations(notice),
                "startsAt": notice.alert.since,
                // A time without meaning, as Alertmanager writes it, while the alert fires.
                "endsAt": notice.ended.map_or_else(|| "0001-01-01T00:00:00Z".to_owned(), |at| at.to_string()),
                "generatorURL": page(url),
                "fingerprint": fingerprint(notice),
            })
        })
        .collect();
    json!({
        "version": "4",
        "groupKey": format!("muster/{receiver}"),
        "truncatedAlerts": 0,
        "status": if any { "firing" } else { "resolved" },
        "receiver": receiver,
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": url,
        "alerts": alerts,
    })
}

fn alertmanager(notices: &[Notice], url: &str) -> Value {
    let alerts = notices.iter().map(|notice| {
        let mut alert = json!({
            "labels": labels(notice),
            "annotations": annotations(notice),
            "startsAt": notice.alert.since,
            "generatorURL": page(url),
        });
        if let Some(ended) = notice.ended {
            alert["endsAt"] = json!(ended.max(notice.alert.since));
        }
        alert
    });
    Value::Array(alerts.collect())
}

fn text(notices: &[Notice], url: &str) -> String {
    let mut lines: Vec<String> = notices
        .iter()
        .map(|notice| {
            let alert = &notice.alert;
            let mark = match notice.status {
                NoticeStatus::Firing => alert.rule.severity().name().to_uppercase(),
                NoticeStatus::Resolved => "RESOLVED".to_owned(),
            };
            let advice = match notice.status {
                NoticeStatus::Firing => alert.rule.advice(),
                NoticeStatus::Resolved => "",
            };
            let line = format!("[{mark}] {}: {}. {advice}", alert.rule, alert.message);
            plain(line.trim_end())
        })
        .collect();
    lines.push(page(url));
    lines.join("\n")
}

/// Slack reads these three characters as marks.
fn plain(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn page(url: &str) -> String {
    format!("{}/ui/", url.trim_end_matches('/'))
}

fn labels(notice: &Notice) -> Value {
    let alert = &notice.alert;
    let mut labels = json!({
        "alertname": alert.rule.name(),
        "severity": alert.rule.severity().name(),
        "job": "muster",
    });
    let owner = alert.subject.owner();
    match alert.subject.kind {
        SubjectKind::Node => labels["node"] = json!(owner),
        SubjectKind::Gpu => {
            labels["node"] = json!(owner);
            labels["gpu"] = json!(alert.subject.name.rsplit('/').next());
        }
        SubjectKind::Quota => {
            labels["namespace"] = json!(owner);
            labels["resourcequota"] = json!(alert.subject.name.rsplit('/').next());
        }
        SubjectKind::Server => {}
    }
    labels
}

fn annotations(notice: &Notice) -> Value {
    let alert = &notice.alert;
    json!({"summary": alert.message, "description": alert.rule.advice()})
}

/// A number of 16 digits for the alert's labels: FNV-1a, as Prometheus' fingerprints are made of.
fn fingerprint(notice: &Notice) -> String {
    let text = labels(notice).to_string();
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// The notice of a test.
pub(crate) fn test_notice(now: Timestamp) -> Notice {
    Notice {
        status: NoticeStatus::Firing,
        alert: FiringAlert {
            rule: Rule::NodeLost,
            subject: Subject {
                kind: SubjectKind::Node,
                name: "test".to_owned(),
            },
            since: now,
            message: "this is a test of the receiver; no node is lost".to_owned(),
            announced: true,
        },
        ended: None,
    }
}
