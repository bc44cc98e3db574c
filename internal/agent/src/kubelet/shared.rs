//! The device plugin of RDMA cards that containers share. The kubelet counts identical shares: each
//! contains every card of the resource.

use devices::rdma::SharedCards;
use hardware::rdma::RdmaDevices;
use rpc::kubelet::v1beta1 as wire;
use tokio::sync::watch;
use tonic::Status;

use super::counted_plugin::{self, PluginOffer};

/// The device plugin for one resource.
pub struct SharedPlugin {
    pub(super) cards: SharedCards,
    pub(super) seen: watch::Receiver<RdmaDevices>,
}

/// The shares of these cards: none without a card. They are numbered as by
/// k8s-rdma-shared-dev-plugin, so that the kubelet's allocations from its time stay valid.
fn offered(cards: &SharedCards, machine: &RdmaDevices) -> Vec<wire::Device> {
    let pool = cards.pool(machine);
    let shares = match pool.cards.len() {
        0 => 0,
        _ => cards.containers,
    };
    let share = |number: usize| counted_plugin::device(number.to_string(), pool.healthy, pool.numa);
    (0..shares).map(share).collect()
}

impl PluginOffer for SharedPlugin {
    type Seen = RdmaDevices;

    fn seen(&self) -> watch::Receiver<RdmaDevices> {
        self.seen.clone()
    }

    fn offered(&self, now: &RdmaDevices) -> Vec<wire::Device> {
        offered(&self.cards, now)
    }

    fn equipment(&self, _: &[String]) -> Result<wire::ContainerAllocateResponse, Status> {
        let pool = self.cards.pool(&self.seen.borrow());
        if pool.cards.is_empty() {
            let why = format!(
                "this node has no RDMA card of {} any more",
                self.cards.resource
            );
            return Err(Status::failed_precondition(why));
        }
        tracing::info!(
            resource = self.cards.resource,
            "a container gets RDMA cards"
        );
        let files = pool.files.iter();
        let files = files.map(|file| counted_plugin::file(format!("/dev/infiniband/{file}")));
        Ok(wire::ContainerAllocateResponse {
            devices: files.collect(),
            ..wire::ContainerAllocateResponse::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use devices::rdma::RdmaSettings;
    use hardware::CardPort;
    use hardware::rdma::RdmaDevice;

    use super::*;

    fn machine(state: &str) -> RdmaDevices {
        let card = |number: u32| RdmaDevice {
            name: format!("mlx5_{number}"),
            numa: Some(number),
            files: vec![format!("uverbs{number}"), format!("umad{number}")],
            ports: vec![CardPort {
                number: 1,
                state: if number == 0 { state } else { "DOWN" }.into(),
                ..CardPort::default()
            }],
            ..RdmaDevice::default()
        };
        RdmaDevices {
            cards: vec![card(0), card(1)],
            rdma_cm: true,
        }
    }

    #[test]
    fn shares_are_healthy_while_a_port_of_their_cards_is_up_and_need_a_card() {
        let mut cards = RdmaSettings::usual().resources.remove(0);
        cards.containers = 3;
        let health = |machine: &RdmaDevices| -> Vec<(String, String)> {
            let all = offered(&cards, machine).into_iter();
            all.map(|share| (share.id, share.health)).collect()
        };
        let all = |word: &str| ["0", "1", "2"].map(|id| (id.to_owned(), word.to_owned()));
        assert_eq!(health(&machine("ACTIVE")), all("Healthy"));
        assert_eq!(health(&machine("DOWN")), all("Unhealthy"));
        // A port without a state is not known to be up.
        assert_eq!(health(&machine("")), all("Unhealthy"));
        assert!(health(&RdmaDevices::default()).is_empty());
    }

    #[test]
    fn a_container_has_the_files_of_all_cards_and_no_card_is_no_answer() {
        let (seen, devices) = watch::channel(machine("ACTIVE"));
        let plugin = SharedPlugin {
            cards: RdmaSettings::usual().resources.remove(0),
            seen: devices,
        };
        let given = plugin.equipment(&[]).expect("cards").devices;
        let paths: Vec<&str> = given.iter().map(|it| it.host_path.as_str()).collect();
        let wanted = ["uverbs0", "umad0", "uverbs1", "umad1", "rdma_cm"];
        assert_eq!(paths, wanted.map(|name| format!("/dev/infiniband/{name}")));
        assert!(given.iter().all(|it| it.container_path == it.host_path));
        seen.send_replace(RdmaDevices::default());
        let why = plugin.equipment(&[]).expect_err("nothing is there");
        assert!(why.message().contains("rdma/hca_shared_devices_a"));
    }
}
