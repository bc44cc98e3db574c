//! What a job's own annotations, or labels, say to the scheduler, for what is made of the job: its
//! gang, or its pods where these stand alone. Copies; the scheduler reads.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::names;

/// What holds for each part of a job.
const OF_EACH: [&str; 8] = [
    names::WALLTIME,
    names::MIN_RUNTIME,
    names::PREEMPTIBLE,
    names::VOLCANO_PREEMPTABLE,
    names::MOVABLE,
    names::CHECKPOINT,
    names::USER,
    names::TEAM,
];
/// What holds for its gang as a whole.
const OF_GANG: [&str; 2] = [names::TOPOLOGY, names::SUB_GROUPS];

/// What each pod of the job says.
pub(crate) fn of_each(job: &ObjectMeta) -> BTreeMap<String, String> {
    said(job, OF_EACH.iter())
}

/// What the job's gang says.
pub(crate) fn of_gang(job: &ObjectMeta) -> BTreeMap<String, String> {
    said(job, OF_EACH.iter().chain(&OF_GANG))
}

fn said<'a>(
    job: &ObjectMeta,
    names: impl Iterator<Item = &'a &'static str>,
) -> BTreeMap<String, String> {
    let maps = [&job.annotations, &job.labels];
    let value = |name: &str| maps.into_iter().flatten().find_map(|map| map.get(name));
    let pairs = names.filter_map(|name| Some((*name, value(name)?)));
    pairs
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .collect()
}
