//! The variables of `paddle.distributed.launch`.

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector};
use resources::training::ReplicaType;

use super::variable;
use crate::training::plan::ParsedTrainingJob;
use crate::training::rendezvous::Ports;

/// The variable that holds a pod's own address.
const OWN_ADDRESS: &str = "POD_IP_DUMMY";

/// The variables of one replica, in order. The launcher starts its key-value server only where the address in
/// `PADDLE_MASTER` is one of its own, so rank 0 is given its pod's address and the others its name.
pub(super) fn variables(
    plan: &ParsedTrainingJob<'_>,
    role: ReplicaType,
    index: u32,
    ports: &Ports,
) -> Vec<EnvVar> {
    let mut variables = vec![
        variable("PYTHONUNBUFFERED", "1"),
        variable("PADDLE_JOB_ID", plan.name()),
        variable("PADDLE_NNODES", plan.total()),
    ];
    let Some(first) = plan.first() else {
        return variables;
    };
    if plan.has_master() {
        variables.push(match role {
            ReplicaType::Master => variable("PADDLE_SERVER_NUM", 1),
            _ => variable("PADDLE_TRAINER_NUM", 1),
        });
    }
    let port = ports.of(plan, first, 0);
    if (role, index) == (first, 0) {
        variables.push(EnvVar {
            name: OWN_ADDRESS.to_owned(),
            value: None,
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    api_version: Some("v1".to_owned()),
                    field_path: "status.podIP".to_owned(),
                }),
                ..EnvVarSource::default()
            }),
        });
        variables.push(variable(
            "PADDLE_MASTER",
            format!("$({OWN_ADDRESS}):{port}"),
        ));
    } else {
        let host = plan.pod_name(first, 0);
        variables.push(variable("PADDLE_MASTER", format!("{host}:{port}")));
    }
    variables
}
