//! Owns the update of aggregated ClusterRoles: their rules are recomputed in the transaction that
//! writes a ClusterRole, so that no reader sees one without the other. `resources::rbac` computes
//! them.

use resources::rbac::{GROUP, aggregate};
use resources::registry::Kind;
use serde_json::Value;
use store::TransactionView;

use crate::core_kinds::kind_of;
use crate::object::Encoded;

fn is_cluster_role(kind: &Kind) -> bool {
    kind.group == GROUP && kind.kind == "ClusterRole"
}

/// After a write of an object of this kind: updates the rules of aggregated ClusterRoles.
pub(crate) fn settle(view: &mut TransactionView<'_>, kind: &Kind) {
    if is_cluster_role(kind) {
        settle_all(view);
    }
}

fn settle_all(view: &mut TransactionView<'_>) {
    let kind = kind_of(GROUP, "ClusterRole");
    // A damaged ClusterRole grants nothing and is not aggregated.
    let (keys, mut roles): (Vec<_>, Vec<Value>) = view
        .list(&kind.prefix(None))
        .into_iter()
        .filter_map(|entry| {
            let role = serde_json::from_slice(&entry.value).ok()?;
            Some((entry.key.to_string(), role))
        })
        .unzip();
    for at in aggregate(&mut roles) {
        Encoded::new(kind, &roles[at]).put(view, keys[at].clone());
    }
}
