//! The JobSet of a TrainJob: the runtime's, with the TrainJob's patches, its initializers and its trainer.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::JobSpec;
use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVar, ResourceRequirements, SecretEnvSource,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use resources::kinds::{
    InitializerSource, JobSet, JobSetSpec, MlPolicy, ReplicatedJob, TrainJob, Trainer,
    TrainingRuntimeSpec,
};
use resources::names;
use resources::trainer::{ANCESTOR, DATASET_STEP, MODEL_STEP, NODE, TRAINER_STEP};
use serde_json::Value;
use sha1::{Digest as _, Sha1};

use super::merge::{Misfit, merge};
use super::policy::{Framework, Training, inject, upsert, variables};
use super::progress::allow_reports;
use super::{API_VERSION, Rendezvous};
use crate::ownership::controller_reference;
use crate::terms;

/// The variable of an initializer with the address of what it loads.
const STORAGE_URI: &str = "STORAGE_URI";

/// Labels and annotations that a template may not set on the JobSet.
const NOT_IN_TEMPLATES: [&str; 4] = [names::QUEUE_NAME, names::USER, names::TEAM, names::FAILURE];

/// Why a TrainJob does not fit its runtime, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unbuildable {
    /// A framework that Muster does not run.
    #[error(
        "the runtime's mlPolicy is for MPI or Flux, which Muster does not run by TrainJobs; use another runtime, or an MPIJob"
    )]
    Framework,
    /// No job of the runtime trains.
    #[error(
        "no job of the runtime has the label {ANCESTOR}: {TRAINER_STEP}, so that nothing would train; label it in the runtime"
    )]
    NoTrainer,
    /// No job of the runtime loads what the TrainJob's initializer names.
    #[error(
        "spec.initializer.{field}: no job of the runtime has the label {ANCESTOR}: {step} and a container of this name; leave the field out, or use another runtime"
    )]
    NoInitializer {
        /// The field of the TrainJob.
        field: &'static str,
        /// The step.
        step: &'static str,
    },
    /// A patch changes what the runtime lacks.
    #[error("spec.runtimePatches of {manager:?}: the runtime's {misfit}; name one that it has")]
    Patch {
        /// The patch's manager.
        manager: String,
        /// What it lacks.
        misfit: Misfit,
    },
    /// A patch makes no JobSet of the runtime.
    #[error("spec.runtimePatches: the patched template is no JobSet: {0}; correct the patches")]
    Template(String),
}

/// A JobSet in the making.
pub(crate) struct Builder<'a> {
    job: &'a TrainJob,
    runtime: &'a TrainingRuntimeSpec,
    framework: Framework,
    spec: JobSetSpec,
}

