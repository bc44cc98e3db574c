//! Finds the container of a process: by its control group, whose path names the container, or by
//! its ancestors. Reads `/proc`; if the agent sees other process ids than the driver (in a
//! container without the host's), it finds no containers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use crate::holders::DeviceHolder;

/// Maximum number of ancestors to examine.
const MOST_ANCESTORS: usize = 64;

/// The containers to which processes may belong.
#[derive(Debug, Default)]
pub struct Containers {
    /// By a part of their control group's path.
    groups: BTreeMap<String, DeviceHolder>,
    /// By their first process.
    first: BTreeMap<i32, DeviceHolder>,
}

impl Containers {
    /// The agent's own containers.
    pub fn own(running: &[runtime::ContainerStatus]) -> Containers {
        let mut containers = Containers::default();
        for status in running {
            let holder = DeviceHolder {
                namespace: status.pod.namespace.clone(),
                pod: status.pod.name.clone(),
                container: status.name.clone(),
            };
            let id = status.id.as_str().to_owned();
            containers.groups.insert(id, holder.clone());
            if let runtime::ContainerState::Running { process, .. } = &status.state {
                containers.first.insert(process.pid, holder);
            }
        }
        containers
    }

    /// A kubelet's containers: by the container ids in their pods' statuses.
    pub fn of_pods(pods: &[Pod]) -> Containers {
        let mut containers = Containers::default();
        for pod in pods {
            let status = pod.status.as_ref();
            let statuses = status.and_then(|status| status.container_statuses.as_ref());
            for status in statuses.into_iter().flatten() {
                // `containerd://0123...`
                let id = status.container_id.as_deref().unwrap_or_default();
                let Some((_, id)) = id.split_once("://") else {
                    continue;
                };
                let holder = DeviceHolder {
                    namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                    pod: pod.metadata.name.clone().unwrap_or_default(),
                    container: status.name.clone(),
                };
                containers.groups.insert(id.to_owned(), holder);
            }
        }
        containers
    }

    /// The container of a process.
    pub fn of(&self, pid: u32) -> Option<DeviceHolder> {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        if let Some(holder) = self.of_groups(&groups) {
            return Some(holder.clone());
        }
        let mut pid = i32::try_from(pid).ok()?;
        for _ in 0..MOST_ANCESTORS {
            if let Some(holder) = self.first.get(&pid) {
                return Some(holder.clone());
            }
            pid = runtime::proc::stat(pid)?.parent;
        }
        None
    }

    /// Finds the container from the lines of `/proc/PID/cgroup`. Runtimes write a container's id as
    /// a directory, or as a systemd unit: `cri-containerd-ID.scope`.
    fn of_groups(&self, groups: &str) -> Option<&DeviceHolder> {
        let parts = groups.split(['/', '\n']);
        parts.filter(|part| !part.is_empty()).find_map(|part| {
            let unit = part.strip_suffix(".scope").unwrap_or(part);
            let id = unit.rsplit_once('-').map_or(unit, |(_, id)| id);
            self.groups.get(part).or_else(|| self.groups.get(id))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_of_the_container_that_its_control_group_names() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"namespace": "n", "name": "p"},
            "status": {"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true,
                "restartCount": 0, "containerID": "containerd://0abc"}]},
        }))
        .expect("a pod");
        let containers = Containers::of_pods(&[pod]);
        let found = |groups: &str| containers.of_groups(groups).map(|it| it.container.as_str());
        for groups in [
            "0::/kubepods/burstable/pod1234/0abc\n",
            "0::/kubepods.slice/kubepods-pod1234.slice/cri-containerd-0abc.scope\n",
            "2:cpu:/\n1:memory:/kubepods/pod1234/0abc\n",
        ] {
            assert_eq!(found(groups), Some("c"), "{groups}");
        }
        for groups in [
            "",
            "0::/\n",
            "0::/kubepods/pod1234/0abcd\n",
            "0::/user.slice\n",
        ] {
            assert_eq!(found(groups), None, "{groups}");
        }
    }

    #[test]
    fn a_process_without_a_control_group_of_its_own_is_its_ancestors() {
        let holder = DeviceHolder {
            pod: "p".into(),
            ..DeviceHolder::default()
        };
        let parent = std::os::unix::process::parent_id();
        let containers = Containers {
            first: [(parent as i32, holder.clone())].into(),
            ..Containers::default()
        };
        assert_eq!(containers.of(std::process::id()), Some(holder));
        assert_eq!(containers.of(u32::MAX), None);
    }
}
