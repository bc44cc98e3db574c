//! Volcano's plugins: what they add to a job's pods so that these find each other.
//!
//! | plugin | adds |
//! |---|---|
//! | `env` | `VC_TASK_INDEX`, `VK_TASK_INDEX` |
//! | `svc` | a headless Service with the job's name, host names, `VC_<TASK>_HOSTS` and `_NUM`, files `/etc/volcano/<task>.host` |
//! | `pytorch` | `MASTER_ADDR`, `MASTER_PORT`, `WORLD_SIZE`, `RANK` for the tasks `master` and `worker` |
//! | `tensorflow` | `TF_CONFIG` for the tasks `ps`, `worker`, `chief` and `evaluator` |
//! | `ssh` | a pair of keys for SSH and a configuration that names the pods ([`ssh`]) |
//! | `mpi` | `MPI_HOST` for the task `master`, and the way by which `mpirun` reaches the task `worker` ([`mpi`]) |
//!
//! `pytorch`, `tensorflow` and `mpi` bring `svc` with them; `mpi` brings `ssh` where `mpirun` uses it. Source: Volcano's
//! `pkg/controllers/job/plugins`.

mod mpi;
mod ssh;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

pub(crate) use self::mpi::Mpi;
pub(crate) use self::ssh::Ssh;
use super::plan::{ParsedVolcanoJob, Task, Unrunnable};
use crate::action::{Action, Dependent};

/// The port of a PyTorch job's master.
const PYTORCH_PORT: u16 = 23456;
/// The port of a TensorFlow job's tasks.
const TENSORFLOW_PORT: u16 = 2222;

/// The plugins of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plugins {
    env: bool,
    svc: bool,
    pytorch: Option<PyTorch>,
    tensorflow: Option<TensorFlow>,
    /// The arguments of the ssh plugin, whether the job names it or the mpi plugin brings it.
    ssh: Ssh,
    names_ssh: bool,
    mpi: Option<Mpi>,
}

