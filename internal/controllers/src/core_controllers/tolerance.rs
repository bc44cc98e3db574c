//! How long a pod may stay on a node with taints of the effect `NoExecute`. Pure; the rules are those of Kubernetes'
//! taint eviction controller.
//!
//! A pod without a toleration for such a taint goes at once. A toleration with `tolerationSeconds` lets it stay that long;
//! of several, the shortest counts. Example: a taint that one toleration tolerates for 60 s and another one for ever
//! lets the pod stay for 60 s.
//!
//! The taint of a lost node is left out: `nodes` declares the pods of such a node as failed, all at once.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Taint, Toleration};
use resources::node_match::tolerates;

use super::node_liveness::UNREACHABLE;

/// The effect that these rules are about.
const NO_EXECUTE: &str = "NoExecute";
/// The longest `tolerationSeconds` that counts: ten years.
const TOLERATED_MAX: i64 = 10 * 366 * 24 * 3600;

/// The taints that count.
pub(super) fn evicting(taints: Vec<Taint>) -> Vec<Taint> {
    let counts = |taint: &Taint| taint.effect == NO_EXECUTE && taint.key != UNREACHABLE;
    taints.into_iter().filter(counts).collect()
}

/// For how long a pod with these tolerations may stay on a node with these taints; `None`: without a limit.
pub(super) fn stays_for(taints: &[Taint], tolerations: &[Toleration]) -> Option<Duration> {
    let mut least: Option<i64> = None;
    for taint in taints {
        let mut tolerating = tolerations
            .iter()
            .filter(|one| tolerates(one, taint))
            .peekable();
        if tolerating.peek().is_none() {
            return Some(Duration::ZERO);
        }
        for seconds in tolerating.filter_map(|one| one.toleration_seconds) {
            least = Some(least.map_or(seconds, |known| known.min(seconds)));
        }
    }
    let seconds = least?.clamp(0, TOLERATED_MAX);
    Some(Duration::from_secs(
        u64::try_from(seconds).unwrap_or_default(),
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_pod_stays_as_long_as_its_tolerations_say() {
        let taint = |key: &str, effect: &str| json!({"key": key, "value": "v", "effect": effect});
        let of = |key: &str, seconds: Value| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        let none = Value::Null;
        let table = [
            (json!([]), json!([]), None),
            (json!([taint("a", "NoSchedule")]), json!([]), None),
            (json!([taint("a", "NoExecute")]), json!([]), Some(0)),
            (
                json!([taint("a", "NoExecute")]),
                json!([of("b", none.clone())]),
                Some(0),
            ),
            (
                json!([taint("a", "NoExecute")]),
                json!([of("a", none.clone())]),
                None,
            ),
            (
                json!([taint("a", "NoExecute")]),
                json!([of("a", json!(60))]),
                Some(60),
            ),
            (
                json!([taint("a", "NoExecute")]),
                json!([of("a", json!(-5))]),
                Some(0),
            ),
            (
                json!([taint("a", "NoExecute")]),
                json!([of("a", json!(60)), of("a", none.clone())]),
                Some(60),
            ),
            (
                json!([taint("a", "NoExecute"), taint("b", "NoExecute")]),
                json!([of("a", json!(60)), of("b", json!(10))]),
                Some(10),
            ),
            (
                json!([taint("a", "NoExecute"), taint("b", "NoExecute")]),
                json!([of("a", json!(60))]),
                Some(0),
            ),
            (
                json!([taint("a", "NoExecute")]),
                json!([{"operator": "Exists"}]),
                None,
            ),
            (
                json!([taint("a", "NoExecute")]),
                json!([{"key": "a", "value": "v"}]),
                None,
            ),
            (
                json!([taint("a", "NoExecute")]),
                json!([{"key": "a", "value": "w"}]),
                Some(0),
            ),
            (
                json!([taint("a", "NoExecute")]),
                json!([of("a", json!(i64::MAX))]),
                Some(TOLERATED_MAX as u64),
            ),
            (json!([taint(UNREACHABLE, "NoExecute")]), json!([]), None),
        ];
        for (taints, tolerations, want) in table {
            let typed = evicting(serde_json::from_value(taints.clone()).unwrap());
            let typed_tolerations: Vec<Toleration> =
                serde_json::from_value(tolerations.clone()).unwrap();
            let found = stays_for(&typed, &typed_tolerations);
            assert_eq!(
                found.map(|time| time.as_secs()),
                want,
                "{taints} {tolerations}"
            );
        }
    }
}
