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

/// Has a pod run for whom its job runs. What its template says of it is dropped: nobody checked
/// that, and a node runs the pod under the Unix account of whoever is named here.
pub(crate) fn run_for(
    job: &ObjectMeta,
    labels: &mut BTreeMap<String, String>,
    annotations: &mut BTreeMap<String, String>,
) {
    labels.remove(names::USER);
    annotations.remove(names::USER);
    annotations.extend(said(job, [names::USER].iter()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_runs_for_whom_its_job_runs_whatever_its_template_says() {
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
