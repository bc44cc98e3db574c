//! Composes an agent beside a kubelet: opens what it needs in the order in which the parts need one
//! another, and runs the parts as components under one supervisor.

use std::convert::Infallible;
use std::sync::Arc;

use devices::delivery::CdiFile;
use devices::dra::{DiscoveredDevices, Specs};
use devices::fabric::FabricWatch;
use devices::mig::Withheld;
use devices::mps::{self, MpsDaemonStates};
use devices::over_share::LatestShares;
use devices::rdma::{self, NodeRdmaCards};
use devices::vendors::DeviceStock as Stock;
use devices::xids::XidMonitor;
use supervisor::{Stop, Supervisor};
use tokio::sync::watch;

use super::cluster::{self, NodeClient};
use super::failed_devices::FailedDeviceSources;
use super::gpu_report::{self, GpuReporter};
use super::inventory_loop::{InventoryLoop, Sources};
use super::pairing::Pairing;
use super::pod_source::KubeletPods;
use super::{DeviceDelivery, KubeletConfig, KubeletError, dra, mig, socket, vendor_plugin};
use crate::device_monitor::DeviceMonitor;
use crate::metrics::{self, Exporter};
use crate::pod_source::PodSource;
use crate::shares::ShareWatch;

/// Offers this machine's GPUs to the kubelet until `stop` says true.
///
/// # Errors
///
/// When the machine can't be read at the start, a socket or port can't be opened, or a part of the
/// agent ends before `stop` says true. The agent waits for a kubelet or an API that is not
/// available.
pub async fn run_with_kubelet(
    config: KubeletConfig,
    client: kube::Client,
    mut stop: watch::Receiver<bool>,
) -> Result<(), KubeletError> {
    config.check_claims()?;
    let config = Arc::new(config);
    let port = metrics::open(config.metrics).await?;
    let mut device_monitor = DeviceMonitor::new(config.source.clone());
    let xids = XidMonitor::listen(config.xids.clone(), config.source.clone());
    let found = device_monitor.observe().await?;
    let expected = config.expected.as_deref();
    let fabric = FabricWatch::watch(&config.source, expected, &found).await?;
    let (claimable, claimables) = watch::channel(DiscoveredDevices::default());
    let (tell_stands, stands) = watch::channel(MpsDaemonStates::new());
    let withheld = Withheld::default();
    let sources = Sources {
        config: config.clone(),
        xids: xids.clone(),
        fabric: fabric.clone(),
        withheld: withheld.clone(),
        stands,
        claimable,
        started: jiff::Timestamp::now().as_second(),
    };
    let (first, shared) = sources.inventory(found);
    let (want, wanted) = watch::channel(shared);

    let mut components = Supervisor::new();
    // Stopped last: unused daemons end when no pod can get one any more.
    let daemons = (config.mps.clone(), config.source.clone());
    components.run("mps-daemons", |stop| async move {
        mps::keep(daemons.0, daemons.1, wanted, tell_stands, stop.receiver()).await;
        Ok::<(), Infallible>(())
    });
    first.chooser.prepare();
    let cdi = CdiFile::new(&config.cdi, &config.settings.delivery).map(Arc::new);
    if let Some(file) = &cdi {
        // The file must be current before the first device is allocated by it.
        file.renew(&first);
    }
    let (seen, machine) = watch::channel(first);
    let cards = NodeRdmaCards {
        settings: config.rdma.clone(),
        seen: rdma::watch(config.host_root.clone()),
    };
    let api = NodeClient::new(client.clone(), &config.node);
    let stock = Stock::begin(&config.vendors, &config.host_root);
    let (vitals, seen_vitals) = GpuReporter::new(config.pod_resources());
    let whose: Arc<dyn PodSource> = Arc::new(KubeletPods {
        socket: config.pod_resources(),
        cluster: api.clone(),
        specs: Specs::new(&config.cdi),
    });
    let board = LatestShares::default();

    match config.given_by {
        DeviceDelivery::Plugin => {
            let (config, cdi, cards) = (config.clone(), cdi.clone(), cards.clone());
            let (api, machine) = (api.clone(), machine.clone());
            components.run("device-plugin", |stop| {
                until(stop, async move {
                    socket::serve_all(&config, &cdi, api, &cards, machine).await
                })
            });
        }
        DeviceDelivery::Claims => {
            let (config, machine) = (config.clone(), machine.clone());
            components.run("dra-driver", |stop| {
                let asked = stop.receiver();
                until(stop, async move {
                    dra::run(&config, client, machine, claimables, asked).await
                })
            });
        }
    }
    let vendor_plugins = socket::serve_described(config.clone(), stock.clone());
    let rdma_plugins = socket::serve_shared(config.clone(), cards);
    components
        .run("vendor-plugins", |stop| until(stop, vendor_plugins))
        .run("rdma-plugins", |stop| until(stop, rdma_plugins))
        .run_loop(
            "vendor-condition",
            vendor_plugin::keep_condition(api.clone(), stock),
        );
    let watched = machine.clone();
    let shares = ShareWatch::new(
        config.over_share,
        config.source.clone(),
        whose.clone(),
        move || watched.borrow().clone(),
        board.clone(),
    );
    let exporter = Exporter::new(config.source.clone(), &config.node, whose, xids, board);
    components
        .run_loop("gpu-shares", shares.run())
        .run_loop("metrics", metrics::serve(port, exporter));
    let (mig_config, mig_api, mig_machine) = (config.clone(), api.clone(), machine.clone());
    components.run_loop("mig-manager", async move {
        match &mig_config.mig {
            Some(mig) => mig::manage(&mig_config, mig, mig_api, withheld, mig_machine).await,
            None => mig::cut_nothing(&mig_api).await,
        }
    });
    if config.pair {
        let pairing = Pairing {
            node: config.node.clone(),
            cluster: api.clone(),
            fabric,
            machine: machine.clone(),
            pod_resources: config.pod_resources(),
        };
        components.run_loop("rdma-tests", pairing.answer());
    }
    if config.given_by == DeviceDelivery::Claims {
        let stranded = FailedDeviceSources {
            cluster: api.clone(),
            machine: machine.clone(),
            pod_resources: config.pod_resources(),
            specs: Specs::new(&config.cdi),
        };
        components.run_loop("stranded-pods", stranded.evict());
    }
    // Kept here too: a loop that fails must not end the components that listen to it, so that the
    // error names the loop.
    let _senders = (want.clone(), seen.clone());
    let inventory = InventoryLoop {
        device_monitor,
        sources,
        cdi,
        vitals,
        wanted: want,
        machine: seen,
    };
    components
        .run_loop(
            "vitals-publisher",
            gpu_report::publish(api.clone(), seen_vitals),
        )
        .run_loop("node-publisher", cluster::publish(api, machine))
        .run_loop("inventory", inventory.run());
    let asked = async move {
        // An error: no process that could ask for the stop is left.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    let ended = components.supervise(asked).await;
    ended.map_err(KubeletError::from)
}

/// Runs a part that needs no time to stop until it ends, or is asked to stop.
async fn until(
    stop: Stop,
    part: impl Future<Output = Result<(), KubeletError>>,
) -> Result<(), KubeletError> {
    stop.run_until_requested(part).await.unwrap_or(Ok(()))
}
