//! The interface to a node's pods for the metrics and the watch of GPU shares: which container holds
//! which device. The pods are the agent's own (`own_pods`) or a kubelet's (`kubelet::pod_source`).

use devices::holders::DeviceHolders;
use devices::inventory::NodeHardware;
use devices::over_share::{GpuShare, ShareExcess};
use devices::processes::Containers;
use futures::future::BoxFuture;

/// The shares of GPUs that containers hold, and the containers to which processes may belong.
pub type GpuShares = (Vec<GpuShare>, Containers);

/// Why the shares of GPUs that containers hold are unknown.
#[derive(Debug, thiserror::Error)]
pub enum GpuSharesError {
    /// The kubelet does not list the devices of its pods.
    #[error("{}", .0.message())]
    Kubelet(tonic::Status),
    /// The API does not list the pods of this node.
    #[error("{0}")]
    Pods(Box<kube::Error>),
}

/// A node's pods and their devices.
pub trait PodSource: Send + Sync + 'static {
    /// The containers that hold devices; none while they are unknown.
    fn device_holders(&self) -> BoxFuture<'_, DeviceHolders>;
    /// The containers to which processes may belong; none while they are unknown.
    fn containers(&self) -> BoxFuture<'_, Containers>;
    /// Every present share of the memory of this machine's GPUs, or why they are unknown.
    fn shares<'a>(
        &'a self,
        machine: &'a NodeHardware,
    ) -> BoxFuture<'a, Result<GpuShares, GpuSharesError>>;
    /// Reports a container that is over its share, in these words, and ends it if the finding says
    /// so.
    fn over_share<'a>(&'a self, finding: &'a ShareExcess, words: String) -> BoxFuture<'a, ()>;
}
