//! The variables of MPI: the role, and for the launcher where `mpirun` finds the hostfile and how it starts commands on
//! the workers. Open MPI 5 reads those of PRRTE instead of ORTE's, and other names for the program that starts commands.
//! Source: the MPI operator 0.8; `prte_info` for PRRTE's names.

use k8s_openapi::api::core::v1::EnvVar;
use resources::kinds::{MPIJobSpec, MpiImplementation};
use resources::training::ReplicaType;

use super::variable;
use crate::mpi::remote_shell;
use crate::training::plan::ParsedTrainingJob;
use crate::training::rendezvous::Network;

/// Where the hostfile is mounted.
const HOSTFILE: &str = "/etc/mpi/hostfile";
/// Further arguments for SSH: a worker's name may not be known yet when the launcher begins.
const SSH_ARGUMENTS: &str = "-o ConnectionAttempts=10";

/// The variables of one replica, in order.
pub(super) fn variables(
    plan: &ParsedTrainingJob<'_>,
    spec: &MPIJobSpec,
    role: ReplicaType,
    network: &Network,
) -> Vec<EnvVar> {
    let mut variables = vec![variable("K_MPI_JOB_ROLE", role.lower())];
    if role != ReplicaType::Launcher {
        return variables;
    }
    let shared = matches!(network, Network::HostShared { .. });
    let slots = spec.slots_per_worker.unwrap_or(1).max(0);
    let mut add = |pairs: &[(&str, &str)]| {
        variables.extend(pairs.iter().map(|(name, value)| variable(name, value)));
    };
    match spec.mpi_implementation.unwrap_or_default() {
        MpiImplementation::OpenMPI => {
            let slots = slots.to_string();
            add(&[
                ("OMPI_MCA_orte_keep_fqdn_hostnames", "true"),
                ("OMPI_MCA_orte_default_hostfile", HOSTFILE),
                ("OMPI_MCA_orte_set_default_slots", &slots),
                ("PRTE_MCA_prte_keep_fqdn_hostnames", "true"),
                ("PRTE_MCA_prte_default_hostfile", HOSTFILE),
                ("PRTE_MCA_prte_set_default_slots", &slots),
            ]);
            if shared {
                add(&remote_shell::OPEN_MPI);
            } else {
                add(&[
                    ("OMPI_MCA_plm_rsh_args", SSH_ARGUMENTS),
                    ("PRTE_MCA_plm_ssh_args", SSH_ARGUMENTS),
                ]);
            }
        }
        MpiImplementation::Intel => {
            add(&[
                ("I_MPI_HYDRA_HOST_FILE", HOSTFILE),
                ("I_MPI_PERHOST", &slots.to_string()),
            ]);
            if shared {
                add(&remote_shell::INTEL);
            } else {
                add(&[("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", SSH_ARGUMENTS)]);
            }
        }
        MpiImplementation::MPICH => {
            add(&[("HYDRA_HOST_FILE", HOSTFILE)]);
            if shared {
                add(&remote_shell::MPICH);
            } else {
                add(&[("HYDRA_LAUNCH_EXTRA_ARGS", SSH_ARGUMENTS)]);
            }
        }
    }
    if spec.run_launcher_as_worker != Some(true) && !asks_for_gpus(plan) {
        // The launcher runs no rank, and must not see the GPUs of its node.
        add(&[
            ("NVIDIA_VISIBLE_DEVICES", ""),
            ("NVIDIA_DRIVER_CAPABILITIES", ""),
        ]);
    }
    variables
}

/// Whether the launcher asks for GPUs.
fn asks_for_gpus(plan: &ParsedTrainingJob<'_>) -> bool {
    let launcher = plan.replicas_of(ReplicaType::Launcher);
    let containers = launcher.and_then(|launcher| launcher.template.spec.as_ref());
    let containers = containers.map_or(&[][..], |spec| spec.containers.as_slice());
    containers.iter().any(|container| {
        let limits = container.resources.as_ref().and_then(|r| r.limits.as_ref());
        limits.is_some_and(|limits| limits.keys().any(|name| name.contains("gpu")))
    })
}
