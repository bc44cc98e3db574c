//! The status of a queue: its usage, its deserved share, lending, borrowing and upper bound, by
//! resource and by user. Data; the scheduler fills it in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::amounts::quantity_of;

/// One resource of a queue: quantities in Kubernetes' notation. `None`: the bound is not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceUsageStatus {
    /// The resource; `nvidia.com/gpu.MODEL` for the GPUs of one model.
    pub resource: String,
    /// The usage of the queue and of those below it.
    pub used: String,
    /// The part of the usage that must not be evicted.
    pub fixed: String,
    /// The usage plus the requests of waiting gangs.
    pub requested: String,
    /// The queue's current entitlement, given the demand of all queues.
    pub entitled: String,
    /// The queue's deserved amount: its quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deserved: Option<String>,
    /// The queue's guaranteed amount: no other queue may use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guaranteed: Option<String>,
    /// The usage beyond the deserved amount; beyond the entitlement if nothing is deserved.
    pub borrowed: String,
    /// The upper bound of the usage: the capability, or the deserved amount plus the borrowing
    /// limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most: Option<String>,
    /// The most that one user may hold in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_limit: Option<String>,
    /// The most that one team may hold in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub team_limit: Option<String>,
}

/// The status of a queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueUsageStatus {
    /// Its name.
    pub name: String,
    /// The parent queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Its weight among its siblings.
    pub weight: f64,
    /// The queue's dominant share: its largest usage of a resource, as a fraction of the cluster.
    pub share: f64,
    /// The resource of the dominant share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dominant: Option<String>,
    /// The largest usage as a fraction of the entitlement: above 1, other queues may reclaim some
    /// of it.
    pub share_of_entitled: f64,
    /// A resource whose usage exceeds the queue's share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub above: Option<String>,
    /// The status by resource.
    pub resources: Vec<ResourceUsageStatus>,
    /// The usage of each user, in the queue and, if its user limit applies there, below it.
    pub users: BTreeMap<String, BTreeMap<String, String>>,
    /// The usage of each team.
    pub teams: BTreeMap<String, BTreeMap<String, String>>,
    /// Waiting gangs, in queue order.
    pub waiting: Vec<(String, String)>,
    /// Unreadable fields of the Queue.
    pub faults: Vec<String>,
}

/// An amount in thousandths of CPUs, bytes or units, as its quantity.
#[must_use]
pub fn amount(resource: &str, amount: i64) -> String {
    quantity_of(resource, amount).to_k8s().0
}
