//! The callers of every request, and what the rows permit them.

use resources::access::{Caller, UserRole};

use super::{LEASES, Least, NODE, NODE_ROWS, Near, OTHERS, ROWS, TEAM, protected};
use crate::harness::user;

/// A kind of caller, as used in the rows.
#[derive(Clone, Copy)]
pub(super) enum Is {
    /// Without credentials.
    Nobody,
    /// Authenticated, without further rights.
    Stranger,
    /// A user with a role in one namespace, or everywhere.
    User(UserRole, Option<&'static str>),
    /// A node's agent.
    Node(&'static str),
}

impl Is {
    pub(super) fn caller(self) -> Option<Caller> {
        match self {
            Is::Nobody => None,
            Is::Stranger => Some(Caller::user("eve", [])),
            Is::User(role, None) => Some(user("ann", role, None)),
            Is::User(role, Some(namespace)) => Some(user("bob", role, Some(&[namespace]))),
            Is::Node(name) => Some(Caller::node(name)),
        }
    }

    /// True if the rows permit it; `namespace` is the object's.
    pub(super) fn may(self, resource: &str, verb: &str, namespace: Option<&str>) -> bool {
        let Some((_, read, create, write)) = ROWS.iter().find(|row| row.0 == resource) else {
            return false;
        };
        let least = match verb {
            "get" | "list" | "watch" => *read,
            "create" => *create,
            _ => *write,
        };
        if protected(resource, verb, namespace) {
            return false;
        }
        match self {
            Is::Nobody => false,
            Is::Stranger => least == Least::Authenticated,
            Is::Node(node) => NODE_ROWS.iter().any(|(of, verbs, near)| {
                *of == resource
                    && verbs.contains(&verb)
                    && match near {
                        Near::Anywhere => true,
                        Near::Own => {
                            let leases = resource.starts_with("leases.").then_some(LEASES);
                            node == NODE && namespace == leases
                        }
                        Near::Pods => node == NODE && namespace == Some(TEAM),
                    }
            }),
            Is::User(role, within) => match least {
                Least::Authenticated | Least::User => true,
                Least::Role(_) if role == UserRole::Admin => true,
                Least::Role(least) => match within {
                    Some(own) => namespace == Some(own) && role <= least,
                    // A cluster-wide role is that role in teams' namespaces, and a viewer's in all
                    // others.
                    None if matches!(namespace, Some(TEAM | OTHERS)) => role <= least,
                    None => least == UserRole::Viewer,
                },
            },
        }
    }
}

/// A caller, with a name for messages.
pub(super) const CALLERS: [(&str, Is); 15] = [
    ("nobody", Is::Nobody),
    ("a user without a role", Is::Stranger),
    ("an administrator", Is::User(UserRole::Admin, None)),
    ("a lead everywhere", Is::User(UserRole::Lead, None)),
    ("a member everywhere", Is::User(UserRole::Member, None)),
    ("a viewer everywhere", Is::User(UserRole::Viewer, None)),
    ("the team's lead", Is::User(UserRole::Lead, Some(TEAM))),
    ("the team's member", Is::User(UserRole::Member, Some(TEAM))),
    ("the team's viewer", Is::User(UserRole::Viewer, Some(TEAM))),
    (
        "another team's lead",
        Is::User(UserRole::Lead, Some(OTHERS)),
    ),
    (
        "another team's member",
        Is::User(UserRole::Member, Some(OTHERS)),
    ),
    (
        "another team's viewer",
        Is::User(UserRole::Viewer, Some(OTHERS)),
    ),
    (
        "a member of nothing",
        Is::User(UserRole::Member, Some("no-such-namespace")),
    ),
    ("the pod's node", Is::Node(NODE)),
    ("another node", Is::Node("n2")),
];
