//! The device plugin's answers.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use devices::cdi::gpus::{CONTROL_FILES, capability_files};
use devices::delivery::{self, CdiFile, DeliveryMethod};
use devices::inventory::NodeHardware;
use devices::rdma::NodeRdmaCards;
use devices::settings::PluginSettings;
use devices::share::ShareLimit;
use devices::unit::Unit;
use devices::{mps, offer, preference};
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use rpc::kubelet::v1beta1 as wire;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};

use super::admission::{self, Answered, ListedPod, RequestingContainer};
use super::cluster::NodeClient;
use super::{counted_plugin, socket};

/// The plugin for one of the node's resources.
pub struct Plugin {
    /// GPUs, or slices of one profile: `nvidia.com/gpu`, `nvidia.com/mig-1g.10gb`.
    pub(super) resource: String,
    pub(super) settings: PluginSettings,
    /// The CDI specification, if devices are passed by CDI.
    pub(super) cdi: Option<Arc<CdiFile>>,
    pub(super) cluster: NodeClient,
    pub(super) machine: watch::Receiver<NodeHardware>,
    /// The node's RDMA cards that containers share.
    pub(super) cards: NodeRdmaCards,
    /// The kubelet's pod resources socket.
    pub(super) resources_socket: PathBuf,
    pub(super) dev: PathBuf,
    pub(super) answered: Mutex<Answered>,
}

/// The plugin's optional features.
pub(super) fn options() -> wire::DevicePluginOptions {
    wire::DevicePluginOptions {
        pre_start_required: false,
        get_preferred_allocation_available: true,
    }
}

/// The devices of a resource, as a machine has them.
fn units(machine: &NodeHardware, settings: &PluginSettings, resource: &str) -> Vec<Unit> {
    let PluginSettings { sharing, parts, .. } = settings;
    let mut all = offer::all(&machine.inventory, &machine.mps, sharing, *parts);
    all.remove(resource).unwrap_or_default()
}

fn offered(units: Vec<Unit>) -> wire::ListAndWatchResponse {
    let device = |unit: Unit| counted_plugin::device(unit.id, unit.healthy, unit.numa);
    wire::ListAndWatchResponse {
        devices: units.into_iter().map(device).collect(),
    }
}

impl Plugin {
    /// The container that requests this many devices, and the devices that others hold.
    async fn asking(&self, size: usize) -> Result<(RequestingContainer, BTreeSet<String>), Status> {
        let listed = socket::listed(&self.resources_socket, &self.resource).await?;
        let pods = self.cluster.pods().await.map_err(|error| {
            Status::unavailable(format!("the pods of this node cannot be listed: {error}"))
        })?;
        let mut answered = self.answered.lock();
        answered.retain(|(uid, _)| {
            let is = |pod: &k8s_openapi::api::core::v1::Pod| pod.metadata.uid.as_ref() == Some(uid);
            pods.iter().any(is)
        });
        let found = admission::asking(&self.resource, size, &listed, &pods, &answered);
        let asking = found.map_err(|error| Status::failed_precondition(error.to_string()))?;
        let taken = admission::spoken_for(&self.resource, &pods, &asking.uid);
        Ok((asking, taken))
    }

    /// The resource's devices now.
    fn units(&self) -> Vec<Unit> {
        units(&self.machine.borrow(), &self.settings, &self.resource)
    }

    /// The units of these ids.
    fn known(&self, ids: &[String]) -> Result<Vec<Unit>, Status> {
        let units = self.units();
        let one = |id: &String| {
            let found = units.iter().find(|unit| unit.id == *id);
            let unknown = || format!("this node has no {} {id:?}", self.resource);
            (found.cloned()).ok_or_else(|| Status::invalid_argument(unknown()))
        };
        ids.iter().map(one).collect()
    }

    /// The additions to a container with these GPUs or slices.
    fn equipment(&self, devices: &[String]) -> Result<wire::ContainerAllocateResponse, Status> {
        let delivery = &self.settings.delivery;
        let by = |way: DeliveryMethod| delivery.ways.contains(&way);
        let mut equipment = wire::ContainerAllocateResponse::default();
        if by(DeliveryMethod::Envvar) {
            let visible = "NVIDIA_VISIBLE_DEVICES".to_string();
            equipment.envs.insert(visible, devices.join(","));
        }
        if let Some(cdi) = &self.cdi {
            let names = cdi.names(devices);
            let names = names.map_err(|error| Status::failed_precondition(error.to_string()))?;
            if by(DeliveryMethod::CdiAnnotations) {
                let prefix = &delivery.annotation_prefix;
                let (key, value) = delivery::annotation(prefix, &self.resource, &names);
                equipment.annotations.insert(key, value);
            }
            if by(DeliveryMethod::CdiCri) {
                let device = |name| wire::CdiDevice { name };
                equipment.cdi_devices = names.into_iter().map(device).collect();
            }
        }
        if self
            .settings
            .pass_device_specs
            .unwrap_or(self.cdi.is_none())
        {
            equipment.devices = self.files(devices);
        }
        Ok(equipment)
    }

