//! Which containers hold a share of a GPU's memory, on the embedded engine or a kubelet. Pure.

use k8s_openapi::api::core::v1::Pod;
use resources::devices::chosen;
use resources::parts::SharedPart;

use super::excess::GpuShare;
use crate::holders::DeviceHolder;
use crate::inventory::NodeHardware;
use crate::share::{ShareLimit, share_of};

/// The GPU of a shared device's id, as the kubelet knows it; `None` for a whole GPU's id.
pub fn shared(id: &str) -> Option<&str> {
    id.split_once("::").map(|(gpu, _)| gpu)
}

/// The size of a share on one of the machine's GPUs, in MiB; `None` if it is all of the GPU's
/// memory.
fn memory_of(share: &SharedPart, gpu: &str, machine: &NodeHardware) -> Option<u64> {
    let memory = machine.inventory.memory_of(gpu)?;
    ShareLimit::of_share(share, memory).memory_mib
}

/// The shares of the agent's own pods: each container with its pod's uid, its share, and its GPUs.
pub fn of_own(
    shares: &[(String, DeviceHolder, SharedPart, Vec<String>)],
    machine: &NodeHardware,
) -> Vec<GpuShare> {
    let of = |(uid, holder, share, gpus): &(String, DeviceHolder, SharedPart, Vec<String>)| {
        let one = |gpu: &String| {
            Some(GpuShare {
                holder: holder.clone(),
                uid: uid.clone(),
                gpu: gpu.clone(),
                may_mib: memory_of(share, gpu, machine)?,
            })
        };
        gpus.iter().filter_map(one).collect::<Vec<GpuShare>>()
    };
    shares.iter().flat_map(of).collect()
}

/// The shares of a kubelet's pods, which lists the shared devices of each. If the scheduler chose
/// the devices, the share is the pod's request; otherwise it is the part that MPS gives each
/// container. A container that uses a time-sliced GPU and requests no share has no limit to exceed.
pub fn of_kubelet(
    pods: &[Pod],
    listed: &[(DeviceHolder, String)],
    machine: &NodeHardware,
) -> Vec<GpuShare> {
    let mut held: Vec<GpuShare> = Vec::new();
    for (holder, id) in listed {
        let is = |pod: &&Pod| {
            let metadata = &pod.metadata;
            metadata.namespace.as_deref() == Some(&holder.namespace)
                && metadata.name.as_deref() == Some(&holder.pod)
                && metadata.deletion_timestamp.is_none()
        };
        let (Some(pod), Some(gpu)) = (pods.iter().find(is), shared(id)) else {
            continue;
        };
        let chosen = chosen(pod.metadata.annotations.as_ref());
        let may = if chosen.contains_key(&holder.container) {
            share_of(pod).and_then(|share| memory_of(&share, gpu, machine))
        } else {
            machine
                .mps
                .get(gpu)
                .and_then(|stand| stand.limit.memory_mib)
        };
        let Some(may_mib) = may else { continue };
        let one = GpuShare {
            holder: holder.clone(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            gpu: gpu.to_owned(),
            may_mib,
        };
        // A part consists of many of the kubelet's devices.
        if !held.contains(&one) {
            held.push(one);
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use resources::devices::{GpuDevice, NodeInventory};
    use resources::parts::GpuPart;
    use serde_json::json;

    use super::*;
    use crate::mps::{MpsDaemonState, MpsDaemonStates};

    fn machine() -> NodeHardware {
        let gpu = |id: &str| GpuDevice {
            id: id.into(),
            memory_mib: 80_000,
            ..GpuDevice::default()
        };
        let stand = MpsDaemonState {
            limit: ShareLimit::of_replica(4, 80_000),
            ..MpsDaemonState::default()
        };
        NodeHardware {
            inventory: NodeInventory {
                gpus: ["GPU-1", "GPU-2"].map(gpu).into(),
                ..NodeInventory::default()
            },
            mps: MpsDaemonStates::from([("GPU-2".to_owned(), stand)]),
            ..NodeHardware::default()
        }
    }

    fn holder(pod: &str) -> DeviceHolder {
        DeviceHolder {
            namespace: "n".into(),
            pod: pod.into(),
            container: "c".into(),
        }
    }

    fn pod(name: &str, notes: &serde_json::Value, limits: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": name, "uid": format!("uid-{name}"),
                "annotations": notes},
            "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
        }))
        .expect("a pod")
    }

    #[test]
    fn a_kubelets_container_has_its_pods_request_or_the_mps_part() {
        let chosen = |gpu: &str| json!({"c": {"nvidia.com/gpu": [gpu]}}).to_string();
        let memory = json!({"aliyun.com/gpu-mem": "2"});
        let part = json!({"muster.io/devices": chosen("GPU-1")});
        let whole = json!({"muster.io/devices": chosen("GPU-2")});
        let mut leaving = pod("leaving", &part, &memory);
        let now = "2026-01-01T00:00:00Z";
        leaving.metadata.deletion_timestamp = serde_json::from_value(json!(now)).expect("a time");
        let pods = [
            pod("part", &part, &memory),
            pod("whole", &whole, &json!({"nvidia.com/gpu": "1"})),
            pod(
                "replica",
                &json!({}),
                &json!({"nvidia.com/gpu.shared": "1"}),
            ),
            pod("turns", &json!({}), &json!({"nvidia.com/gpu.shared": "1"})),
            leaving,
        ];
        let listed = [
            (holder("part"), "GPU-1::0".to_owned()),
            (holder("part"), "GPU-1::1".to_owned()),
            (holder("whole"), "GPU-2::0".to_owned()),
            (holder("replica"), "GPU-2::1".to_owned()),
            (holder("turns"), "GPU-1::3".to_owned()),
            (holder("leaving"), "GPU-1::4".to_owned()),
            (holder("stranger"), "GPU-1::5".to_owned()),
        ];
        let found = of_kubelet(&pods, &listed, &machine());
        let told: Vec<(&str, &str, u64)> = (found.iter())
            .map(|held| (&*held.uid, &*held.gpu, held.may_mib))
            .collect();
        let wanted = [
            ("uid-part", "GPU-1", 2048),
            ("uid-replica", "GPU-2", 20_000),
        ];
        assert_eq!(told, wanted);
    }

    #[test]
    fn of_the_agents_own_each_gpu_of_a_share_counts() {
        let share = SharedPart {
            part: GpuPart::Milli(500),
            gpus: 2,
        };
        let gpus = ["GPU-1", "GPU-2", "GPU-9"].map(str::to_owned).to_vec();
        let found = of_own(&[("u".into(), holder("p"), share, gpus)], &machine());
        let told: Vec<_> = found.iter().map(|it| (&*it.gpu, it.may_mib)).collect();
        assert_eq!(told, [("GPU-1", 40_000), ("GPU-2", 40_000)]);
    }
}
