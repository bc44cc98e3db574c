//! The checks of `muster setup`: facts about a machine in, findings out. Pure: [`super::gather`] reads the facts. Cost:
//! linear in the machine's devices.
//!
//! A *problem* is what keeps the service from starting or the node from taking work; a *warning* is what the service
//! runs without. Example: a server whose port another program holds has a problem; a clock that no time server keeps
//! is a warning, and one that differs from the server's by two hours is a problem, because certificates are valid for
//! a time.

use std::net::SocketAddr;
use std::path::PathBuf;

use durable::DiskSpace;
use hardware::Inventory;
use hardware::rdma::{CheckOutcome, RdmaCheck};
use runtime::capabilities::UNFIT_REMEDY;
use runtime::cgroup::HierarchyLayout;
use runtime::{Capabilities, Support};

use super::finding::Finding;

/// The oldest kernel that the agent runs on, for `openat2`.
const KERNEL_LEAST: (u32, u32) = (5, 6);
/// The oldest kernel on which pods see the node's own files read-only, for `mount_setattr`.
const KERNEL_READ_ONLY: (u32, u32) = (5, 12);
/// A difference of the clocks that is worth a warning, in seconds; the server's Date header has whole seconds.
const SKEW_WARNING_S: i64 = 5;
/// A difference of the clocks that is a problem, in seconds. A certificate is valid from a day before its issue, and
/// clocks that no time server keeps drift on.
const SKEW_PROBLEM_S: i64 = 3600;
/// Free space below which a service is not started.
const ROOM_LEAST: u64 = 1 << 30;
/// Free space below which a warning is given.
const ROOM_GOOD: u64 = 10 << 30;
/// Digits of a SHA-256 fingerprint.
const FINGERPRINT_DIGITS: usize = 64;

/// Whether a time server keeps the clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClockSync {
    /// The kernel's clock is synchronised.
    Synchronised,
    /// It is not.
    Unsynchronised,
    /// Not known, for this reason.
    Unknown(String),
}

/// Whether a port can be listened on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortState {
    /// It can.
    Free,
    /// Muster's own running service listens on it.
    Ours,
    /// It can't, for this reason.
    Taken(String),
}

/// What a connection to the server told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerContact {
    /// The server answered, and its certificate is the expected authority's. Its clock is so many seconds ahead of
    /// this machine's; `None` if the answer had no date.
    Answered(Option<i64>),
    /// No connection, for this reason.
    Unreachable(String),
    /// The server is there, but TLS failed, for this reason: another server, or another authority.
    Untrusted(String),
    /// There is neither a fingerprint nor a certificate to verify the server by; the port can be reached.
    Unverified,
}

/// Why a fact about the machine is not known, in words for its user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnknownFact(pub String);

/// Facts that both services need.
#[derive(Clone, Debug)]
pub struct CommonFacts {
    /// The service's name, such as `muster-agent`.
    pub service: &'static str,
    /// Whether this process is root.
    pub root: bool,
    /// Whether systemd knows the service's unit.
    pub unit: bool,
    /// Whether a time server keeps the clock.
    pub clock: ClockSync,
    /// The data directory, and the free space of its file system or why it is not known.
    pub data: (PathBuf, Result<DiskSpace, UnknownFact>),
}

/// Facts about a machine that is to run the server.
#[derive(Clone, Debug)]
pub struct ServerFacts {
    /// Facts that both services need.
    pub common: CommonFacts,
    /// The address to listen on.
    pub listen: SocketAddr,
    /// Whether it can be listened on.
    pub port: PortState,
}

