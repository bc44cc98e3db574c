//! The places of requests: how many are in progress at a time, and how many bytes their bodies have, from each address
//! and in all. A request keeps its place until its response has ended, so a watch or a followed log has one for as long
//! as it lasts. Without these bounds an address could have as many requests as its connections have HTTP/2 streams, and
//! as many bytes in memory as so many bodies.
//!
//! A request of a node, by a certificate that is valid now, counts for that node and for nothing else: many nodes may
//! share an address with each other and with users, and no user's requests keep a node's session out.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::limits::ListenerLimits;

/// What a request counts for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RequestOrigin {
    /// An address, as `connection_slots::origin` gives it.
    Address(IpAddr),
    /// A node whose certificate is valid.
    Node(String),
}

/// Why a request is refused: this many are in progress.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooManyRequests {
    /// The origin has as many as it may have.
    #[error(
        "too many requests: {max} requests of {origin} are in progress, and an open watch counts as one; end some, or \
         please try again later"
    )]
    OfOrigin {
        /// The origin.
        origin: RequestOrigin,
        /// Its bound.
        max: usize,
    },
    /// All addresses together have as many as they may have.
    #[error("too many requests: {0} requests are in progress, please try again later")]
    InAll(usize),
    /// The bodies of the origin's requests have as many bytes as they may have.
    #[error(
        "too many requests: the bodies of the requests of {origin} that are in progress would have more than {max} \
         bytes; send fewer at a time, or please try again later"
    )]
    BytesOfOrigin {
        /// The origin.
        origin: RequestOrigin,
        /// Its bound.
        max: usize,
    },
    /// The bodies of all addresses' requests have as many bytes as they may have.
    #[error(
        "too many requests: the bodies of the requests that are in progress would have more than {0} bytes, please try \
         again later"
    )]
    BytesInAll(usize),
}

impl fmt::Display for RequestOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestOrigin::Address(address) => write!(f, "the address {address}"),
            RequestOrigin::Node(name) => write!(f, "the node {name:?}"),
        }
    }
}

#[derive(Default)]
struct RequestCounts {
    by_origin: HashMap<RequestOrigin, Count>,
    /// Those of all addresses, without the nodes'.
    all: Count,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    requests: usize,
    /// Bytes of bodies that have been read.
    bytes: usize,
}

/// All requests in progress.
pub struct RequestSlots {
    limits: ListenerLimits,
    counts: Mutex<RequestCounts>,
}

impl RequestSlots {
    /// An empty set of places.
    pub fn new(limits: ListenerLimits) -> Arc<RequestSlots> {
        Arc::new(RequestSlots {
            limits,
            counts: Mutex::default(),
        })
    }

    /// A place for a request.
    ///
    /// # Errors
    ///
    /// If its origin, or all addresses together, have as many requests as they may.
    pub fn take(self: &Arc<Self>, origin: RequestOrigin) -> Result<RequestSlot, TooManyRequests> {
        let (max, in_all) = match &origin {
            RequestOrigin::Address(address) => (self.limits.requests_of_address(*address), true),
            RequestOrigin::Node(_) => (self.limits.requests_per_node, false),
        };
        let mut counts = self.counts();
        if in_all && counts.all.requests >= self.limits.requests {
            return Err(TooManyRequests::InAll(self.limits.requests));
        }
        match counts.by_origin.get_mut(&origin) {
            Some(count) if count.requests >= max => {
                return Err(TooManyRequests::OfOrigin { origin, max });
            }
            Some(count) => count.requests += 1,
            None => {
                let first = Count {
                    requests: 1,
                    bytes: 0,
                };
                counts.by_origin.insert(origin.clone(), first);
            }
        }
        counts.all.requests += usize::from(in_all);
        drop(counts);
        Ok(RequestSlot(Arc::new(Held {
            slots: self.clone(),
            origin,
            bytes: AtomicUsize::new(0),
            refused: OnceLock::new(),
        })))
    }

