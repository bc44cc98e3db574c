//! What a pod says of its own place in the gang and on the network: its sub-group, its rank, what
//! its task asks for. Read from labels and annotations, decides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::names::{
    COMPLETION_INDEX, KUEUE_GROUP_NAME, RANK, REPLICA_INDEX, SUB_GROUP, TOPOLOGY,
};

use super::Request;

/// What one pod says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Hints {
    /// The sub-group it names.
    pub(crate) sub_group: Option<Arc<str>>,
    /// Its place among the gang's pods, where it says so.
    pub(crate) rank: Option<u64>,
    /// What its task asks of the network.
    pub(crate) request: Request,
    /// Tasks of the same word go into one domain together.
    pub(crate) together: Option<Arc<str>>,
    /// What is wrong with its annotations.
    pub(crate) problem: Option<String>,
}

impl Hints {
    /// Does it ask something of the network?
    pub(crate) fn asks(&self) -> bool {
        !self.request.is_free() || self.together.is_some() || self.problem.is_some()
    }

    /// Reads them; none for a pod that says nothing.
    pub(crate) fn read(meta: &ObjectMeta) -> Option<Box<Hints>> {
        let (labels, annotations) = (meta.labels.as_ref(), meta.annotations.as_ref());
        if labels.is_none_or(BTreeMap::is_empty) && annotations.is_none_or(BTreeMap::is_empty) {
            return None;
        }
        let in_annotations = |name: &str| annotations.and_then(|map| map.get(name));
        let in_labels = |name: &str| labels.and_then(|map| map.get(name));
        let either = |name: &str| in_annotations(name).or_else(|| in_labels(name));
        let word = |name: &str| {
            either(name)
                .filter(|value| !value.is_empty())
                .map(|value| Arc::from(value.as_str()))
        };
        let number = |name: &str| either(name).and_then(|value| value.parse().ok());
        let mut hints = Hints {
            sub_group: word(SUB_GROUP),
            rank: number(RANK)
                .or_else(|| number(COMPLETION_INDEX))
                .or_else(|| number(REPLICA_INDEX)),
            together: word(KUEUE_GROUP_NAME),
            ..Hints::default()
        };
        let own = in_annotations(TOPOLOGY).map(|text| {
            Request::parse(text).map_err(|error| format!("annotation {TOPOLOGY} of a pod: {error}"))
        });
        match own.or_else(|| annotations.and_then(Request::of_kueue)) {
            Some(Ok(request)) => hints.request = request,
            Some(Err(problem)) => hints.problem = Some(problem),
            None => {}
        }
        (hints != Hints::default()).then(|| Box::new(hints))
    }
}
