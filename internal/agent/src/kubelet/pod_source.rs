//! A kubelet's pods as a source of holders: the kubelet lists their devices, the API has their
//! statuses, and the CDI specs have the slices of their claims.

use std::path::PathBuf;

use devices::dra::Specs;
use devices::holders::DeviceHolders;
use devices::inventory::NodeHardware;
use devices::over_share::{ShareExcess, share_holders};
use devices::processes::Containers;
use futures::future::BoxFuture;
use resources::node_event;

use super::cluster::NodeClient;
use super::socket;
use crate::pod_source::{GpuShares, GpuSharesError, PodSource};
use crate::shares::OVER_SHARE;

/// The pods of one kubelet.
pub struct KubeletPods {
    /// The kubelet's pod resources socket.
    pub socket: PathBuf,
    /// The API, with the pods' statuses.
    pub cluster: NodeClient,
    /// The CDI specs of prepared claims.
    pub specs: Specs,
}

impl PodSource for KubeletPods {
    /// Without the kubelet's list the metrics' labels lack the holders; the values stay.
    fn device_holders(&self) -> BoxFuture<'_, DeviceHolders> {
        Box::pin(async {
            let mut holders = DeviceHolders::default();
            match socket::held(&self.socket, true).await {
                Ok(held) => {
                    for (holder, device) in held {
                        holders.note(&device, &holder);
                    }
                    let prepared = self.specs.all().unwrap_or_default().into_iter();
                    for (device, cut) in prepared.flat_map(|claim| claim.cuts) {
                        holders.has_too(&device, &cut.slice);
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "the kubelet does not list the devices of its pods");
                }
            }
            holders
        })
    }

    fn containers(&self) -> BoxFuture<'_, Containers> {
        Box::pin(async {
            match self.cluster.pods().await {
                Ok(pods) => Containers::of_pods(&pods),
                Err(error) => {
                    tracing::debug!(%error, "the API does not list the pods of this node");
                    Containers::default()
                }
            }
        })
    }

    fn shares<'a>(
        &'a self,
        machine: &'a NodeHardware,
    ) -> BoxFuture<'a, Result<GpuShares, GpuSharesError>> {
        Box::pin(async move {
            let listed = socket::held(&self.socket, false).await;
            let mut listed = listed.map_err(GpuSharesError::Kubelet)?;
            listed.retain(|(_, id)| share_holders::shared(id).is_some());
            // The API is only asked while a container shares a GPU.
            if listed.is_empty() {
                return Ok(GpuShares::default());
            }
            let pods = self.cluster.pods().await;
            let pods = pods.map_err(|error| GpuSharesError::Pods(Box::new(error)))?;
            let held = share_holders::of_kubelet(&pods, &listed, machine);
            Ok((held, Containers::of_pods(&pods)))
        })
    }

    fn over_share<'a>(&'a self, finding: &'a ShareExcess, words: String) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let held = &finding.has.held;
            if finding.new {
                let about = node_event::Container {
                    namespace: &held.holder.namespace,
                    pod: &held.holder.pod,
                    uid: &held.uid,
                    container: &held.holder.container,
                };
                self.cluster.report_pod(&about, OVER_SHARE, &words).await;
            }
            if finding.end {
                self.cluster.evict_over_share(held).await;
            }
        })
    }
}
