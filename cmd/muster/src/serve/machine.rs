//! The agent's configuration, from the arguments and this host's properties.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use agent::{
    Accounts, AgentConfig, BinaryUpgrade, DeviceDelivery, KubeletConfig, Listen, PodDisk,
    PodNetworkMode, TellTopology,
};
use anyhow::{Context, Result, bail};
use devices::delivery::DeliveryMethod;
use devices::mig::{Configurations, Drain, MigSettings};
use devices::mps::MpsConfig;
use devices::rdma::RdmaSettings;
use devices::settings::PluginSettings;
use devices::sharing::{DeviceSelection, Replicated, Sharing, SharingStrategy};
use devices::vendors::Vendor;
use devices::xids::{XidPolicy, XidSources};
use hardware::InventorySources;
use resources::names::NVIDIA_GPU;

use super::host;
use super::layout::FileLayout;
use super::server::RunningServer;
use crate::arguments::{
    DevicesBy, EmbeddedAgent, HostFiles, KubeletAgent, MachineOptions, Metrics, MigDrain,
    NcclTopology, PodNetwork, PodOptions,
};

/// The configuration of an agent in the server's process.
pub fn beside(
    server: &RunningServer,
    layout: &FileLayout,
    options: &MachineOptions,
    pods: &PodOptions,
) -> Result<AgentConfig> {
    let address = match pods.node_address {
        Some(address) => address,
        None => server.local_address().ip(),
    };
    let server_url = format!("https://{}", server.local_address());
    let mut config = common(layout, options, pods, server_url, address)?;
    config.metrics = listen(options, Ipv4Addr::LOCALHOST);
    config.token = Some(server.fleet.own_join_token(&config.node_name)?);
    config.ca = Some(layout.authority());
    Ok(config)
}

/// The configuration of an agent in its own process.
pub fn alone(layout: &FileLayout, arguments: &EmbeddedAgent) -> Result<AgentConfig> {
    let server = arguments
        .server
        .as_deref()
        .context("--server is required: the address of the server to join, https://HOST:PORT")?;
    let server = server.trim_end_matches('/').to_string();
    let pods = &arguments.pods;
    let address = match pods.node_address {
        Some(address) => address,
        None => own_address(&server)?,
    };
    let mut config = common(layout, &arguments.machine, pods, server, address)?;
    if let Some(text) = &arguments.token {
        // `muster token join` prints the token and the authority's fingerprint.
        let (token, fingerprint) = match text.split_once('@') {
            Some((token, fingerprint)) => (token, Some(fingerprint.to_string())),
            None => (text.as_str(), None),
        };
        config.token = Some(token.to_string());
        config.ca_fingerprint = fingerprint;
    }
    config.ca = arguments.ca.clone();
    Ok(config)
}

fn common(
    layout: &FileLayout,
    options: &MachineOptions,
    pods: &PodOptions,
    server: String,
    address: IpAddr,
) -> Result<AgentConfig> {
    let name = node_name(options)?;
    let vendors = vendors(&options.vendors)?;
    let shim = std::env::current_exe().context("this binary's own path cannot be found")?;
    Ok(AgentConfig {
        server,
        token: None,
        ca: None,
        ca_fingerprint: None,
        data: layout.agent(),
        node_name: name,
        node_ip: address,
        machine_description: options.machine.clone(),
        expected: options.expect.clone(),
        mig_strategy: options.mig_strategy.clone(),
        rdma: shared_cards(options, DeviceDelivery::Plugin, &vendors)?,
        vendors,
        topology: match pods.nccl_topology {
            None | Some(NcclTopology::Hidden) => TellTopology::Hidden,
            Some(NcclTopology::Always) => TellTopology::Always,
            Some(NcclTopology::Never) => TellTopology::Never,
        },
        host_images: pods.host_images,
        cri_socket: pods.cri.clone(),
        labels: pods.labels.iter().cloned().collect(),
        look: agent::LOOK,
        xids: hearing(options)?,
        metrics: listen(options, Ipv4Addr::UNSPECIFIED),
        sharing: by_mps(pods.mps.as_ref()),
        mps: daemons(options),
        over_share: options.sharing.over_share.into(),
        accounts: accounts(pods.tenancy.accounts.as_deref())?,
        pod_ids: pods.tenancy.pod_ids.clone().unwrap_or(agent::POD_IDS),
        pod_processes: pods.tenancy.pod_pids_limit,
        max_pods: pods.tenancy.max_pods,
        pod_network: match pods.tenancy.pod_network {
            None | Some(PodNetwork::Host) => PodNetworkMode::Host,
            Some(PodNetwork::Own) => PodNetworkMode::Own,
        },
        reserved: pods
            .tenancy
            .kube_reserved
            .unwrap_or_default()
            .and(pods.tenancy.system_reserved.unwrap_or_default()),
        pod_disk: pods.tenancy.pod_disk.unwrap_or(PodDisk::Share),
        read_only_host: pods.tenancy.host_files != Some(HostFiles::AsPermitted),
        hidden: vec![layout.root().to_path_buf()],
        shim_command: vec![shim.into(), "shim".into()],
        upgrade: BinaryUpgrade::off(
            "it runs in the server's process (`muster up`) and is upgraded with the server",
        ),
    })
}

