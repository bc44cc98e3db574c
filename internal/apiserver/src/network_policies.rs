//! Owns the warnings of a NetworkPolicy that is written: what is likely not meant, what a bound leaves out, and where
//! nothing enforces it.

use k8s_openapi::api::networking::v1::NetworkPolicy;
use resources::names::{POD_NETWORK, POD_NETWORK_OWN};
use resources::network_policies::Policy;
use resources::registry::network_policy_warnings;
use serde_json::Value;

use crate::call::Call;
use crate::core_kinds::kind_of;

/// The warnings of an object that is valid; none of another kind.
pub(crate) fn warnings(call: &Call, object: &Value) -> Vec<String> {
    if (call.kind.group, call.kind.kind) != ("networking.k8s.io", "NetworkPolicy") {
        return Vec::new();
    }
    let mut warnings = network_policy_warnings(object);
    let policy = serde_json::from_value::<NetworkPolicy>(object.clone()).ok();
    let left_out = policy.and_then(|policy| Policy::of(&policy)?.left_out());
    warnings.extend(left_out);
    warnings.extend(unenforced(call));
    warnings
}

/// On which nodes nothing enforces policies. Reads a label of each Node from the store's index, without parsing the
/// objects.
fn unenforced(call: &Call) -> Option<String> {
    let nodes = (call.server.0.store).list(&kind_of("", "Node").prefix(None), None, usize::MAX);
    let all = nodes.entries.len();
    let own = nodes.entries.iter().filter(|entry| {
        let network = entry.meta.labels.get(POD_NETWORK);
        network.is_some_and(|network| network == POD_NETWORK_OWN)
    });
    match all - own.count() {
        0 if all > 0 => None,
        open if open == all => Some(
            "nothing enforces this NetworkPolicy: no node gives pods networks of their own (agents' --pod-network own)"
                .to_owned(),
        ),
        open => Some(format!(
            "nothing enforces this NetworkPolicy on {open} of {all} nodes, where pods share the node's network (label \
             {POD_NETWORK}=host)"
        )),
    }
}
