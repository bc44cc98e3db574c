//! MPIJob: what its launcher needs to start ranks on the workers. A ConfigMap has the hostfile and the script that lists
//! the workers that run. Where every pod has its own address, the launcher reaches the workers by SSH, with keys from a
//! Secret. Where pods share their node's address there is one port 22 for all of them, so the launcher asks the API to
//! run the command in the worker's pod (`muster remote-shell`), with a service account that may do this in the job's
//! pods alone.

mod files;
mod objects;
mod pods;

use resources::kinds::{LauncherCreationPolicy, MPIJobSpec, MpiImplementation};
use resources::training::ReplicaType;

use super::ObservedTrainingJob;
use super::plan::ParsedTrainingJob;
use super::rendezvous::Network;
use super::roster::{ReplicaState, Roster};
use super::view::Details;
use crate::action::Action;
use crate::mpi::ssh;
use crate::pod_facts;

pub(crate) use self::pods::prepare;

/// The hostfile's key.
const HOSTFILE: &str = "hostfile";
/// The key of the script that lists the workers that run.
const DISCOVER_HOSTS: &str = "discover_hosts.sh";

/// The spec of an MPIJob; none of another kind.
pub(crate) fn spec_of<'a>(plan: &ParsedTrainingJob<'a>) -> Option<&'a MPIJobSpec> {
    match plan.job.details {
        Details::Mpi(spec) => Some(spec),
        _ => None,
    }
}

/// Whether the job's launcher is created only once all workers are ready. The gang is then the workers.
pub(crate) fn launcher_waits(plan: &ParsedTrainingJob<'_>) -> bool {
    spec_of(plan).is_some_and(|spec| {
        spec.launcher_creation_policy == Some(LauncherCreationPolicy::WaitForWorkersReady)
    })
}

/// Whether a replica's pod must not be created yet.
pub(crate) fn holds_back(
    plan: &ParsedTrainingJob<'_>,
    roster: &Roster<'_>,
    role: ReplicaType,
) -> bool {
    role == ReplicaType::Launcher
        && launcher_waits(plan)
        && !roster
            .of_role(ReplicaType::Worker)
            .all(|slot| slot.pod.is_some_and(pod_facts::is_ready))
}

/// The objects that pods of an MPIJob need before they start; nothing for another kind. Objects are created with the
/// ConfigMap, and again with each launcher, as long as a launcher is to be created.
pub(crate) fn objects(
    plan: &ParsedTrainingJob<'_>,
    observed: &ObservedTrainingJob<'_>,
    roster: &Roster<'_>,
) -> Vec<Action> {
    let Some(mpi) = Settings::of(plan, observed.network) else {
        return Vec::new();
    };
    let name = objects::config_name(plan);
    let config = observed.config_maps.iter().find(|map| {
        map.metadata.name.as_deref() == Some(&name)
            && crate::ownership::controlled_by(&map.metadata, plan.meta)
    });
    let vacant = plan.replicas_of(ReplicaType::Launcher).is_some_and(|of| {
        roster
            .of_role(of.role)
            .any(|slot| slot.state(of) == ReplicaState::Vacant)
    });
    let data = files::data(plan, &mpi, roster);
    let mut actions = Vec::new();
    let mut hosts_changed = false;
    match config {
        None => actions.push(objects::create_config(plan, data)),
        Some(config) if config.data.as_ref() != Some(&data) => {
            let before = config.data.as_ref().and_then(|data| data.get(HOSTFILE));
            hosts_changed = before != data.get(HOSTFILE);
            actions.push(objects::change_config(config, data));
        }
        Some(_) => {}
    }
    if config.is_none() || vacant || hosts_changed {
        actions.extend(objects::access(plan, &mpi));
    }
    actions
}

/// An MPIJob's settings with their defaults.
pub(crate) struct Settings {
    slots: i32,
    implementation: MpiImplementation,
    launcher_is_worker: bool,
    ssh_path: String,
    /// The container in which ranks run, if the user names it.
    container: Option<String>,
    /// Whether pods share their node's address.
    shared: bool,
}

impl Settings {
    /// The settings of a job; none of another kind.
    pub(crate) fn of(plan: &ParsedTrainingJob<'_>, network: &Network) -> Option<Settings> {
        let spec = spec_of(plan)?;
        let ssh_path = spec.ssh_auth_mount_path.clone();
        Some(Settings {
            slots: spec.slots_per_worker.unwrap_or(1).max(0),
            implementation: spec.mpi_implementation.unwrap_or_default(),
            launcher_is_worker: spec.run_launcher_as_worker == Some(true),
            ssh_path: ssh_path
                .filter(|path| !path.is_empty())
                .unwrap_or_else(|| ssh::OF_ROOT.to_owned()),
            container: spec.main_container.clone(),
            shared: matches!(network, Network::HostShared { .. }),
        })
    }
}
