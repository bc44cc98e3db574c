//! The file of receivers: who is notified of alerts, and how.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use http::Uri;
use serde::Deserialize;

use crate::rule::{Rule, Severity, UnknownRule};

/// The most receivers.
pub const RECEIVERS_MAX: usize = 32;

/// How a receiver is notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReceiverKind {
    /// A POST of Alertmanager's webhook document, signed as Standard Webhooks describes it.
    Webhook,
    /// A POST to an incoming webhook of Slack, or of Mattermost or Rocket.Chat, which read the same.
    Slack,
    /// Alertmanager's API, version 2.
    Alertmanager,
}

impl ReceiverKind {
    /// The name in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ReceiverKind::Webhook => "webhook",
            ReceiverKind::Slack => "slack",
            ReceiverKind::Alertmanager => "alertmanager",
        }
    }
}

/// A value that the file holds, or that another file holds.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The value.
    Value(String),
    /// The file whose first line is the value.
    File(PathBuf),
}

// The value stays out of logs.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Secret::Value(_) => f.write_str("Value(..)"),
            Secret::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// A receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// Its name.
    pub name: String,
    /// How it is notified.
    pub kind: ReceiverKind,
    /// Where to, which may be a secret.
    pub url: Secret,
    /// The key of a webhook's signature; the document is not signed without one.
    pub key: Option<PathBuf>,
    /// The file with a bearer token for the header `Authorization`.
    pub token: Option<PathBuf>,
    /// Lesser alerts are not sent.
    pub severity: Severity,
    /// The rules of which alerts are sent.
    pub rules: BTreeSet<Rule>,
}

impl Receiver {
    /// True if it wants alerts of this rule.
    #[must_use]
    pub fn wants(&self, rule: Rule) -> bool {
        rule.severity() >= self.severity && self.rules.contains(&rule)
    }
}

/// Why a file of receivers is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiversError {
    /// It is no TOML, or a field is unknown or of another type.
    #[error("{0}")]
    Toml(String),
    /// A value is invalid.
    #[error("receiver {receiver}: {field}: {problem}")]
    Field {
        /// The receiver's name, or its number if it has none.
        receiver: String,
        /// The field.
        field: &'static str,
        /// The value and the valid form.
        problem: String,
    },
    /// There are too many.
    #[error("{0} receivers; at most {RECEIVERS_MAX}")]
    TooMany(usize),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    receiver: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Entry {
    name: String,
    kind: ReceiverKind,
    url: Option<String>,
    url_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    token_file: Option<PathBuf>,
    severity: Option<Severity>,
    rules: Option<Vec<String>>,
}

/// Reads a file of receivers.
///
/// # Errors
/// It is no TOML of the expected form, or a value is invalid.
pub fn read(text: &str) -> Result<Vec<Receiver>, ReceiversError> {
    let file: File = toml::from_str(text)
        .map_err(|error| ReceiversError::Toml(error.to_string().trim_end().to_owned()))?;
    if file.receiver.len() > RECEIVERS_MAX {
        return Err(ReceiversError::TooMany(file.receiver.len()));
    }
    let mut names = BTreeSet::new();
    let mut receivers = Vec::new();
    for entry in file.receiver {
        let receiver = entry.check()?;
        if !names.insert(receiver.name.clone()) {
            return Err(ReceiversError::Field {
                receiver: receiver.name,
                field: "name",
                problem: "another receiver has the same name".to_owned(),
            });
        }
        receivers.push(receiver);
    }
    Ok(receivers)
}

/// Checks the text of a URL.
pub(crate) fn url_problem(url: &str) -> Option<String> {
    let parsed: Result<Uri, _> = url.parse();
    let valid = parsed.is_ok_and(|uri| {
        let scheme = uri.scheme_str();
        (scheme == Some("https") || scheme == Some("http")) && uri.host().is_some()
    });
    // The URL itself may be a secret.
    (!valid).then(|| "it is not a URL such as https://hooks.example.org/muster".to_owned())
}