impl<'a> Builder<'a> {
    /// Patches the runtime's template.
    ///
    /// # Errors
    /// When the TrainJob does not fit its runtime.
    pub(crate) fn new(
        job: &'a TrainJob,
        runtime: &'a TrainingRuntimeSpec,
    ) -> Result<Builder<'a>, Unbuildable> {
        let framework = Framework::of(runtime.ml_policy.as_ref()).ok_or(Unbuildable::Framework)?;
        let mut spec = serde_json::to_value(&runtime.template.spec).unwrap_or_default();
        for patch in job.spec.runtime_patches.iter().flatten() {
            let changes = patch.training_runtime_spec.as_ref();
            let changes = changes.map_or(&Value::Null, |changes| &changes["template"]["spec"]);
            if changes.is_object() {
                merge(&mut spec, changes).map_err(|misfit| Unbuildable::Patch {
                    manager: patch.manager.clone(),
                    misfit,
                })?;
            }
        }
        let spec = serde_json::from_value(spec);
        let spec: JobSetSpec = spec.map_err(|error| Unbuildable::Template(error.to_string()))?;
        let builder = Builder {
            job,
            runtime,
            framework,
            spec,
        };
        builder.check()?;
        Ok(builder)
    }

    fn check(&self) -> Result<(), Unbuildable> {
        let has = |step: &str| {
            self.spec
                .replicated_jobs
                .iter()
                .any(|job| step_of(job) == Some(step))
        };
        if !has(TRAINER_STEP) {
            return Err(Unbuildable::NoTrainer);
        }
        for (field, step, source) in self.initializers() {
            let mut jobs = self.spec.replicated_jobs.iter();
            let loads = |job: &ReplicatedJob| {
                let containers = job
                    .template
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.template.spec.as_ref());
                let mut containers = containers.into_iter().flat_map(|spec| &spec.containers);
                step_of(job) == Some(step) && containers.any(|container| container.name == step)
            };
            if source.is_some() && !jobs.any(loads) {
                return Err(Unbuildable::NoInitializer { field, step });
            }
        }
        Ok(())
    }

    fn initializers(&self) -> [(&'static str, &'static str, Option<&'a InitializerSource>); 2] {
        let given = self.job.spec.initializer.as_ref();
        [
            (
                "dataset",
                DATASET_STEP,
                given.and_then(|given| given.dataset.as_ref()),
            ),
            (
                "model",
                MODEL_STEP,
                given.and_then(|given| given.model.as_ref()),
            ),
        ]
    }

    /// Whether a process of the training listens on a port.
    pub(crate) fn listens(&self) -> bool {
        self.framework.listens()
    }

    fn policy(&self) -> Option<&'a MlPolicy> {
        self.runtime.ml_policy.as_ref()
    }

    fn trainer(&self) -> Option<&'a Trainer> {
        self.job.spec.trainer.as_ref()
    }

    /// The host and port at which the processes of the training meet.
    fn rendezvous(&self, port: u16) -> Rendezvous {
        let name = self.job.metadata.name.as_deref().unwrap_or_default();
        let mut jobs = self.spec.replicated_jobs.iter();
        let trainer = jobs.find(|job| step_of(job) == Some(TRAINER_STEP));
        let trainer = trainer.map_or(NODE, |job| job.name.as_str());
        let network = self.spec.network.as_ref();
        let subdomain = network.and_then(|network| network.subdomain.as_deref());
        let subdomain = subdomain.filter(|name| !name.is_empty()).unwrap_or(name);
        Rendezvous {
            host: format!("{name}-{trainer}-0-0.{subdomain}"),
            port,
        }
    }

    /// The JobSet whose processes meet on this port.
    pub(crate) fn build(mut self, port: u16) -> JobSet {
        let rendezvous = self.rendezvous(port);
        let mut jobs = std::mem::take(&mut self.spec.replicated_jobs);
        let shared = self.shared_variables(&jobs, &rendezvous);
        for job in &mut jobs {
            match step_of(job).map(str::to_owned).as_deref() {
                Some(TRAINER_STEP) => self.complete_trainer(job, &shared),
                Some(step) => self.complete_initializer(job, step),
                None => {}
            }
            let name = job.name.clone();
            if let Some(spec) = pod_spec(job) {
                inject(self.runtime.ml_policy.as_ref(), &name, spec, &shared);
            }
        }
        self.spec.replicated_jobs = jobs;
        self.spec.managed_by = None;
        let hash = serde_json::to_string(&self.spec).unwrap_or_default();
        self.spec.suspend = Some(self.job.spec.suspend == Some(true));
        let (labels, mut annotations) = self.metadata();
        annotations.insert(names::TEMPLATE_HASH.to_owned(), sha1_hex(&hash));
        let meta = &self.job.metadata;
        JobSet {
            metadata: ObjectMeta {
                name: meta.name.clone(),
                namespace: meta.namespace.clone(),
                labels: Some(labels),
                annotations: Some(annotations),
                owner_references: Some(vec![controller_reference(
                    API_VERSION,
                    resources::trainer::KIND,
                    meta,
                )]),
                ..ObjectMeta::default()
            },
            spec: self.spec,
            status: None,
        }
    }

    /// The JobSet's labels and annotations: the runtime's, the patches', and the TrainJob's terms.
    fn metadata(&self) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        let given = self.runtime.template.metadata.clone().unwrap_or_default();
        let mut labels = given.labels.unwrap_or_default();
        let mut annotations = given.annotations.unwrap_or_default();
        for patch in self.job.spec.runtime_patches.iter().flatten() {
            let changes = patch.training_runtime_spec.as_ref();
            let meta = changes.map_or(&Value::Null, |changes| &changes["template"]["metadata"]);
            let texts = |map: &str| {
                let members = meta[map].as_object().into_iter().flatten();
                let text = |(name, value): (&String, &Value)| {
                    Some((name.clone(), value.as_str()?.to_owned()))
                };
                members.filter_map(text).collect::<Vec<_>>()
            };
            labels.extend(texts("labels"));
            annotations.extend(texts("annotations"));
        }
        // Admission checked the TrainJob's own queue, user and team, and none in a template.
        for name in NOT_IN_TEMPLATES {
            labels.remove(name);
            annotations.remove(name);
        }
        let own = &self.job.metadata;
        annotations.extend(terms::of_gang(own));
        terms::run_for(own, &mut labels, &mut annotations);
        let queue = terms::queue(own);
        annotations.extend(queue.map(|queue| (names::QUEUE_NAME.to_owned(), queue)));
        (labels, annotations)
    }

    /// The number of the training's pods.
    fn nodes(&self, job: &ReplicatedJob) -> i32 {
        let own = self.trainer().and_then(|trainer| trainer.num_nodes);
        let parallelism = job.template.spec.as_ref().and_then(|spec| spec.parallelism);
        let of_policy = || match self.policy() {
            Some(policy) => policy.num_nodes.unwrap_or(1),
            None => parallelism.unwrap_or(1),
        };
        own.unwrap_or_else(of_policy)
    }

    /// The variables of the training container.
    fn shared_variables(&self, jobs: &[ReplicatedJob], rendezvous: &Rendezvous) -> Vec<EnvVar> {
        let Some(job) = jobs.iter().find(|job| step_of(job) == Some(TRAINER_STEP)) else {
            return Vec::new();
        };
        let pod = job
            .template
            .spec
            .as_ref()
            .and_then(|spec| spec.template.spec.as_ref());
        let container = pod.and_then(|pod| {
            pod.containers
                .iter()
                .find(|one| one.name == NODE)
                .or(pod.containers.first())
        });
        let of_runtime = container.and_then(|container| container.resources.as_ref());
        let own = self
            .trainer()
            .and_then(|trainer| trainer.resources_per_node.as_ref());
        let of_policy = self.policy().and_then(|policy| policy.torch.as_ref());
        let of_policy = of_policy.and_then(|torch| {
            serde_json::from_value::<IntOrString>(torch["numProcPerNode"].clone()).ok()
        });
        let processes = self
            .trainer()
            .and_then(|trainer| trainer.num_proc_per_node.as_ref());
        let training = Training {
            nodes: u32::try_from(self.nodes(job)).unwrap_or_default(),
            processes: processes.or(of_policy.as_ref()),
            resources: own.or(of_runtime),
            rendezvous,
        };
        variables(self.framework, &training)
    }

    fn complete_trainer(&self, job: &mut ReplicatedJob, shared: &[EnvVar]) {
        let nodes = self.nodes(job);
        job.replicas = Some(1);
        let spec = job.template.spec.get_or_insert_default();
        set_nodes(spec, nodes);
        let pod = spec.template.spec.get_or_insert_default();
        let at = pod
            .containers
            .iter()
            .position(|container| container.name == NODE);
        let Some(container) = pod.containers.get_mut(at.unwrap_or(0)) else {
            return;
        };
        if let Some(trainer) = self.trainer() {
            override_container(container, trainer);
        }
        upsert(&mut container.env, shared);
        let meta = &self.job.metadata;
        let text = |field: &'a Option<String>| field.as_deref().unwrap_or_default();
        allow_reports(pod, text(&meta.namespace), text(&meta.name));
    }

    fn complete_initializer(&self, job: &mut ReplicatedJob, step: &str) {
        job.replicas = Some(1);
        let found = self
            .initializers()
            .into_iter()
            .find(|(_, known, _)| *known == step);
        let Some((_, _, Some(source))) = found else {
            return;
        };
        let Some(pod) = pod_spec(job) else { return };
        for container in pod
            .containers
            .iter_mut()
            .filter(|container| container.name == step)
        {
            if let Some(uri) = &source.storage_uri {
                let variable = EnvVar {
                    name: STORAGE_URI.to_owned(),
                    value: Some(uri.clone()),
                    value_from: None,
                };
                upsert(&mut container.env, &[variable]);
            }
            upsert(
                &mut container.env,
                source.env.as_deref().unwrap_or_default(),
            );
            if let Some(secret) = &source.secret_ref {
                container
                    .env_from
                    .get_or_insert_default()
                    .push(EnvFromSource {
                        secret_ref: Some(SecretEnvSource {
                            name: secret.name.clone(),
                            optional: None,
                        }),
                        ..EnvFromSource::default()
                    });
            }
        }
    }
}