/// Facts about a machine that is to run the agent.
#[derive(Clone, Debug)]
pub struct AgentFacts {
    /// Facts that both services need.
    pub common: CommonFacts,
    /// The host's name, from which the node gets its own.
    pub host: Option<String>,
    /// The kernel's release, such as `6.1.0-31-amd64`.
    pub kernel: String,
    /// Whether the default port of the metrics can be listened on.
    pub metrics: PortState,
    /// The mounted cgroup hierarchies.
    pub cgroups: HierarchyLayout,
    /// The agent's own probe of what pods get here, or why it did not run.
    pub capabilities: Result<Capabilities, UnknownFact>,
    /// The hardware, or why it could not be read.
    pub inventory: Result<Inventory, UnknownFact>,
    /// NVIDIA's GPUs on the PCI bus, except those that are passed to virtual machines.
    pub gpus_on_bus: usize,
    /// Whether NVIDIA's kernel driver is loaded.
    pub driver: bool,
    /// Whether the driver nouveau holds a GPU, which keeps NVIDIA's out.
    pub nouveau: bool,
    /// The checks of RDMA.
    pub rdma: Vec<RdmaCheck>,
    /// The server's address.
    pub server: String,
    /// The join token.
    pub token: Option<String>,
    /// Whether the agent has a certificate already.
    pub joined: bool,
    /// What a connection to the server told.
    pub contact: ServerContact,
}

/// The findings about a machine that is to run the server.
pub fn of_server(facts: &ServerFacts) -> Vec<Finding> {
    let mut findings = of_both(&facts.common);
    findings.push(listening(facts.listen, &facts.port));
    findings
}

/// The findings about a machine that is to run the agent.
pub fn of_agent(facts: &AgentFacts) -> Vec<Finding> {
    let mut findings = of_both(&facts.common);
    findings.push(node_name(facts.host.as_deref()));
    findings.push(kernel(&facts.kernel));
    findings.push(metrics(&facts.metrics));
    findings.extend(cgroups(&facts.cgroups, &facts.capabilities));
    findings.extend(isolation(&facts.capabilities, facts.common.root));
    findings.extend(gpus(facts));
    findings.extend(rdma(facts));
    findings.push(token(facts.token.as_deref(), facts.joined));
    findings.extend(contact(&facts.server, &facts.contact));
    findings
}

fn of_both(facts: &CommonFacts) -> Vec<Finding> {
    let role = facts.service.trim_start_matches("muster-");
    let mut findings = Vec::new();
    if !facts.root {
        findings.push(Finding::problem(
            "user",
            "this command is not run by root, so it can neither try what the service needs nor write its settings",
            format!("sudo muster setup {role}"),
        ));
    }
    if !facts.unit {
        findings.push(Finding::warning(
            "systemd unit",
            format!("systemd has no unit {}.service", facts.service),
            "install the package of Muster (web/docs/install.md), or copy systemd/ to /etc/systemd/system and run systemctl daemon-reload",
        ));
    }
    findings.push(clock(&facts.clock));
    findings.push(disk(&facts.data));
    findings
}

fn clock(clock: &ClockSync) -> Finding {
    match clock {
        ClockSync::Synchronised => Finding::ok("clock", "a time server keeps it"),
        ClockSync::Unsynchronised => Finding::warning(
            "clock",
            "no time server keeps it, and certificates are valid for a time",
            "timedatectl set-ntp true (it needs chrony or systemd-timesyncd)",
        ),
        ClockSync::Unknown(why) => Finding::warning(
            "clock",
            format!("it is not known whether a time server keeps it: {why}"),
            "install chrony, or enable systemd-timesyncd; in a container, do so on the host",
        ),
    }
}

fn disk((path, room): &(PathBuf, Result<DiskSpace, UnknownFact>)) -> Finding {
    let path = path.display();
    let room = match room {
        Ok(room) => room,
        Err(why) => {
            return Finding::warning(
                "disk",
                format!("the free space of {path} is not known: {why}"),
                format!("df {path}"),
            );
        }
    };
    let found = format!(
        "{path} has {:.1} GiB free",
        room.available as f64 / (1u64 << 30) as f64
    );
    let mend = format!("free space there, or mount a larger file system at {path}");
    if room.inodes > 0 && room.inodes_available == 0 {
        Finding::problem("disk", format!("{path} has no free inodes"), mend)
    } else if room.available < ROOM_LEAST {
        let least = ROOM_LEAST >> 30;
        Finding::problem("disk", format!("{found}; {least} GiB is needed"), mend)
    } else if room.available < ROOM_GOOD {
        let good = ROOM_GOOD >> 30;
        Finding::warning("disk", format!("{found}; {good} GiB is advisable"), mend)
    } else {
        Finding::ok("disk", found)
    }
}

