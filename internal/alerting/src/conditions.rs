//! The conditions that hold now, by the state of nodes, quotas and the server.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeCondition, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as K8sQuantity;
use resources::alerts;
use resources::names;
use resources::quantity::Quantity;
use serde::{Deserialize, Serialize};

use crate::rule::Rule;

/// The fraction of a quota above which it is nearly used.
const QUOTA_NEARLY_USED: f64 = 0.9;
/// How long before its end a certificate needs attention. The server's own is renewed much earlier.
const CERTIFICATE_ENDS_WITHIN: SignedDuration = SignedDuration::from_hours(7 * 24);
/// The free fraction of the server's file system below which it is nearly full, and the free bytes above which it is
/// not in any case.
const DISK_FREE_FRACTION: f64 = 0.05;
const DISK_FREE_ENOUGH: u64 = 5 << 30;
/// The resource of NVIDIA's GPUs.
const GPU: &str = "nvidia.com/gpu";

/// What an alert is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SubjectKind {
    /// A node.
    Node,
    /// A GPU of a node; the name is `NODE/INDEX`.
    Gpu,
    /// A ResourceQuota; the name is `NAMESPACE/NAME`.
    Quota,
    /// The server itself.
    Server,
}

impl SubjectKind {
    /// The kind's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SubjectKind::Node => "node",
            SubjectKind::Gpu => "gpu",
            SubjectKind::Quota => "quota",
            SubjectKind::Server => "server",
        }
    }
}

/// The object that an alert is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Subject {
    /// Its kind.
    pub kind: SubjectKind,
    /// Its name.
    pub name: String,
}

impl Subject {
    /// The node or the namespace before the slash, or the name.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    fn node(name: &str) -> Subject {
        Subject {
            kind: SubjectKind::Node,
            name: name.to_owned(),
        }
    }

    fn server() -> Subject {
        Subject {
            kind: SubjectKind::Server,
            name: "server".to_owned(),
        }
    }
}

/// A condition that holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// The rule.
    pub rule: Rule,
    /// What it is about.
    pub subject: Subject,
    /// Since when it has held, if its source says it.
    pub since: Option<Timestamp>,
    /// A sentence without a full stop.
    pub message: String,
}

/// The file system of the server's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskFacts {
    /// The data directory.
    pub path: String,
    /// Bytes that the server may still write.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
}

/// The backups that the server takes by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupFacts {
    /// Their directory.
    pub directory: String,
    /// When the last one was taken; `None`: none is there.
    pub last: Option<Timestamp>,
    /// When the server began.
    pub begun: Timestamp,
    /// The time between two of them.
    pub every: SignedDuration,
    /// Why the last attempt failed, if it did.
    pub failure: Option<String>,
}

/// The state of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerFacts {
    /// When the configured certificate ends; none if the server uses its own.
    pub certificate_ends: Option<Timestamp>,
    /// The disk, if it is known.
    pub disk: Option<DiskFacts>,
    /// Its backups, if it takes any.
    pub backup: Option<BackupFacts>,
}

/// The conditions that hold now.
#[must_use]
pub fn conditions<'a>(
    nodes: impl IntoIterator<Item = &'a Node>,
    quotas: impl IntoIterator<Item = &'a ResourceQuota>,
    server: &ServerFacts,
    now: Timestamp,
) -> Vec<Condition> {
    let mut found = Vec::new();
    for node in nodes {
        of_node(node, &mut found);
    }
    for quota in quotas {
        of_quota(quota, &mut found);
    }
    of_server(server, now, &mut found);
    found
}

fn of_node(node: &Node, found: &mut Vec<Condition>) {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let Some(status) = node.status.as_ref() else {
        return;
    };
    let all = status.conditions.as_deref().unwrap_or_default();
    let condition = |kind: &str| all.iter().find(|one| one.type_ == kind);
    let ready = condition("Ready").map_or("", |ready| ready.status.as_str());
    let gpus = |of: &Option<BTreeMap<String, K8sQuantity>>| -> u64 {
        let quantity = of.as_ref().and_then(|of| of.get(GPU));
        let quantity = quantity.and_then(|quantity| quantity.0.parse().ok());
        quantity.unwrap_or_default()
    };
    let (all_gpus, usable) = (gpus(&status.capacity), gpus(&status.allocatable));
    let mut report = |rule: Rule, since: Option<&NodeCondition>, message: String| {
        let since = since.and_then(|one| one.last_transition_time.as_ref());
        found.push(Condition {
            rule,
            subject: Subject::node(name),
            since: since.map(|time| time.0),
            message,
        });
    };
    if ready == "Unknown" {
        let lost = condition("Ready");
        let with = match all_gpus {
            0 => String::new(),
            1 => "; its GPU cannot be used".to_owned(),
            many => format!("; its {many} GPUs cannot be used"),
        };
        report(
            Rule::NodeLost,
            lost,
            format!("the agent of node {name} does not answer{with}"),
        );
        // What the agent said before may have changed since.
        return;
    }
    if ready == "False" {
        let reason = condition("Ready").map(words).unwrap_or_default();
        report(
            Rule::NodeNotReady,
            condition("Ready"),
            format!("node {name} takes no pods: {reason}"),
        );
    }
    if usable < all_gpus {
        let failed = all_gpus - usable;
        let are = if failed == 1 { "is" } else { "are" };
        let message = format!(
            "{failed} of {all_gpus} GPUs of node {name} {are} taken out of use as unhealthy"
        );
        report(Rule::GpuUnhealthy, None, message);
    }
    for (kind, rule, what) in [
        (
            names::FABRIC_FAILED,
            Rule::NodeFabricFailed,
            "the RDMA of node",
        ),
        (
            names::SUSPECT,
            Rule::NodeSuspect,
            "a fault was seen on node",
        ),
        (
            names::DEVICES_UNHEALTHY,
            Rule::NodeDevicesUnhealthy,
            "devices are unhealthy on node",
        ),
        (
            names::DISK_PRESSURE,
            Rule::NodeDiskPressure,
            "the disk is nearly full on node",
        ),
        (
            names::VERSION_REFUSED,
            Rule::NodeVersionRefused,
            "the server refuses the agent of node",
        ),
    ] {
        if let Some(one) = condition(kind).filter(|one| one.status == "True") {
            report(rule, Some(one), format!("{what} {name}: {}", words(one)));
        }
    }
    for alert in alerts::of_node(node) {
        found.push(Condition {
            rule: alert.alert.into(),
            subject: Subject {
                kind: SubjectKind::Gpu,
                name: format!("{name}/{}", alert.gpu),
            },
            since: Some(alert.since),
            message: format!("node {name}: {}", alert.message()),
        });
    }
}

