//! The disk limits of a pod, and when the pod exceeds them. Pure.
//!
//! The limits and the messages are the kubelet's (pkg/kubelet/eviction, `localStorageEviction`):
//! `emptyDir.sizeLimit` of each volume on disk, `limits.ephemeral-storage` of the pod and of each
//! container. A pod's use is that of its volumes on disk, logs, termination logs and the writable
//! layers of its containers with images. A pod without a total limit has the node's (`--pod-disk`)
//! plus the limits of its volumes, for its use of the file system of the agent's data: writable layers
//! on another one do not count. Example: with `--pod-disk 10Gi` and one volume with `sizeLimit: 100Gi`
//! it may use 110Gi.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use resources::names::EPHEMERAL_STORAGE;
use resources::quantity::Quantity;
use runtime::usage::DirectoryUsage;

/// The default disk limit of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodDisk {
    /// A tenth of the file system of the agent's data, but at least [`LEAST_POD_DISK`].
    Share,
    /// So many bytes.
    Bytes(u64),
    /// No limit.
    Unlimited,
}

/// A pod's default part of the file system: one in so many bytes.
const POD_DISK_SHARE: u64 = 10;

/// The minimum disk limit of a pod on a small file system.
pub const LEAST_POD_DISK: u64 = 1 << 30;

impl PodDisk {
    /// The limit in bytes, on a file system with so many.
    pub fn bytes(self, file_system: u64) -> Option<u64> {
        match self {
            PodDisk::Share => Some((file_system / POD_DISK_SHARE).max(LEAST_POD_DISK)),
            PodDisk::Bytes(bytes) => Some(bytes),
            PodDisk::Unlimited => None,
        }
    }
}

/// The disk limits and requests in a pod's spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskLimits {
    /// Its emptyDir volumes on disk, with their limits.
    pub volumes: BTreeMap<String, Option<Quantity>>,
    /// Its containers, with the limits of their logs.
    pub containers: BTreeMap<String, Option<Quantity>>,
    /// The limit of all together.
    total: Option<Quantity>,
    /// The request.
    request: Quantity,
    /// Its priority.
    pub priority: i32,
}

impl DiskLimits {
    /// Reads the limits from a pod.
    pub fn of(pod: &Pod) -> DiskLimits {
        let Some(spec) = &pod.spec else {
            return DiskLimits::default();
        };
        let mut volumes = BTreeMap::new();
        for volume in spec.volumes.iter().flatten() {
            let Some(source) = &volume.empty_dir else {
                continue;
            };
            if source.medium.as_deref().unwrap_or_default() != "Memory" {
                let limit = source.size_limit.as_ref().and_then(|size| read(&size.0));
                volumes.insert(volume.name.clone(), limit);
            }
        }
        let init = || spec.init_containers.iter().flatten();
        let all = init().chain(&spec.containers);
        let containers = all.map(|container| (container.name.clone(), limit(container)));
        DiskLimits {
            volumes,
            containers: containers.collect(),
            total: of_pod(init(), &spec.containers, limit),
            request: of_pod(init(), &spec.containers, request).unwrap_or_default(),
            priority: spec.priority.unwrap_or(0),
        }
    }

    /// Bytes that it uses beyond its request.
    pub fn above_request(&self, used: u64) -> u64 {
        used.saturating_sub(bytes(self.request))
    }
}

/// The measured disk use of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// Its volumes.
    pub volumes: BTreeMap<String, DirectoryUsage>,
    /// Its containers' logs.
    pub logs: BTreeMap<String, DirectoryUsage>,
    /// Its containers' termination logs.
    pub messages: DirectoryUsage,
    /// Its containers' writable layers, as the container runtime reports them.
    pub layers: BTreeMap<String, Layer>,
}

/// The writable layer of a container with an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// What it takes.
    pub usage: DirectoryUsage,
    /// Whether that is on the file system of the agent's data.
    pub on_data_disk: bool,
}

impl PodUsage {
    /// The sum, which the limits are for.
    pub fn total(&self) -> DirectoryUsage {
        self.sum(|_| true)
    }

    /// The sum on the file system of the agent's data, which an eviction frees.
    pub fn on_data_disk(&self) -> DirectoryUsage {
        self.sum(|layer| layer.on_data_disk)
    }

    fn sum(&self, counts: impl Fn(&Layer) -> bool) -> DirectoryUsage {
        let mut total = self.messages.clone();
        let parts = self.volumes.values().chain(self.logs.values());
        parts.for_each(|part| total.add(part));
        let layers = self.layers.values().filter(|layer| counts(layer));
        layers.for_each(|layer| total.add(&layer.usage));
        total
    }
}