impl Entry {
    fn check(self) -> Result<Receiver, ReceiversError> {
        let refuse = |field: &'static str, problem: String| ReceiversError::Field {
            receiver: self.name.clone(),
            field,
            problem,
        };
        let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.name.is_empty() || self.name.len() > 63 || !self.name.chars().all(letters) {
            return Err(refuse(
                "name",
                "use 1 to 63 of a-z, 0-9 and -, such as on-call".to_owned(),
            ));
        }
        let url = match (self.url, self.url_file) {
            (Some(url), None) => {
                if let Some(problem) = url_problem(&url) {
                    return Err(refuse("url", problem));
                }
                Secret::Value(url)
            }
            (None, Some(file)) => Secret::File(file),
            _ => {
                return Err(refuse(
                    "url",
                    "name either url or url-file, the file whose first line is the URL".to_owned(),
                ));
            }
        };
        if self.key_file.is_some() && self.kind != ReceiverKind::Webhook {
            let problem = format!("a receiver of kind {} is not signed", self.kind.name());
            return Err(refuse("key-file", problem));
        }
        let rules: Result<BTreeSet<Rule>, UnknownRule> = match &self.rules {
            None => Ok(Rule::ALL.into()),
            Some(names) => names.iter().map(|name| name.parse()).collect(),
        };
        let rules = rules.map_err(|error| refuse("rules", error.to_string()))?;
        if rules.is_empty() {
            let problem = "the list is empty; leave it out to receive all".to_owned();
            return Err(refuse("rules", problem));
        }
        Ok(Receiver {
            name: self.name,
            kind: self.kind,
            url,
            key: self.key_file,
            token: self.token_file,
            severity: self.severity.unwrap_or(Severity::Info),
            rules,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_receivers_is_read() {
        let text = r#"
            [[receiver]]
            name = "on-call"
            kind = "webhook"
            url = "https://hooks.example.org/muster"
            key-file = "/etc/muster/hook.key"
            severity = "critical"

            [[receiver]]
            name = "chat"
            kind = "slack"
            url-file = "/etc/muster/chat.url"
            rules = ["NodeLost", "GpuHot"]
        "#;
        let receivers = read(text).unwrap();
        assert_eq!(receivers.len(), 2);
        assert!(receivers[0].wants(Rule::NodeLost));
        assert!(!receivers[0].wants(Rule::NodeSuspect), "it is a warning");
        assert!(receivers[1].wants(Rule::GpuHot));
        assert!(!receivers[1].wants(Rule::ServerDiskLow), "it is not named");
        assert_eq!(read("").unwrap(), []);
        let shown = format!("{:?}", receivers[0]);
        assert!(!shown.contains("hooks.example.org"), "{shown}");
    }

    #[test]
    fn a_bad_file_is_refused_with_receiver_field_and_valid_form() {
        let with = |more: &str| format!("[[receiver]]\nname = \"ops\"\n{more}");
        let table = [
            (with("kind = \"mail\""), "unknown variant `mail`"),
            (with("kind = \"slack\""), "receiver ops: url: name either url or url-file"),
            (with("kind = \"slack\"\nurl = \"hooks\""), "receiver ops: url: it is not a URL"),
            (with("kind = \"slack\"\nurl = \"file:///etc/passwd\""), "receiver ops: url: it is not a URL"),
            (
                with("kind = \"slack\"\nurl = \"https://a/\"\nkey-file = \"k\""),
                "receiver ops: key-file: a receiver of kind slack is not signed",
            ),
            (
                with("kind = \"slack\"\nurl = \"https://a/\"\nrules = [\"Node\"]"),
                "receiver ops: rules: there is no rule \"Node\"; the rules are NodeLost",
            ),
            (with("kind = \"slack\"\nurl = \"https://a/\"\nrules = []"), "the list is empty"),
            (with("kind = \"slack\"\nport = 1"), "unknown field `port`"),
            (
                "[[receiver]]\nname = \"Ops Team\"\nkind = \"slack\"\nurl = \"https://a/\"".to_owned(),
                "receiver Ops Team: name: use 1 to 63 of a-z",
            ),
            (
                "[[receiver]]\nname = \"a\"\nkind = \"slack\"\nurl = \"https://a/\"\n".repeat(2),
                "receiver a: name: another receiver has the same name",
            ),
            (
                (0..33).map(|n| format!("[[receiver]]\nname = \"a{n}\"\nkind = \"slack\"\nurl = \"https://a/\"\n")).collect(),
                "33 receivers; at most 32",
            ),
        ];
        for (text, words) in table {
            let error = read(&text).unwrap_err().to_string();
            assert!(error.contains(words), "{error} does not contain {words}");
        }
    }
}
