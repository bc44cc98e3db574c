//! Owns the prevention of privilege escalation: a caller may write a role or binding only if the
//! caller already has all of its rules, or has the verb `escalate` on the role, or `bind` on the
//! bound role. As in Kubernetes.

use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef};
use resources::access::RequestAttributes;
use resources::rbac::{GROUP, compact, quoted, show, uncovered};
use resources::registry;
use serde_json::Value;

use crate::call::Call;
use crate::object;
use crate::status::Failure;

/// The maximum number of missing rules in a refusal.
const MOST_NAMED: usize = 20;

/// Refuses a new or changed role or binding that grants more than the caller's own rights.
pub(crate) fn check(call: &Call, wanted: &Value, live: Option<&Value>) -> Result<(), Failure> {
    if call.kind.group != GROUP
        || call.caller.is_unlimited()
        || live.is_some_and(|live| grants_the_same(live, wanted))
    {
        return Ok(());
    }
    match call.kind.kind {
        "Role" | "ClusterRole" => role(call, wanted, live),
        _ => binding(call, wanted),
    }
}

/// True if only fields of the garbage collector and field management changed.
fn grants_the_same(live: &Value, wanted: &Value) -> bool {
    let granting = |object: &Value| {
        let mut object = object.clone();
        if let Some(meta) = object["metadata"].as_object_mut() {
            for field in [
                "finalizers",
                "ownerReferences",
                "managedFields",
                "resourceVersion",
            ] {
                meta.remove(field);
            }
        }
        object
    };
    granting(live) == granting(wanted)
}

fn role(call: &Call, wanted: &Value, live: Option<&Value>) -> Result<(), Failure> {
    let name = object::name(wanted);
    if may(call, "escalate", call.kind.plural, name) {
        return Ok(());
    }
    covers(call, name, &rules_of(call, wanted)?)?;
    let aggregated = |role: &Value| {
        let selectors = role["aggregationRule"]["clusterRoleSelectors"].as_array();
        selectors.is_some_and(|list| !list.is_empty())
    };
    // An aggregated role collects rules that other users write later: only an unlimited caller may
    // create it.
    if (aggregated(wanted) || live.is_some_and(aggregated))
        && covers(call, name, &everything()).is_err()
    {
        let why = "must have cluster-admin privileges to use the aggregationRule";
        return Err(Failure::forbidden(call.kind, name, why));
    }
    Ok(())
}

fn everything() -> [PolicyRule; 2] {
    let all = || Some(vec!["*".to_owned()]);
    let verbs = vec!["*".to_owned()];
    [
        PolicyRule {
            api_groups: all(),
            resources: all(),
            verbs: verbs.clone(),
            ..PolicyRule::default()
        },
        PolicyRule {
            non_resource_urls: all(),
            verbs,
            ..PolicyRule::default()
        },
    ]
}

fn rules_of(call: &Call, role: &Value) -> Result<Vec<PolicyRule>, Failure> {
    match &role["rules"] {
        Value::Null => Ok(Vec::new()),
        rules => serde_json::from_value(rules.clone()).map_err(|error| {
            Failure::bad_request(format!(
                "the rules of {} {:?} cannot be read: {error}",
                call.kind.kind,
                object::name(role)
            ))
        }),
    }
}

fn binding(call: &Call, wanted: &Value) -> Result<(), Failure> {
    let name = object::name(wanted);
    let role: RoleRef = serde_json::from_value(wanted["roleRef"].clone()).map_err(|error| {
        Failure::bad_request(format!("the roleRef of {name:?} cannot be read: {error}"))
    })?;
    let kind = registry::by_kind(GROUP, "v1", &role.kind).ok_or_else(Failure::no_such_resource)?;
    if may(call, "bind", kind.plural, &role.name) {
        return Ok(());
    }
    let policy = call.server.policy();
    let rules = policy
        .role(&role, call.namespace.as_deref())
        .ok_or_else(|| Failure::not_found(kind, &role.name))?;
    covers(call, name, rules)
}

fn may(call: &Call, verb: &str, resource: &str, name: &str) -> bool {
    call.server.permits(
        &call.caller,
        &RequestAttributes {
            verb,
            group: GROUP,
            resource,
            subresource: None,
            namespace: call.namespace.as_deref(),
            name: Some(name),
        },
    )
}

/// Refuses rules that the caller's rights in the object's namespace do not cover.
fn covers(call: &Call, name: &str, wanted: &[PolicyRule]) -> Result<(), Failure> {
    let refused = |why: &str| Failure::forbidden(call.kind, name, why);
    let policy = call.server.policy();
    let held: Vec<&PolicyRule> = policy
        .rules(&call.caller, call.namespace.as_deref())
        .collect();
    let missing = uncovered(&held, wanted).map_err(|error| refused(&error.to_string()))?;
    if missing.is_empty() {
        return Ok(());
    }
    let missing: Vec<PolicyRule> = compact(&missing);
    let mut lines: Vec<String> = missing.iter().take(MOST_NAMED).map(show).collect();
    if missing.len() > MOST_NAMED {
        lines.push(format!("and {} more", missing.len() - MOST_NAMED));
    }
    Err(refused(&format!(
        "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        call.caller.user,
        quoted(&call.caller.groups),
        lines.join("\n")
    )))
}
