//! What a pod's labels and annotations say about its place in the gang and the network: sub-group,
//! rank, and its task's topology request. Only reads.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::names::{
    COMPLETION_INDEX, KUEUE_GROUP_NAME, RANK, REPLICA_INDEX, SUB_GROUP, TOPOLOGY,
};

use super::TopologyRequest;

/// The topology hints of one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Hints {
    /// The sub-group that it names.
    pub(crate) sub_group: Option<Arc<str>>,
    /// Its rank among the gang's pods, if it has one.
    pub(crate) rank: Option<u64>,
    /// The topology request of its task.
    pub(crate) request: TopologyRequest,
    /// Tasks with the same group name go into one domain together.
    pub(crate) together: Option<Arc<str>>,
    /// An error in its annotations.
    pub(crate) problem: Option<String>,
}

impl Hints {
    /// True if it has a topology request.
    pub(crate) fn asks(&self) -> bool {
        !self.request.is_free() || self.together.is_some() || self.problem.is_some()
    }

    /// Reads a pod's hints; `None` if it has none.
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
            TopologyRequest::parse(text)
                .map_err(|error| error.at(format!("annotation {TOPOLOGY} of a pod")))
        });
        match own.or_else(|| annotations.and_then(TopologyRequest::of_kueue)) {
            Some(Ok(request)) => hints.request = request,
            Some(Err(problem)) => hints.problem = Some(problem.to_string()),
            None => {}
        }
        (hints != Hints::default()).then(|| Box::new(hints))
    }
}
