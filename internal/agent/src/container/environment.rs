//! A container's variables: those of its author, and those of the devices that it was given.

use devices::allocation::Allocation;
use devices::nccl;
use runtime::spec::DEFAULT_PATH;

use super::{Parts, hostname};
use crate::env::{self, EnvError, Variables};

/// All variables but those of the container's user.
pub(super) fn variables(parts: &Parts, allocation: &Allocation) -> Result<Variables, EnvError> {
    let mut variables = env::variables(parts.pod, parts.container, parts.resolved, parts.node)?;
    variables.set_default("HOSTNAME", &hostname(parts.pod, parts.node));
    if !parts.in_image {
        variables.set_default("PATH", DEFAULT_PATH);
    }
    // After the author's variables: a container must not choose its own devices.
    let gpus = allocation.gpus();
    for (name, value) in gpus.variables(parts.in_image) {
        variables.set(name, value);
    }
    for (name, value) in &allocation.others().variables {
        variables.set(name, value.clone());
    }
    for (name, value) in allocation.mps().into_iter().flat_map(|mps| &mps.variables) {
        variables.set(name, value.clone());
    }
    // Only a pod in the node's network uses the node's devices. The author's NCCL variables take precedence over the
    // discovered ones.
    let address = parts.node.ip.parse().ok();
    let address = address.filter(|_| parts.network.is_none());
    let rdma = &parts.machine.rdma;
    let proposed = match allocation.cards() {
        Some(pool) => rdma.among(&pool.cards).variables(&gpus.ids, address),
        None => rdma.variables(&gpus.ids, address),
    };
    for (name, value) in proposed {
        variables.set_default(name, &value);
    }
    if parts.machine.topology.is_some() && !gpus.ids.is_empty() {
        variables.set_default(nccl::VARIABLE, nccl::SEEN_AT);
    }
    Ok(variables)
}
