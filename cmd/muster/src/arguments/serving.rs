//! Options of the server, for each engine.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use proxy::ProxyDomain;
use resources::pod_ranges::{DEFAULT_CLUSTER_RANGE, Ipv4Range};
use resources::services::addresses::{ServiceRange, ServiceRangeError, USUAL_RANGE};
use telemetry::LogFormat;

use super::audit::AUDIT;
use super::backups::BackupFlags;
use super::configuration::ConfigurationOptions;
use super::machine::{MachineOptions, PodOptions};
use super::oidc::{MAPPING, OidcFlags};
use super::option_error::ServerOptionError;
use super::pod_security::POD_SECURITY;
use super::tenancy::PodNetwork;
use super::tls::TlsOptions;

/// The server's default listen address.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:8443";

/// How long a node may be out of contact before its pods are declared lost, unless --node-grace says it.
pub const NODE_GRACE: Duration = Duration::from_secs(40);

/// Help text on the scheduler's configuration; the example shows the defaults.
const SCHEDULER: &str = "Scheduler (--scheduler-config; `muster simulate` reads the same):
  apiVersion: muster.io/v1alpha1
  kind: SchedulerConfig
  spec:                          # all of it may be left out; these are the defaults
    actions: [allocate, reclaim, preempt, backfill]   # also consolidate and defragment, which move work
    topology: [topology.kubernetes.io/zone, muster.io/spine, muster.io/leaf, muster.io/rack,
      muster.io/nvlink-domain]   # node labels that name network domains, widest first
    placement: fragmentation     # or pack, or spread: which nodes are taken first
    gpus: pack                   # or spread: of a node's GPUs for pods that share one
    reserveAfter: 4h             # a gang that waited so long gets room reserved for it
    reserveFor: response         # or age, share, size: the order of several such gangs
    weighLosses: true            # evictions must save more waiting than they lose work
    breakBudgets: false          # true: evictions may break PodDisruptionBudgets as a last resort
    staleAfter: 60s              # how long a gang below its minimum keeps running
    loadAge: 120s                # older reports of GPUs' load are ignored
    schedulerNames: [muster, default-scheduler, volcano, \"\"]   # `muster server kubernetes`: [muster]
    defragmentation: {movesAnHour: 8, gpusInterruptedEach: 2}
    mig:                         # off; as in {queues: [], after: 30s, every: 10m}: cut idle GPUs for gangs of
                                 # these queues (none: all) that waited so long for slices, or make them
                                 # whole, at most so often; in a Kubernetes cluster, agents with --mig-manager
    usage:                       # none; as in {halfLife: 7d, strength: 1}: past use counts against a queue
    expected: []                 # pods to come, for the placement; else like the present pods
      # - {count: 40, requests: {cpu: 8, nvidia.com/gpu: 1}, annotations: {}, nodeSelector: {}}

  Volcano's volcano-scheduler.conf (or its ConfigMap) and a KubeSchedulerConfiguration are read too;
  the log names each of their keys that has no counterpart.
  packaging/examples/scheduler.yaml is an example. The server names an invalid field at its start, with
  the valid form.";

/// Help text on the file of receivers.
const RECEIVERS: &str = "Receivers of alerts (--alert-receivers):
  [[receiver]]
  name = \"on-call\"                            # 1 to 63 of a-z, 0-9 and -
  kind = \"webhook\"                            # or slack, alertmanager
  url = \"https://hooks.example.org/muster\"    # or url-file = FILE, whose first line is the URL
  key-file = \"/etc/muster/on-call.key\"        # signs a webhook's document as Standard Webhooks does
  token-file = \"/etc/muster/on-call.token\"    # sent as a bearer token
  severity = \"warning\"                        # least severity: info (the default), warning or critical
  rules = [\"NodeLost\", \"GpuUnhealthy\"]      # all by default

  A webhook gets Alertmanager's webhook document. `muster alerts test NAME` sends a test, and
  `muster alerts receivers` shows what was delivered.";

/// How the process writes its log, to standard error.
#[derive(Args, Debug, Clone)]
pub struct LogOptions {
    /// Format of the log on standard error
    #[arg(long, value_parser = log_format(), default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,
    /// Levels of the log, such as info or info,controllers=debug
    #[arg(
        long,
        env = "MUSTER_LOG",
        value_name = "LEVELS",
        default_value = telemetry::USUAL_LEVELS,
        value_parser = telemetry::levels
    )]
    pub log_levels: String,
}

/// The names of the log's formats, as [`LogFormat`].
fn log_format() -> impl TypedValueParser<Value = LogFormat> {
    let names = PossibleValuesParser::new([
        PossibleValue::new("text").help("Lines for people"),
        PossibleValue::new("json").help(
            "One JSON object per line: timestamp, level, target, fields and the spans around the event",
        ),
    ]);
    names.map(|name| match name.as_str() {
        "json" => LogFormat::Json,
        _ => LogFormat::Text,
    })
}

