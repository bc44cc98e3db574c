//! Pod security admission: which pods a namespace accepts, by the Pod Security Standards of Kubernetes 1.34 and its
//! namespaces' labels, as kube-apiserver decides it, and by the administrator's allow-list.
//!
//! A pod that violates the level that its namespace enforces is refused. Objects with pod templates, such as jobs, are
//! never refused: their author is warned, and their pods are refused when a controller creates them. Four things differ
//! from Kubernetes. The allow-list lifts single checks, by default that of `hostNetwork` ([`AllowList::host_network`]). Pods
//! with `spec.os.name: windows` pass no check that pods for Linux fail. A configuration that names no default level
//! leaves namespaces at the baseline. Templates of custom kinds are checked, too.
//!
//! Owns no state. The runtime decides how an admitted security context takes effect.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::json;
use crate::pod_security_level::PREFIX;
use crate::registry::Kind;

mod allow;
mod baseline;
mod checks;
mod config;
mod namespace;
mod pod;
mod restricted;
mod templates;

pub use allow::{AllowList, AllowedCapabilities, HostDirectory, Namespaces};
pub use namespace::MAX_PODS;

pub use crate::pod_security_level::{
    LevelVersion, NamespaceLevels, PodSecurityLevel, StandardsVersion, check_labels,
};

use allow::Allowed;
use pod::describe;

/// Objects that pod security does not check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exemptions {
    /// Objects written by these users. Exempting a controller's user exempts every pod that the controller creates.
    pub usernames: Vec<String>,
    /// Pods of these runtime classes.
    pub runtime_classes: Vec<String>,
    /// Everything in these namespaces.
    pub namespaces: Vec<String>,
}

/// The configuration of pod security.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSecurity {
    /// The policy of namespaces without labels.
    pub defaults: NamespaceLevels,
    /// The exemptions.
    pub exemptions: Exemptions,
    /// The exceptions from the standards.
    pub allow: AllowList,
}

impl Default for PodSecurity {
    /// The baseline everywhere, without exemptions. Muster's own namespace has none either: Muster's parts run no pods
    /// of their own, and its controllers would create privileged pods there from any job in that namespace.
    fn default() -> Self {
        PodSecurity {
            defaults: NamespaceLevels::all(PodSecurityLevel::Baseline),
            exemptions: Exemptions::default(),
            allow: AllowList::default(),
        }
    }
}

/// The namespace that an object is written to, and the writing user.
#[derive(Clone, Copy, Debug)]
pub struct NamespaceRequest<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// The namespace's labels.
    pub labels: &'a BTreeMap<String, String>,
    /// The user's name.
    pub user: &'a str,
    /// Whether pods of a node have networks of their own.
    pub own_pod_networks: bool,
}

impl NamespaceRequest<'_> {
    /// What a list allows this namespace.
    fn allowed<'a>(&self, list: &'a AllowList) -> Allowed<'a> {
        list.within(self.namespace, self.labels, self.own_pod_networks)
    }
}

/// The result of the checks of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityVerdict {
    /// The level that was enforced; privileged for exempt objects.
    pub level: PodSecurityLevel,
    /// Why the pod is refused.
    pub refused: Option<String>,
    /// Warnings for the object's author.
    pub warnings: Vec<String>,
    /// The audit annotations of the request, by key.
    pub audit: BTreeMap<String, String>,
}

impl SecurityVerdict {
    fn exempt(by: &str) -> SecurityVerdict {
        SecurityVerdict {
            level: PodSecurityLevel::Privileged,
            refused: None,
            warnings: Vec::new(),
            audit: BTreeMap::from([(format!("{PREFIX}exempt"), by.to_owned())]),
        }
    }

    fn admitted(level: PodSecurityLevel) -> SecurityVerdict {
        SecurityVerdict {
            level,
            refused: None,
            warnings: Vec::new(),
            audit: BTreeMap::new(),
        }
    }
}

impl PodSecurity {
    /// Checks a pod.
    pub fn pod(&self, request: &NamespaceRequest<'_>, pod: &Value) -> SecurityVerdict {
        if let Some(by) = self.exemption(request, pod) {
            return SecurityVerdict::exempt(by);
        }
        let policy = NamespaceLevels::of_labels(request.labels, self.defaults);
        let mut verdict = SecurityVerdict::admitted(policy.enforce.level);
        if policy == NamespaceLevels::all(PodSecurityLevel::Privileged) {
            return verdict;
        }
        let allowed = request.allowed(&self.allow);
        let mut judged = Judged::new(pod, &allowed);
        let enforced = policy.enforce;
        let key = format!("{PREFIX}enforce-policy");
        verdict.audit.insert(key, enforced.to_string());
        verdict.refused = judged
            .fault(enforced)
            .map(|fault| format!("violates PodSecurity \"{enforced}\": {fault}"));
        judged.note(policy, &mut verdict);
        verdict
    }

