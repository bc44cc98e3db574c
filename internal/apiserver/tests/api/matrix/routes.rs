//! The routes of the resource API, from discovery and from the registrations, and the requests for each.

use std::collections::BTreeSet;

use resources::registry;
use serde_json::json;

use super::{LEASES, NAME, NODE, OTHERS, SYSTEM, TEAM};
use crate::harness::Api;

const ON_COLLECTIONS: [&str; 4] = ["list", "watch", "create", "deletecollection"];
pub(super) const ON_OBJECTS: [&str; 4] = ["get", "update", "patch", "delete"];
const ON_SUBRESOURCES: [&str; 5] = ["get", "create", "update", "patch", "delete"];

/// A resource or subresource in discovery.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Route {
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    base: String,
    group: String,
    pub(super) plural: String,
    pub(super) subresource: Option<String>,
    pub(super) namespaced: bool,
    /// True if its objects are stored, or measured; other resources have only the verb `create`.
    pub(super) kept: bool,
}

impl Route {
    /// The name in the rows.
    pub(super) fn resource(&self) -> String {
        let mut name = self.plural.clone();
        if !self.group.is_empty() {
            name = format!("{name}.{}", self.group);
        }
        match &self.subresource {
            Some(subresource) => format!("{name}/{subresource}"),
            None => name,
        }
    }

    /// True if its objects are made of measurements and not stored.
    pub(super) fn is_measured(&self) -> bool {
        self.group == "metrics.k8s.io"
    }

    /// The requests for it, with their namespaces.
    pub(super) fn asks(&self) -> Vec<(&'static str, Option<&'static str>)> {
        let named = match (self.namespaced, self.plural.as_str()) {
            (true, "leases") => vec![Some(TEAM), Some(OTHERS), Some(SYSTEM), Some(LEASES)],
            // A Namespace object belongs to itself.
            (true, _) | (false, "namespaces") => vec![Some(TEAM), Some(OTHERS), Some(SYSTEM)],
            (false, _) => vec![None],
        };
        let collections = match self.namespaced {
            true => [named.clone(), vec![None]].concat(),
            false => vec![None],
        };
        let verbs: &[&'static str] = match (&self.subresource, self.kept) {
            (Some(_), _) => &ON_SUBRESOURCES,
            (None, false) => &["create"],
            (None, true) => {
                let mut all = every(&ON_COLLECTIONS, &collections);
                all.extend(every(&ON_OBJECTS, &named));
                return all;
            }
        };
        every(verbs, &named)
    }

    pub(super) fn object_name(&self, namespace: Option<&'static str>) -> &'static str {
        match (self.plural.as_str(), namespace) {
            ("namespaces", Some(name)) => name,
            ("nodes" | "leases", _) => NODE,
            _ => NAME,
        }
    }

    pub(super) fn path(&self, namespace: Option<&'static str>, named: bool) -> String {
        let mut path = self.base.clone();
        if let Some(namespace) = namespace.filter(|_| self.namespaced) {
            path = format!("{path}/namespaces/{namespace}");
        }
        path = format!("{path}/{}", self.plural);
        if named {
            path = format!("{path}/{}", self.object_name(namespace));
        }
        if let Some(subresource) = &self.subresource {
            path = format!("{path}/{subresource}");
        }
        path
    }
}

fn every(
    verbs: &[&'static str],
    scopes: &[Option<&'static str>],
) -> Vec<(&'static str, Option<&'static str>)> {
    let mut pairs = Vec::new();
    for verb in verbs {
        for scope in scopes {
            pairs.push((*verb, *scope));
        }
    }
    pairs
}

/// The routes in the server's discovery.
pub(super) async fn discovered(api: &Api) -> BTreeSet<Route> {
    let mut versions = vec!["/api/v1".to_owned()];
    let groups = api.get("/apis").await.is(200);
    for group in groups["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            let version = version["groupVersion"].as_str().unwrap();
            versions.push(format!("/apis/{version}"));
        }
    }
    let mut routes = BTreeSet::new();
    for base in versions {
        let list = api.get(&base).await.is(200);
        for one in list["resources"].as_array().unwrap() {
            let name = one["name"].as_str().unwrap();
            let (plural, subresource) = match name.split_once('/') {
                Some((plural, subresource)) => (plural, Some(subresource.to_owned())),
                None => (name, None),
            };
            let named_group = base.strip_prefix("/apis/");
            let group = named_group.and_then(|rest| rest.split('/').next());
            routes.insert(Route {
                group: group.unwrap_or_default().to_owned(),
                plural: plural.to_owned(),
                subresource,
                namespaced: one["namespaced"].as_bool().unwrap(),
                kept: one["verbs"] != json!(["create"]) || name.contains('/'),
                base: base.clone(),
            });
        }
    }
    routes
}

/// The routes of the registered kinds, under every version.
pub(super) fn registered() -> BTreeSet<Route> {
    let mut routes = BTreeSet::new();
    for kind in registry::served() {
        let mut subresources = vec![None];
        subresources.extend(kind.extra_subresources.iter().copied().map(Some));
        subresources.extend(kind.status.then_some(Some("status")));
        subresources.extend(kind.scale.is_some().then_some(Some("scale")));
        let is_namespace = (kind.group, kind.plural) == ("", "namespaces");
        subresources.extend(is_namespace.then_some(Some("finalize")));
        let base = match kind.group {
            "" => format!("/api/{}", kind.version),
            group => format!("/apis/{group}/{}", kind.version),
        };
        for subresource in subresources {
            routes.insert(Route {
                base: base.clone(),
                group: kind.group.to_owned(),
                plural: kind.plural.to_owned(),
                subresource: subresource.map(str::to_owned),
                namespaced: kind.namespaced,
                kept: true,
            });
        }
    }
    routes
}