fn listening(listen: SocketAddr, port: &PortState) -> Finding {
    match port {
        PortState::Taken(why) => Finding::problem(
            "port",
            format!("{listen} cannot be listened on: {why}"),
            format!(
                "ss -ltnp 'sport = :{}' names the program that holds the port; or choose another with --listen",
                listen.port()
            ),
        ),
        PortState::Free | PortState::Ours if listen.ip().is_loopback() => Finding::warning(
            "port",
            format!("{listen} is reached from this machine only: no other machine can join"),
            format!("muster setup server --listen 0.0.0.0:{}", listen.port()),
        ),
        PortState::Free => Finding::ok("port", format!("{listen} is free")),
        PortState::Ours => Finding::ok("port", format!("{listen} is held by the running server")),
    }
}

fn metrics(port: &PortState) -> Finding {
    match port {
        PortState::Free => Finding::ok("metrics", format!("port {} is free", agent::PORT)),
        PortState::Ours => Finding::ok("metrics", "the running agent serves them"),
        PortState::Taken(why) => Finding::warning(
            "metrics",
            format!(
                "port {} cannot be listened on, so the agent serves no metrics: {why}",
                agent::PORT
            ),
            "write metrics = \"0.0.0.0:PORT\", or \"off\", below [agent] in /etc/muster/muster.toml",
        ),
    }
}

fn node_name(host: Option<&str>) -> Finding {
    let mend = "hostnamectl set-hostname NAME, or write node-name = \"NAME\" below [agent] in /etc/muster/muster.toml";
    match host {
        None => Finding::problem("node name", "this host has no name", mend),
        Some(name) if name.split('.').next() == Some("localhost") => Finding::problem(
            "node name",
            format!("the host's name is {name}, which is no name among several nodes"),
            mend,
        ),
        Some(name) => Finding::ok("node name", name),
    }
}

/// The first two numbers of a kernel's release.
fn release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn kernel(text: &str) -> Finding {
    let wants = |(major, minor): (u32, u32)| format!("Linux {major}.{minor} or later");
    match release(text) {
        None => Finding::warning(
            "kernel",
            format!("its release {text:?} cannot be read"),
            format!("uname -r must be {}", wants(KERNEL_READ_ONLY)),
        ),
        Some(found) if found < KERNEL_LEAST => Finding::problem(
            "kernel",
            format!(
                "Linux {text} lacks openat2; the agent needs {}",
                wants(KERNEL_LEAST)
            ),
            format!("boot {}", wants(KERNEL_READ_ONLY)),
        ),
        Some(found) if found < KERNEL_READ_ONLY => Finding::warning(
            "kernel",
            format!("Linux {text} cannot show pods the node's files read-only"),
            format!(
                "boot {}, or write host-files = \"as-permitted\" below [agent] in /etc/muster/muster.toml",
                wants(KERNEL_READ_ONLY)
            ),
        ),
        Some(_) => Finding::ok("kernel", format!("Linux {text}")),
    }
}

fn cgroups(
    layout: &HierarchyLayout,
    capabilities: &Result<Capabilities, UnknownFact>,
) -> Vec<Finding> {
    let v2 = "boot with systemd.unified_cgroup_hierarchy=1 on the kernel's command line";
    let mut findings = vec![match layout {
        HierarchyLayout::V2(root) => {
            Finding::ok("cgroups", format!("version 2 at {}", root.display()))
        }
        HierarchyLayout::V1(_) => Finding::warning(
            "cgroups",
            "version 1: containers with an image have no limit of processes",
            v2,
        ),
        HierarchyLayout::Absent(why) => Finding::warning(
            "cgroups",
            format!("limits of pods are not enforced: {why}"),
            v2,
        ),
    }];
    let Ok(capabilities) = capabilities else {
        return findings;
    };
    if matches!(layout, HierarchyLayout::Absent(_)) {
        return findings;
    }
    let controllers = [
        ("cpu limits", &capabilities.cpu, "cpu"),
        ("memory limits", &capabilities.memory, "memory"),
        ("process limits", &capabilities.pids, "pids"),
    ];
    findings.extend(controllers.into_iter().map(|(subject, support, name)| {
        match support {
            Support::Yes(how) => Finding::ok(subject, how.as_str()),
            Support::No(why) => Finding::warning(
                subject,
                why.as_str(),
                format!(
                    "the controller {name} must be in /sys/fs/cgroup/cgroup.controllers and delegated; in a container, mount cgroups writable"
                ),
            ),
        }
    }));
    findings
}