/// Why a pod with this use is evicted; `None` if it is within its limits. `total` is the sum of
/// `usage`, and `default` the limit of a pod without a total.
pub fn exceeded(
    limits: &DiskLimits,
    usage: &PodUsage,
    total: &DirectoryUsage,
    default: Option<u64>,
) -> Option<String> {
    for (name, limit) in &limits.volumes {
        let Some(used) = usage.volumes.get(name) else {
            continue;
        };
        if let Some(limit) = limit.filter(|limit| used.bytes > bytes(*limit)) {
            return Some(format!(
                "Usage of EmptyDir volume \"{name}\" exceeds the limit \"{limit}\". "
            ));
        }
        if let Some(why) = &used.uncountable {
            return Some(format!(
                "Usage of EmptyDir volume \"{name}\" cannot be measured: {why}. "
            ));
        }
    }
    let used = total.bytes;
    match (limits.total, default) {
        (Some(total), _) if used > bytes(total) => {
            return Some(format!(
                "Pod ephemeral local storage usage exceeds the total limit of containers {total}. "
            ));
        }
        (None, Some(default)) => {
            let own = limits.volumes.values().flatten().map(|limit| bytes(*limit));
            let most = own.fold(default, u64::saturating_add);
            if usage.on_data_disk().bytes > most {
                return Some(format!(
                    "Pod ephemeral local storage usage exceeds {}, which this node allows a pod without limits.ephemeral-storage (--pod-disk). ",
                    written(most)
                ));
            }
        }
        _ => {}
    }
    limits.containers.iter().find_map(|(name, limit)| {
        let log = usage.logs.get(name).map_or(0, |log| log.bytes);
        let layer = usage.layers.get(name).map_or(0, |layer| layer.usage.bytes);
        let used = log.saturating_add(layer);
        let limit = limit.filter(|limit| used > bytes(*limit))?;
        Some(format!(
            "Container {name} exceeded its local ephemeral storage limit \"{limit}\". "
        ))
    })
}

/// Bytes as Kubernetes writes them.
pub fn written(bytes: u64) -> Quantity {
    Quantity::from_bytes(i64::try_from(bytes).unwrap_or(i64::MAX))
}

/// The amount of a whole pod: the sum of all containers that run at a time, or the highest of an
/// init container.
fn of_pod<'a>(
    init: impl Iterator<Item = &'a Container> + Clone,
    main: &'a [Container],
    amount: fn(&Container) -> Option<Quantity>,
) -> Option<Quantity> {
    let goes_on = |c: &&Container| c.restart_policy.as_deref() == Some("Always");
    let together = init.clone().filter(goes_on).chain(main);
    let together = together.filter_map(amount).reduce(|a, b| a + b);
    let before = init.filter(|c| !goes_on(c)).filter_map(amount).max();
    together.max(before)
}

fn limit(container: &Container) -> Option<Quantity> {
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    read(&limits.get(EPHEMERAL_STORAGE)?.0)
}

/// If only a limit is given, Kubernetes requests as much.
fn request(container: &Container) -> Option<Quantity> {
    let requests = container.resources.as_ref()?.requests.as_ref();
    let written = requests.and_then(|requests| read(&requests.get(EPHEMERAL_STORAGE)?.0));
    written.or_else(|| limit(container))
}

/// A positive amount; any other value sets no limit.
fn read(text: &str) -> Option<Quantity> {
    let amount = text.parse::<Quantity>().ok();
    amount.filter(|amount| *amount > Quantity::ZERO)
}

