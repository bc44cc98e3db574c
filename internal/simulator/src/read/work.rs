//! Assembles the scenario's work from objects: groups pods with their gangs and jobs, drops ended
//! ones, keeps running ones where they are, and sets arrivals relative to second 0.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::kinds::{PodGroup, PodGroupSpec};
use resources::names::{ARRIVAL, DURATION, GROUP_NAME, USER, WALLTIME};

use super::duration::{self, TraceMoment};
use super::objects::{ManifestKey, ManifestObjects, key};
use super::trace;
use crate::error::{InputLocation, SimulatorError};
use crate::scenario::{Job, JobWork, Scenario, Seconds};

/// A gang's pods, when they come and go, and the job that owns them.
type GangMembers = (Vec<Pod>, AnnotationTimes, Option<(String, ManifestKey)>);

/// The times in an object's annotations.
#[derive(Clone, Copy, Default)]
struct AnnotationTimes {
    arrival: Option<TraceMoment>,
    duration: Option<Seconds>,
    walltime: Option<Seconds>,
}

pub(super) fn annotation<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a String> {
    meta.annotations.as_ref().and_then(|map| map.get(name))
}

impl AnnotationTimes {
    fn read(meta: &ObjectMeta, place: &InputLocation) -> Result<AnnotationTimes, SimulatorError> {
        let wrong = |name: &str, valid: &str| {
            let whose = meta.name.as_deref().unwrap_or_default();
            let field = format!("metadata.annotations[{name}] of {whose}");
            let value = annotation(meta, name).cloned().unwrap_or_default();
            SimulatorError::value(place.clone(), field, value, valid)
        };
        let span = |name: &str| {
            let text = annotation(meta, name);
            text.map(|text| duration::seconds(text).map_err(|()| wrong(name, duration::SPAN)))
                .transpose()
        };
        let arrival = annotation(meta, ARRIVAL)
            .map(|text| trace::arrival(text).map_err(|()| wrong(ARRIVAL, duration::MOMENT)))
            .transpose()?;
        Ok(AnnotationTimes {
            arrival,
            duration: span(DURATION)?,
            walltime: span(WALLTIME)?,
        })
    }

    fn or(self, other: AnnotationTimes) -> AnnotationTimes {
        AnnotationTimes {
            arrival: self.arrival.or(other.arrival),
            duration: self.duration.or(other.duration),
            walltime: self.walltime.or(other.walltime),
        }
    }
}

fn user(meta: &ObjectMeta) -> Option<String> {
    annotation(meta, USER)
        .or_else(|| meta.labels.as_ref()?.get(USER))
        .cloned()
}

/// The job in the input that created this object, so that it is not created a second time.
fn owner(meta: &ObjectMeta) -> Option<(String, ManifestKey)> {
    let owners = meta.owner_references.iter().flatten();
    let owner = owners
        .into_iter()
        .find(|owner| matches!(owner.kind.as_str(), "Job" | "PyTorchJob"))?;
    Some((owner.kind.clone(), (key(meta).0, owner.name.clone())))
}

