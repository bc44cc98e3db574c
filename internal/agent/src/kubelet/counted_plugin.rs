//! The device plugin for resources that are only counted: the kubelet chooses which devices a
//! container gets.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use rpc::kubelet::v1beta1 as wire;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};

/// The offer of such a plugin.
pub trait PluginOffer: Send + Sync + 'static {
    /// The state that the offer depends on.
    type Seen: Clone + Send + Sync + 'static;

    /// The current state, and its changes.
    fn seen(&self) -> watch::Receiver<Self::Seen>;

    /// The devices offered in this state.
    fn offered(&self, now: &Self::Seen) -> Vec<wire::Device>;

    /// The additions to a container with these devices.
    fn equipment(&self, ids: &[String]) -> Result<wire::ContainerAllocateResponse, Status>;
}

/// The plugin.
pub struct CountedPlugin<O>(Arc<O>);

impl<O> CountedPlugin<O> {
    pub fn new(offer: O) -> CountedPlugin<O> {
        CountedPlugin(Arc::new(offer))
    }
}

type PlainDevices = Pin<Box<dyn Stream<Item = Result<wire::ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl<O: PluginOffer> wire::device_plugin_server::DevicePlugin for CountedPlugin<O> {
    type ListAndWatchStream = PlainDevices;

    async fn get_device_plugin_options(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<wire::DevicePluginOptions>, Status> {
        Ok(Response::new(wire::DevicePluginOptions::default()))
    }

    async fn list_and_watch(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<PlainDevices>, Status> {
        let offer = self.0.clone();
        let devices = WatchStream::new(offer.seen()).map(move |now| {
            let devices = offer.offered(&now);
            Ok(wire::ListAndWatchResponse { devices })
        });
        Ok(Response::new(Box::pin(devices)))
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
        let answers = requests.map(|container| self.0.equipment(&container.device_ids));
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

/// A device in the kubelet's form.
pub fn device(id: String, healthy: bool, numa: Option<u32>) -> wire::Device {
    wire::Device {
        id,
        health: if healthy { "Healthy" } else { "Unhealthy" }.into(),
        topology: numa.map(|numa| wire::TopologyInfo {
            nodes: vec![wire::NumaNode {
                id: i64::from(numa),
            }],
        }),
    }
}

/// A device file, mounted at the same path, readable and writable.
pub fn file(path: String) -> wire::DeviceSpec {
    wire::DeviceSpec {
        container_path: path.clone(),
        host_path: path,
        permissions: "rw".into(),
    }
}
