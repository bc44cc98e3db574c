//! Reads the facts that the checks need from this machine: sysfs, ports, systemd's programs and the probes that the
//! agent itself uses. Decides nothing. Each program that it runs has [`COMMAND`] to answer.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use cli::Global;
use hardware::rdma::{self, RdmaCheck};
use runtime::cgroup::HierarchyLayout;
use tokio::process::Command;

use super::checks::{AgentFacts, ClockSync, CommonFacts, PortState, ServerFacts, UnknownFact};
use super::contact;
use crate::serve;

/// How long a program may take to answer.
const COMMAND: Duration = Duration::from_secs(5);
/// The most bytes of a file of sysfs.
const SYSFS_MAX: u64 = 4096;
/// NVIDIA's vendor number on PCI.
const NVIDIA: &str = "0x10de";
/// Classes of PCI devices that are GPUs: VGA controllers and 3D controllers.
const GPU_CLASSES: [&str; 2] = ["0x0300", "0x0302"];
/// Directories of systemd's units, in the order in which it searches them.
const UNITS: [&str; 4] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
/// The services' data directories, as their units set them.
const SERVER_DATA: &str = "/var/lib/muster";
const AGENT_DATA: &str = "/var/lib/muster-agent";

/// Facts about this machine as a server's.
pub async fn server(global: &Global, listen: SocketAddr) -> ServerFacts {
    let service = "muster-server";
    ServerFacts {
        common: common(service, data(global, SERVER_DATA)).await,
        listen,
        port: port(listen, service).await,
    }
}

/// Facts about this machine as a node of the server.
pub async fn agent(global: &Global, server: String, token: Option<String>) -> AgentFacts {
    let service = "muster-agent";
    let data = data(global, AGENT_DATA);
    let root = Path::new("/");
    let inventory = serve::look(None, root).map_err(unknown);
    let rdma = inventory.as_ref().map_or_else(
        |_| Vec::new(),
        |found| -> Vec<RdmaCheck> {
            rdma::examine(found, Some(&rdma::Files::read(root, found)), None)
        },
    );
    let authority = contact::stored_authority(&data.join("agent/identity.json"));
    let contact = contact::server(&server, token.as_deref(), authority.as_deref()).await;
    let bus = gpus_on_bus(Path::new("/sys/bus/pci/devices"));
    AgentFacts {
        common: common(service, data).await,
        host: serve::host::name(),
        kernel: inventory
            .as_ref()
            .map_or_else(|_| String::new(), |found| found.kernel.clone()),
        metrics: port(([0, 0, 0, 0], agent::PORT).into(), service).await,
        cgroups: HierarchyLayout::detect(),
        capabilities: serve::isolation_support().await.map_err(unknown),
        inventory,
        gpus_on_bus: bus.gpus,
        driver: Path::new("/proc/driver/nvidia/version").exists(),
        nouveau: bus.nouveau,
        rdma,
        server,
        token,
        joined: authority.is_some(),
        contact,
    }
}

fn unknown(error: anyhow::Error) -> UnknownFact {
    UnknownFact(format!("{error:#}"))
}

fn data(global: &Global, of_unit: &str) -> PathBuf {
    global.data.clone().unwrap_or_else(|| of_unit.into())
}

async fn common(service: &'static str, data: PathBuf) -> CommonFacts {
    // The package makes the directory; before, its file system is that of the nearest directory above.
    let nearest = data.ancestors().find(|path| path.exists());
    let room = durable::disk_space(nearest.unwrap_or(Path::new("/")));
    CommonFacts {
        service,
        root: nix::unistd::geteuid().is_root(),
        unit: UNITS.iter().any(|directory| {
            Path::new(directory)
                .join(format!("{service}.service"))
                .exists()
        }),
        clock: clock().await,
        data: (data, room.map_err(|error| UnknownFact(error.to_string()))),
    }
}

