//! The roles and bindings that exist from the start: Kubernetes' (`cluster-admin`, `admin`, `edit`, `view`, discovery)
//! and Muster's. Roles that read "everything" list the registered kinds, so that they include a new kind.
//!
//! Users get their rights through groups (`access::UserRole::groups`). The group `muster:users` reads what the cluster
//! shares. A user with a role everywhere reads all namespaces, except Secrets, through a ClusterRoleBinding to
//! `muster:viewer`. All other rights come from three RoleBindings that every namespace gets when it is created, except
//! Muster's and Kubernetes' own namespaces: RBAC has no "except", and a cluster-wide binding would expose the Secrets
//! of `muster-system` to every user. Administrators and leads may change these bindings like any others.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::{Value, json};

use super::{AUTOUPDATE, BOOTSTRAPPING, GROUP, uncovered};
use crate::access::{
    AUTHENTICATED_GROUP, MASTERS_GROUP, UNAUTHENTICATED_GROUP, USERS_GROUP, UserRole,
};
use crate::json;
use crate::names::SYSTEM_NAMESPACES;
use crate::registry::{self, Kind};

/// The ClusterRole for reading everything that the cluster shares.
const SHARED_READER: &str = "muster:shared-reader";
const READ: [&str; 3] = ["get", "list", "watch"];
const WRITE: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

/// Only administrators may write these: they bound a team's usage, report that a node is alive, or hold templates that
/// controllers create pods from and that admission did not check.
const RESERVED: [(&str, &str); 4] = [
    ("", "resourcequotas"),
    ("", "limitranges"),
    ("apps", "controllerrevisions"),
    ("coordination.k8s.io", "leases"),
];
/// The API group of what nodes and pods use.
const MEASURED: &str = "metrics.k8s.io";
/// The kinds that a member creates and changes.
const MEMBERS_OWN: [(&str, &str); 32] = [
    ("", "pods"),
    ("", "configmaps"),
    ("", "secrets"),
    ("", "persistentvolumeclaims"),
    ("", "services"),
    ("", "events"),
    ("apps", "daemonsets"),
    ("apps", "deployments"),
    ("apps", "replicasets"),
    ("apps", "statefulsets"),
    ("autoscaling", "horizontalpodautoscalers"),
    ("batch", "cronjobs"),
    ("batch", "jobs"),
    ("batch.volcano.sh", "jobs"),
    ("bus.volcano.sh", "commands"),
    ("jobset.x-k8s.io", "jobsets"),
    ("keda.sh", "scaledobjects"),
    ("kubeflow.org", "jaxjobs"),
    ("kubeflow.org", "mpijobs"),
    ("kubeflow.org", "paddlejobs"),
    ("kubeflow.org", "pytorchjobs"),
    ("kubeflow.org", "tfjobs"),
    ("kubeflow.org", "xgboostjobs"),
    ("leaderworkerset.x-k8s.io", "leaderworkersets"),
    ("networking.k8s.io", "networkpolicies"),
    ("ray.io", "rayclusters"),
    ("ray.io", "rayjobs"),
    ("ray.io", "rayservices"),
    ("scheduling.volcano.sh", "podgroups"),
    ("serving.knative.dev", "services"),
    ("trainer.kubeflow.org", "trainingruntimes"),
    ("trainer.kubeflow.org", "trainjobs"),
];
/// The paths of discovery.
const DISCOVERY: [&str; 11] = [
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/healthz",
    "/livez",
    "/openapi",
    "/openapi/*",
    "/readyz",
    "/version",
    "/version/",
];
/// The paths that need no credentials.
const PUBLIC: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

fn is_secret(kind: &Kind) -> bool {
    kind.group.is_empty() && kind.plural == "secrets"
}

/// A rule for each API group over the selected kinds.
fn over(
    kept: impl Fn(&Kind) -> bool,
    resources: impl Fn(&Kind) -> Vec<String>,
    verbs: &[&str],
) -> Vec<Value> {
    let mut groups: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for kind in registry::all().iter().filter(|kind| kept(kind)) {
        groups
            .entry(kind.group)
            .or_default()
            .extend(resources(kind));
    }
    let one = |(group, resources): (&str, Vec<String>)| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    groups.into_iter().map(one).collect()
}