#[derive(Args, Debug)]
#[command(after_long_help = format!("{SCHEDULER}\n\n{POD_SECURITY}\n\n{AUDIT}\n\n{RECEIVERS}\n\n{MAPPING}"))]
pub struct Up {
    #[command(flatten)]
    pub server: ServerOptions,
    #[command(flatten)]
    pub machine: MachineOptions,
    #[command(flatten)]
    pub pods: PodOptions,
    #[command(flatten)]
    pub log: LogOptions,
    #[command(flatten)]
    pub configuration: ConfigurationOptions,
}

impl Up {
    /// The server's options. Where pods have addresses, Services have some too: the agent is on the same machine.
    pub fn server_options(&self) -> ServerOptions {
        let mut options = self.server.clone();
        if self.pods.tenancy.pod_network == Some(PodNetwork::Own) {
            options.service_cidr = options
                .service_cidr
                .or(ServiceRange::parse(USUAL_RANGE).ok());
        }
        options
    }
}

#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_long_help = format!("{SCHEDULER}\n\n{POD_SECURITY}\n\n{AUDIT}\n\n{RECEIVERS}\n\n{MAPPING}")
)]
pub struct Server {
    #[command(subcommand)]
    pub engine: Option<ServerEngine>,
    #[command(flatten)]
    pub server: ServerOptions,
    #[command(flatten)]
    pub log: LogOptions,
    #[command(flatten)]
    pub configuration: ConfigurationOptions,
}

/// The engines other than the server's own API and store.
#[derive(Subcommand, Debug)]
pub enum ServerEngine {
    /// Run the scheduler and the job controllers for a Kubernetes cluster (--kubeconfig, else the cluster of this
    /// pod). A Lease elects one active server among several. If a StorageClass waits for the first consumer, claims
    /// are bound before their pods
    Kubernetes(KubernetesServer),
}

/// Options of `muster server kubernetes`.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = SCHEDULER)]
pub struct KubernetesServer {
    /// Listen address of /metrics, /healthz and /readyz, over plain HTTP
    #[arg(long, env = "MUSTER_LISTEN", default_value = DEFAULT_LISTEN, value_name = "ADDR")]
    pub listen: SocketAddr,
    #[command(flatten)]
    pub scheduler: SchedulerOptions,
    /// schedulerName to serve (repeatable); pods of jobs whose template names none get the first [default: muster]
    #[arg(long = "scheduler-name", value_name = "NAME")]
    pub scheduler_names: Vec<String>,
    /// Job kinds to control, separated by commas; omit kinds that another operator controls [default: PyTorchJob]
    #[arg(
        long,
        value_name = "KINDS",
        value_enum,
        ignore_case = true,
        value_delimiter = ','
    )]
    pub kinds: Vec<ControlledKind>,
    /// Namespace of the Lease, the same for all servers of a cluster [default: muster-system]
    #[arg(long, value_name = "NAME")]
    pub lease_namespace: Option<String>,
    /// Address of the extender for a stock kube-scheduler: it filters nodes by their GPUs, and binds pods with their
    /// devices; configuration: packaging/examples/kube-scheduler.yaml. Plain HTTP without authentication: every
    /// client that reaches the address can bind pods
    #[arg(long, value_name = "ADDR")]
    pub extender: Option<SocketAddr>,
    #[command(flatten)]
    pub log: LogOptions,
    #[command(flatten)]
    pub configuration: ConfigurationOptions,
}

/// Options of the scheduler, on each engine.
#[derive(Args, Debug, Clone)]
pub struct SchedulerOptions {
    /// Scheduler configuration: a SchedulerConfig in YAML, see below [default: as below]
    #[arg(long, env = "MUSTER_SCHEDULER_CONFIG", value_name = "FILE")]
    pub scheduler_config: Option<PathBuf>,
}

/// A job kind that the server can control in a cluster.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlledKind {
    /// kubeflow.org/v1 PyTorchJob
    #[value(name = "PyTorchJob")]
    PyTorchJob,
    /// kubeflow.org/v1 TFJob
    #[value(name = "TFJob")]
    TFJob,
    /// kubeflow.org/v1 XGBoostJob
    #[value(name = "XGBoostJob")]
    XGBoostJob,
    /// kubeflow.org/v1 PaddleJob
    #[value(name = "PaddleJob")]
    PaddleJob,
    /// kubeflow.org/v1 JAXJob
    #[value(name = "JAXJob")]
    JAXJob,
    /// kubeflow.org/v2beta1 MPIJob
    #[value(name = "MPIJob")]
    MPIJob,
    /// No kind
    #[value(name = "none")]
    None,
}

