//! The caller of a request and the attributes of the request: the input of authorization. [`crate::rbac`] decides what
//! role-based access control permits, [`node_permits`] what a node's agent may do. Authentication (tokens,
//! certificates, sessions) is not part of this module.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::names;

/// The group that may do everything; no binding can revoke that.
pub const MASTERS_GROUP: &str = "system:masters";
/// The group of Muster's own components, which may do everything.
pub const COMPONENTS_GROUP: &str = "system:muster";
/// The group of every authenticated caller.
pub const AUTHENTICATED_GROUP: &str = "system:authenticated";
/// The group of requests without credentials.
pub const UNAUTHENTICATED_GROUP: &str = "system:unauthenticated";
/// The user name of requests without credentials.
pub const ANONYMOUS_USER: &str = "system:anonymous";
/// The prefix of a service account's user name; `NAMESPACE:NAME` follows.
pub const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// The group of every service account; with the suffix `:NAMESPACE`, the group of the service accounts of one
/// namespace.
pub const SERVICE_ACCOUNTS_GROUP: &str = "system:serviceaccounts";
/// The group of every user that has a record in Muster.
pub const USERS_GROUP: &str = "muster:users";

/// The role in a user's record. [`UserRole::groups`] maps it to groups, and bindings grant rights to these groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UserRole {
    /// Everything.
    Admin,
    /// Runs a team: may do everything in its namespaces and read what the cluster shares.
    Lead,
    /// Runs work in its namespaces; may read what the cluster shares.
    Member,
    /// May read everything except Secrets.
    Viewer,
}

impl UserRole {
    /// The group of the users that have this role in every namespace. With the suffix `:NAMESPACE`, the group of the
    /// users that have it in that namespace.
    pub fn group(self) -> &'static str {
        match self {
            UserRole::Admin => "muster:admin",
            UserRole::Lead => "muster:lead",
            UserRole::Member => "muster:member",
            UserRole::Viewer => "muster:viewer",
        }
    }

    /// The groups of a user that has this role in these namespaces, or in every namespace if the list is absent. An
    /// administrator has the role everywhere.
    pub fn groups(self, namespaces: Option<&[String]>) -> Vec<String> {
        let mut groups = vec![USERS_GROUP.to_owned()];
        match (self, namespaces) {
            (UserRole::Admin, _) | (_, None) => groups.push(self.group().to_owned()),
            (_, Some(all)) => groups.extend(all.iter().map(|one| self.group_in(one))),
        }
        groups
    }

    /// The group of the users that have this role in one namespace.
    pub fn group_in(self, namespace: &str) -> String {
        format!("{}:{namespace}", self.group())
    }
}

/// What the keys of the extra values begin with that a service account's token gives its caller.
pub const TOKEN_EXTRA: &str = "authentication.kubernetes.io/";

/// The caller of a request: Kubernetes' UserInfo.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The user's name.
    pub user: String,
    /// The groups that the user is in.
    pub groups: Vec<String>,
    /// Distinguishes this user from earlier users of the same name; may be empty.
    pub uid: String,
    /// Further attributes of the user from authentication.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The caller that sent an impersonating request; [`Caller`] is then the impersonated user. Stored in the request's
/// extensions beside the [`Caller`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impersonator(pub Caller);

/// Marks a request whose caller is known by a browser's session cookie, which the browser sends by itself. Stored in the
/// request's extensions beside the [`Caller`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrowserSession;

/// The credential of a request that may outlive it, such as a watch. Stored in the request's extensions beside the
/// [`Caller`].
#[derive(Clone)]
pub struct Credential(Arc<dyn Fn() -> Option<Caller> + Send + Sync>);

impl Credential {
    /// A credential whose caller is looked up again on each call.
    pub fn new(caller: impl Fn() -> Option<Caller> + Send + Sync + 'static) -> Self {
        Credential(Arc::new(caller))
    }

    /// The caller that the credential stands for now; `None` once it was revoked or has expired.
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

    /// A component of Muster.
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

    /// The caller of a request without credentials.
    pub fn anonymous() -> Self {
        Self {
            user: ANONYMOUS_USER.to_owned(),
            groups: vec![UNAUTHENTICATED_GROUP.to_owned()],
            ..Self::default()
        }
    }

    /// True if the caller is in this group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|one| one == group)
    }

    /// True if the caller is a component of Muster.
    pub fn is_component(&self) -> bool {
        self.is_in(COMPONENTS_GROUP)
    }

    /// True if the caller may do everything, whatever roles and bindings grant.
    pub fn is_unlimited(&self) -> bool {
        self.is_in(MASTERS_GROUP) || self.is_component()
    }

    /// The node whose agent the caller is.
    pub fn node_name(&self) -> Option<&str> {
        self.is_in(names::NODES_GROUP)
            .then(|| self.user.strip_prefix(names::NODE_USER_PREFIX))
            .flatten()
    }
}

/// The groups of a service account of this namespace.
pub fn service_account_groups(namespace: &str) -> [String; 2] {
    [
        SERVICE_ACCOUNTS_GROUP.to_owned(),
        format!("{SERVICE_ACCOUNTS_GROUP}:{namespace}"),
    ]
}

/// The namespace and name of the service account with this user name.
pub fn service_account_of(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    let whole = !namespace.is_empty() && !name.is_empty() && !name.contains(':');
    whole.then_some((namespace, name))
}

/// The token in the value of an `Authorization` header with the scheme `Bearer`, in any capitalisation.
pub fn bearer_token(authorization: &str) -> Option<&str> {
    let (scheme, secret) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

/// The attributes of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestAttributes<'a> {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: &'a str,
    /// API group; empty for the core group.
    pub group: &'a str,
    /// The resource's plural.
    pub resource: &'a str,
    /// `status`, `scale`, `log`, ...; `None` for the object itself.
    pub subresource: Option<&'a str>,
    /// The namespace; `None` for cluster-scoped objects and for requests over all namespaces.
    pub namespace: Option<&'a str>,
    /// The object's name, if the request names one object.
    pub name: Option<&'a str>,
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
