//! The scheduler's annotations and labels on a job, and their copies on its dependents: its
//! PodGroup, or its pods if it has no PodGroup. This module copies them; the scheduler reads them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::names;

/// The annotations that apply to each part of a job.
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
/// The annotations that apply to its gang as a whole.
const OF_GANG: [&str; 2] = [names::TOPOLOGY, names::SUB_GROUPS];

/// The annotations of each pod of the job.
pub(crate) fn of_each(job: &ObjectMeta) -> BTreeMap<String, String> {
    values_of(job, OF_EACH.iter())
}

/// The annotations of the job's gang.
pub(crate) fn of_gang(job: &ObjectMeta) -> BTreeMap<String, String> {
    values_of(job, OF_EACH.iter().chain(&OF_GANG))
}

/// Sets the job's user on a pod. A user in the pod's template is dropped, because admission did not
/// check it, and a node runs the pod under the Unix account of the user named here.
pub(crate) fn run_for(
    job: &ObjectMeta,
    labels: &mut BTreeMap<String, String>,
    annotations: &mut BTreeMap<String, String>,
) {
    labels.remove(names::USER);
    annotations.remove(names::USER);
    annotations.extend(values_of(job, [names::USER].iter()));
}

/// The queue that an owner's label, or else its annotation, names.
pub(crate) fn queue(owner: &ObjectMeta) -> Option<String> {
    let maps = [&owner.labels, &owner.annotations];
    let named = |map: &BTreeMap<String, String>| map.get(names::QUEUE_NAME).cloned();
    let mut queues = maps.into_iter().flatten().filter_map(named);
    queues.find(|queue| !queue.is_empty())
}

/// Copies an owner's terms to what it creates from a template: its user, its queue, and the annotations that apply to
/// each part. What the template says of a queue and of these annotations stands.
pub(crate) fn inherit(
    owner: &ObjectMeta,
    labels: &mut BTreeMap<String, String>,
    annotations: &mut BTreeMap<String, String>,
) {
    for (name, value) in of_each(owner) {
        annotations.entry(name).or_insert(value);
    }
    run_for(owner, labels, annotations);
    if !labels.contains_key(names::QUEUE_NAME)
        && let Some(queue) = queue(owner)
    {
        annotations
            .entry(names::QUEUE_NAME.to_owned())
            .or_insert(queue);
    }
}

fn values_of<'a>(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_runs_as_its_jobs_user_regardless_of_its_template() {
        let one = |value: &str| BTreeMap::from([(names::USER.to_owned(), value.to_owned())]);
        let job = |user: Option<&str>| ObjectMeta {
            annotations: user.map(one),
            ..ObjectMeta::default()
        };
        for (user, expected) in [(Some("ann"), one("ann")), (None, BTreeMap::new())] {
            let (mut labels, mut annotations) = (one("root"), one("bob"));
            run_for(&job(user), &mut labels, &mut annotations);
            assert_eq!((labels, annotations), (BTreeMap::new(), expected));
        }
    }
}