/// Unix accounts of pods, from the file.
fn accounts(file: Option<&Path>) -> Result<Accounts> {
    let Some(file) = file else {
        return Ok(Accounts::default());
    };
    let named = || format!("--accounts: {}", file.display());
    Accounts::read(&document(file, named)?)
        .map_err(anyhow::Error::msg)
        .with_context(named)
}

/// The address of the metrics endpoint: the given one, or `usual` with the default port if that
/// port is free.
fn listen(options: &MachineOptions, usual: Ipv4Addr) -> Option<Listen> {
    match options.metrics {
        Some(Metrics::Off) => None,
        Some(Metrics::At(address)) => Some(Listen {
            address,
            required: true,
        }),
        None => Some(Listen {
            address: (usual, agent::PORT).into(),
            required: false,
        }),
    }
}

fn node_name(options: &MachineOptions) -> Result<String> {
    match &options.node_name {
        Some(name) => Ok(name.clone()),
        None => host::name().context("--node-name: this host has no name; give the node one"),
    }
}

/// The configuration of an agent that gives devices to a kubelet's pods.
pub fn beside_kubelet(data: &Path, arguments: &KubeletAgent) -> Result<KubeletConfig> {
    let machine = &arguments.machine;
    let given_by = match arguments.devices {
        None | Some(DevicesBy::Plugin) => DeviceDelivery::Plugin,
        Some(DevicesBy::Dra) => DeviceDelivery::Claims,
    };
    let settings = plugin_settings(arguments)?;
    let plugins = [
        (
            settings.mig_strategy.is_some(),
            "the MIG strategy of --device-plugin-config",
        ),
        (
            !settings.sharing.resources.is_empty(),
            "the sharing of --device-plugin-config",
        ),
    ];
    let plugins = plugins.into_iter().find(|(given, _)| *given);
    if let Some((_, name)) = plugins.filter(|_| given_by == DeviceDelivery::Claims) {
        bail!(
            "--devices dra: {name} is the device plugin's; claims get whole GPUs and slices by CDI, each for one claim: leave it out, or use --devices plugin"
        );
    }
    let vendors = vendors(&machine.vendors)?;
    Ok(KubeletConfig {
        given_by,
        directory: arguments.kubelet_dir.clone(),
        node: node_name(machine)?,
        source: InventorySources {
            description: machine.machine.clone(),
            ..InventorySources::default()
        },
        expected: machine.expect.clone(),
        dev: "/dev".into(),
        cdi: arguments.cdi_dir.clone(),
        settings,
        rdma: shared_cards(machine, given_by, &vendors)?,
        vendors,
        host_root: arguments.host_root.clone(),
        mig: mig_settings(arguments.mig_manager, arguments.mig_config.as_deref())?,
        partitions: arguments.mig_partitions,
        pair: arguments.pair,
        xids: XidSources {
            state: Some(data.join("agent").join("xids.json")),
            ..hearing(machine)?
        },
        mps: daemons(machine),
        over_share: machine.sharing.over_share.into(),
        metrics: listen(machine, Ipv4Addr::UNSPECIFIED),
    })
}

