//! Kubeflow Trainer's kinds as their controller and the checks name them. Source: trainer.kubeflow.org/v1alpha1.

/// The API group.
pub const GROUP: &str = "trainer.kubeflow.org";
/// The kind of trainings.
pub const KIND: &str = "TrainJob";
/// The kind of runtimes for all namespaces, which a TrainJob means unless it says otherwise.
pub const CLUSTER_RUNTIME: &str = "ClusterTrainingRuntime";
/// The kind of runtimes for one namespace.
pub const RUNTIME: &str = "TrainingRuntime";
/// The `managedBy` of TrainJobs that Muster runs, as it does those without one.
pub const MANAGER: &str = "trainer.kubeflow.org/trainjob-controller";
/// The `managedBy` of TrainJobs that another cluster runs.
pub const MULTIKUEUE: &str = "kueue.x-k8s.io/multikueue";
/// Label on a job's template in a runtime: the part of the TrainJob's spec that is about it ([`STEPS`]).
pub const ANCESTOR: &str = "trainer.kubeflow.org/trainjob-ancestor-step";
/// Label on a runtime: its framework, by which the SDK finds it.
pub const FRAMEWORK: &str = "trainer.kubeflow.org/framework";
/// The step of the job that trains.
pub const TRAINER_STEP: &str = "trainer";
/// The step of the job that loads the data, and the name of its container.
pub const DATASET_STEP: &str = "dataset-initializer";
/// The step of the job that loads the model, and the name of its container.
pub const MODEL_STEP: &str = "model-initializer";
/// All steps.
pub const STEPS: [&str; 3] = [DATASET_STEP, MODEL_STEP, TRAINER_STEP];
/// The container that trains.
pub const NODE: &str = "node";

/// The runtimes that a new server of the embedded engine has, each with its label [`FRAMEWORK`] and the field of
/// `mlPolicy`. Their container has no image: a TrainJob gives one, or its command runs on the host.
pub const FIRST_RUNTIMES: [(&str, &str); 3] = [
    ("torch-distributed", "torch"),
    ("jax-distributed", "jax"),
    ("xgboost-distributed", "xgboost"),
];

/// The variables that the controller sets in the training container, which a TrainJob may not.
pub const RESERVED_VARIABLES: [&str; 12] = [
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "JAX_COORDINATOR_ADDRESS",
    "DMLC_TRACKER_URI",
    "DMLC_TRACKER_PORT",
    "DMLC_TASK_ID",
    "DMLC_NUM_WORKER",
];
