//! Owns whether a watch may go on: its caller's credential and right, looked at again at an interval. A watch lasts for
//! up to a day, and a token may be revoked, a user deleted or a binding removed meanwhile.
//!
//! A look costs one lookup of the credential. The right is decided anew only where roles and bindings, or the caller,
//! are others than at the last look.

use std::sync::Arc;
use std::time::Duration;

use resources::access::{Attributes, Caller, Credential};
use resources::rbac::Policy;
use resources::registry::Kind;
use tokio::time::Instant;

use crate::call::Call;
use crate::dispatch::{Verb, within};
use crate::server::ApiServer;

/// What a watch was permitted by.
pub(crate) struct Rights {
    server: ApiServer,
    credential: Option<Credential>,
    kind: &'static Kind,
    namespace: Option<String>,
    name: Option<String>,
    selector: String,
    /// The caller at the last look.
    caller: Caller,
    /// What roles and bindings permitted at the last look.
    policy: Arc<Policy>,
    every: Duration,
    next: Instant,
}

impl Rights {
    /// Those of a watch that was permitted just now; none where nothing can end them before the process does.
    pub(crate) fn of(call: &Call) -> Option<Rights> {
        if call.credential.is_none() && call.caller.is_unlimited() {
            return None;
        }
        let every = call.server.0.config.watch_recheck;
        let every = every.max(Duration::from_millis(1));
        Some(Rights {
            server: call.server.clone(),
            credential: call.credential.clone(),
            kind: call.kind,
            namespace: call.namespace.clone(),
            name: call.name.clone(),
            selector: call
                .params
                .get("fieldSelector")
                .unwrap_or_default()
                .to_owned(),
            caller: call.caller.clone(),
            policy: call.server.policy(),
            every,
            next: Instant::now() + every,
        })
    }

    /// When to look again.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Whether the watch may go on. Looks only once it is time.
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
        // What a node may see follows its pods, too, which change without any role or binding.
        same && self.caller.node_name().is_none() || self.permitted()
    }

    fn permitted(&self) -> bool {
        let (namespace, name) = (self.namespace.as_deref(), self.name.as_deref());
        self.server.permits_selected(
            &self.caller,
            &Attributes {
                verb: Verb::Watch.word(),
                group: self.kind.group,
                resource: self.kind.plural,
                subresource: None,
                namespace: within(self.kind, namespace, name),
                name,
            },
            &self.selector,
        )
    }
}
