//! One rule: the requests that it permits, and whether rules cover other rules. The problem of covering: may a caller
//! with the rules A grant the rules B? Method, as in Kubernetes: each rule of B is broken into tuples of one verb,
//! group, resource and name (or one verb and path), and a single rule of A must cover each tuple. Example: `get,list
//! pods` is covered by {`get *`, `list pods`}, and not by {`get pods` named `a`}. The method is sound, not complete:
//! covered requests are permitted (the property in `tests` checks this). Cost: tuples of B times entries of A.

use std::collections::BTreeMap;

use k8s_openapi::api::rbac::v1::PolicyRule;

use crate::access::RequestAttributes;
use crate::field::quote;

/// The most tuples of compared rules. All of Muster's own roles have a few hundred.
pub const MOST_TUPLES: usize = 10_000;

/// The most comparisons of such a tuple with a verb, group, resource, name or path of the held rules. A caller with all
/// of Muster's own roles has about 2,000 of these.
pub const MOST_COMPARISONS: usize = 20_000_000;

/// The rules combine more verbs, groups, resources and names than can be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its rules combine more than {MOST_TUPLES} verbs, resources and names, which is more than can be compared with what you may do; use '*' or several roles"
)]
pub struct TooManyTuples;

const ALL: &str = "*";

fn list(of: &Option<Vec<String>>) -> &[String] {
    of.as_deref().unwrap_or_default()
}

fn names(list: &[String], wanted: &str) -> bool {
    list.iter().any(|one| one == ALL || one == wanted)
}

/// True if the rule permits this request for a resource.
pub fn permits(rule: &PolicyRule, request: &RequestAttributes<'_>) -> bool {
    let named = list(&rule.resource_names);
    let name = request.name.unwrap_or_default();
    names(&rule.verbs, request.verb)
        && names(list(&rule.api_groups), request.group)
        && list(&rule.resources)
            .iter()
            .any(|one| is_resource(one, request.resource, request.subresource))
        && (named.is_empty() || named.iter().any(|one| one == name))
}

/// True if an entry of `resources` names this resource, or this subresource of one.
fn is_resource(entry: &str, resource: &str, subresource: Option<&str>) -> bool {
    match (subresource, entry.split_once('/')) {
        _ if entry == ALL => true,
        (None, None) => entry == resource,
        (Some(subresource), Some((of, sub))) => sub == subresource && (of == ALL || of == resource),
        _ => false,
    }
}

/// True if the rule permits this verb on a non-resource path.
pub fn permits_path(rule: &PolicyRule, verb: &str, path: &str) -> bool {
    names(&rule.verbs, verb)
        && list(&rule.non_resource_urls)
            .iter()
            .any(|entry| path_covers(entry, path))
}

/// True if an entry of `nonResourceURLs` covers another entry or a path.
fn path_covers(entry: &str, other: &str) -> bool {
    entry == other || (entry.ends_with('*') && other.starts_with(entry.trim_end_matches('*')))
}

/// One verb on one resource (with one name, if the rule has names) or on one path.
#[derive(Clone, Copy)]
enum Tuple<'a> {
    Resource {
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        name: Option<&'a str>,
    },
    Path {
        verb: &'a str,
        path: &'a str,
    },
}

impl Tuple<'_> {
    fn is_covered_by(&self, rule: &PolicyRule) -> bool {
        match *self {
            Tuple::Resource {
                verb,
                group,
                resource,
                name,
            } => {
                let named = list(&rule.resource_names);
                names(&rule.verbs, verb)
                    && names(list(&rule.api_groups), group)
                    && list(&rule.resources)
                        .iter()
                        .any(|entry| resource_covers(entry, resource))
                    && (named.is_empty()
                        || name.is_some_and(|name| named.iter().any(|one| one == name)))
            }
            Tuple::Path { verb, path } => {
                names(&rule.verbs, verb)
                    && list(&rule.non_resource_urls)
                        .iter()
                        .any(|entry| path_covers(entry, path))
            }
        }
    }

    fn as_rule(&self) -> PolicyRule {
        let one = |text: &str| Some(vec![text.to_owned()]);
        match *self {
            Tuple::Resource {
                verb,
                group,
                resource,
                name,
            } => PolicyRule {
                verbs: vec![verb.to_owned()],
                api_groups: one(group),
                resources: one(resource),
                resource_names: name.and_then(one),
                non_resource_urls: None,
            },
            Tuple::Path { verb, path } => PolicyRule {
                verbs: vec![verb.to_owned()],
                non_resource_urls: one(path),
                ..PolicyRule::default()
            },
        }
    }
}

