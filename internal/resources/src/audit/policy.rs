//! The audit policy: Kubernetes' format (audit.k8s.io/v1, kind Policy). The first rule that matches a request sets its
//! level; a request that no rule matches is not recorded.
//!
//! Muster differs in one point: a response 401 or 403 is recorded whatever the policy says, so that no policy can hide
//! an attempt.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::API_VERSION;

/// The level of detail of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AuditLevel {
    /// Nothing.
    None,
    /// The user, verb, object, time, source address and response code.
    Metadata,
    /// Also the request body.
    Request,
    /// Also the response body.
    RequestResponse,
}

/// Why a policy is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The text is not a policy in form.
    #[error("{0}; a policy has apiVersion: {API_VERSION}, kind: Policy and rules")]
    Form(String),
    /// A field's value is wrong.
    #[error("{field}: {problem}")]
    Field {
        /// The field's path.
        field: String,
        /// The value, the problem, and the valid form.
        problem: String,
    },
}

fn wrong(field: impl Into<String>, problem: impl Into<String>) -> PolicyError {
    PolicyError::Field {
        field: field.into(),
        problem: problem.into(),
    }
}

/// The attributes of a request that rules match.
#[derive(Clone, Copy, Debug, Default)]
pub struct AuditedRequest<'a> {
    /// The user's name.
    pub user: &'a str,
    /// The user's groups.
    pub groups: &'a [String],
    /// The verb; for non-resource paths the HTTP method in lower case.
    pub verb: &'a str,
    /// The API group and the plural; `None` for non-resource paths.
    pub resource: Option<(&'a str, &'a str)>,
    /// The subresource.
    pub subresource: Option<&'a str>,
    /// The namespace.
    pub namespace: Option<&'a str>,
    /// The object's name.
    pub name: Option<&'a str>,
    /// The path.
    pub path: &'a str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GroupResources {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AuditRule {
    level: AuditLevel,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<GroupResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<String>,
    /// Accepted for compatibility with existing policies; Muster's events never hold managed fields.
    #[serde(default)]
    omit_managed_fields: Option<bool>,
}

/// A valid policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditPolicy {
    rules: Vec<AuditRule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PolicyDocument {
    api_version: String,
    kind: String,
    #[serde(default)]
    #[expect(dead_code, reason = "accepted so that ordinary manifests are read")]
    metadata: Option<Value>,
    #[serde(default)]
    rules: Vec<Value>,
    #[serde(default)]
    omit_stages: Vec<String>,
    #[serde(default)]
    #[expect(dead_code, reason = "events never hold field managers")]
    omit_managed_fields: Option<bool>,
}

/// Kubernetes' stages; a policy may omit each.
const STAGES: [&str; 4] = [
    "RequestReceived",
    "ResponseStarted",
    "ResponseComplete",
    "Panic",
];
const LEVELS: &str = r#""None", "Metadata", "Request", "RequestResponse""#;

impl AuditPolicy {
    /// Reads a policy.
    ///
    /// # Errors
    /// The invalid field, its value and the valid form.
    pub fn read(document: &Value) -> Result<AuditPolicy, PolicyError> {
        let document: PolicyDocument = serde_json::from_value(document.clone())
            .map_err(|error| PolicyError::Form(error.to_string()))?;
        if document.api_version != API_VERSION {
            let problem = format!(
                "Unsupported value: {:?}: supported values: {API_VERSION:?}",
                document.api_version
            );
            return Err(wrong("apiVersion", problem));
        }
        if document.kind != "Policy" {
            let problem = format!(
                "Unsupported value: {:?}: supported values: \"Policy\"",
                document.kind
            );
            return Err(wrong("kind", problem));
        }
        check_stages("omitStages", &document.omit_stages)?;
        if document.rules.is_empty() {
            return Err(wrong(
                "rules",
                "Required value: without a rule nothing would be recorded",
            ));
        }
        let rules = document
            .rules
            .iter()
            .enumerate()
            .map(|(at, rule)| {
                let mut rule = read_rule(at, rule)?;
                rule.omit_stages
                    .extend(document.omit_stages.iter().cloned());
                Ok(rule)
            })
            .collect::<Result<_, PolicyError>>()?;
        Ok(AuditPolicy { rules })
    }

