//! The places of connections. If all places are taken, a new connection evicts the one that has been idle longest, of
//! its own address if that address has too many. If none is idle, the new connection is refused.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::limits::ListenerLimits;

/// The address that a connection counts for. A client with an IPv6 address usually has the whole 64-bit network.
pub fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            Ipv6Addr::from(u128::from(v6) & !u128::from(u64::MAX)).into()
        }
        other => other,
    }
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug)]
struct ConnectionProgress {
    /// Requests in progress; a watch and a gRPC stream count until they end.
    requests: usize,
    /// Whether any request has begun.
    begun: bool,
    /// Time of the last change of the number of requests.
    since: Instant,
}

/// A connection's activity, as its requests report it.
pub struct Activity {
    progress: watch::Sender<ConnectionProgress>,
    evicted: Notify,
}

impl Activity {
    fn new() -> Arc<Activity> {
        Arc::new(Activity {
            progress: watch::Sender::new(ConnectionProgress {
                requests: 0,
                begun: false,
                since: Instant::now(),
            }),
            evicted: Notify::new(),
        })
    }

    /// Begins a request, which ends when the returned value is dropped.
    pub fn begin(self: &Arc<Self>) -> InProgress {
        self.change(|requests| requests + 1);
        InProgress(self.clone())
    }

    fn change(&self, change: impl FnOnce(usize) -> usize) {
        self.progress.send_modify(|progress| {
            progress.requests = change(progress.requests);
            progress.begun = true;
            progress.since = Instant::now();
        });
    }

    fn idle_since(&self) -> Option<Instant> {
        let progress = *self.progress.borrow();
        (progress.requests == 0).then_some(progress.since)
    }

    /// Returns once no request has been in progress for `limit`, or none has begun for `first`.
    pub async fn idle(&self, limit: Duration, first: Duration) {
        let mut progress = self.progress.subscribe();
        loop {
            let now = *progress.borrow_and_update();
            let limit = if now.begun { limit } else { first };
            let elapsed = async {
                match now.requests {
                    0 => tokio::time::sleep_until(now.since + limit).await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                () = elapsed => return,
                // The sender lives as long as self.
                _ = progress.changed() => {}
            }
        }
    }

    /// Returns when another connection takes this place.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

/// A request in progress.
pub struct InProgress(Arc<Activity>);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.change(|requests| requests.saturating_sub(1));
    }
}

struct OpenConnection {
    address: IpAddr,
    activity: Arc<Activity>,
}

#[derive(Default)]
struct TakenSlots {
    connections: BTreeMap<u64, OpenConnection>,
    by_address: BTreeMap<IpAddr, usize>,
    next: u64,
}

impl TakenSlots {
    fn of(&self, address: IpAddr) -> usize {
        self.by_address.get(&address).copied().unwrap_or_default()
    }

    fn remove(&mut self, id: u64) -> Option<OpenConnection> {
        let connection = self.connections.remove(&id)?;
        let left = self.of(connection.address).saturating_sub(1);
        if left == 0 {
            self.by_address.remove(&connection.address);
        } else {
            self.by_address.insert(connection.address, left);
        }
        Some(connection)
    }

    /// Ends the connection that has been idle longest; returns false if none is idle.
    fn evict(&mut self, of: Option<IpAddr>) -> bool {
        let idle = (self.connections.iter())
            .filter(|(_, connection)| of.is_none_or(|address| address == connection.address))
            .filter_map(|(id, connection)| Some((connection.activity.idle_since()?, *id)));
        let Some((_, id)) = idle.min() else {
            return false;
        };
        if let Some(connection) = self.remove(id) {
            connection.activity.evicted.notify_one();
        }
        true
    }
}

/// All connections.
pub struct ConnectionSlots {
    limits: ListenerLimits,
    taken: Mutex<TakenSlots>,
}

impl ConnectionSlots {
    /// An empty set of places.
    pub fn new(limits: ListenerLimits) -> Arc<ConnectionSlots> {
        Arc::new(ConnectionSlots {
            limits,
            taken: Mutex::default(),
        })
    }

    /// A place for a connection from this address; none if the connection is refused.
    pub fn take(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionSlot> {
        let mut taken = self.taken();
        let full = taken.of(address) >= self.limits.of_address(address);
        if full && !taken.evict(Some(address)) {
            return None;
        }
        if taken.connections.len() >= self.limits.connections && !taken.evict(None) {
            return None;
        }
        let id = taken.next;
        taken.next += 1;
        let activity = Activity::new();
        *taken.by_address.entry(address).or_default() += 1;
        let connection = OpenConnection {
            address,
            activity: activity.clone(),
        };
        taken.connections.insert(id, connection);
        drop(taken);
        Some(ConnectionSlot {
            places: self.clone(),
            id,
            activity,
        })
    }

    fn taken(&self) -> MutexGuard<'_, TakenSlots> {
        // No code under the lock panics half way, and refusing a poisoned lock would refuse every client.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's place, until it is dropped.
pub struct ConnectionSlot {
    places: Arc<ConnectionSlots>,
    id: u64,
    /// What the connection is doing.
    pub activity: Arc<Activity>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.places.taken().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(connections: usize, per_address: usize) -> Arc<ConnectionSlots> {
        ConnectionSlots::new(ListenerLimits {
            connections,
            per_address,
            ..ListenerLimits::of(1024)
        })
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn ids(places: &ConnectionSlots) -> Vec<u64> {
        places.taken().connections.keys().copied().collect()
    }

    #[test]
    fn a_network_of_64_bits_counts_as_one_address_and_this_machine_as_itself() {
        for (address, counted) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::"),
            ("::1", "::1"),
            ("127.0.0.1", "127.0.0.1"),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(origin(address).to_string(), counted);
        }
    }

    #[tokio::test]
    async fn a_connection_that_never_asks_is_idle_sooner_than_one_that_asked() {
        let silent = places(1, 1).take(address(1)).unwrap();
        let (soon, late) = (Duration::from_millis(20), Duration::from_secs(3600));
        silent.activity.idle(late, soon).await;
        drop(silent.activity.begin());
        silent.activity.idle(soon, late).await;
    }

    #[tokio::test]
    async fn the_longest_idle_connection_of_an_address_makes_room_and_a_busy_one_does_not() {
        let places = places(10, 2);
        let busy = places.take(address(1)).unwrap();
        let request = busy.activity.begin();
        let idle = places.take(address(1)).unwrap();
        let other = places.take(address(2)).unwrap();
        let new = places.take(address(1)).unwrap();
        idle.activity.evicted().await;
        assert_eq!(ids(&places), [0, 2, 3]);
        let _second = new.activity.begin();
        assert!(places.take(address(1)).is_none(), "both are busy");
        drop(request);
        assert!(places.take(address(1)).is_some());
        busy.activity.evicted().await;
        drop((busy, idle, other, new));
        assert!(places.taken().connections.is_empty());
        assert!(places.taken().by_address.is_empty());
    }

    #[tokio::test]
    async fn when_all_places_are_taken_the_longest_idle_connection_of_anybody_goes() {
        let places = places(2, 2);
        let first = places.take(address(1)).unwrap();
        let second = places.take(address(2)).unwrap();
        // This connection was busy meanwhile, so that the other has been idle for longer.
        drop(first.activity.begin());
        let third = places.take(address(3)).unwrap();
        second.activity.evicted().await;
        let _requests = (first.activity.begin(), third.activity.begin());
        assert!(places.take(address(4)).is_none());
    }
}
