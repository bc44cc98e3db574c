//! Owns the readers that the checks share, a pod's containers and security contexts, and the wording of findings.
//! Decides nothing.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::json;

/// The finding of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckViolation {
    /// The violated rule in a few words: `host namespaces`.
    pub(super) reason: &'static str,
    /// The values that violate it: `hostNetwork=true`.
    pub(super) detail: String,
}

/// Violations as kube-apiserver words them: `reason (detail), reason (detail)`.
pub(super) fn describe(violations: &[CheckViolation]) -> String {
    let one = |violation: &CheckViolation| format!("{} ({})", violation.reason, violation.detail);
    violations.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The reasons alone.
pub(super) fn reasons(violations: &[CheckViolation]) -> String {
    let all: Vec<&str> = violations
        .iter()
        .map(|violation| violation.reason)
        .collect();
    all.join(", ")
}

/// A pod, or a pod template: both have `metadata` and `spec`.
#[derive(Clone, Copy)]
pub(super) struct CheckedPod<'a>(pub(super) &'a Value);

impl<'a> CheckedPod<'a> {
    pub(super) fn spec(self) -> &'a Value {
        json::at(self.0, &["spec"])
    }

    /// Init containers, containers, ephemeral containers.
    pub(super) fn containers(self) -> impl Iterator<Item = &'a Value> {
        let spec = self.spec();
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        lists
            .into_iter()
            .flat_map(move |list| json::items(spec, &[list]))
    }

    /// The pod's own security context; null if it has none.
    pub(super) fn context(self) -> &'a Value {
        context(self.spec())
    }

    /// The names of the containers for which `is` holds.
    pub(super) fn named(self, is: impl Fn(&'a Value) -> bool) -> Vec<&'a str> {
        self.containers()
            .filter(|&container| is(container))
            .map(name)
            .collect()
    }

    pub(super) fn volumes(self) -> &'a [Value] {
        json::items(self.spec(), &["volumes"])
    }

    pub(super) fn annotations(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let all = json::members(self.0, &["metadata", "annotations"]);
        all.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
    }
}

/// The security context of a container, or of a pod's spec.
pub(super) fn context(of: &Value) -> &Value {
    json::at(of, &["securityContext"])
}

/// A container's or volume's name.
pub(super) fn name(of: &Value) -> &str {
    json::text(of, &["name"])
}

/// The texts of a list.
pub(super) fn texts<'a>(
    value: &'a Value,
    path: &[&str],
) -> impl Iterator<Item = &'a str> + use<'a> {
    json::items(value, path)
        .iter()
        .map(|item| item.as_str().unwrap_or_default())
}

/// `"a", "b"`.
pub(super) fn quoted<'a>(all: impl IntoIterator<Item = &'a str>) -> String {
    let all: Vec<String> = all.into_iter().map(|one| format!("\"{one}\"")).collect();
    all.join(", ")
}

/// The singular or the plural, by count.
pub(super) fn plural(one: &'static str, more: &'static str, count: usize) -> &'static str {
    if count == 1 { one } else { more }
}

/// `container "a"`, or `containers "a", "b"`.
pub(super) fn containers(names: &[&str]) -> String {
    let word = plural("container", "containers", names.len());
    format!("{word} {}", quoted(names.iter().copied()))
}

/// `volume "a"`, or `volumes "a", "b"`.
pub(super) fn volumes(names: &[&str]) -> String {
    let word = plural("volume", "volumes", names.len());
    format!("{word} {}", quoted(names.iter().copied()))
}

/// The parts that set a wrong value: `pod`, containers by name, or both joined by `and`; `None` if no part does.
pub(super) fn setters(pod: bool, names: &[&str]) -> Option<String> {
    let of_pod = pod.then(|| "pod".to_owned());
    let of_containers = (!names.is_empty()).then(|| containers(names));
    let all: Vec<String> = of_pod.into_iter().chain(of_containers).collect();
    (!all.is_empty()).then(|| all.join(" and "))
}

/// The wrong values of a field in the pod's context and in its containers' contexts, sorted and without repeats.
pub(super) struct WrongValues<'a> {
    /// True if the pod's own context has one.
    pub(super) pod: bool,
    /// The containers that have one.
    pub(super) containers: Vec<&'a str>,
    /// The values.
    pub(super) values: BTreeSet<&'a str>,
}

impl<'a> WrongValues<'a> {
    /// Applies `value` to each security context and keeps the texts that aren't `fine`.
    pub(super) fn find(
        pod: CheckedPod<'a>,
        value: impl Fn(&'a Value) -> Option<&'a str>,
        fine: impl Fn(&str) -> bool,
    ) -> WrongValues<'a> {
        let wrong = |context: &'a Value| value(context).filter(|value| !fine(value));
        let own = wrong(pod.context());
        let mut found = WrongValues {
            pod: own.is_some(),
            containers: Vec::new(),
            values: own.into_iter().collect(),
        };
        for container in pod.containers() {
            if let Some(value) = wrong(context(container)) {
                found.containers.push(name(container));
                found.values.insert(value);
            }
        }
        found
    }

    /// The parts that set them, as text; `None` if no part does.
    pub(super) fn setters(&self) -> Option<String> {
        setters(self.pod, &self.containers)
    }
}