/// A condition's message, else its reason.
fn words(condition: &NodeCondition) -> String {
    let message = condition.message.clone().filter(|text| !text.is_empty());
    let message = message.or_else(|| condition.reason.clone());
    let message = message.unwrap_or_else(|| "the node gives no reason".to_owned());
    message.trim_end_matches('.').to_owned()
}

fn amount(quantity: &K8sQuantity) -> Option<f64> {
    Quantity::parse_k8s(quantity).ok().map(|one| one.as_f64())
}

fn of_quota(quota: &ResourceQuota, found: &mut Vec<Condition>) {
    let meta = &quota.metadata;
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let name = meta.name.as_deref().unwrap_or_default();
    let Some(status) = &quota.status else { return };
    let (Some(hard), Some(used)) = (&status.hard, &status.used) else {
        return;
    };
    let mut nearly = Vec::new();
    for (resource, hard) in hard {
        let Some(most) = amount(hard).filter(|most| *most > 0.0) else {
            continue;
        };
        let Some(used) = used.get(resource) else {
            continue;
        };
        if amount(used).is_some_and(|used| used / most >= QUOTA_NEARLY_USED) {
            let resource = resource.strip_prefix("requests.").unwrap_or(resource);
            nearly.push(format!("{resource} {} of {}", used.0, hard.0));
        }
    }
    if nearly.is_empty() {
        return;
    }
    nearly.dedup();
    found.push(Condition {
        rule: Rule::NamespaceQuotaNearlyUsed,
        subject: Subject {
            kind: SubjectKind::Quota,
            name: format!("{namespace}/{name}"),
        },
        since: None,
        message: format!(
            "the quota {name} of namespace {namespace} is used to {:.0}% or more: {}",
            QUOTA_NEARLY_USED * 100.0,
            nearly.join(", ")
        ),
    });
}

fn of_server(server: &ServerFacts, now: Timestamp, found: &mut Vec<Condition>) {
    if let Some(ends) = server.certificate_ends
        && ends.duration_since(now) < CERTIFICATE_ENDS_WITHIN
    {
        let verb = if ends <= now { "expired" } else { "expires" };
        found.push(Condition {
            rule: Rule::ServerCertificateExpires,
            subject: Subject::server(),
            since: None,
            message: format!("the server's certificate {verb} at {ends}"),
        });
    }
    if let Some(disk) = &server.disk {
        let scarce = (disk.free as f64) < disk.total as f64 * DISK_FREE_FRACTION;
        if scarce && disk.free < DISK_FREE_ENOUGH {
            found.push(Condition {
                rule: Rule::ServerDiskLow,
                subject: Subject::server(),
                since: None,
                // Without the exact number: the text of an alert stays the same while it fires.
                message: format!(
                    "less than {:.0}% of the file system of {} is free",
                    DISK_FREE_FRACTION * 100.0,
                    disk.path
                ),
            });
        }
    }
    found.extend(
        server
            .backup
            .as_ref()
            .and_then(|backup| of_backups(backup, now)),
    );
}

/// The condition of backups of which the last attempt failed, or of which two are missing.
fn of_backups(backup: &BackupFacts, now: Timestamp) -> Option<Condition> {
    let before = backup
        .last
        .map_or(backup.begun, |last| last.max(backup.begun));
    let overdue = now.duration_since(before) > backup.every.saturating_mul(2);
    let last = match backup.last {
        Some(last) => format!("the last one is of {last}"),
        None => "there is none".to_owned(),
    };
    let directory = &backup.directory;
    let message = match &backup.failure {
        Some(failure) => {
            format!("the server could not take its backup in {directory} ({last}): {failure}")
        }
        None if overdue => format!("the server has taken no backup in {directory} in time; {last}"),
        None => return None,
    };
    Some(Condition {
        rule: Rule::BackupFailed,
        subject: Subject::server(),
        since: None,
        message,
    })
}

#[cfg(test)]
#[path = "conditions_tests.rs"]
mod tests;
