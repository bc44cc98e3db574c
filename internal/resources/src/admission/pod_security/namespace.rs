//! Owns the warnings for a namespace whose labels begin to enforce a stricter level: which of its pods violate it.
//! These pods continue to run; their replacements will be refused.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::pod::{name, reasons};
use super::{NamespaceRequest, PodSecurity, checks};
use crate::json;
use crate::pod_security_level::{LevelVersion, NamespaceLevels, PodSecurityLevel};

/// The most pods that a change of labels is checked against, which bounds the cost of a request.
pub const MAX_PODS: usize = 500;

impl PodSecurity {
    /// The level that a change of a namespace's labels begins to enforce, if existing pods may violate it.
    pub fn tightened(
        &self,
        namespace: &str,
        before: &BTreeMap<String, String>,
        after: &BTreeMap<String, String>,
    ) -> Option<LevelVersion> {
        if self
            .exemptions
            .namespaces
            .iter()
            .any(|one| one == namespace)
        {
            return None;
        }
        let old = NamespaceLevels::of_labels(before, self.defaults).enforce;
        let new = NamespaceLevels::of_labels(after, self.defaults).enforce;
        let relaxed = new.version == old.version && new.level <= old.level;
        (new.level != PodSecurityLevel::Privileged && !relaxed).then_some(new)
    }

    /// Warnings for the author of a stricter label: which existing pods violate the new level. `pods` are the first of
    /// the namespace's `total` pods.
    pub fn of_existing(
        &self,
        request: &NamespaceRequest<'_>,
        enforce: LevelVersion,
        pods: &[Value],
        total: usize,
    ) -> Vec<String> {
        let allowed = request.allowed(&self.allow);
        let mut found: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for pod in pods.iter().take(MAX_PODS) {
            let class = json::text(pod, &["spec", "runtimeClassName"]);
            if self
                .exemptions
                .runtime_classes
                .iter()
                .any(|one| one == class)
            {
                continue;
            }
            let violations = checks::violations(enforce, pod, &allowed);
            if !violations.is_empty() {
                let pod = name(json::at(pod, &["metadata"]));
                found.entry(reasons(&violations)).or_default().insert(pod);
            }
        }
        let mut warnings = Vec::new();
        let checked = pods.len().min(MAX_PODS);
        if checked < total {
            warnings.push(format!(
                "new PodSecurity enforce level only checked against the first {checked} of {total} existing pods"
            ));
        }
        if !found.is_empty() {
            warnings.push(format!(
                "existing pods in namespace \"{}\" violate the new PodSecurity enforce level \"{enforce}\"",
                request.namespace
            ));
        }
        let mut each: Vec<String> = found
            .iter()
            .map(|(reasons, pods)| {
                let first = pods.first().copied().unwrap_or_default();
                match pods.len() - 1 {
                    0 => format!("{first}: {reasons}"),
                    1 => format!("{first} (and 1 other pod): {reasons}"),
                    others => format!("{first} (and {others} other pods): {reasons}"),
                }
            })
            .collect();
        each.sort();
        warnings.extend(each);
        warnings
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels(enforce: &str, version: &str) -> BTreeMap<String, String> {
        let prefix = "pod-security.kubernetes.io/enforce";
        BTreeMap::from([
            (prefix.to_owned(), enforce.to_owned()),
            (format!("{prefix}-version"), version.to_owned()),
        ])
    }

    #[test]
    fn only_a_stricter_level_is_checked_against_pods_that_are_there() {
        let table = [
            ("privileged", "latest", "baseline", "latest", true),
            ("baseline", "latest", "restricted", "latest", true),
            ("baseline", "v1.20", "baseline", "latest", true),
            ("baseline", "latest", "baseline", "latest", false),
            ("restricted", "latest", "baseline", "latest", false),
            ("baseline", "v1.20", "privileged", "latest", false),
        ];
        for (old, old_version, new, new_version, wanted) in table {
            let (before, after) = (labels(old, old_version), labels(new, new_version));
            let got = PodSecurity::default().tightened("n", &before, &after);
            assert_eq!(
                got.is_some(),
                wanted,
                "{old}:{old_version} {new}:{new_version}"
            );
        }
        let mut exempt = PodSecurity::default();
        exempt.exemptions.namespaces = vec!["n".to_owned()];
        let (before, after) = (labels("privileged", "latest"), labels("baseline", "latest"));
        assert_eq!(exempt.tightened("n", &before, &after), None);
    }

    #[test]
    fn pods_that_would_be_refused_are_counted_by_what_they_violate() {
        let pod = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
        let pods = [
            pod("d", json!({"hostPID": true})),
            pod("b", json!({"hostPID": true})),
            pod("c", json!({"hostIPC": true})),
            pod("fine", json!({})),
            pod(
                "e",
                json!({"hostIPC": true, "volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
            ),
        ];
        let none = BTreeMap::new();
        let request = NamespaceRequest {
            namespace: "n",
            labels: &none,
            user: "root",
            own_pod_networks: false,
        };
        let enforce = LevelVersion::latest(PodSecurityLevel::Baseline);
        let security = PodSecurity::default();
        assert_eq!(
            security.of_existing(&request, enforce, &pods, pods.len()),
            [
                "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"",
                "b (and 2 other pods): host namespaces",
                "e: host namespaces, hostPath volumes",
            ]
        );
        assert!(
            security
                .of_existing(&request, enforce, &pods[3..4], 1)
                .is_empty()
        );
        let many = vec![pods[3].clone(); MAX_PODS + 1];
        let all = many.len();
        assert_eq!(
            security.of_existing(&request, enforce, &many, all),
            [
                "new PodSecurity enforce level only checked against the first 500 of 501 existing pods"
            ]
        );
        let bound = &many[..MAX_PODS];
        assert!(
            security
                .of_existing(&request, enforce, bound, MAX_PODS)
                .is_empty()
        );
    }
}
