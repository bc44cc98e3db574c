//! How many questions are being forwarded, in all and for each client, so that one pod cannot take all places.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// The most questions that a node forwards at a time.
const ALL_MAX: usize = 512;
/// The most of one client.
const CLIENT_MAX: usize = 64;

/// The questions that are being forwarded.
#[derive(Clone, Default)]
pub(crate) struct InFlight(Arc<Mutex<Counts>>);

#[derive(Default)]
struct Counts {
    all: usize,
    clients: BTreeMap<IpAddr, usize>,
}

/// One question's place, until it is dropped.
pub(crate) struct Place {
    counts: Arc<Mutex<Counts>>,
    client: IpAddr,
}

impl InFlight {
    /// A place for a client's question; none if too many are being forwarded.
    pub fn take(&self, client: IpAddr) -> Option<Place> {
        let mut counts = self.0.lock();
        let of_client = counts.clients.get(&client).copied().unwrap_or(0);
        if counts.all >= ALL_MAX || of_client >= CLIENT_MAX {
            return None;
        }
        counts.all += 1;
        counts.clients.insert(client, of_client + 1);
        Some(Place {
            counts: self.0.clone(),
            client,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        counts.all = counts.all.saturating_sub(1);
        match counts.clients.get_mut(&self.client) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(counts.clients.remove(&self.client)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_cannot_take_all_places() {
        let all = InFlight::default();
        let client = |number: u8| IpAddr::from([10, 244, 0, number]);
        let mut held: Vec<_> = (0..CLIENT_MAX)
            .map(|_| all.take(client(1)).unwrap())
            .collect();
        assert!(all.take(client(1)).is_none());
        for number in 2..9 {
            held.extend((0..CLIENT_MAX).map(|_| all.take(client(number)).unwrap()));
        }
        assert!(all.take(client(9)).is_none());
        held.clear();
        assert!(all.take(client(1)).is_some());
        assert!(all.0.lock().clients.is_empty());
    }
}
