//! The rules: their names, severities, hold times and advice.

use std::fmt;
use std::str::FromStr;

use jiff::SignedDuration;
use resources::alerts::AlertRule;
use serde::{Deserialize, Serialize};

/// How much an alert matters. The order is from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A hint about a workload.
    Info,
    /// Something will fail, or works less well than it could.
    Warning,
    /// Something has failed.
    Critical,
}

impl Severity {
    /// The name, as Prometheus' rules write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        }
    }
}

/// A rule. The last five are judged by the agents ([`resources::alerts`]), the others by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Rule {
    /// A node's agent does not answer.
    NodeLost,
    /// A node says that it takes no pods.
    NodeNotReady,
    /// GPUs of a node are taken out because they failed.
    GpuUnhealthy,
    /// A node's RDMA fails.
    NodeFabricFailed,
    /// A node has a fault that does not stop it.
    NodeSuspect,
    /// Described devices of a node are unhealthy.
    NodeDevicesUnhealthy,
    /// A node's disk is nearly full.
    NodeDiskPressure,
    /// The server refuses a node's agent for its version.
    NodeVersionRefused,
    /// A ResourceQuota is nearly used.
    NamespaceQuotaNearlyUsed,
    /// The server's certificate expires soon.
    ServerCertificateExpires,
    /// The file system of the server's data is nearly full.
    ServerDiskLow,
    /// The server could not take its backup, or takes none.
    BackupFailed,
    /// A GPU is allocated and hardly used.
    GpuUnderused,
    /// A GPU is too hot.
    GpuHot,
    /// A GPU's memory is nearly full.
    GpuMemoryNearlyFull,
    /// A GPU draws nearly its power limit.
    GpuPowerNearLimit,
    /// A GPU's count of corrected memory errors grows.
    GpuCorrectedErrorsGrow,
}

/// A name that no rule has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no rule {0:?}; the rules are {list}", list = Rule::ALL.map(Rule::name).join(", "))]
pub struct UnknownRule(pub String);

impl Rule {
    /// All rules.
    pub const ALL: [Rule; 17] = [
        Rule::NodeLost,
        Rule::NodeNotReady,
        Rule::GpuUnhealthy,
        Rule::NodeFabricFailed,
        Rule::NodeSuspect,
        Rule::NodeDevicesUnhealthy,
        Rule::NodeDiskPressure,
        Rule::NodeVersionRefused,
        Rule::NamespaceQuotaNearlyUsed,
        Rule::ServerCertificateExpires,
        Rule::ServerDiskLow,
        Rule::BackupFailed,
        Rule::GpuUnderused,
        Rule::GpuHot,
        Rule::GpuMemoryNearlyFull,
        Rule::GpuPowerNearLimit,
        Rule::GpuCorrectedErrorsGrow,
    ];