    /// The policy of a server without a configured one: it records every write, except the frequent writes of nodes and
    /// of the server's own components (status, leases, events) and access reviews; it records no reads.
    #[must_use]
    pub fn built_in() -> AuditPolicy {
        let rule = |level| AuditRule {
            level,
            users: Vec::new(),
            user_groups: Vec::new(),
            verbs: Vec::new(),
            resources: Vec::new(),
            namespaces: Vec::new(),
            non_resource_urls: Vec::new(),
            omit_stages: Vec::new(),
            omit_managed_fields: None,
        };
        let words = |all: &[&str]| {
            all.iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        let of = |group: &str, resources: &[&str]| GroupResources {
            group: group.to_owned(),
            resources: words(resources),
            resource_names: Vec::new(),
        };
        let reads = AuditRule {
            verbs: words(&["get", "list", "watch", "head", "options"]),
            ..rule(AuditLevel::None)
        };
        let questions = AuditRule {
            resources: vec![
                of("authorization.k8s.io", &["*"]),
                of("authentication.k8s.io", &["*"]),
            ],
            ..rule(AuditLevel::None)
        };
        let routine = AuditRule {
            user_groups: words(&["system:muster", "system:nodes"]),
            resources: vec![
                of("", &["events", "*/status", "endpoints"]),
                of("events.k8s.io", &["events"]),
                of("discovery.k8s.io", &["endpointslices"]),
                of("coordination.k8s.io", &["leases"]),
                of("batch", &["*/status"]),
                of("kubeflow.org", &["*/status"]),
                of("scheduling.volcano.sh", &["*/status"]),
                of("policy", &["*/status"]),
            ],
            ..rule(AuditLevel::None)
        };
        AuditPolicy {
            rules: vec![reads, questions, routine, rule(AuditLevel::Metadata)],
        }
    }

    /// The level of detail for a request.
    #[must_use]
    pub fn level(&self, request: &AuditedRequest<'_>) -> AuditLevel {
        let rule = self.rules.iter().find(|rule| rule.matches(request));
        rule.filter(|rule| !rule.omits("ResponseComplete"))
            .map_or(AuditLevel::None, |rule| rule.level)
    }
}

fn read_rule(at: usize, rule: &Value) -> Result<AuditRule, PolicyError> {
    let field = |name: &str| format!("rules[{at}].{name}");
    match rule.get("level").map(|level| (level, level.as_str())) {
        None => {
            return Err(wrong(
                field("level"),
                format!("Required value: one of {LEVELS}"),
            ));
        }
        Some((_, Some("None" | "Metadata" | "Request" | "RequestResponse"))) => {}
        Some((level, _)) => {
            let problem = format!("Unsupported value: {level}: supported values: {LEVELS}");
            return Err(wrong(field("level"), problem));
        }
    }
    let rule: AuditRule = serde_json::from_value(rule.clone())
        .map_err(|error| wrong(format!("rules[{at}]"), error.to_string()))?;
    check_stages(&field("omitStages"), &rule.omit_stages)?;
    let of_resources = !rule.resources.is_empty() || !rule.namespaces.is_empty();
    if of_resources && !rule.non_resource_urls.is_empty() {
        return Err(wrong(
            field("nonResourceURLs"),
            "Invalid value: a rule is either for resources and namespaces or for nonResourceURLs; make two rules of it",
        ));
    }
    for (i, url) in rule.non_resource_urls.iter().enumerate() {
        let body = url.strip_suffix('*').unwrap_or(url);
        if body.contains('*') || !(url == "*" || url.starts_with('/')) {
            let problem = format!(
                "Invalid value: {url:?}: must be \"*\" or begin with \"/\", and may have one \"*\" at its end"
            );
            return Err(wrong(format!("rules[{at}].nonResourceURLs[{i}]"), problem));
        }
    }
    Ok(rule)
}

fn check_stages(field: &str, stages: &[String]) -> Result<(), PolicyError> {
    match stages
        .iter()
        .find(|stage| !STAGES.contains(&stage.as_str()))
    {
        None => Ok(()),
        Some(stage) => Err(wrong(
            field,
            format!("Unsupported value: {stage:?}: supported values: {STAGES:?}"),
        )),
    }
}

impl AuditRule {
    fn omits(&self, stage: &str) -> bool {
        self.omit_stages.iter().any(|omitted| omitted == stage)
    }

    fn matches(&self, request: &AuditedRequest<'_>) -> bool {
        let any_or = |words: &[String], word: &str| {
            words.is_empty() || words.iter().any(|one| one == word || one == "*")
        };
        let user = self.users.is_empty() || self.users.iter().any(|user| user == request.user);
        let group = self.user_groups.is_empty()
            || self
                .user_groups
                .iter()
                .any(|group| request.groups.contains(group));
        user && group && any_or(&self.verbs, request.verb) && self.matches_target(request)
    }

    fn matches_target(&self, request: &AuditedRequest<'_>) -> bool {
        let for_resources = !self.resources.is_empty() || !self.namespaces.is_empty();
        let for_paths = !self.non_resource_urls.is_empty();
        let Some((group, resource)) = request.resource else {
            return if for_paths {
                self.non_resource_urls
                    .iter()
                    .any(|url| match url.strip_suffix('*') {
                        Some(prefix) => request.path.starts_with(prefix),
                        None => url == request.path,
                    })
            } else {
                !for_resources
            };
        };
        if for_paths {
            return false;
        }
        let namespace = request.namespace.unwrap_or_default();
        let here = self.namespaces.is_empty() || self.namespaces.iter().any(|one| one == namespace);
        here && (self.resources.is_empty()
            || self
                .resources
                .iter()
                .any(|rule| rule.matches(group, resource, request)))
    }
}

impl GroupResources {
    fn matches(&self, group: &str, resource: &str, request: &AuditedRequest<'_>) -> bool {
        if self.group != group {
            return false;
        }
        let named = self.resource_names.is_empty()
            || request
                .name
                .is_some_and(|name| self.resource_names.iter().any(|one| one == name));
        let kind = |rule: &String| match (rule.split_once('/'), request.subresource) {
            (None, None) => rule == "*" || rule == resource,
            // `*` alone matches every resource with every subresource.
            (None, Some(_)) => rule == "*",
            (Some((of, sub)), Some(asked)) => {
                (of == "*" || of == resource) && (sub == "*" || sub == asked)
            }
            (Some(_), None) => false,
        };
        named && (self.resources.is_empty() || self.resources.iter().any(kind))
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
