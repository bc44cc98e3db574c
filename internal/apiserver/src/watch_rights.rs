//! Owns the periodic check that a watch, or a command in a container, may continue: its caller's
//! credential and rights. It lasts for hours, and meanwhile a token may be revoked, a user deleted or a binding removed.
//!
//! A check costs one lookup of the credential. The rights are checked again only if the roles and
//! bindings, or the caller, have changed since the previous check.

use std::sync::Arc;
use std::time::Duration;

use resources::access::{Caller, Credential, RequestAttributes};
use resources::rbac::RbacPolicy;
use resources::registry::Kind;
use tokio::time::Instant;

use crate::call::Call;
use crate::server::ApiServer;
use crate::verb::{Verb, within};

/// The authorisation of a request that lasts.
pub(crate) struct Rights {
    server: ApiServer,
    credential: Option<Credential>,
    verb: Verb,
    kind: &'static Kind,
    subresource: Option<&'static str>,
    namespace: Option<String>,
    name: Option<String>,
    selector: String,
    /// The caller at the previous check.
    caller: Caller,
    /// The policy of roles and bindings at the previous check.
    policy: Arc<RbacPolicy>,
    every: Duration,
    next: Instant,
}

impl Rights {
    /// The authorisation of a new watch; none if it cannot end before the process does.
    pub(crate) fn of(call: &Call) -> Option<Rights> {
        Rights::to(call, Verb::Watch, None)
    }

    /// The authorisation of a request that lasts on a subresource; none if it cannot end before the process does.
    pub(crate) fn to_create(call: &Call, subresource: &'static str) -> Option<Rights> {
        Rights::to(call, Verb::Create, Some(subresource))
    }

    fn to(call: &Call, verb: Verb, subresource: Option<&'static str>) -> Option<Rights> {
        if call.credential.is_none() && call.caller.is_unlimited() {
            return None;
        }
        let every = call.server.0.config.watch_recheck;
        let every = every.max(Duration::from_millis(1));
        Some(Rights {
            server: call.server.clone(),
            credential: call.credential.clone(),
            verb,
            kind: call.kind,
            subresource,
            namespace: call.namespace.clone(),
            name: call.name.clone(),
            selector: call
                .params
                .get("fieldSelector")
                .unwrap_or_default()
                .to_owned(),
            caller: call.caller.clone(),
            // The first check decides anew: the right was checked before the objects were listed, and may be gone.
            policy: Arc::default(),
            every,
            next: Instant::now() + every,
        })
    }

    /// The time of the next check.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Returns when the request may no longer continue.
    pub(crate) async fn lost(mut self) {
        while self.stand() {
            tokio::time::sleep_until(self.next).await;
        }
    }

    /// True if the request may continue. Checks only if the interval has passed.
    pub(crate) fn stand(&mut self) -> bool {
        let now = Instant::now();
        if now < self.next {
            return true;
        }
        self.next = now + self.every;
        let caller = match &self.credential {
            None => self.caller.clone(),
            Some(credential) => match credential.caller() {
                None => return false,
                Some(caller) => caller,
            },
        };
        let policy = self.server.policy();
        let same = caller == self.caller && Arc::ptr_eq(&policy, &self.policy);
        (self.caller, self.policy) = (caller, policy);
        // A node's rights also depend on its pods, which change without any role or binding.
        same && self.caller.node_name().is_none() || self.permitted()
    }

    fn permitted(&self) -> bool {
        let (namespace, name) = (self.namespace.as_deref(), self.name.as_deref());
        self.server.permits_selected(
            &self.caller,
            &RequestAttributes {
                verb: self.verb.word(),
                group: self.kind.group,
                resource: self.kind.plural,
                subresource: self.subresource,
                namespace: within(self.kind, namespace, name),
                name,
            },
            &self.selector,
        )
    }
}
