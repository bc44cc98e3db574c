//! The networks of this node's pods, for the pods' workers and the session. Which pods have one: pods of processes
//! without `hostNetwork`, where the agent gives pods addresses (`--pod-network own`). A pod keeps what it started with
//! when the agent starts again with the other setting.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use network::{NetworkError, PodNetwork, PodNetworks};
use resources::pod_ranges::Ipv4Range;

use crate::disk::DataLayout;
use crate::error::AgentError;
use crate::lifecycle::PodLifecycle;

/// Which network the agent's pods are in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodNetworkMode {
    /// The node's.
    #[default]
    Host,
    /// Each pod has a network and an address of its own.
    Own,
}

/// The networks of this node's pods.
#[derive(Clone, Default)]
pub struct NodePodNetworks {
    /// None if the agent gives no addresses, and no earlier agent did.
    networks: Option<Arc<PodNetworks>>,
    gives: bool,
}

impl NodePodNetworks {
    /// Opens them.
    ///
    /// # Errors
    ///
    /// When pods are to have networks of their own and the machine lacks something for them.
    pub fn open(layout: &DataLayout, mode: PodNetworkMode) -> Result<NodePodNetworks, AgentError> {
        let (directory, gives) = (layout.networks(), mode == PodNetworkMode::Own);
        if !gives && !PodNetworks::left_in(&directory) {
            return Ok(NodePodNetworks::default());
        }
        let networks = PodNetworks::open(&directory).map_err(|source| match gives {
            true => AgentError::PodNetwork(source),
            false => AgentError::EarlierPodNetworks(source),
        })?;
        Ok(NodePodNetworks {
            networks: Some(Arc::new(networks)),
            gives,
        })
    }

    /// Whether new pods get addresses of their own.
    pub fn gives(&self) -> bool {
        self.gives
    }

    /// Whether a pod has, or is to have, a network of its own; `as_process`: it runs without a container runtime.
    pub fn wanted(&self, pod: &Pod, as_process: bool, machine: &PodLifecycle) -> bool {
        let on_host = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
        let new = !machine.has_begun() && self.gives && as_process && !on_host;
        self.networks.is_some() && (new || machine.address.is_some())
    }

    /// The network of a pod; made if it does not exist. `process`: one of the pod's, if any runs. Blocks.
    ///
    /// # Errors
    ///
    /// When the pod gets none now; the next try may differ.
    pub fn attach(&self, uid: &str, process: Option<i32>) -> Result<PodNetwork, NetworkError> {
        let networks = self.networks.as_ref().ok_or(NetworkError::NoRange)?;
        networks.attach(uid, process)
    }

    /// Whether the network of a pod exists.
    pub fn is_made(&self, uid: &str) -> bool {
        let networks = self.networks.as_ref();
        networks.is_some_and(|networks| networks.is_made(uid))
    }

    /// The addresses of all pods that have one, by uid.
    pub fn addresses(&self) -> BTreeMap<String, Ipv4Addr> {
        let networks = self.networks.as_ref();
        networks
            .map(|networks| networks.addresses())
            .unwrap_or_default()
    }

    /// Removes the network of a pod of which nothing runs any more.
    pub async fn detach(&self, uid: &str) {
        let uid = uid.to_owned();
        let failure = "the network of a pod was not removed; the agent's next start does it";
        self.in_background(failure, move |networks| networks.detach(&uid))
            .await;
    }

    /// Removes what is left of pods that are not on this node any more.
    pub async fn retain(&self, live: BTreeSet<String>) {
        let gives = self.gives;
        let failure = "what is left of the networks of earlier pods was not removed";
        self.in_background(failure, move |networks| networks.retain(&live, gives))
            .await;
    }

    /// Takes what the server sends about ranges and routes.
    pub async fn set(&self, sent: rpc::agent::v1::PodNetwork) {
        self.in_background("pods get no addresses", move |networks| {
            set(networks, &sent)
        })
        .await;
    }

    async fn in_background(
        &self,
        failure: &'static str,
        work: impl FnOnce(&PodNetworks) -> Result<(), NetworkError> + Send + 'static,
    ) {
        let Some(networks) = self.networks.clone() else {
            return;
        };
        match tokio::task::spawn_blocking(move || work(&networks)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "{failure}"),
            Err(error) => tracing::error!(%error, "{failure}"),
        }
    }
}

fn set(networks: &PodNetworks, sent: &rpc::agent::v1::PodNetwork) -> Result<(), NetworkError> {
    let read = |text: &str| {
        text.parse::<Ipv4Range>()
            .map_err(|source| NetworkError::Range {
                range: text.to_owned(),
                source,
            })
    };
    let (range, cluster) = (read(&sent.node_range)?, read(&sent.cluster_range)?);
    let mut routes = BTreeMap::new();
    for route in &sent.routes {
        match route.address.parse::<Ipv4Addr>() {
            Ok(address) if !address.is_loopback() => {
                routes.insert(read(&route.range)?, address);
            }
            _ => tracing::warn!(
                range = route.range,
                address = route.address,
                "pods of a node are not reached: set --node-address of its agent to an IPv4 address that other nodes reach"
            ),
        }
    }
    for (range, error) in networks.set(range, cluster, &routes)? {
        tracing::warn!(
            %range,
            %error,
            "pods of a node are not reached from here: both nodes need addresses in a common network segment"
        );
    }
    tracing::info!(%range, routes = routes.len(), "pods get addresses of their own");
    Ok(())
}
