//! The Node object of a connected agent, and its lease. Writes what the agent reports; another
//! component uses the lease to decide whether a silent node is lost.

mod amounts;
mod conditions;
mod description;
mod pod_range;
#[cfg(test)]
mod testing;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node};
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use resources::devices::NodeInventory;
use resources::names::{INVENTORY, NODE_LEASES};
use resources::node_conditions::{DEVICES, STRATEGY, VERSION};
use serde_json::{Value, json};

use amounts::{capacity, reserve, withdrawn};
use conditions::{conditions, is_ready};
pub use description::NodeDescription;
use description::{inventory_json, labels};

use crate::error::{FleetError, api, status_code};
use crate::pod_ranges::PodRanges;

/// How often a conflicting write of a node's status is retried.
const TRIES_MAX: u32 = 10;

/// How long a lease is valid without being renewed, in seconds; Kubernetes' own value.
pub const LEASE_SECONDS: i32 = 40;

/// Counts a node's sessions, so that two of them can be ordered.
pub const SESSION_ANNOTATION: &str = resources::names::SESSION;

/// Nodes and their leases, as written by the fleet.
#[derive(Clone)]
pub struct NodeObjects {
    pub(crate) nodes: Api<Node>,
    leases: Api<Lease>,
    pub(crate) events: Api<Event>,
    pub(crate) ranges: Arc<PodRanges>,
}

impl NodeObjects {
    /// Uses the fleet's client.
    pub fn new(client: &Client, ranges: PodRanges) -> Self {
        NodeObjects {
            ranges: Arc::new(ranges),
            nodes: Api::all(client.clone()),
            leases: Api::namespaced(client.clone(), NODE_LEASES),
            events: Api::namespaced(client.clone(), resources::node_event::NAMESPACE),
        }
    }

    /// Creates or updates the Node of a new session; returns the session's epoch.
    pub async fn register(
        &self,
        description: &NodeDescription,
        inventory: &NodeInventory,
    ) -> Result<u64, FleetError> {
        let name = &description.name;
        let found = self
            .nodes
            .get_opt(name)
            .await
            .map_err(api(format!("reading node {name:?}")))?;
        let epoch = found.as_ref().map_or(0, epoch_of).saturating_add(1);
        let metadata = json!({
            "name": name,
            "labels": labels(description, inventory, found.as_ref()),
            "annotations": {
                INVENTORY: inventory_json(inventory),
                SESSION_ANNOTATION: epoch.to_string(),
            },
        });
        if found.is_none() {
            let node: Node = serde_json::from_value(json!({"metadata": metadata, "spec": {}}))
                .map_err(|error| FleetError::Malformed {
                    what: format!(
                        "the server cannot create node {name:?} from the agent's report: {error}"
                    ),
                })?;
            match self.nodes.create(&PostParams::default(), &node).await {
                Ok(_) => {}
                // Another writer created it first; the patch below does the rest.
                Err(error) if status_code(&error) == Some(409) => {}
                Err(error) => return Err(api(format!("creating node {name:?}"))(error)),
            }
        }
        self.withdraw(name, found.as_ref(), inventory).await?;
        let patch = json!({"metadata": metadata});
        self.nodes
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map_err(api(format!("updating node {name:?}")))?;
        // Writes the lease first: a node that is ready without one would look lost.
        self.renew_lease(name).await?;
        self.write_status(description, inventory).await?;
        self.allot_range(description).await?;
        Ok(epoch)
    }

    /// Corrects the Node if it is missing or not Ready; the session is alive.
    pub async fn keep_ready(
        &self,
        description: &NodeDescription,
        inventory: &NodeInventory,
    ) -> Result<(), FleetError> {
        let name = &description.name;
        let found = self
            .nodes
            .get_opt(name)
            .await
            .map_err(api(format!("reading node {name:?}")))?;
        match found {
            None => self.register(description, inventory).await.map(|_| ()),
            Some(node) if !is_ready(&node) => self.write_status(description, inventory).await,
            Some(_) => Ok(()),
        }
    }

