//! The script by which `mpirun` starts commands where pods share their node's address, the variables that name it, and
//! the service account that may do what it asks for.

use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::names;

use crate::account_rights::{RightsOf, rule};
use crate::action::Dependent;

/// Where the ConfigMap with the script is mounted.
pub(crate) const CONFIG_PATH: &str = "/etc/mpi";
/// The script's name.
pub(crate) const SCRIPT: &str = "kubexec.sh";
/// The script's path.
const SCRIPT_PATH: &str = "/etc/mpi/kubexec.sh";
/// The mode of the script: everyone may read and run it.
pub(crate) const EXECUTABLE: i32 = 0o555;
/// The annotation of a pod that names the container in which commands run unless they name one.
pub(crate) const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// How much of the job's uid is in names.
const UID_PART: usize = 8;

/// The variables for Open MPI; version 5 reads those of PRRTE. All names resolve to the node's address, which `mpirun`
/// would take for itself. A pod's user has no entry in /etc/passwd, where `mpirun` would look for the shell of the
/// workers' commands. Ranks of several pods share the node's processors, so that no pod may bind its ranks to the first
/// ones.
pub(crate) const OPEN_MPI: [(&str, &str); 9] = [
    ("SHELL", "/bin/sh"),
    ("OMPI_MCA_plm_rsh_agent", SCRIPT_PATH),
    ("OMPI_MCA_plm_rsh_no_tree_spawn", "true"),
    ("OMPI_MCA_if_base_do_not_resolve", "true"),
    ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    ("PRTE_MCA_plm_ssh_agent", SCRIPT_PATH),
    ("PRTE_MCA_plm_ssh_no_tree_spawn", "true"),
    ("PRTE_MCA_prte_do_not_resolve", "true"),
    ("PRTE_MCA_hwloc_default_binding_policy", "none"),
];
/// The variables by which Open MPI takes a host's name as it is written.
pub(crate) const OPEN_MPI_WHOLE_NAMES: [(&str, &str); 2] = [
    ("OMPI_MCA_orte_keep_fqdn_hostnames", "true"),
    ("PRTE_MCA_prte_keep_fqdn_hostnames", "true"),
];
/// The variables for Intel MPI.
pub(crate) const INTEL: [(&str, &str); 2] = [
    ("I_MPI_HYDRA_BOOTSTRAP", "rsh"),
    ("I_MPI_HYDRA_BOOTSTRAP_EXEC", SCRIPT_PATH),
];
/// The variables for MPICH.
pub(crate) const MPICH: [(&str, &str); 2] = [
    ("HYDRA_LAUNCHER", "rsh"),
    ("HYDRA_LAUNCHER_EXEC", SCRIPT_PATH),
];

/// The script that `mpirun` calls with a host and a command.
pub(crate) fn script() -> String {
    format!(
        "#!/bin/sh\nexec {} remote-shell -- \"$@\"\n",
        names::COMMAND_LINE_PATH
    )
}

/// The service account as which `mpirun` runs.
pub(crate) struct Account {
    name: String,
    /// The account that the controller makes, whose name the role has, too.
    own: String,
}

impl Account {
    /// The account that the template of `mpirun`'s pod names, else one that the controller makes. The latter's name has a
    /// part of the job's uid: objects of an earlier job of the same name may still be there.
    pub(crate) fn of(job: &ObjectMeta, purpose: &str, template: Option<&PodSpec>) -> Account {
        let uid = job.uid.as_deref().unwrap_or_default();
        let part: String = uid.chars().take(UID_PART).collect();
        let own = format!(
            "{}-{purpose}-{part}",
            job.name.as_deref().unwrap_or_default()
        );
        let named = template.and_then(|spec| spec.service_account_name.clone());
        Account {
            name: named
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| own.clone()),
            own,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The account, unless the user named one, and its right to run commands in these pods and in no other one. The
    /// role's name has the number of workers: a job that grows gets a further role.
    pub(crate) fn rights(
        &self,
        pods: Vec<String>,
        workers: u32,
        metadata: impl Fn(&str) -> ObjectMeta,
    ) -> Vec<Dependent> {
        let rights = RightsOf {
            account: &self.name,
            is_own: self.name == self.own,
            role: &format!("{}-{workers}", self.own),
        };
        let rules = vec![
            rule("", "pods", &["get"], Some(pods.clone())),
            rule("", "pods/exec", &["get", "create"], Some(pods)),
        ];
        rights.with(rules, metadata)
    }
}
