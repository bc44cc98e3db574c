//! Answers the kubelet's requests: prepares devices for claims, as CDI specs.

mod claim_partitions;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use devices::cdi::gpus::{self, Roots};
use devices::cdi::{CdiSpec, Edits};
use devices::dra::claimable::{Claimable, ClaimableKind};
use devices::dra::grant;
use devices::dra::partitioning::ClaimPartitioner;
use devices::dra::partitions::{
    AllocatableDevices, CardError, DiscoveredDevices, GpuLayouts, offer,
};
use devices::dra::prepared::{Prepared, PreparedDevice, Specs};
use devices::dra::rdma_files::verbs;
use devices::inventory::NodeHardware;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::Api;
use rpc::kubelet::dra::v1 as wire;
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::timeout;
use tonic::{Request, Response, Status};

use super::error::ClaimError;
use super::held;
use crate::kubelet::{self, KubeletConfig, LOOK_EVERY};

/// Interval of the search for specs of deleted claims.
const STALE_CLAIMS_EVERY: Duration = Duration::from_secs(60);

/// The driver of one node.
#[derive(Clone)]
pub struct DraDriver(Arc<Inner>);

struct Inner {
    client: kube::Client,
    node: String,
    roots: Roots,
    sysfs: PathBuf,
    pod_resources: PathBuf,
    machine: watch::Receiver<NodeHardware>,
    found: watch::Receiver<DiscoveredDevices>,
    offer: watch::Sender<AllocatableDevices>,
    partitioner: ClaimPartitioner,
    /// Whether GPUs are partitioned for claims.
    partitions: bool,
    /// Notified when a GPU could not be partitioned: its layout may have changed.
    failed: Notify,
    /// Locked for one claim at a time: the next claim must see its result.
    specs: Mutex<Specs>,
}

impl DraDriver {
    /// A driver with a first offer.
    pub(super) async fn new(
        config: &KubeletConfig,
        client: kube::Client,
        machine: watch::Receiver<NodeHardware>,
        found: watch::Receiver<DiscoveredDevices>,
    ) -> DraDriver {
        let driver = DraDriver(Arc::new(Inner {
            client,
            node: config.node.clone(),
            roots: config.settings.delivery.roots(),
            sysfs: config.source.sysfs_root.clone(),
            pod_resources: config.pod_resources(),
            partitioner: ClaimPartitioner::new(&config.source, machine.clone()),
            machine,
            found,
            offer: watch::channel(AllocatableDevices::default()).0,
            partitions: config.partitions,
            failed: Notify::new(),
            specs: Mutex::new(Specs::new(&config.cdi)),
        }));
        driver.0.observe().await;
        driver
    }

    /// The offer, and its changes.
    pub(super) fn offer(&self) -> watch::Receiver<AllocatableDevices> {
        self.0.offer.subscribe()
    }

    /// Updates the offer when the machine changes.
    pub(super) async fn follow(&self) {
        let mut found = self.0.found.clone();
        loop {
            let known = self.0.observe().await;
            let news = async {
                tokio::select! {
                    changed = found.changed() => changed.is_ok(),
                    () = self.0.failed.notified() => true,
                }
            };
            let goes_on = match known {
                true => news.await,
                // A driver that doesn't answer now may answer soon.
                false => timeout(LOOK_EVERY, news).await.unwrap_or(true),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Periodically removes specs of deleted claims that no pod here uses: a kubelet that lost its
    /// own records never asks to unprepare them.
    pub(super) async fn remove_stale_claims(&self) {
        let mut tick = tokio::time::interval(STALE_CLAIMS_EVERY);
        loop {
            tick.tick().await;
            if let Err(problem) = self.0.remove_stale_claims().await {
                tracing::debug!("claims that are gone cannot be looked for: {problem}");
            }
        }
    }
}

impl Inner {
    /// Updates the offer; whether all layouts are known. Holds the lock, so that the layouts are
    /// compared with the present claims.
    async fn observe(&self) -> bool {
        let specs = self.specs.lock().await;
        let found = self.found.borrow().clone();
        let cards = match self.partitions {
            true => {
                let gpus = found.gpus.iter().map(|gpu| gpu.id.clone());
                self.partitioner.cards(gpus.collect()).await
            }
            false => GpuLayouts::new(),
        };
        let prepared = match specs.all() {
            Ok(prepared) => prepared,
            Err(error) => {
                tracing::warn!(%error, "the agent cannot read the CDI specs; it offers the same devices as before");
                return false;
            }
        };
        let now = offer(&found, &cards, &prepared);
        let changed = self.offer.send_if_modified(|before| {
            let changed = *before != now;
            *before = now;
            changed
        });
        let unknown: Vec<&CardError> = cards.values().filter_map(|it| it.as_ref().err()).collect();
        if changed {
            unknown
                .iter()
                .for_each(|error| tracing::warn!("a GPU is not offered: {error}"));
        }
        // A GPU whose mode change is pending shows no change when it is done.
        unknown.is_empty() && !cards.values().flatten().any(|card| card.waits)
    }

    async fn claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ResourceClaim>, ClaimError> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), namespace);
        let found = claims.get_opt(name).await;
        found.map_err(|error| ClaimError::Unread {
            claim: format!("{namespace}/{name}"),
            error: Box::new(error),
        })
    }

