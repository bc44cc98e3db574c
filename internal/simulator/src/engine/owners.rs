//! Running Jobs of `batch/v1`: after each pod's end, the Job controller decides the next step.

use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use workloads::{Action, job};

use crate::engine::objects::{Made, Maker, ROUNDS_MAX, annotate, inherit};
use crate::scenario::Seconds;

/// One Job and all the pods it had.
pub(crate) struct JobOwner {
    /// The index of its job in the scenario.
    pub(crate) written: usize,
    job: BatchJob,
    pods: Vec<Pod>,
}

impl JobOwner {
    pub(crate) fn new(maker: &Maker, job: &BatchJob, written: usize, at: Seconds) -> JobOwner {
        let mut job = job.clone();
        maker.complete(&mut job.metadata, at);
        JobOwner {
            written,
            job,
            pods: Vec::new(),
        }
    }

    /// A pod's work is done.
    pub(crate) fn succeeded(&mut self, name: &str) {
        for pod in self
            .pods
            .iter_mut()
            .filter(|pod| pod.metadata.name.as_deref() == Some(name))
        {
            pod.status = Some(PodStatus {
                phase: Some("Succeeded".to_owned()),
                ..PodStatus::default()
            });
        }
    }

    /// The pods that the controller creates now.
    pub(crate) fn reconcile(&mut self, maker: &Maker, at: Seconds) -> Vec<Made> {
        let now = maker.now(at);
        let mut made = Vec::new();
        for _ in 0..ROUNDS_MAX {
            let pods: Vec<&Pod> = self.pods.iter().collect();
            let observed = job::ObservedJob {
                job: &self.job,
                pods: &pods,
                room: workloads::PodRoom::default(),
            };
            let outcome = job::reconcile(&observed, now);
            let annotations = self.job.metadata.annotations.get_or_insert_default();
            annotate(annotations, &outcome.annotations);
            self.job.status = Some(outcome.status);
            let mut more = false;
            for action in outcome.actions {
                let Action::CreatePod(mut pod) = action else {
                    continue;
                };
                maker.complete(&mut pod.metadata, at);
                inherit(&mut pod.metadata, &self.job.metadata);
                self.pods.push((*pod).clone());
                made.push(Made {
                    group: None,
                    pods: vec![*pod],
                });
                more = true;
            }
            if !more {
                break;
            }
        }
        made
    }
}