/// The GPUs that are shared through MPS. The pods determine the number of shares.
fn by_mps(gpus: Option<&DeviceSelection>) -> Sharing {
    let Some(devices) = gpus.cloned() else {
        return Sharing::default();
    };
    Sharing {
        strategy: SharingStrategy::Mps,
        resources: vec![Replicated {
            name: NVIDIA_GPU.to_owned(),
            replicas: 1,
            devices,
            ..Replicated::default()
        }],
        ..Sharing::default()
    }
}

fn daemons(options: &MachineOptions) -> MpsConfig {
    MpsConfig {
        program: options.sharing.mps_control.clone(),
        directory: options.sharing.mps_dir.clone(),
    }
}

/// The sources of XIDs, and the actions on them.
fn hearing(options: &MachineOptions) -> Result<XidSources> {
    let kmsg = match &options.kmsg {
        Some(file) => Some(file.clone()).filter(|file| file.as_os_str() != "off"),
        // A described machine's faults are not in this machine's log.
        None => (options.machine.is_none()).then(|| hardware::kmsg::KMSG.into()),
    };
    Ok(XidSources {
        policy: xid_policy(options.xid_policy.as_deref())?,
        kmsg,
        state: None,
    })
}

/// The actions on GPUs for their XIDs: the file's, or the default ones.
pub fn xid_policy(file: Option<&Path>) -> Result<XidPolicy> {
    let Some(file) = file else {
        return Ok(XidPolicy::default());
    };
    let named = || format!("--xid-policy: {}", file.display());
    XidPolicy::read(&document(file, named)?).with_context(named)
}

/// Reads a YAML file; errors use the name that `named` returns.
fn document(file: &Path, named: impl Fn() -> String) -> Result<serde_json::Value> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", named()))?;
    serde_norway::from_str(&text).with_context(|| format!("{} is not YAML", named()))
}

/// The device plugin's settings: from the file, with the argument's MIG strategy.
fn plugin_settings(arguments: &KubeletAgent) -> Result<PluginSettings> {
    let mut settings = PluginSettings::default();
    if let Some(file) = &arguments.device_plugin_config {
        let named = || format!("--device-plugin-config: {}", file.display());
        let document = document(file, named)?;
        settings = PluginSettings::read(&document).with_context(named)?;
        for field in &settings.unused {
            tracing::warn!("{}: {field} has no counterpart here", named());
        }
    }
    if let Some(strategy) = &arguments.machine.mig_strategy {
        settings.mig_strategy = Some(strategy.clone());
    }
    settings.parts = arguments.gpu_parts;
    let ways = arguments.device_list_strategy.iter();
    let ways: BTreeSet<_> = ways
        .filter_map(|name| DeliveryMethod::named(name))
        .collect();
    if !ways.is_empty() {
        settings.delivery.ways = ways;
    }
    Ok(settings)
}

/// The settings for partitioning GPUs by the node's label; none unless requested.
fn mig_settings(pods: Option<MigDrain>, file: Option<&Path>) -> Result<Option<MigSettings>> {
    let Some(pods) = pods else {
        return Ok(None);
    };
    let mut configurations = Configurations::default();
    if let Some(file) = file {
        let named = || format!("--mig-config: {}", file.display());
        configurations = Configurations::read(&document(file, named)?).with_context(named)?;
    }
    Ok(Some(MigSettings {
        configurations,
        drain: match pods {
            MigDrain::Wait => Drain::Wait,
            MigDrain::Evict => Drain::Evict,
        },
    }))
}

/// Other vendors' devices, from their description files.
fn vendors(files: &[PathBuf]) -> Result<Vec<Vendor>> {
    let mut all: Vec<Vendor> = Vec::new();
    for file in files {
        let named = || format!("--vendor: {}", file.display());
        let vendor = Vendor::read(&document(file, named)?).with_context(named)?;
        if all.iter().any(|other| other.resource == vendor.resource) {
            let resource = &vendor.resource;
            bail!(
                "{}: resource: {resource} is described by another file too; leave one of them out",
                named()
            );
        }
        all.push(vendor);
    }
    Ok(all)
}

