//! Builds one container's spec for the runtime from the pod's. Pure but for the existence of device
//! files and mounts of other vendors, the list of GPU device files in /dev, and the groups of the
//! allocated device files.

use std::path::{Path, PathBuf};

use devices::allocation::Allocation;
use devices::inventory::Machine;
use devices::{device_groups, nccl};
use k8s_openapi::api::core::v1::{Container, Pod};
use resources::quantity::Quantity;
use rpc::agent::v1::ContainerEnv;
use runtime::spec::{DEFAULT_PATH, PullPolicy};
use runtime::{ContainerId, ContainerSpec, DevicePolicy, Limits, LogSettings, Mount};

use crate::accounts::Owner;
use crate::confinement::{self, Ground};
use crate::env::{self, Variables};
use crate::fields::NodeFacts;
use crate::temporary;
use crate::volumes::Places;

/// Default path of a container's termination message file.
pub const DEFAULT_MESSAGE_PATH: &str = "/dev/termination-log";

/// The maximum length of a host name.
const MAX_HOSTNAME: usize = 63;

/// The inputs of a container's spec.
pub struct Parts<'a> {
    /// Its pod.
    pub pod: &'a Pod,
    /// The container.
    pub container: &'a Container,
    /// Values from ConfigMaps and Secrets.
    pub resolved: Option<&'a ContainerEnv>,
    /// The node.
    pub node: &'a NodeFacts,
    /// The node's devices.
    pub machine: &'a Machine,
    /// The pod's volumes.
    pub places: &'a Places,
    /// The pod's hosts file.
    pub hosts_file: &'a Path,
    /// The file for the container's termination message.
    pub message_file: &'a Path,
    /// Its log.
    pub log: PathBuf,
    /// Whether a container runtime runs it in an image, not the node as a process.
    pub in_image: bool,
    /// The directory of device files, normally /dev.
    pub dev: &'a Path,
    /// The user of the pod; `None` if the agent can't run processes as another user.
    pub owner: Option<&'a Owner>,
    /// The limits of every pod on the node.
    pub bounds: &'a Bounds,
}

/// The limits of every pod on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Directories of the node that are hidden from pods.
    pub hidden: Vec<PathBuf>,
    /// Processes and threads that a container may have.
    pub processes: u64,
    /// Size limit of each of its private temporary directories, in bytes.
    pub temporary: u64,
    /// Whether pods that run as an id assigned by the node see the host's own files read-only.
    pub read_only_host: bool,
}

