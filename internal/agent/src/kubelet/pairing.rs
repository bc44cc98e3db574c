//! The node's part in an RDMA test between two nodes of a cluster: the test is requested by an
//! annotation of its Node, which needs the permission to patch Nodes, and answered by another
//! annotation.

use std::path::PathBuf;
use std::sync::Arc;

use devices::fabric::FabricWatch;
use devices::holders::DeviceHolders;
use devices::inventory::NodeHardware;
use hardware::rdma::pair::{PairAnswer, PairRefusal, Reply, StoredRequest};
use resources::names::{RDMA_ANSWER, RDMA_ASK};
use tokio::sync::{Semaphore, watch};

use super::cluster::NodeClient;
use super::socket;
use crate::pairing::{self, Here, PairingError};

/// A node that takes part in tests.
#[derive(Clone)]
pub struct Pairing {
    /// The node's name.
    pub node: String,
    /// The client for its Node.
    pub cluster: NodeClient,
    /// Its RDMA network.
    pub fabric: Arc<FabricWatch>,
    /// Its inventory.
    pub machine: watch::Receiver<NodeHardware>,
    /// The kubelet's pod resources socket.
    pub pod_resources: PathBuf,
}

impl Pairing {
    /// Answers requests for as long as the agent runs. A request that is older than the agent
    /// belongs to its predecessor: the requester has given up, or will.
    pub async fn answer(self) {
        let lone = Arc::new(Semaphore::new(1));
        let mut last = LastRequest::default();
        let follow = (self.cluster).follow_node("what is asked about RDMA", |node| {
            let annotations = node.annotations.unwrap_or_default();
            let first = !last.looked;
            let news = last.news(annotations.get(RDMA_ASK).map(String::as_str));
            if first {
                tracing::info!("this node takes part in checks of RDMA between nodes");
            }
            if let Some(question) = news {
                // A test takes a while; meanwhile a requester may ask whether it runs.
                tokio::spawn(self.clone().reply(question, lone.clone()));
            }
        });
        follow.await;
    }

    async fn reply(self, question: StoredRequest, lone: Arc<Semaphore>) {
        let answer = self.take(&question, &lone).await;
        let answer = answer.map_err(|error| PairRefusal(error.to_string()));
        let reply = Reply {
            id: question.id,
            answer,
        };
        let written = match serde_json::to_string(&reply) {
            Ok(json) => self.cluster.annotate(RDMA_ANSWER, Some(&json)).await,
            Err(error) => Err(kube::Error::SerdeError(error)),
        };
        if let Err(error) = written {
            tracing::warn!(%error, "the answer of an RDMA test cannot be written to the Node");
        }
    }

    async fn take(
        &self,
        question: &StoredRequest,
        lone: &Arc<Semaphore>,
    ) -> Result<PairAnswer, PairingError> {
        let address = self.cluster.address().await;
        let address = address.map_err(|source| PairingError::Address {
            node: self.node.clone(),
            source: Box::new(source),
        })?;
        let here = Here {
            name: &self.node,
            address: address.unwrap_or_default(),
            pods: self.pods().await?,
            fabric: &self.fabric,
            lone,
        };
        here.take(question.ask.clone()).await
    }

    /// The pods that hold GPUs.
    async fn pods(&self) -> Result<Vec<String>, PairingError> {
        let gpus: Vec<String> = {
            let machine = self.machine.borrow();
            let slices = |gpu: &resources::devices::GpuDevice| gpu.slices.clone();
            let gpus = machine.inventory.gpus.iter();
            let slices = gpus.clone().filter_map(slices).flatten();
            let slices = slices.map(|slice| slice.id);
            gpus.map(|gpu| gpu.id.clone()).chain(slices).collect()
        };
        // A node without GPUs has no holders, whether the kubelet answers or not.
        if gpus.is_empty() {
            return Ok(Vec::new());
        }
        let held = socket::held(&self.pod_resources, true).await;
        let held = held.map_err(|status| PairingError::Kubelet {
            node: self.node.clone(),
            detail: status.message().to_owned(),
        })?;
        let mut holders = DeviceHolders::default();
        for (holder, device) in held {
            holders.note(&device, &holder);
        }
        let with_gpus = gpus.iter().flat_map(|gpu| holders.of(gpu)).cloned();
        Ok(pairing::names(with_gpus))
    }
}

/// The last request seen.
#[derive(Default)]
struct LastRequest {
    looked: bool,
    id: String,
}

impl LastRequest {
    /// The annotation's request, if it is new and not the one found at the start.
    fn news(&mut self, annotation: Option<&str>) -> Option<StoredRequest> {
        let first = !std::mem::replace(&mut self.looked, true);
        let question: StoredRequest = match serde_json::from_str(annotation?) {
            Ok(question) => question,
            Err(error) => {
                tracing::warn!(
                    %error,
                    "{RDMA_ASK}: this agent does not know this request; run one version of muster"
                );
                return None;
            }
        };
        if question.id == self.id {
            return None;
        }
        self.id.clone_from(&question.id);
        (!first).then_some(question)
    }
}

#[cfg(test)]
mod tests {
    use hardware::rdma::pair::PairRequest;

    use super::*;

    fn asked(id: &str) -> String {
        let question = StoredRequest {
            id: id.to_owned(),
            asked: 0,
            ask: PairRequest::Examine,
        };
        serde_json::to_string(&question).unwrap()
    }

    #[test]
    fn each_request_is_taken_once_and_earlier_requests_are_ignored() {
        let mut last = LastRequest::default();
        let mut news = |annotation: Option<&str>| {
            let question = last.news(annotation);
            question.map(|question| question.id)
        };
        assert_eq!(news(Some(&asked("old"))), None, "it was there before");
        assert_eq!(news(Some(&asked("old"))), None);
        assert_eq!(news(Some(&asked("a"))).as_deref(), Some("a"));
        assert_eq!(news(Some(&asked("a"))), None, "the node changed otherwise");
        assert_eq!(news(None), None);
        assert_eq!(news(Some("{}")), None);
        assert_eq!(news(Some(&asked("b"))).as_deref(), Some("b"));

        let mut last = LastRequest::default();
        assert!(last.news(None).is_none());
        assert!(
            last.news(Some(&asked("a"))).is_some(),
            "the first look was before it"
        );
    }
}
