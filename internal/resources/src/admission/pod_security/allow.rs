//! Owns the administrator's allow-list: host directories, the node's network and capabilities that pods of some
//! namespaces may use although the standards forbid them. Compares names and paths as written; the agent resolves
//! symbolic links when it mounts a path.

use std::collections::BTreeMap;

use serde_json::Value;

use super::pod::{CheckedPod, name};
use crate::json;
use crate::selector::LabelSelector;

/// The namespaces that an entry applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// The namespaces with these names.
    Named(Vec<String>),
    /// The namespaces whose labels match; an empty selector matches all.
    Labelled(LabelSelector),
}

impl Namespaces {
    /// Every namespace.
    pub fn all() -> Namespaces {
        Namespaces::Labelled(LabelSelector::everything())
    }

    fn have(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Namespaces::Named(names) => names.iter().any(|name| name == namespace),
            Namespaces::Labelled(selector) => selector.matches(labels),
        }
    }
}

/// A directory on the nodes that pods may mount, including everything below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDirectory {
    /// Its path, cleaned: absolute, without empty components, `.` and `..`.
    pub path: String,
    /// True if it must be mounted read-only.
    pub read_only: bool,
    /// The namespaces whose pods may mount it.
    pub namespaces: Namespaces,
}

/// Capabilities that containers may add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedCapabilities {
    /// The names without `CAP_`.
    pub add: Vec<String>,
    /// The namespaces whose pods may add them.
    pub namespaces: Namespaces,
}

/// Exceptions from the standards that an administrator allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList {
    /// Host directories.
    pub host_paths: Vec<HostDirectory>,
    /// Namespaces whose pods may set `hostNetwork: true`. Without a list all may, unless pods of a node have networks of
    /// their own: where all pods share their node's network in any case, it grants nothing more, and distributed training
    /// jobs set it everywhere.
    pub host_network: Option<Vec<Namespaces>>,
    /// Capabilities.
    pub capabilities: Vec<AllowedCapabilities>,
}

impl AllowList {
    /// The entries that apply to one namespace of a cluster; `own_networks` says whether pods of a node have networks of
    /// their own.
    pub(super) fn within(
        &self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
        own_networks: bool,
    ) -> Allowed<'_> {
        let here = |namespaces: &Namespaces| namespaces.have(namespace, labels);
        Allowed {
            host_paths: self
                .host_paths
                .iter()
                .filter(|directory| here(&directory.namespaces))
                .collect(),
            host_network: match &self.host_network {
                Some(list) if list.iter().any(here) => HostNetwork::Allowed,
                Some(_) => HostNetwork::Refused,
                None if own_networks => HostNetwork::RefusedByOwnNetworks,
                None => HostNetwork::Allowed,
            },
            capabilities: self
                .capabilities
                .iter()
                .filter(|entry| here(&entry.namespaces))
                .flat_map(|entry| &entry.add)
                .map(String::as_str)
                .collect(),
        }
    }
}

/// The entries that apply to one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Allowed<'a> {
    host_paths: Vec<&'a HostDirectory>,
    host_network: HostNetwork,
    capabilities: Vec<&'a str>,
}

/// Whether pods may be in their node's network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum HostNetwork {
    /// They may.
    Allowed,
    /// They may not.
    #[default]
    Refused,
    /// They may not, because other pods have networks of their own and no list names the namespace.
    RefusedByOwnNetworks,
}

impl Allowed<'_> {
    pub(super) fn host_network(&self) -> HostNetwork {
        self.host_network
    }

    pub(super) fn capability(&self, name: &str) -> bool {
        self.capabilities.contains(&name)
    }

    /// Whether the list allows a pod to mount a hostPath volume. If directories of the list are nested, the innermost
    /// one counts; if several entries have the same directory, the most permissive one counts.
    ///
    /// # Errors
    /// The permitted way, if the directory may be mounted but not in this way.
    pub(super) fn host_path(
        &self,
        pod: CheckedPod<'_>,
        volume: &Value,
    ) -> Result<(), Option<String>> {
        let Some(path) = clean(json::text(volume, &["hostPath", "path"])) else {
            return Err(None);
        };
        let innermost = self
            .host_paths
            .iter()
            .filter(|directory| below(&path, &directory.path))
            .max_by_key(|directory| (directory.path.len(), !directory.read_only));
        let Some(directory) = innermost else {
            return Err(None);
        };
        if !directory.read_only {
            return Ok(());
        }
        let kind = json::text(volume, &["hostPath", "type"]);
        if kind.ends_with("OrCreate") {
            return Err(Some(format!(
                "must not have type {kind}, because {} is read-only",
                directory.path
            )));
        }
        let volume = name(volume);
        let mut mounts = pod
            .containers()
            .flat_map(|container| json::items(container, &["volumeMounts"]));
        let writable = |mount: &Value| {
            json::text(mount, &["name"]) == volume && !json::truth(mount, &["readOnly"])
        };
        if mounts.any(writable) {
            return Err(Some("must be mounted with readOnly=true".to_owned()));
        }
        Ok(())
    }
}

