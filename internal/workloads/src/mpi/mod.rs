//! How `mpirun` starts its daemons in the other pods of its job, for MPIJobs and for Volcano Jobs with the mpi plugin.
//! Where every pod has its own address it uses SSH, with keys from a Secret ([`ssh`]). Where pods share their node's
//! address there is one port 22 for all of them: `mpirun` calls a script that has the API run the command in the other
//! pod, with a service account that may do this in the job's pods alone ([`remote_shell`]), and the pods of the workers
//! wait ([`worker`]).

pub(crate) mod remote_shell;
pub(crate) mod ssh;
pub(crate) mod worker;
