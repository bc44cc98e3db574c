//! The agent beside a kubelet: offers the node's GPUs through a device plugin, or through claims
//! (`dra`), gives each container the devices that the scheduler chose for its pod, and publishes
//! the machine's inventory to the cluster. The kubelet keeps which pod holds which device, and a
//! file keeps which GPUs are withheld (`xids::kept`), so an agent that crashes and restarts changes
//! nothing.

mod admission;
mod cluster;
mod described;
mod dra;
mod evictions;
mod mig;
mod pairing;
mod plain;
mod plugin;
mod pod_source;
mod shared;
mod socket;
mod stranded;
mod vitals;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use devices::delivery::CdiFile;
use devices::dra::{Found, Specs, claimables, gpus};
use devices::fabric::Fabric;
use devices::inventory::Machine;
use devices::mig::{MigSettings, Withheld};
use devices::mps::{self, MpsConfig, Stands};
use devices::over_share::{Board, OverShare};
use devices::rdma::{self, Cards, RdmaSettings};
use devices::settings::PluginSettings;
use devices::vendors::{Described as Stock, Vendor};
use devices::xids::{Hearing, Xids};
use hardware::{HardwareError, Source};
use tokio::sync::watch;

pub use socket::{claims, held, listen};

use pairing::Pairing;
use pod_source::KubeletPods;
use stranded::Stranded;
use vitals::Vitals;

use crate::eyes::Eyes;
use crate::metrics::{self, Exporter, Listen, NoPort};
use crate::pod_source::PodSource;
use crate::shares::Watch;

/// The kubelet's directory of sockets.
pub const KUBELET_DIR: &str = "/var/lib/kubelet";

/// Interval at which the machine and the kubelet's socket are checked.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);

/// How long to wait after a failure before the next try.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// How a kubelet's pods get the machine's devices: one way only, because neither knows the
/// allocations of the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GivenBy {
    /// As extended resources that containers request by count.
    #[default]
    Plugin,
    /// By resource claims, which kube-scheduler allocates.
    Claims,
}

/// The configuration of an agent beside a kubelet.
#[derive(Clone, Debug)]
pub struct KubeletConfig {
    /// The kubelet's directory; [`KUBELET_DIR`] unless it was started with another.
    pub directory: PathBuf,
    /// The node's name in the cluster.
    pub node: String,
    /// Where GPUs are read from.
    pub source: Source,
    /// A file that describes the expected network cards; by default, what most cards of a kind
    /// have.
    pub expected: Option<PathBuf>,
    /// Where device files are.
    pub dev: PathBuf,
    /// How pods get devices.
    pub given_by: GivenBy,
    /// The directory in which container runtimes look for CDI specifications;
    /// [`devices::cdi::DIRECTORY`] unless they are configured otherwise.
    pub cdi: PathBuf,
    /// The device plugin's configuration. Without a MIG strategy: as a machine description says,
    /// else slices are offered by their profile.
    pub settings: PluginSettings,
    /// Other vendors' devices, each kind offered as its own resource.
    pub vendors: Vec<Vendor>,
    /// RDMA cards that containers share, each set of them offered as its own resource.
    pub rdma: RdmaSettings,
    /// Where the machine's root is mounted; other vendors' devices and RDMA cards' files are looked
    /// up below it.
    pub host_root: PathBuf,
    /// How GPUs are partitioned when the node's label requests it; not at all if absent.
    pub mig: Option<MigSettings>,
    /// Whether GPUs are offered to claims also in every slice into which they can be partitioned,
    /// and partitioned when a slice is allocated.
    pub partitions: bool,
    /// Whether the node takes part in RDMA tests between two nodes.
    pub pair: bool,
    /// Where XIDs of GPUs are read, and the action for each.
    pub xids: Hearing,
    /// How MPS daemons are started, for the GPUs that are shared through MPS.
    pub mps: MpsConfig,
    /// The action for containers that use more of a GPU than their share.
    pub over_share: OverShare,
    /// Where metrics are served; not served if absent.
    pub metrics: Option<Listen>,
}

impl KubeletConfig {
    /// The kubelet's pod resources socket.
    pub(crate) fn pod_resources(&self) -> PathBuf {
        self.directory.join("pod-resources/kubelet.sock")
    }

