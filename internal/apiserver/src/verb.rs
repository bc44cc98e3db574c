//! Owns the operation of a request: its verb, and the namespace in which the caller needs the right to it.

use http::Method;
use resources::registry::Kind;

use crate::core_kinds::is_namespace;

/// The operation of a request, as used by authorisation and the verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
        }
    }

    /// True if the verb writes nothing, so that a body would not be read.
    pub(crate) fn reads(self) -> bool {
        matches!(self, Verb::Get | Verb::List | Verb::Watch)
    }

    pub(crate) fn of(method: &Method, named: bool, watching: bool) -> Option<Verb> {
        match (method, named) {
            (&Method::GET | &Method::HEAD, _) if watching => Some(Verb::Watch),
            (&Method::GET | &Method::HEAD, true) => Some(Verb::Get),
            (&Method::GET | &Method::HEAD, false) => Some(Verb::List),
            (&Method::POST, _) => Some(Verb::Create),
            (&Method::PUT, true) => Some(Verb::Update),
            (&Method::PATCH, true) => Some(Verb::Patch),
            (&Method::DELETE, true) => Some(Verb::Delete),
            (&Method::DELETE, false) => Some(Verb::DeleteCollection),
            _ => None,
        }
    }
}

/// The namespace of a request. A Namespace object belongs to itself, so that a role in it can cover
/// it.
pub(crate) fn within<'a>(
    kind: &Kind,
    namespace: Option<&'a str>,
    name: Option<&'a str>,
) -> Option<&'a str> {
    match is_namespace(kind) {
        true => name,
        false => namespace,
    }
}