/// The spec; an error is the reason why the container can't be created.
pub fn describe(parts: &Parts, attempt: u32) -> Result<ContainerSpec, String> {
    let Parts { pod, container, .. } = parts;
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let id = ContainerId::of(uid, &container.name, attempt).map_err(|e| e.to_string())?;
    let allocation = Allocation::of(pod, container, parts.machine).map_err(|e| e.to_string())?;
    let mut variables = variables(parts, &allocation)?;
    let held = confine(parts, &allocation)?;
    // An isolated process has no rights of root: its home is its owner's.
    let owner = parts.owner.filter(|_| held.isolation.is_some());
    let home = owner.filter(|_| !parts.in_image);
    if let Some(owner) = home {
        variables.set_default("HOME", &owner.home.display().to_string());
        // Without it programs look up the name of an id that has none.
        variables.set_default("USER", &owner.name);
        variables.set_default("LOGNAME", &owner.name);
    }
    let expand = |words: &Option<Vec<String>>| -> Vec<String> {
        words
            .iter()
            .flatten()
            .map(|word| variables.expand(word))
            .collect()
    };
    let (command, args) = (expand(&container.command), expand(&container.args));
    if !parts.in_image && command.is_empty() && args.is_empty() {
        return Err(format!(
            "container {:?} has neither command nor args, and without its image nothing says what to run",
            container.name
        ));
    }
    let mut spec = ContainerSpec::new(id, command, parts.log.clone());
    spec.args = args;
    spec.pod = runtime::PodRef {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: uid.to_owned(),
    };
    spec.name.clone_from(&container.name);
    spec.attempt = attempt;
    spec.image = container.image.clone().filter(|_| parts.in_image);
    spec.pull = match container.image_pull_policy.as_deref() {
        Some("Always") => PullPolicy::Always,
        Some("Never") => PullPolicy::Never,
        _ => PullPolicy::IfNotPresent,
    };
    spec.cwd = container.working_dir.as_ref().map(PathBuf::from);
    spec.cwd = spec.cwd.or_else(|| home.map(|owner| owner.home.clone()));
    spec.mounts = mounts(parts, &allocation, &variables)?;
    if home.is_some() {
        let own = temporary::private(&spec.mounts, parts.bounds.temporary);
        spec.mounts.extend(own);
    }
    spec.hostname = Some(hostname(pod, parts.node));
    spec.hosts_file = Some(parts.hosts_file.to_owned());
    spec.limits = limits(container)?;
    if owner.is_some() {
        spec.limits.pids_max = Some(parts.bounds.processes);
    }
    spec.devices = device_policy(parts, &allocation);
    spec.user = held.user;
    if owner.is_some() {
        let groups = device_groups::needed(&allocation.files(parts.dev), device_groups::look);
        device_groups::add(&mut spec.user, groups);
    }
    spec.isolation = held.isolation;
    spec.log = LogSettings::new(parts.log.clone());
    let grace = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds);
    if let Some(grace) = grace.and_then(|grace| u64::try_from(grace).ok()) {
        spec.grace_seconds = grace;
    }
    spec.env = variables.into_pairs();
    spec.validate().map_err(|e| e.to_string())?;
    Ok(spec)
}

/// How the container is isolated.
fn confine(parts: &Parts, allocation: &Allocation) -> Result<confinement::Confinement, String> {
    let ground = Ground {
        owner: parts.owner,
        hidden: &parts.bounds.hidden,
        read_only_host: parts.bounds.read_only_host,
        registers_memory: allocation.registers_memory(),
    };
    confinement::of(parts.pod, parts.container, &ground)
}

/// The pod's host name.
pub fn hostname(pod: &Pod, node: &NodeFacts) -> String {
    let spec = pod.spec.as_ref();
    if spec.and_then(|spec| spec.host_network) == Some(true) {
        return node.name.clone();
    }
    let name = spec
        .and_then(|spec| spec.hostname.as_deref())
        .filter(|name| !name.is_empty())
        .or(pod.metadata.name.as_deref())
        .unwrap_or_default();
    let short: String = name.chars().take(MAX_HOSTNAME).collect();
    short.trim_end_matches(['-', '.']).to_owned()
}

fn variables(parts: &Parts, allocation: &Allocation) -> Result<Variables, String> {
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
    // The pod uses the host network. The author's NCCL variables take precedence over the
    // discovered ones.
    let address = parts.node.ip.parse().ok();
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

fn device_policy(parts: &Parts, allocation: &Allocation) -> DevicePolicy {
    let minors = &allocation.gpus().minors;
    let mut policy = DevicePolicy::nvidia_except(parts.dev, minors);
    let others = allocation.others();
    let there = |file: &&PathBuf| file.exists();
    let denied = others.denied.iter().filter(there);
    policy.denied.extend(denied.cloned());
    // Processes of the node see them at their own paths.
    if parts.in_image {
        policy.given = allocation.card_files(parts.dev);
        let own = others.files.iter().filter(there);
        policy.given.extend(own.cloned());
    }
    policy
}

fn mounts(
    parts: &Parts,
    allocation: &Allocation,
    variables: &Variables,
) -> Result<Vec<Mount>, String> {
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
        let place = parts.places.get(&mount.name).ok_or_else(|| {
            format!(
                "container {:?} mounts volume {:?}, which the pod does not have",
                parts.container.name, mount.name
            )
        })?;
        let mut bound = Mount::bind(&place.path, &mount.mount_path);
        bound.read_only = place.read_only || mount.read_only == Some(true);
        bound.sub_path = match (&mount.sub_path, &mount.sub_path_expr) {
            (Some(path), _) if !path.is_empty() => Some(path.clone()),
            (_, Some(expression)) if !expression.is_empty() => {
                let path = variables.expand(expression);
                if path.contains("$(") {
                    return Err(format!(
                        "subPathExpr {expression:?} names an unknown variable"
                    ));
                }
                Some(path)
            }
            _ => None,
        };
        mounts.push(bound);
    }
    Ok(mounts)
}

