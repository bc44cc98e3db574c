//! All roles and bindings together: which rules a caller has, and where. The bindings are indexed by user and by
//! group, so that a request costs a look-up for each of the caller's groups, whatever other bindings there are.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};

use super::rules;
use crate::access::{Attributes, Caller, SERVICE_ACCOUNT_PREFIX};

type Rules = Arc<[PolicyRule]>;

/// A role or a binding: its plural, its namespace (`-` where it has none) and its name.
type Id = (String, String, String);

/// The roles and bindings that a policy is made of.
#[derive(Default)]
pub struct Objects {
    roles: BTreeMap<Id, Rules>,
    bindings: BTreeMap<Id, (RoleRef, Vec<Subject>)>,
}

/// Reads the store's key of a role or binding: `/rbac.authorization.k8s.io/PLURAL/NAMESPACE/NAME`.
fn id_of(key: &str) -> Option<Id> {
    let mut parts = key.strip_prefix('/')?.splitn(4, '/');
    let _group = parts.next()?;
    let mut next = || parts.next().map(str::to_owned);
    Some((next()?, next()?, next()?))
}

impl Objects {
    /// Takes in the object that is stored under a key, as JSON, in place of what was there before.
    ///
    /// # Errors
    /// When the JSON is no object of the key's kind: then nothing is known under that key.
    pub fn put(&mut self, key: &str, json: &[u8]) -> Result<(), serde_json::Error> {
        let Some(id) = id_of(key) else { return Ok(()) };
        self.drop_id(&id);
        let rules = |rules: Option<Vec<PolicyRule>>| Rules::from(rules.unwrap_or_default());
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

    /// Forgets the object under a key.
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
    everywhere: Vec<Rules>,
    namespaces: HashMap<String, Vec<Rules>>,
}

/// What every caller may do.
#[derive(Default)]
pub struct Policy {
    roles: BTreeMap<Id, Rules>,
    users: HashMap<String, Grants>,
    groups: HashMap<String, Grants>,
}

/// The role that a binding in a namespace (none: for the whole cluster) refers to.
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

/// Leaves the rules of a role that is bound several times in the list once: each request looks through all of it.
fn each_once(list: &mut Vec<Rules>) {
    list.sort_by_key(|rules| Arc::as_ptr(rules).cast::<PolicyRule>() as usize);
    list.dedup_by(|a, b| Arc::ptr_eq(a, b));
}

impl Policy {
    /// Indexes roles and bindings. A binding to a role that does not exist grants nothing.
    pub fn new(objects: &Objects) -> Policy {
        let mut policy = Policy {
            roles: objects.roles.clone(),
            ..Policy::default()
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
            each_once(&mut grants.everywhere);
            grants.namespaces.values_mut().for_each(each_once);
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

    /// The rules that a caller has in a namespace, those for the whole cluster among them; without a namespace, the
    /// latter alone.
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

    /// Do the caller's rules permit this request for a resource?
    pub fn permits(&self, caller: &Caller, request: &Attributes<'_>) -> bool {
        self.rules(caller, request.namespace)
            .any(|rule| rules::permits(rule, request))
    }

    /// Do the caller's rules permit this verb on a path that is no resource?
    pub fn permits_path(&self, caller: &Caller, verb: &str, path: &str) -> bool {
        self.rules(caller, None)
            .any(|rule| rules::permits_path(rule, verb, path))
    }

    /// The rules of the role that a binding in a namespace (none: for the whole cluster) refers to, where it exists.
    pub fn role(&self, role: &RoleRef, namespace: Option<&str>) -> Option<&[PolicyRule]> {
        let id = referred(role, namespace)?;
        self.roles.get(&id).map(|rules| &**rules)
    }
}
