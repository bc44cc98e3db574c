//! Owns the authorisation of callers: unlimited callers, a node's agent, and stored roles and
//! bindings.

use std::sync::Arc;

use resources::access::{Caller, RequestAttributes};
use resources::rbac::RbacPolicy;

use crate::server::ApiServer;
use crate::status::Failure;

impl ApiServer {
    /// True if the caller may do this.
    pub fn permits(&self, caller: &Caller, request: &RequestAttributes<'_>) -> bool {
        self.permits_selected(caller, request, "")
    }

    /// The same for a request with a field selector, which is empty if the request has none: a
    /// node's right to list depends on it.
    pub(crate) fn permits_selected(
        &self,
        caller: &Caller,
        request: &RequestAttributes<'_>,
        selector: &str,
    ) -> bool {
        caller.is_unlimited()
            || caller
                .node_name()
                .is_some_and(|node| self.0.nodes.permits(&self.0.store, node, request, selector))
            || self.policy().permits(caller, request)
    }

    /// True if the caller may use this verb (an HTTP method in lower case) on a path that is not a
    /// resource.
    pub fn permits_path(&self, caller: &Caller, verb: &str, path: &str) -> bool {
        caller.is_unlimited() || self.policy().permits_path(caller, verb, path)
    }

    /// The current policy of roles and bindings.
    pub(crate) fn policy(&self) -> Arc<RbacPolicy> {
        self.0.authority.policy(&self.0.store)
    }

    /// Refuses an action that the caller is not permitted to do.
    pub(crate) fn require(
        &self,
        caller: &Caller,
        wanted: &RequestAttributes<'_>,
    ) -> Result<(), Failure> {
        self.require_selected(caller, wanted, "")
    }

    /// Refuses an action that the caller is not permitted to do, for a request with a field
    /// selector.
    pub(crate) fn require_selected(
        &self,
        caller: &Caller,
        wanted: &RequestAttributes<'_>,
        selector: &str,
    ) -> Result<(), Failure> {
        if self.permits_selected(caller, wanted, selector) {
            return Ok(());
        }
        Err(Failure::not_permitted(caller, wanted))
    }

    /// Refuses a path that is not a resource to callers without the right to it. A request without
    /// a caller belongs to the anonymous user.
    pub(crate) fn require_path(
        &self,
        caller: Option<&Caller>,
        method: &http::Method,
        path: &str,
    ) -> Result<(), Failure> {
        let verb = match *method {
            http::Method::HEAD => "get".to_owned(),
            _ => method.as_str().to_ascii_lowercase(),
        };
        match caller {
            Some(caller) if self.permits_path(caller, &verb, path) => Ok(()),
            Some(caller) => Err(Failure::path_not_permitted(caller, &verb, path)),
            None if self.permits_path(&Caller::anonymous(), &verb, path) => Ok(()),
            None => Err(Failure::unauthorized()),
        }
    }
}