fn isolation(capabilities: &Result<Capabilities, UnknownFact>, root: bool) -> Vec<Finding> {
    let capabilities = match capabilities {
        Ok(capabilities) => capabilities,
        Err(why) => {
            return vec![Finding::problem(
                "isolation of pods",
                format!("the agent's probe did not run: {why}"),
                "muster doctor",
            )];
        }
    };
    if let Some(why) = capabilities.unfit(true) {
        // The other answers have the same cause.
        return vec![Finding::problem(
            "isolation of pods",
            format!("the node would start no pods without an image: {why}"),
            UNFIT_REMEDY,
        )];
    }
    let mut findings = Vec::new();
    if root {
        findings.push(Finding::ok(
            "isolation of pods",
            "own mounts, users, processes and system call filter",
        ));
    }
    for (subject, support) in [
        ("volumes and host names", &capabilities.namespaces),
        ("device access control", &capabilities.devices),
    ] {
        if let Support::No(why) = support {
            findings.push(Finding::warning(subject, why.as_str(), "muster doctor"));
        }
    }
    findings
}

/// The command that installs NVIDIA's driver on a distribution, from the name that it gives itself.
fn driver_package(os: &str) -> &'static str {
    let first = os.split_whitespace().next().unwrap_or_default();
    match first {
        "Ubuntu" => "apt install ubuntu-drivers-common && ubuntu-drivers install --gpgpu",
        "Debian" => {
            "apt install nvidia-driver firmware-misc-nonfree (component non-free), and reboot"
        }
        "Fedora" => {
            "dnf install akmod-nvidia xorg-x11-drv-nvidia-cuda (repository RPM Fusion), and reboot"
        }
        "Red" | "Rocky" | "AlmaLinux" | "CentOS" | "Oracle" => {
            "dnf module install nvidia-driver:open-dkms (NVIDIA's CUDA repository), and reboot"
        }
        "SLES" | "SUSE" | "openSUSE" => {
            "zypper install nvidia-open-driver-G06-signed-kmp-default nvidia-compute-utils-G06, and reboot"
        }
        _ => "install NVIDIA's data centre driver with its kernel module, and reboot",
    }
}

fn gpus(facts: &AgentFacts) -> Vec<Finding> {
    let inventory = match &facts.inventory {
        Ok(inventory) => inventory,
        Err(why) => {
            return vec![Finding::problem(
                "hardware",
                format!("it cannot be read: {why}"),
                "muster doctor",
            )];
        }
    };
    let (on_bus, seen) = (facts.gpus_on_bus, inventory.gpus.len());
    let mut findings = Vec::new();
    let install = driver_package(&inventory.os);
    if on_bus > 0 && !facts.driver {
        let nouveau = if facts.nouveau {
            ", and nouveau holds one: blacklist it"
        } else {
            ""
        };
        findings.push(Finding::problem(
            "GPUs",
            format!(
                "{on_bus} NVIDIA GPU(s) on the PCI bus, and NVIDIA's driver is not loaded{nouveau}"
            ),
            install,
        ));
    } else if seen < on_bus {
        findings.push(Finding::warning(
            "GPUs",
            format!("NVIDIA's driver lists {seen} of the {on_bus} GPUs on the PCI bus"),
            "nvidia-smi, and dmesg | grep -e NVRM -e Xid, say why",
        ));
    } else if seen == 0 {
        findings.push(Finding::ok("GPUs", "this machine has no NVIDIA GPU"));
    } else {
        let first = inventory.gpus.first();
        let (model, driver) =
            first.map_or(("", ""), |gpu| (gpu.model.as_str(), gpu.driver.as_str()));
        findings.push(Finding::ok(
            "GPUs",
            format!("{seen}, such as {model}; driver {driver}"),
        ));
    }
    for gpu in inventory.gpus.iter().filter(|gpu| !gpu.healthy) {
        findings.push(Finding::warning(
            format!("GPU {}", gpu.index),
            format!("unhealthy, so pods do not get it: {}", gpu.problem),
            "muster doctor; web/docs/gpus.md has the action for each fault",
        ));
    }
    let warnings = inventory.warnings.iter();
    findings
        .extend(warnings.map(|why| Finding::warning("hardware", why.as_str(), "muster doctor")));
    findings
}

