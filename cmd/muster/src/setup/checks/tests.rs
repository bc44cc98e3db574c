//! A good machine has no faults, and each change of it makes one finding.

use hardware::{Gpu, Origin};

use super::super::finding::Severity;
use super::*;

const GI: u64 = 1 << 30;

fn room(available: u64) -> Result<DiskSpace, UnknownFact> {
    Ok(DiskSpace {
        bytes: 100 * GI,
        available,
        inodes: 1000,
        inodes_available: 500,
    })
}

fn common(service: &'static str) -> CommonFacts {
    CommonFacts {
        service,
        root: true,
        unit: true,
        clock: ClockSync::Synchronised,
        data: ("/var/lib/muster".into(), room(50 * GI)),
    }
}

fn server() -> ServerFacts {
    ServerFacts {
        common: common("muster-server"),
        listen: ([0, 0, 0, 0], 8443).into(),
        port: PortState::Free,
    }
}

fn gpu(index: u32) -> Gpu {
    Gpu {
        index,
        model: "NVIDIA H100 80GB HBM3".to_owned(),
        driver: "550.54".to_owned(),
        healthy: true,
        ..Gpu::default()
    }
}

fn agent() -> AgentFacts {
    let yes = || Support::Yes("cgroup version 2".to_owned());
    AgentFacts {
        common: common("muster-agent"),
        host: Some("gpu-1".to_owned()),
        kernel: "6.1.0-31-amd64".to_owned(),
        metrics: PortState::Free,
        cgroups: HierarchyLayout::V2("/sys/fs/cgroup".into()),
        capabilities: Ok(Capabilities {
            cpu: yes(),
            memory: yes(),
            pids: yes(),
            namespaces: yes(),
            devices: yes(),
            users: yes(),
            isolation: yes(),
            read_only_host: yes(),
        }),
        inventory: Ok(Inventory {
            os: "Debian GNU/Linux 12 (bookworm)".to_owned(),
            origin: Origin::Nvml,
            gpus: vec![gpu(0), gpu(1)],
            ..Inventory::default()
        }),
        gpus_on_bus: 2,
        driver: true,
        nouveau: false,
        rdma: Vec::new(),
        server: "https://gpu.example:8443".to_owned(),
        token: Some(format!("abcdef.secret@sha256:{}", "ab".repeat(32))),
        joined: false,
        contact: ServerContact::Answered(Some(1)),
    }
}

fn not_ok(findings: Vec<Finding>) -> Vec<(Severity, String, String)> {
    let not_ok = findings
        .into_iter()
        .filter(|finding| finding.level != Severity::Ok);
    not_ok
        .map(|finding| {
            assert!(!finding.remedy.is_empty(), "{finding}");
            (finding.level, finding.subject.clone(), finding.to_string())
        })
        .collect()
}

