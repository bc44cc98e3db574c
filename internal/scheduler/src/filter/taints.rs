//! Taints and tolerations, with Kubernetes' semantics.

use k8s_openapi::api::core::v1::{Taint, Toleration};
use resources::node_match::tolerates;

/// The taint of cordoned nodes; a pod that tolerates it may go there.
const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";

/// True if a taint excludes such pods.
pub(super) fn untolerated(tolerations: &[Toleration], taints: &[Taint]) -> bool {
    taints
        .iter()
        .filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
        .any(|taint| !tolerations.iter().any(|t| tolerates(t, taint)))
}

/// The number of `PreferNoSchedule` taints that such pods do not tolerate.
pub(crate) fn avoided(tolerations: &[Toleration], taints: &[Taint]) -> i64 {
    taints
        .iter()
        .filter(|taint| taint.effect == "PreferNoSchedule")
        .filter(|taint| !tolerations.iter().any(|t| tolerates(t, taint)))
        .count() as i64
}

/// True if such pods may go to cordoned nodes.
pub(super) fn tolerates_unschedulable(tolerations: &[Toleration]) -> bool {
    let taint = Taint {
        key: UNSCHEDULABLE_TAINT.to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    tolerations.iter().any(|t| tolerates(t, &taint))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        Taint {
            key: key.into(),
            value: Some(value.into()),
            effect: effect.into(),
            time_added: None,
        }
    }

    fn toleration(key: &str, operator: &str, value: &str, effect: &str) -> Toleration {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Toleration {
            key: given(key),
            operator: given(operator),
            value: given(value),
            effect: given(effect),
            toleration_seconds: None,
        }
    }

    #[test]
    fn tolerations_match_taints_as_kubernetes_does() {
        let table = [
            (toleration("gpu", "Equal", "a100", "NoSchedule"), true),
            (toleration("gpu", "", "a100", ""), true),
            (toleration("gpu", "Equal", "h100", ""), false),
            (toleration("gpu", "Exists", "", ""), true),
            (toleration("", "Exists", "", ""), true),
            (toleration("gpu", "Exists", "", "NoExecute"), false),
            (toleration("cpu", "Exists", "", ""), false),
            (toleration("gpu", "Like", "a100", ""), false),
        ];
        for (toleration, want) in table {
            let got = !untolerated(
                std::slice::from_ref(&toleration),
                &[taint("gpu", "a100", "NoSchedule")],
            );
            assert_eq!(got, want, "{toleration:?}");
        }
    }

    #[test]
    fn a_preference_to_stay_away_refuses_nothing() {
        let taints = [taint("busy", "", "PreferNoSchedule")];
        assert!(!untolerated(&[], &taints));
        assert_eq!(avoided(&[], &taints), 1);
        assert_eq!(avoided(&[toleration("busy", "Exists", "", "")], &taints), 0);
    }

    #[test]
    fn every_unwelcome_taint_must_be_tolerated() {
        let taints = [taint("a", "", "NoSchedule"), taint("b", "", "NoExecute")];
        assert!(untolerated(&[toleration("a", "Exists", "", "")], &taints));
        let both = [
            toleration("a", "Exists", "", ""),
            toleration("b", "Exists", "", ""),
        ];
        assert!(!untolerated(&both, &taints));
    }
}
