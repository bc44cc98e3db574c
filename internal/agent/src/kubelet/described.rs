//! The device plugin of a described vendor's devices. Which of them a container gets is the kubelet's
//! choice: the scheduler counts them, as it does any resource.

use std::path::{Path, PathBuf};
use std::pin::Pin;

use futures::{Stream, StreamExt};
use rpc::kubelet::v1beta1 as wire;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};

use crate::vendors::{self, Device, Vendor};

/// The plugin for one vendor's resource.
pub struct Described {
    pub(super) vendor: Vendor,
    /// Where the machine's root is seen.
    pub(super) root: PathBuf,
    pub(super) devices: watch::Receiver<Vec<Device>>,
}

fn offered(devices: Vec<Device>) -> wire::ListAndWatchResponse {
    let device = |device: Device| wire::Device {
        id: device.id,
        health: if device.healthy {
            "Healthy"
        } else {
            "Unhealthy"
        }
        .into(),
        topology: device.numa.map(|numa| wire::TopologyInfo {
            nodes: vec![wire::NumaNode {
                id: i64::from(numa),
            }],
        }),
    };
    wire::ListAndWatchResponse {
        devices: devices.into_iter().map(device).collect(),
    }
}

impl Described {
    /// What a container with these devices is started with.
    fn equipment(&self, ids: &[String]) -> Result<wire::ContainerAllocateResponse, Status> {
        let devices = self.devices.borrow();
        let one = |id: &String| {
            let found = devices.iter().find(|device| device.id == *id);
            let unknown = || format!("this node has no {} {id:?}", self.vendor.resource);
            (found.cloned()).ok_or_else(|| Status::invalid_argument(unknown()))
        };
        let given = ids
            .iter()
            .map(one)
            .collect::<Result<Vec<Device>, Status>>()?;
        let there = |path: &Path| vendors::below(&self.root, path).exists();
        let files = self.vendor.files(&given).into_iter();
        let files = files.filter(|file| there(file)).map(|file| {
            let path = file.display().to_string();
            wire::DeviceSpec {
                container_path: path.clone(),
                host_path: path,
                permissions: "rw".into(),
            }
        });
        let mounts = self.vendor.mounts.iter().filter(|mount| there(&mount.from));
        let mounts = mounts.map(|mount| wire::Mount {
            container_path: mount.to.display().to_string(),
            host_path: mount.from.display().to_string(),
            read_only: mount.read_only,
        });
        tracing::info!(
            resource = self.vendor.resource,
            devices = ids.join(","),
            "devices given"
        );
        Ok(wire::ContainerAllocateResponse {
            envs: self.vendor.variables(&given).into_iter().collect(),
            devices: files.collect(),
            mounts: mounts.collect(),
            ..wire::ContainerAllocateResponse::default()
        })
    }
}

type Devices = Pin<Box<dyn Stream<Item = Result<wire::ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl wire::device_plugin_server::DevicePlugin for Described {
    type ListAndWatchStream = Devices;

    async fn get_device_plugin_options(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<wire::DevicePluginOptions>, Status> {
        Ok(Response::new(wire::DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<wire::Empty>) -> Result<Response<Devices>, Status> {
        let states = WatchStream::new(self.devices.clone());
        Ok(Response::new(Box::pin(states.map(|now| Ok(offered(now))))))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<wire::PreferredAllocationRequest>,
    ) -> Result<Response<wire::PreferredAllocationResponse>, Status> {
        Err(Status::unimplemented("any of these devices is as good"))
    }

    async fn allocate(
        &self,
        request: Request<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        let requests = request.into_inner().container_requests.into_iter();
        let answers = requests.map(|container| self.equipment(&container.device_ids));
        Ok(Response::new(wire::AllocateResponse {
            container_responses: answers.collect::<Result<_, _>>()?,
        }))
    }

    async fn pre_start_container(
        &self,
        _: Request<wire::PreStartContainerRequest>,
    ) -> Result<Response<wire::PreStartContainerResponse>, Status> {
        Ok(Response::new(wire::PreStartContainerResponse {}))
    }
}