fn bytes(amount: Quantity) -> u64 {
    u64::try_from(amount.value()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MI: u64 = 1 << 20;

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    fn of(bytes: u64) -> DirectoryUsage {
        DirectoryUsage {
            bytes,
            files: 1,
            ..DirectoryUsage::default()
        }
    }

    fn why(limits: &DiskLimits, usage: &PodUsage, default: Option<u64>) -> Option<String> {
        exceeded(limits, usage, &usage.total(), default)
    }

    /// One container with its resources, and volumes.
    fn limits(resources: Value, volumes: Value) -> DiskLimits {
        DiskLimits::of(&pod(json!({
            "containers": [{"name": "main", "resources": resources}], "volumes": volumes})))
    }

    #[test]
    fn a_pod_is_evicted_by_the_limit_that_it_exceeds_in_the_kubelets_words() {
        let volumes = || json!([{"name": "x", "emptyDir": {"sizeLimit": "1Gi"}}, {"name": "y", "emptyDir": {}}]);
        let none = || json!({});
        let limited = || json!({"limits": {"ephemeral-storage": "2Gi"}});
        let default = Some(1024 * MI);
        for (resources, [x, y, log], default, words) in [
            (none(), [1024, 0, 0], default, None),
            (
                none(),
                [1025, 0, 0],
                default,
                Some("Usage of EmptyDir volume \"x\" exceeds the limit \"1Gi\". "),
            ),
            // The limits of its volumes are added to the node's.
            (none(), [1000, 1000, 48], default, None),
            (
                none(),
                [1000, 1000, 49],
                default,
                Some(
                    "Pod ephemeral local storage usage exceeds 2Gi, which this node allows a pod without limits.ephemeral-storage (--pod-disk). ",
                ),
            ),
            (none(), [0, 1 << 20, 0], None, None),
            (limited(), [1000, 1048, 0], default, None),
            (
                limited(),
                [1000, 1040, 9],
                default,
                Some(
                    "Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. ",
                ),
            ),
        ] {
            let usage = PodUsage {
                volumes: [("x".to_owned(), of(x * MI)), ("y".to_owned(), of(y * MI))].into(),
                logs: [("main".to_owned(), of(log * MI))].into(),
                ..PodUsage::default()
            };
            let found = why(&limits(resources, volumes()), &usage, default);
            assert_eq!(found.as_deref(), words, "{x} {y} {log}");
        }
    }

    #[test]
    fn a_termination_log_counts_and_one_container_may_exceed_its_own_limit() {
        let spec = json!({"containers": [
            {"name": "a", "resources": {"limits": {"ephemeral-storage": "10Mi"}}},
            {"name": "b", "resources": {"limits": {"ephemeral-storage": "90Mi"}}}]});
        let limits = DiskLimits::of(&pod(spec));
        let mut usage = PodUsage {
            messages: of(101 * MI),
            ..PodUsage::default()
        };
        let words = why(&limits, &usage, None).unwrap();
        assert!(words.contains("total limit of containers 100Mi"), "{words}");
        usage.messages = of(MI);
        usage.logs.insert("a".to_owned(), of(11 * MI));
        let words = "Container a exceeded its local ephemeral storage limit \"10Mi\". ";
        assert_eq!(why(&limits, &usage, None).as_deref(), Some(words));
        // Its log and its writable layer count together, on whatever file system the layer is.
        usage.logs.insert("a".to_owned(), of(6 * MI));
        assert_eq!(why(&limits, &usage, None), None);
        let layer = Layer {
            usage: of(5 * MI),
            on_data_disk: false,
        };
        usage.layers.insert("a".to_owned(), layer);
        assert_eq!(why(&limits, &usage, None).as_deref(), Some(words));
        assert_eq!(usage.total().bytes, 12 * MI);
        assert_eq!(usage.on_data_disk().bytes, 7 * MI);
    }

    #[test]
    fn a_layer_counts_for_the_nodes_default_limit_only_on_the_nodes_data_disk() {
        let limits = limits(json!({}), json!([]));
        for (on_data_disk, evicted) in [(true, true), (false, false)] {
            let layer = Layer {
                usage: of(2 * MI),
                on_data_disk,
            };
            let usage = PodUsage {
                layers: [("main".to_owned(), layer)].into(),
                ..PodUsage::default()
            };
            let found = why(&limits, &usage, Some(MI));
            assert_eq!(found.is_some(), evicted, "{on_data_disk}");
        }
    }

    #[test]
    fn a_directory_that_cannot_be_measured_does_not_count_as_empty() {
        let limits = limits(json!({}), json!([{"name": "x", "emptyDir": {}}]));
        let mut deep = of(1);
        deep.uncountable = Some("too deep".to_owned());
        let usage = PodUsage {
            volumes: [("x".to_owned(), deep)].into(),
            ..PodUsage::default()
        };
        assert_eq!(
            why(&limits, &usage, None).unwrap(),
            "Usage of EmptyDir volume \"x\" cannot be measured: too deep. "
        );
    }

    #[test]
    fn memory_is_no_disk_and_a_limit_of_nothing_is_none() {
        let found = limits(
            json!({"limits": {"ephemeral-storage": "0"}}),
            json!([{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1"}},
                {"name": "z", "emptyDir": {"sizeLimit": "0"}}, {"name": "h", "hostPath": {"path": "/x"}}]),
        );
        assert_eq!(found.volumes, BTreeMap::from([("z".to_owned(), None)]));
        assert_eq!(found.total, None);
    }

    #[test]
    fn a_pods_amounts_are_those_of_its_containers_together_or_of_its_largest_init_container() {
        let one = |name: &str, mi: u64, restart: Option<&str>| {
            json!({"name": name, "restartPolicy": restart,
                "resources": {"limits": {"ephemeral-storage": format!("{mi}Mi")}}})
        };
        for (init, total) in [(10, 35), (50, 50)] {
            let spec = json!({
                "initContainers": [one("i", init, None), one("s", 5, Some("Always"))],
                "containers": [one("a", 10, None), one("b", 20, None)]});
            let limits = DiskLimits::of(&pod(spec));
            assert_eq!(limits.total.map(bytes), Some(total * MI));
            assert_eq!(limits.above_request(total * MI + 7), 7);
        }
    }

    #[test]
    fn a_pod_that_names_nothing_has_a_tenth_of_the_disk_but_never_next_to_nothing() {
        assert_eq!(PodDisk::Share.bytes(500 << 30), Some(50 << 30));
        assert_eq!(PodDisk::Share.bytes(4 << 30), Some(LEAST_POD_DISK));
        assert_eq!(PodDisk::Bytes(7).bytes(1 << 40), Some(7));
        assert_eq!(PodDisk::Unlimited.bytes(1 << 40), None);
    }
}
