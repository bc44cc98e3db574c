//! Options that exclude or need each other. clap cannot hold that against values of configuration files, which are
//! defaults to it, so that each start and `muster config check` compare the parsed options.

use resources::services::addresses::ServiceRangeError;

use super::machine::{AgentEngine, DevicesBy, KubeletAgent};
use super::oidc::OidcOptionError;
use super::tls::TlsOptionError;
use super::{Command, ServerEngine, ServerOptions};

/// Options that do not fit together.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CombinationError {
    /// Options of the server's certificate.
    #[error(transparent)]
    Tls(#[from] TlsOptionError),
    /// Options of OpenID Connect.
    #[error(transparent)]
    Oidc(#[from] OidcOptionError),
    /// Services and pods with the same addresses.
    #[error("--service-cidr: {0}")]
    ServiceRange(#[from] ServiceRangeError),
    /// An option of the device plugin with claims.
    #[error(
        "--devices dra: --{0} is the device plugin's; claims get whole GPUs and slices by CDI, each for one claim: leave it out, or use --devices plugin"
    )]
    PluginOption(&'static str),
    /// Shared RDMA cards with claims.
    #[error(
        "--devices dra: --rdma-config = {0} is the device plugin's; claims get RDMA cards (nic.muster.io), each for one claim: leave it out, or use --devices plugin"
    )]
    SharedCards(String),
    /// Partitions for claims without claims.
    #[error(
        "--mig-partitions: GPUs are partitioned for claims only, which need --devices dra; add that, or use --mig-manager"
    )]
    PartitionsWithoutClaims,
    /// Two programs that partition.
    #[error("--mig-partitions: --mig-manager would partition the same GPUs; leave one of them out")]
    TwoPartitioners,
    /// Partitions of GPUs that do not exist.
    #[error(
        "--mig-partitions: the GPUs of a machine description (--machine = {0}) cannot be partitioned; describe their slices there (mig), or leave one of them out"
    )]
    DescribedPartitions(String),
    /// Configurations of a MIG manager without one.
    #[error(
        "--mig-config: {0} is for --mig-manager; add --mig-manager wait or --mig-manager evict"
    )]
    ConfigWithoutManager(String),
}

impl Command {
    /// Checks that the options fit together.
    ///
    /// # Errors
    /// Two exclude each other, or one needs another.
    pub fn check_combinations(&self) -> Result<(), CombinationError> {
        match self {
            Command::Up(up) => of_server(&up.server_options()),
            Command::Server(server) => match &server.engine {
                None => of_server(&server.server),
                Some(ServerEngine::Kubernetes(_)) => Ok(()),
            },
            Command::Agent(agent) => match &agent.engine {
                Some(AgentEngine::Kubernetes(kubelet)) => of_kubelet(kubelet),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

fn of_server(options: &ServerOptions) -> Result<(), CombinationError> {
    options.tls.source()?;
    options.oidc.provider()?;
    Ok(options.check_ranges()?)
}

fn of_kubelet(options: &KubeletAgent) -> Result<(), CombinationError> {
    let claims = options.devices == Some(DevicesBy::Dra);
    let shown = |path: &std::path::Path| path.display().to_string();
    if claims {
        let of_plugin = [
            (options.machine.mig_strategy.is_some(), "mig-strategy"),
            (options.gpu_parts, "gpu-parts"),
            (
                !options.device_list_strategy.is_empty(),
                "device-list-strategy",
            ),
        ];
        if let Some((_, option)) = of_plugin.into_iter().find(|(given, _)| *given) {
            return Err(CombinationError::PluginOption(option));
        }
        let cards = options.machine.rdma_config.as_deref();
        if let Some(file) = cards.filter(|file| file.as_os_str() != "off") {
            return Err(CombinationError::SharedCards(shown(file)));
        }
    }
    if options.mig_partitions {
        if !claims {
            return Err(CombinationError::PartitionsWithoutClaims);
        }
        if options.mig_manager.is_some() {
            return Err(CombinationError::TwoPartitioners);
        }
        if let Some(file) = &options.machine.machine {
            return Err(CombinationError::DescribedPartitions(shown(file)));
        }
    }
    match (&options.mig_config, options.mig_manager) {
        (Some(file), None) => Err(CombinationError::ConfigWithoutManager(shown(file))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::Arguments;

    fn checked(line: &str) -> Result<(), String> {
        let parsed = Arguments::try_parse_from(line.split(' ')).unwrap();
        let checked = parsed.command.check_combinations();
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn options_that_exclude_or_need_each_other_are_refused_with_what_to_do() {
        let agent = "muster agent kubernetes --node-name=n";
        for (options, expected) in [
            (
                " --devices=dra --mig-strategy=mixed",
                "--devices dra: --mig-strategy is the device plugin's",
            ),
            (
                " --devices=dra --gpu-parts",
                "--devices dra: --gpu-parts is the device plugin's",
            ),
            (
                " --devices=dra --device-list-strategy=envvar",
                "--device-list-strategy is the device plugin's",
            ),
            (
                " --devices=dra --rdma-config=r.yaml",
                "--rdma-config = r.yaml is the device plugin's",
            ),
            (
                " --mig-partitions",
                "--mig-partitions: GPUs are partitioned for claims only, which need --devices dra",
            ),
            (
                " --mig-partitions --devices=dra --mig-manager=wait",
                "--mig-partitions: --mig-manager would partition",
            ),
            (
                " --mig-partitions --devices=dra --machine=m.toml",
                "(--machine = m.toml) cannot be partitioned",
            ),
            (
                " --mig-config=m.yaml",
                "--mig-config: m.yaml is for --mig-manager",
            ),
        ] {
            let why = checked(&format!("{agent}{options}")).unwrap_err();
            assert!(why.contains(expected), "{options}: {why}");
        }
        for options in [
            "",
            " --mig-strategy=mixed --gpu-parts --rdma-config=r.yaml",
            " --devices=dra --rdma-config=off",
            " --devices=dra --mig-partitions",
            " --mig-manager=wait --mig-config=m.yaml",
        ] {
            assert_eq!(checked(&format!("{agent}{options}")), Ok(()), "{options}");
        }
        for command in ["server", "up"] {
            let why = checked(&format!("muster {command} --tls-cert=c.pem")).unwrap_err();
            assert!(why.contains("the option needs --tls-key too"), "{why}");
            let why = checked(&format!("muster {command} --oidc-name=x")).unwrap_err();
            assert!(why.contains("the option needs --oidc-issuer-url"), "{why}");
        }
        assert_eq!(checked("muster server kubernetes"), Ok(()));
        let fine = "muster server --service-cidr=10.96.0.0/16 --pod-cidr=10.244.0.0/16";
        assert_eq!(checked(fine), Ok(()));
        for command in [
            "server --service-cidr=10.244.7.0/24",
            "up --service-cidr=10.0.0.0/12 --pod-cidr=10.8.0.0/16",
            "up --pod-network=own --pod-cidr=10.96.0.0/16",
        ] {
            let why = checked(&format!("muster {command}")).unwrap_err();
            assert!(why.contains("overlaps --pod-cidr"), "{command}: {why}");
            assert!(why.starts_with("--service-cidr: "), "{command}: {why}");
        }
    }
}
