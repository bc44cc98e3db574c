//! On what terms a gang may be evicted, and whether it may evict others: read from annotations,
//! labels and pod specs. Decides nothing.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1 as k8s;
use resources::kinds::PodGroup;
use resources::names::{MIN_RUNTIME, PREEMPTIBLE, VOLCANO_PREEMPTABLE};

/// The `preemptionPolicy` of those who wait rather than evict.
const NEVER: &str = "Never";

/// What a PodGroup, or a pod without one, says of evictions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// May it be evicted so that others start?
    pub(crate) preemptible: bool,
    /// For how long after its start it keeps its minimum, in seconds.
    pub(crate) min_runtime: i64,
    /// Does it wait rather than evict others?
    pub(crate) waits: bool,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            preemptible: true,
            min_runtime: 0,
            waits: false,
        }
    }
}

type Words = Option<BTreeMap<String, String>>;

impl Terms {
    pub(crate) fn of_pod(pod: &k8s::Pod) -> Terms {
        let policy = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.preemption_policy.as_deref());
        Terms {
            waits: policy == Some(NEVER),
            ..Terms::read(&pod.metadata.annotations, &pod.metadata.labels)
        }
    }

    pub(crate) fn of_group(group: &PodGroup) -> Terms {
        Terms::read(&group.metadata.annotations, &group.metadata.labels)
    }

    /// A value that cannot be read is as if it was not there.
    fn read(annotations: &Words, labels: &Words) -> Terms {
        let word = |name: &str| {
            let of = |words: &Words| words.as_ref().and_then(|words| words.get(name).cloned());
            of(annotations).or_else(|| of(labels))
        };
        let preemptible = word(PREEMPTIBLE).or_else(|| word(VOLCANO_PREEMPTABLE));
        Terms {
            preemptible: preemptible.is_none_or(|word| word != "false"),
            min_runtime: word(MIN_RUNTIME)
                .and_then(|word| seconds(&word))
                .unwrap_or(0),
            waits: false,
        }
    }
}

/// A length of time: plain seconds, or with units as in `1h30m`.
fn seconds(text: &str) -> Option<i64> {
    if let Ok(seconds) = text.parse::<i64>() {
        return Some(seconds.max(0));
    }
    let span: SignedDuration = text.parse().ok()?;
    Some(span.as_secs().max(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read_with_and_without_units() {
        let table = [
            ("90", Some(90)),
            ("1h30m", Some(5400)),
            ("45s", Some(45)),
            ("-5", Some(0)),
            ("soon", None),
        ];
        for (text, want) in table {
            assert_eq!(seconds(text), want, "{text}");
        }
    }

    #[test]
    fn a_gang_may_be_evicted_unless_it_says_otherwise() {
        let words = |name: &str, value: &str| Some(BTreeMap::from([(name.into(), value.into())]));
        assert!(Terms::read(&None, &None).preemptible);
        assert!(!Terms::read(&words(PREEMPTIBLE, "false"), &None).preemptible);
        assert!(!Terms::read(&None, &words(VOLCANO_PREEMPTABLE, "false")).preemptible);
        let both = words(VOLCANO_PREEMPTABLE, "false");
        assert!(Terms::read(&words(PREEMPTIBLE, "true"), &both).preemptible);
    }
}