#[derive(Args, Debug, Clone)]
pub struct ServerOptions {
    /// Listen address of the API, the web UI and the agents' sessions
    #[arg(long, env = "MUSTER_LISTEN", default_value = DEFAULT_LISTEN, value_name = "ADDR")]
    pub listen: SocketAddr,
    /// Additional DNS name or IP address in the server's certificate (repeatable)
    #[arg(long = "advertise", value_name = "NAME")]
    pub advertise: Vec<String>,
    /// File with the first administrator's password, read at the first start only [default: generate one and store it
    /// in server/first-password under --data]
    #[arg(long, value_name = "FILE")]
    pub first_password_file: Option<PathBuf>,
    /// Seconds without contact after which a node's pods are declared lost, at least 10, because the contact of a healthy
    /// node is recorded every 5 seconds [default: 40]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(10..))]
    pub node_grace: Option<u64>,
    /// IPv4 range of the addresses of pods on nodes with --pod-network own; each such node gets a /24 of it. No machine
    /// may have an address in it [default: 10.244.0.0/16]
    #[arg(long, value_name = "RANGE", value_parser = Ipv4Range::cluster)]
    pub pod_cidr: Option<Ipv4Range>,
    /// IPv4 range of Services' addresses, as 10.96.0.0/16; nodes with --pod-network own lead them to pods, and have a
    /// DNS server at the range's tenth address. No machine may have an address in it [default: none, Services have no
    /// address; with muster up --pod-network own: 10.96.0.0/16]
    #[arg(long, value_name = "RANGE", value_parser = ServiceRange::parse)]
    pub service_cidr: Option<ServiceRange>,
    /// Receivers of alerts: webhooks, Slack and Alertmanager, in TOML, see below; read at the start [default: none]
    #[arg(long, env = "MUSTER_ALERT_RECEIVERS", value_name = "FILE")]
    pub alert_receivers: Option<PathBuf>,
    /// DNS domain below which each opened port of a pod gets a host name, and so an origin, of its own
    /// (/proxy/NAMESPACE/pods/NAME/PORT/ leads there): *.DOMAIN must lead to this server. Best a domain that shares no
    /// parent with the server's own name [default: none; browsers on the server's own machine use localhost]
    #[arg(long, env = "MUSTER_PROXY_DOMAIN", value_name = "DOMAIN", value_parser = ProxyDomain::parse)]
    pub proxy_domain: Option<ProxyDomain>,
    #[command(flatten)]
    pub tls: TlsOptions,
    #[command(flatten)]
    pub scheduler: SchedulerOptions,
    #[command(flatten)]
    pub audit: AuditFlags,
    #[command(flatten)]
    pub backups: BackupFlags,
    #[command(flatten)]
    pub oidc: OidcFlags,
    /// Pod security levels for namespaces without labels, and exemptions: a Kubernetes PodSecurityConfiguration in
    /// YAML, see below [default: baseline for all namespaces, no exemptions]
    #[arg(long, env = "MUSTER_POD_SECURITY_CONFIG", value_name = "FILE")]
    pub pod_security_config: Option<PathBuf>,
    /// Host directories, capabilities and host network access that pods of some namespaces may use in addition: a
    /// PodSecurityAllowList in YAML, see below [default: as below]
    #[arg(long, env = "MUSTER_POD_SECURITY_ALLOW", value_name = "FILE")]
    pub pod_security_allow: Option<PathBuf>,
}

/// Options of the embedded engine's audit log, named as kube-apiserver names them if it has them.
#[derive(Args, Debug, Clone)]
pub struct AuditFlags {
    /// Audit policy: a Policy of audit.k8s.io/v1 in YAML, see below [default: every change, sign-in and token;
    /// responses 401 and 403 are always recorded]
    #[arg(long, value_name = "FILE")]
    pub audit_policy_file: Option<PathBuf>,
    /// Directory of the audit log, readable only by the server's user [default: audit under --data]
    #[arg(long, value_name = "DIR")]
    pub audit_log_dir: Option<PathBuf>,
    /// File size in MiB at which the audit log starts a new file
    #[arg(long, value_name = "MIB", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub audit_log_maxsize: u64,
    /// Number of full audit log files to keep
    #[arg(long, value_name = "FILES", default_value_t = 10, value_parser = backups)]
    pub audit_log_maxbackup: usize,
}

fn backups(text: &str) -> Result<usize, ServerOptionError> {
    count_within(text, 1, 1000)
}

/// A number from `least` to `most`.
pub(super) fn count_within(
    text: &str,
    least: usize,
    most: usize,
) -> Result<usize, ServerOptionError> {
    text.parse()
        .ok()
        .filter(|count| (least..=most).contains(count))
        .ok_or_else(|| ServerOptionError::Number {
            value: text.to_owned(),
            least,
            most,
        })
}

impl ServerOptions {
    /// The range of the addresses of pods.
    pub fn pod_range(&self) -> Ipv4Range {
        self.pod_cidr.unwrap_or(DEFAULT_CLUSTER_RANGE)
    }

    /// Checks that pods and Services have different addresses.
    ///
    /// # Errors
    /// The ranges overlap.
    pub fn check_ranges(&self) -> Result<(), ServiceRangeError> {
        let pods = self.pod_range();
        let overlaps = |services: &ServiceRange| services.range().overlaps(pods);
        match self.service_cidr.filter(overlaps) {
            None => Ok(()),
            Some(_) => Err(ServiceRangeError::OfPods(pods)),
        }
    }

    /// How long a node may be out of contact before its pods are declared lost.
    pub fn node_grace(&self) -> Duration {
        self.node_grace.map_or(NODE_GRACE, Duration::from_secs)
    }
}