fn limits(container: &Container) -> Result<Limits, String> {
    let Some(resources) = &container.resources else {
        return Ok(Limits::default());
    };
    let read = |limits: bool, name: &str| -> Result<Option<Quantity>, String> {
        let map = if limits {
            &resources.limits
        } else {
            &resources.requests
        };
        let Some(quantity) = map.as_ref().and_then(|map| map.get(name)) else {
            return Ok(None);
        };
        quantity.0.parse().map(Some).map_err(|_| {
            format!(
                "container {:?}: {name} {:?} is not a quantity",
                container.name, quantity.0
            )
        })
    };
    let positive = |value: i64| u64::try_from(value).ok().filter(|value| *value > 0);
    let limit = read(true, "cpu")?;
    Ok(Limits {
        cpu_request_milli: read(false, "cpu")?
            .or(limit)
            .and_then(|q| positive(q.milli())),
        cpu_limit_milli: limit.and_then(|q| positive(q.milli())),
        memory_limit_bytes: read(true, "memory")?.and_then(|q| positive(q.value())),
        pids_max: None,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::volumes::Place;
    use devices::mps;
    use devices::rdma::Pool;
    use devices::vendors::{Device, State, Stock, Vendor};
    use runtime::MountSource;
    use serde_json::{Value, json};

    fn make(container: Value, pod_spec: Value) -> Result<ContainerSpec, String> {
        make_on(&Machine::default(), "{}", container, pod_spec)
    }

    fn make_on(
        machine: &Machine,
        devices: &str,
        container: Value,
        pod_spec: Value,
    ) -> Result<ContainerSpec, String> {
        make_in(false, machine, devices, container, pod_spec)
    }

    fn make_in(
        in_image: bool,
        machine: &Machine,
        devices: &str,
        container: Value,
        pod_spec: Value,
    ) -> Result<ContainerSpec, String> {
        let mut spec = pod_spec;
        spec["containers"] = json!([container]);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": "u",
                "annotations": {"muster.io/devices": devices}},
            "spec": spec}))
        .unwrap();
        let places = Places::from([(
            "conf".to_owned(),
            Place {
                path: PathBuf::from("/data/conf"),
                read_only: true,
            },
        )]);
        let parts = Parts {
            pod: &pod,
            container: &pod.spec.as_ref().unwrap().containers[0],
            resolved: None,
            node: &NodeFacts::default(),
            machine,
            places: &places,
            hosts_file: Path::new("/data/hosts"),
            message_file: Path::new("/data/message"),
            log: PathBuf::from("/logs/0.log"),
            in_image,
            dev: Path::new("/nonexistent"),
            owner: None,
            bounds: &Bounds::default(),
        };
        describe(&parts, 0)
    }

    #[test]
    fn a_held_process_has_a_home_limits_and_temporary_directories_of_its_own() {
        let pod = |level: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"namespace": "ns", "name": "p", "uid": "u",
                    "annotations": {"muster.io/pod-security-level": level}},
                "spec": {"containers": [{"name": "main", "command": ["x"],
                    "env": [{"name": "USER", "value": "mine"}],
                    "securityContext": {"privileged": level == "privileged"}}]}}))
            .unwrap()
        };
        let owner = Owner::of_id(2_000_000_000);
        let bounds = Bounds {
            hidden: vec!["/var/lib/muster".into()],
            processes: 77,
            temporary: 1 << 20,
            read_only_host: true,
        };
        let made = |level: &str, in_image: bool| {
            let pod = pod(level);
            let parts = Parts {
                pod: &pod,
                container: &pod.spec.as_ref().unwrap().containers[0],
                resolved: None,
                node: &NodeFacts::default(),
                machine: &Machine::default(),
                places: &Places::new(),
                hosts_file: Path::new("/data/hosts"),
                message_file: Path::new("/data/message"),
                log: PathBuf::from("/logs/0.log"),
                in_image,
                dev: Path::new("/nonexistent"),
                owner: Some(&owner),
                bounds: &bounds,
            };
            describe(&parts, 0).unwrap()
        };
        let env = |spec: &ContainerSpec, name: &str| {
            let mut all = spec.env.iter();
            let found = all.find(|(other, _)| other == name);
            found.map(|(_, value)| value.clone())
        };
        let own = |spec: &ContainerSpec| {
            let mut mounts = spec.mounts.iter();
            mounts.any(|mount| {
                mount.target == Path::new("/tmp")
                    && mount.source == MountSource::Tmpfs(Some(1 << 20))
            })
        };
        let held = made("baseline", false);
        assert_eq!(held.user.uid, Some(2_000_000_000));
        assert_eq!(held.limits.pids_max, Some(77));
        assert_eq!(held.cwd, Some(PathBuf::from("/tmp")));
        assert_eq!(env(&held, "HOME").as_deref(), Some("/tmp"));
        assert_eq!(env(&held, "USER").as_deref(), Some("mine"));
        assert!(own(&held));
        let isolation = held.isolation.unwrap();
        assert_eq!(isolation.hidden, bounds.hidden);
        assert!(isolation.read_only_host);
        // An image has its own directories.
        let image = made("baseline", true);
        assert_eq!(image.user.uid, Some(2_000_000_000));
        assert_eq!((env(&image, "HOME"), image.cwd.clone()), (None, None));
        assert!(!own(&image));
        let privileged = made("privileged", false);
        assert_eq!(
            (privileged.isolation.clone(), privileged.cwd.clone()),
            (None, None)
        );
        assert_eq!(privileged.limits.pids_max, None);
        assert!(!own(&privileged));
    }

    #[test]
    fn a_container_is_described_with_all_that_its_pod_says() {
        let spec = make(
            json!({
                "name": "main",
                "command": ["sh", "-c", "echo $(WHO) $(NOBODY)"],
                "args": ["$(WHO)"],
                "env": [{"name": "WHO", "value": "me"}, {"name": "CUDA_VISIBLE_DEVICES", "value": "0"}],
                "workingDir": "/work",
                "volumeMounts": [{"name": "conf", "mountPath": "/etc/conf", "subPathExpr": "$(WHO)/x"}],
                "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}},
                "securityContext": {"runAsUser": 7},
            }),
            json!({"hostname": "h", "securityContext": {"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3},
                "terminationGracePeriodSeconds": 5}),
        )
        .unwrap();
        assert_eq!(spec.command, ["sh", "-c", "echo me $(NOBODY)"]);
        assert_eq!(spec.args, ["me"]);
        assert_eq!(spec.cwd, Some(PathBuf::from("/work")));
        assert_eq!(spec.hostname.as_deref(), Some("h"));
        assert_eq!(spec.limits.cpu_limit_milli, Some(1500));
        assert_eq!(spec.limits.cpu_request_milli, Some(1500));
        assert_eq!(spec.limits.memory_limit_bytes, Some(64 << 20));
        assert_eq!(
            spec.user,
            runtime::User {
                uid: Some(7),
                gid: Some(2),
                groups: vec![3]
            }
        );
        assert_eq!(spec.grace_seconds, 5);
        let mount = &spec.mounts[1];
        assert_eq!(mount.source, MountSource::Bind(PathBuf::from("/data/conf")));
        assert!(mount.read_only);
        assert_eq!(mount.sub_path.as_deref(), Some("me/x"));
        assert_eq!(spec.mounts[0].target, Path::new("/dev/termination-log"));
        let env = |name: &str| {
            spec.env
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, v)| v.as_str())
        };
        assert_eq!(
            env("CUDA_VISIBLE_DEVICES"),
            Some(""),
            "the author can't take a GPU"
        );
        assert_eq!(env("NVIDIA_VISIBLE_DEVICES"), Some("void"));
        assert_eq!(env("HOSTNAME"), Some("h"));
        assert_eq!(env("PATH"), Some(DEFAULT_PATH));
    }

    /// Two healthy devices, numbered from 0, of the resource that a description has.
    fn two_cards(vendor: &Value) -> BTreeMap<String, Stock> {
        let vendor = Vendor::read(vendor).unwrap();
        let device = |number| Device {
            number,
            id: String::new(),
            numa: None,
            state: State::Well,
        };
        let resource = vendor.resource.clone();
        let stock = Stock {
            vendor: Arc::new(vendor),
            devices: [0, 1].map(device).to_vec(),
        };
        BTreeMap::from([(resource, stock)])
    }

    /// A machine with one GPU and one network card with a driver.
    fn with_rdma() -> Machine {
        use hardware::rdma::{CardFiles, Files, Proposal};
        let found = hardware::Inventory {
            gpus: vec![hardware::Gpu {
                id: "GPU-0".to_owned(),
                ..hardware::Gpu::default()
            }],
            nics: vec![hardware::Nic {
                name: "mlx5_0".to_owned(),
                ports: vec![hardware::Port {
                    number: 1,
                    state: "ACTIVE".to_owned(),
                    ..hardware::Port::default()
                }],
                ..hardware::Nic::default()
            }],
            ..hardware::Inventory::default()
        };
        let card = CardFiles {
            verbs: Some("uverbs0".to_owned()),
            ..CardFiles::default()
        };
        let files = Files {
            cards: [("mlx5_0".to_owned(), card)].into(),
            ..Files::default()
        };
        Machine {
            rdma: Proposal::of(&found, &files),
            ..Machine::of(&found)
        }
    }

    #[test]
    fn containers_with_gpus_get_the_cards_variables_unless_the_author_sets_them() {
        let told = |devices: &str, gpus: &str, env: Value| {
            let container = json!({"name": "main", "command": ["x"], "env": env,
                "resources": {"limits": {"nvidia.com/gpu": gpus}}});
            let spec = make_on(&with_rdma(), devices, container, json!({})).unwrap();
            let mut env = spec.env.into_iter();
            env.find(|(name, _)| name == "NCCL_IB_HCA")
                .map(|(_, value)| value)
        };
        let one = r#"{"main":{"nvidia.com/gpu":["GPU-0"]}}"#;
        assert_eq!(told(one, "1", json!([])).as_deref(), Some("=mlx5_0:1"));
        let own = json!([{"name": "NCCL_IB_HCA", "value": "^mlx5_9"}]);
        assert_eq!(told(one, "1", own).as_deref(), Some("^mlx5_9"));
        assert_eq!(told("{}", "0", json!([])), None, "it has no GPU");
    }

    #[test]
    fn containers_with_another_vendors_devices_get_their_variables_and_in_an_image_their_files() {
        let there = tempfile::tempdir().unwrap();
        let at = |name: &str| there.path().join(name).display().to_string();
        for name in ["card0", "card1", "ctl0", "driver"] {
            std::fs::write(there.path().join(name), "").unwrap();
        }
        let vendor = json!({"resource": "example.com/card", "device": at("card{number}"),
            "with": [at("ctl{number}")], "always": [at("all")],
            "environment": {"CARDS": "{numbers}"},
            "mounts": [{"from": at("driver"), "to": "/opt/driver"}, {"from": at("driver")},
                {"from": at("gone")}]});
        let machine = Machine {
            described: two_cards(&vendor),
            ..Machine::default()
        };
        let chosen = json!({"main": {"example.com/card": [at("card0")]}}).to_string();
        let has = |in_image: bool, chosen: &str, count: &str| {
            let container = json!({"name": "main", "command": ["x"],
                "env": [{"name": "CARDS", "value": "mine"}],
                "resources": {"limits": {"example.com/card": count}}});
            make_in(in_image, &machine, chosen, container, json!({})).unwrap()
        };
        let told = |spec: &ContainerSpec| {
            let mut all = spec.env.iter();
            let told = all.find(|(name, _)| name == "CARDS");
            told.map(|(_, value)| value.clone()).unwrap()
        };
        let mounted = |spec: &ContainerSpec| -> Vec<String> {
            let targets = (spec.mounts.iter()).map(|mount| mount.target.display().to_string());
            targets.filter(|target| target.contains("driver")).collect()
        };
        let paths =
            |names: &[&str]| -> Vec<PathBuf> { names.iter().map(|it| at(it).into()).collect() };
        let image = has(true, &chosen, "1");
        assert_eq!(told(&image), "0");
        assert_eq!(image.devices.given, paths(&["card0", "ctl0"]));
        assert_eq!(mounted(&image), ["/opt/driver".to_owned(), at("driver")]);
        // A process sees the node's files at their paths, except the devices of others.
        let process = has(false, &chosen, "1");
        assert_eq!(told(&process), "0");
        assert_eq!(process.devices.given, paths(&[]));
        assert_eq!(process.devices.denied, paths(&["card1"]));
        assert_eq!(mounted(&process), ["/opt/driver"]);
        let none = has(false, "{}", "0");
        assert_eq!(told(&none), "mine");
        assert_eq!(none.devices.denied, paths(&["card0", "card1", "ctl0"]));
        assert_eq!(mounted(&none), [""; 0]);
    }

    #[test]
    fn containers_with_cards_get_their_files_in_an_image_and_nccl_only_sees_these_cards() {
        let mut machine = with_rdma();
        let pool = |card: &str, file: &str| Pool {
            cards: [card.to_owned()].into(),
            files: vec![file.to_owned(), "rdma_cm".to_owned()],
            ..Pool::default()
        };
        machine.cards = [
            ("rdma/a".to_owned(), pool("mlx5_0", "uverbs0")),
            ("rdma/b".to_owned(), pool("mlx5_1", "uverbs1")),
            ("rdma/gone".to_owned(), Pool::default()),
        ]
        .into();
        let has =
            |in_image: bool, limits: Value| -> Result<(Vec<String>, Option<String>), String> {
                let container =
                    json!({"name": "main", "command": ["x"], "resources": {"limits": limits}});
                let chosen = r#"{"main":{"nvidia.com/gpu":["GPU-0"]}}"#;
                let spec = make_in(in_image, &machine, chosen, container, json!({}))?;
                let files = spec.devices.given.iter();
                let files = files.map(|file| file.display().to_string()).collect();
                let mut env = spec.env.into_iter();
                let told = env.find(|(name, _)| name == "NCCL_IB_HCA");
                Ok((files, told.map(|(_, value)| value)))
            };
        let first = || Some("=mlx5_0:1".to_owned());
        let files = |file: &str| {
            let place = "/nonexistent/infiniband";
            vec![format!("{place}/{file}"), format!("{place}/rdma_cm")]
        };
        let gpu = |more: &str| json!({"nvidia.com/gpu": "1", more: "1"});
        assert_eq!(has(true, gpu("rdma/a")), Ok((files("uverbs0"), first())));
        assert_eq!(has(true, gpu("rdma/b")), Ok((files("uverbs1"), None)));
        assert_eq!(has(true, gpu("rdma/others")), Ok((Vec::new(), first())));
        let none = json!({"nvidia.com/gpu": "1", "rdma/a": "0"});
        assert_eq!(has(true, none), Ok((Vec::new(), first())));
        // A process sees the node's files.
        assert_eq!(has(false, gpu("rdma/a")), Ok((Vec::new(), first())));
        assert!(
            has(true, gpu("rdma/gone"))
                .unwrap_err()
                .contains("rdma/gone")
        );
    }

    #[test]
    fn the_files_of_all_devices_that_a_container_was_given_are_those_that_it_is_to_open() {
        let vendor = json!({"resource": "example.com/card", "device": "/dev/card{number}",
            "with": ["/dev/ctl{number}"], "always": ["/dev/all"]});
        let mut machine = with_rdma();
        machine.minors = [("GPU-0".to_owned(), 3)].into();
        machine.described = two_cards(&vendor);
        let pool = Pool {
            files: vec!["uverbs0".to_owned()],
            cards: ["mlx5_0".to_owned()].into(),
            ..Pool::default()
        };
        machine.cards = [("rdma/a".to_owned(), pool)].into();
        let files = |chosen: Value, limits: Value| {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"namespace": "ns", "name": "p", "uid": "u",
                    "annotations": {"muster.io/devices": chosen.to_string()}},
                "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}))
            .unwrap();
            let parts = Parts {
                pod: &pod,
                container: &pod.spec.as_ref().unwrap().containers[0],
                resolved: None,
                node: &NodeFacts::default(),
                machine: &machine,
                places: &Places::new(),
                hosts_file: Path::new("/data/hosts"),
                message_file: Path::new("/data/message"),
                log: PathBuf::from("/logs/0.log"),
                in_image: false,
                dev: Path::new("/dev"),
                owner: None,
                bounds: &Bounds::default(),
            };
            let all = Allocation::of(parts.pod, parts.container, parts.machine).unwrap();
            let all = all.files(parts.dev).into_iter();
            let mut all: Vec<String> = all.map(|file| file.display().to_string()).collect();
            all.sort();
            all
        };
        let gpu = json!({"main": {"nvidia.com/gpu": ["GPU-0"]}});
        let of_gpu = [
            "/dev/nvidia-modeset",
            "/dev/nvidia-uvm",
            "/dev/nvidia-uvm-tools",
            "/dev/nvidia3",
            "/dev/nvidiactl",
        ];
        assert_eq!(files(gpu, json!({"nvidia.com/gpu": "1"})), of_gpu);
        let others = json!({"main": {"example.com/card": ["/dev/card1"]}});
        let found = files(others, json!({"example.com/card": "1", "rdma/a": "1"}));
        let expected = [
            "/dev/all",
            "/dev/card1",
            "/dev/ctl1",
            "/dev/infiniband/uverbs0",
        ];
        assert_eq!(found, expected);
        assert_eq!(files(json!({}), json!({})), [""; 0]);
    }

    #[test]
    fn containers_with_gpus_see_the_pcie_tree_for_nccl_unless_the_author_sets_one() {
        let told = |devices: &str, gpus: &str, env: Value| {
            let machine = Machine {
                topology: Some("/data/tree.xml".into()),
                ..with_rdma()
            };
            let container = json!({"name": "main", "command": ["x"], "env": env,
                "resources": {"limits": {"nvidia.com/gpu": gpus}}});
            let spec = make_on(&machine, devices, container, json!({})).unwrap();
            let mut mounts = spec.mounts.into_iter();
            let seen = mounts.find(|mount| mount.target == Path::new(nccl::SEEN_AT));
            let mut env = spec.env.into_iter();
            let value = env.find(|(name, _)| name == "NCCL_TOPO_FILE");
            (value.map(|(_, value)| value), seen)
        };
        let one = r#"{"main":{"nvidia.com/gpu":["GPU-0"]}}"#;
        let mount = Mount::bind("/data/tree.xml", "/dev/nccl-topology.xml").read_only();
        let seen = ("/dev/nccl-topology.xml".to_owned(), mount);
        assert_eq!(
            told(one, "1", json!([])),
            (Some(seen.0.clone()), Some(seen.1))
        );
        let own = |value: &str| json!([{"name": "NCCL_TOPO_FILE", "value": value}]);
        let theirs = (Some("/mine.xml".to_owned()), None);
        assert_eq!(told(one, "1", own("/mine.xml")), theirs);
        assert_eq!(told(one, "1", own("")), (Some(String::new()), None));
        assert_eq!(told("{}", "0", json!([])), (None, None), "it has no GPU");
    }

    #[test]
    fn a_container_that_cannot_be_created_has_a_reason() {
        for (container, pod, expected) in [
            (
                json!({"name": "main"}),
                json!({}),
                "neither command nor args",
            ),
            (
                json!({"name": "main", "command": ["x"], "volumeMounts": [{"name": "none", "mountPath": "/x"}]}),
                json!({}),
                "\"none\"",
            ),
            (
                json!({"name": "main", "command": ["x"]}),
                json!({"securityContext": {"runAsNonRoot": true}}),
                "runAsNonRoot",
            ),
            (
                json!({"name": "main", "command": ["x"], "workingDir": "rel"}),
                json!({}),
                "absolute",
            ),
            (
                json!({"name": "main", "command": ["x"],
                    "resources": {"limits": {"nvidia.com/gpu": "1"}}}),
                json!({}),
                "asks for 1",
            ),
        ] {
            let error = make(container, pod).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_long_pod_name_makes_a_host_name_that_fits() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": format!("{}-tail", "a".repeat(62))}, "spec": {"containers": []}}))
        .unwrap();
        assert_eq!(hostname(&pod, &NodeFacts::default()), "a".repeat(62));
    }

    #[test]
    fn a_container_with_a_part_of_a_gpu_gets_its_limits() {
        let mut machine = Machine::default();
        machine.inventory.gpus = vec![resources::devices::GpuDevice {
            id: "GPU-1".into(),
            index: 3,
            memory_mib: 80_000,
            ..resources::devices::GpuDevice::default()
        }];
        let container = || {
            json!({"name": "main", "command": ["train"],
            "env": [{"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "100"}],
            "resources": {"limits": {"aliyun.com/gpu-mem": "10", "aliyun.com/gpu-core": "30"}}})
        };
        let chosen = r#"{"main":{"nvidia.com/gpu":["GPU-1"]}}"#;
        let env = |machine: &Machine| -> Result<Vec<String>, String> {
            let spec = make_on(machine, chosen, container(), json!({}))?;
            let own = |(name, _): &&(String, String)| {
                name.starts_with("CUDA_") && name != "CUDA_DEVICE_ORDER"
            };
            let all = spec.env.iter().filter(own);
            Ok(all.map(|(name, value)| format!("{name}={value}")).collect())
        };
        let in_turns = [
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100",
            "CUDA_VISIBLE_DEVICES=3",
        ];
        assert_eq!(env(&machine).unwrap(), in_turns);
        let mut stand = mps::Stand {
            pipe: "/run/mps/GPU-1/pipe".into(),
            ..mps::Stand::default()
        };
        machine.mps.insert("GPU-1".into(), stand.clone());
        let by_mps = [
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30",
            "CUDA_VISIBLE_DEVICES=GPU-1",
            "CUDA_MPS_PIPE_DIRECTORY=/run/mps/GPU-1/pipe",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M",
        ];
        assert_eq!(env(&machine).unwrap(), by_mps);
        stand.problem = Some("its daemon does not run".into());
        machine.mps.insert("GPU-1".into(), stand);
        assert!(env(&machine).unwrap_err().contains("does not run"));
    }
}