/// The RDMA cards that containers share: the file's, or all of this machine's.
fn shared_cards(
    options: &MachineOptions,
    by: DeviceDelivery,
    vendors: &[Vendor],
) -> Result<RdmaSettings> {
    let file = options.rdma_config.as_deref();
    let off = file.is_some_and(|file| file.as_os_str() == "off");
    let Some(file) = file.filter(|_| !off) else {
        // Claims allocate a card to one container only, and a described machine's cards are not
        // this machine's.
        let usual = !off && by == DeviceDelivery::Plugin && options.machine.is_none();
        return Ok(match usual {
            true => RdmaSettings::usual(),
            false => RdmaSettings::default(),
        });
    };
    let named = || format!("--rdma-config: {}", file.display());
    let settings = RdmaSettings::read(&document(file, named)?).with_context(named)?;
    for field in &settings.unused {
        tracing::warn!("{}: {field} has no counterpart here", named());
    }
    let both =
        |vendor: &&Vendor| (settings.resources.iter()).any(|it| it.resource == vendor.resource);
    if let Some(vendor) = vendors.iter().find(both) {
        let resource = &vendor.resource;
        bail!(
            "{}: {resource} is also the resource of a --vendor file; give one of them another name",
            named()
        );
    }
    Ok(settings)
}

