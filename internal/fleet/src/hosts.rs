//! The names in a pod's hosts file: the gang's members, pods with a host name, and services. Pure;
//! reads the index.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Service};
use rpc::agent::v1::HostsEntry;

use crate::index::Index;
use crate::pod_fields::{ended, gang_of};

/// The domain of a cluster's names.
const DOMAIN: &str = "cluster.local";

/// Where a pod finds the names of Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameSource {
    /// In its hosts file only.
    HostsFile,
    /// By the cluster's DNS, which names no endpoint that is not ready. Its hosts file names Services without an
    /// address that publish such endpoints: members of a gang look for each other before they are ready.
    Dns,
}

/// Whether a pod of a node that gives pods addresses asks the cluster's DNS server: it has a network of its own, and its
/// DNS policy is ClusterFirst.
pub fn asks_dns(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let has_image = |image: &Option<String>| image.as_ref().is_some_and(|one| !one.is_empty());
    let in_image = spec.containers.iter().any(|one| has_image(&one.image));
    let policy = spec.dns_policy.as_deref().unwrap_or("ClusterFirst");
    spec.host_network != Some(true) && !in_image && policy == "ClusterFirst"
}

/// The entries for the pods of one gang in a namespace, or for pods without a gang.
pub fn entries(
    index: &Index,
    namespace: &str,
    gang: Option<&str>,
    source: NameSource,
) -> Vec<HostsEntry> {
    // Ordered by address, so that the file has one line for each; names stay in the order they were
    // added.
    let mut by_ip: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut add = |ip: String, names: Vec<String>| {
        let line = by_ip.entry(ip).or_default();
        for name in names {
            if !line.contains(&name) {
                line.push(name);
            }
        }
    };
    for pod in index.bound_pods(namespace) {
        let Some(spec) = &pod.spec else { continue };
        let same_gang = gang.is_some() && gang_of(pod) == gang;
        let named = spec.hostname.is_some() || spec.subdomain.is_some();
        // Ended members keep their names until they are deleted: the other members may still close
        // their connections.
        if !same_gang && (!named || ended(pod)) {
            continue;
        }
        let Some(ip) = index.address_of(pod) else {
            continue;
        };
        let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
        let hostname = spec.hostname.as_deref().unwrap_or(pod_name);
        let mut names = Vec::new();
        if let Some(subdomain) = spec.subdomain.as_deref().filter(|s| !s.is_empty()) {
            names.extend(qualified(&format!("{hostname}.{subdomain}"), namespace));
        }
        if same_gang {
            names.push(hostname.to_owned());
            names.push(pod_name.to_owned());
        }
        add(ip, names);
    }
    for service in index.services(namespace) {
        let Some(name) = service.metadata.name.as_deref() else {
            continue;
        };
        let selector = service.spec.as_ref().and_then(|s| s.selector.as_ref());
        if source == NameSource::Dns && !publishes_members(service) {
            continue;
        }
        let Some(selector) = selector.filter(|selector| !selector.is_empty()) else {
            continue;
        };
        for pod in index.bound_pods(namespace) {
            if ended(pod) || !selects(selector, pod.metadata.labels.as_ref()) {
                continue;
            }
            if let Some(ip) = index.address_of(pod) {
                add(ip, qualified(name, namespace));
            }
        }
    }
    by_ip
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(ip, names)| HostsEntry { ip, names })
        .collect()
}

/// Whether a Service has no address and names endpoints that are not ready.
fn publishes_members(service: &Service) -> bool {
    let Some(spec) = &service.spec else {
        return false;
    };
    spec.cluster_ip.as_deref() == Some("None") && spec.publish_not_ready_addresses == Some(true)
}

/// `name`, `name.ns`, `name.ns.svc` and `name.ns.svc.cluster.local`.
fn qualified(name: &str, namespace: &str) -> Vec<String> {
    vec![
        name.to_owned(),
        format!("{name}.{namespace}"),
        format!("{name}.{namespace}.svc"),
        format!("{name}.{namespace}.svc.{DOMAIN}"),
    ]
}

