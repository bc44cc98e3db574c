//! The mpi plugin: `mpirun` in the pods of one task, the master, starts ranks in those of another one, the workers.
//! Source: Volcano's `pkg/controllers/job/plugins/distributed-framework/mpi`. Where pods share their node's address, it
//! starts them as in an MPIJob ([`crate::mpi`]) in place of SSH.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapVolumeSource, Container, ContainerPort, PodSpec, Volume,
};
use resources::names;

use super::{arguments, hosts_of, port};
use crate::action::Dependent;
use crate::mpi::remote_shell::{
    self, Account, CONFIG_PATH, DEFAULT_CONTAINER, EXECUTABLE, INTEL, MPICH, OPEN_MPI,
    OPEN_MPI_WHOLE_NAMES, SCRIPT,
};
use crate::mpi::worker;
use crate::volcano::plan::{ParsedVolcanoJob, Task, Unrunnable};
use crate::volcano::pods::{metadata, mount};

/// The port that containers open for SSH.
const PORT: u16 = 22;
/// The name of this port.
const PORT_NAME: &str = "mpijob-port";
/// The variable with the workers' hosts.
const HOSTS: &str = "MPI_HOST";
/// The most bytes of the workers' hosts in [`HOSTS`]: Linux takes 128 KiB with the variable's name.
const HOSTS_BYTES_MAX: usize = 127 * 1024;

/// The plugin's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mpi {
    master: String,
    worker: String,
    port: Option<u16>,
}

impl Mpi {
    pub(super) fn of(given: &[String]) -> Result<Mpi, Unrunnable> {
        let mut mpi = Mpi {
            master: "master".to_owned(),
            worker: "worker".to_owned(),
            port: None,
        };
        let known = "--master=TASK, --worker=TASK, --port=PORT";
        arguments("mpi", given, known, |name, value| {
            match name {
                "master" => value.clone_into(&mut mpi.master),
                "worker" => value.clone_into(&mut mpi.worker),
                "port" => return port(value, &mut mpi.port),
                _ => return false,
            }
            true
        })?;
        Ok(mpi)
    }

    /// Whether the job has both tasks, and a variable can hold the workers' hosts.
    pub(super) fn check(&self, plan: &ParsedVolcanoJob<'_>) -> Result<(), Unrunnable> {
        for (role, task, does) in [
            ("master", &self.master, "whose pods run mpirun"),
            ("worker", &self.worker, "in whose pods the ranks run"),
        ] {
            if plan.task(task).is_none() {
                return Err(Unrunnable::NoTask {
                    task: task.clone(),
                    does,
                    role,
                });
            }
        }
        let bytes = self.hosts(plan).len();
        if bytes > HOSTS_BYTES_MAX {
            return Err(Unrunnable::TooLong {
                plugin: "mpi",
                what: HOSTS,
                bytes,
                most: HOSTS_BYTES_MAX,
            });
        }
        Ok(())
    }

    fn hosts(&self, plan: &ParsedVolcanoJob<'_>) -> String {
        let workers = plan.task(&self.worker);
        workers.map_or_else(String::new, |workers| hosts_of(plan, workers).join(","))
    }

    /// The variables of the master: the workers' hosts and, where pods share their node's address (`shared`), how to start
    /// commands there. The job does not say which implementation of MPI it uses, so each one is told.
    pub(super) fn variables(
        &self,
        plan: &ParsedVolcanoJob<'_>,
        task: &Task<'_>,
        shared: bool,
    ) -> Vec<(&'static str, String)> {
        if task.name != self.master {
            return Vec::new();
        }
        let way = OPEN_MPI_WHOLE_NAMES
            .iter()
            .chain(&OPEN_MPI)
            .chain(&INTEL)
            .chain(&MPICH);
        let way = way.filter(|_| shared);
        [(HOSTS, self.hosts(plan))]
            .into_iter()
            .chain(way.map(|(name, value)| (*name, (*value).to_owned())))
            .collect()
    }

    /// Adds to a task's pod the port and, where pods share their node's address, the way from the master to the workers.
    pub(crate) fn prepare(
        &self,
        plan: &ParsedVolcanoJob<'_>,
        task: &Task<'_>,
        shared: bool,
        spec: &mut PodSpec,
        annotations: &mut BTreeMap<String, String>,
    ) {
        // In the node's own network this port would be the node's, where its own SSH server listens.
        if spec.host_network != Some(true) {
            let inits = spec.init_containers.iter_mut().flatten();
            inits
                .chain(&mut spec.containers)
                .for_each(|container| self.open_port(container));
        }
        let leads = task.name == self.master;
        if !shared || !(leads || task.name == self.worker) {
            return;
        }
        // Open MPI's daemons on the workers check that the script is there.
        mount(
            &mut spec.volumes,
            &mut spec.containers,
            script_volume(plan),
            CONFIG_PATH,
        );
        if let [first, _, ..] = spec.containers.as_slice() {
            annotations
                .entry(DEFAULT_CONTAINER.to_owned())
                .or_insert_with(|| first.name.clone());
        }
        if leads {
            annotations.insert(names::COMMAND_LINE.to_owned(), "true".to_owned());
            spec.service_account_name = Some(self.account(plan).name().to_owned());
        } else if let Some(container) = spec.containers.first_mut() {
            worker::serve(container, shared);
        }
    }

    fn open_port(&self, container: &mut Container) {
        let number = i32::from(self.port.unwrap_or(PORT));
        let ports = container.ports.get_or_insert_default();
        if ports.iter().all(|known| known.container_port != number) {
            ports.push(ContainerPort {
                name: Some(PORT_NAME.to_owned()),
                container_port: number,
                ..ContainerPort::default()
            });
        }
    }

    fn account(&self, plan: &ParsedVolcanoJob<'_>) -> Account {
        let master = plan.task(&self.master);
        let template = master.and_then(|master| master.template.spec.as_ref());
        Account::of(plan.meta, "mpi", template)
    }

    /// The master's service account, and its right to run commands in the workers.
    pub(super) fn rights(&self, plan: &ParsedVolcanoJob<'_>) -> Vec<Dependent> {
        let Some(workers) = plan.task(&self.worker) else {
            return Vec::new();
        };
        let pods = (0..workers.replicas).map(|index| plan.pod_name(workers, index));
        let account = self.account(plan);
        account.rights(pods.collect(), workers.replicas, |name| {
            metadata(plan, name)
        })
    }

    /// The ConfigMap with the script by which `mpirun` starts commands where pods share their node's address.
    pub(crate) fn script(plan: &ParsedVolcanoJob<'_>) -> ConfigMap {
        ConfigMap {
            metadata: metadata(plan, &script_name(plan)),
            data: Some(BTreeMap::from([(
                SCRIPT.to_owned(),
                remote_shell::script(),
            )])),
            ..ConfigMap::default()
        }
    }
}

fn script_name(plan: &ParsedVolcanoJob<'_>) -> String {
    format!("{}-mpi", plan.name())
}

fn script_volume(plan: &ParsedVolcanoJob<'_>) -> Volume {
    Volume {
        name: script_name(plan),
        config_map: Some(ConfigMapVolumeSource {
            name: script_name(plan),
            default_mode: Some(EXECUTABLE),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }
}
