//! Owns the admission of new objects beyond validation, and the fields that admission adds: the
//! namespace must accept new objects, the user and the team of the workload, a pod's priority, limit ranges. The
//! rules themselves are in `resources::admission`; quotas are in `quota`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{LimitRange, ServiceAccount};
use resources::admission::{
    AllowedWriter, OWNED, TeamRefused, account_name, keep_work, limit_ranges, named_team, owner,
    priority, remove_team, service_account, set_team,
};
use resources::names::TEAM;
use resources::registry::Kind;
use serde::de::DeserializeOwned;
use serde_json::Value;
use store::Entry;

use crate::call::Call;
use crate::core_kinds::kind_of;
use crate::object::{self, DELETING};
use crate::reserved;
use crate::status::Failure;

/// Refuses an object whose namespace is missing or being deleted. Called before every other check
/// of the object, and again inside the transaction, where the result is binding.
pub(crate) fn namespace_takes(
    get: impl Fn(&str) -> Option<Arc<Entry>>,
    kind: &Kind,
    name: &str,
    namespace: &str,
) -> Result<(), Failure> {
    let namespaces = kind_of("", "Namespace");
    match get(&namespaces.key(None, namespace)) {
        None => Err(Failure::not_found(namespaces, namespace)),
        Some(entry) if entry.meta.fields.contains_key(DELETING) => {
            Err(Failure::namespace_terminating(kind, name, namespace))
        }
        Some(_) => Ok(()),
    }
}

/// Adds the fields that policies set on a new object, or refuses the object.
pub(crate) fn mutate(call: &Call, object: &mut Value) -> Result<(), Failure> {
    let refused =
        |object: &Value, why: &str| Failure::forbidden(call.kind, object::name(object), why);
    own(call, object, None)?;
    if call.kind.kind != "Pod" {
        return Ok(());
    }
    account(call, object)?;
    let server = &call.server.0;
    let classes = server.priority_classes.current(&server.store)?;
    priority(object, &classes).map_err(|error| refused(object, &error.to_string()))?;
    let ranges = in_namespace::<LimitRange>(call, kind_of("", "LimitRange"))?;
    let broken = limit_ranges(object, &ranges);
    match broken.as_slice() {
        [] => Ok(()),
        [one] => Err(refused(object, one)),
        several => Err(refused(object, &format!("[{}]", several.join(", ")))),
    }
}

/// The number of characters that end the name of a pod's volume with its token.
const VOLUME_SUFFIX: usize = 5;

/// Gives a new pod its service account, whose token its containers get; refuses one that names an account that does not
/// exist.
fn account(call: &Call, pod: &mut Value) -> Result<(), Failure> {
    if call.server.0.config.root_ca.is_none() {
        return Ok(());
    }
    let namespace = call.namespace.as_deref().unwrap_or_default();
    let name = account_name(pod).to_owned();
    let key = kind_of("", "ServiceAccount").key(Some(namespace), &name);
    let Some(entry) = call.server.0.store.get(&key) else {
        let why = format!(
            "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found; create it \
             (kubectl create serviceaccount {name} -n {namespace}) or name another"
        );
        return Err(Failure::forbidden(call.kind, object::name(pod), &why));
    };
    let account: ServiceAccount = serde_json::from_slice(&entry.value).map_err(|error| {
        Failure::internal(format_args!(
            "the stored object {} is damaged: {error}; delete it and create it again",
            entry.key
        ))
    })?;
    let uid = object::meta_text(pod, "uid").to_owned();
    service_account(pod, &account, uid.get(..VOLUME_SUFFIX).unwrap_or("token"));
    Ok(())
}

/// Sets the team that an object's workload counts for, or refuses another one, on creation and where an update names it.
fn team(call: &Call, object: &mut Value, live: Option<&Value>) -> Result<(), Failure> {
    let same = live.is_some_and(|live| named_team(live) == named_team(object));
    let Some(namespace) = call.namespace.as_deref().filter(|_| !same) else {
        return Ok(());
    };
    let store = &call.server.0.store;
    let namespaces = kind_of("", "Namespace");
    let own = store.get(&namespaces.key(None, namespace));
    if let Some(team) = own.as_ref().and_then(|own| own.meta.labels.get(TEAM)) {
        set_team(call.kind, object, team);
        return Ok(());
    }
    let Some(team) = named_team(object).map(str::to_owned) else {
        return Ok(());
    };
    let all = store.list(&namespaces.prefix(None), None, usize::MAX);
    let mut all = all.entries.iter();
    let exists = all.any(|one| one.meta.labels.get(TEAM) == Some(&team));
    if !exists {
        return Ok(());
    }
    if call.caller.is_component() {
        // A template named the team before it existed.
        remove_team(object);
        return Ok(());
    }
    if reserved::holds(call, AllowedWriter::Administrator) {
        return Ok(());
    }
    let namespace = namespace.to_owned();
    let why = TeamRefused { team, namespace }.to_string();
    Err(Failure::forbidden(call.kind, object::name(object), &why))
}

/// Sets the user and the team of an object's workload, on creation and on update.
pub(crate) fn own(call: &Call, object: &mut Value, live: Option<&Value>) -> Result<(), Failure> {
    if !OWNED.contains(&call.kind.kind) {
        return Ok(());
    }
    team(call, object, live)?;
    let impersonates = |user: &str| call.impersonates(user);
    let refused =
        |object: &Value, why: &str| Failure::forbidden(call.kind, object::name(object), why);
    owner(&call.caller, impersonates, object, live)
        .map_err(|error| refused(object, &error.to_string()))?;
    let Some(live) = live else { return Ok(()) };
    keep_work(&call.caller, impersonates, call.kind, object, live)
        .map_err(|error| refused(object, &error.to_string()))
}

fn in_namespace<T: DeserializeOwned>(call: &Call, kind: &Kind) -> Result<Vec<T>, Failure> {
    object::read_all(
        &call.server.0.store,
        &kind.prefix(call.namespace.as_deref()),
    )
}