    /// The further additions for a container that shares a GPU by MPS, with its limits.
    fn share(
        &self,
        asking: &RequestingContainer,
        devices: &[String],
        equipment: &mut wire::ContainerAllocateResponse,
    ) -> Result<(), Status> {
        let machine = self.machine.borrow();
        let memory = |id: &String| machine.inventory.memory_of(id);
        let memory = devices.first().and_then(memory).unwrap_or(0);
        // Without a scheduler's choice, a device is one of a GPU's equal parts.
        let limit = asking.chosen.as_ref().map(|_| match &asking.share {
            Some(share) => ShareLimit::of_share(share, memory),
            None => ShareLimit::default(),
        });
        let by_mps = mps::equip(&machine.mps, devices, limit).map_err(|why| {
            let (container, pod) = (&asking.container, &asking.pod);
            Status::failed_precondition(format!("container {container} of pod {pod}: {why}"))
        })?;
        let by_mps = by_mps.unwrap_or_default();
        let named = |(name, value): (&str, String)| (name.to_owned(), value);
        equipment
            .envs
            .extend(by_mps.variables.into_iter().map(named));
        equipment.mounts.extend(by_mps.mounts.iter().map(|path| {
            let path = path.display().to_string();
            wire::Mount {
                container_path: path.clone(),
                host_path: path,
                read_only: false,
            }
        }));
        Ok(())
    }

    /// The error for parts without a scheduler's choice: only the scheduler keeps parts apart.
    fn missing_choice(&self, asking: &RequestingContainer) -> Status {
        Status::failed_precondition(format!(
            "container {} of pod {} asks for {}, and no scheduler chose a GPU for it; give the pod \
             Muster's schedulerName",
            asking.container, asking.pod, self.resource,
        ))
    }

    /// The device files of these GPUs and slices, and those that every container needs.
    fn files(&self, devices: &[String]) -> Vec<wire::DeviceSpec> {
        let machine = self.machine.borrow();
        let minors: BTreeSet<_> = (devices.iter())
            .filter_map(|id| machine.minors.get(id))
            .collect();
        let numbers = devices.iter().filter_map(|id| machine.capabilities.get(id));
        let files = minors.iter().map(|minor| format!("nvidia{minor}"));
        let slices = numbers.flat_map(|numbers| capability_files(numbers));
        let control = CONTROL_FILES.iter().map(ToString::to_string);
        let there = files.chain(slices).chain(control).filter_map(|name| {
            let path = self.dev.join(&name);
            path.exists().then(|| wire::DeviceSpec {
                container_path: format!("/dev/{name}"),
                host_path: path.display().to_string(),
                permissions: "rw".into(),
            })
        });
        there.collect()
    }

    /// The RDMA variables for a container with these GPUs or slices: for the cards that it
    /// requests; for all cards if it uses the host network and requests none.
    fn proposed(
        &self,
        asking: &RequestingContainer,
        devices: &[String],
    ) -> Vec<(&'static str, String)> {
        let rdma = &self.machine.borrow().rdma;
        match (asking.in_nodes_network, self.cards.of(&asking.asks)) {
            (true, None) => rdma.variables(devices, None),
            (true, Some(cards)) => rdma.among(&cards).variables(devices, None),
            (false, Some(cards)) => rdma.among(&cards).elsewhere(devices),
            (false, None) => Vec::new(),
        }
    }

    async fn allocate_one(
        &self,
        ids: &[String],
    ) -> Result<wire::ContainerAllocateResponse, Status> {
        let (asking, taken) = self.asking(ids.len()).await?;
        let units = self.known(ids)?;
        // The kubelet may not know of the failure yet.
        if let Some(unit) = units.iter().find(|unit| !unit.healthy) {
            return Err(Status::failed_precondition(format!(
                "{} is not available: its GPU is unhealthy or is being partitioned; delete \
                 pod {} so that it is scheduled again",
                unit.id, asking.pod
            )));
        }
        let (part, sharing) = (offer::is_part(&self.resource), &self.settings.sharing);
        let several = !part && ids.len() > 1 && units.iter().any(|unit| unit.shared);
        if sharing.one_at_most && several {
            return Err(Status::invalid_argument(format!(
                "container {} of pod {} asks for {} of {}, whose devices are shared: several are \
                 no more of a GPU, and failRequestsGreaterThanOne refuses them; ask for 1",
                asking.container,
                asking.pod,
                ids.len(),
                self.resource,
            )));
        }
        let sorted = |devices: &mut dyn Iterator<Item = &String>| {
            let mut devices: Vec<String> = devices.cloned().collect();
            devices.sort();
            devices
        };
        let mut given = sorted(&mut units.iter().map(|unit| &unit.device));
        if part {
            given.dedup();
        }
        match &asking.chosen {
            Some(chosen) if sorted(&mut chosen.iter()) != given => {
                return Err(Status::failed_precondition(format!(
                    "the scheduler chose {} for container {} of pod {}, and the kubelet has only \
                     {} to give; delete the pod so that it is scheduled again",
                    chosen.join(", "),
                    asking.container,
                    asking.pod,
                    ids.join(", "),
                )));
            }
            Some(_) => {}
            None if part => return Err(self.missing_choice(&asking)),
            None => {
                // Other containers may use the rest of a shared device.
                let alone = |unit: &&Unit| !unit.shared && taken.contains(&unit.device);
                if let Some(unit) = units.iter().find(alone) {
                    return Err(Status::failed_precondition(format!(
                        "{} was chosen for another pod of this node, which has not started yet; \
                         pod {} must wait for another device",
                        unit.id, asking.pod
                    )));
                }
            }
        }
        let mut devices = Vec::new();
        for unit in units {
            if !devices.contains(&unit.device) {
                devices.push(unit.device);
            }
        }
        let mut equipment = self.equipment(&devices)?;
        self.share(&asking, &devices, &mut equipment)?;
        let proposed = self.proposed(&asking, &devices);
        (equipment.envs).extend(asking.takes(proposed));
        tracing::info!(
            pod = asking.pod,
            container = asking.container,
            devices = ids.join(","),
            "devices given"
        );
        (self.answered.lock()).insert((asking.uid, asking.container));
        Ok(equipment)
    }