/// A kind and its readable subresources.
fn read_parts(kind: &Kind) -> Vec<String> {
    let mut parts = written_parts(kind);
    if kind.status {
        parts.push(format!("{}/status", kind.plural));
    }
    if kind.extra_subresources.contains(&"log") {
        parts.push(format!("{}/log", kind.plural));
    }
    parts
}

/// A kind and the subresources that its users write; only the system writes `status` and `binding`.
fn written_parts(kind: &Kind) -> Vec<String> {
    let scale = kind
        .scale
        .is_some()
        .then(|| format!("{}/scale", kind.plural));
    std::iter::once(kind.plural.to_owned())
        .chain(scale)
        .collect()
}

/// Reads everything in a namespace except Secrets, roles and bindings, and what its pods use.
fn reader_rules() -> Vec<Value> {
    let mut rules = over(
        |kind| kind.namespaced && !is_secret(kind) && kind.group != GROUP,
        read_parts,
        &READ,
    );
    rules.push(rule(MEASURED, &["pods"], &READ));
    rules
}

/// Reads the objects that the cluster shares, and what its nodes use.
fn shared_rules() -> Vec<Value> {
    let mut rules = over(
        |kind| !kind.namespaced && kind.group != GROUP,
        read_parts,
        &READ,
    );
    rules.push(rule(MEASURED, &["nodes"], &READ));
    rules
}

/// The rights of a member beyond reading.
fn member_rules() -> Vec<Value> {
    let mut rules = over(
        |kind| MEMBERS_OWN.contains(&(kind.group, kind.plural)),
        written_parts,
        &WRITE,
    );
    rules.push(rule("", &["secrets"], &READ));
    rules.push(rule("", &["pods/eviction"], &["create"]));
    rules.push(rule(
        "",
        &["pods/attach", "pods/exec", "pods/portforward"],
        &["create", "get"],
    ));
    rules.push(rule(
        "",
        &["pods/proxy", "services/proxy"],
        &["create", "delete", "get", "patch", "update"],
    ));
    rules
}

/// The rights of a lead beyond a member's.
fn lead_rules() -> Vec<Value> {
    let mut rules = over(
        |kind| kind.namespaced && !RESERVED.contains(&(kind.group, kind.plural)),
        written_parts,
        &WRITE,
    );
    rules.push(rule(GROUP, &["roles", "rolebindings"], &READ));
    rules.push(rule("", &["serviceaccounts/token"], &["create"]));
    rules.push(rule(
        "authorization.k8s.io",
        &["localsubjectaccessreviews"],
        &["create"],
    ));
    rules
}

fn everything() -> Vec<Value> {
    vec![
        rule("*", &["*"], &["*"]),
        json!({"nonResourceURLs": ["*"], "verbs": ["*"]}),
    ]
}

fn paths(paths: &[&str]) -> Vec<Value> {
    vec![json!({"nonResourceURLs": paths, "verbs": ["get"]})]
}

fn object(kind: &str, name: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind,
        "metadata": {
            "name": name,
            "labels": {BOOTSTRAPPING: "rbac-defaults"},
            "annotations": {AUTOUPDATE: "true"},
        },
    })
}

fn cluster_role(name: &str, rules: Vec<Value>) -> Value {
    let mut role = object("ClusterRole", name);
    role["rules"] = rules.into();
    role
}

fn aggregation_label(to: &str) -> String {
    format!("{GROUP}/aggregate-to-{to}")
}

/// A ClusterRole that aggregates the roles with its label and is part of `parent`.
fn aggregated(name: &str, parent: Option<&str>) -> Value {
    let mut role = object("ClusterRole", name);
    if let Some(parent) = parent {
        role["metadata"]["labels"][aggregation_label(parent)] = "true".into();
    }
    role["aggregationRule"] =
        json!({"clusterRoleSelectors": [{"matchLabels": {aggregation_label(name): "true"}}]});
    role["rules"] = Value::Array(Vec::new());
    role
}