fn selects(selector: &BTreeMap<String, String>, labels: Option<&BTreeMap<String, String>>) -> bool {
    labels.is_some_and(|labels| {
        selector
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Node;
    use resources::names::GROUP_NAME;
    use serde_json::{Value, json};

    fn pod(name: &str, node: &str, extra: Value) -> Pod {
        let mut value = json!({
            "metadata": {"namespace": "ns", "name": name, "uid": name,
                "labels": {"job": "train", "rank": name},
                "annotations": {GROUP_NAME: "train"}},
            "spec": {"nodeName": node, "containers": []},
        });
        for (path, part) in extra.as_object().unwrap() {
            for (key, inner) in part.as_object().unwrap() {
                value[path][key] = inner.clone();
            }
        }
        serde_json::from_value(value).unwrap()
    }

    fn index() -> Index {
        let mut index = Index::default();
        for (name, ip) in [("n1", "10.0.0.1"), ("n2", "10.0.0.2")] {
            let node: Node = serde_json::from_value(json!({
                "metadata": {"name": name},
                "status": {"addresses": [{"type": "InternalIP", "address": ip}]},
            }))
            .unwrap();
            index.put_node(&node);
        }
        index
    }

    fn resolve(entries: &[HostsEntry], name: &str) -> Vec<String> {
        entries
            .iter()
            .filter(|entry| entry.names.iter().any(|n| n == name))
            .map(|entry| entry.ip.clone())
            .collect()
    }

    #[test]
    fn members_of_a_gang_know_each_other_before_any_has_reported_an_address() {
        let mut index = index();
        index.put_pod(pod("train-master-0", "n1", json!({})));
        index.put_pod(pod("train-worker-0", "n2", json!({})));
        index.put_pod(pod("other", "n2", json!({"metadata": {"annotations": {}}})));
        let entries = entries(&index, "ns", Some("train"), NameSource::HostsFile);
        assert_eq!(resolve(&entries, "train-master-0"), ["10.0.0.1"]);
        assert_eq!(resolve(&entries, "train-worker-0"), ["10.0.0.2"]);
        assert!(resolve(&entries, "other").is_empty());
    }

    #[test]
    fn a_service_resolves_by_its_four_names_to_its_pods() {
        let mut index = index();
        index.put_pod(pod("train-master-0", "n1", json!({})));
        index.put_pod(pod("train-worker-0", "n2", json!({})));
        let service: Service = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "master"},
            "spec": {"selector": {"rank": "train-master-0"}, "clusterIP": "None"},
        }))
        .unwrap();
        index.put_service(service);
        let entries = entries(&index, "ns", None, NameSource::HostsFile);
        for name in [
            "master",
            "master.ns",
            "master.ns.svc",
            "master.ns.svc.cluster.local",
        ] {
            assert_eq!(resolve(&entries, name), ["10.0.0.1"], "{name}");
        }
    }

    #[test]
    fn an_ended_pod_leaves_its_service_but_stays_known_to_its_gang() {
        let mut index = index();
        index.put_pod(pod(
            "train-master-0",
            "n1",
            json!({"status": {"phase": "Succeeded", "podIP": "10.9.9.9"}}),
        ));
        let service: Service = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "all"},
            "spec": {"selector": {"job": "train"}},
        }))
        .unwrap();
        index.put_service(service);
        let entries = entries(&index, "ns", Some("train"), NameSource::HostsFile);
        assert!(resolve(&entries, "all").is_empty());
        assert_eq!(resolve(&entries, "train-master-0"), ["10.9.9.9"]);
    }

    #[test]
    fn a_pod_with_host_name_and_subdomain_is_known_in_its_whole_namespace() {
        let mut index = index();
        index.put_pod(pod(
            "p",
            "n1",
            json!({"spec": {"hostname": "db-0", "subdomain": "db"}}),
        ));
        let entries = entries(&index, "ns", None, NameSource::HostsFile);
        assert_eq!(resolve(&entries, "db-0.db"), ["10.0.0.1"]);
        assert_eq!(
            resolve(&entries, "db-0.db.ns.svc.cluster.local"),
            ["10.0.0.1"]
        );
        assert!(resolve(&entries, "db-0").is_empty());
    }

    #[test]
    fn a_service_without_selector_names_no_pod() {
        let mut index = index();
        index.put_pod(pod("a", "n1", json!({})));
        let service: Service = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "outside"},
            "spec": {"selector": {}},
        }))
        .unwrap();
        index.put_service(service);
        assert!(
            resolve(
                &entries(&index, "ns", None, NameSource::HostsFile),
                "outside"
            )
            .is_empty()
        );
    }

    #[test]
    fn pods_that_ask_dns_find_only_members_in_their_hosts_files() {
        let mut index = index();
        index.put_pod(pod("train-master-0", "n1", json!({})));
        let service = |name: &str, address: &str, publishes: bool| -> Service {
            serde_json::from_value(json!({
                "metadata": {"namespace": "ns", "name": name},
                "spec": {"selector": {"job": "train"}, "clusterIP": address,
                    "publishNotReadyAddresses": publishes},
            }))
            .unwrap()
        };
        index.put_service(service("members", "None", true));
        index.put_service(service("headless", "None", false));
        index.put_service(service("web", "10.96.0.7", true));
        let names = |source: NameSource| {
            let entries = entries(&index, "ns", Some("train"), source);
            ["train-master-0", "members", "headless", "web"]
                .map(|name| resolve(&entries, name).len())
        };
        assert_eq!(names(NameSource::Dns), [1, 1, 0, 0]);
        assert_eq!(names(NameSource::HostsFile), [1, 1, 1, 1]);
        for (spec, asks) in [
            (json!({}), true),
            (json!({"dnsPolicy": "ClusterFirst"}), true),
            (json!({"dnsPolicy": "Default"}), false),
            (json!({"hostNetwork": true}), false),
            (json!({"containers": [{"name": "c", "image": "i"}]}), false),
        ] {
            assert_eq!(
                asks_dns(&pod("p", "n1", json!({"spec": spec}))),
                asks,
                "{spec}"
            );
        }
    }
}
