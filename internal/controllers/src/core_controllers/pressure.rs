//! The taint of a node whose disk is too full, from the node's condition. Pure.
//!
//! As in Kubernetes' node life cycle controller, a node with the condition `DiskPressure` has the
//! taint `node.kubernetes.io/disk-pressure:NoSchedule`, so that pods without a toleration for it are
//! placed elsewhere; running pods stay. Without the condition, or if its status is unknown, the node
//! does not have the taint.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NodeCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use resources::names::DISK_PRESSURE;

/// The key of the taint.
const TAINT: &str = "node.kubernetes.io/disk-pressure";
const EFFECT: &str = "NoSchedule";

/// The taints that a node with these conditions should have; none if it has them.
pub(super) fn taints(
    conditions: &[NodeCondition],
    taints: &[Taint],
    now: Timestamp,
) -> Option<Vec<Taint>> {
    let full =
        |condition: &NodeCondition| condition.type_ == DISK_PRESSURE && condition.status == "True";
    let wanted = conditions.iter().any(full);
    let is_ours = |taint: &Taint| taint.key == TAINT && taint.effect == EFFECT;
    if taints.iter().any(is_ours) == wanted {
        return None;
    }
    let others = taints.iter().filter(|taint| !is_ours(taint)).cloned();
    let ours = wanted.then(|| Taint {
        key: TAINT.to_owned(),
        effect: EFFECT.to_owned(),
        value: None,
        time_added: Some(Time(now)),
    });
    Some(others.chain(ours).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_the_taint_while_its_disk_is_too_full_and_keeps_its_other_taints() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let condition = |type_: &str, status: &str| NodeCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            ..NodeCondition::default()
        };
        let taint = |key: &str, effect: &str| Taint {
            key: key.to_owned(),
            effect: effect.to_owned(),
            ..Taint::default()
        };
        let (own, other) = (taint("team", "NoSchedule"), taint(TAINT, "NoExecute"));
        let full = condition("DiskPressure", "True");
        for (conditions, has, expected) in [
            (vec![], false, None),
            (vec![full.clone()], false, Some(true)),
            (vec![full], true, None),
            (vec![condition("DiskPressure", "False")], true, Some(false)),
            (
                vec![condition("DiskPressure", "Unknown")],
                true,
                Some(false),
            ),
            (vec![condition("MemoryPressure", "True")], false, None),
            (vec![], true, Some(false)),
        ] {
            let mut before = vec![own.clone(), other.clone()];
            before.extend(has.then(|| taint(TAINT, EFFECT)));
            let after = taints(&conditions, &before, now);
            assert_eq!(after.is_some(), expected.is_some(), "{conditions:?} {has}");
            let Some(after) = after else { continue };
            assert_eq!(after[..2], [own.clone(), other.clone()]);
            let added = after.iter().any(|t| t.key == TAINT && t.effect == EFFECT);
            assert_eq!(Some(added), expected, "{conditions:?} {has}");
            assert_eq!(taints(&conditions, &after, now), None);
        }
    }
}