fn ended(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// A job whose times are not yet relative to second 0.
struct JobDraft {
    job: Job,
    arrival: Option<TraceMoment>,
    /// When it began to run.
    since: Option<Timestamp>,
}

/// Assembles the objects to work. Returns second 0, if the objects define it.
pub(super) fn assemble(
    found: ManifestObjects,
    start: Option<Timestamp>,
    scenario: &mut Scenario,
) -> Result<Option<Timestamp>, SimulatorError> {
    let mut owners: BTreeMap<(String, ManifestKey), AnnotationTimes> = BTreeMap::new();
    for (job, place) in &found.training {
        owners.insert(
            ("PyTorchJob".to_owned(), key(&job.metadata)),
            AnnotationTimes::read(&job.metadata, place)?,
        );
    }
    for (job, place) in &found.batch {
        owners.insert(
            ("Job".to_owned(), key(&job.metadata)),
            AnnotationTimes::read(&job.metadata, place)?,
        );
    }
    let mut latest: Option<Timestamp> = None;
    let mut made: BTreeSet<(String, ManifestKey)> = BTreeSet::new();
    let mut gangs: BTreeMap<ManifestKey, GangMembers> = BTreeMap::new();
    let mut drafts: Vec<JobDraft> = Vec::new();
    let (mut over, mut deleted) = (0, 0);
    for (pod, place) in found.pods {
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let since = pod
            .status
            .as_ref()
            .and_then(|status| status.start_time.as_ref())
            .map(|time| time.0);
        latest = latest.max(created).max(since);
        let owned = owner(&pod.metadata);
        made.extend(owned.clone());
        if ended(&pod) {
            over += 1;
            continue;
        }
        let placed = pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_some());
        if pod.metadata.deletion_timestamp.is_some() && !placed {
            deleted += 1;
            continue;
        }
        let times = AnnotationTimes::read(&pod.metadata, &place)?;
        if let Some(group) = annotation(&pod.metadata, GROUP_NAME).filter(|group| !group.is_empty())
        {
            let key = (key(&pod.metadata).0, group.clone());
            let gang = gangs.entry(key).or_default();
            gang.1 = gang.1.or(times);
            gang.2 = gang.2.take().or(owned);
            gang.0.push(pod);
            continue;
        }
        let times = times.or(owned
            .and_then(|owner| owners.get(&owner))
            .copied()
            .unwrap_or_default());
        drafts.push(draft(None, vec![pod], times));
    }
    let mut groups = found.groups;
    for (key, (pods, times, owned)) in gangs {
        let from_owner = |owned: Option<(String, ManifestKey)>| {
            owned
                .and_then(|owner| owners.get(&owner))
                .copied()
                .unwrap_or_default()
        };
        match groups.remove(&key) {
            Some((group, place)) => {
                let own = AnnotationTimes::read(&group.metadata, &place)?;
                let owned = owned.or_else(|| owner(&group.metadata));
                drafts.push(draft(
                    Some(group),
                    pods,
                    own.or(times).or(from_owner(owned)),
                ));
            }
            None => {
                scenario.notes.push(format!(
                    "PodGroup {}/{} is not in the input; its {} pods form a gang of all of them",
                    key.0,
                    key.1,
                    pods.len()
                ));
                let mut group = PodGroup::new(
                    &key.1,
                    PodGroupSpec {
                        min_member: Some(i32::try_from(pods.len()).unwrap_or(i32::MAX)),
                        ..PodGroupSpec::default()
                    },
                );
                group.metadata.namespace = Some(key.0);
                drafts.push(draft(Some(group), pods, times.or(from_owner(owned))));
            }
        }
    }
    let jobs_named: BTreeSet<ManifestKey> = found
        .training
        .iter()
        .map(|(job, _)| key(&job.metadata))
        .collect();
    for (name, (group, place)) in groups {
        // A group that a job of the input will create itself, or that has ended, does not wait.
        let done = group.status.as_ref().and_then(|status| status.phase)
            == Some(resources::kinds::PodGroupPhase::Completed);
        if !done && !jobs_named.contains(&name) && owner(&group.metadata).is_none() {
            let times = AnnotationTimes::read(&group.metadata, &place)?;
            drafts.push(draft(Some(group), Vec::new(), times));
        }
    }
    for (job, place) in found.training {
        let id = ("PyTorchJob".to_owned(), key(&job.metadata));
        if !made.contains(&id) && !workloads::training::is_finished(&job) {
            let mut times = AnnotationTimes::read(&job.metadata, &place)?;
            times.walltime = times
                .walltime
                .or(job.spec.run_policy.active_deadline_seconds);
            let meta = job.metadata.clone();
            drafts.push(of_job(&meta, times, JobWork::PyTorch(Box::new(job))));
        }
    }
    for (job, place) in found.batch {
        let id = ("Job".to_owned(), key(&job.metadata));
        let finished = job
            .status
            .as_ref()
            .is_some_and(|status| status.completion_time.is_some());
        if !made.contains(&id) && !finished {
            let mut times = AnnotationTimes::read(&job.metadata, &place)?;
            let spec = job.spec.as_ref();
            if let Some(template) = spec.and_then(|spec| spec.template.metadata.as_ref()) {
                times = times.or(AnnotationTimes {
                    arrival: None,
                    ..AnnotationTimes::read(template, &place)?
                });
            }
            times.walltime = times
                .walltime
                .or(spec.and_then(|spec| spec.active_deadline_seconds));
            let meta = job.metadata.clone();
            drafts.push(of_job(&meta, times, JobWork::Batch(Box::new(job))));
        }
    }
    if over > 0 {
        scenario
            .notes
            .push(format!("{over} pods have ended and are left out"));
    }
    if deleted > 0 {
        scenario.notes.push(format!(
            "{deleted} pods that never started are being deleted and are left out"
        ));
    }
    Ok(settle(drafts, start, latest, scenario))
}

fn draft(group: Option<PodGroup>, pods: Vec<Pod>, times: AnnotationTimes) -> JobDraft {
    let meta = group
        .as_ref()
        .map(|group| &group.metadata)
        .or(pods.first().map(|pod| &pod.metadata));
    let meta = meta.cloned().unwrap_or_default();
    let users = group
        .iter()
        .map(|group| &group.metadata)
        .chain(pods.iter().map(|pod| &pod.metadata));
    let user = users.into_iter().find_map(user);
    let since = pods
        .iter()
        .filter_map(|pod| pod.status.as_ref()?.start_time.as_ref())
        .map(|time| time.0)
        .max();
    let work = JobWork::Pods(group.map(Box::new), pods);
    JobDraft {
        job: Job {
            user,
            ..of_job(&meta, times, work).job
        },
        arrival: times.arrival,
        since,
    }
}

fn of_job(meta: &ObjectMeta, times: AnnotationTimes, work: JobWork) -> JobDraft {
    let (namespace, name) = key(meta);
    let job = Job {
        namespace,
        name,
        user: user(meta),
        duration: times.duration,
        walltime: times.walltime,
        work,
        ..Job::default()
    };
    JobDraft {
        job,
        arrival: times.arrival,
        since: None,
    }
}

/// Sets arrivals relative to second 0: the first arrival that is a time, else the last event in the
/// objects' cluster.
fn settle(
    drafts: Vec<JobDraft>,
    start: Option<Timestamp>,
    latest: Option<Timestamp>,
    scenario: &mut Scenario,
) -> Option<Timestamp> {
    let times = drafts.iter().filter_map(|draft| match draft.arrival {
        Some(TraceMoment::Time(time)) => Some(time),
        _ => None,
    });
    let begin = start.or_else(|| times.min()).or(latest);
    let zero = begin.unwrap_or_else(super::default_start);
    for draft in drafts {
        let mut job = draft.job;
        job.arrival = match draft.arrival {
            Some(TraceMoment::Time(time)) => (time.as_second() - zero.as_second()).max(0),
            Some(TraceMoment::Second(second)) => second.max(0),
            None => 0,
        };
        job.elapsed = draft
            .since
            .map_or(0, |since| (zero.as_second() - since.as_second()).max(0));
        scenario.jobs.push(job);
    }
    begin
}
