//! Kubernetes' role-based access control (`rbac.authorization.k8s.io/v1`): the requests that rules permit, the rules of
//! a caller from roles and bindings, the comparison of rules (which prevents privilege escalation), the aggregation of
//! ClusterRoles, and the default roles and bindings. Pure; the API server stores roles and bindings and calls the
//! checks.

mod aggregation;
pub mod defaults;
mod policy;
mod rules;

pub use aggregation::aggregate;
pub use policy::{PolicyObjects, RbacPolicy};
pub use rules::{
    MOST_COMPARISONS, MOST_TUPLES, TooManyTuples, compact, permits, permits_path, quoted, show,
    uncovered,
};

/// The API group of roles and bindings.
pub const GROUP: &str = crate::names::RBAC_GROUP;
/// An annotation on default roles and bindings: with `false`, the server does not complete them when it starts.
pub const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
/// The label of default roles and bindings, with the value `rbac-defaults`.
pub const BOOTSTRAPPING: &str = "kubernetes.io/bootstrapping";

#[cfg(test)]
mod kubernetes_tests;
#[cfg(test)]
mod tests;
