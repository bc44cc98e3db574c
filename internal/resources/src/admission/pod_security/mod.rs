//! Pod security admission: which pods a namespace takes, by the Pod Security Standards of Kubernetes 1.34 and its
//! namespaces' labels, as kube-apiserver decides it, and by the administrator's allow-list.
//!
//! A pod that violates the level that its namespace enforces is refused. Objects with pod templates, such as jobs, are
//! never refused: their author is warned, and their pods are refused when a controller creates them. Four things
//! differ from Kubernetes. The allow-list lifts single checks, by default that of `hostNetwork` ([`AllowList::default`]).
//! Pods with `spec.os.name: windows` pass no check that pods for Linux fail. A configuration that names no default
//! level leaves namespaces at the baseline. Templates of custom kinds are looked at, too.
//!
//! Owns no state. What becomes of a security context that was admitted is the runtime's to decide.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::json;
use crate::registry::Kind;

mod allow;
mod baseline;
mod checks;
mod config;
mod level;
mod namespace;
mod pod;
mod restricted;
mod templates;

pub use allow::{AllowList, Capabilities, HostDirectory, Namespaces};
pub use level::{Level, LevelVersion, Policy, Version, check_labels};
pub use namespace::MAX_PODS;

use allow::Allowed;
use level::PREFIX;
use pod::describe;

/// What pod security leaves alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exemptions {
    /// Objects written by these users. Exempting a controller's user exempts every pod that the controller creates.
    pub usernames: Vec<String>,
    /// Pods of these runtime classes.
    pub runtime_classes: Vec<String>,
    /// Everything in these namespaces.
    pub namespaces: Vec<String>,
}

/// How pod security is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSecurity {
    /// What counts in namespaces whose labels say nothing.
    pub defaults: Policy,
    /// What is left alone.
    pub exemptions: Exemptions,
    /// What is allowed beyond the standards.
    pub allow: AllowList,
}

impl Default for PodSecurity {
    /// The baseline everywhere, without exemptions. Muster's own namespace has none either: Muster's parts run no pods
    /// of their own, and its controllers would create privileged pods there from any job in that namespace.
    fn default() -> Self {
        PodSecurity {
            defaults: Policy::all(Level::Baseline),
            exemptions: Exemptions::default(),
            allow: AllowList::default(),
        }
    }
}

/// The namespace that an object is written to, and its author.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// The namespace's labels.
    pub labels: &'a BTreeMap<String, String>,
    /// The user's name.
    pub user: &'a str,
}

/// What pod security says of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The level that was enforced; privileged for what is exempt.
    pub level: Level,
    /// Why a pod is refused.
    pub refused: Option<String>,
    /// Warnings for the object's author.
    pub warnings: Vec<String>,
    /// What the audit log should say of the request, by the annotation's key.
    pub audit: BTreeMap<String, String>,
}

impl Verdict {
    fn exempt(by: &str) -> Verdict {
        Verdict {
            level: Level::Privileged,
            refused: None,
            warnings: Vec::new(),
            audit: BTreeMap::from([(format!("{PREFIX}exempt"), by.to_owned())]),
        }
    }

    fn admitted(level: Level) -> Verdict {
        Verdict {
            level,
            refused: None,
            warnings: Vec::new(),
            audit: BTreeMap::new(),
        }
    }
}

impl PodSecurity {
    /// Judges a pod that is written.
    pub fn pod(&self, request: &Request<'_>, pod: &Value) -> Verdict {
        if let Some(by) = self.exemption(request, pod) {
            return Verdict::exempt(by);
        }
        let policy = Policy::of_labels(request.labels, self.defaults);
        let mut verdict = Verdict::admitted(policy.enforce.level);
        if policy == Policy::all(Level::Privileged) {
            return verdict;
        }
        let allowed = self.allow.within(request.namespace, request.labels);
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

    /// Judges the pods that an object has made by its templates: never refused, but warned of and noted.
    pub fn templates(&self, request: &Request<'_>, kind: &Kind, object: &Value) -> Verdict {
        let policy = Policy::of_labels(request.labels, self.defaults);
        let mut verdict = Verdict::admitted(policy.enforce.level);
        if [policy.audit.level, policy.warn.level] == [Level::Privileged; 2] {
            return verdict;
        }
        let allowed = self.allow.within(request.namespace, request.labels);
        for template in templates::of(kind, object) {
            if self.exemption(request, template).is_none() {
                Judged::new(template, &allowed).note(policy, &mut verdict);
            }
        }
        verdict
    }

    /// Whether objects of a kind have pods made by templates that are known here.
    pub fn has_templates(kind: &Kind) -> bool {
        templates::known(kind)
    }

    /// Whether a change of a pod is one that pod security asks about: of images and of the list of containers. No
    /// other change reaches what it looks at.
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

    /// What exempts a pod or a template, if anything does.
    fn exemption(&self, request: &Request<'_>, pod: &Value) -> Option<&'static str> {
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

/// A pod or template, and what was found about it: each level is looked at once.
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

    /// How it violates a level, if it does.
    fn fault(&mut self, policy: LevelVersion) -> Option<String> {
        if let Some((_, fault)) = self.found.iter().find(|(known, _)| *known == policy) {
            return fault.clone();
        }
        let violations = checks::violations(policy, self.pod, self.allowed);
        let fault = (!violations.is_empty()).then(|| describe(&violations));
        self.found.push((policy, fault.clone()));
        fault
    }

    /// Adds to a verdict what is audited and, unless the request is refused, warned of.
    fn note(&mut self, policy: Policy, verdict: &mut Verdict) {
        let would = |policy: LevelVersion, fault: String| {
            format!("would violate PodSecurity \"{policy}\": {fault}")
        };
        if let Some(fault) = self.fault(policy.audit) {
            let key = format!("{PREFIX}audit-violations");
            let text = would(policy.audit, fault);
            // Of several templates with different faults all are named.
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
