//! Whether a node's labels and taints suit a pod, with Kubernetes' semantics. The scheduler and the controllers judge
//! by these; `invariants` checks them with code of its own.

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration};

/// The field of a node that a term may name.
pub const NAME_FIELD: &str = "metadata.name";

/// True if the toleration tolerates the taint.
#[must_use]
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    let key = toleration.key.as_deref().unwrap_or_default();
    if !key.is_empty() && key != taint.key {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => {
            toleration.value.as_deref().unwrap_or_default()
                == taint.value.as_deref().unwrap_or_default()
        }
        "Exists" => true,
        _ => false,
    }
}

/// True if a term matches the node of this name, whose labels `label` returns. A term without expressions matches
/// nothing.
pub fn term_matches<'n>(
    term: &NodeSelectorTerm,
    name: &str,
    label: impl Fn(&str) -> Option<&'n str>,
) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    expressions
        .iter()
        .all(|one| requirement_holds(one, label(&one.key)))
        && fields
            .iter()
            .all(|one| one.key == NAME_FIELD && requirement_holds(one, Some(name)))
}

/// True if a requirement holds for a label's value, or for its absence.
#[must_use]
pub fn requirement_holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = |value: &str| values.iter().any(|v| v == value);
    match requirement.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(value, values).is_some_and(|(has, bound)| has > bound),
        "Lt" => compared(value, values).is_some_and(|(has, bound)| has < bound),
        _ => false,
    }
}

/// The label's value and the only bound, if both are integers.
fn compared(value: Option<&str>, values: &[String]) -> Option<(i64, i64)> {
    let [bound] = values else { return None };
    Some((value?.parse().ok()?, bound.parse().ok()?))
}