    /// Writes a changed inventory.
    pub async fn write_inventory(
        &self,
        description: &NodeDescription,
        inventory: &NodeInventory,
    ) -> Result<(), FleetError> {
        let name = &description.name;
        let found = self.nodes.get_opt(name).await;
        let found = found.map_err(api(format!("reading node {name:?}")))?;
        self.withdraw(name, found.as_ref(), inventory).await?;
        let labels = labels(description, inventory, found.as_ref());
        let patch = json!({"metadata": {"labels": labels,
            "annotations": {INVENTORY: inventory_json(inventory)}}});
        self.nodes
            .patch(
                &description.name,
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .await
            .map_err(api(format!("updating node {:?}", description.name)))?;
        self.write_status(description, inventory).await
    }

    /// Removes resources that the node no longer offers from its status. Called before its
    /// inventory is written, because the last written version names them.
    async fn withdraw(
        &self,
        name: &str,
        before: Option<&Node>,
        now: &NodeInventory,
    ) -> Result<(), FleetError> {
        let Some(patch) = withdrawn(before, now) else {
            return Ok(());
        };
        self.nodes
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map(|_| ())
            .map_err(api(format!("updating the status of node {name:?}")))
    }

    async fn write_status(
        &self,
        description: &NodeDescription,
        inventory: &NodeInventory,
    ) -> Result<(), FleetError> {
        let name = &description.name;
        let (capacity, mut allocatable) = capacity(inventory, description.max_pods);
        reserve(&mut allocatable, inventory, description.reserved);
        let status = json!({
            "capacity": capacity,
            "allocatable": allocatable,
            "addresses": description.addresses,
            "nodeInfo": description.info,
        });
        let ready = |node: &Node| Some(conditions(node, Timestamp::now()));
        self.write_conditions(name, status, ready).await?;
        for (subject, trouble) in [
            (&STRATEGY, inventory.not_uniform()),
            (&DEVICES, inventory.unhealthy_devices()),
            (&VERSION, None),
        ] {
            let trouble = trouble.unwrap_or_default();
            self.write_trouble(name, subject, &trouble, Timestamp::now())
                .await?;
        }
        Ok(())
    }

    /// Writes a node's status with conditions computed from its present ones. Other components
    /// write conditions too, so the write requires the version that was read. Writes nothing if
    /// there are no changes; returns true if it wrote.
    pub(crate) async fn write_conditions(
        &self,
        name: &str,
        status: Value,
        conditions: impl Fn(&Node) -> Option<Vec<Value>>,
    ) -> Result<bool, FleetError> {
        let mut tries = 0;
        loop {
            let current = self.nodes.get(name).await;
            let current = current.map_err(api(format!("reading node {name:?}")))?;
            let Some(conditions) = conditions(&current) else {
                return Ok(false);
            };
            let mut status = status.clone();
            status["conditions"] = Value::Array(conditions);
            let seen = current.metadata.resource_version;
            let patch = json!({"metadata": {"resourceVersion": seen}, "status": status});
            let written = self
                .nodes
                .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
                .await;
            tries += 1;
            match written {
                Err(kube::Error::Api(status)) if status.code == 409 && tries < TRIES_MAX => {}
                other => {
                    return other
                        .map(|_| true)
                        .map_err(api(format!("updating the status of node {name:?}")));
                }
            }
        }
    }

    /// Renews the node's lease, or creates it.
    pub async fn renew_lease(&self, name: &str) -> Result<(), FleetError> {
        let spec = json!({
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": micros(Timestamp::now()),
        });
        let patch = json!({"spec": spec});
        let renewed = self
            .leases
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        let failed = match renewed {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        // The API answers 500 for a damaged lease record: a new one replaces it.
        if !matches!(status_code(&failed), Some(404 | 500)) {
            return Err(api(format!("renewing the lease of node {name:?}"))(failed));
        }
        let lease: Lease = serde_json::from_value(
            json!({"metadata": {"name": name}, "spec": spec}),
        )
        .map_err(|error| FleetError::Malformed {
            what: format!("the server cannot create the lease of node {name:?}: {error}"),
        })?;
        match self.leases.create(&PostParams::default(), &lease).await {
            Ok(_) => Ok(()),
            Err(error) if status_code(&error) == Some(409) => match status_code(&failed) {
                Some(404) => Ok(()),
                _ => Err(api(format!("renewing the lease of node {name:?}"))(failed)),
            },
            Err(error) => Err(api(format!("making the lease of node {name:?}"))(error)),
        }
    }
}

fn epoch_of(node: &Node) -> u64 {
    node.metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(SESSION_ANNOTATION))
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

/// A time as Kubernetes writes a MicroTime.
pub fn micros(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// True if a name is valid for a node: a DNS subdomain.
pub fn valid_name(name: &str) -> bool {
    let label = |label: &str| {
        let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = label.as_bytes();
        match (bytes.first(), bytes.last()) {
            (Some(first), Some(last)) => {
                alphanumeric(*first)
                    && alphanumeric(*last)
                    && bytes
                        .iter()
                        .all(|byte| alphanumeric(*byte) || *byte == b'-')
            }
            _ => false,
        }
    };
    name.len() <= 253 && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_names_are_dns_subdomains() {
        for good in ["a", "gpu-01.rack2", "10.0.0.1"] {
            assert!(valid_name(good), "{good}");
        }
        for bad in ["", "A", "-a", "a-", "a..b", "a_b", "a/b", &"a".repeat(254)] {
            assert!(!valid_name(bad), "{bad}");
        }
    }

    /// The result of renewing a lease if the API answers with these codes.
    async fn renewed(patched: u16, created: u16) -> bool {
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let code = match *request.method() {
                http::Method::POST => created,
                _ => patched,
            };
            let body = if code < 300 {
                json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "n1"}})
            } else {
                json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "reason": "Unknown", "message": "no", "code": code,
                })
            };
            let body = kube::client::Body::from(body.to_string().into_bytes());
            let answer = http::Response::builder().status(code).body(body);
            async move { Ok::<_, std::io::Error>(answer.unwrap()) }
        });
        let nodes = NodeObjects::new(
            &Client::new(service, "default"),
            PodRanges::new(resources::pod_ranges::DEFAULT_CLUSTER_RANGE, None),
        );
        nodes.renew_lease("n1").await.is_ok()
    }

    #[tokio::test]
    async fn a_lease_that_is_missing_or_damaged_is_made_anew() {
        for (patched, created, well) in [
            (200, 500, true),
            (404, 201, true),
            // Another writer created it meanwhile.
            (404, 409, true),
            // The record is damaged.
            (500, 201, true),
            // It exists, and cannot be renewed for another reason.
            (500, 409, false),
            (503, 201, false),
        ] {
            assert_eq!(renewed(patched, created).await, well, "{patched} {created}");
        }
    }

    #[test]
    fn a_lease_is_renewed_in_microseconds() {
        let time: Timestamp = "2025-03-04T05:06:07.123456789Z".parse().unwrap();
        assert_eq!(micros(time), "2025-03-04T05:06:07.123456Z");
    }
}
