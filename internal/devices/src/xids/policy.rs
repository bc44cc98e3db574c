//! The policy for XIDs as data: a file that maps XID numbers to actions. Its defaults follow
//! NVIDIA's list of XIDs (`defaults.json`). Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::config_values::{ConfigValueError, refused, wrong};

/// The action for an XID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XidAction {
    /// The XID is only counted.
    Ignore,
    /// The application failed and must be restarted; the GPU is healthy.
    RestartApp,
    /// The GPU must be reset before it is allocated again; running work cannot continue.
    Reset,
    /// The machine must be rebooted before the GPU is allocated again; running work cannot
    /// continue.
    Reboot,
    /// The GPU gets no new work and an administrator must inspect it. Running work may finish.
    Drain,
}

/// All actions.
const ACTIONS: [XidAction; 5] = [
    XidAction::Ignore,
    XidAction::RestartApp,
    XidAction::Reset,
    XidAction::Reboot,
    XidAction::Drain,
];

/// The longest quiet time that a policy can require of a GPU: a day.
const QUIET_MAX: u64 = 24 * 60 * 60;

impl XidAction {
    /// Whether a GPU with such an XID is withheld until it is healthy again.
    pub fn takes_out(self) -> bool {
        !matches!(self, XidAction::Ignore | XidAction::RestartApp)
    }

    /// Whether the work that runs on such a GPU cannot continue.
    pub fn is_fatal(self) -> bool {
        matches!(self, XidAction::Reset | XidAction::Reboot)
    }

    /// The action's name in the policy file.
    pub fn as_str(self) -> &'static str {
        match self {
            XidAction::Ignore => "ignore",
            XidAction::RestartApp => "restart-app",
            XidAction::Reset => "reset",
            XidAction::Reboot => "reboot",
            XidAction::Drain => "drain",
        }
    }

    /// What the administrator must do.
    pub fn advice(self) -> &'static str {
        match self {
            XidAction::Ignore => "nothing is to be done",
            XidAction::RestartApp => "its application is to be started again",
            XidAction::Reset => "reset it (nvidia-smi --gpu-reset)",
            XidAction::Reboot => "restart the machine",
            XidAction::Drain => "give it no new work, and look at it",
        }
    }
}

/// The meaning and the action of each XID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XidPolicy {
    known: BTreeMap<u64, (XidAction, String)>,
    otherwise: XidAction,
    quiet: Duration,
}

impl Default for XidPolicy {
    fn default() -> XidPolicy {
        let mut policy = XidPolicy {
            known: BTreeMap::new(),
            otherwise: XidAction::Drain,
            quiet: Duration::from_secs(30),
        };
        // This cannot fail: a test parses the defaults.
        if let Ok(defaults) = serde_json::from_str(include_str!("defaults.json")) {
            let _ = policy.take(&defaults);
        }
        policy
    }
}

impl XidPolicy {
    /// The defaults, overridden by the entries of a document.
    ///
    /// # Errors
    ///
    /// The field, its value and the accepted values.
    pub fn read(document: &Value) -> Result<XidPolicy, ConfigValueError> {
        let mut policy = XidPolicy::default();
        policy.take(document)?;
        Ok(policy)
    }

    /// The action for an XID, and its meaning if known.
    pub fn of(&self, xid: u64) -> (XidAction, &str) {
        match self.known.get(&xid) {
            Some((action, meaning)) => (*action, meaning),
            None => (self.otherwise, ""),
        }
    }

    /// How long a withheld GPU must report no XID before it is allocated again.
    pub fn quiet(&self) -> Duration {
        self.quiet
    }

    /// The policy in YAML, as [`XidPolicy::read`] takes it.
    pub fn yaml(&self) -> String {
        let rest = self.otherwise.as_str();
        let quiet = self.quiet.as_secs();
        let mut text = format!(
            "# What is done about a GPU for each error (XID) that its driver reports: ignore, restart-app (the\n\
             # GPU stays), reset and reboot (it is out, and what runs on it is ended), drain (it is out, and\n\
             # what runs on it may go on). It comes back when it answers, the driver wants nothing done, and it\n\
             # has reported nothing for so long. Of a driver that does not say what it wants (before 570), when\n\
             # it was gone and is back, as after a reset.\n\
             quietSeconds: {quiet}\notherwise: {rest} # of those that are not listed\nxids:\n"
        );
        for (xid, (action, meaning)) in &self.known {
            let comment = if meaning.is_empty() { "" } else { " # " };
            text.push_str(&format!("  {xid}: {}{comment}{meaning}\n", action.as_str()));
        }
        text
    }

    fn take(&mut self, document: &Value) -> Result<(), ConfigValueError> {
        let Value::Object(fields) = document else {
            return Err(wrong(
                "the document",
                Some(document),
                "a mapping of xids, otherwise and quietSeconds",
            ));
        };
        for (name, value) in fields {
            match (name.as_str(), value) {
                ("otherwise", value) => self.otherwise = action("otherwise", value)?,
                ("quietSeconds", value) => {
                    let seconds = value.as_u64().filter(|seconds| *seconds <= QUIET_MAX);
                    let right = format!("a whole number of seconds, at most {QUIET_MAX}");
                    let seconds =
                        seconds.ok_or_else(|| wrong("quietSeconds", Some(value), &right))?;
                    self.quiet = Duration::from_secs(seconds);
                }
                ("xids", Value::Object(xids)) => {
                    for (number, value) in xids {
                        self.take_one(number, value)?;
                    }
                }
                ("xids", value) => {
                    let right = "a mapping of numbers to {action, meaning}";
                    return Err(wrong("xids", Some(value), right));
                }
                (odd, _) => {
                    return Err(ConfigValueError::Unknown {
                        field: odd.to_owned(),
                        known: "xids, otherwise and quietSeconds".to_owned(),
                    });
                }
            }
        }
        Ok(())
    }

