//! The ports on which a head listens: the user's where `rayStartParams` has one, Ray's own where every pod has its own
//! address, and a block of the cluster's range where pods share their node's address. Workers need none that is known
//! before: Ray chooses free ones and tells the head.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::kinds::RayCluster;
use resources::names;

use crate::training::{Network, annotated_port};

/// A port of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HeadPort {
    /// The cluster's state, which workers connect to.
    Gcs,
    Dashboard,
    /// Ray Client.
    Client,
    Metrics,
    /// The agent's HTTP API, which takes Serve's configuration.
    Agent,
    /// The head's raylet. A worker that starts before the head's raylet runs would fail.
    Raylet,
}

impl HeadPort {
    pub(crate) const ALL: [HeadPort; 6] = [
        HeadPort::Gcs,
        HeadPort::Dashboard,
        HeadPort::Client,
        HeadPort::Metrics,
        HeadPort::Agent,
        HeadPort::Raylet,
    ];

    /// The parameter of `ray start`.
    pub(crate) fn param(self) -> &'static str {
        match self {
            HeadPort::Gcs => "port",
            HeadPort::Dashboard => "dashboard-port",
            HeadPort::Client => "ray-client-server-port",
            HeadPort::Metrics => "metrics-export-port",
            HeadPort::Agent => "dashboard-agent-listen-port",
            HeadPort::Raylet => "node-manager-port",
        }
    }

    /// The name of the port on container and service; none for ports that only Ray uses.
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            HeadPort::Gcs => Some("gcs-server"),
            HeadPort::Dashboard => Some("dashboard"),
            HeadPort::Client => Some("client"),
            HeadPort::Metrics => Some("metrics"),
            HeadPort::Agent | HeadPort::Raylet => None,
        }
    }

    /// KubeRay's port where every pod has its own address; 0 where Ray chooses.
    fn usual(self) -> u16 {
        match self {
            HeadPort::Gcs => 6379,
            HeadPort::Dashboard => 8265,
            HeadPort::Client => 10_001,
            HeadPort::Metrics => 8080,
            HeadPort::Agent => 52_365,
            HeadPort::Raylet => 0,
        }
    }
}

/// The ports of a block: one for each of the head's.
const BLOCK: u16 = 6;
/// The port of Ray Serve, unless the user's program or configuration chooses another.
pub(crate) const SERVE: u16 = 8000;

/// How many ports in a row a cluster gets where pods share their node's address. A RayService's cluster gets a second
/// block: its first port is Ray Serve's for HTTP, the next one for gRPC.
#[must_use]
pub fn ports_of(cluster: &RayCluster) -> u16 {
    match serves(&cluster.metadata) {
        true => 2 * BLOCK,
        false => BLOCK,
    }
}

/// Whether a RayService made the cluster.
pub(crate) fn serves(cluster: &ObjectMeta) -> bool {
    let labels = cluster.labels.as_ref();
    let origin = labels.and_then(|labels| labels.get(names::RAY_ORIGIN_KIND));
    origin.is_some_and(|kind| kind == "RayService")
}

/// The ports of a cluster's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeadPorts {
    of: BTreeMap<HeadPort, u16>,
    /// Ray Serve's port, if Muster chooses it.
    serve: Option<u16>,
    /// The first port of the block, if the cluster has one: the value of its annotation.
    pub(crate) block: Option<u16>,
}

/// Every block of the range is held by another cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

impl HeadPorts {
    /// Decides the ports of a head with these parameters.
    pub(crate) fn of(
        params: &BTreeMap<String, String>,
        cluster: &ObjectMeta,
        network: &Network,
        taken: &BTreeSet<u16>,
    ) -> Result<HeadPorts, Exhausted> {
        let serves = serves(cluster);
        let count = if serves { 2 * BLOCK } else { BLOCK };
        let block = match network {
            Network::PerPod => None,
            Network::HostShared { ports } => {
                let own = annotated_port(cluster.annotations.as_ref());
                let last = |first: u16| first.checked_add(count - 1);
                let free = |first: &u16| {
                    let last = last(*first).filter(|last| ports.contains(last));
                    ports.contains(first)
                        && last.is_some_and(|last| taken.range(*first..=last).next().is_none())
                };
                let all = ports.clone().step_by(usize::from(BLOCK));
                let found = own.into_iter().chain(all).find(free);
                Some(found.ok_or(Exhausted)?)
            }
        };
        let mut of = BTreeMap::new();
        for (offset, port) in (0..).zip(HeadPort::ALL) {
            let usual = block.map_or(port.usual(), |first| first.saturating_add(offset));
            let chosen = params.get(port.param()).and_then(|text| text.parse().ok());
            of.insert(port, chosen.unwrap_or(usual));
        }
        let serve = block.filter(|_| serves);
        let serve = serve.map(|first| first.saturating_add(BLOCK));
        Ok(HeadPorts { of, serve, block })
    }

    /// Ray Serve's port for HTTP.
    pub(crate) fn serve(&self) -> u16 {
        self.serve.unwrap_or(SERVE)
    }

    /// Whether Muster chooses Ray Serve's port.
    pub(crate) fn chooses_serve(&self) -> bool {
        self.serve.is_some()
    }

    pub(crate) fn get(&self, port: HeadPort) -> u16 {
        self.of.get(&port).copied().unwrap_or_default()
    }

    /// Whether pods share their node's address.
    pub(crate) fn shared(&self) -> bool {
        self.block.is_some()
    }

    /// The annotation to write on the cluster, if it lacks it.
    pub(crate) fn annotation(
        &self,
        annotations: Option<&BTreeMap<String, String>>,
    ) -> Option<(String, Option<String>)> {
        let first = self.block?;
        let known = annotated_port(annotations) == Some(first);
        (!known).then(|| (names::RENDEZVOUS_PORT.to_owned(), Some(first.to_string())))
    }
}
