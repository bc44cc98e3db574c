//! What a node's agent and a scheduler tell each other about cutting GPUs (MIG), in annotations of
//! the Node. Data only. The wish itself is the label [`crate::names::MIG_CONFIG`], as for anybody else.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::names::{MIG_CHOICE, MIG_CONFIGURATIONS};

/// By the name of a configuration that the node's label may have: by resource (`nvidia.com/gpu`,
/// `nvidia.com/mig-1g.10gb`) how many devices the node would give out.
pub type Possible = BTreeMap<String, BTreeMap<String, u32>>;

/// Which configuration a scheduler chose for a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Its name, as the node's label has it. Where the label has another, somebody else has asked
    /// for that since.
    pub configuration: String,
    /// When it was chosen.
    pub at: Timestamp,
    /// For whom, and why that node, in a sentence.
    pub why: String,
}

/// What the node's agent says it can make of its GPUs; none where it cuts none, or that is unreadable.
pub fn possible(annotations: Option<&BTreeMap<String, String>>) -> Option<Possible> {
    let text = annotations?.get(MIG_CONFIGURATIONS)?;
    serde_json::from_str(text).ok()
}

/// What a scheduler chose for the node last; none where none did, or that is unreadable.
pub fn choice(annotations: Option<&BTreeMap<String, String>>) -> Option<Choice> {
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
        let chosen = Choice {
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
