//! All roles and bindings together: the rules of a caller in a namespace. The bindings are indexed by user and by
//! group, so that a request costs one look-up for each of the caller's groups, however many bindings there are.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};

use super::rules;
use crate::access::{Caller, RequestAttributes, SERVICE_ACCOUNT_PREFIX};

type PolicyRules = Arc<[PolicyRule]>;

/// A role or a binding: its plural, its namespace (`-` without one) and its name.
type Id = (String, String, String);

/// The roles and bindings of a policy.
#[derive(Default)]
pub struct PolicyObjects {
    roles: BTreeMap<Id, PolicyRules>,
    bindings: BTreeMap<Id, (RoleRef, Vec<Subject>)>,
}

/// Reads the store's key of a role or binding: `/rbac.authorization.k8s.io/PLURAL/NAMESPACE/NAME`.
fn id_of(key: &str) -> Option<Id> {
    let mut parts = key.strip_prefix('/')?.splitn(4, '/');
    let _group = parts.next()?;
    let mut next = || parts.next().map(str::to_owned);
    Some((next()?, next()?, next()?))
}

impl PolicyObjects {
    /// Stores the object of a key, given as JSON, in place of the previous one.
    ///
    /// # Errors
    /// When the JSON is no object of the key's kind: the key has no object then.
    pub fn put(&mut self, key: &str, json: &[u8]) -> Result<(), serde_json::Error> {
        let Some(id) = id_of(key) else { return Ok(()) };
        self.drop_id(&id);
        let rules = |rules: Option<Vec<PolicyRule>>| PolicyRules::from(rules.unwrap_or_default());
        match id.0.as_str() {
            "roles" => {
                let role: Role = serde_json::from_slice(json)?;
                self.roles.insert(id, rules(role.rules));
            }
            "clusterroles" => {
                let role: ClusterRole = serde_json::from_slice(json)?;
                self.roles.insert(id, rules(role.rules));
            }
            "rolebindings" => {
                let binding: RoleBinding = serde_json::from_slice(json)?;
                let subjects = binding.subjects.unwrap_or_default();
                self.bindings.insert(id, (binding.role_ref, subjects));
            }
            "clusterrolebindings" => {
                let binding: ClusterRoleBinding = serde_json::from_slice(json)?;
                let subjects = binding.subjects.unwrap_or_default();
                self.bindings.insert(id, (binding.role_ref, subjects));
            }
            _ => {}
        }
        Ok(())
    }

    /// Removes the object of a key.
    pub fn remove(&mut self, key: &str) {
        if let Some(id) = id_of(key) {
            self.drop_id(&id);
        }
    }

    fn drop_id(&mut self, id: &Id) {
        self.roles.remove(id);
        self.bindings.remove(id);
    }
}

/// The rules of one user or group.
#[derive(Default)]
struct Grants {
    everywhere: Vec<PolicyRules>,
    namespaces: HashMap<String, Vec<PolicyRules>>,
}

/// The rights of every caller.
#[derive(Default)]
pub struct RbacPolicy {
    roles: BTreeMap<Id, PolicyRules>,
    users: HashMap<String, Grants>,
    groups: HashMap<String, Grants>,
}

/// The role that a binding in a namespace (`None`: cluster-wide) refers to.
fn referred(role: &RoleRef, namespace: Option<&str>) -> Option<Id> {
    let plural = match (role.kind.as_str(), namespace) {
        ("ClusterRole", _) => "clusterroles",
        ("Role", Some(_)) => "roles",
        _ => return None,
    };
    let of = match plural {
        "roles" => namespace?,
        _ => "-",
    };
    Some((plural.to_owned(), of.to_owned(), role.name.clone()))
}

/// Removes repeated rules of a role that is bound several times: each request scans the entire list.
fn remove_duplicates(list: &mut Vec<PolicyRules>) {
    list.sort_by_key(|rules| Arc::as_ptr(rules).cast::<PolicyRule>() as usize);
    list.dedup_by(|a, b| Arc::ptr_eq(a, b));
}

impl RbacPolicy {
    /// Indexes roles and bindings. A binding to a role that does not exist grants nothing.
    pub fn new(objects: &PolicyObjects) -> RbacPolicy {
        let mut policy = RbacPolicy {
            roles: objects.roles.clone(),
            ..RbacPolicy::default()
        };
        for ((plural, namespace, _), (role, subjects)) in &objects.bindings {
            let within = (plural == "rolebindings").then_some(namespace.as_str());
            let rules = referred(role, within).and_then(|id| policy.roles.get(&id).cloned());
            let Some(rules) = rules else { continue };
            for subject in subjects {
                let Some(grants) = policy.grants_of(subject, within) else {
                    continue;
                };
                let list = match within {
                    None => &mut grants.everywhere,
                    Some(namespace) => grants.namespaces.entry(namespace.to_owned()).or_default(),
                };
                list.push(rules.clone());
            }
        }
        let all = policy.users.values_mut().chain(policy.groups.values_mut());
        for grants in all {
            remove_duplicates(&mut grants.everywhere);
            grants.namespaces.values_mut().for_each(remove_duplicates);
        }
        policy
    }

    fn grants_of(&mut self, subject: &Subject, within: Option<&str>) -> Option<&mut Grants> {
        let name = subject.name.clone();
        match subject.kind.as_str() {
            "User" => Some(self.users.entry(name).or_default()),
            "Group" => Some(self.groups.entry(name).or_default()),
            "ServiceAccount" => {
                let own = subject.namespace.as_deref().filter(|own| !own.is_empty());
                let namespace = own.or(within)?;
                let user = format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}");
                Some(self.users.entry(user).or_default())
            }
            _ => None,
        }
    }

    fn held<'a>(&'a self, caller: &'a Caller) -> impl Iterator<Item = &'a Grants> {
        let groups = caller.groups.iter();
        self.users
            .get(&caller.user)
            .into_iter()
            .chain(groups.filter_map(move |group| self.groups.get(group)))
    }

    /// The rules of a caller in a namespace, including cluster-wide ones; without a namespace, only the cluster-wide
    /// ones.
    pub fn rules<'a>(
        &'a self,
        caller: &'a Caller,
        namespace: Option<&'a str>,
    ) -> impl Iterator<Item = &'a PolicyRule> {
        self.held(caller)
            .flat_map(move |grants| {
                let here = namespace.and_then(|namespace| grants.namespaces.get(namespace));
                grants.everywhere.iter().chain(here.into_iter().flatten())
            })
            .flat_map(|rules| rules.iter())
    }

    /// True if the caller's rules permit this request for a resource.
    pub fn permits(&self, caller: &Caller, request: &RequestAttributes<'_>) -> bool {
        self.rules(caller, request.namespace)
            .any(|rule| rules::permits(rule, request))
    }

    /// True if the caller's rules permit this verb on a non-resource path.
    pub fn permits_path(&self, caller: &Caller, verb: &str, path: &str) -> bool {
        self.rules(caller, None)
            .any(|rule| rules::permits_path(rule, verb, path))
    }

    /// The rules of the role that a binding in a namespace (`None`: cluster-wide) refers to, if it exists.
    pub fn role(&self, role: &RoleRef, namespace: Option<&str>) -> Option<&[PolicyRule]> {
        let id = referred(role, namespace)?;
        self.roles.get(&id).map(|rules| &**rules)
    }
}
