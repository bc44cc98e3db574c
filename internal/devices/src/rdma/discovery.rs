//! Reads the machine's RDMA cards on a thread of its own: a card whose firmware hangs may block a
//! reader of its files.

use std::path::PathBuf;
use std::time::Duration;

use hardware::rdma::{self, RdmaDevices};
use tokio::sync::watch as channel;

/// Interval at which the machine is read.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Watches the cards of the machine whose root is mounted at `root`, for as long as there is a
/// receiver.
pub fn watch(root: PathBuf) -> channel::Receiver<RdmaDevices> {
    let (seen, devices_now) = channel::channel(RdmaDevices::default());
    std::thread::spawn(move || {
        let mut before = None;
        while !seen.is_closed() {
            let now = rdma::devices(&root);
            if before.as_ref() != Some(&now) {
                log_changes(&now, &root);
                seen.send_replace(now.clone());
                before = Some(now);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    });
    devices_now
}

/// Logs what changed.
fn log_changes(now: &RdmaDevices, root: &std::path::Path) {
    if now.cards.is_empty() {
        return;
    }
    let up = |card: &&rdma::RdmaDevice| card.ports.iter().any(hardware::CardPort::is_up);
    let open = now.cards.iter().filter(|card| card.opens()).count();
    let up = now.cards.iter().filter(up).count();
    if open == 0 || !now.rdma_cm {
        let dev = root.join("dev/infiniband");
        tracing::warn!(
            "{} RDMA cards, which no pod can be given: {} lacks their files (uverbs, rdma_cm); load \
             ib_uverbs and rdma_ucm, or say with --host-root where this container has the node's root",
            now.cards.len(),
            dev.display()
        );
        return;
    }
    tracing::info!(cards = now.cards.len(), open, up, "RDMA cards");
}
