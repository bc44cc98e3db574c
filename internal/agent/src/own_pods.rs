//! The agent's own pods as a source of holders.

use std::sync::Arc;

use devices::holders::DeviceHolders;
use devices::inventory::NodeHardware;
use devices::over_share::{ShareExcess, share_holders};
use devices::processes::Containers;
use futures::future::BoxFuture;

use crate::node::AgentNode;
use crate::pod_source::{GpuShares, GpuSharesError, PodSource};
use crate::pods::Pods;

/// The pods that the agent runs.
pub struct OwnPods {
    /// The node with the engines that run them.
    pub node: Arc<AgentNode>,
    /// The pods.
    pub pods: Arc<Pods>,
}

impl OwnPods {
    fn running(&self) -> Containers {
        let engines = self.node.engines();
        let all: Vec<_> = engines.iter().flat_map(|engine| engine.list()).collect();
        Containers::own(&all)
    }
}

impl PodSource for OwnPods {
    fn device_holders(&self) -> BoxFuture<'_, DeviceHolders> {
        let mut holders = DeviceHolders::default();
        for (holder, devices) in self.pods.holders() {
            for device in devices {
                holders.note(&device, &holder);
            }
        }
        Box::pin(std::future::ready(holders))
    }

    fn containers(&self) -> BoxFuture<'_, Containers> {
        Box::pin(std::future::ready(self.running()))
    }

    fn shares<'a>(
        &'a self,
        machine: &'a NodeHardware,
    ) -> BoxFuture<'a, Result<GpuShares, GpuSharesError>> {
        let held = share_holders::of_own(&self.pods.shares(), machine);
        Box::pin(std::future::ready(Ok((held, self.running()))))
    }

    fn over_share<'a>(&'a self, finding: &'a ShareExcess, words: String) -> BoxFuture<'a, ()> {
        let held = &finding.has.held;
        let container = &held.holder.container;
        let reported = self
            .pods
            .over_share(&held.uid, container, words, finding.new, finding.end);
        Box::pin(reported)
    }
}
