//! What a node has programmed of the policies for its pods.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use parking_lot::Mutex;
use resources::network_policies::NodeView;

use super::change::script;
use super::rules::{self, Rules};
use crate::error::NetworkError;
use crate::tools::Tools;

/// A node's policies. Its calls block.
pub struct NodePolicies {
    tools: Tools,
    /// What the kernel has; unknown before the first change and after a failed one.
    programmed: Mutex<Option<Rules>>,
}

impl NodePolicies {
    /// Nothing is known of what an earlier agent programmed: the first [`NodePolicies::set`] replaces it.
    ///
    /// # Errors
    ///
    /// When `ip` or `nft` is missing.
    pub fn open() -> Result<NodePolicies, NetworkError> {
        Ok(NodePolicies {
            tools: Tools::find()?,
            programmed: Mutex::new(None),
        })
    }

    /// Programs what changed for the pods with these addresses, by uid. A pod of which the view has nothing is cut off.
    ///
    /// # Errors
    ///
    /// When the kernel refuses; what was programmed before stays, and the next call programs everything.
    pub fn set(
        &self,
        view: &NodeView,
        local: &BTreeMap<String, Ipv4Addr>,
    ) -> Result<(), NetworkError> {
        let wanted = rules::of(view, local);
        let mut programmed = self.programmed.lock();
        // A node without pods that policies select needs no table, and nothing of the kernel for it.
        let nothing = Rules::default();
        if programmed.as_ref() == Some(&wanted) {
            return Ok(());
        }
        if wanted == nothing {
            *programmed = None;
            self.tools.nft(&rules::no_table())?;
            *programmed = Some(wanted);
            return Ok(());
        }
        if let Some(before) = programmed.take().filter(|before| *before != nothing) {
            let text = script(&before, &wanted);
            if self.tools.nft(&text).is_ok() {
                *programmed = Some(wanted);
                return Ok(());
            }
            tracing::warn!(
                "the rules of NetworkPolicies are not what the agent wrote; it writes all of them again"
            );
        }
        let text = format!("{}{}", rules::empty_table(), script(&nothing, &wanted));
        self.tools.nft(&text)?;
        *programmed = Some(wanted);
        Ok(())
    }
}

/// Removes what an agent made for policies.
pub(crate) fn clear(tools: &Tools) -> Result<(), NetworkError> {
    tools.nft(&rules::no_table())
}