fn part_of(to: &str, rules: Vec<Value>) -> Value {
    let mut role = cluster_role(&format!("system:aggregate-to-{to}"), rules);
    role["metadata"]["labels"][aggregation_label(to)] = "true".into();
    role
}

/// The ClusterRoles that exist from the start.
pub fn cluster_roles() -> Vec<Value> {
    let asked = |group: &str, kinds: &[&str]| rule(group, kinds, &["create"]);
    let member = || [reader_rules(), member_rules()].concat();
    vec![
        cluster_role("cluster-admin", everything()),
        aggregated("admin", None),
        aggregated("edit", Some("admin")),
        aggregated("view", Some("edit")),
        part_of("admin", lead_rules()),
        part_of("edit", member_rules()),
        part_of("view", reader_rules()),
        cluster_role(
            "system:basic-user",
            vec![
                asked(
                    "authorization.k8s.io",
                    &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
                ),
                asked("authentication.k8s.io", &["selfsubjectreviews"]),
            ],
        ),
        cluster_role("system:discovery", paths(&DISCOVERY)),
        cluster_role("system:public-info-viewer", paths(&PUBLIC)),
        cluster_role(UserRole::Admin.group(), everything()),
        cluster_role(UserRole::Lead.group(), [member(), lead_rules()].concat()),
        cluster_role(UserRole::Member.group(), member()),
        cluster_role(UserRole::Viewer.group(), reader_rules()),
        cluster_role(SHARED_READER, shared_rules()),
    ]
}

/// The ClusterRoles for the users of a Kubernetes cluster: the rights of Muster's roles on Muster's kinds. Kubernetes'
/// own `admin`, `edit` and `view` grant the rest, and include these by their labels; none grants more rights on
/// Kubernetes' kinds than the cluster's administrators chose. `muster-admin` is part of no other role.
pub fn kubernetes_cluster_roles() -> Vec<Value> {
    let groups: BTreeSet<&str> = registry::all()
        .iter()
        .filter(|kind| kind.is_custom())
        .map(|kind| kind.group)
        .collect();
    let role = |role: UserRole, to: Option<&str>, rules: Vec<Value>| {
        let mut ours: Vec<Value> = Vec::new();
        for rule in rules {
            let of_ours = rule["apiGroups"][0]
                .as_str()
                .is_some_and(|group| groups.contains(group));
            if of_ours && !ours.contains(&rule) {
                ours.push(rule);
            }
        }
        let mut object = json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole",
            "metadata": {"name": role.group().replace(':', "-")},
            "rules": ours,
        });
        if let Some(to) = to {
            object["metadata"]["labels"] = json!({aggregation_label(to): "true"});
        }
        object
    };
    let viewer = || [reader_rules(), shared_rules()].concat();
    let member = || [viewer(), member_rules()].concat();
    vec![
        role(
            UserRole::Admin,
            None,
            over(Kind::is_custom, read_parts, &["*"]),
        ),
        role(
            UserRole::Lead,
            Some("admin"),
            [member(), lead_rules()].concat(),
        ),
        role(UserRole::Member, Some("edit"), member()),
        role(UserRole::Viewer, Some("view"), viewer()),
    ]
}

fn binding(kind: &str, name: &str, role: &str, groups: &[&str]) -> Value {
    let subjects: Vec<Value> = groups
        .iter()
        .map(|group| json!({"kind": "Group", "apiGroup": GROUP, "name": group}))
        .collect();
    let mut binding = object(kind, name);
    binding["roleRef"] = json!({"apiGroup": GROUP, "kind": "ClusterRole", "name": role});
    binding["subjects"] = subjects.into();
    binding
}

