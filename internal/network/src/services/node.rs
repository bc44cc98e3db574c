//! What a node has programmed of the cluster's Services, and the address of its DNS server.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use resources::services::ClusterService;
use resources::services::addresses::ServiceRange;

use super::change::script;
use super::rules::{self, Rules};
use crate::error::NetworkError;
use crate::listing::Link;
use crate::tools::Tools;

/// Namespace and name of a Service.
type Key = (String, String);

/// The label of the DNS server's address on the loopback device, by which it is known as the agent's.
const LABEL: &str = "lo:muster";

/// A node's Services. Its calls block.
pub struct NodeServices {
    tools: Tools,
    state: Mutex<Option<Programmed>>,
}

/// What the kernel has.
struct Programmed {
    range: ServiceRange,
    services: BTreeMap<Key, Arc<ClusterService>>,
}

impl NodeServices {
    /// Nothing is known of what an earlier agent programmed: the first [`NodeServices::set`] replaces it.
    ///
    /// # Errors
    ///
    /// When `ip` or `nft` is missing.
    pub fn open() -> Result<NodeServices, NetworkError> {
        Ok(NodeServices {
            tools: Tools::find()?,
            state: Mutex::new(None),
        })
    }

    /// Gives the node the address of the cluster's DNS server.
    ///
    /// # Errors
    ///
    /// When the machine has an address of the range already, or the kernel refuses.
    pub fn take_dns_address(&self, range: ServiceRange) -> Result<(), NetworkError> {
        let address = range.dns().to_string();
        self.require_free(range)?;
        let links: Vec<Link> = self.tools.list(&["address", "show", "dev", "lo"])?;
        for other in links.iter().flat_map(|link| link.labelled(LABEL)) {
            if other != address {
                self.remove_address(other)?;
            }
        }
        let with_prefix = format!("{address}/32");
        let words = [
            "address",
            "replace",
            &with_prefix,
            "dev",
            "lo",
            "label",
            LABEL,
        ];
        self.tools.ip(&words)
    }

    /// Takes the Services of the cluster, and programs what changed of them.
    ///
    /// # Errors
    ///
    /// When the machine has an address of the range, or the kernel refuses; what was programmed before stays, and the
    /// next call programs everything.
    pub fn set(
        &self,
        range: ServiceRange,
        services: BTreeMap<Key, Arc<ClusterService>>,
    ) -> Result<(), NetworkError> {
        let mut state = self.state.lock();
        let before = state.take().filter(|before| before.range == range);
        if let Some(before) = &before {
            let text = difference(&before.services, &services);
            if text.is_empty() || self.tools.nft(&text).is_ok() {
                *state = Some(Programmed { range, services });
                return Ok(());
            }
            tracing::warn!(
                "the rules of Services are not what the agent wrote; it writes all of them again"
            );
        }
        self.require_free(range)?;
        let mut text = rules::empty_table(range.range());
        text.push_str(&difference(&BTreeMap::new(), &services));
        self.tools.nft(&text)?;
        *state = Some(Programmed { range, services });
        Ok(())
    }

    /// Removes the rules of Services and the DNS server's address.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn clear(&self) -> Result<(), NetworkError> {
        *self.state.lock() = None;
        clear(&self.tools)
    }

    /// Refuses a range of which the machine has addresses: they could not be reached any more.
    fn require_free(&self, range: ServiceRange) -> Result<(), NetworkError> {
        let links: Vec<Link> = self.tools.list(&["address", "show"])?;
        let mut links = links.into_iter();
        match links.find(|link| link.has_other_address_of(range.range(), LABEL)) {
            None => Ok(()),
            Some(link) => Err(NetworkError::ServiceRangeInUse {
                device: link.ifname,
                range: range.to_string(),
            }),
        }
    }

    fn remove_address(&self, address: &str) -> Result<(), NetworkError> {
        remove_address(&self.tools, address)
    }
}

/// Removes what an agent made for Services.
pub(crate) fn clear(tools: &Tools) -> Result<(), NetworkError> {
    tools.nft(&rules::no_table())?;
    let links: Vec<Link> = tools.list(&["address", "show", "dev", "lo"])?;
    for address in links.iter().flat_map(|link| link.labelled(LABEL)) {
        remove_address(tools, address)?;
    }
    Ok(())
}

fn remove_address(tools: &Tools, address: &str) -> Result<(), NetworkError> {
    tools.ip(&["address", "del", &format!("{address}/32"), "dev", "lo"])
}

/// What turns the rules of the Services of `old` into those of `new`.
pub(super) fn difference(
    old: &BTreeMap<Key, Arc<ClusterService>>,
    new: &BTreeMap<Key, Arc<ClusterService>>,
) -> String {
    let of = |all: &BTreeMap<Key, Arc<ClusterService>>,
              others: &BTreeMap<Key, Arc<ClusterService>>| {
        let mut merged = Rules::default();
        for (key, service) in all {
            let same =
                |other: &Arc<ClusterService>| Arc::ptr_eq(other, service) || other == service;
            if others.get(key).is_some_and(same) {
                continue;
            }
            let rules = rules::of(service);
            merged.chains.extend(rules.chains);
            merged.sessions.extend(rules.sessions);
            merged.elements.extend(rules.elements);
        }
        merged
    };
    script(&of(old, new), &of(new, old))
}
