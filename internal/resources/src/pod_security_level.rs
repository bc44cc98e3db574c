//! Owns levels, versions and policies of the Pod Security Standards, and the labels of a namespace that name them. It
//! must not know pods.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::field::{FieldError, Path};
use crate::json;

/// The prefix of all labels and audit annotations of pod security.
pub(crate) const PREFIX: &str = "pod-security.kubernetes.io/";
/// The error for an unknown level.
pub(crate) const LEVELS: &str = "must be one of privileged, baseline, restricted";
/// The error for an unknown version.
pub(crate) const VERSIONS: &str = "must be \"latest\" or \"v1.x\"";

/// How much a pod may request; from least to most strict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PodSecurityLevel {
    /// Permits everything.
    Privileged,
    /// Forbids known ways to get access to the host.
    Baseline,
    /// Requires current hardening practice.
    Restricted,
}

impl PodSecurityLevel {
    /// The level of this name.
    pub fn parse(word: &str) -> Option<PodSecurityLevel> {
        match word {
            "privileged" => Some(PodSecurityLevel::Privileged),
            "baseline" => Some(PodSecurityLevel::Baseline),
            "restricted" => Some(PodSecurityLevel::Restricted),
            _ => None,
        }
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            PodSecurityLevel::Privileged => "privileged",
            PodSecurityLevel::Baseline => "baseline",
            PodSecurityLevel::Restricted => "restricted",
        }
    }
}

impl fmt::Display for PodSecurityLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The Kubernetes version whose edition of the standards applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StandardsVersion {
    /// `v1.N`.
    Minor(u32),
    /// The newest edition that this build knows: Kubernetes 1.34's.
    Latest,
}

impl StandardsVersion {
    /// The version of this name: `latest`, or `v1.` and a number without leading zeros.
    pub fn parse(word: &str) -> Option<StandardsVersion> {
        if word == "latest" {
            return Some(StandardsVersion::Latest);
        }
        let digits = word.strip_prefix("v1.")?;
        let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        let zeros = digits.len() > 1 && digits.starts_with('0');
        if !plain || zeros {
            return None;
        }
        digits.parse().ok().map(StandardsVersion::Minor)
    }

    /// True for Kubernetes 1.`minor` and later.
    pub(crate) fn since(self, minor: u32) -> bool {
        self >= StandardsVersion::Minor(minor)
    }
}

impl fmt::Display for StandardsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StandardsVersion::Minor(minor) => write!(f, "v1.{minor}"),
            StandardsVersion::Latest => f.write_str("latest"),
        }
    }
}

/// A level in one version's edition: `baseline:latest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LevelVersion {
    /// The level.
    pub level: PodSecurityLevel,
    /// The edition.
    pub version: StandardsVersion,
}

impl LevelVersion {
    /// A level in the newest edition.
    pub const fn latest(level: PodSecurityLevel) -> LevelVersion {
        LevelVersion {
            level,
            version: StandardsVersion::Latest,
        }
    }
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.level, self.version)
    }
}

/// The levels at which a namespace's pods are refused, audited and warned about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceLevels {
    /// Pods that violate this level are refused.
    pub enforce: LevelVersion,
    /// Pods and templates that violate this level are noted in the audit log.
    pub audit: LevelVersion,
    /// The author of pods and templates that violate this level is warned.
    pub warn: LevelVersion,
}

/// The modes, as labels and configuration files name them.
pub(crate) const MODES: [&str; 3] = ["enforce", "audit", "warn"];

impl NamespaceLevels {
    /// The same level for every mode, in the newest edition.
    pub const fn all(level: PodSecurityLevel) -> NamespaceLevels {
        let latest = LevelVersion::latest(level);
        NamespaceLevels {
            enforce: latest,
            audit: latest,
            warn: latest,
        }
    }

    pub(crate) fn mode_mut(&mut self, mode: &str) -> &mut LevelVersion {
        match mode {
            "enforce" => &mut self.enforce,
            "audit" => &mut self.audit,
            _ => &mut self.warn,
        }
    }

    /// The policy of a namespace's labels, with `defaults` for absent ones. Unreadable labels, which only a namespace
    /// from an older store can have, enforce the restricted level and cause no warning.
    pub fn of_labels(
        labels: &BTreeMap<String, String>,
        defaults: NamespaceLevels,
    ) -> NamespaceLevels {
        let mut policy = defaults;
        let label = |key: String| labels.get(&key).map(String::as_str);
        for mode in MODES {
            let unread = match mode {
                "enforce" => PodSecurityLevel::Restricted,
                _ => PodSecurityLevel::Privileged,
            };
            let slot = policy.mode_mut(mode);
            if let Some(word) = label(format!("{PREFIX}{mode}")) {
                slot.level = PodSecurityLevel::parse(word).unwrap_or(unread);
            }
            if let Some(word) = label(format!("{PREFIX}{mode}-version")) {
                slot.version = StandardsVersion::parse(word).unwrap_or(StandardsVersion::Latest);
            }
        }
        // A stricter level that a label enforces is also warned about, because templates are never refused.
        let enforced = label(format!("{PREFIX}enforce")).and_then(PodSecurityLevel::parse);
        let silent = label(format!("{PREFIX}warn")).is_none();
        if silent && enforced.is_some_and(|level| level > policy.warn.level) {
            policy.warn.level = policy.enforce.level;
            if label(format!("{PREFIX}warn-version")).is_none() {
                policy.warn.version = policy.enforce.version;
            }
        }
        policy
    }
}

