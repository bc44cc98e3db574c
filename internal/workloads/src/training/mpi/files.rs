//! The files of an MPIJob's ConfigMap. Source: the MPI operator 0.8, `pkg/controller/mpi_job_controller.go`.

use std::collections::BTreeMap;

use resources::kinds::MpiImplementation;
use resources::training::ReplicaType;

use super::{DISCOVER_HOSTS, HOSTFILE, Settings};
use crate::mpi::remote_shell;
use crate::training::plan::ParsedTrainingJob;
use crate::training::roster::{ReplicaState, Roster};

/// The ConfigMap's data.
pub(super) fn data(
    plan: &ParsedTrainingJob<'_>,
    mpi: &Settings,
    roster: &Roster<'_>,
) -> BTreeMap<String, String> {
    let mut data = BTreeMap::from([
        (HOSTFILE.to_owned(), hostfile(plan, mpi)),
        (DISCOVER_HOSTS.to_owned(), discover_hosts(plan, mpi, roster)),
    ]);
    if mpi.shared {
        data.insert(remote_shell::SCRIPT.to_owned(), remote_shell::script());
    }
    data
}

/// The hosts on which ranks run, with their slots, in the form of the implementation.
fn hostfile(plan: &ParsedTrainingJob<'_>, mpi: &Settings) -> String {
    let line = |host: String| match mpi.implementation {
        MpiImplementation::OpenMPI => format!("{host} slots={}\n", mpi.slots),
        MpiImplementation::Intel | MpiImplementation::MPICH => format!("{host}:{}\n", mpi.slots),
    };
    let launcher = mpi.launcher_is_worker.then(|| {
        // Where mpirun does not resolve names, it knows itself by its host name alone.
        match mpi.shared {
            true => plan.pod_name(ReplicaType::Launcher, 0),
            false => host(plan, ReplicaType::Launcher, 0),
        }
    });
    let workers = plan.replicas_of(ReplicaType::Worker);
    let workers = 0..workers.map_or(0, |workers| workers.count);
    launcher
        .into_iter()
        .chain(workers.map(|index| host(plan, ReplicaType::Worker, index)))
        .map(line)
        .collect()
}

/// The script that prints the hosts whose pods run now, for elastic Horovod.
fn discover_hosts(plan: &ParsedTrainingJob<'_>, mpi: &Settings, roster: &Roster<'_>) -> String {
    let mut script = "#!/bin/sh\n".to_owned();
    for replicas in &plan.replicas {
        if replicas.role == ReplicaType::Launcher && !mpi.launcher_is_worker {
            continue;
        }
        for slot in roster.of_role(replicas.role) {
            if slot.state(replicas) == ReplicaState::Running {
                let host = host(plan, slot.role, slot.index);
                script.push_str(&format!("echo {host}\n"));
            }
        }
    }
    script
}

/// A replica's host name within the job's Service.
fn host(plan: &ParsedTrainingJob<'_>, role: ReplicaType, index: u32) -> String {
    let namespace = plan.meta.namespace.as_deref().unwrap_or_default();
    format!(
        "{}.{}.{namespace}.svc",
        plan.pod_name(role, index),
        plan.name()
    )
}