/// The names of the tasks and the port, if the user chose one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PyTorch {
    master: String,
    worker: String,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct TensorFlow {
    /// The role in TF_CONFIG and the name of its task.
    roles: [(&'static str, String); 4],
    port: Option<u16>,
}

impl Plugins {
    /// Reads `spec.plugins`.
    ///
    /// # Errors
    /// A plugin or an argument that Muster does not have.
    pub(crate) fn of(given: Option<&BTreeMap<String, Vec<String>>>) -> Result<Plugins, Unrunnable> {
        let mut plugins = Plugins::default();
        for (name, arguments) in given.into_iter().flatten() {
            match name.as_str() {
                "env" => plugins.env = true,
                "svc" => plugins.svc = true,
                "pytorch" => plugins.pytorch = Some(PyTorch::of(arguments)?),
                "tensorflow" => plugins.tensorflow = Some(TensorFlow::of(arguments)?),
                "ssh" => {
                    plugins.ssh = Ssh::of(arguments)?;
                    plugins.names_ssh = true;
                }
                "mpi" => plugins.mpi = Some(Mpi::of(arguments)?),
                "ray" => return Err(Unrunnable::Ray),
                other => {
                    return Err(Unrunnable::Plugin {
                        plugin: other.to_owned(),
                    });
                }
            }
        }
        plugins.svc |= plugins.pytorch.is_some() || plugins.tensorflow.is_some();
        plugins.svc |= plugins.mpi.is_some();
        Ok(plugins)
    }

    /// Whether the plugins can do their work for this job.
    ///
    /// # Errors
    /// A task that a plugin needs and the job lacks, or more pods than a plugin can name.
    pub(crate) fn check(&self, plan: &ParsedVolcanoJob<'_>) -> Result<(), Unrunnable> {
        if let Some(mpi) = &self.mpi {
            mpi.check(plan)?;
        }
        self.ssh(false).map_or(Ok(()), |ssh| ssh.check(plan))
    }

    /// The ssh plugin, if the job's pods have keys. The mpi plugin brings it, unless pods share their node's address
    /// (`shared`): `mpirun` does not use SSH there.
    pub(crate) fn ssh(&self, shared: bool) -> Option<&Ssh> {
        (self.names_ssh || self.mpi.is_some() && !shared).then_some(&self.ssh)
    }

    /// The mpi plugin, if the job has it.
    pub(crate) fn mpi(&self) -> Option<&Mpi> {
        self.mpi.as_ref()
    }

    /// Creates what pods need besides files: keys for SSH, and the right to start commands in other pods.
    pub(crate) fn access(&self, plan: &ParsedVolcanoJob<'_>, shared: bool) -> Vec<Action> {
        let keys = self.ssh(shared).map(|ssh| ssh.keys(plan, shared));
        let keys = keys.map(|keys| Dependent::SshKeys(Box::new(keys)));
        let mpi = self.mpi.as_ref().filter(|_| shared);
        let rights = mpi.map(|mpi| mpi.rights(plan)).unwrap_or_default();
        keys.into_iter().chain(rights).map(Action::Create).collect()
    }

    /// Whether the pods are found by host names.
    pub(crate) fn svc(&self) -> bool {
        self.svc
    }

    /// How many ports the job needs where pods share their node's address and the user chose none.
    pub(crate) fn ports_needed(&self, plan: &ParsedVolcanoJob<'_>) -> u16 {
        let master = self
            .pytorch
            .as_ref()
            .is_some_and(|torch| torch.port.is_none());
        let each = self
            .tensorflow
            .as_ref()
            .is_some_and(|flow| flow.port.is_none());
        let of_each = if each { plan.total() } else { 0 };
        u16::try_from(of_each.saturating_add(u32::from(master))).unwrap_or(u16::MAX)
    }

    /// The variables of one pod. Where pods share their node's address (`shared`), `port` is the first of the job's ports.
    pub(crate) fn variables(
        &self,
        plan: &ParsedVolcanoJob<'_>,
        task: &Task<'_>,
        index: u32,
        shared: bool,
        port: Option<u16>,
    ) -> Vec<(String, String)> {
        let mut variables = Vec::new();
        let mut add = |name: &str, value: String| variables.push((name.to_owned(), value));
        if self.env {
            add("VC_TASK_INDEX", index.to_string());
            add("VK_TASK_INDEX", index.to_string());
        }
        if self.svc {
            for (name, value) in hosts(plan) {
                add(&name, value);
            }
        }
        if let Some(torch) = &self.pytorch {
            for (name, value) in torch.variables(plan, task, index, port) {
                add(name, value);
            }
        }
        if let Some(flow) = &self.tensorflow
            && let Some(config) = flow.config(plan, task, index, port)
        {
            add("TF_CONFIG", config);
        }
        if let Some(mpi) = &self.mpi {
            for (name, value) in mpi.variables(plan, task, shared) {
                add(name, value);
            }
        }
        variables
    }
}

/// The host name under which the svc plugin's Service makes a pod known.
fn host(plan: &ParsedVolcanoJob<'_>, task: &Task<'_>, index: u32) -> String {
    format!("{}.{}", plan.pod_name(task, index), plan.name())
}

fn hosts_of(plan: &ParsedVolcanoJob<'_>, task: &Task<'_>) -> Vec<String> {
    (0..task.replicas)
        .map(|index| host(plan, task, index))
        .collect()
}

/// The variables with each task's hosts and their number.
fn hosts(plan: &ParsedVolcanoJob<'_>) -> Vec<(String, String)> {
    let variables = plan.tasks.iter().flat_map(|task| {
        let name = task.name.to_uppercase().replace('-', "_");
        [
            (format!("VC_{name}_HOSTS"), hosts_of(plan, task).join(",")),
            (format!("VC_{name}_NUM"), task.replicas.to_string()),
        ]
    });
    variables.collect()
}

/// The contents of the svc plugin's ConfigMap: a file of host names for each task, and the variables.
pub(crate) fn files(plan: &ParsedVolcanoJob<'_>) -> BTreeMap<String, String> {
    let of_task = |task: &Task<'_>| {
        let lines = hosts_of(plan, task).join("\n");
        (format!("{}.host", task.name), lines)
    };
    let mut files: BTreeMap<String, String> = plan.tasks.iter().map(of_task).collect();
    files.extend(hosts(plan));
    files
}

/// Reads arguments of the form `--name=value`; `--` alone says nothing.
fn arguments(
    plugin: &'static str,
    given: &[String],
    known: &'static str,
    mut take: impl FnMut(&str, &str) -> bool,
) -> Result<(), Unrunnable> {
    for argument in given {
        let text = argument.trim();
        let read = text.trim_start_matches('-').split_once('=');
        let fine = text.is_empty()
            || text == "--"
            || read.is_some_and(|(name, value)| !value.is_empty() && take(name, value));
        if !fine {
            // The value may be a private key, and the sentence is shown to all who may read the job's status.
            let shown = match plugin {
                "ssh" => text.split('=').next().unwrap_or(text).to_owned(),
                _ => argument.clone(),
            };
            return Err(Unrunnable::Argument {
                plugin,
                argument: shown,
                known,
            });
        }
    }
    Ok(())
}

fn port(value: &str, to: &mut Option<u16>) -> bool {
    *to = value.parse().ok().filter(|port| *port > 0);
    to.is_some()
}

impl PyTorch {
    fn of(given: &[String]) -> Result<PyTorch, Unrunnable> {
        let mut torch = PyTorch {
            master: "master".to_owned(),
            worker: "worker".to_owned(),
            port: None,
        };
        let known = "--master=TASK, --worker=TASK, --port=PORT";
        arguments("pytorch", given, known, |name, value| match name {
            "master" => {
                torch.master = value.to_owned();
                true
            }
            "worker" => {
                torch.worker = value.to_owned();
                true
            }
            "port" => port(value, &mut torch.port),
            _ => false,
        })?;
        Ok(torch)
    }

    fn variables(
        &self,
        plan: &ParsedVolcanoJob<'_>,
        task: &Task<'_>,
        index: u32,
        shared: Option<u16>,
    ) -> Vec<(&'static str, String)> {
        let (master, worker) = (plan.task(&self.master), plan.task(&self.worker));
        let rank = match (master, worker) {
            (Some(master), _) if task.name == master.name => index,
            (Some(master), Some(worker)) if task.name == worker.name => {
                master.replicas.saturating_add(index)
            }
            _ => return Vec::new(),
        };
        let Some(master) = master else {
            return Vec::new();
        };
        let workers = worker.map_or(0, |worker| worker.replicas);
        let world = master.replicas.saturating_add(workers);
        let port = self.port.or(shared).unwrap_or(PYTORCH_PORT);
        vec![
            ("MASTER_ADDR", host(plan, master, 0)),
            ("MASTER_PORT", port.to_string()),
            ("WORLD_SIZE", world.to_string()),
            ("RANK", rank.to_string()),
        ]
    }
}

impl TensorFlow {
    fn of(given: &[String]) -> Result<TensorFlow, Unrunnable> {
        let roles = ["ps", "worker", "chief", "evaluator"].map(|role| (role, role.to_owned()));
        let mut flow = TensorFlow { roles, port: None };
        let known = "--ps=TASK, --worker=TASK, --chief=TASK, --evaluator=TASK, --port=PORT";
        arguments("tensorflow", given, known, |name, value| {
            if name == "port" {
                return port(value, &mut flow.port);
            }
            let mut roles = flow.roles.iter_mut();
            let Some((_, task)) = roles.find(|(role, _)| *role == name) else {
                return false;
            };
            value.clone_into(task);
            true
        })?;
        Ok(flow)
    }

    /// TF_CONFIG of a pod; none for one replica, and for a task without a role.
    fn config(
        &self,
        plan: &ParsedVolcanoJob<'_>,
        task: &Task<'_>,
        index: u32,
        shared: Option<u16>,
    ) -> Option<String> {
        let (own, _) = self.roles.iter().find(|(_, name)| *name == task.name)?;
        let address = |one: &Task<'_>, index: u32| {
            // Where pods share their node's address, each listens on a port of its own.
            let of_pod = shared.map(|first| {
                let ordinal = u16::try_from(plan.ordinal(one, index)).unwrap_or(u16::MAX);
                first.saturating_add(ordinal)
            });
            let port = self.port.or(of_pod).unwrap_or(TENSORFLOW_PORT);
            format!("{}:{port}", host(plan, one, index))
        };
        let mut cluster = Map::new();
        let mut total = 0_u32;
        for (role, name) in &self.roles {
            let Some(one) = plan.task(name) else { continue };
            let hosts: Vec<Value> = (0..one.replicas)
                .map(|index| address(one, index).into())
                .collect();
            total = total.saturating_add(one.replicas);
            cluster.insert((*role).to_owned(), hosts.into());
        }
        let config = json!({"cluster": cluster, "task": {"type": own, "index": index}});
        (total > 1).then(|| config.to_string())
    }
}
