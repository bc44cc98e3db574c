//! What policies need to know of a pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::{Element, NAMED_PORTS_MAX};
use crate::services::Protocol;

/// A named port: protocol, name, number.
pub(super) type NamedPort = (Protocol, String, u16);

/// What policies need to know of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyPod {
    /// Its uid.
    pub uid: String,
    /// Its node.
    pub node: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its own address; none before it is reported, after the pod's end, and of a pod in its node's network.
    pub address: Option<Ipv4Addr>,
    /// Its named ports, at most [`NAMED_PORTS_MAX`].
    pub ports: BTreeSet<NamedPort>,
    /// Whether it runs in its node's network without asking for it: nothing is enforced for it.
    pub shares_network: bool,
    /// Whether policies select it: not if it asks for its node's network.
    pub selectable: bool,
}

impl PolicyPod {
    /// Reads a pod.
    #[must_use]
    pub fn of(pod: &Pod) -> PolicyPod {
        let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
        let on_host = spec.and_then(|spec| spec.host_network) == Some(true);
        let phase = status.and_then(|status| status.phase.as_deref());
        let ended = matches!(phase, Some("Succeeded" | "Failed"));
        let reported = status.and_then(|status| status.pod_ip.as_deref());
        let reported = reported.filter(|address| !address.is_empty());
        let host = status.and_then(|status| status.host_ip.as_deref());
        let shared = reported.is_some() && reported == host;
        let address = reported.filter(|_| !shared);
        let address = address.and_then(|address| address.parse().ok());
        let node = spec.and_then(|spec| spec.node_name.clone());
        let containers = spec.into_iter().flat_map(|spec| {
            let sidecar = |one: &&Container| one.restart_policy.as_deref() == Some("Always");
            let init = spec.init_containers.iter().flatten().filter(sidecar);
            init.chain(&spec.containers)
        });
        let ports = containers.flat_map(|container| container.ports.iter().flatten());
        let named = ports.filter_map(|port| {
            let name = port.name.clone().filter(|name| !name.is_empty())?;
            let number = u16::try_from(port.container_port).ok()?;
            Some((Protocol::of(port.protocol.as_deref())?, name, number))
        });
        PolicyPod {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            node: node.filter(|node| !node.is_empty()),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            address: address.filter(|_| !on_host && !ended),
            ports: named.take(NAMED_PORTS_MAX).collect(),
            shares_network: shared && !on_host && !ended,
            selectable: !on_host,
        }
    }

    /// The numbers of its ports with a name.
    pub(super) fn numbers(&self, protocol: Protocol, name: &str) -> impl Iterator<Item = u16> {
        let same = move |port: &&NamedPort| port.0 == protocol && port.1 == name;
        self.ports.iter().filter(same).map(|port| port.2)
    }

    /// What it contributes to a group that it is in.
    pub(super) fn elements(&self, port: Option<&(Protocol, String)>) -> Vec<Element> {
        let Some(address) = self.address else {
            return Vec::new();
        };
        let element = |port| Element { address, port };
        match port {
            None => vec![element(None)],
            Some((protocol, name)) => self
                .numbers(*protocol, name)
                .map(|number| element(Some((*protocol, number))))
                .collect(),
        }
    }
}
