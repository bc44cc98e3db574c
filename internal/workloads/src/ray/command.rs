//! The command line of `ray start`, and the container's command around it, by KubeRay's rules.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;
use resources::amounts::{self, Amounts};

use super::plan::RayGroup;
use super::ports::{HeadPort, HeadPorts};

/// Raises the limit of open files as far as the container may, and says nothing where it may not.
const RAISE_FILES: &str = "ulimit -n 65536 2>/dev/null";
/// Parameters that take `true` or `false` as a value; of all others `true` means the flag, and `false` its absence.
const WITH_TRUTH: [&str; 3] = ["include-dashboard", "log-color", "include-log-monitor"];
/// Ports of a worker that Ray chooses where pods share their node's address. Ray would use a fixed one of the first,
/// and choose from one fixed range for the others.
const CHOSEN_BY_RAY: [&str; 3] = [
    "dashboard-agent-listen-port",
    "min-worker-port",
    "max-worker-port",
];

/// The `ray start` of a head.
pub(crate) fn of_head(group: &RayGroup<'_>, ports: &HeadPorts, autoscaling: bool) -> String {
    let mut params = with_resources(group);
    let mut default = |name: &str, value: String| {
        params.entry(name.to_owned()).or_insert(value);
    };
    default("dashboard-host", "0.0.0.0".to_owned());
    for port in HeadPort::ALL {
        let number = ports.get(port);
        let implied = port == HeadPort::Raylet && number == 0;
        let as_usual = !ports.shared()
            && matches!(port, HeadPort::Gcs | HeadPort::Dashboard | HeadPort::Client);
        if !implied && !as_usual {
            default(port.param(), number.to_string());
        }
    }
    if autoscaling {
        // The autoscaler runs in a container of its own.
        default("no-monitor", "true".to_owned());
    }
    if ports.shared() {
        default("min-worker-port", "0".to_owned());
        default("max-worker-port", "0".to_owned());
    }
    default("block", "true".to_owned());
    line("ray start --head", &params)
}

/// The `ray start` of a worker that joins this address.
pub(crate) fn of_worker(group: &RayGroup<'_>, address: &str, ports: &HeadPorts) -> String {
    let mut params = with_resources(group);
    let mut default = |name: &str, value: &str| {
        params
            .entry(name.to_owned())
            .or_insert_with(|| value.to_owned());
    };
    default("address", address);
    if ports.shared() {
        for name in CHOSEN_BY_RAY {
            default(name, "0");
        }
    } else {
        default("metrics-export-port", "8080");
        default("dashboard-agent-listen-port", "52365");
    }
    default("block", "true");
    line("ray start", &params)
}

/// The parameters, completed by the group's resources and labels, or by what its container may use.
fn with_resources(group: &RayGroup<'_>) -> BTreeMap<String, String> {
    let mut params = group.params.clone();
    let resources = group.resources.filter(|resources| !resources.is_empty());
    let amounts = match resources {
        Some(resources) => group_amounts(resources),
        None => container_amounts(group.container()),
    };
    for (name, value) in amounts {
        params.entry(name).or_insert(value);
    }
    if let Some(labels) = group.labels.filter(|labels| !labels.is_empty()) {
        let pairs = labels.iter().map(|(name, value)| format!("{name}={value}"));
        let pairs: Vec<String> = pairs.collect();
        params.entry("labels".to_owned()).or_insert(pairs.join(","));
    }
    params
}

/// The group's own resources: Kubernetes' names for Ray's own amounts, and the rest as Ray's custom resources.
fn group_amounts(resources: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let (mut known, mut custom) = (Vec::new(), Vec::new());
    let list = resources
        .iter()
        .map(|(name, text)| (name.to_lowercase(), name, text));
    for (lower, name, text) in list {
        let quantity = text.parse::<resources::quantity::Quantity>();
        let value = quantity.map_or(0, |quantity| quantity.value());
        let param = match lower.as_str() {
            "cpu" => "num-cpus",
            "gpu" => "num-gpus",
            "memory" => "memory",
            _ => {
                custom.push(format!("\"{name}\": {value}"));
                continue;
            }
        };
        known.push((param.to_owned(), value.to_string()));
    }
    if !custom.is_empty() {
        let object = format!("'{{{}}}'", custom.join(", "));
        known.push(("resources".to_owned(), object));
    }
    known
}

/// What a container may use: CPUs by limit, else by request; memory and GPUs by limit.
fn container_amounts(container: Option<&Container>) -> Vec<(String, String)> {
    let resources = container.and_then(|container| container.resources.as_ref());
    let read = |list: Option<&BTreeMap<_, _>>| list.map(Amounts::from_k8s).unwrap_or_default();
    let limits = read(resources.and_then(|resources| resources.limits.as_ref()));
    let requests = read(resources.and_then(|resources| resources.requests.as_ref()));
    let cpu = [limits.get(amounts::CPU), requests.get(amounts::CPU)];
    let cpu = cpu.into_iter().find(|milli| *milli > 0).unwrap_or(0);
    let gpus = limits
        .iter()
        .find(|(name, amount)| name.ends_with("gpu") && *amount > 0);
    let all = [
        ("num-cpus", cpu.saturating_add(999) / 1000),
        ("memory", limits.get(amounts::MEMORY)),
        ("num-gpus", gpus.map_or(0, |(_, amount)| amount)),
    ];
    let used = all.into_iter().filter(|(_, amount)| *amount > 0);
    used.map(|(name, amount)| (name.to_owned(), amount.to_string()))
        .collect()
}

/// The command line. Values stand as they are: users quote them for the shell, as KubeRay's examples do.
fn line(start: &str, params: &BTreeMap<String, String>) -> String {
    let mut line = start.to_owned();
    for (name, value) in params {
        let truth = value.eq_ignore_ascii_case("true") || value.eq_ignore_ascii_case("false");
        if !truth || WITH_TRUTH.contains(&name.as_str()) {
            line.push_str(&format!(" --{name}={value}"));
        } else if value.eq_ignore_ascii_case("true") {
            line.push_str(&format!(" --{name}"));
        }
    }
    line
}

/// Gives the container the command that runs Ray. A command of the user's own runs before Ray starts; one that starts
/// Ray itself, and one that is to be kept, stay as they are.
pub(crate) fn set(container: &mut Container, start: &str, keep: bool) {
    let words = |list: &Option<Vec<String>>| list.clone().unwrap_or_default();
    let own = [words(&container.command), words(&container.args)]
        .concat()
        .join(" ");
    if keep || own.contains("ray start") {
        return;
    }
    // Ray that blocks takes the shell's place, so that it gets the signal to end.
    let blocks = start.split(' ').any(|word| word == "--block");
    let run = match blocks {
        true => format!("exec {start}"),
        false => format!("{start} && exec sleep infinity"),
    };
    let script = match own.trim() {
        "" => format!("{RAISE_FILES}; {run}"),
        own => format!("{own} && {{ {RAISE_FILES}; {run}; }}"),
    };
    container.command = Some(["/bin/bash", "-c", "--"].map(str::to_owned).to_vec());
    container.args = Some(vec![script]);
}