/// systemd-timedated answers from the kernel's clock, whichever program keeps it.
async fn clock() -> ClockSync {
    let asked = output(
        "timedatectl",
        &["show", "--property=NTPSynchronized", "--value"],
    )
    .await;
    match asked {
        Err(why) => ClockSync::Unknown(format!("timedatectl: {why}")),
        Ok(answer) => match String::from_utf8_lossy(&answer.stdout).trim() {
            "yes" => ClockSync::Synchronised,
            "no" => ClockSync::Unsynchronised,
            _ => {
                let stderr = String::from_utf8_lossy(&answer.stderr);
                ClockSync::Unknown(format!("timedatectl: {}", stderr.trim()))
            }
        },
    }
}

async fn port(address: SocketAddr, service: &str) -> PortState {
    let error = match TcpListener::bind(address) {
        Ok(_) => return PortState::Free,
        Err(error) => error,
    };
    let in_use = error.kind() == io::ErrorKind::AddrInUse;
    if in_use && is_active(service).await {
        return PortState::Ours;
    }
    PortState::Taken(error.to_string())
}

async fn is_active(service: &str) -> bool {
    let asked = output("systemctl", &["is-active", "--quiet", service]).await;
    asked.is_ok_and(|answer| answer.status.success())
}

/// Why a program gave no answer.
#[derive(Debug, thiserror::Error)]
enum NoAnswer {
    #[error("no answer within {} s", COMMAND.as_secs())]
    Late,
    #[error(transparent)]
    NotRun(#[from] io::Error),
}

async fn output(program: &str, arguments: &[&str]) -> Result<Output, NoAnswer> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("LC_ALL", "C")
        .kill_on_drop(true);
    match tokio::time::timeout(COMMAND, command.output()).await {
        Err(_) => Err(NoAnswer::Late),
        Ok(answer) => Ok(answer?),
    }
}

/// NVIDIA's GPUs on the PCI bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bus {
    /// How many, without those that are passed to virtual machines.
    gpus: usize,
    /// Whether the driver nouveau holds one.
    nouveau: bool,
}

fn gpus_on_bus(devices: &Path) -> Bus {
    let mut bus = Bus::default();
    let Ok(entries) = std::fs::read_dir(devices) else {
        return bus;
    };
    for device in entries.flatten().map(|entry| entry.path()) {
        let is_gpu = value(&device.join("vendor")) == NVIDIA
            && (GPU_CLASSES.iter()).any(|class| value(&device.join("class")).starts_with(class));
        if !is_gpu {
            continue;
        }
        let driver = std::fs::read_link(device.join("driver")).unwrap_or_default();
        let driver = driver.file_name().unwrap_or_default();
        if driver == "vfio-pci" {
            continue;
        }
        bus.gpus += 1;
        bus.nouveau |= driver == "nouveau";
    }
    bus
}

/// A file of sysfs without its line end; empty if it can't be read.
fn value(path: &Path) -> String {
    let mut text = String::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(SYSFS_MAX).read_to_string(&mut text));
    match read {
        Ok(_) => text.trim_end().to_owned(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_on_the_bus_are_counted_without_those_of_virtual_machines() {
        let dir = tempfile::tempdir().unwrap();
        let device = |name: &str, vendor: &str, class: &str, driver: Option<&str>| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("vendor"), format!("{vendor}\n")).unwrap();
            std::fs::write(path.join("class"), format!("{class}\n")).unwrap();
            if let Some(driver) = driver {
                let target = Path::new("../../drivers").join(driver);
                std::os::unix::fs::symlink(target, path.join("driver")).unwrap();
            }
        };
        assert_eq!(gpus_on_bus(dir.path()), Bus::default());
        device("0000:01:00.0", NVIDIA, "0x030200", Some("nvidia"));
        device("0000:02:00.0", NVIDIA, "0x030000", Some("nouveau"));
        device("0000:03:00.0", NVIDIA, "0x030200", None);
        device("0000:04:00.0", NVIDIA, "0x030200", Some("vfio-pci"));
        device("0000:05:00.0", NVIDIA, "0x040300", None);
        device("0000:06:00.0", "0x8086", "0x030000", Some("i915"));
        let expected = Bus {
            gpus: 3,
            nouveau: true,
        };
        assert_eq!(gpus_on_bus(dir.path()), expected);
    }
}