    /// Refuses to offer devices by count while claims hold some: after a change of this setting,
    /// running pods keep their claims' devices.
    fn check_claims(&self) -> Result<(), KubeletError> {
        if self.given_by == GivenBy::Claims {
            return Ok(());
        }
        let specs = Specs::new(&self.cdi).all();
        let prepared = specs.map_err(|source| KubeletError::Specs {
            path: self.cdi.clone(),
            source,
        })?;
        if prepared.is_empty() {
            return Ok(());
        }
        let names = prepared
            .iter()
            .map(|it| format!("{}/{}", it.namespace, it.name));
        Err(KubeletError::Claimed {
            claims: names.collect::<Vec<_>>().join(", "),
        })
    }
}

/// An error that ends an agent beside a kubelet.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// The machine can't be read.
    #[error(transparent)]
    Hardware(#[from] HardwareError),
    /// The port for metrics can't be opened.
    #[error(transparent)]
    Metrics(#[from] NoPort),
    /// Pods still hold devices by claims.
    #[error(
        "--devices plugin: pods of this node have devices by claims ({claims}), which the device \
         plugin would give out again; end these pods first, or go on with --devices dra"
    )]
    Claimed {
        /// The claims, each by namespace and name.
        claims: String,
    },
    /// The CDI specifications of claims can't be read.
    #[error("the CDI specs in {}: {source}; --cdi-dir must be a directory that the agent can read", path.display())]
    Specs {
        /// The directory.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The plugin's socket can't be created.
    #[error(
        "the plugin's socket {}: {source}; the agent must run as root, with the kubelet's \
         own directory (--kubelet-dir)", path.display()
    )]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
}

