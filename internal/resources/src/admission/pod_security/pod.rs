//! Owns reading what the checks look at: a pod's containers and security contexts, and how checks word what they find.
//! Decides nothing.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::json;

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    /// What is violated, in a few words: `host namespaces`.
    pub(super) reason: &'static str,
    /// By what: `hostNetwork=true`.
    pub(super) detail: String,
}

/// Violations as kube-apiserver words them: `reason (detail), reason (detail)`.
pub(super) fn describe(violations: &[Violation]) -> String {
    let one = |violation: &Violation| format!("{} ({})", violation.reason, violation.detail);
    violations.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The reasons alone.
pub(super) fn reasons(violations: &[Violation]) -> String {
    let all: Vec<&str> = violations
        .iter()
        .map(|violation| violation.reason)
        .collect();
    all.join(", ")
}

/// A pod, or a pod template: both have `metadata` and `spec`.
#[derive(Clone, Copy)]
pub(super) struct Pod<'a>(pub(super) &'a Value);

impl<'a> Pod<'a> {
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

    /// The pod's own security context; null where it has none.
    pub(super) fn context(self) -> &'a Value {
        context(self.spec())
    }

    /// The names of the containers that are so.
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

/// The word for one, or for another number of things.
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

/// Which parts set something wrong: `pod`, containers by name, or both joined by `and`; none where no part does.
pub(super) fn setters(pod: bool, names: &[&str]) -> Option<String> {
    let of_pod = pod.then(|| "pod".to_owned());
    let of_containers = (!names.is_empty()).then(|| containers(names));
    let all: Vec<String> = of_pod.into_iter().chain(of_containers).collect();
    (!all.is_empty()).then(|| all.join(" and "))
}

/// The values of a field that are wrong, of the pod's context and of its containers', in order and once each.
pub(super) struct Wrong<'a> {
    /// Does the pod's own context have one?
    pub(super) pod: bool,
    /// The containers that have one.
    pub(super) containers: Vec<&'a str>,
    /// The values.
    pub(super) values: BTreeSet<&'a str>,
}

impl<'a> Wrong<'a> {
    /// Looks at the text that `value` finds in each security context, and keeps those that aren't `fine`.
    pub(super) fn find(
        pod: Pod<'a>,
        value: impl Fn(&'a Value) -> Option<&'a str>,
        fine: impl Fn(&str) -> bool,
    ) -> Wrong<'a> {
        let wrong = |context: &'a Value| value(context).filter(|value| !fine(value));
        let own = wrong(pod.context());
        let mut found = Wrong {
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

    /// The parts that set them, in words; none where there are none.
    pub(super) fn setters(&self) -> Option<String> {
        setters(self.pod, &self.containers)
    }
}
