//! The variables by which the processes of a training find each other, in Kubeflow Trainer's terms: torchrun's `PET_*`,
//! JAX's `JAX_*`, and XGBoost's `DMLC_*`.

use k8s_openapi::api::core::v1::{
    EnvVar, EnvVarSource, ObjectFieldSelector, PodSpec, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as K8sQuantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use resources::kinds::MlPolicy;
use resources::names::COMPLETION_INDEX;
use resources::quantity::Quantity;
use serde_json::Value;

use super::Rendezvous;

/// The frameworks that Muster runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framework {
    /// No variables.
    Plain,
    Torch,
    Jax,
    XgBoost,
}

impl Framework {
    /// The policy's framework; none if Muster does not run it.
    pub(crate) fn of(policy: Option<&MlPolicy>) -> Option<Framework> {
        let Some(policy) = policy else {
            return Some(Framework::Plain);
        };
        if policy.mpi.is_some() || policy.flux.is_some() {
            return None;
        }
        Some(if policy.torch.is_some() {
            Framework::Torch
        } else if policy.jax.is_some() {
            Framework::Jax
        } else if policy.xgboost.is_some() {
            Framework::XgBoost
        } else {
            Framework::Plain
        })
    }

    /// Whether its first process listens on a port.
    pub(crate) fn listens(self) -> bool {
        self != Framework::Plain
    }
}

/// What the variables depend on.
pub(crate) struct Training<'a> {
    pub(crate) nodes: u32,
    pub(crate) processes: Option<&'a IntOrString>,
    pub(crate) resources: Option<&'a ResourceRequirements>,
    pub(crate) rendezvous: &'a Rendezvous,
}

fn variable(name: &str, value: impl ToString) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(value.to_string()),
        value_from: None,
    }
}

/// A variable with the pod's index in its Job.
fn index(name: &str) -> EnvVar {
    let field = ObjectFieldSelector {
        api_version: None,
        field_path: format!("metadata.annotations['{COMPLETION_INDEX}']"),
    };
    EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(field),
            ..EnvVarSource::default()
        }),
    }
}

/// The variables of the training container.
pub(crate) fn variables(framework: Framework, training: &Training<'_>) -> Vec<EnvVar> {
    let Rendezvous { host, port } = training.rendezvous;
    match framework {
        Framework::Plain => Vec::new(),
        Framework::Torch => vec![
            variable("PET_NNODES", training.nodes),
            variable("PET_NPROC_PER_NODE", processes(training)),
            index("PET_NODE_RANK"),
            variable("PET_MASTER_ADDR", host),
            variable("PET_MASTER_PORT", port),
        ],
        Framework::Jax => vec![
            variable("JAX_NUM_PROCESSES", training.nodes),
            index("JAX_PROCESS_ID"),
            variable("JAX_COORDINATOR_ADDRESS", format!("{host}:{port}")),
        ],
        Framework::XgBoost => {
            let workers = gpus(training.resources).max(1);
            vec![
                variable("DMLC_TRACKER_URI", host),
                variable("DMLC_TRACKER_PORT", port),
                index("DMLC_TASK_ID"),
                variable(
                    "DMLC_NUM_WORKER",
                    i64::from(training.nodes).saturating_mul(workers),
                ),
            ]
        }
    }
}

/// The processes of one node: as given, or without GPUs as many as it has whole CPUs.
fn processes(training: &Training<'_>) -> String {
    let given = match training.processes {
        Some(IntOrString::Int(number)) => number.to_string(),
        Some(IntOrString::String(text)) if !text.is_empty() => text.clone(),
        _ => "auto".to_owned(),
    };
    if given == "auto" && gpus(training.resources) == 0 {
        return cpus(training.resources).max(1).to_string();
    }
    given
}

fn amount(quantity: &K8sQuantity) -> i64 {
    Quantity::parse_k8s(quantity).map_or(0, |quantity| quantity.value().max(0))
}

fn gpus(resources: Option<&ResourceRequirements>) -> i64 {
    let lists = resources.map(|resources| [&resources.requests, &resources.limits]);
    let of = |list: &std::collections::BTreeMap<String, K8sQuantity>| {
        let mut all = list.iter();
        let found = all.find(|(name, _)| name.to_ascii_lowercase().contains("gpu"));
        found
            .map(|(_, quantity)| amount(quantity))
            .filter(|count| *count > 0)
    };
    let mut lists = lists.into_iter().flatten().flatten();
    lists.find_map(of).unwrap_or(0)
}

fn cpus(resources: Option<&ResourceRequirements>) -> i64 {
    let lists = resources.map(|resources| [&resources.requests, &resources.limits]);
    let mut lists = lists.into_iter().flatten().flatten();
    let found = lists.find_map(|list| list.get("cpu").map(amount).filter(|count| *count > 0));
    found.unwrap_or(0)
}

/// Sets variables in a list; those of the same names are replaced.
pub(crate) fn upsert(env: &mut Option<Vec<EnvVar>>, variables: &[EnvVar]) {
    if variables.is_empty() {
        return;
    }
    let env = env.get_or_insert_default();
    for variable in variables {
        match env.iter_mut().find(|known| known.name == variable.name) {
            Some(known) => *known = variable.clone(),
            None => env.push(variable.clone()),
        }
    }
}

/// Sets the variables in the other containers that torch's `envInjection` names.
pub(crate) fn inject(
    policy: Option<&MlPolicy>,
    job: &str,
    spec: &mut PodSpec,
    variables: &[EnvVar],
) {
    let torch = policy.and_then(|policy| policy.torch.as_ref());
    let targets = torch.map(|torch| &torch["envInjection"]["targets"]);
    let targets = targets.and_then(Value::as_array).into_iter().flatten();
    let named: Vec<&str> = targets
        .filter(|target| target["jobName"] == job)
        .flat_map(|target| target["containerNames"].as_array().into_iter().flatten())
        .filter_map(Value::as_str)
        .collect();
    let inits = spec.init_containers.iter_mut().flatten();
    for container in inits.chain(&mut spec.containers) {
        if named.contains(&container.name.as_str()) {
            upsert(&mut container.env, variables);
        }
    }
}