    async fn prefer(
        &self,
        request: wire::ContainerPreferredAllocationRequest,
    ) -> Result<Vec<String>, Status> {
        let size = usize::try_from(request.allocation_size).unwrap_or(0);
        let available: BTreeSet<String> = request.available_device_ids.into_iter().collect();
        let must: BTreeSet<String> = request.must_include_device_ids.into_iter().collect();
        let (asking, taken) = self.asking(size).await?;
        let units = self.units();
        if offer::is_part(&self.resource) {
            let Some([device]) = asking.chosen.as_deref() else {
                return Err(self.missing_choice(&asking));
            };
            return Ok(preference::parts_of(device, &units, &available, size));
        }
        if let Some(chosen) = asking.chosen {
            // If these aren't free, Allocate reports the error.
            let shared = units.iter().any(|unit| unit.shared);
            return Ok(if shared {
                preference::representatives(&chosen, &units, &available)
            } else {
                chosen
            });
        }
        let mut free: BTreeSet<String> =
            available.difference(&taken).chain(&must).cloned().collect();
        let (chooser, rdma) = {
            let machine = self.machine.borrow();
            (machine.chooser.clone(), machine.rdma.clone())
        };
        if let Some(cards) = self.cards.of(&asking.asks) {
            let rdma = rdma.among(&cards);
            let near = |unit: &Unit| rdma.is_near(&unit.device);
            free = preference::nearest(near, &units, free, &must, size);
        }
        Ok(preference::best(&chooser, &units, &free, &must, size))
    }
}

type PluginDevices = Pin<Box<dyn Stream<Item = Result<wire::ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl wire::device_plugin_server::DevicePlugin for Plugin {
    type ListAndWatchStream = PluginDevices;

    async fn get_device_plugin_options(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<wire::DevicePluginOptions>, Status> {
        Ok(Response::new(options()))
    }

    async fn list_and_watch(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<PluginDevices>, Status> {
        let states = WatchStream::new(self.machine.clone());
        let (resource, settings) = (self.resource.clone(), self.settings.clone());
        let of = move |machine: NodeHardware| units(&machine, &settings, &resource);
        let devices = states.map(move |machine| Ok(offered(of(machine))));
        Ok(Response::new(Box::pin(devices)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<wire::PreferredAllocationRequest>,
    ) -> Result<Response<wire::PreferredAllocationResponse>, Status> {
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            let device_ids = self.prefer(container).await?;
            container_responses.push(wire::ContainerPreferredAllocationResponse { device_ids });
        }
        Ok(Response::new(wire::PreferredAllocationResponse {
            container_responses,
        }))
    }

    async fn allocate(
        &self,
        request: Request<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            container_responses.push(self.allocate_one(&container.device_ids).await?);
        }
        Ok(Response::new(wire::AllocateResponse {
            container_responses,
        }))
    }

    async fn pre_start_container(
        &self,
        _: Request<wire::PreStartContainerRequest>,
    ) -> Result<Response<wire::PreStartContainerResponse>, Status> {
        Ok(Response::new(wire::PreStartContainerResponse {}))
    }
}

/// The kubelet's list in the form of [`admission`].
pub(super) fn as_listed(
    resource: &str,
    answer: rpc::kubelet::v1::ListPodResourcesResponse,
) -> Vec<ListedPod> {
    let listed = |pod: rpc::kubelet::v1::PodResources| ListedPod {
        namespace: pod.namespace,
        name: pod.name,
        held: (pod.containers.into_iter())
            .map(|container| {
                let devices = container.devices.into_iter();
                let of_it = devices.filter(|devices| devices.resource_name == resource);
                let ids = of_it.flat_map(|devices| devices.device_ids).collect();
                (container.name, ids)
            })
            .collect(),
    };
    answer.pod_resources.into_iter().map(listed).collect()
}