    /// Checks the pod templates of an object: violations cause warnings and audit annotations, never a refusal.
    pub fn templates(
        &self,
        request: &NamespaceRequest<'_>,
        kind: &Kind,
        object: &Value,
    ) -> SecurityVerdict {
        let policy = NamespaceLevels::of_labels(request.labels, self.defaults);
        let mut verdict = SecurityVerdict::admitted(policy.enforce.level);
        if [policy.audit.level, policy.warn.level] == [PodSecurityLevel::Privileged; 2] {
            return verdict;
        }
        let allowed = request.allowed(&self.allow);
        for template in templates::of(kind, object) {
            if self.exemption(request, template).is_none() {
                Judged::new(template, &allowed).note(policy, &mut verdict);
            }
        }
        verdict
    }

    /// True if objects of a kind have known pod templates.
    pub fn has_templates(kind: &Kind) -> bool {
        templates::known(kind)
    }

    /// True if a change of a pod must be checked: a change of images or of the list of containers. The checks read no
    /// other mutable field.
    pub fn matters(live: &Value, next: &Value) -> bool {
        let lists = ["containers", "initContainers", "ephemeralContainers"];
        let images = |pod: &Value| -> Vec<(String, String)> {
            let of_list = |list: &str| {
                json::items(pod, &["spec", list])
                    .iter()
                    .map(|one| {
                        (
                            pod::name(one).to_owned(),
                            json::text(one, &["image"]).to_owned(),
                        )
                    })
                    .collect::<Vec<_>>()
            };
            lists.into_iter().flat_map(of_list).collect()
        };
        images(live) != images(next)
    }

    /// The exemption of a pod or a template, if one applies.
    fn exemption(&self, request: &NamespaceRequest<'_>, pod: &Value) -> Option<&'static str> {
        let of = |all: &[String], one: &str| !one.is_empty() && all.iter().any(|name| name == one);
        let exemptions = &self.exemptions;
        let class = json::text(pod, &["spec", "runtimeClassName"]);
        if of(&exemptions.namespaces, request.namespace) {
            Some("namespace")
        } else if of(&exemptions.usernames, request.user) {
            Some("user")
        } else if of(&exemptions.runtime_classes, class) {
            Some("runtimeClass")
        } else {
            None
        }
    }
}

/// A pod or template with its results: each level is checked once.
struct Judged<'a> {
    pod: &'a Value,
    allowed: &'a Allowed<'a>,
    found: Vec<(LevelVersion, Option<String>)>,
}

impl<'a> Judged<'a> {
    fn new(pod: &'a Value, allowed: &'a Allowed<'a>) -> Judged<'a> {
        Judged {
            pod,
            allowed,
            found: Vec::new(),
        }
    }

    /// The violation of a level, if any.
    fn fault(&mut self, policy: LevelVersion) -> Option<String> {
        if let Some((_, fault)) = self.found.iter().find(|(known, _)| *known == policy) {
            return fault.clone();
        }
        let violations = checks::violations(policy, self.pod, self.allowed);
        let fault = (!violations.is_empty()).then(|| describe(&violations));
        self.found.push((policy, fault.clone()));
        fault
    }

    /// Adds the audit annotation to a verdict and, unless the request is refused, the warning.
    fn note(&mut self, policy: NamespaceLevels, verdict: &mut SecurityVerdict) {
        let would = |policy: LevelVersion, fault: String| {
            format!("would violate PodSecurity \"{policy}\": {fault}")
        };
        if let Some(fault) = self.fault(policy.audit) {
            let key = format!("{PREFIX}audit-violations");
            let text = would(policy.audit, fault);
            // If several templates have different violations, all are named.
            let slot = verdict.audit.entry(key).or_default();
            if slot.is_empty() {
                *slot = text;
            } else if !slot.contains(&text) {
                slot.push_str("; ");
                slot.push_str(&text);
            }
        }
        if verdict.refused.is_none()
            && let Some(fault) = self.fault(policy.warn)
        {
            let text = would(policy.warn, fault);
            if !verdict.warnings.contains(&text) {
                verdict.warnings.push(text);
            }
        }
    }
}

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;
