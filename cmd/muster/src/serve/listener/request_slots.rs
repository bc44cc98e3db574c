//! The places of requests: how many are in progress at a time, from each address and in all. A request keeps its place
//! until its response has ended, so a watch or a followed log has one for as long as it lasts. Without these bounds an
//! address could have as many requests as its connections have HTTP/2 streams.
//!
//! A request of a node, by a certificate that is valid now, counts for that node and for nothing else: many nodes may
//! share an address with each other and with users, and no user's requests keep a node's session out.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    by_origin: HashMap<RequestOrigin, usize>,
    /// Those of all addresses, without the nodes'.
    all: usize,
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
        if in_all && counts.all >= self.limits.requests {
            return Err(TooManyRequests::InAll(self.limits.requests));
        }
        match counts.by_origin.get_mut(&origin) {
            Some(count) if *count >= max => {
                return Err(TooManyRequests::OfOrigin { origin, max });
            }
            Some(count) => *count += 1,
            None => {
                counts.by_origin.insert(origin.clone(), 1);
            }
        }
        counts.all += usize::from(in_all);
        drop(counts);
        Ok(RequestSlot {
            slots: self.clone(),
            origin,
        })
    }

    fn counts(&self) -> MutexGuard<'_, RequestCounts> {
        // No code under the lock panics half way, and refusing a poisoned lock would refuse every client.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request's place, until it is dropped.
pub struct RequestSlot {
    slots: Arc<RequestSlots>,
    origin: RequestOrigin,
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        let mut counts = self.slots.counts();
        if matches!(self.origin, RequestOrigin::Address(_)) {
            counts.all = counts.all.saturating_sub(1);
        }
        if let Some(count) = counts.by_origin.get_mut(&self.origin) {
            *count = count.saturating_sub(1);
            if *count == 0 {
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
        assert!(counts.by_origin.is_empty() && counts.all == 0);
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
