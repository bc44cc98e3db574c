//! The arithmetic of a PodDisruptionBudget: how many of the selected pods must stay healthy, and how many may be
//! evicted now. The caller determines which pods are healthy.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::selector::LabelSelector;

/// The number of pods that must be healthy out of the expected ones. Percentages are rounded up, as in Kubernetes.
#[must_use]
pub fn desired_healthy(spec: &PodDisruptionBudgetSpec, expected: usize) -> usize {
    match (&spec.min_available, &spec.max_unavailable) {
        (Some(least), _) => amount(least, expected),
        (None, Some(missing)) => expected.saturating_sub(amount(missing, expected)),
        (None, None) => 0,
    }
}

fn amount(given: &IntOrString, of: usize) -> usize {
    match given {
        IntOrString::Int(n) => usize::try_from(*n).unwrap_or(0),
        IntOrString::String(text) => {
            let percent = text.strip_suffix('%').and_then(|n| n.trim().parse().ok());
            percent.map_or(0, |percent: usize| percent.saturating_mul(of).div_ceil(100))
        }
    }
}

/// True if the budget selects pods with these labels. A budget without a selector selects no pod, one with an empty
/// selector every pod of its namespace.
#[must_use]
pub fn is_about(budget: &PodDisruptionBudget, labels: &BTreeMap<String, String>) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector
        .and_then(|selector| LabelSelector::from_k8s(selector).ok())
        .is_some_and(|selector| selector.matches(labels))
}

/// The state of a pod for the budgets that select it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetedPod {
    /// The pod has not ended: it counts as expected.
    pub expected: bool,
    /// The pod runs, is ready, and is not being deleted.
    pub healthy: bool,
}

impl BudgetedPod {
    /// Reads a pod. A running pod without a Ready condition counts as ready.
    #[must_use]
    pub fn of(pod: &Pod) -> BudgetedPod {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let mut conditions = status
            .into_iter()
            .flat_map(|s| s.conditions.iter().flatten());
        let unready = conditions.any(|c| c.type_ == "Ready" && c.status != "True");
        BudgetedPod {
            expected: !matches!(phase, Some("Succeeded" | "Failed")),
            healthy: phase == Some("Running")
                && !unready
                && pod.metadata.deletion_timestamp.is_none(),
        }
    }
}

/// The counts of a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetCounts {
    /// Selected pods that have not ended.
    pub expected: usize,
    /// The healthy ones among them.
    pub healthy: usize,
    /// The number that must be healthy.
    pub desired: usize,
}

impl BudgetCounts {
    /// Counts the pods that a budget selects.
    #[must_use]
    pub fn of(
        budget: &PodDisruptionBudget,
        pods: impl Iterator<Item = BudgetedPod>,
    ) -> BudgetCounts {
        let mut count = BudgetCounts::default();
        for pod in pods {
            count.expected += usize::from(pod.expected);
            count.healthy += usize::from(pod.healthy);
        }
        let spec = budget.spec.as_ref();
        count.desired = spec.map_or(0, |spec| desired_healthy(spec, count.expected));
        count
    }

    /// The number of healthy pods that may be evicted now.
    #[must_use]
    pub fn allowed(&self) -> usize {
        self.healthy.saturating_sub(self.desired)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn as_many_may_go_as_are_healthy_beyond_those_that_must_be() {
        let table = [
            (json!({"minAvailable": 2}), 4, 3, 1),
            (json!({"minAvailable": "50%"}), 5, 5, 2),
            (json!({"maxUnavailable": 1}), 4, 4, 1),
            (json!({"maxUnavailable": 1}), 4, 2, 0),
            (json!({"maxUnavailable": "34%"}), 3, 3, 2),
            (json!({}), 3, 3, 3),
        ];
        for (mut spec, expected, healthy, want) in table {
            spec["selector"] = json!({});
            let budget = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
            let pods = (0..expected).map(|at| BudgetedPod {
                expected: true,
                healthy: at < healthy,
            });
            let count = BudgetCounts::of(&budget, pods);
            assert_eq!(count.allowed(), want, "{spec} {count:?}");
            assert!(is_about(&budget, &BTreeMap::new()));
        }
    }

    #[test]
    fn a_pod_is_healthy_while_it_runs_is_ready_and_stays() {
        let pod = |meta, status| {
            let pod = json!({"metadata": meta, "status": status});
            BudgetedPod::of(&serde_json::from_value(pod).unwrap())
        };
        let ready = |status| json!({"phase": "Running", "conditions": [{"type": "Ready", "status": status}]});
        assert!(pod(json!({}), ready("True")).healthy);
        assert!(!pod(json!({}), ready("False")).healthy);
        assert!(
            !pod(
                json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}),
                ready("True")
            )
            .healthy
        );
        assert!(pod(json!({}), json!({"phase": "Pending"})).expected);
        assert!(!pod(json!({}), json!({"phase": "Failed"})).expected);
    }
}
