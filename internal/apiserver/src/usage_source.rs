//! The form of what the server says was measured last of nodes and pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use resources::quantity::Quantity;

/// The subject of a measurement.
#[derive(Clone, Copy, Debug)]
pub enum UsageOf<'a> {
    /// A node, by its name.
    Node(&'a str),
    /// A pod.
    Pod {
        /// Its namespace.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
        /// Its uid: an earlier pod of the same name is another pod.
        uid: &'a str,
    },
}

/// What was measured last of a node or a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredUsage {
    /// The end of the time that the rates are of.
    pub at: Timestamp,
    /// Its length.
    pub window: SignedDuration,
    /// The amounts by resource, of each container; of a node under the empty name.
    pub used: BTreeMap<String, BTreeMap<String, Quantity>>,
}

/// Says what was measured last.
pub type UsageSource = Arc<dyn Fn(UsageOf<'_>) -> Option<MeasuredUsage> + Send + Sync>;