    /// Counts bytes of a body for their origin.
    fn add_bytes(&self, origin: &RequestOrigin, bytes: usize) -> Result<(), TooManyRequests> {
        let (max, in_all) = match origin {
            RequestOrigin::Address(address) => (self.limits.body_bytes_of_address(*address), true),
            RequestOrigin::Node(_) => (self.limits.body_bytes_per_node, false),
        };
        let mut counts = self.counts();
        let all = counts.all.bytes.saturating_add(bytes);
        if in_all && all > self.limits.body_bytes {
            return Err(TooManyRequests::BytesInAll(self.limits.body_bytes));
        }
        // A request that holds a place has a count.
        if let Some(count) = counts.by_origin.get_mut(origin) {
            let sum = count.bytes.saturating_add(bytes);
            if sum > max {
                let origin = origin.clone();
                return Err(TooManyRequests::BytesOfOrigin { origin, max });
            }
            count.bytes = sum;
        }
        if in_all {
            counts.all.bytes = all;
        }
        Ok(())
    }

    fn counts(&self) -> MutexGuard<'_, RequestCounts> {
        // No code under the lock panics half way, and refusing a poisoned lock would refuse every client.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request's place, until it and its body are dropped.
pub struct RequestSlot(Arc<Held>);

impl RequestSlot {
    /// The part that counts the bytes of the request's body.
    pub fn body_bytes(&self) -> BodyBytes {
        BodyBytes(self.0.clone())
    }

