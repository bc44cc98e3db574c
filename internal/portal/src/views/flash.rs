//! The message after an action. A redirect names it by a word of this list, so that an address cannot put other words on
//! a page.

use serde::Deserialize;

/// The query's part that names a message.
#[derive(Deserialize, Default, Clone, Debug)]
#[serde(default)]
pub struct FlashQuery {
    flash: String,
}

/// A message above a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flash {
    /// The sentence.
    pub words: &'static str,
    /// The action, below the page's own address, that takes it back, and its name.
    pub undo: Option<(&'static str, &'static str)>,
}

/// Word, sentence, and how to take it back.
type Known = (
    &'static str,
    &'static str,
    Option<(&'static str, &'static str)>,
);

const KNOWN: [Known; 25] = [
    (
        "suspended",
        "The job is suspended: its pods end, and it keeps its record.",
        Some(("resume", "Resume it")),
    ),
    (
        "resumed",
        "The job is resumed and waits in its queue.",
        None,
    ),
    (
        "cancelled",
        "The job is cancelled: its pods end, and its record stays.",
        Some(("resume", "Start it again")),
    ),
    (
        "scaled-to-zero",
        "The set is cancelled: it is scaled to no groups, its pods end, and its record stays.",
        None,
    ),
    (
        "deleted",
        "The job is deleted, with its pods and its record.",
        None,
    ),
    (
        "view-saved",
        "The view is saved: its name above the list leads to these filters.",
        None,
    ),
    (
        "view-removed",
        "The view is removed; no job is changed.",
        None,
    ),
    ("submitted", "The manifests are submitted.", None),
    (
        "cordoned",
        "The node takes no new work.",
        Some(("uncordon", "Uncordon it")),
    ),
    ("uncordoned", "The node takes new work again.", None),
    (
        "draining",
        "The node takes no new work, and its pods are ending.",
        Some(("uncordon", "Uncordon it")),
    ),
    (
        "drained",
        "The node takes no new work, and no pod is left that a drain ends.",
        Some(("uncordon", "Uncordon it")),
    ),
    (
        "node-removed",
        "The node is removed, and its certificates are revoked.",
        None,
    ),
    ("team-created", "The team is made.", None),
    (
        "team-deleted",
        "The team is deleted; its namespaces stay, with all that is in them.",
        None,
    ),
    (
        "quota-set",
        "The quota is set in each namespace of the team; pods that run stay.",
        None,
    ),
    (
        "network-isolated",
        "Pods of the team are reached from the team's namespaces only.",
        None,
    ),
    (
        "network-opened",
        "The team's NetworkPolicy is removed from its namespaces.",
        None,
    ),
    ("member-added", "The user is a member of the team.", None),
    (
        "member-removed",
        "The user is no member of the team any more; its jobs stay.",
        None,
    ),
    (
        "queue-changed",
        "The queue is changed; work that runs stays.",
        None,
    ),
    (
        "silenced",
        "The alert is silenced: it stays in the list and is not sent.",
        None,
    ),
    (
        "idle-limit-set",
        "The limit is set in each namespace of the team.",
        None,
    ),
    ("unsilenced", "The silence has ended.", None),
    (
        "test-sent",
        "The test is being delivered; the row of the receiver shows the result.",
        None,
    ),
];

impl FlashQuery {
    /// The query that names a message.
    pub fn named(word: &str) -> FlashQuery {
        FlashQuery {
            flash: word.to_owned(),
        }
    }

    /// The message that the query names.
    pub fn message(&self) -> Option<Flash> {
        let found = KNOWN.iter().find(|(word, _, _)| *word == self.flash)?;
        Some(Flash {
            words: found.1,
            undo: found.2,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_puts_only_known_words_on_a_page() {
        let of = |flash: &str| {
            FlashQuery {
                flash: flash.to_owned(),
            }
            .message()
        };
        assert!(of("cancelled").unwrap().undo.is_some());
        for other in ["", "Cancelled", "<script>", "cancelled "] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