/// Offers this machine's GPUs to the kubelet until `stop` says true.
///
/// # Errors
///
/// When the machine can't be read at the start, or a socket or port can't be opened. The agent
/// waits for a kubelet or an API that is not available.
pub async fn run_beside_kubelet(
    config: KubeletConfig,
    client: kube::Client,
    mut stop: watch::Receiver<bool>,
) -> Result<(), KubeletError> {
    config.check_claims()?;
    let port = metrics::open(config.metrics).await?;
    let mut eyes = Eyes::new(config.source.clone());
    let strategy = config.settings.mig_strategy.clone();
    let sharing = config.settings.sharing.clone();
    let daemons = config.mps.clone();
    let started = jiff::Timestamp::now().as_second();
    let xids = Xids::listen(config.xids.clone(), config.source.clone());
    let heard = xids.clone();
    let found = eyes.look().await?;
    let expected = config.expected.as_deref();
    let fabric = Fabric::watch(&config.source, expected, &found).await?;
    let rdma = fabric.clone();
    let (offer, claimable) = watch::channel(Found::default());
    let (tell_stands, stands) = watch::channel(Stands::new());
    let withheld = Withheld::default();
    let taken_out = withheld.clone();
    let take_in = move |mut found: hardware::Inventory| {
        let at = tokio::time::Instant::now();
        (heard.lock()).judge(&mut found, at);
        fabric.judge(&mut found, at);
        let mut now = Found {
            devices: claimables(&found),
            gpus: gpus(&found),
        };
        if let Some(strategy) = &strategy {
            found.mig_strategy.clone_from(strategy);
        }
        let mut machine = Machine::labelled(&found, &sharing, started);
        machine.rdma = fabric.proposal(&found);
        taken_out.take_out(&mut machine, &mut now.devices);
        offer.send_if_modified(|before| {
            let changed = *before != now;
            *before = now;
            changed
        });
        let shared = mps::wanted(&machine.inventory, &sharing);
        machine.mps = mps::standing(&shared, &stands.borrow(), &daemons);
        (machine, shared)
    };
    let (first, shared) = take_in(found);
    let (want, wanted) = watch::channel(shared);
    let (from, stopping) = (config.mps.clone(), stop.clone());
    let sharing_by_mps = mps::keep(from, config.source.clone(), wanted, tell_stands, stopping);
    let sharing_by_mps = tokio::spawn(sharing_by_mps);
    first.chooser.prepare();
    let cdi = CdiFile::new(&config.cdi, &config.settings.delivery).map(Arc::new);
    // The file must be current before the first device is allocated by it.
    let renew = |machine: &Machine| cdi.iter().for_each(|file| file.renew(machine));
    renew(&first);
    let (seen, machine) = watch::channel(first);
    let cards = Cards {
        settings: config.rdma.clone(),
        seen: rdma::watch(config.host_root.clone()),
    };
    let api = cluster::Cluster::new(client.clone(), &config.node);
    let (stopped, serving) = (stop.clone(), api.clone());
    let serve = async {
        match config.given_by {
            GivenBy::Plugin => {
                socket::serve_all(&config, &cdi, serving, &cards, machine.clone(), stopped).await
            }
            GivenBy::Claims => dra::run(&config, client, machine.clone(), claimable, stopped).await,
        }
    };
    let stock = Stock::begin(&config.vendors, &config.host_root);
    let unwell = described::tell(api.clone(), stock.clone());
    let described = socket::serve_described(&config, &stock, stop.clone());
    let shared = socket::serve_shared(&config, &cards, stop.clone());
    let whose: Arc<dyn PodSource> = Arc::new(KubeletPods {
        socket: config.pod_resources(),
        cluster: api.clone(),
        specs: Specs::new(&config.cdi),
    });
    let board = Board::default();
    let watched = machine.clone();
    let shares = Watch::new(
        config.over_share,
        config.source.clone(),
        whose.clone(),
        move || watched.borrow().clone(),
        board.clone(),
    );
    let exporter = Exporter::new(config.source.clone(), &config.node, whose, xids, board);
    let exporting = metrics::serve(port, exporter);
    let cutting = async {
        match &config.mig {
            Some(mig) => {
                mig::manage(&config, mig, api.clone(), withheld, machine.clone()).await;
            }
            None => mig::cut_nothing(&api).await,
        }
    };
    let pairing = Pairing {
        node: config.node.clone(),
        cluster: api.clone(),
        fabric: rdma,
        machine: machine.clone(),
        pod_resources: config.pod_resources(),
    };
    let pairing = async {
        match config.pair {
            true => pairing.answer().await,
            false => std::future::pending().await,
        }
    };
    let stranded = Stranded {
        cluster: api.clone(),
        machine: machine.clone(),
        pod_resources: config.pod_resources(),
        specs: Specs::new(&config.cdi),
    };
    let stranded = async {
        match config.given_by {
            GivenBy::Claims => stranded.evict().await,
            GivenBy::Plugin => std::future::pending().await,
        }
    };
    let (mut vitals, heard) = Vitals::new(config.pod_resources());
    let tell = vitals::publish(api.clone(), heard);
    let publish = cluster::publish(api.clone(), machine.clone());
    let look = async {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            match eyes.look().await {
                Ok(found) => {
                    vitals.take(&found).await;
                    let (now, shared) = take_in(found);
                    renew(&now);
                    want.send_if_modified(|before| {
                        let changed = *before != shared;
                        *before = shared;
                        changed
                    });
                    seen.send_if_modified(|before| {
                        let changed = *before != now;
                        if changed {
                            // Prepared before the first request, so that admission of a pod does
                            // not wait for the table.
                            now.chooser.prepare();
                            *before = now;
                        }
                        changed
                    });
                }
                // The last inventory stays valid until the machine can be read again.
                Err(error) => tracing::warn!(%error, "the machine can't be read"),
            }
        }
    };
    let ended = tokio::select! {
        ended = serve => ended,
        ended = described => ended,
        ended = shared => ended,
        () = publish => Ok(()),
        () = tell => Ok(()),
        () = exporting => Ok(()),
        () = shares.run() => Ok(()),
        () = cutting => Ok(()),
        () = pairing => Ok(()),
        () = unwell => Ok(()),
        () = stranded => Ok(()),
        () = look => Ok(()),
        _ = stop.wait_for(|stop| *stop) => Ok(()),
    };
    // No more daemons are requested: unused daemons end.
    drop(want);
    if sharing_by_mps.await.is_err() {
        tracing::warn!("the MPS control daemons were left as they are");
    }
    ended
}
