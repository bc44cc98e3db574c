//! The right to a request to a program in a pod: RBAC's on `pods/proxy` or `services/proxy`, at the begin of a request
//! and while its answer streams.

use std::time::Duration;

use apiserver::{ApiServer, PROXY};
use axum::http::Method;
use resources::access::{Caller, Credential, RequestAttributes};
use resources::registry::Kind;

use crate::refusal::WebRefusal;

/// What a request needs the right to.
#[derive(Clone)]
pub struct Wanted {
    /// The kind: of pods, or of Services.
    pub kind: &'static Kind,
    /// The namespace.
    pub namespace: String,
    /// The object as rights name it.
    pub name: String,
    /// The verb.
    pub verb: &'static str,
}

/// The verb that a request needs: that of its method, as in Kubernetes, and `create` for a WebSocket, which begins with
/// GET but carries commands, as an exec does. Also for methods of WebDAV and the like.
pub fn verb(method: &Method, upgrades: bool) -> &'static str {
    match *method {
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::GET | Method::HEAD | Method::OPTIONS if !upgrades => "get",
        _ => "create",
    }
}

impl Wanted {
    fn permitted(&self, api: &ApiServer, caller: &Caller) -> bool {
        let attributes = RequestAttributes {
            verb: self.verb,
            group: self.kind.group,
            resource: self.kind.plural,
            subresource: Some(PROXY),
            namespace: Some(&self.namespace),
            name: Some(&self.name),
        };
        api.permits(caller, &attributes)
    }

    /// Refuses a caller without the right.
    pub fn require(&self, api: &ApiServer, caller: &Caller) -> Result<(), WebRefusal> {
        if self.permitted(api, caller) {
            return Ok(());
        }
        Err(WebRefusal::forbidden(format!(
            "{kind} {name:?} is forbidden: user {user:?} cannot {verb} resource \"{kind}/{PROXY}\" in the namespace \
             {namespace:?}; an administrator can bind a role that permits it",
            kind = self.kind.plural,
            name = self.name,
            user = caller.user,
            verb = self.verb,
            namespace = self.namespace
        )))
    }

    /// Returns when the caller has lost the right, or its credential has ended. Looks each time that `every` has passed.
    pub async fn lost(
        self,
        api: ApiServer,
        caller: Caller,
        credential: Option<Credential>,
        every: Duration,
    ) {
        if credential.is_none() && caller.is_unlimited() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(every).await;
            let now = match &credential {
                Some(credential) => credential.caller(),
                None => Some(caller.clone()),
            };
            if !now.is_some_and(|caller| self.permitted(&api, &caller)) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_websocket_needs_the_right_to_create() {
        for (method, upgrades, expected) in [
            (Method::GET, false, "get"),
            (Method::GET, true, "create"),
            (Method::OPTIONS, false, "get"),
            (Method::POST, false, "create"),
            (Method::DELETE, false, "delete"),
            (Method::PUT, false, "update"),
        ] {
            assert_eq!(verb(&method, upgrades), expected, "{method}");
        }
    }
}