/// Reports invalid pod security labels of a namespace. An unchanged invalid label is accepted, so that other fields of
/// an old namespace can be changed.
pub fn check_labels(new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let wrong = faults(new);
    if old.is_none_or(|old| faults(old) != wrong) {
        errors.extend(wrong);
    }
}

fn faults(namespace: &Value) -> Vec<FieldError> {
    let metadata = Path::new("metadata");
    let path = metadata.child("labels");
    let labels = json::at(namespace, &["metadata", "labels"]);
    let mut errors = Vec::new();
    for mode in MODES {
        let key = format!("{PREFIX}{mode}");
        if let Some(word) = labels.get(&key).and_then(Value::as_str)
            && PodSecurityLevel::parse(word).is_none()
        {
            errors.push(FieldError::invalid(&path.key(&key), word, LEVELS));
        }
        let key = format!("{key}-version");
        if let Some(word) = labels.get(&key).and_then(Value::as_str)
            && StandardsVersion::parse(word).is_none()
        {
            errors.push(FieldError::invalid(&path.key(&key), word, VERSIONS));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let full = |(key, value): &(&str, &str)| (format!("{PREFIX}{key}"), (*value).to_owned());
        pairs.iter().map(full).collect()
    }

    fn policy(enforce: &str, audit: &str, warn: &str) -> NamespaceLevels {
        let read = |text: &str| {
            let (level, version) = text.split_once(':').unwrap();
            LevelVersion {
                level: PodSecurityLevel::parse(level).unwrap(),
                version: StandardsVersion::parse(version).unwrap(),
            }
        };
        NamespaceLevels {
            enforce: read(enforce),
            audit: read(audit),
            warn: read(warn),
        }
    }

    #[test]
    fn versions_are_latest_or_a_minor_version() {
        let table = [
            ("latest", Some(StandardsVersion::Latest)),
            ("v1.0", Some(StandardsVersion::Minor(0))),
            ("v1.34", Some(StandardsVersion::Minor(34))),
            ("v1.4294967295", Some(StandardsVersion::Minor(u32::MAX))),
            ("v1.4294967296", None),
            ("v1.034", None),
            ("v1.", None),
            ("v1.+3", None),
            ("v2.0", None),
            ("1.34", None),
            ("", None),
        ];
        for (word, version) in table {
            assert_eq!(StandardsVersion::parse(word), version, "{word}");
            if let Some(version) = version {
                assert_eq!(version.to_string(), word);
            }
        }
        assert!(StandardsVersion::Latest.since(34) && StandardsVersion::Minor(34).since(34));
        assert!(!StandardsVersion::Minor(33).since(34));
        assert!(StandardsVersion::Latest.since(u32::MAX));
    }

    #[test]
    fn labels_replace_the_defaults_mode_by_mode() {
        let free = NamespaceLevels::all(PodSecurityLevel::Privileged);
        let base = NamespaceLevels::all(PodSecurityLevel::Baseline);
        let p = "privileged:latest";
        let b = "baseline:latest";
        let r = "restricted:latest";
        let table = [
            (labels(&[]), base, policy(b, b, b)),
            (labels(&[("enforce", "privileged")]), base, policy(p, b, b)),
            // A level that a label enforces is warned about, unless another label sets the warning level.
            (labels(&[("enforce", "baseline")]), free, policy(b, p, b)),
            (labels(&[("enforce", "restricted")]), base, policy(r, b, r)),
            (
                labels(&[("enforce", "restricted"), ("warn", "privileged")]),
                base,
                policy(r, b, p),
            ),
            (
                labels(&[("enforce", "baseline"), ("enforce-version", "v1.22")]),
                free,
                policy("baseline:v1.22", p, "baseline:v1.22"),
            ),
            (
                labels(&[("enforce", "baseline"), ("warn-version", "v1.23")]),
                free,
                policy(b, p, "baseline:v1.23"),
            ),
            (
                labels(&[("warn", "restricted"), ("audit", "baseline")]),
                free,
                policy(p, b, r),
            ),
            // An unreadable label is enforced as the strictest level.
            (
                labels(&[("enforce", "nope"), ("warn", "nope"), ("audit", "nope")]),
                base,
                policy(r, p, p),
            ),
            (
                labels(&[("enforce-version", "nope")]),
                base,
                policy(b, b, b),
            ),
        ];
        for (labels, defaults, wanted) in table {
            assert_eq!(
                NamespaceLevels::of_labels(&labels, defaults),
                wanted,
                "{labels:?}"
            );
        }
    }

    #[test]
    fn wrong_labels_are_refused_in_kubernetes_words_unless_they_were_there() {
        let namespace = |labels: Value| json!({"metadata": {"name": "n", "labels": labels}});
        let of = |new: &Value, old: Option<&Value>| {
            let mut errors = Vec::new();
            check_labels(new, old, &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let good = namespace(json!({
            "pod-security.kubernetes.io/enforce": "baseline",
            "pod-security.kubernetes.io/enforce-version": "v1.34",
        }));
        let bad = namespace(json!({
            "pod-security.kubernetes.io/enforce": "basline",
            "pod-security.kubernetes.io/warn-version": "1.34",
        }));
        assert!(of(&good, None).is_empty());
        assert!(of(&namespace(Value::Null), None).is_empty());
        let texts = [
            "metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"basline\": must be one of privileged, baseline, restricted",
            "metadata.labels[pod-security.kubernetes.io/warn-version]: Invalid value: \"1.34\": must be \"latest\" or \"v1.x\"",
        ];
        assert_eq!(of(&bad, None), texts);
        assert_eq!(of(&bad, Some(&good)), texts);
        assert!(of(&bad, Some(&bad)).is_empty());
    }
}
