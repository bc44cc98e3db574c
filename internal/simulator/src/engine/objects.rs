//! Creates the objects of gangs: from a trace's numbers, and from jobs through their controllers,
//! with the fields that an API server would have set.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use resources::kinds::{PodGroup, PodGroupSpec, PyTorchJob};
use resources::names::{DEFAULT_QUEUE, DURATION, QUEUE_NAME, SCHEDULER, TEAM, USER, WALLTIME};
use workloads::Action;
use workloads::training::{self, Network, ObservedTrainingJob, TrainingJob as _};

use crate::read::duration;
use crate::scenario::{Job, PodShape, Scenario, Seconds};
use crate::shape;

/// How many times a controller is asked again until it has no more actions.
pub(crate) const ROUNDS_MAX: usize = 16;

/// A gang's objects.
pub(crate) struct Made {
    pub(crate) group: Option<Box<PodGroup>>,
    pub(crate) pods: Vec<Pod>,
}

/// Creates objects as of a moment.
pub(crate) struct Maker {
    start: Timestamp,
}

impl Maker {
    pub(crate) fn new(scenario: &Scenario) -> Maker {
        Maker {
            start: scenario.start,
        }
    }

    fn time(&self, second: Seconds) -> Time {
        let span = SignedDuration::from_secs(second);
        Time(self.start.checked_add(span).unwrap_or(Timestamp::MAX))
    }

    /// The objects of a job that is given by numbers.
    pub(crate) fn shaped(&self, job: &Job, shapes: &[(std::sync::Arc<PodShape>, u32)]) -> Made {
        let count: u32 = shapes.iter().map(|(_, count)| *count).sum();
        let name = (count > 1).then_some(job.name.as_str());
        let created = Some(self.time(job.arrival));
        let mut pods = Vec::with_capacity(count as usize);
        for (shape, times) in shapes {
            let template = shape::pod(shape, job, name);
            for _ in 0..*times {
                let mut pod = template.clone();
                pod.metadata.name = Some(match name {
                    Some(name) => format!("{name}-{}", pods.len()),
                    None => job.name.clone(),
                });
                pod.metadata.creation_timestamp.clone_from(&created);
                pods.push(pod);
            }
        }
        let group = name.map(|name| {
            let mut annotations = BTreeMap::new();
            if let Some(walltime) = job.walltime {
                annotations.insert(WALLTIME.to_owned(), walltime.to_string());
            }
            if let Some(user) = &job.user {
                annotations.insert(USER.to_owned(), user.clone());
            }
            Box::new(PodGroup {
                metadata: ObjectMeta {
                    name: Some(name.to_owned()),
                    namespace: Some(job.namespace.clone()),
                    uid: Some(name.to_owned()),
                    creation_timestamp: created.clone(),
                    annotations: Some(annotations),
                    ..ObjectMeta::default()
                },
                spec: PodGroupSpec {
                    min_member: Some(i32::try_from(count).unwrap_or(i32::MAX)),
                    queue: Some(job.queue.clone()),
                    ..PodGroupSpec::default()
                },
                status: None,
            })
        });
        Made { group, pods }
    }

    /// Objects as written in the input, with the fields that an API server would have set.
    pub(crate) fn written(&self, group: Option<&PodGroup>, pods: &[Pod], at: Seconds) -> Made {
        let mut group = group.cloned().map(Box::new);
        if let Some(group) = &mut group {
            self.complete(&mut group.metadata, at);
            group.status = None;
        }
        let pods = pods.iter().map(|pod| {
            let mut pod = pod.clone();
            self.complete(&mut pod.metadata, at);
            pod.status = None;
            pod
        });
        Made {
            pods: pods.collect(),
            group,
        }
    }

    pub(crate) fn complete(&self, meta: &mut ObjectMeta, at: Seconds) {
        meta.namespace.get_or_insert_with(|| "default".to_owned());
        let name = meta.name.clone().unwrap_or_default();
        meta.uid.get_or_insert(name);
        if meta.creation_timestamp.is_none() {
            meta.creation_timestamp = Some(self.time(at));
        }
    }

    pub(crate) fn now(&self, second: Seconds) -> Timestamp {
        self.time(second).0
    }

