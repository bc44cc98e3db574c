//! Role, ClusterRole, RoleBinding and ClusterRoleBinding. [`crate::rbac`] decides what their rules permit.

use serde_json::Value;

use super::columns::{AGE, NAME, column, wide};
use super::meta::{self, NameRule};
use super::{Kind, TableColumn};
use crate::field::{FieldError, Path};
use crate::json;
use crate::names::RBAC_GROUP as GROUP;
use crate::syntax;

/// The most rules of a written role: each request of its subjects scans them.
const MOST_RULES: usize = 1_000;

const ROLE_COLUMNS: &[TableColumn] = &[
    NAME,
    column("Created At", "date", "When it was created.", |role, _| {
        json::at(role, &["metadata", "creationTimestamp"]).clone()
    }),
];

const BINDING_COLUMNS: &[TableColumn] = &[
    NAME,
    column(
        "Role",
        "string",
        "The role whose rules the subjects have.",
        |binding, _| {
            let part = |field| json::text(binding, &["roleRef", field]);
            Value::from(format!("{}/{}", part("kind"), part("name")))
        },
    ),
    AGE,
    wide(
        "Users",
        "string",
        "The users that have the role.",
        |binding, _| subjects_of(binding, "User"),
    ),
    wide(
        "Groups",
        "string",
        "The groups that have the role.",
        |binding, _| subjects_of(binding, "Group"),
    ),
    wide(
        "ServiceAccounts",
        "string",
        "The service accounts that have the role.",
        |binding, _| subjects_of(binding, "ServiceAccount"),
    ),
];

const ROLES: Kind = Kind {
    group: GROUP,
    columns: ROLE_COLUMNS,
    ..Kind::BASE
};

const BINDINGS: Kind = Kind {
    group: GROUP,
    default: default_binding,
    columns: BINDING_COLUMNS,
    ..Kind::BASE
};

pub(super) const ROLE: Kind = Kind {
    kind: "Role",
    plural: "roles",
    singular: "role",
    list_kind: "RoleList",
    schema: "io.k8s.api.rbac.v1.Role",
    validate: |new, old| {
        let mut errors = Vec::new();
        meta::check(new, old, true, NameRule::Segment, &mut errors);
        rules(new, true, &mut errors);
        check_count(new, old, &mut errors);
        errors
    },
    ..ROLES
};

pub(super) const CLUSTER_ROLE: Kind = Kind {
    kind: "ClusterRole",
    plural: "clusterroles",
    singular: "clusterrole",
    list_kind: "ClusterRoleList",
    namespaced: false,
    schema: "io.k8s.api.rbac.v1.ClusterRole",
    validate: |new, old| {
        let mut errors = Vec::new();
        meta::check(new, old, false, NameRule::Segment, &mut errors);
        rules(new, false, &mut errors);
        check_count(new, old, &mut errors);
        aggregation(new, &mut errors);
        errors
    },
    ..ROLES
};

pub(super) const ROLE_BINDING: Kind = Kind {
    kind: "RoleBinding",
    plural: "rolebindings",
    singular: "rolebinding",
    list_kind: "RoleBindingList",
    schema: "io.k8s.api.rbac.v1.RoleBinding",
    validate: |new, old| binding(new, old, true),
    ..BINDINGS
};

pub(super) const CLUSTER_ROLE_BINDING: Kind = Kind {
    kind: "ClusterRoleBinding",
    plural: "clusterrolebindings",
    singular: "clusterrolebinding",
    list_kind: "ClusterRoleBindingList",
    namespaced: false,
    schema: "io.k8s.api.rbac.v1.ClusterRoleBinding",
    validate: |new, old| binding(new, old, false),
    ..BINDINGS
};

fn subjects_of(binding: &Value, kind: &str) -> Value {
    let names: Vec<String> = json::items(binding, &["subjects"])
        .iter()
        .filter(|subject| json::text(subject, &["kind"]) == kind)
        .map(|subject| {
            let name = json::text(subject, &["name"]);
            match json::text(subject, &["namespace"]) {
                "" => name.to_owned(),
                namespace => format!("{namespace}/{name}"),
            }
        })
        .collect();
    Value::from(names.join(", "))
}

fn default_binding(binding: &mut Value) {
    if let Some(role) = json::child(binding, "roleRef") {
        json::fill_text(role, "apiGroup", GROUP);
    }
    for subject in json::list(binding, "subjects") {
        if matches!(json::text(subject, &["kind"]), "User" | "Group") {
            json::fill_text(subject, "apiGroup", GROUP);
        }
    }
}

