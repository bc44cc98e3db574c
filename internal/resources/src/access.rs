//! Who makes a request, and what a request is about: the words that authorization is spoken in. What role-based
//! access control permits is decided by [`crate::rbac`], what a node's agent may do by [`node_permits`]; how a caller
//! is authenticated (tokens, certificates, sessions) is found out elsewhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::names;

/// The group that may do everything; no binding can take that away.
pub const MASTERS_GROUP: &str = "system:masters";
/// The group of Muster's own parts, which may do everything.
pub const COMPONENTS_GROUP: &str = "system:muster";
/// The group of every caller that was authenticated.
pub const AUTHENTICATED_GROUP: &str = "system:authenticated";
/// The group of requests without credentials.
pub const UNAUTHENTICATED_GROUP: &str = "system:unauthenticated";
/// The user that requests without credentials are made by.
pub const ANONYMOUS_USER: &str = "system:anonymous";
/// What the user name of a service account starts with; `NAMESPACE:NAME` follows.
pub const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// The group of every service account; with `:NAMESPACE`, of those in one namespace.
pub const SERVICE_ACCOUNTS_GROUP: &str = "system:serviceaccounts";
/// The group of every user that Muster keeps a record of.
pub const USERS_GROUP: &str = "muster:users";

/// What a user's record says that the user is. [`Role::groups`] turns it into groups, and bindings say what these may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Everything.
    Admin,
    /// Runs a team: everything in its namespaces, reads what the cluster shares.
    Lead,
    /// Runs work in its namespaces, reads what the cluster shares.
    Member,
    /// Reads, except Secrets.
    Viewer,
}

impl Role {
    /// The group of the users that have this role in every namespace. With `:NAMESPACE` behind it, the group of those
    /// that have it in that namespace.
    pub fn group(self) -> &'static str {
        match self {
            Role::Admin => "muster:admin",
            Role::Lead => "muster:lead",
            Role::Member => "muster:member",
            Role::Viewer => "muster:viewer",
        }
    }

    /// The groups of a user that has this role in these namespaces, or everywhere where none are listed. An
    /// administrator is one everywhere.
    pub fn groups(self, namespaces: Option<&[String]>) -> Vec<String> {
        let mut groups = vec![USERS_GROUP.to_owned()];
        match (self, namespaces) {
            (Role::Admin, _) | (_, None) => groups.push(self.group().to_owned()),
            (_, Some(all)) => groups.extend(all.iter().map(|one| self.group_in(one))),
        }
        groups
    }

    /// The group of the users that have this role in one namespace.
    pub fn group_in(self, namespace: &str) -> String {
        format!("{}:{namespace}", self.group())
    }
}

/// Who makes a request: Kubernetes' UserInfo.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The user's name.
    pub user: String,
    /// The groups that the user is in.
    pub groups: Vec<String>,
    /// What tells this user from others that had the name; may be empty.
    pub uid: String,
    /// What else the authentication says of the user.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The caller that a request really came from, where it is carried out in the name of another ([`Caller`] is then the
/// one that is impersonated). Stands in a request's extensions beside the [`Caller`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impersonator(pub Caller);

/// The credential of a request that may outlast it, a watch. It stands in a request's extensions beside the [`Caller`].
#[derive(Clone)]
pub struct Credential(Arc<dyn Fn() -> Option<Caller> + Send + Sync>);

impl Credential {
    /// A credential whose caller is found out anew each time that it is asked for.
    pub fn new(caller: impl Fn() -> Option<Caller> + Send + Sync + 'static) -> Self {
        Credential(Arc::new(caller))
    }

    /// The caller that the credential stands for now; none once it was revoked or has expired.
    pub fn caller(&self) -> Option<Caller> {
        (self.0)()
    }
}

impl Caller {
    /// An authenticated user in these groups.
    pub fn user(name: &str, groups: impl IntoIterator<Item = String>) -> Self {
        let mut groups: Vec<String> = groups.into_iter().collect();
        groups.push(AUTHENTICATED_GROUP.to_owned());
        Self {
            user: name.to_owned(),
            groups,
            ..Self::default()
        }
    }

    /// A part of Muster itself.
    pub fn component(name: &str) -> Self {
        Self::user(
            &format!("system:muster:{name}"),
            [COMPONENTS_GROUP.to_owned()],
        )
    }

    /// A node's agent.
    pub fn node(name: &str) -> Self {
        let user = format!("{}{name}", names::NODE_USER_PREFIX);
        Self::user(&user, [names::NODES_GROUP.to_owned()])
    }

    /// A service account.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        Self::user(
            &format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}"),
            service_account_groups(namespace),
        )
    }

    /// Whoever sends no credentials.
    pub fn anonymous() -> Self {
        Self {
            user: ANONYMOUS_USER.to_owned(),
            groups: vec![UNAUTHENTICATED_GROUP.to_owned()],
            ..Self::default()
        }
    }

    /// Is the caller in this group?
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|one| one == group)
    }

    /// Is the caller a part of Muster itself?
    pub fn is_component(&self) -> bool {
        self.is_in(COMPONENTS_GROUP)
    }

    /// May the caller do everything, whatever roles and bindings say?
    pub fn is_unlimited(&self) -> bool {
        self.is_in(MASTERS_GROUP) || self.is_component()
    }

    /// The node that the caller is the agent of.
    pub fn node_name(&self) -> Option<&str> {
        self.is_in(names::NODES_GROUP)
            .then(|| self.user.strip_prefix(names::NODE_USER_PREFIX))
            .flatten()
    }
}

/// The groups that a service account is in by its namespace.
pub fn service_account_groups(namespace: &str) -> [String; 2] {
    [
        SERVICE_ACCOUNTS_GROUP.to_owned(),
        format!("{SERVICE_ACCOUNTS_GROUP}:{namespace}"),
    ]
}

/// The namespace and the name of the service account that has this user name.
pub fn service_account_of(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    let whole = !namespace.is_empty() && !name.is_empty() && !name.contains(':');
    whole.then_some((namespace, name))
}

/// The secret in an `Authorization` header's value of the scheme `Bearer`, whatever that is capitalised like.
pub fn bearer_token(authorization: &str) -> Option<&str> {
    let (scheme, secret) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

/// What a request is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: &'a str,
    /// API group; empty for the core group.
    pub group: &'a str,
    /// The plural.
    pub resource: &'a str,
    /// `status`, `scale`, `log`, ...; none for the object itself.
    pub subresource: Option<&'a str>,
    /// The namespace; none for cluster-scoped objects and for requests over all namespaces.
    pub namespace: Option<&'a str>,
    /// The object's name, where the request names one.
    pub name: Option<&'a str>,
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
