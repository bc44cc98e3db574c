//! A service account with rights for a job's pods: the role, its binding, and the account unless the user named another.

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::action::Dependent;

/// The API group of roles.
const RBAC: &str = "rbac.authorization.k8s.io";

/// The account that gets rights.
pub(crate) struct RightsOf<'a> {
    /// Its name.
    pub(crate) account: &'a str,
    /// Whether the controller makes the account; otherwise the user named it.
    pub(crate) is_own: bool,
    /// The name of the role and of its binding.
    pub(crate) role: &'a str,
}

impl RightsOf<'_> {
    /// What the rights consist of, in the order in which it is created. `metadata` makes the metadata of an object of a
    /// name.
    pub(crate) fn with(
        &self,
        rules: Vec<PolicyRule>,
        metadata: impl Fn(&str) -> ObjectMeta,
    ) -> Vec<Dependent> {
        let role = Role {
            metadata: metadata(self.role),
            rules: Some(rules),
        };
        let metadata_of_binding = metadata(self.role);
        let binding = RoleBinding {
            role_ref: RoleRef {
                api_group: RBAC.to_owned(),
                kind: "Role".to_owned(),
                name: self.role.to_owned(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".to_owned(),
                name: self.account.to_owned(),
                namespace: metadata_of_binding.namespace.clone(),
                ..Subject::default()
            }]),
            metadata: metadata_of_binding,
        };
        let account = self.is_own.then(|| {
            let account = ServiceAccount {
                metadata: metadata(self.account),
                ..ServiceAccount::default()
            };
            Dependent::ServiceAccount(Box::new(account))
        });
        let rights = [
            Dependent::Role(Box::new(role)),
            Dependent::RoleBinding(Box::new(binding)),
        ];
        account.into_iter().chain(rights).collect()
    }
}

/// A rule about resources of one group, for all objects or those of these names.
pub(crate) fn rule(
    group: &str,
    resource: &str,
    verbs: &[&str],
    names: Option<Vec<String>>,
) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        resource_names: names,
        ..PolicyRule::default()
    }
}
