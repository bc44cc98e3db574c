//! Owns the list of checks of each level, by Kubernetes version, and their order in messages.

use serde_json::Value;

use super::allow::Allowed;
use super::pod::{CheckViolation, CheckedPod};
use super::{baseline, restricted};
use crate::pod_security_level::{LevelVersion, PodSecurityLevel, StandardsVersion};

/// The input of a check.
pub(super) struct CheckInput<'a> {
    /// The pod or pod template.
    pub(super) pod: CheckedPod<'a>,
    /// The allow-list's entries for the pod's namespace.
    pub(super) allowed: &'a Allowed<'a>,
    /// The version of the standards that applies.
    pub(super) version: StandardsVersion,
}

type CheckFunction = fn(&CheckInput<'_>) -> Option<CheckViolation>;

/// The minor version of Kubernetes that introduced a check.
type IntroducedIn = u32;

/// The baseline's checks, in the order of messages. The second version is the first in which the restricted level
/// replaces this check by a stricter one; `None` if it uses this check, too.
static BASELINE: [(CheckFunction, IntroducedIn, Option<IntroducedIn>); 12] = [
    (baseline::app_armor, 0, None),
    (baseline::capabilities, 0, Some(22)),
    (baseline::host_namespaces, 0, None),
    (baseline::host_paths, 0, Some(0)),
    (baseline::host_ports, 0, None),
    (baseline::handler_hosts, 34, None),
    (baseline::privileged, 0, None),
    (baseline::proc_mount, 0, None),
    (baseline::selinux, 0, None),
    (baseline::seccomp, 0, Some(19)),
    (baseline::sysctls, 0, None),
    (baseline::windows_host_process, 0, None),
];

/// The checks that the restricted level adds, in the order of messages.
static RESTRICTED: [(CheckFunction, IntroducedIn); 6] = [
    (restricted::privilege_escalation, 8),
    (restricted::capabilities, 22),
    (restricted::volume_types, 0),
    (restricted::run_as_non_root, 0),
    (restricted::run_as_user, 23),
    (restricted::seccomp, 19),
];

/// The violations of a level by a pod or pod template.
pub(super) fn violations(
    policy: LevelVersion,
    pod: &Value,
    allowed: &Allowed<'_>,
) -> Vec<CheckViolation> {
    let LevelVersion { level, version } = policy;
    if level == PodSecurityLevel::Privileged {
        return Vec::new();
    }
    let strict = level == PodSecurityLevel::Restricted;
    let look = CheckInput {
        pod: CheckedPod(pod),
        allowed,
        version,
    };
    let counts = |since: IntroducedIn, replaced: Option<IntroducedIn>| {
        let replaced = replaced.is_some_and(|since| strict && version.since(since));
        version.since(since) && !replaced
    };
    let baseline = BASELINE
        .iter()
        .filter(|(_, since, replaced)| counts(*since, *replaced))
        .map(|(check, _, _)| check);
    let restricted = RESTRICTED
        .iter()
        .filter(|(_, since)| strict && version.since(*since))
        .map(|(check, _)| check);
    baseline
        .chain(restricted)
        .filter_map(|check| check(&look))
        .collect()
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
