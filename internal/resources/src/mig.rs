//! The Node annotations through which a node's agent and a scheduler agree on the MIG partitioning of GPUs. Data only.
//! The requested configuration is the label [`crate::names::MIG_CONFIG`], which administrators and other tools use,
//! too.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::names::{MIG_CHOICE, MIG_CONFIGURATIONS};

/// By name of a configuration for the node's label: by resource (`nvidia.com/gpu`, `nvidia.com/mig-1g.10gb`), the
/// number of devices that the node would offer.
pub type Possible = BTreeMap<String, BTreeMap<String, u32>>;

/// The configuration that a scheduler chose for a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChosenConfiguration {
    /// Its name, as in the node's label. If the label has another name, another writer has requested that since.
    pub configuration: String,
    /// When it was chosen.
    pub at: Timestamp,
    /// The gang that it was chosen for and the reason for this node, in a sentence.
    pub why: String,
}

/// The configurations that the node's agent offers; `None` if it partitions no GPUs, or the annotation is unreadable.
pub fn possible(annotations: Option<&BTreeMap<String, String>>) -> Option<Possible> {
    let text = annotations?.get(MIG_CONFIGURATIONS)?;
    serde_json::from_str(text).ok()
}

/// The scheduler's last choice for the node; `None` if there is none, or the annotation is unreadable.
pub fn choice(annotations: Option<&BTreeMap<String, String>>) -> Option<ChosenConfiguration> {
    let text = annotations?.get(MIG_CHOICE)?;
    serde_json::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nonsense_is_nothing() {
        let possible_here = Possible::from([(
            "all-1g.10gb".to_owned(),
            BTreeMap::from([("nvidia.com/mig-1g.10gb".to_owned(), 7)]),
        )]);
        let chosen = ChosenConfiguration {
            configuration: "all-1g.10gb".to_owned(),
            at: Timestamp::UNIX_EPOCH,
            why: "for a pod".to_owned(),
        };
        let json = |text: Result<String, serde_json::Error>| text.expect("plain data");
        let both = BTreeMap::from([
            (
                MIG_CONFIGURATIONS.to_owned(),
                json(serde_json::to_string(&possible_here)),
            ),
            (MIG_CHOICE.to_owned(), json(serde_json::to_string(&chosen))),
        ]);
        assert_eq!(possible(Some(&both)), Some(possible_here));
        assert_eq!(choice(Some(&both)), Some(chosen));
        for nonsense in ["", "[", "{\"all-1g.10gb\": 7}"] {
            let all =
                [MIG_CONFIGURATIONS, MIG_CHOICE].map(|name| (name.to_owned(), nonsense.into()));
            let all = BTreeMap::from(all);
            assert_eq!(possible(Some(&all)), None, "{nonsense}");
            assert_eq!(choice(Some(&all)), None, "{nonsense}");
        }
        assert!(possible(None).is_none() && choice(None).is_none());
    }
}