    /// The objects that the PyTorchJob controller creates for a job.
    pub(crate) fn pytorch(&self, job: &PyTorchJob, at: Seconds) -> Made {
        let mut job = job.clone();
        self.complete(&mut job.metadata, at);
        let now = self.now(at);
        let mut pods: Vec<Pod> = Vec::new();
        let mut services: Vec<Service> = Vec::new();
        let mut group: Option<Box<PodGroup>> = None;
        let taken = BTreeSet::new();
        for _ in 0..ROUNDS_MAX {
            let outcome = training::reconcile(
                &ObservedTrainingJob {
                    job: job.view(),
                    pods: &pods.iter().collect::<Vec<_>>(),
                    pod_group: group.as_deref(),
                    services: &services.iter().collect::<Vec<_>>(),
                    config_maps: &[],
                    taken_ports: &taken,
                    network: &Network::PerPod,
                    scheduler_name: SCHEDULER,
                    room: workloads::PodRoom::default(),
                },
                now,
            );
            let annotations = job.metadata.annotations.get_or_insert_default();
            annotate(annotations, &outcome.annotations);
            job.status = Some(outcome.status);
            let mut more = false;
            for action in outcome.actions {
                match action {
                    Action::CreatePod(mut pod) => {
                        self.complete(&mut pod.metadata, at);
                        inherit(&mut pod.metadata, &job.metadata);
                        pods.push(*pod);
                        more = true;
                    }
                    Action::ApplyPodGroup(mut made) => {
                        self.complete(&mut made.metadata, at);
                        inherit(&mut made.metadata, &job.metadata);
                        made.metadata.resource_version = Some("1".to_owned());
                        more |= group.is_none();
                        group = Some(made);
                    }
                    Action::CreateService(mut service) => {
                        self.complete(&mut service.metadata, at);
                        services.push(*service);
                        more = true;
                    }
                    _ => {}
                }
            }
            if !more {
                break;
            }
        }
        Made { group, pods }
    }
}

/// Sets annotations as a controller requests them.
pub(crate) fn annotate(
    annotations: &mut BTreeMap<String, String>,
    wanted: &BTreeMap<String, Option<String>>,
) {
    for (name, value) in wanted {
        match value {
            Some(value) => annotations.insert(name.clone(), value.clone()),
            None => annotations.remove(name),
        };
    }
}

/// Copies an owner's annotations that apply to all its work to each part of it.
pub(crate) fn inherit(meta: &mut ObjectMeta, owner: &ObjectMeta) {
    for name in [WALLTIME, USER, TEAM] {
        if let Some(value) = owner.annotations.as_ref().and_then(|map| map.get(name)) {
            let annotations = meta.annotations.get_or_insert_default();
            annotations
                .entry(name.to_owned())
                .or_insert_with(|| value.clone());
        }
    }
}

/// The queue that a gang's objects name.
pub(crate) fn queue_of(made: &Made) -> String {
    if let Some(group) = &made.group {
        let queue = group.spec.queue.clone().filter(|queue| !queue.is_empty());
        return queue.unwrap_or_else(|| DEFAULT_QUEUE.to_owned());
    }
    let meta = made.pods.first().map(|pod| &pod.metadata);
    let named = meta.and_then(|meta| {
        let annotation = meta
            .annotations
            .as_ref()
            .and_then(|map| map.get(QUEUE_NAME));
        annotation.or_else(|| meta.labels.as_ref()?.get(QUEUE_NAME))
    });
    named
        .filter(|name| !name.is_empty())
        .cloned()
        .unwrap_or_else(|| DEFAULT_QUEUE.to_owned())
}

/// The duration in the annotations of a gang's own objects, which overrides its job's.
pub(crate) fn own_duration(made: &Made) -> Option<Seconds> {
    let group = made.group.as_ref().map(|group| &group.metadata);
    let metas = group
        .into_iter()
        .chain(made.pods.iter().map(|pod| &pod.metadata));
    metas
        .filter_map(|meta| meta.annotations.as_ref()?.get(DURATION))
        .find_map(|text| duration::seconds(text).ok())
}
