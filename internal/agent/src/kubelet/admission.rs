//! Finds the container for which the kubelet requests devices. Its requests contain device ids and
//! counts only, never the pod, yet the scheduler chose devices for each pod. Pure.
//!
//! Why the answer cannot be another pod's devices: the kubelet admits pods one after another, on
//! one thread. It adds a pod to the list that its pod resources API returns before it admits the
//! pod, requests the devices of one container at a time, and records a container's devices in that
//! list before it requests the next container's; a rejected pod leaves the list
//! (`HandlePodAdditions`, `rejectPod` and the device manager's `allocateContainerResources` of
//! Kubernetes 1.34). So among the listed pods that request the resource exactly one lacks it: the
//! pod being admitted. If that doesn't hold (a pod was admitted while no plugin was registered, and
//! got nothing), the request's size decides; if two candidates remain, the request fails: one pod
//! that fails and is recreated is better than two pods with each other's devices.

use std::collections::{BTreeMap, BTreeSet};

use devices::share::share_of;
use devices::{allocation, offer};
use k8s_openapi::api::core::v1::{Container, Pod};
use resources::devices::chosen;
use resources::parts::SharedPart;

/// A pod as the kubelet lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The resource's devices that each of its containers holds.
    pub held: BTreeMap<String, Vec<String>>,
}

/// The container for which the kubelet requests devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestingContainer {
    /// `namespace/name` of its pod.
    pub pod: String,
    /// The pod's uid.
    pub uid: String,
    /// The container's name.
    pub container: String,
    /// How many devices it requests.
    pub count: usize,
    /// The devices that the scheduler chose for it; `None` when another scheduler placed the pod.
    pub chosen: Option<Vec<String>>,
    /// The part of each of these devices that it requests; `None` if it requests all.
    pub share: Option<SharedPart>,
    /// The environment variables that the container sets itself.
    pub own: BTreeSet<String>,
    /// Whether its pod uses the host network.
    pub in_nodes_network: bool,
    /// Every resource that it requests.
    pub asks: BTreeSet<String>,
}

impl RequestingContainer {
    /// The proposed variables that the container doesn't set itself. Variables from a ConfigMap or
    /// Secret take precedence anyway, because the kubelet sets a plugin's variables first.
    pub fn takes(
        &self,
        proposed: Vec<(&'static str, String)>,
    ) -> impl Iterator<Item = (String, String)> {
        let wanted = proposed.into_iter();
        let taken = wanted.filter(|(name, _)| !self.own.contains(*name));
        taken.map(|(name, value)| (name.to_owned(), value))
    }
}

/// Why the container for which the kubelet requests devices is unknown.
#[derive(Debug, thiserror::Error)]
pub enum RequesterError {
    /// No listed pod lacks so many devices.
    #[error(
        "the kubelet asks for {size} of {resource}, but lists no pod that waits for so many{waiting}"
    )]
    Missing {
        /// The resource.
        resource: String,
        /// The number of requested devices.
        size: usize,
        /// The listed pods that lack another number of devices, in brackets; empty if there are none.
        waiting: String,
    },
    /// Several listed pods lack so many devices.
    #[error(
        "the kubelet asks for {size} of {resource}, and more than one pod lacks so many{pods}; delete the one \
         that runs without its devices"
    )]
    Several {
        /// The resource.
        resource: String,
        /// The number of requested devices.
        size: usize,
        /// These pods, in brackets.
        pods: String,
    },
}

/// Containers that were answered, by pod uid and name: the kubelet's list omits init containers.
pub type Answered = BTreeSet<(String, String)>;

/// Finds the container for which `size` devices are requested.
///
/// # Errors
///
/// The kubelet lists no such container, or several.
pub fn asking(
    resource: &str,
    size: usize,
    listed: &[ListedPod],
    pods: &[Pod],
    answered: &Answered,
) -> Result<RequestingContainer, RequesterError> {
    let candidates: Vec<RequestingContainer> = pods
        .iter()
        .filter_map(|pod| {
            let (namespace, name) = named(pod);
            let listed = (listed.iter())
                .find(|listed| listed.name == name && listed.namespace == namespace)?;
            next_of(resource, pod, listed, answered)
        })
        .collect();
    let of_size: Vec<&RequestingContainer> = (candidates.iter())
        .filter(|asking| asking.count == size)
        .collect();
    match of_size[..] {
        [only] => Ok(only.clone()),
        [] => Err(RequesterError::Missing {
            resource: resource.to_owned(),
            size,
            waiting: names(&candidates.iter().collect::<Vec<_>>()),
        }),
        _ => Err(RequesterError::Several {
            resource: resource.to_owned(),
            size,
            pods: names(&of_size),
        }),
    }
}

/// Devices that the scheduler chose for the pods of this node except `except`: no other pod may get
/// them.
pub fn spoken_for(resource: &str, pods: &[Pod], except: &str) -> BTreeSet<String> {
    let live = |pod: &&Pod| {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        !matches!(phase, Some("Succeeded" | "Failed"))
    };
    (pods.iter())
        .filter(live)
        .filter(|pod| pod.metadata.uid.as_deref() != Some(except))
        .flat_map(|pod| chosen(pod.metadata.annotations.as_ref()).into_values())
        .filter_map(|mut devices| devices.remove(offer::chosen_as(resource)))
        .flatten()
        .collect()
}

