//! Owns the enforcement of NodeRestriction: before an existing object is changed or deleted, and
//! after the result of a write is known. The rules are in `resources::admission::node_restriction`.

use resources::admission::node_restriction;
use serde_json::Value;

use crate::call::Call;
use crate::object;
use crate::status::Failure;

/// Refuses a node's change or deletion of a pod that is not bound to it. Checks the state that the
/// write replaces: another pod of the same name may have replaced the pod that was authorised.
pub(crate) fn existing(call: &Call, live: &Value) -> Result<(), Failure> {
    let Some(node) = call.caller.node_name() else {
        return Ok(());
    };
    let is_pod = (call.kind.group, call.kind.kind) == ("", "Pod");
    if !is_pod || live["spec"]["nodeName"] == node {
        return Ok(());
    }
    let why = format!("node {node:?} may change and delete only pods that are bound to it");
    Err(Failure::forbidden(call.kind, object::name(live), &why))
}

/// Refuses a write that NodeRestriction forbids.
pub(crate) fn written(call: &Call, next: &Value, live: Option<&Value>) -> Result<(), Failure> {
    let Some(node) = call.caller.node_name() else {
        return Ok(());
    };
    match node_restriction(node, call.kind, next, live) {
        None => Ok(()),
        Some(why) => Err(Failure::forbidden(call.kind, object::name(next), &why)),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use resources::access::Caller;
    use serde_json::json;
    use store::{Options, Store};

    use super::*;
    use crate::core_kinds::kind_of;
    use crate::negotiate;
    use crate::request::Params;
    use crate::server::{ApiConfig, ApiServer};

    #[test]
    fn a_pod_that_took_the_name_of_the_nodes_pod_meanwhile_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Options::default()).unwrap();
        let server = ApiServer::open(store, ApiConfig::default()).unwrap();
        let call = |caller: Caller, kind: &str| Call {
            server: server.clone(),
            caller,
            credential: None,
            kind: kind_of("", kind),
            namespace: Some("default".to_owned()),
            name: Some("p".to_owned()),
            params: Params::parse(None).unwrap(),
            headers: HeaderMap::new(),
            form: negotiate::PLAIN,
            dry_run: false,
            without_managers: false,
            audit: crate::audit::AuditNotes::default(),
            upgrade: None,
        };
        let on = |node: &str| json!({"metadata": {"name": "p"}, "spec": {"nodeName": node}});
        let node = || call(Caller::node("n1"), "Pod");
        assert!(existing(&node(), &on("n1")).is_ok());
        for other in ["n2", ""] {
            let refused = existing(&node(), &on(other)).unwrap_err();
            assert_eq!(refused.code().as_u16(), 403, "{other}");
        }
        let scheduler = call(Caller::component("scheduler"), "Pod");
        assert!(existing(&scheduler, &on("n2")).is_ok());
        let own = call(Caller::node("n1"), "Node");
        assert!(existing(&own, &json!({"metadata": {"name": "n1"}})).is_ok());
    }
}
