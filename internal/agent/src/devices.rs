//! Which GPUs a container sees, from the devices that the scheduler chose and the node's
//! inventory. Pure.

use k8s_openapi::api::core::v1::{Container, Pod};
use resources::devices::chosen;
use resources::names::NVIDIA_GPU;

use crate::inventory::Machine;

/// The GPUs of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpus {
    /// Their ids, as chosen.
    pub ids: Vec<String>,
    /// Their places in the inventory's order, which is CUDA's with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
    pub indices: Vec<u32>,
    /// The numbers in their device files' names, where they have such files.
    pub minors: Vec<u32>,
}

/// The container's GPUs; an error when it was given one that the node doesn't have, or asks for
/// more than it was given.
pub fn of(pod: &Pod, container: &Container, machine: &Machine) -> Result<Gpus, String> {
    let ids = chosen(pod.metadata.annotations.as_ref())
        .remove(&container.name)
        .and_then(|mut by_resource| by_resource.remove(NVIDIA_GPU))
        .unwrap_or_default();
    let indices = ids
        .iter()
        .map(|id| {
            machine
                .inventory
                .gpus
                .iter()
                .find(|gpu| gpu.id == *id)
                .map(|gpu| gpu.index)
                .ok_or_else(|| {
                    format!(
                        "device {id:?} was chosen for container {:?}, but this node has no such GPU",
                        container.name
                    )
                })
        })
        .collect::<Result<Vec<_>, _>>()?;
    let asked = container
        .resources
        .as_ref()
        .and_then(|resources| {
            let limits = resources
                .limits
                .as_ref()
                .and_then(|map| map.get(NVIDIA_GPU));
            limits.or_else(|| resources.requests.as_ref()?.get(NVIDIA_GPU))
        })
        .and_then(|quantity| quantity.0.parse::<usize>().ok())
        .unwrap_or(0);
    if asked > ids.len() {
        return Err(format!(
            "container {:?} asks for {asked} of {NVIDIA_GPU}, but {} were chosen for it",
            container.name,
            ids.len()
        ));
    }
    let minors = ids
        .iter()
        .filter_map(|id| machine.minors.get(id).copied())
        .collect();
    Ok(Gpus {
        ids,
        indices,
        minors,
    })
}

impl Gpus {
    /// The variables that make the container see these and no others. `renumbered`: the runtime
    /// gives the container a view in which its GPUs are counted from 0.
    pub fn variables(&self, renumbered: bool) -> Vec<(&'static str, String)> {
        let ids = if self.ids.is_empty() {
            "void".to_owned()
        } else {
            self.ids.join(",")
        };
        let mut variables = vec![("NVIDIA_VISIBLE_DEVICES", ids)];
        if !renumbered {
            let indices: Vec<String> = self.indices.iter().map(u32::to_string).collect();
            variables.push(("CUDA_VISIBLE_DEVICES", indices.join(",")));
            variables.push(("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()));
        }
        variables
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use resources::devices::{GpuDevice, NodeInventory};
    use serde_json::json;

    fn machine() -> Machine {
        let gpu = |index: u32| GpuDevice {
            id: format!("GPU-{index}"),
            index,
            healthy: true,
            ..GpuDevice::default()
        };
        Machine {
            inventory: NodeInventory {
                gpus: (0..4).map(gpu).collect(),
                ..NodeInventory::default()
            },
            minors: [("GPU-3".to_owned(), 7)].into(),
        }
    }

    fn pod(annotation: &str, limit: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "annotations": {"muster.io/devices": annotation}},
            "spec": {"containers": [{"name": "main",
                "resources": {"limits": {"nvidia.com/gpu": limit}}}]}}))
        .unwrap()
    }

    fn gpus(pod: &Pod) -> Result<Gpus, String> {
        of(pod, &pod.spec.as_ref().unwrap().containers[0], &machine())
    }

    #[test]
    fn a_container_sees_the_devices_chosen_for_it() {
        let pod = pod(r#"{"main":{"nvidia.com/gpu":["GPU-3","GPU-1"]}}"#, "2");
        let variables = gpus(&pod).unwrap().variables(false);
        assert_eq!(gpus(&pod).unwrap().minors, [7]);
        assert_eq!(variables[0].1, "GPU-3,GPU-1");
        assert_eq!(variables[1], ("CUDA_VISIBLE_DEVICES", "3,1".to_owned()));
    }

    #[test]
    fn a_container_that_was_given_none_sees_none() {
        let variables = gpus(&pod("{}", "0")).unwrap().variables(false);
        assert_eq!(variables[0].1, "void");
        assert_eq!(variables[1].1, "");
        assert_eq!(gpus(&pod("{}", "0")).unwrap().variables(true).len(), 1);
    }

    #[test]
    fn a_device_that_is_not_here_or_missing_stops_the_container() {
        let foreign = pod(r#"{"main":{"nvidia.com/gpu":["GPU-9"]}}"#, "1");
        assert!(gpus(&foreign).unwrap_err().contains("GPU-9"));
        assert!(gpus(&pod("{}", "1")).unwrap_err().contains("asks for 1"));
    }
}
