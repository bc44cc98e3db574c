//! The annotation `muster.io/on-failure`: what follows a failure, by its class. Owns its syntax, its errors and its
//! defaults; admission and the controllers read it by the same function.
//!
//! Example: `python-error=fail,gpu-error=restart-gang+exclude-node,default=restart-rank`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::FailureClass;

/// The word for all classes that the annotation does not name.
const DEFAULT: &str = "default";
/// The addition to an action that keeps the job's new pods off the node.
const EXCLUDE: &str = "exclude-node";

/// What follows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureAction {
    /// The failed rank gets a new pod; the others run on.
    RestartRank,
    /// All ranks end, and then all start anew, as the next attempt.
    RestartGang,
    /// The job fails.
    Fail,
}

impl FailureAction {
    const ALL: [FailureAction; 3] = [
        FailureAction::RestartRank,
        FailureAction::RestartGang,
        FailureAction::Fail,
    ];

    /// The action in annotations and answers.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            FailureAction::RestartRank => "restart-rank",
            FailureAction::RestartGang => "restart-gang",
            FailureAction::Fail => "fail",
        }
    }
}

/// The action for one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureResponseRule {
    /// What follows.
    pub action: FailureAction,
    /// The job's new pods do not run on the failed pod's node.
    pub exclude_node: bool,
}

/// A job's policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnFailure {
    rules: BTreeMap<FailureClass, FailureResponseRule>,
    default: Option<FailureResponseRule>,
}

/// Why the annotation cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OnFailureError {
    /// An entry is not `CLASS=ACTION`.
    #[error(
        "{0:?} is not CLASS=ACTION; write a list such as \"python-error=fail,default=restart-gang\""
    )]
    Entry(String),
    /// An unknown class.
    #[error("{class:?} is no class of failures; use {known} or default")]
    Class {
        /// The class as written.
        class: String,
        /// The classes.
        known: String,
    },
    /// An unknown action.
    #[error(
        "{0:?} is no action; use restart-rank, restart-gang or fail, and after a restart +exclude-node, such as \
         \"restart-gang+exclude-node\""
    )]
    Action(String),
    /// A class occurs twice.
    #[error("{0:?} has two actions; name each class once")]
    Twice(String),
    /// An action that cannot follow the class.
    #[error("{0:?} can only be followed by fail: the node itself tries again until the pod starts")]
    OnlyFail(&'static str),
    /// An action that needs one rank that failed, for a hang.
    #[error(
        "\"hang\" has no rank that failed; follow it by restart-gang or fail, without exclude-node"
    )]
    Hang,
}

impl OnFailure {
    /// Reads the annotation.
    ///
    /// # Errors
    /// The entry that is wrong, and the valid form.
    pub fn parse(text: &str) -> Result<OnFailure, OnFailureError> {
        let mut policy = OnFailure::default();
        for entry in text.split(',').map(str::trim) {
            let (class, action) = entry
                .split_once('=')
                .ok_or_else(|| OnFailureError::Entry(entry.to_owned()))?;
            let (class, rule) = (class.trim(), rule(action.trim())?);
            let before = if class == DEFAULT {
                policy.default.replace(rule)
            } else {
                let known = FailureClass::ALL;
                let found = known.into_iter().find(|known| known.as_str() == class);
                let found = found.ok_or_else(|| unknown(class))?;
                if found.is_retried_by_node() && rule.action != FailureAction::Fail {
                    return Err(OnFailureError::OnlyFail(found.as_str()));
                }
                if found == FailureClass::Hang && rule != of_hang(rule) {
                    return Err(OnFailureError::Hang);
                }
                policy.rules.insert(found, rule)
            };
            if before.is_some() {
                return Err(OnFailureError::Twice(class.to_owned()));
            }
        }
        Ok(policy)
    }

    /// What follows a failure of a class; none if the node tries again by itself. `unloadable`: the program cannot be
    /// loaded. Of the classes that the annotation does not name, these are not the default's: a program that cannot be
    /// loaded and one that does not start fail the job, because their next start fails in the same way; and a hang, which
    /// is of no single rank, restarts the gang where the default restarts one rank.
    #[must_use]
    pub fn of(&self, class: FailureClass, unloadable: bool) -> Option<FailureResponseRule> {
        if let Some(rule) = self.rules.get(&class) {
            return Some(*rule);
        }
        let always = |action| FailureResponseRule {
            action,
            exclude_node: false,
        };
        match class {
            class if class.is_retried_by_node() => None,
            FailureClass::StartError => Some(always(FailureAction::Fail)),
            FailureClass::PythonError if unloadable => Some(always(FailureAction::Fail)),
            FailureClass::Hang => {
                let default = self.default.unwrap_or(always(FailureAction::RestartGang));
                Some(of_hang(default))
            }
            _ => Some(self.default.unwrap_or(always(FailureAction::RestartGang))),
        }
    }
}

/// The rule as it applies to a hang: no single rank has failed that could start anew alone, and no node is the cause.
fn of_hang(rule: FailureResponseRule) -> FailureResponseRule {
    FailureResponseRule {
        action: match rule.action {
            FailureAction::RestartRank => FailureAction::RestartGang,
            action => action,
        },
        exclude_node: false,
    }
}