    fn take_one(&mut self, number: &str, value: &Value) -> Result<(), ConfigValueError> {
        let at = format!("xids.{number}");
        let xid: u64 = number
            .parse()
            .map_err(|_| refused(&at, format!("{number:?} is no XID"), "its number"))?;
        let before = self.known.get(&xid).map(|(_, meaning)| meaning.clone());
        let mut one = (self.otherwise, before.unwrap_or_default());
        match value {
            // `79: reset` is short for `79: {action: reset}`.
            Value::String(_) => one.0 = action(&at, value)?,
            Value::Object(fields) => {
                let given = fields.get("action").unwrap_or(&Value::Null);
                one.0 = action(&format!("{at}.action"), given)?;
                for (name, value) in fields {
                    match (name.as_str(), value) {
                        ("action", _) => {}
                        ("meaning", Value::String(meaning)) => one.1.clone_from(meaning),
                        _ => {
                            let right = "action, or meaning and a text";
                            return Err(wrong(&format!("{at}.{name}"), Some(value), right));
                        }
                    }
                }
            }
            other => return Err(wrong(&at, Some(other), "an action, or {action, meaning}")),
        }
        self.known.insert(xid, one);
        Ok(())
    }
}

fn action(at: &str, value: &Value) -> Result<XidAction, ConfigValueError> {
    let known = (ACTIONS.into_iter()).find(|action| value.as_str() == Some(action.as_str()));
    let words = ACTIONS.map(XidAction::as_str).join(", ");
    known.ok_or_else(|| wrong(at, Some(value), &format!("one of {words}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_defaults_follow_nvidias_list() {
        let policy = XidPolicy::default();
        for (xid, action) in [
            (13, XidAction::RestartApp),
            (45, XidAction::Ignore),
            (48, XidAction::Reset),
            (79, XidAction::Reboot),
            (94, XidAction::RestartApp),
            (109, XidAction::Reset),
            (999, XidAction::Drain),
        ] {
            assert_eq!(policy.of(xid).0, action, "{xid}");
        }
        assert_eq!(policy.of(79).1, "the GPU has fallen off the bus");
        assert!(
            policy
                .known
                .values()
                .all(|(_, meaning)| !meaning.is_empty())
        );
        let read: Value = serde_json::from_str(include_str!("defaults.json")).expect("JSON");
        assert_eq!(XidPolicy::read(&read), Ok(policy));
    }

    #[test]
    fn a_file_changes_the_xids_that_it_names_and_its_errors_are_reported() {
        let read = XidPolicy::read(&json!({"otherwise": "ignore",
            "xids": {"74": "drain", "79": {"action": "reset"}}}));
        let policy = read.expect("a policy");
        assert_eq!(policy.of(74), (XidAction::Drain, "NVLink error"));
        assert_eq!(policy.of(79).0, XidAction::Reset);
        assert_eq!(
            (policy.of(48).0, policy.of(999).0),
            (XidAction::Reset, XidAction::Ignore)
        );
        for (document, words) in [
            (json!([]), ["the document: []", "xids, otherwise"]),
            (json!({"xid": {}}), ["xid: no such field", "otherwise"]),
            (json!({"xids": []}), ["xids: []", "{action, meaning}"]),
            (json!({"xids": {"x": "reset"}}), ["xids.x", "its number"]),
            (
                json!({"xids": {"79": "burn"}}),
                ["xids.79: \"burn\"", "ignore, restart-app, reset"],
            ),
            (
                json!({"xids": {"79": {}}}),
                ["xids.79.action: null", "reboot, drain"],
            ),
            (
                json!({"xids": {"79": {"action": "reset", "why": 1}}}),
                ["xids.79.why: 1", "meaning"],
            ),
            (json!({"otherwise": 3}), ["otherwise: 3", "drain"]),
            (json!({"quietSeconds": -1}), ["quietSeconds: -1", "86400"]),
        ] {
            let why = XidPolicy::read(&document)
                .expect_err("it is refused")
                .to_string();
            for word in words {
                assert!(why.contains(word), "{why}: lacks {word}");
            }
        }
    }

    #[test]
    fn the_policy_as_a_file_has_a_line_for_each_xid() {
        let read =
            XidPolicy::read(&json!({"xids": {"79": "drain", "900": "reset"}, "quietSeconds": 3}));
        let text = read.expect("a policy").yaml();
        for line in [
            "quietSeconds: 3",
            "otherwise: drain # of those that are not listed",
            "  79: drain # the GPU has fallen off the bus",
            "  900: reset",
        ] {
            assert!(text.lines().any(|it| it == line), "{text}");
        }
    }
}