/// This host's address as the server sees it.
fn own_address(server: &str) -> Result<IpAddr> {
    let Some(authority) = server.strip_prefix("https://") else {
        bail!("--server: {server:?} is invalid: use https://HOST:PORT");
    };
    let resolved: SocketAddr = authority
        .to_socket_addrs()
        .with_context(|| {
            format!("--server: {authority:?} does not resolve to an address and port")
        })?
        .next()
        .with_context(|| format!("--server: {authority:?} has no address"))?;
    Ok(host::address_towards(resolved).unwrap_or(Ipv4Addr::LOCALHOST.into()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{AgentEngine, Arguments, Command};

    /// The configuration of `muster agent kubernetes --node-name=n` with further arguments.
    fn of_kubelet(more: &[&str]) -> Result<KubeletConfig> {
        let words = ["muster", "agent", "kubernetes", "--node-name=n"];
        let parsed = Arguments::try_parse_from(words.iter().chain(more))?;
        let Command::Agent(agent) = parsed.command else {
            panic!("an agent")
        };
        let Some(AgentEngine::Kubernetes(options)) = agent.engine else {
            panic!("beside a kubelet")
        };
        beside_kubelet(Path::new("/nowhere"), &options)
    }

    #[test]
    fn the_examples_describe_their_vendors_resources_each_once() {
        let examples = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../packaging/examples/vendors"
        );
        let files = std::fs::read_dir(examples).unwrap();
        let mut files: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let resources: Vec<String> = (vendors(&files).unwrap().into_iter())
            .map(|vendor| vendor.resource)
            .collect();
        // On the embedded engine, too.
        let mut words = vec!["muster", "up", "--node-name", "n"];
        let names: Vec<String> = files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        words.extend(names.iter().flat_map(|name| ["--vendor", name]));
        let Command::Up(up) = Arguments::try_parse_from(words).unwrap().command else {
            panic!("up")
        };
        assert_eq!(up.machine.vendors, files);
        let wanted = [
            "amd.com/gpu",
            "huawei.com/Ascend910",
            "habana.ai/gaudi",
            "aws.amazon.com/neuron",
        ];
        assert_eq!(resources, wanted);
        files.push(files[0].clone());
        let why = format!("{:#}", vendors(&files).unwrap_err());
        assert!(
            why.contains("amd.com/gpu is described by another file"),
            "{why}"
        );
    }

    #[test]
    fn the_example_of_accounts_is_read_and_a_wrong_file_is_named() {
        let example = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../packaging/examples/accounts.yaml"
        );
        let read = accounts(Some(Path::new(example))).unwrap();
        for (user, namespace, label, expected) in [
            (Some("alice"), "default", "", "alice"),
            (None, "team-a", "", "svc-team-a"),
            (None, "team-b", "research", "svc-research"),
        ] {
            let found = read.account(user, namespace, label);
            assert_eq!(found, Ok(Some(expected)));
        }
        assert_eq!(accounts(None).unwrap(), Accounts::default());
        let why = accounts(Some(Path::new("/nowhere/accounts.yaml"))).unwrap_err();
        let why = format!("{why:#}");
        assert!(
            why.starts_with("--accounts: /nowhere/accounts.yaml"),
            "{why}"
        );
    }

    #[test]
    fn the_device_plugins_examples_are_read() {
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/examples");
        let read = |name: &str| {
            let file = Path::new(examples).join(name);
            let document = document(&file, || name.to_owned()).unwrap();
            PluginSettings::read(&document).unwrap()
        };
        assert!(read("device-plugin.yaml").delivery.by_cdi());
        let sharing = read("device-plugin-mps.yaml").sharing;
        assert_eq!(sharing.strategy, SharingStrategy::Mps);
        assert_eq!(sharing.resources[0].replicas, 4);
    }

    #[test]
    fn the_example_of_mig_configurations_is_read_and_nothing_is_cut_unasked() {
        let example = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../packaging/examples/mig-configurations.yaml"
        );
        let example = Some(Path::new(example));
        let settings = mig_settings(Some(MigDrain::Wait), example)
            .unwrap()
            .unwrap();
        let Configurations::Given(all) = settings.configurations else {
            panic!("those of the file");
        };
        let names: Vec<&String> = all.keys().collect();
        assert_eq!(names, ["halves", "mixed", "off"]);
        assert_eq!(mig_settings(None, None).unwrap(), None);
    }

    #[test]
    fn cards_are_shared_unless_they_are_claimed_described_or_off() {
        let resources = |more: &[&str]| -> Result<Vec<String>> {
            let all = of_kubelet(more)?.rdma.resources.into_iter();
            Ok(all.map(|shared| shared.resource).collect())
        };
        let none = [""; 0];
        assert_eq!(resources(&[]).unwrap(), ["rdma/hca_shared_devices_a"]);
        assert_eq!(resources(&["--rdma-config", "off"]).unwrap(), none);
        assert_eq!(resources(&["--devices", "dra"]).unwrap(), none);
        let example = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../packaging/examples/rdma.yaml"
        );
        let wanted = ["rdma/hca_infiniband", "rdma/hca_storage"];
        assert_eq!(resources(&["--rdma-config", example]).unwrap(), wanted);
        // The same on the embedded engine.
        let embedded = |more: &[&str]| {
            let words = ["muster", "up", "--node-name", "n"];
            let parsed = Arguments::try_parse_from(words.iter().chain(more)).unwrap();
            let Command::Up(up) = parsed.command else {
                panic!("up")
            };
            let settings = shared_cards(&up.machine, DeviceDelivery::Plugin, &[]).unwrap();
            let all = settings.resources.into_iter();
            all.map(|shared| shared.resource).collect::<Vec<_>>()
        };
        assert_eq!(embedded(&[]), ["rdma/hca_shared_devices_a"]);
        assert_eq!(embedded(&["--machine", "/nowhere/m"]), none);
        assert_eq!(embedded(&["--rdma-config", example]), wanted);
        let missing = resources(&["--rdma-config", "/nowhere/x"]).unwrap_err();
        let missing = format!("{missing:#}");
        assert!(
            missing.starts_with("--rdma-config: /nowhere/x cannot be read"),
            "{missing}"
        );
    }

    #[test]
    fn a_server_is_named_by_https_host_and_port() {
        assert!(own_address("https://127.0.0.1:8443").unwrap().is_loopback());
        for bad in [
            "http://127.0.0.1:8443",
            "127.0.0.1:8443",
            "https://127.0.0.1",
        ] {
            let error = own_address(bad).unwrap_err().to_string();
            assert!(error.starts_with("--server:"), "{error}");
        }
    }
}