    /// Why the rest of the request's body was not read, if it had too many bytes beside those of others.
    pub fn refused(&self) -> Option<&TooManyRequests> {
        self.0.refused.get()
    }
}

/// Counts the bytes of one request's body.
pub struct BodyBytes(Arc<Held>);

impl BodyBytes {
    /// Counts bytes that were read, until the request ends.
    ///
    /// # Errors
    ///
    /// If the bodies of its origin, or of all addresses, have as many bytes as they may; the body is not read further.
    pub fn add(&self, bytes: usize) -> Result<(), TooManyRequests> {
        let held = &self.0;
        let added = held.slots.add_bytes(&held.origin, bytes);
        match &added {
            Ok(()) => {
                held.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Err(why) => {
                let _ = held.refused.set(why.clone());
            }
        }
        added
    }
}

struct Held {
    slots: Arc<RequestSlots>,
    origin: RequestOrigin,
    bytes: AtomicUsize,
    refused: OnceLock<TooManyRequests>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        let mut counts = self.slots.counts();
        if matches!(self.origin, RequestOrigin::Address(_)) {
            counts.all.requests = counts.all.requests.saturating_sub(1);
            counts.all.bytes = counts.all.bytes.saturating_sub(bytes);
        }
        if let Some(count) = counts.by_origin.get_mut(&self.origin) {
            count.requests = count.requests.saturating_sub(1);
            count.bytes = count.bytes.saturating_sub(bytes);
            if count.requests == 0 {
                counts.by_origin.remove(&self.origin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots() -> Arc<RequestSlots> {
        RequestSlots::new(ListenerLimits::of(1 << 20))
    }

    fn address(text: &str) -> RequestOrigin {
        RequestOrigin::Address(text.parse().unwrap())
    }

    fn node(name: &str) -> RequestOrigin {
        RequestOrigin::Node(name.to_owned())
    }

    fn taken(slots: &Arc<RequestSlots>, origin: &RequestOrigin, count: usize) -> Vec<RequestSlot> {
        (0..count)
            .map(|_| slots.take(origin.clone()).unwrap())
            .collect()
    }

    fn refusal(slots: &Arc<RequestSlots>, origin: &RequestOrigin) -> TooManyRequests {
        slots.take(origin.clone()).err().expect("it is refused")
    }

    #[test]
    fn one_more_request_than_an_origin_may_have_is_refused_until_one_ends() {
        let limits = ListenerLimits::of(1 << 20);
        for (origin, max) in [
            (address("192.0.2.1"), limits.requests_per_address),
            (address("127.0.0.1"), limits.requests_per_loopback),
            (node("n1"), limits.requests_per_node),
        ] {
            let slots = slots();
            let mut held = taken(&slots, &origin, max);
            let refused = TooManyRequests::OfOrigin {
                origin: origin.clone(),
                max,
            };
            assert_eq!(refusal(&slots, &origin), refused);
            assert!(refused.to_string().contains(&format!("{max} requests of ")));
            let _other = slots.take(address("192.0.2.2")).unwrap();
            held.pop();
            held.push(slots.take(origin.clone()).unwrap());
            assert_eq!(refusal(&slots, &origin), refused);
        }
    }

    #[test]
    fn one_more_request_than_all_addresses_may_have_is_refused_and_nodes_behind_them_are_not() {
        let slots = slots();
        let max = slots.limits.requests;
        let mut held = Vec::new();
        for number in 0.. {
            let count = slots.limits.requests_per_address.min(max - held.len());
            if count == 0 {
                break;
            }
            held.extend(taken(&slots, &address(&format!("192.0.2.{number}")), count));
        }
        assert_eq!(
            refusal(&slots, &address("198.51.100.1")),
            TooManyRequests::InAll(max)
        );
        let nodes: Vec<_> = (0..300)
            .map(|number| slots.take(node(&format!("n{number}"))).unwrap())
            .collect();
        held.pop();
        held.push(slots.take(address("198.51.100.1")).unwrap());
        assert_eq!(
            refusal(&slots, &address("127.0.0.1")),
            TooManyRequests::InAll(max)
        );
        drop((held, nodes));
        let counts = slots.counts();
        assert!(counts.by_origin.is_empty() && counts.all == Count::default());
    }

    #[test]
    fn one_more_byte_than_the_bodies_of_an_origin_may_have_is_refused_until_a_request_ends() {
        let limits = ListenerLimits::of(1 << 20);
        for (origin, max) in [
            (address("192.0.2.1"), limits.body_bytes_per_address),
            (address("127.0.0.1"), limits.body_bytes_per_loopback),
            (node("n1"), limits.body_bytes_per_node),
        ] {
            let slots = slots();
            let held = taken(&slots, &origin, 2);
            held[0].body_bytes().add(max - 1).unwrap();
            held[1].body_bytes().add(1).unwrap();
            let refused = TooManyRequests::BytesOfOrigin {
                origin: origin.clone(),
                max,
            };
            assert_eq!(held[1].body_bytes().add(1), Err(refused.clone()));
            assert_eq!(held[1].refused(), Some(&refused));
            assert_eq!(held[0].refused(), None);
            // Another origin is not concerned, and bytes are counted until both the request and its body are gone.
            let other = slots.take(address("192.0.2.2")).unwrap();
            other.body_bytes().add(1).unwrap();
            let body = held[1].body_bytes();
            drop(held);
            body.add(max - 1).unwrap();
            assert_eq!(body.add(1), Err(refused));
            drop((body, other));
            let counts = slots.counts();
            assert!(counts.by_origin.is_empty() && counts.all == Count::default());
        }
    }

    #[test]
    fn the_bodies_of_all_addresses_have_a_bound_and_nodes_one_of_their_own() {
        let slots = slots();
        let (max, each) = (slots.limits.body_bytes, slots.limits.body_bytes_per_address);
        let mut held = Vec::new();
        for number in 0..max / each {
            let slot = slots.take(address(&format!("192.0.2.{number}"))).unwrap();
            slot.body_bytes().add(each).unwrap();
            held.push(slot);
        }
        let late = slots.take(address("198.51.100.1")).unwrap();
        assert_eq!(
            late.body_bytes().add(1),
            Err(TooManyRequests::BytesInAll(max))
        );
        let node = slots.take(node("n1")).unwrap();
        node.body_bytes().add(1).unwrap();
        held.pop();
        late.body_bytes().add(each).unwrap();
    }

    #[test]
    fn all_watches_of_all_users_may_come_from_one_address_and_leave_room() {
        let limits = ListenerLimits::of(1 << 20);
        let watches = apiserver::limits::WATCHES;
        assert!(limits.requests_per_address >= watches + 2048);
        assert!(limits.requests_per_loopback >= watches + 2048);
        assert!(limits.requests_per_address * 2 < limits.requests);
    }
}