fn rules(role: &Value, namespaced: bool, errors: &mut Vec<FieldError>) {
    let list = Path::new("rules");
    for (i, rule) in json::items(role, &["rules"]).iter().enumerate() {
        let path = list.index(i);
        let has = |field: &str| !json::items(rule, &[field]).is_empty();
        let mut required = |field: &str, detail: &str| {
            if !has(field) {
                errors.push(FieldError::required(&path.child(field), detail));
            }
        };
        required("verbs", "verbs must contain at least one value");
        let urls = json::items(rule, &["nonResourceURLs"]);
        if urls.is_empty() {
            required(
                "apiGroups",
                "resource rules must supply at least one api group",
            );
            required(
                "resources",
                "resource rules must supply at least one resource",
            );
            continue;
        }
        let path = path.child("nonResourceURLs");
        if namespaced {
            errors.push(FieldError::invalid(
                &path,
                Value::from(urls),
                "namespaced rules cannot apply to non-resource URLs",
            ));
        }
        if has("apiGroups") || has("resources") || has("resourceNames") {
            errors.push(FieldError::invalid(
                &path,
                Value::from(urls),
                "rules cannot apply to both regular resources and non-resource URLs",
            ));
        }
    }
}

/// Refuses more rules than [`MOST_RULES`]. An older role may keep more; the rules of an aggregated role are bounded in
/// its parts.
fn check_count(new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let count = |role: &Value| json::items(role, &["rules"]).len();
    let (now, before) = (count(new), old.map_or(0, count));
    if now > MOST_RULES && now > before && !json::has(new, &["aggregationRule"]) {
        errors.push(FieldError::too_many("rules", now, MOST_RULES));
    }
}

fn aggregation(role: &Value, errors: &mut Vec<FieldError>) {
    if !json::has(role, &["aggregationRule"]) {
        return;
    }
    let rule = Path::new("aggregationRule");
    let list = rule.child("clusterRoleSelectors");
    let selectors = json::items(role, &["aggregationRule", "clusterRoleSelectors"]);
    if selectors.is_empty() {
        errors.push(FieldError::required(
            &list,
            "at least one clusterRoleSelector required if aggregationRule is non-nil",
        ));
    }
    for (i, selector) in selectors.iter().enumerate() {
        meta::selector(selector, &list.index(i), errors);
    }
}

fn binding(new: &Value, old: Option<&Value>, namespaced: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, namespaced, NameRule::Segment, &mut errors);
    let path = Path::new("roleRef");
    let role = json::at(new, &["roleRef"]);
    one_of(role, &path, "apiGroup", &[GROUP], &mut errors);
    let kinds: &[&str] = match namespaced {
        true => &["Role", "ClusterRole"],
        false => &["ClusterRole"],
    };
    one_of(role, &path, "kind", kinds, &mut errors);
    let name = json::text(role, &["name"]);
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
    for fault in meta::segment(name) {
        errors.push(FieldError::invalid(&path.child("name"), name, fault));
    }
    let list = Path::new("subjects");
    for (i, one) in json::items(new, &["subjects"]).iter().enumerate() {
        subject(one, namespaced, &list.index(i), &mut errors);
    }
    if let Some(old) = old
        && !json::same(json::at(old, &["roleRef"]), role)
    {
        errors.push(FieldError::invalid(
            &path,
            role.clone(),
            "cannot change roleRef",
        ));
    }
    errors
}

fn one_of(of: &Value, path: &Path<'_>, field: &str, known: &[&str], errors: &mut Vec<FieldError>) {
    let found = json::text(of, &[field]);
    if !known.contains(&found) {
        errors.push(FieldError::not_supported(&path.child(field), found, known));
    }
}

fn subject(subject: &Value, namespaced: bool, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let name = json::text(subject, &["name"]);
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
    match json::text(subject, &["kind"]) {
        "User" | "Group" => one_of(subject, path, "apiGroup", &[GROUP], errors),
        "ServiceAccount" => {
            if !name.is_empty() {
                for fault in syntax::dns1123_subdomain(name) {
                    errors.push(FieldError::invalid(&path.child("name"), name, fault));
                }
            }
            one_of(subject, path, "apiGroup", &[""], errors);
            if !namespaced && json::text(subject, &["namespace"]).is_empty() {
                errors.push(FieldError::required(&path.child("namespace"), ""));
            }
        }
        _ => one_of(
            subject,
            path,
            "kind",
            &["ServiceAccount", "User", "Group"],
            errors,
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_role_has_rules_up_to_the_bound() {
        let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
        let sized = |count: usize| {
            let rules = vec![rule.clone(); count];
            json!({"metadata": {"name": "r", "namespace": "a"}, "rules": rules})
        };
        let (most, more) = (sized(MOST_RULES), sized(MOST_RULES + 1));
        let faults = |new: &Value, old: Option<&Value>| (ROLE.validate)(new, old).len();
        assert_eq!(faults(&most, None), 0);
        assert_eq!(faults(&more, None), 1);
        // An older role with more rules may still be changed otherwise.
        assert_eq!(faults(&more, Some(&more)), 0);
    }
}
