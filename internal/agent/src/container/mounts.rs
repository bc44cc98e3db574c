//! A container's mounts: its termination message, files of its devices, and its volumes.

use devices::allocation::Allocation;
use devices::nccl;
use resources::invalid_value::InvalidValue;
use resources::names;
use runtime::Mount;

use super::{ContainerError, DEFAULT_MESSAGE_PATH, Parts};
use crate::env::Variables;

/// All mounts but the private temporary directories.
pub(super) fn mounts(
    parts: &Parts,
    allocation: &Allocation,
    variables: &Variables,
) -> Result<Vec<Mount>, ContainerError> {
    let mut mounts = Vec::new();
    let message_path = parts.container.termination_message_path.as_deref();
    let message_path = message_path.unwrap_or(DEFAULT_MESSAGE_PATH);
    if !message_path.is_empty() {
        mounts.push(Mount::bind(parts.message_file, message_path));
    }
    if let Some(topology) = &parts.machine.topology
        && variables.get(nccl::VARIABLE) == Some(nccl::SEEN_AT)
    {
        mounts.push(Mount::bind(topology, nccl::SEEN_AT).read_only());
    }
    let asks = parts.pod.metadata.annotations.as_ref();
    let asks = asks.and_then(|all| all.get(names::COMMAND_LINE));
    if asks.is_some_and(|value| value == "true")
        && !parts.in_image
        && let Some(program) = &parts.bounds.command_line
    {
        mounts.push(Mount::bind(program, names::COMMAND_LINE_PATH).read_only());
    }
    // Processes of the node see it at its own path, unless that is private to them.
    if parts.in_image || parts.owner.is_some() {
        let by_mps = allocation.mps().into_iter().flat_map(|mps| &mps.mounts);
        mounts.extend(by_mps.map(|path| Mount::bind(path, path)));
    }
    let others = allocation.others();
    // A process sees them at their own paths, but may only write there if it may write the host's
    // files.
    let frozen = parts.bounds.read_only_host && parts.owner.is_some_and(|owner| owner.given);
    let shown = others.mounts.iter().filter(|shown| {
        let mounted = parts.in_image || shown.to != shown.from || frozen && !shown.read_only;
        mounted && shown.from.exists()
    });
    mounts.extend(shown.map(|shown| {
        let mut bound = Mount::bind(&shown.from, &shown.to);
        bound.read_only = shown.read_only;
        bound
    }));
    for mount in parts.container.volume_mounts.iter().flatten() {
        let place = parts.places.get(&mount.name);
        let place = place.ok_or_else(|| ContainerError::NoVolume {
            container: parts.container.name.clone(),
            volume: mount.name.clone(),
        })?;
        let mut bound = Mount::bind(&place.path, &mount.mount_path);
        bound.read_only = place.read_only || mount.read_only == Some(true);
        bound.sub_path = match (&mount.sub_path, &mount.sub_path_expr) {
            (Some(path), _) if !path.is_empty() => Some(path.clone()),
            (_, Some(expression)) if !expression.is_empty() => {
                let path = variables.expand(expression);
                if path.contains("$(") {
                    let field = format!("container {:?}: subPathExpr", parts.container.name);
                    let valid = "variables that the container has";
                    return Err(InvalidValue::new(field, expression, valid).into());
                }
                Some(path)
            }
            _ => None,
        };
        mounts.push(bound);
    }
    Ok(mounts)
}