fn unknown(class: &str) -> OnFailureError {
    let known: Vec<&str> = FailureClass::ALL
        .iter()
        .map(|class| class.as_str())
        .collect();
    OnFailureError::Class {
        class: class.to_owned(),
        known: known.join(", "),
    }
}

fn rule(text: &str) -> Result<FailureResponseRule, OnFailureError> {
    let wrong = || OnFailureError::Action(text.to_owned());
    let (word, addition) = match text.split_once('+') {
        Some((word, addition)) => (word.trim(), Some(addition.trim())),
        None => (text, None),
    };
    let known = FailureAction::ALL.into_iter();
    let mut found = known.filter(|action| action.as_str() == word);
    let action = found.next().ok_or_else(wrong)?;
    let exclude_node = match addition {
        None => false,
        Some(EXCLUDE) if action != FailureAction::Fail => true,
        Some(_) => return Err(wrong()),
    };
    Ok(FailureResponseRule {
        action,
        exclude_node,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(policy: &OnFailure, class: FailureClass, unloadable: bool) -> String {
        match policy.of(class, unloadable) {
            None => "none".to_owned(),
            Some(rule) if rule.exclude_node => format!("{}+", rule.action.as_str()),
            Some(rule) => rule.action.as_str().to_owned(),
        }
    }

    #[test]
    fn each_class_has_its_action_and_the_others_the_default() {
        let text = "python-error=fail, node-lost=restart-gang,gpu-error=restart-gang+exclude-node,default=restart-rank";
        let policy = OnFailure::parse(text).unwrap();
        let table = [
            (FailureClass::PythonError, false, "fail"),
            (FailureClass::NodeLost, false, "restart-gang"),
            (FailureClass::GpuError, false, "restart-gang+"),
            (FailureClass::Signal, false, "restart-rank"),
            // Named or not, these follow from what they are.
            (FailureClass::StartError, false, "fail"),
            (FailureClass::ImageError, false, "none"),
        ];
        for (class, unloadable, expected) in table {
            assert_eq!(action(&policy, class, unloadable), expected, "{class:?}");
        }
        let policy = OnFailure::parse("default=restart-rank").unwrap();
        assert_eq!(
            action(&policy, FailureClass::PythonError, false),
            "restart-rank"
        );
        assert_eq!(action(&policy, FailureClass::PythonError, true), "fail");
        let policy = OnFailure::parse("python-error=restart-rank,image-error=fail").unwrap();
        assert_eq!(
            action(&policy, FailureClass::PythonError, true),
            "restart-rank"
        );
        assert_eq!(action(&policy, FailureClass::ImageError, false), "fail");
        assert_eq!(
            action(&policy, FailureClass::Evicted, false),
            "restart-gang"
        );
        for (text, expected) in [
            ("signal=fail", "restart-gang"),
            ("default=restart-rank", "restart-gang"),
            ("default=restart-gang+exclude-node", "restart-gang"),
            ("default=fail", "fail"),
            ("hang=restart-gang,default=fail", "restart-gang"),
            ("hang=fail", "fail"),
        ] {
            let policy = OnFailure::parse(text).unwrap();
            assert_eq!(
                action(&policy, FailureClass::Hang, false),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_the_valid_form() {
        let table = [
            (
                "",
                "\"\" is not CLASS=ACTION; write a list such as \"python-error=fail,default=restart-gang\"",
            ),
            (
                "fail",
                "\"fail\" is not CLASS=ACTION; write a list such as \"python-error=fail,default=restart-gang\"",
            ),
            (
                "signal=fail,",
                "\"\" is not CLASS=ACTION; write a list such as \"python-error=fail,default=restart-gang\"",
            ),
            (
                "oom=fail",
                "\"oom\" is no class of failures; use exit-code, python-error, signal, out-of-memory, gpu-error, \
                 network-error, start-error, image-error, volume-error, node-lost, node-unfit, preempted, evicted, hang or default",
            ),
            (
                "signal=retry",
                "\"retry\" is no action; use restart-rank, restart-gang or fail, and after a restart +exclude-node, such as \
                 \"restart-gang+exclude-node\"",
            ),
            (
                "signal=fail+exclude-node",
                "\"fail+exclude-node\" is no action; use restart-rank, restart-gang or fail, and after a restart \
                 +exclude-node, such as \"restart-gang+exclude-node\"",
            ),
            (
                "signal=fail,signal=fail",
                "\"signal\" has two actions; name each class once",
            ),
            (
                "default=fail,default=fail",
                "\"default\" has two actions; name each class once",
            ),
            (
                "image-error=restart-gang",
                "\"image-error\" can only be followed by fail: the node itself tries again until the pod starts",
            ),
            (
                "hang=restart-rank",
                "\"hang\" has no rank that failed; follow it by restart-gang or fail, without exclude-node",
            ),
            (
                "hang=restart-gang+exclude-node",
                "\"hang\" has no rank that failed; follow it by restart-gang or fail, without exclude-node",
            ),
        ];
        for (text, error) in table {
            assert_eq!(
                OnFailure::parse(text).unwrap_err().to_string(),
                error,
                "{text}"
            );
        }
    }
}