    /// The rule's name, which is the label `alertname` of its alerts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Rule::NodeLost => "NodeLost",
            Rule::NodeNotReady => "NodeNotReady",
            Rule::GpuUnhealthy => "GpuUnhealthy",
            Rule::NodeFabricFailed => "NodeFabricFailed",
            Rule::NodeSuspect => "NodeSuspect",
            Rule::NodeDevicesUnhealthy => "NodeDevicesUnhealthy",
            Rule::NodeDiskPressure => "NodeDiskPressure",
            Rule::NodeVersionRefused => "NodeVersionRefused",
            Rule::NamespaceQuotaNearlyUsed => "NamespaceQuotaNearlyUsed",
            Rule::ServerCertificateExpires => "ServerCertificateExpires",
            Rule::ServerDiskLow => "ServerDiskLow",
            Rule::BackupFailed => "BackupFailed",
            Rule::GpuUnderused => AlertRule::GpuUnderused.name(),
            Rule::GpuHot => AlertRule::GpuHot.name(),
            Rule::GpuMemoryNearlyFull => AlertRule::GpuMemoryNearlyFull.name(),
            Rule::GpuPowerNearLimit => AlertRule::GpuPowerNearLimit.name(),
            Rule::GpuCorrectedErrorsGrow => AlertRule::GpuCorrectedErrorsGrow.name(),
        }
    }

    /// How much its alerts matter.
    #[must_use]
    pub fn severity(self) -> Severity {
        match self {
            Rule::NodeLost | Rule::GpuUnhealthy | Rule::NodeFabricFailed | Rule::ServerDiskLow => {
                Severity::Critical
            }
            Rule::NodeNotReady
            | Rule::NodeSuspect
            | Rule::NodeDevicesUnhealthy
            | Rule::NodeDiskPressure
            | Rule::NodeVersionRefused
            | Rule::ServerCertificateExpires
            | Rule::BackupFailed
            | Rule::GpuHot
            | Rule::GpuCorrectedErrorsGrow => Severity::Warning,
            Rule::NamespaceQuotaNearlyUsed
            | Rule::GpuUnderused
            | Rule::GpuMemoryNearlyFull
            | Rule::GpuPowerNearLimit => Severity::Info,
        }
    }

    /// For how long the condition must hold before the alert fires. A node counts as lost only after the grace of its
    /// agent, and agents hold their own alerts back themselves.
    #[must_use]
    pub fn hold(self) -> SignedDuration {
        SignedDuration::from_secs(match self {
            Rule::NodeNotReady
            | Rule::GpuUnhealthy
            | Rule::NodeFabricFailed
            | Rule::NodeSuspect
            | Rule::NodeDevicesUnhealthy
            | Rule::NodeDiskPressure
            | Rule::NodeVersionRefused
            | Rule::ServerDiskLow
            | Rule::BackupFailed => 60,
            Rule::NamespaceQuotaNearlyUsed => 300,
            Rule::NodeLost
            | Rule::ServerCertificateExpires
            | Rule::GpuUnderused
            | Rule::GpuHot
            | Rule::GpuMemoryNearlyFull
            | Rule::GpuPowerNearLimit
            | Rule::GpuCorrectedErrorsGrow => 0,
        })
    }

    /// What to do about it: a sentence. Agents' alerts say it in their message.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Rule::NodeLost => {
                "Look at the machine, its network and `systemctl status muster-agent` on it; remove a node that does \
                 not come back with `muster node remove`."
            }
            Rule::NodeNotReady => "Read the node's conditions with `muster describe node`.",
            Rule::GpuUnhealthy => {
                "Run `muster doctor` on the node; drain it with `muster node drain` before the GPU is reset or replaced."
            }
            Rule::NodeFabricFailed => {
                "Run `muster doctor` on the node, and `muster doctor --pair` towards another one."
            }
            Rule::NodeSuspect | Rule::NodeDevicesUnhealthy => "Run `muster doctor` on the node.",
            Rule::NodeDiskPressure => {
                "Free space on the file system of the agent's data, or bound volumes by `sizeLimit`."
            }
            Rule::NodeVersionRefused => "Upgrade the agent with `muster upgrade agents`.",
            Rule::NamespaceQuotaNearlyUsed => {
                "Delete what is not needed there, or raise the quota with `muster team set-quota`."
            }
            Rule::ServerCertificateExpires => {
                "Renew the certificate files of --tls-cert; the server takes them over on SIGHUP."
            }
            Rule::ServerDiskLow => {
                "Free space there: below 64 MiB the server refuses writes that do not make room."
            }
            Rule::BackupFailed => "Mend the cause; `muster backup FILE` takes one at once.",
            Rule::GpuUnderused
            | Rule::GpuHot
            | Rule::GpuMemoryNearlyFull
            | Rule::GpuPowerNearLimit
            | Rule::GpuCorrectedErrorsGrow => "",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Rule {
    type Err = UnknownRule;

    fn from_str(name: &str) -> Result<Rule, UnknownRule> {
        let found = Rule::ALL.into_iter().find(|rule| rule.name() == name);
        found.ok_or_else(|| UnknownRule(name.to_owned()))
    }
}

impl From<AlertRule> for Rule {
    fn from(rule: AlertRule) -> Rule {
        match rule {
            AlertRule::GpuUnderused => Rule::GpuUnderused,
            AlertRule::GpuHot => Rule::GpuHot,
            AlertRule::GpuMemoryNearlyFull => Rule::GpuMemoryNearlyFull,
            AlertRule::GpuPowerNearLimit => Rule::GpuPowerNearLimit,
            AlertRule::GpuCorrectedErrorsGrow => Rule::GpuCorrectedErrorsGrow,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_are_read_back() {
        for rule in Rule::ALL {
            assert_eq!(rule.name().parse::<Rule>(), Ok(rule));
            let stored = serde_json::to_value(rule).unwrap();
            assert_eq!(stored, rule.name());
        }
        let error = "NodeGone".parse::<Rule>().unwrap_err().to_string();
        assert!(
            error.starts_with("there is no rule \"NodeGone\"; the rules are NodeLost, "),
            "{error}"
        );
    }
}