/// The ClusterRoleBindings that exist from the start.
pub fn cluster_role_bindings() -> Vec<Value> {
    let bind =
        |name: &str, role: &str, groups: &[&str]| binding("ClusterRoleBinding", name, role, groups);
    let same = |name: &str, groups: &[&str]| bind(name, name, groups);
    let everywhere = [UserRole::Lead, UserRole::Member, UserRole::Viewer].map(UserRole::group);
    vec![
        same("cluster-admin", &[MASTERS_GROUP]),
        same("system:basic-user", &[AUTHENTICATED_GROUP]),
        same("system:discovery", &[AUTHENTICATED_GROUP]),
        same(
            "system:public-info-viewer",
            &[AUTHENTICATED_GROUP, UNAUTHENTICATED_GROUP],
        ),
        same(UserRole::Admin.group(), &[UserRole::Admin.group()]),
        bind("muster:everywhere", UserRole::Viewer.group(), &everywhere),
        same(SHARED_READER, &[USERS_GROUP]),
    ]
}

/// The RoleBindings that a namespace gets when it is created; empty for the system's namespaces.
pub fn role_bindings(namespace: &str) -> Vec<Value> {
    if SYSTEM_NAMESPACES.contains(&namespace) {
        return Vec::new();
    }
    let one = |role: UserRole| {
        let here = role.group_in(namespace);
        let mut binding = binding(
            "RoleBinding",
            role.group(),
            role.group(),
            &[role.group(), &here],
        );
        binding["metadata"]["namespace"] = namespace.into();
        binding
    };
    [UserRole::Lead, UserRole::Member, UserRole::Viewer]
        .map(one)
        .into()
}

/// The new state of a default role or binding when the server starts: missing parts are added, and additions by others
/// stay. `None` if nothing is missing, or if its annotation disables the update.
pub fn completed(live: &Value, wanted: &Value) -> Option<Value> {
    if json::text(live, &["metadata", "annotations", AUTOUPDATE]) == "false" {
        return None;
    }
    let mut next = live.clone();
    for field in ["labels", "annotations"] {
        let Some(to) = json::object(&mut next, "metadata").and_then(|to| json::object(to, field))
        else {
            continue;
        };
        for (key, value) in json::members(wanted, &["metadata", field]) {
            json::fill(to, key, value.clone());
        }
    }
    match json::text(wanted, &["kind"]) {
        "ClusterRole" if json::has(wanted, &["aggregationRule"]) => {
            if let Some(rule) = json::object(&mut next, "aggregationRule") {
                let wanted = json::items(wanted, &["aggregationRule", "clusterRoleSelectors"]);
                add_missing(rule, "clusterRoleSelectors", wanted);
            }
        }
        "ClusterRole" => add_rules(&mut next, json::items(wanted, &["rules"])),
        _ => {
            add_missing(&mut next, "subjects", json::items(wanted, &["subjects"]));
            if let Some(next) = next.as_object_mut() {
                next.insert("roleRef".to_owned(), wanted["roleRef"].clone());
            }
        }
    }
    (next != *live).then_some(next)
}

fn add_missing(to: &mut Value, field: &str, wanted: &[Value]) {
    let mut all = json::items(to, &[field]).to_vec();
    all.extend(
        wanted
            .iter()
            .filter(|one| !json::items(to, &[field]).contains(one))
            .cloned(),
    );
    set_list(to, field, all);
}

/// Adds the rules that the role's own don't cover.
fn add_rules(role: &mut Value, wanted: &[Value]) {
    let mut all = json::items(role, &["rules"]).to_vec();
    let typed = |rule: &Value| serde_json::from_value::<PolicyRule>(rule.clone()).ok();
    let held: Vec<PolicyRule> = all.iter().filter_map(typed).collect();
    let held: Vec<&PolicyRule> = held.iter().collect();
    for rule in wanted {
        let covered = typed(rule)
            .is_some_and(|rule| uncovered(&held, &[rule]).is_ok_and(|missing| missing.is_empty()));
        if !covered {
            all.push(rule.clone());
        }
    }
    set_list(role, "rules", all);
}

fn set_list(to: &mut Value, field: &str, list: Vec<Value>) {
    if list.is_empty() && !json::has(to, &[field]) {
        return;
    }
    if let Some(to) = to.as_object_mut() {
        to.insert(field.to_owned(), list.into());
    }
}