fn names(asking: &[&RequestingContainer]) -> String {
    match asking {
        [] => String::new(),
        some => {
            let names = some.iter().map(|asking| asking.pod.as_str());
            format!(" ({})", names.collect::<Vec<_>>().join(", "))
        }
    }
}

fn named(pod: &Pod) -> (&str, &str) {
    let metadata = &pod.metadata;
    (
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

/// The pod's first container, in the kubelet's order, that requests the resource and has none.
fn next_of(
    resource: &str,
    pod: &Pod,
    listed: &ListedPod,
    answered: &Answered,
) -> Option<RequestingContainer> {
    let spec = pod.spec.as_ref()?;
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let by_container = chosen(pod.metadata.annotations.as_ref());
    let written = offer::chosen_as(resource);
    let of = |container: &str| Some(by_container.get(container)?.get(written)?.clone());
    let all = || spec.containers.iter();
    let holds = |name: &str| listed.held.get(name).is_some_and(|held| !held.is_empty());
    // Init containers come first; the pod's later containers reuse their devices.
    let begun = all().any(|container| holds(&container.name));
    let inits = spec.init_containers.iter().flatten().filter(|_| !begun);
    let found = inits
        .map(|container| (container, true))
        .chain(all().map(|container| (container, false)))
        .find(|(container, _)| {
            requested_count(resource, container) > 0
                && !holds(&container.name)
                && !answered.contains(&(uid.clone(), container.name.clone()))
        });
    let (container, init) = found?;
    let count = requested_count(resource, container);
    let chosen = of(&container.name).or_else(|| {
        let mut pods_own = all().filter_map(|other| of(&other.name)).flatten();
        let wanted = if offer::is_part(resource) { 1 } else { count };
        let taken: Vec<String> = pods_own.by_ref().take(wanted).collect();
        (init && taken.len() == wanted).then_some(taken)
    });
    let (namespace, name) = named(pod);
    Some(RequestingContainer {
        pod: format!("{namespace}/{name}"),
        uid: uid.clone(),
        container: container.name.clone(),
        count,
        share: chosen.as_ref().and_then(|_| share_of(pod)),
        chosen,
        own: (container.env.iter().flatten())
            .map(|variable| variable.name.clone())
            .collect(),
        in_nodes_network: spec.host_network == Some(true),
        asks: allocation::limits(container),
    })
}

/// How many of the resource a container requests.
fn requested_count(resource: &str, container: &Container) -> usize {
    let amounts = container.resources.as_ref();
    let limits = amounts.and_then(|amounts| amounts.limits.as_ref()?.get(resource));
    let requests = || amounts.and_then(|amounts| amounts.requests.as_ref()?.get(resource));
    let quantity = limits.or_else(requests);
    quantity
        .and_then(|quantity| quantity.0.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use serde_json::json;

    use super::*;

    const GPU: &str = resources::names::NVIDIA_GPU;

    /// A pod whose containers request these numbers; the chosen ids are `NAME-CONTAINER-N`.
    fn pod(name: &str, containers: &[(&str, usize)]) -> Pod {
        let devices: BTreeMap<_, _> = (containers.iter())
            .map(|(container, count)| {
                let ids: Vec<String> = (0..*count)
                    .map(|n| format!("{name}-{container}-{n}"))
                    .collect();
                (container.to_string(), json!({GPU: ids}))
            })
            .collect();
        let containers: Vec<_> = (containers.iter())
            .map(|(name, count)| json!({"name": name, "resources": {"limits": {GPU: count.to_string()}}}))
            .collect();
        serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": name, "uid": format!("uid-{name}"),
                "annotations": {resources::names::DEVICES: json!(devices).to_string()}},
            "spec": {"containers": containers},
        }))
        .expect("a pod")
    }

    fn listed(name: &str, held: &[(&str, &[&str])]) -> ListedPod {
        let held = held.iter().map(|(container, ids)| {
            let ids = ids.iter().map(ToString::to_string).collect();
            (container.to_string(), ids)
        });
        ListedPod {
            namespace: "n".into(),
            name: name.into(),
            held: held.collect(),
        }
    }

    #[test]
    fn the_pod_that_is_listed_without_devices_is_the_one_being_admitted() {
        let pods = [
            pod("a", &[("c", 2)]),
            pod("b", &[("c", 2)]),
            pod("later", &[("c", 2)]),
        ];
        // The kubelet has allocated a's devices and admits b; `later` is bound, but not listed yet.
        let kubelet = [listed("a", &[("c", &["a-c-0", "a-c-1"])]), listed("b", &[])];
        let found = asking(GPU, 2, &kubelet, &pods, &Answered::new()).expect("it is b");
        assert_eq!(found.pod, "n/b");
        assert_eq!(found.chosen, Some(vec!["b-c-0".into(), "b-c-1".into()]));
    }

    #[test]
    fn a_pods_containers_are_asked_for_in_their_order() {
        let pods = [pod("a", &[("first", 1), ("none", 0), ("second", 1)])];
        let before = asking(GPU, 1, &[listed("a", &[])], &pods, &Answered::new());
        assert_eq!(before.expect("the first").container, "first");
        let kubelet = [listed("a", &[("first", &["a-first-0"])])];
        let after = asking(GPU, 1, &kubelet, &pods, &Answered::new());
        assert_eq!(after.expect("the second").container, "second");
    }

    #[test]
    fn variables_that_a_container_sets_itself_are_not_overridden() {
        let mut pod = pod("a", &[("c", 1)]);
        let spec = pod.spec.as_mut().expect("a spec");
        spec.containers[0].env =
            serde_json::from_value(json!([{"name": "NCCL_IB_HCA", "value": "mine"}])).expect("env");
        let resources = spec.containers[0].resources.as_mut().expect("resources");
        let limits = resources.limits.as_mut().expect("limits");
        limits.extend(
            [("rdma/hca", "2"), ("rdma/none", "0")]
                .map(|(name, count)| (name.to_owned(), Quantity(count.to_owned()))),
        );
        let found = asking(GPU, 1, &[listed("a", &[])], &[pod], &Answered::new());
        let found = found.expect("it asks");
        let proposed = vec![
            ("NCCL_IB_HCA", "=mlx5_0:1".to_owned()),
            ("NCCL_IB_GID_INDEX", "3".to_owned()),
        ];
        let index = ("NCCL_IB_GID_INDEX".to_owned(), "3".to_owned());
        assert_eq!(found.takes(proposed).collect::<Vec<_>>(), [index]);
        let asks = [GPU, "rdma/hca"].map(str::to_owned);
        assert_eq!((found.asks, found.in_nodes_network), (asks.into(), false));
    }

    #[test]
    fn an_init_container_uses_the_devices_that_its_pod_is_given() {
        let mut with_init = pod("a", &[("c", 2)]);
        let spec = with_init.spec.as_mut().expect("a spec");
        let mut init = spec.containers[0].clone();
        init.name = "init".into();
        spec.init_containers = Some(vec![init]);
        let pods = [with_init];
        let kubelet = [listed("a", &[])];
        let mut answered = Answered::new();
        let first = asking(GPU, 2, &kubelet, &pods, &answered).expect("the init container");
        assert_eq!(first.container, "init");
        assert_eq!(first.chosen, Some(vec!["a-c-0".into(), "a-c-1".into()]));
        answered.insert((first.uid, first.container));
        let second = asking(GPU, 2, &kubelet, &pods, &answered).expect("the container");
        assert_eq!(second.container, "c");
    }

    #[test]
    fn a_part_belongs_to_the_gpu_that_the_scheduler_chose() {
        let mut small = pod("a", &[("c", 1)]);
        let spec = small.spec.as_mut().expect("a spec");
        let memory = resources::names::ALIYUN_GPU_MEMORY;
        let limits = json!({"limits": {memory: "10"}});
        spec.containers[0].resources = serde_json::from_value(limits).expect("resources");
        let pods = [small];
        let found = asking(memory, 10, &[listed("a", &[])], &pods, &Answered::new());
        let found = found.expect("it is a");
        assert_eq!(found.chosen, Some(vec!["a-c-0".into()]));
        let part = found.share.map(|share| share.part);
        assert_eq!(part, Some(resources::parts::GpuPart::Memory(10_240)));
        assert!(
            spoken_for(GPU, &pods, "").contains("a-c-0"),
            "no pod has it whole"
        );
    }

    #[test]
    fn the_size_distinguishes_a_pod_from_one_without_devices() {
        let pods = [pod("bare", &[("c", 1)]), pod("now", &[("c", 2)])];
        let kubelet = [listed("bare", &[]), listed("now", &[])];
        let found = asking(GPU, 2, &kubelet, &pods, &Answered::new()).expect("by its size");
        assert_eq!(found.pod, "n/now");
    }

    #[test]
    fn a_request_that_matches_two_pods_or_none_fails() {
        let pods = [pod("a", &[("c", 1)]), pod("b", &[("c", 1)])];
        let kubelet = [listed("a", &[]), listed("b", &[])];
        let both = asking(GPU, 1, &kubelet, &pods, &Answered::new()).expect_err("ambiguous");
        let both = both.to_string();
        assert!(both.contains("(n/a, n/b)"), "{both}");
        let none = asking(GPU, 1, &[], &pods, &Answered::new()).expect_err("no pod asks");
        let none = none.to_string();
        assert!(none.contains("lists no pod"), "{none}");
    }

    #[test]
    fn devices_chosen_for_other_pods_are_reserved_until_they_end() {
        let mut ended = pod("ended", &[("c", 1)]);
        ended.status = serde_json::from_value(json!({"phase": "Failed"})).expect("a status");
        let pods = [pod("a", &[("c", 1)]), pod("b", &[("c", 1)]), ended];
        let taken = spoken_for(GPU, &pods, "uid-a");
        assert_eq!(taken, BTreeSet::from(["b-c-0".to_string()]));
    }
}
