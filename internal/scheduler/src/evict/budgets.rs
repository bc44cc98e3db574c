//! PodDisruptionBudgets: how many of the pods that a selector matches must stay healthy. The
//! scheduler counts the pods itself and includes its own decisions, so that two evictions in one
//! plan count as two. Victim searches skip candidates that a budget protects; moves never break a
//! budget (`tests/evictions_budgets.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use resources::budget::desired_healthy;
use resources::selector::LabelSelector;

use super::candidates::EvictionUnit;
use crate::labels::Labels;
use crate::pod::{Pod, PodKey, PodStage};
use crate::state::Scheduler;

/// One budget and the pods that it covers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DisruptionBudget {
    /// No selector matches no pod.
    selector: Option<LabelSelector>,
    spec: PodDisruptionBudgetSpec,
    /// How many pods the controllers want, from the budget's status: more may be starting than
    /// exist now.
    wanted: usize,
    pods: BTreeSet<PodKey>,
    expected: usize,
    healthy: usize,
}

impl DisruptionBudget {
    fn read(object: &PodDisruptionBudget) -> DisruptionBudget {
        let spec = object.spec.clone().unwrap_or_default();
        let selector = spec.selector.as_ref();
        let wanted = object
            .status
            .as_ref()
            .map_or(0, |status| status.expected_pods);
        DisruptionBudget {
            selector: selector.and_then(|given| LabelSelector::from_k8s(given).ok()),
            spec,
            wanted: usize::try_from(wanted).unwrap_or(0),
            pods: BTreeSet::new(),
            expected: 0,
            healthy: 0,
        }
    }

    /// How many pods must be healthy.
    fn desired(&self) -> usize {
        desired_healthy(&self.spec, self.expected.max(self.wanted))
    }

    fn matches(&self, labels: &Labels) -> bool {
        let map = labels.map();
        self.selector
            .as_ref()
            .is_some_and(|selector| selector.matches(&map))
    }

    fn count(&mut self, stage: PodStage, up: bool) {
        let change = |n: &mut usize| *n = if up { *n + 1 } else { n.saturating_sub(1) };
        if !matches!(stage, PodStage::Succeeded | PodStage::Failed) {
            change(&mut self.expected);
        }
        if stage == PodStage::Running {
            change(&mut self.healthy);
        }
    }
}

/// All budgets, by namespace and name.
pub(crate) type Budgets = BTreeMap<Arc<str>, BTreeMap<Arc<str>, DisruptionBudget>>;

impl Scheduler {
    pub(crate) fn budget_changed(&mut self, object: &PodDisruptionBudget) {
        let meta = &object.metadata;
        let Some(name) = meta.name.as_deref() else {
            return;
        };
        let namespace: Arc<str> = Arc::from(meta.namespace.as_deref().unwrap_or("default"));
        let mut budget = DisruptionBudget::read(object);
        if meta.deletion_timestamp.is_some() {
            budget.spec = PodDisruptionBudgetSpec::default();
        }
        let old = self.budgets.get(&namespace).and_then(|all| all.get(name));
        if old.is_some_and(|old| {
            (&old.selector, &old.spec, old.wanted)
                == (&budget.selector, &budget.spec, budget.wanted)
        }) {
            return;
        }
        let pods = self.pods.in_any_order();
        for (key, pod) in pods.filter(|(key, _)| key.namespace == namespace) {
            if budget.matches(&pod.labels) {
                budget.pods.insert(key.clone());
                budget.count(pod.stage, true);
            }
        }
        let all = self.budgets.entry(namespace).or_default();
        all.insert(Arc::from(name), budget);
        self.cluster_changed();
        self.changed = true;
    }

    pub(crate) fn budget_gone(&mut self, namespace: &str, name: &str) {
        let Some(all) = self.budgets.get_mut(namespace) else {
            return;
        };
        all.remove(name);
        if all.is_empty() {
            self.budgets.remove(namespace);
        }
        self.cluster_changed();
        self.changed = true;
    }

    /// Adds a pod to the budgets that select it, or removes it from them.
    pub(crate) fn update_budgets_of(&mut self, key: &PodKey, labels: Option<&Labels>) {
        let Some(all) = self.budgets.get_mut(&key.namespace) else {
            return;
        };
        for budget in all.values_mut() {
            if labels.is_some_and(|labels| budget.matches(labels)) {
                budget.pods.insert(key.clone());
            } else {
                budget.pods.remove(key);
            }
        }
    }

    /// Counts a pod in its budgets, or no longer.
    pub(crate) fn count_in_budgets(&mut self, key: &PodKey, pod: &Pod, up: bool) {
        let Some(all) = self.budgets.get_mut(&key.namespace) else {
            return;
        };
        for budget in all.values_mut().filter(|budget| budget.pods.contains(key)) {
            budget.count(pod.stage, up);
        }
    }

    /// A budget that evicting these pods would break, given the evictions decided so far.
    pub(super) fn broken_budget(&self, unit: &EvictionUnit) -> Option<String> {
        if self.budgets.is_empty() {
            return None;
        }
        let namespace = &unit.pods.first()?.namespace;
        let runs = |key: &&PodKey| {
            let pod = self.pods.get(*key);
            pod.is_some_and(|pod| pod.stage == PodStage::Running)
        };
        let all = self.budgets.get(namespace)?.iter();
        all.filter(|(_, budget)| {
            let ours = unit.pods.iter().filter(|key| budget.pods.contains(*key));
            let healthy = ours.filter(runs).count();
            healthy > 0 && budget.healthy.saturating_sub(healthy) < budget.desired()
        })
        .map(|(name, _)| format!("{namespace}/{name}"))
        .next()
    }

    /// Records that a budget kept a search from a candidate.
    pub(super) fn note_budget(&mut self, name: String) {
        self.budgets_in_the_way.insert(name);
    }

    /// A sentence about the budgets that kept the search from candidates.
    pub(super) fn budget_reason(&self) -> Option<String> {
        let named: Vec<&str> = self.budgets_in_the_way.iter().map(String::as_str).collect();
        match named[..] {
            [] => None,
            [one] => Some(format!(
                "PodDisruptionBudget {one} protects possible victims"
            )),
            [one, ..] => Some(format!(
                "PodDisruptionBudget {one} and {} more protect possible victims",
                named.len() - 1
            )),
        }
    }
}