/// True if an entry of `resources` covers another entry.
fn resource_covers(entry: &str, other: &str) -> bool {
    let any_parent = || {
        let (of, sub) = entry.split_once('/')?;
        let (_, other_sub) = other.split_once('/')?;
        Some(of == ALL && sub == other_sub)
    };
    entry == ALL || entry == other || any_parent().unwrap_or(false)
}

fn tuples(rule: &PolicyRule) -> Vec<Tuple<'_>> {
    let mut out = Vec::new();
    let named = list(&rule.resource_names);
    for verb in &rule.verbs {
        for group in list(&rule.api_groups) {
            for resource in list(&rule.resources) {
                let tuple = |name| Tuple::Resource {
                    verb,
                    group,
                    resource,
                    name,
                };
                if named.is_empty() {
                    out.push(tuple(None));
                }
                out.extend(named.iter().map(|name| tuple(Some(name.as_str()))));
            }
        }
        for path in list(&rule.non_resource_urls) {
            out.push(Tuple::Path { verb, path });
        }
    }
    out
}

/// The number of tuples of the rule; at most `usize::MAX`.
fn count(rule: &PolicyRule) -> usize {
    let resources = list(&rule.api_groups)
        .len()
        .saturating_mul(list(&rule.resources).len())
        .saturating_mul(list(&rule.resource_names).len().max(1));
    resources
        .saturating_add(list(&rule.non_resource_urls).len())
        .saturating_mul(rule.verbs.len())
}

/// The number of verbs, groups, resources, names and paths of the rule.
fn entries(rule: &PolicyRule) -> usize {
    let lists = [
        rule.verbs.as_slice(),
        list(&rule.api_groups),
        list(&rule.resources),
        list(&rule.resource_names),
        list(&rule.non_resource_urls),
    ];
    lists.into_iter().map(<[String]>::len).sum()
}

/// The part of the rules `wanted` that the rules `held` do not cover, with a rule for each verb on each resource.
///
/// # Errors
/// When the wanted rules have more than [`MOST_TUPLES`] tuples, or their comparison with the held rules takes more than
/// [`MOST_COMPARISONS`].
pub fn uncovered(
    held: &[&PolicyRule],
    wanted: &[PolicyRule],
) -> Result<Vec<PolicyRule>, TooManyTuples> {
    let all = wanted
        .iter()
        .fold(0usize, |sum, rule| sum.saturating_add(count(rule)));
    let against: usize = held.iter().map(|rule| entries(rule)).sum();
    if all > MOST_TUPLES || all.saturating_mul(against) > MOST_COMPARISONS {
        return Err(TooManyTuples);
    }
    let missing = wanted
        .iter()
        .flat_map(tuples)
        .filter(|tuple| !held.iter().any(|rule| tuple.is_covered_by(rule)));
    Ok(missing.map(|tuple| tuple.as_rule()).collect())
}

/// The same rules with the verbs for one resource in one rule, sorted.
pub fn compact(rules: &[PolicyRule]) -> Vec<PolicyRule> {
    type About<'a> = [&'a [String]; 4];
    let mut verbs: BTreeMap<About<'_>, Vec<&String>> = BTreeMap::new();
    for rule in rules {
        let about = [
            list(&rule.api_groups),
            list(&rule.resources),
            list(&rule.resource_names),
            list(&rule.non_resource_urls),
        ];
        verbs.entry(about).or_default().extend(&rule.verbs);
    }
    let some = |list: &[String]| (!list.is_empty()).then(|| list.to_vec());
    let one = |(about, mut verbs): (About<'_>, Vec<&String>)| {
        verbs.sort();
        verbs.dedup();
        PolicyRule {
            api_groups: some(about[0]),
            resources: some(about[1]),
            resource_names: some(about[2]),
            non_resource_urls: some(about[3]),
            verbs: verbs.into_iter().cloned().collect(),
        }
    };
    verbs.into_iter().map(one).collect()
}

/// A rule as Kubernetes prints it: `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`.
pub fn show(rule: &PolicyRule) -> String {
    let parts = [
        ("APIGroups", list(&rule.api_groups)),
        ("Resources", list(&rule.resources)),
        ("NonResourceURLs", list(&rule.non_resource_urls)),
        ("ResourceNames", list(&rule.resource_names)),
        ("Verbs", rule.verbs.as_slice()),
    ];
    let shown: Vec<String> = parts
        .iter()
        .filter(|(_, list)| !list.is_empty())
        .map(|(name, list)| format!("{name}:{}", quoted(list)))
        .collect();
    format!("{{{}}}", shown.join(", "))
}

/// A list of texts as Go prints it: `["a" "b"]`.
pub fn quoted(list: &[String]) -> String {
    let mut out = String::from("[");
    for (i, text) in list.iter().enumerate() {
        if i > 0 {
            out.push(' ');
        }
        quote(text, &mut out);
    }
    out.push(']');
    out
}
