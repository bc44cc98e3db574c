//! How a queue stands: what it holds beside what it is entitled to, lends, borrows and may have at
//! most, by resource and by user. Data; the scheduler fills it in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::amounts::quantity_of;

/// One resource of a queue: quantities as Kubernetes writes them. None: that bound is not said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceStanding {
    /// The resource; `nvidia.com/gpu.MODEL` for the GPUs of one model.
    pub resource: String,
    /// What the queue and those inside it hold.
    pub used: String,
    /// What of it must not be evicted.
    pub fixed: String,
    /// What is held and waited for.
    pub requested: String,
    /// What it is entitled to now, given what all queues ask for.
    pub entitled: String,
    /// What it deserves: its quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deserved: Option<String>,
    /// What is reserved for it: nobody else may use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guaranteed: Option<String>,
    /// What it holds beyond what it deserves; beyond its entitlement where it deserves nothing.
    pub borrowed: String,
    /// The most it may hold: its capability, or what it deserves and may borrow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most: Option<String>,
    /// The most that one user may hold in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_limit: Option<String>,
    /// The most that one team may hold in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub team_limit: Option<String>,
}

/// One queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueStanding {
    /// Its name.
    pub name: String,
    /// The queue above it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Its weight among its siblings.
    pub weight: f64,
    /// The largest part of the cluster that it holds of any resource.
    pub share: f64,
    /// Which resource that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dominant: Option<String>,
    /// The largest part of its entitlement that it holds: above 1 it may lose some.
    pub share_of_entitled: f64,
    /// A resource of which it holds more than its share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub above: Option<String>,
    /// Resource by resource.
    pub resources: Vec<ResourceStanding>,
    /// What each user holds, in it and below where it limits them.
    pub users: BTreeMap<String, BTreeMap<String, String>>,
    /// What each team holds.
    pub teams: BTreeMap<String, BTreeMap<String, String>>,
    /// Gangs that wait, in the order of the line.
    pub waiting: Vec<(String, String)>,
    /// What of the Queue could not be read.
    pub faults: Vec<String>,
}

/// An amount in thousandths of CPUs, bytes or pieces, as its quantity.
#[must_use]
pub fn amount(resource: &str, amount: i64) -> String {
    quantity_of(resource, amount).to_k8s().0
}