/// An absolute path without empty components and `.`; `None` for a relative path and for a path with `..`, whose
/// meaning depends on symbolic links.
pub(super) fn clean(path: &str) -> Option<String> {
    let steps = path.strip_prefix('/')?.split('/');
    let mut cleaned = String::with_capacity(path.len());
    for step in steps.filter(|step| !matches!(*step, "" | ".")) {
        if step == ".." {
            return None;
        }
        cleaned.push('/');
        cleaned.push_str(step);
    }
    if cleaned.is_empty() {
        cleaned.push('/');
    }
    Some(cleaned)
}

/// Whether a cleaned path is a directory or lies below it.
fn below(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_are_cleaned_without_asking_the_disk() {
        let table = [
            ("/data", Some("/data")),
            ("//data///sets/./x/", Some("/data/sets/x")),
            ("/", Some("/")),
            ("/./", Some("/")),
            ("data", None),
            ("", None),
            ("/data/../etc", None),
            ("/data/..", None),
            ("/data/..x", Some("/data/..x")),
        ];
        for (path, cleaned) in table {
            assert_eq!(clean(path).as_deref(), cleaned, "{path}");
        }
        assert!(below("/data", "/data") && below("/data/x", "/data"));
        assert!(!below("/database", "/data") && !below("/", "/data"));
    }

    fn directory(path: &str, read_only: bool, namespaces: Namespaces) -> HostDirectory {
        HostDirectory {
            path: path.to_owned(),
            read_only,
            namespaces,
        }
    }

    #[test]
    fn a_host_directory_is_mounted_by_the_namespaces_and_in_the_mode_that_its_entry_says() {
        let team = || Namespaces::Named(vec!["team".to_owned()]);
        let homes = LabelSelector::parse("homes=yes").unwrap();
        let list = AllowList {
            host_paths: vec![
                directory("/data", true, Namespaces::all()),
                directory("/data/team", false, team()),
                directory("/home", false, Namespaces::Labelled(homes)),
            ],
            ..AllowList::default()
        };
        let none = BTreeMap::new();
        let yes = BTreeMap::from([("homes".to_owned(), "yes".to_owned())]);
        let refused = Err(None);
        let mounts = |text: &str| Err(Some(text.to_owned()));
        let writes = "must be mounted with readOnly=true";
        let creates = "must not have type DirectoryOrCreate, because /data is read-only";
        let table = [
            ("other", &none, "/data/x", "", true, Ok(())),
            ("other", &none, "/data", "Directory", true, Ok(())),
            ("other", &none, "/data/x", "", false, mounts(writes)),
            (
                "other",
                &none,
                "/data/x",
                "DirectoryOrCreate",
                true,
                mounts(creates),
            ),
            ("other", &none, "/database", "", true, refused.clone()),
            ("other", &none, "/", "", true, refused.clone()),
            ("other", &none, "/data/../etc", "", true, refused.clone()),
            // Only the team may write inside the team's directory.
            ("team", &none, "/data/team/x", "", false, Ok(())),
            ("team", &none, "/data/teams", "", false, mounts(writes)),
            ("other", &none, "/data/team", "", false, mounts(writes)),
            ("other", &none, "/home/a", "", false, refused.clone()),
            ("other", &yes, "/home/a", "", false, Ok(())),
        ];
        for (namespace, labels, path, kind, read_only, wanted) in table {
            for containers in ["containers", "initContainers", "ephemeralContainers"] {
                let pod = json!({"spec": {
                    containers: [{"name": "c", "volumeMounts": [
                        {"name": "other", "mountPath": "/o"},
                        {"name": "v", "mountPath": "/v", "readOnly": read_only},
                    ]}],
                    "volumes": [{"name": "v", "hostPath": {"path": path, "type": kind}}],
                }});
                let got = list
                    .within(namespace, labels, false)
                    .host_path(CheckedPod(&pod), &pod["spec"]["volumes"][0]);
                assert_eq!(got, wanted, "{namespace} {path} {kind} {containers}");
            }
        }
    }

    #[test]
    fn of_two_entries_for_one_directory_the_one_that_allows_more_counts() {
        let team = Namespaces::Named(vec!["team".to_owned()]);
        let list = AllowList {
            host_paths: vec![
                directory("/data", false, team),
                directory("/data", true, Namespaces::all()),
            ],
            ..AllowList::default()
        };
        let pod = json!({"spec": {
            "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [{"name": "v", "hostPath": {"path": "/data"}}],
        }});
        let volume = &pod["spec"]["volumes"][0];
        let none = BTreeMap::new();
        let of = |namespace: &str| {
            list.within(namespace, &none, false)
                .host_path(CheckedPod(&pod), volume)
        };
        assert_eq!(of("team"), Ok(()));
        assert!(of("other").is_err());
    }
}