fn rdma(facts: &AgentFacts) -> Vec<Finding> {
    let cards = facts.inventory.as_ref().map_or(0, |found| found.nics.len());
    let failed = facts.rdma.iter();
    let failed: Vec<Finding> = failed
        .filter(|check| check.answer == CheckOutcome::Fail)
        .map(|check| {
            let place = match check.place.as_str() {
                "" => "RDMA".to_owned(),
                place => format!("RDMA {place}"),
            };
            let found = format!("{}: {}", check.name, check.found);
            Finding::warning(place, found, check.advice.as_str())
        })
        .collect();
    if !failed.is_empty() {
        return failed;
    }
    vec![match cards {
        0 => Finding::ok("RDMA", "this machine has no card that does RDMA"),
        cards => Finding::ok("RDMA", format!("{cards} card(s), and no check failed")),
    }]
}

fn token(token: Option<&str>, joined: bool) -> Finding {
    let mend = "muster token join on the server prints one; pass the whole line with --token";
    let Some(text) = token else {
        return match joined {
            true => Finding::ok("join token", "not needed: the agent has its certificate"),
            false => Finding::problem("join token", "there is none", mend),
        };
    };
    let Some((_, fingerprint)) = text.split_once('@') else {
        return Finding::problem(
            "join token",
            "it lacks the fingerprint of the server's CA after an @",
            mend,
        );
    };
    let digits = fingerprint.trim_start_matches("sha256:").chars();
    let digits = digits.filter(char::is_ascii_hexdigit).count();
    if digits != FINGERPRINT_DIGITS {
        return Finding::problem(
            "join token",
            format!(
                "the fingerprint after the @ has {digits} hexadecimal digits instead of {FINGERPRINT_DIGITS}"
            ),
            mend,
        );
    }
    Finding::ok("join token", "it has the fingerprint of the server's CA")
}

fn contact(server: &str, contact: &ServerContact) -> Vec<Finding> {
    match contact {
        ServerContact::Unreachable(why) => vec![Finding::problem(
            "server",
            format!("{server} cannot be reached: {why}"),
            "on the server: systemctl status muster-server, muster setup server --listen 0.0.0.0:PORT, and the port open in its firewall",
        )],
        ServerContact::Untrusted(why) => vec![Finding::problem(
            "server",
            format!("{server} is not the server that the token is for: {why}"),
            "compare the address, and take a new token from muster token join",
        )],
        ServerContact::Unverified => vec![Finding::warning(
            "server",
            format!("{server} can be reached; without a token its certificate is not verified"),
            "muster token join on the server",
        )],
        ServerContact::Answered(ahead) => {
            let mut findings = vec![Finding::ok(
                "server",
                format!("{server} answers with a certificate of the expected CA"),
            )];
            findings.extend(ahead.map(skew));
            findings
        }
    }
}

/// The difference of the clocks; the server's is `ahead` seconds ahead of this machine's.
fn skew(ahead: i64) -> Finding {
    let found = || {
        let side = if ahead > 0 { "behind" } else { "ahead of" };
        format!(
            "this machine's clock is {} s {side} the server's",
            ahead.unsigned_abs()
        )
    };
    let mend = "timedatectl set-ntp true, here and on the server";
    match i64::try_from(ahead.unsigned_abs()).unwrap_or(i64::MAX) {
        difference if difference > SKEW_PROBLEM_S => Finding::problem("clock", found(), mend),
        difference if difference > SKEW_WARNING_S => Finding::warning("clock", found(), mend),
        _ => Finding::ok("clock", "it agrees with the server's"),
    }
}

#[cfg(test)]
mod tests;