fn set_nodes(spec: &mut JobSpec, nodes: i32) {
    spec.parallelism = Some(nodes);
    spec.completions = Some(nodes);
    spec.completion_mode = Some("Indexed".to_owned());
}

fn override_container(container: &mut Container, trainer: &Trainer) {
    if trainer.image.is_some() {
        container.image.clone_from(&trainer.image);
    }
    if trainer.command.is_some() {
        container.command.clone_from(&trainer.command);
    }
    if trainer.args.is_some() {
        container.args.clone_from(&trainer.args);
    }
    upsert(
        &mut container.env,
        trainer.env.as_deref().unwrap_or_default(),
    );
    if let Some(wanted) = &trainer.resources_per_node {
        let own = container.resources.get_or_insert_default();
        replace_amounts(own, wanted);
    }
}

/// Sets the amounts that are given; others of the runtime stay.
fn replace_amounts(own: &mut ResourceRequirements, wanted: &ResourceRequirements) {
    let requests = wanted.requests.iter().flatten();
    let requests: Vec<_> = requests
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect();
    if !requests.is_empty() {
        own.requests.get_or_insert_default().extend(requests);
    }
    let limits = wanted.limits.iter().flatten();
    let limits: Vec<_> = limits
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect();
    if !limits.is_empty() {
        own.limits.get_or_insert_default().extend(limits);
    }
    if wanted.claims.is_some() {
        own.claims.clone_from(&wanted.claims);
    }
}

fn pod_spec(job: &mut ReplicatedJob) -> Option<&mut k8s_openapi::api::core::v1::PodSpec> {
    job.template.spec.as_mut()?.template.spec.as_mut()
}

/// The part of a TrainJob's spec that a job is about.
fn step_of(job: &ReplicatedJob) -> Option<&str> {
    let labels = job.template.metadata.as_ref()?.labels.as_ref()?;
    labels.get(ANCESTOR).map(String::as_str)
}

fn sha1_hex(text: &str) -> String {
    let digest = Sha1::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
