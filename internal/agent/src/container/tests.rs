//! Tests of a container's whole description.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::volumes::VolumePath;
use devices::rdma::Pool;
use devices::vendors::{Stock, Vendor, VendorDevice, VendorDeviceState};
use devices::{mps, nccl};
use runtime::spec::DEFAULT_PATH;
use runtime::{Mount, MountSource};
use serde_json::{Value, json};

fn make(container: Value, pod_spec: Value) -> Result<ContainerSpec, String> {
    make_on(&NodeHardware::default(), "{}", container, pod_spec)
}

fn make_on(
    machine: &NodeHardware,
    devices: &str,
    container: Value,
    pod_spec: Value,
) -> Result<ContainerSpec, String> {
    make_in(false, machine, devices, container, pod_spec)
}

fn make_in(
    in_image: bool,
    machine: &NodeHardware,
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
    let places = VolumePaths::from([(
        "conf".to_owned(),
        VolumePath {
            path: PathBuf::from("/data/conf"),
            read_only: true,
        },
    )]);
    let parts = Parts {
        pod: &pod,
        container: &pod.spec.as_ref().unwrap().containers[0],
        resolved: None,
        node: &NodeFieldValues::default(),
        machine,
        places: &places,
        hosts_file: Path::new("/data/hosts"),
        resolv_conf: None,
        network: None,
        message_file: Path::new("/data/message"),
        log: PathBuf::from("/logs/0.log"),
        in_image,
        dev: Path::new("/nonexistent"),
        owner: None,
        bounds: &PodLimits::default(),
    };
    describe(&parts, 0).map_err(|error| error.to_string())
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
    let owner = ProcessOwner::of_id(2_000_000_000);
    let bounds = PodLimits {
        hidden: vec!["/var/lib/muster".into()],
        processes: 77,
        temporary: 1 << 20,
        read_only_host: true,
        command_line: None,
    };
    let made = |level: &str, in_image: bool| {
        let pod = pod(level);
        let parts = Parts {
            pod: &pod,
            container: &pod.spec.as_ref().unwrap().containers[0],
            resolved: None,
            node: &NodeFieldValues::default(),
            machine: &NodeHardware::default(),
            places: &VolumePaths::new(),
            hosts_file: Path::new("/data/hosts"),
            resolv_conf: None,
            network: None,
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
            mount.target == Path::new("/tmp") && mount.source == MountSource::Tmpfs(Some(1 << 20))
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
        runtime::ProcessUser {
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
        "the author cannot take a GPU"
    );
    assert_eq!(env("NVIDIA_VISIBLE_DEVICES"), Some("void"));
    assert_eq!(env("HOSTNAME"), Some("h"));
    assert_eq!(env("PATH"), Some(DEFAULT_PATH));
}

/// A machine with one GPU and one network card with a driver.
fn with_rdma() -> NodeHardware {
    use hardware::rdma::{CardFiles, Files, RdmaProposal};
    let found = hardware::Inventory {
        gpus: vec![hardware::Gpu {
            id: "GPU-0".to_owned(),
            ..hardware::Gpu::default()
        }],
        nics: vec![hardware::Nic {
            name: "mlx5_0".to_owned(),
            ports: vec![hardware::CardPort {
                number: 1,
                state: "ACTIVE".to_owned(),
                ..hardware::CardPort::default()
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
    NodeHardware {
        rdma: RdmaProposal::of(&found, &files),
        ..NodeHardware::of(&found)
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

/// Two healthy devices, numbered from 0, of the resource that a description has.
fn two_cards(vendor: &Value) -> BTreeMap<String, Stock> {
    let vendor = Vendor::read(vendor).unwrap();
    let device = |number| VendorDevice {
        number,
        id: String::new(),
        numa: None,
        state: VendorDeviceState::Healthy,
    };
    let resource = vendor.resource.clone();
    let stock = Stock {
        vendor: Arc::new(vendor),
        devices: [0, 1].map(device).to_vec(),
    };
    BTreeMap::from([(resource, stock)])
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
    let machine = NodeHardware {
        described: two_cards(&vendor),
        ..NodeHardware::default()
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
    let paths = |names: &[&str]| -> Vec<PathBuf> { names.iter().map(|it| at(it).into()).collect() };
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
    let has = |in_image: bool, limits: Value| -> Result<(Vec<String>, Option<String>), String> {
        let container = json!({"name": "main", "command": ["x"], "resources": {"limits": limits}});
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
            node: &NodeFieldValues::default(),
            machine: &machine,
            places: &VolumePaths::new(),
            hosts_file: Path::new("/data/hosts"),
            resolv_conf: None,
            network: None,
            message_file: Path::new("/data/message"),
            log: PathBuf::from("/logs/0.log"),
            in_image: false,
            dev: Path::new("/dev"),
            owner: None,
            bounds: &PodLimits::default(),
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
        let machine = NodeHardware {
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
    assert_eq!(hostname(&pod, &NodeFieldValues::default()), "a".repeat(62));
}

#[test]
fn a_container_with_a_part_of_a_gpu_gets_its_limits() {
    let mut machine = NodeHardware::default();
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
    let env = |machine: &NodeHardware| -> Result<Vec<String>, String> {
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
    let mut stand = mps::MpsDaemonState {
        pipe: "/run/mps/GPU-1/pipe".into(),
        ..mps::MpsDaemonState::default()
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

#[test]
fn a_pod_that_asks_sees_the_command_line_unless_it_runs_in_an_image() {
    let shown = |annotation: Option<&str>, in_image: bool| {
        let annotations = annotation.map(|value| json!({"muster.io/command-line": value}));
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": "u", "annotations": annotations},
            "spec": {"containers": [{"name": "main", "command": ["x"], "image": "i"}]}}))
        .unwrap();
        let bounds = PodLimits {
            command_line: Some("/opt/muster".into()),
            ..PodLimits::default()
        };
        let parts = Parts {
            pod: &pod,
            container: &pod.spec.as_ref().unwrap().containers[0],
            resolved: None,
            node: &NodeFieldValues::default(),
            machine: &NodeHardware::default(),
            places: &VolumePaths::new(),
            hosts_file: Path::new("/data/hosts"),
            resolv_conf: None,
            message_file: Path::new("/data/message"),
            log: PathBuf::from("/logs/0.log"),
            in_image,
            dev: Path::new("/nonexistent"),
            owner: None,
            network: None,
            bounds: &bounds,
        };
        let spec = describe(&parts, 0).unwrap();
        let program = Mount::bind("/opt/muster", "/run/muster/muster").read_only();
        spec.mounts.contains(&program)
    };
    assert!(shown(Some("true"), false));
    assert!(!shown(Some("true"), true));
    assert!(!shown(Some("false"), false));
    assert!(!shown(None, false));
}