fn assert_faultless(findings: Vec<Finding>) {
    let found = not_ok(findings);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn a_good_machine_has_no_faults() {
    assert_faultless(of_server(&server()));
    assert_faultless(of_agent(&agent()));
}

type ServerChange = Box<dyn Fn(&mut ServerFacts)>;

fn on_server(change: impl Fn(&mut ServerFacts) + 'static) -> ServerChange {
    Box::new(change)
}

#[test]
fn each_fault_of_a_servers_machine_is_one_finding_with_its_remedy() {
    let cases: Vec<(ServerChange, Severity, &str, &str)> = vec![
        (
            on_server(|f| f.common.root = false),
            Severity::Problem,
            "user",
            "sudo muster setup server",
        ),
        (
            on_server(|f| f.common.unit = false),
            Severity::Warning,
            "systemd unit",
            "muster-server.service",
        ),
        (
            on_server(|f| f.common.clock = ClockSync::Unsynchronised),
            Severity::Warning,
            "clock",
            "timedatectl set-ntp true",
        ),
        (
            on_server(|f| f.common.clock = ClockSync::Unknown("no timedatectl".to_owned())),
            Severity::Warning,
            "clock",
            "no timedatectl",
        ),
        (
            on_server(|f| f.common.data.1 = room(GI - 1)),
            Severity::Problem,
            "disk",
            "1 GiB is needed",
        ),
        (
            on_server(|f| f.common.data.1 = room(GI)),
            Severity::Warning,
            "disk",
            "10 GiB is advisable",
        ),
        (
            on_server(|f| {
                f.common.data.1 = Ok(DiskSpace {
                    inodes_available: 0,
                    ..room(50 * GI).unwrap()
                });
            }),
            Severity::Problem,
            "disk",
            "no free inodes",
        ),
        (
            on_server(|f| f.common.data.1 = Err(UnknownFact("stale handle".to_owned()))),
            Severity::Warning,
            "disk",
            "stale handle",
        ),
        (
            on_server(|f| f.port = PortState::Taken("address in use".to_owned())),
            Severity::Problem,
            "port",
            "ss -ltnp 'sport = :8443'",
        ),
        (
            on_server(|f| f.listen = ([127, 0, 0, 1], 8443).into()),
            Severity::Warning,
            "port",
            "--listen 0.0.0.0:8443",
        ),
    ];
    for (change, level, subject, text) in cases {
        let mut facts = server();
        change(&mut facts);
        let found = not_ok(of_server(&facts));
        assert_eq!(found.len(), 1, "{subject}: {found:?}");
        assert_eq!((found[0].0, found[0].1.as_str()), (level, subject));
        assert!(found[0].2.contains(text), "{text}: {found:?}");
    }
    let mut facts = server();
    facts.port = PortState::Ours;
    // A second run, while the service runs.
    assert_faultless(of_server(&facts));
}

type AgentChange = Box<dyn Fn(&mut AgentFacts)>;

fn on_agent(change: impl Fn(&mut AgentFacts) + 'static) -> AgentChange {
    Box::new(change)
}

fn capability(change: impl Fn(&mut Capabilities) + 'static) -> AgentChange {
    Box::new(move |facts| {
        if let Ok(capabilities) = &mut facts.capabilities {
            change(capabilities);
        }
    })
}

fn hardware(change: impl Fn(&mut Inventory) + 'static) -> AgentChange {
    Box::new(move |facts| {
        if let Ok(inventory) = &mut facts.inventory {
            change(inventory);
        }
    })
}

fn no() -> Support {
    Support::No("not permitted".to_owned())
}

#[test]
fn each_fault_of_a_node_is_one_finding_with_its_remedy() {
    use Severity::{Problem, Warning};
    let cases: Vec<(AgentChange, Severity, &str, &str)> = vec![
        (
            on_agent(|f| f.host = None),
            Problem,
            "node name",
            "hostnamectl",
        ),
        (
            on_agent(|f| f.host = Some("localhost.localdomain".to_owned())),
            Problem,
            "node name",
            "hostnamectl",
        ),
        (
            on_agent(|f| f.kernel = "5.4.0-200-generic".to_owned()),
            Problem,
            "kernel",
            "Linux 5.6",
        ),
        (
            on_agent(|f| f.kernel = "5.10.0".to_owned()),
            Warning,
            "kernel",
            "host-files = \"as-permitted\"",
        ),
        (
            on_agent(|f| f.kernel = "unknown".to_owned()),
            Warning,
            "kernel",
            "uname -r",
        ),
        (
            on_agent(|f| f.metrics = PortState::Taken("in use".to_owned())),
            Warning,
            "metrics",
            "metrics = ",
        ),
        (
            on_agent(|f| f.cgroups = HierarchyLayout::Absent("none is mounted".to_owned())),
            Warning,
            "cgroups",
            "none is mounted",
        ),
        (
            on_agent(|f| f.cgroups = HierarchyLayout::V1([].into())),
            Warning,
            "cgroups",
            "unified_cgroup_hierarchy=1",
        ),
        (
            capability(|c| c.memory = no()),
            Warning,
            "memory limits",
            "controller memory",
        ),
        (
            capability(|c| {
                c.isolation = no();
                c.read_only_host = no();
                c.namespaces = no();
            }),
            Problem,
            "isolation of pods",
            "CAP_SYS_ADMIN",
        ),
        (
            capability(|c| c.devices = no()),
            Warning,
            "device access control",
            "not permitted",
        ),
        (
            on_agent(|f| f.capabilities = Err(UnknownFact("no shim".to_owned()))),
            Problem,
            "isolation of pods",
            "no shim",
        ),
        (
            on_agent(|f| f.inventory = Err(UnknownFact("no /proc".to_owned()))),
            Problem,
            "hardware",
            "no /proc",
        ),
        (
            on_agent(|f| f.driver = false),
            Problem,
            "GPUs",
            "apt install nvidia-driver",
        ),
        (
            hardware(|i| {
                i.gpus.pop();
            }),
            Warning,
            "GPUs",
            "1 of the 2 GPUs",
        ),
        (
            hardware(|i| {
                i.gpus[1].healthy = false;
                i.gpus[1].problem = "XID 79".to_owned();
            }),
            Warning,
            "GPU 1",
            "XID 79",
        ),
        (
            hardware(|i| i.warnings = vec!["the driver does not answer".to_owned()]),
            Warning,
            "hardware",
            "does not answer",
        ),
        (
            on_agent(|f| {
                f.rdma = vec![RdmaCheck {
                    name: "port state",
                    place: "mlx5_0/1".to_owned(),
                    answer: CheckOutcome::Fail,
                    found: "down".to_owned(),
                    advice: "check the cable".to_owned(),
                    weight: hardware::rdma::FailureSeverity::Breaks,
                }];
            }),
            Warning,
            "RDMA mlx5_0/1",
            "check the cable",
        ),
        (
            on_agent(|f| f.token = None),
            Problem,
            "join token",
            "muster token join",
        ),
        (
            on_agent(|f| f.token = Some("abcdef.secret".to_owned())),
            Problem,
            "join token",
            "lacks the fingerprint",
        ),
        (
            on_agent(|f| f.token = Some("abcdef.secret@sha256:ab".to_owned())),
            Problem,
            "join token",
            "2 hexadecimal digits",
        ),
        (
            on_agent(|f| f.contact = ServerContact::Unreachable("refused".to_owned())),
            Problem,
            "server",
            "systemctl status muster-server",
        ),
        (
            on_agent(|f| f.contact = ServerContact::Untrusted("another CA".to_owned())),
            Problem,
            "server",
            "another CA",
        ),
        (
            on_agent(|f| f.contact = ServerContact::Unverified),
            Warning,
            "server",
            "not verified",
        ),
        (
            on_agent(|f| f.contact = ServerContact::Answered(Some(6))),
            Warning,
            "clock",
            "6 s behind the server's",
        ),
        (
            on_agent(|f| f.contact = ServerContact::Answered(Some(-3601))),
            Problem,
            "clock",
            "3601 s ahead of the server's",
        ),
    ];
    for (change, level, subject, text) in cases {
        let mut facts = agent();
        change(&mut facts);
        let found = not_ok(of_agent(&facts));
        assert_eq!(found.len(), 1, "{subject}, {text}: {found:?}");
        assert_eq!((found[0].0, found[0].1.as_str()), (level, subject));
        assert!(found[0].2.contains(text), "{text}: {found:?}");
    }
}

#[test]
fn a_node_that_has_joined_needs_no_token_and_one_without_gpus_no_driver() {
    let mut facts = agent();
    (facts.token, facts.joined) = (None, true);
    (facts.gpus_on_bus, facts.driver) = (0, false);
    facts.inventory = Ok(Inventory::default());
    assert_faultless(of_agent(&facts));
}

#[test]
fn the_drivers_package_is_the_distributions() {
    for (os, word) in [
        ("Ubuntu 24.04.1 LTS", "ubuntu-drivers"),
        (
            "Debian GNU/Linux 12 (bookworm)",
            "apt install nvidia-driver",
        ),
        ("Rocky Linux 9.4", "dnf module install"),
        ("Red Hat Enterprise Linux 9.4 (Plow)", "dnf module install"),
        ("SLES 15", "zypper"),
        ("Plan 9", "data centre driver"),
    ] {
        assert!(driver_package(os).contains(word), "{os}");
    }
}
