//! Kubernetes' role-based access control (`rbac.authorization.k8s.io/v1`): what rules permit, which rules a caller
//! has by roles and bindings, whether some rules cover others (so that nobody grants more than what they have), how
//! ClusterRoles are aggregated, and the roles and bindings that exist from the start. Pure; who is asked, and where
//! roles and bindings are kept, is the API server's.

mod aggregation;
pub mod defaults;
mod policy;
mod rules;

pub use aggregation::aggregate;
pub use policy::{Objects, Policy};
pub use rules::{
    MOST_COMPARISONS, MOST_TUPLES, TooManyTuples, compact, permits, permits_path, quoted, show,
    uncovered,
};

/// The API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";
/// An annotation on roles and bindings that exist from the start: `false` keeps them from being completed when the
/// server starts.
pub const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
/// The label, with the value `rbac-defaults`, of roles and bindings that exist from the start.
pub const BOOTSTRAPPING: &str = "kubernetes.io/bootstrapping";

#[cfg(test)]
mod kubernetes_tests;
#[cfg(test)]
mod tests;
