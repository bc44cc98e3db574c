//! Amounts of resources, for addition and comparison: cpu in thousandths, everything else in whole units. All
//! arithmetic saturates. Implements Kubernetes' rule for a pod's requests; it must not know nodes or quotas.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as K8sQuantity;
use serde::{Deserialize, Serialize};

use crate::quantity::Quantity;

/// The resource counted in thousandths.
pub const CPU: &str = "cpu";
/// Bytes of memory.
pub const MEMORY: &str = "memory";
/// The number of pods.
pub const PODS: &str = "pods";

/// Resource name to amount: cpu in thousandths of a core, others in units (bytes, count). An absent resource counts as
/// zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Amounts(pub BTreeMap<String, i64>);

impl Amounts {
    /// The empty set of amounts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a resource list. Quantities that do not parse count as zero: validation admits none.
    pub fn from_k8s(list: &BTreeMap<String, K8sQuantity>) -> Self {
        Self(
            list.iter()
                .map(|(name, quantity)| (name.clone(), amount_of(name, &quantity.0)))
                .collect(),
        )
    }

    /// The amounts as a resource list: memory and other bytes with binary suffixes.
    pub fn to_k8s(&self) -> BTreeMap<String, K8sQuantity> {
        self.0
            .iter()
            .map(|(name, amount)| (name.clone(), quantity_of(name, *amount).to_k8s()))
            .collect()
    }

    /// The amount of a resource.
    pub fn get(&self, name: &str) -> i64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Sets the amount of a resource.
    pub fn set(&mut self, name: impl Into<String>, amount: i64) {
        self.0.insert(name.into(), amount);
    }

    /// The resources of which `room` has less than these amounts, in name order.
    pub fn lacking<'a>(&'a self, room: &'a Amounts) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(|(name, amount)| **amount > 0 && **amount > room.get(name))
            .map(|(name, _)| name.as_str())
    }

    /// Adds another set of amounts.
    pub fn add(&mut self, other: &Amounts) {
        for (name, amount) in &other.0 {
            self.change(name, |had| had.saturating_add(*amount));
        }
    }

    /// Subtracts another set of amounts; results may be negative.
    pub fn sub(&mut self, other: &Amounts) {
        for (name, amount) in &other.0 {
            self.change(name, |had| had.saturating_sub(*amount));
        }
    }

    /// Raises each resource to at least the amount in `other`.
    pub fn raise(&mut self, other: &Amounts) {
        for (name, amount) in &other.0 {
            self.change(name, |had| had.max(*amount));
        }
    }

    /// These amounts multiplied by `count`.
    pub fn times(&self, count: i64) -> Amounts {
        Self(
            self.0
                .iter()
                .map(|(name, amount)| (name.clone(), amount.saturating_mul(count)))
                .collect(),
        )
    }

    /// Name and amount, in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(name, amount)| (name.as_str(), *amount))
    }

    /// True if every amount is zero.
    pub fn is_empty(&self) -> bool {
        self.0.values().all(|amount| *amount == 0)
    }

    fn change(&mut self, name: &str, change: impl FnOnce(i64) -> i64) {
        match self.0.get_mut(name) {
            Some(had) => *had = change(*had),
            None => {
                self.0.insert(name.to_owned(), change(0));
            }
        }
    }
}

impl FromIterator<(String, i64)> for Amounts {
    fn from_iter<I: IntoIterator<Item = (String, i64)>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}

impl fmt::Display for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, amount)) in self.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{name}: {}", quantity_of(name, amount))?;
        }
        Ok(())
    }
}

/// An amount as a quantity.
pub fn quantity_of(name: &str, amount: i64) -> Quantity {
    if name == CPU {
        Quantity::from_milli(amount)
    } else if counts_bytes(name) {
        Quantity::from_bytes(amount)
    } else {
        Quantity::from_value(amount)
    }
}

fn counts_bytes(name: &str) -> bool {
    matches!(name, MEMORY | "ephemeral-storage" | "storage") || name.starts_with("hugepages-")
}

fn amount_of(name: &str, text: &str) -> i64 {
    let Ok(quantity) = text.parse::<Quantity>() else {
        return 0;
    };
    if name == CPU {
        quantity.milli()
    } else {
        quantity.value()
    }
}

/// A pod's requests by Kubernetes' rule: the larger of (all containers and restartable init containers together) and
/// (each init container with the restartable ones started before it), plus overhead; pod-level requests replace the sum
/// of their resources. Limits stand in for absent requests. Counts `pods: 1`.
pub fn pod_requests(spec: &PodSpec) -> Amounts {
    let mut running = Amounts::new();
    for container in &spec.containers {
        running.add(&requests(container));
    }
    let mut sidecars = Amounts::new();
    let mut starting = Amounts::new();
    for init in spec.init_containers.iter().flatten() {
        let own = requests(init);
        if init.restart_policy.as_deref() == Some("Always") {
            running.add(&own);
            sidecars.add(&own);
            starting.raise(&sidecars);
        } else {
            let mut now = own;
            now.add(&sidecars);
            starting.raise(&now);
        }
    }
    running.raise(&starting);
    if let Some(level) = &spec.resources {
        for (name, amount) in requirements(level).0 {
            running.set(name, amount);
        }
    }
    if let Some(overhead) = &spec.overhead {
        running.add(&Amounts::from_k8s(overhead));
    }
    running.set(PODS, 1);
    running
}

fn requests(container: &Container) -> Amounts {
    container
        .resources
        .as_ref()
        .map(requirements)
        .unwrap_or_default()
}

fn requirements(resources: &ResourceRequirements) -> Amounts {
    let mut out = resources
        .requests
        .as_ref()
        .map(Amounts::from_k8s)
        .unwrap_or_default();
    for (name, limit) in resources.limits.iter().flatten() {
        if !out.0.contains_key(name) {
            out.0.insert(name.clone(), amount_of(name, &limit.0));
        }
    }
    out
}

#[cfg(test)]
#[path = "amounts_tests.rs"]
mod tests;
