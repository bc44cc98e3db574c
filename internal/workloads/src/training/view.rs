//! What the reconciler reads of a training job, whatever its kind.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use resources::kinds::{
    ElasticPolicy, JAXJob, MPIJob, MPIJobSpec, PaddleJob, PyTorchJob, ReplicaSpec, RunPolicy,
    SuccessPolicy, TFJob, TrainingJobStatus, XGBoostJob,
};
use resources::training::{
    JAX_JOB, MPI_JOB, PADDLE_JOB, PYTORCH_JOB, TF_JOB, TrainingKind, XGBOOST_JOB,
};

/// A training job of any kind.
#[derive(Clone, Copy)]
pub struct TrainingJobView<'a> {
    /// The description of its kind.
    pub kind: &'static TrainingKind,
    /// Its metadata.
    pub metadata: &'a ObjectMeta,
    /// How it runs as a whole.
    pub run_policy: &'a RunPolicy,
    /// Its replicas by type.
    pub replica_specs: &'a BTreeMap<String, ReplicaSpec>,
    /// Its status as last written.
    pub status: Option<&'a TrainingJobStatus>,
    /// The bounds of an elastic job's workers, as written.
    pub elastic: Option<ElasticBounds>,
    /// What only its kind has.
    pub details: Details<'a>,
}

/// The fewest and the most workers of an elastic job, as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElasticBounds {
    /// Fewest workers.
    pub min: Option<i32>,
    /// Most workers.
    pub max: Option<i32>,
}

/// The fields that only one kind has.
#[derive(Clone, Copy)]
pub enum Details<'a> {
    /// PyTorchJob.
    Torch {
        /// torchrun's elastic policy.
        elastic: Option<&'a ElasticPolicy>,
        /// Processes per replica.
        processes: Option<&'a IntOrString>,
    },
    /// TFJob.
    TensorFlow {
        /// Without chief and master, all workers must succeed.
        all_workers: bool,
        /// Workers come and go; a failed one does not fail the job.
        dynamic: bool,
    },
    /// XGBoostJob.
    XGBoost,
    /// PaddleJob.
    Paddle,
    /// JAXJob.
    Jax,
    /// MPIJob, with its whole spec.
    Mpi(&'a MPIJobSpec),
}

/// A typed training job.
pub trait TrainingJob {
    /// The job as the reconciler reads it.
    fn view(&self) -> TrainingJobView<'_>;
}

/// The view of a job whose kind has the shared fields under the usual names.
macro_rules! training_job {
    ($type:ty, $kind:expr, $specs:ident, $elastic:expr, $details:expr) => {
        impl TrainingJob for $type {
            fn view(&self) -> TrainingJobView<'_> {
                let elastic: fn(&$type) -> Option<ElasticBounds> = $elastic;
                let details: fn(&$type) -> Details<'_> = $details;
                TrainingJobView {
                    kind: &$kind,
                    metadata: &self.metadata,
                    run_policy: &self.spec.run_policy,
                    replica_specs: &self.spec.$specs,
                    status: self.status.as_ref(),
                    elastic: elastic(self),
                    details: details(self),
                }
            }
        }
    };
}

training_job!(
    PyTorchJob,
    PYTORCH_JOB,
    pytorch_replica_specs,
    |job| job
        .spec
        .elastic_policy
        .as_ref()
        .map(|policy| ElasticBounds {
            min: policy.min_replicas,
            max: policy.max_replicas,
        }),
    |job| Details::Torch {
        elastic: job.spec.elastic_policy.as_ref(),
        processes: job.spec.nproc_per_node.as_ref(),
    }
);
training_job!(TFJob, TF_JOB, tf_replica_specs, |_| None, |job| {
    Details::TensorFlow {
        all_workers: job.spec.success_policy == Some(SuccessPolicy::AllWorkers),
        dynamic: job.spec.enable_dynamic_worker == Some(true),
    }
});
training_job!(XGBoostJob, XGBOOST_JOB, xgb_replica_specs, |_| None, |_| {
    Details::XGBoost
});
training_job!(
    PaddleJob,
    PADDLE_JOB,
    paddle_replica_specs,
    |job| job
        .spec
        .elastic_policy
        .as_ref()
        .map(|policy| ElasticBounds {
            min: policy.min_replicas,
            max: policy.max_replicas,
        }),
    |_| Details::Paddle
);
training_job!(JAXJob, JAX_JOB, jax_replica_specs, |_| None, |_| {
    Details::Jax
});
training_job!(MPIJob, MPI_JOB, mpi_replica_specs, |_| None, |job| {
    Details::Mpi(&job.spec)
});
