//! What several parts of the fleet read from a pod: its node, its gang, whether it has ended, and the fields that hosts
//! files show.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use resources::names::GROUP_NAME;

/// The fields of a pod that hosts files show; a change of them changes names.
#[derive(Debug, PartialEq, Eq)]
pub struct HostsPod<'a> {
    node: Option<&'a str>,
    ip: Option<&'a str>,
    hostname: Option<&'a str>,
    subdomain: Option<&'a str>,
    gang: Option<&'a str>,
    labels: Option<&'a BTreeMap<String, String>>,
    ended: bool,
}

impl<'a> HostsPod<'a> {
    /// Reads them from a pod.
    pub fn of(pod: &'a Pod) -> Self {
        let spec = pod.spec.as_ref();
        HostsPod {
            node: node_of(pod),
            ip: pod
                .status
                .as_ref()
                .and_then(|status| status.pod_ip.as_deref()),
            hostname: spec.and_then(|spec| spec.hostname.as_deref()),
            subdomain: spec.and_then(|spec| spec.subdomain.as_deref()),
            gang: gang_of(pod),
            labels: pod.metadata.labels.as_ref(),
            ended: ended(pod),
        }
    }
}

/// The node that a pod is bound to.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec
        .as_ref()?
        .node_name
        .as_deref()
        .filter(|name| !name.is_empty())
}

/// The gang that a pod belongs to.
pub fn gang_of(pod: &Pod) -> Option<&str> {
    pod.metadata
        .annotations
        .as_ref()?
        .get(GROUP_NAME)
        .map(String::as_str)
        .filter(|name| !name.is_empty())
}

/// True if no container of the pod will run again.
pub fn ended(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