    async fn prepare(&self, asked: &wire::Claim) -> Result<Vec<wire::Device>, ClaimError> {
        let specs = self.specs.lock().await;
        let claim = self.claim(&asked.namespace, &asked.name).await?;
        let same = |claim: &ResourceClaim| claim.metadata.uid.as_ref() == Some(&asked.uid);
        let claim = claim.filter(same).ok_or_else(|| ClaimError::Gone {
            claim: format!("{}/{}", asked.namespace, asked.name),
            uid: asked.uid.clone(),
        })?;
        let given = grant::allocated(&claim, &self.node)?;
        let held = held(&self.pod_resources)
            .await
            .map_err(ClaimError::Holders)?;
        let all = specs.all().map_err(ClaimError::SpecsUnread)?;
        let offer = self.offer.borrow().clone();
        let devices = grant::devices(&asked.uid, &given, &offer.devices, &all, &held)?;
        let mut devices: Vec<Claimable> = devices.into_iter().cloned().collect();
        let mut prepared = Prepared {
            uid: asked.uid.clone(),
            namespace: asked.namespace.clone(),
            name: asked.name.clone(),
            devices: given,
            ..Prepared::default()
        };
        let cut = self.cut(&specs, &all, &offer, &mut prepared, &mut devices);
        cut.await.inspect_err(|_| self.failed.notify_one())?;
        // NVIDIA's runtime must not add the devices that an image requests: images of CUDA request
        // all GPUs.
        let gpus = gpus::spec(&self.machine.borrow(), &self.roots, true);
        let edits = devices.iter().map(|device| self.edits(&gpus, device));
        let edits = edits.collect::<Result<Vec<Edits>, ClaimError>>()?;
        let nics_only = devices
            .iter()
            .all(|device| device.what == ClaimableKind::Nic);
        let with_any = match nics_only {
            true => Edits::default(),
            false => gpus.edits,
        };
        specs
            .put(&prepared, edits, with_any)
            .map_err(ClaimError::SpecUnwritten)?;
        tracing::info!(
            claim = format!("{}/{}", prepared.namespace, prepared.name),
            devices = (devices.iter().map(|it| it.id.as_str()))
                .collect::<Vec<_>>()
                .join(","),
            "devices given"
        );
        let answer = |given: &PreparedDevice| wire::Device {
            request_names: vec![given.main_request().to_owned()],
            pool_name: self.node.clone(),
            device_name: given.device.clone(),
            cdi_device_ids: vec![prepared.cdi_id(given)],
        };
        Ok(prepared.devices.iter().map(answer).collect())
    }

    async fn unprepare(&self, asked: &wire::Claim) -> Result<(), ClaimError> {
        let specs = self.specs.lock().await;
        let all = specs.all().map_err(ClaimError::SpecsUnread)?;
        match all.iter().find(|it| it.uid == asked.uid) {
            Some(prepared) => self.let_go(&specs, prepared).await,
            // A spec that cannot be parsed belongs to no claim any more.
            None => specs.remove(&asked.uid).map_err(ClaimError::SpecKept),
        }
    }

    /// The edits to a container with a device. Described GPUs without a number have no files.
    fn edits(&self, gpus: &CdiSpec, device: &Claimable) -> Result<Edits, ClaimError> {
        let mut edits = match device.what {
            ClaimableKind::Nic => {
                let files = verbs(&self.sysfs, &device.id);
                let files = files.iter().filter_map(|file| self.roots.node(file));
                Edits {
                    device_nodes: files.collect(),
                    ..Edits::default()
                }
            }
            _ => match gpus.devices.iter().find(|it| it.name == device.id) {
                Some(known) => known.edits.clone(),
                None if self.machine.borrow().minors.contains_key(&device.id) => {
                    return Err(ClaimError::NoDeviceFiles {
                        device: device.id.clone(),
                        directory: self.roots.dev_seen.join("dev"),
                    });
                }
                None => Edits::default(),
            },
        };
        let (name, value) = device.variable();
        edits.env.push(format!("{name}={value}"));
        Ok(edits)
    }

    async fn remove_stale_claims(&self) -> Result<(), ClaimError> {
        let specs = self.specs.lock().await;
        let all = specs.all().map_err(ClaimError::SpecsUnread)?;
        for prepared in all {
            let (namespace, name) = (&prepared.namespace, &prepared.name);
            let claim = self.claim(namespace, name).await?;
            if claim.is_some_and(|claim| claim.metadata.uid.as_ref() == Some(&prepared.uid)) {
                continue;
            }
            // A pod that was deleted by force may still run for a while.
            let used = kubelet::claims(&self.pod_resources).await;
            let used = used.map_err(ClaimError::Holders)?;
            if !used.contains(&(namespace.clone(), name.clone())) {
                tracing::info!("claim {namespace}/{name} is gone, and with it its CDI spec");
                self.let_go(&specs, &prepared).await?;
            }
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl wire::dra_plugin_server::DraPlugin for DraDriver {
    async fn node_prepare_resources(
        &self,
        request: Request<wire::NodePrepareResourcesRequest>,
    ) -> Result<Response<wire::NodePrepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            let answer = match self.0.prepare(&claim).await {
                Ok(devices) => wire::NodePrepareResourceResponse {
                    devices,
                    error: String::new(),
                },
                Err(error) => {
                    tracing::warn!("claim {}/{}: {error}", claim.namespace, claim.name);
                    wire::NodePrepareResourceResponse {
                        devices: Vec::new(),
                        error: error.to_string(),
                    }
                }
            };
            claims.insert(claim.uid, answer);
        }
        Ok(Response::new(wire::NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<wire::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<wire::NodeUnprepareResourcesResponse>, Status> {
        let mut claims = HashMap::new();
        for claim in request.into_inner().claims {
            let failed = self.0.unprepare(&claim).await.err();
            let error = failed.map(|error| error.to_string()).unwrap_or_default();
            claims.insert(claim.uid, wire::NodeUnprepareResourceResponse { error });
        }
        Ok(Response::new(wire::NodeUnprepareResourcesResponse {
            claims,
        }))
    }
}
