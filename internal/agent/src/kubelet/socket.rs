//! The sockets between the agent and its kubelet: one for each resource, recreated whenever the
//! kubelet restarts, because a starting kubelet removes every plugin's socket.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use devices::delivery::CdiFile;
use devices::dra::DRIVER;
use devices::holders::DeviceHolder;
use devices::inventory::NodeHardware;
use devices::offer;
use devices::rdma::{NodeRdmaCards, SharedCards};
use devices::vendors::{self, Vendor, VendorDevice, VendorDeviceState};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hardware::rdma::RdmaDevices;
use parking_lot::Mutex;
use rpc::kubelet::v1::pod_resources_lister_client::PodResourcesListerClient;
use rpc::kubelet::v1::{ListPodResourcesRequest, ListPodResourcesResponse};
use rpc::kubelet::v1beta1 as wire;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Server};

use super::admission::ListedPod;
use super::cluster::NodeClient;
use super::counted_plugin::CountedPlugin;
use super::plugin::{Plugin, as_listed, options};
use super::shared::SharedPlugin;
use super::vendor_plugin::VendorPlugin;
use super::{KubeletConfig, KubeletError, TRY_EVERY};

/// How long the kubelet may take to answer; the kubelet allows a plugin 5 s.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The largest list of pods' devices that is read, in bytes.
const LIST_MAX: usize = 16 * 1024 * 1024;

/// Serves a plugin for each resource that the machine has or gets later. A plugin whose devices are
/// all gone still runs, so that the kubelet learns that there are none.
pub async fn serve_all(
    config: &KubeletConfig,
    cdi: &Option<Arc<CdiFile>>,
    cluster: NodeClient,
    cards: &NodeRdmaCards,
    mut machine: watch::Receiver<NodeHardware>,
) -> Result<(), KubeletError> {
    let mut served = BTreeSet::new();
    let mut running = FuturesUnordered::new();
    loop {
        let sharing = &config.settings.sharing;
        let offers = {
            let now = machine.borrow_and_update();
            for device in sharing.missing(&now.inventory) {
                tracing::warn!(
                    device,
                    "a device that is configured to be shared does not exist"
                );
            }
            offer::all(&now.inventory, &now.mps, sharing, config.settings.parts)
        };
        for resource in offers.into_keys() {
            if served.insert(resource.clone()) {
                let (cluster, machine, cdi) = (cluster.clone(), machine.clone(), cdi.clone());
                let served = resource.clone();
                let plugin = move || Plugin {
                    resource: served.clone(),
                    settings: config.settings.clone(),
                    cdi: cdi.clone(),
                    cluster: cluster.clone(),
                    machine: machine.clone(),
                    cards: cards.clone(),
                    resources_socket: config.pod_resources(),
                    dev: config.dev.clone(),
                    answered: Mutex::default(),
                };
                running.push(keep_registered(config, resource, options(), plugin));
            }
        }
        tokio::select! {
            changed = machine.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
            }
            Some(ended) = running.next() => return ended,
        }
    }
}

/// Serves a plugin for each described vendor's resource, from the time at which the machine first
/// has one of its devices. Ends when one of them does.
pub async fn serve_described(
    config: Arc<KubeletConfig>,
    described: vendors::DeviceStock,
) -> Result<(), KubeletError> {
    let all = described.each();
    let all = all.map(|(vendor, devices)| serve_vendor(&config, vendor.clone(), devices));
    first_end(all.collect()).await
}

async fn serve_vendor(
    config: &KubeletConfig,
    vendor: Vendor,
    mut devices: watch::Receiver<Vec<VendorDevice>>,
) -> Result<(), KubeletError> {
    let known = |now: &Vec<VendorDevice>| {
        !now.is_empty()
            && now
                .iter()
                .all(|it| it.state != VendorDeviceState::Unchecked)
    };
    if devices.wait_for(known).await.is_err() {
        return Ok(());
    }
    let plugin = || {
        CountedPlugin::new(VendorPlugin {
            vendor: vendor.clone(),
            root: config.host_root.clone(),
            devices: devices.clone(),
        })
    };
    let (resource, none) = (vendor.resource.clone(), Default::default());
    keep_registered(config, resource, none, plugin).await
}

/// Serves a plugin for each resource of shared RDMA cards, from the time at which the machine first
/// has one of its cards. Ends when one of them does.
pub async fn serve_shared(
    config: Arc<KubeletConfig>,
    cards: NodeRdmaCards,
) -> Result<(), KubeletError> {
    let all = cards.settings.resources.iter();
    let all = all.map(|shared| serve_cards(&config, shared.clone(), cards.seen.clone()));
    first_end(all.collect()).await
}

async fn serve_cards(
    config: &KubeletConfig,
    shared: SharedCards,
    mut seen: watch::Receiver<RdmaDevices>,
) -> Result<(), KubeletError> {
    let any = |now: &RdmaDevices| !shared.pool(now).cards.is_empty();
    if seen.wait_for(any).await.is_err() {
        return Ok(());
    }
    let plugin = || {
        CountedPlugin::new(SharedPlugin {
            cards: shared.clone(),
            seen: seen.clone(),
        })
    };
    let (resource, none) = (shared.resource.clone(), Default::default());
    keep_registered(config, resource, none, plugin).await
}

/// Runs plugins until the first of them ends; without any plugin there is no end to wait for.
async fn first_end(
    mut plugins: FuturesUnordered<impl Future<Output = Result<(), KubeletError>>>,
) -> Result<(), KubeletError> {
    match plugins.next().await {
        Some(ended) => ended,
        None => futures::future::pending().await,
    }
}

/// Serves one resource's plugin and keeps it registered across restarts of the kubelet. The kubelet
/// opens a connection to each registration, so `plugin` creates a new instance each time.
async fn keep_registered<P: wire::device_plugin_server::DevicePlugin>(
    config: &KubeletConfig,
    resource: String,
    options: wire::DevicePluginOptions,
    plugin: impl Fn() -> P,
) -> Result<(), KubeletError> {
    let plugins = config.directory.join("device-plugins");
    let (ours, kubelets) = (
        plugins.join(offer::socket_name(&resource)),
        plugins.join("kubelet.sock"),
    );
    loop {
        let Some(kubelet) = identity(&kubelets) else {
            tracing::debug!(socket = %kubelets.display(), "no kubelet yet");
            tokio::time::sleep(TRY_EVERY).await;
            continue;
        };
        let listener = listen(&ours)?;
        let service = wire::device_plugin_server::DevicePluginServer::new(plugin());
        let served = Server::builder()
            .add_service(service)
            .serve_with_incoming(UnixListenerStream::new(listener));
        let registered = async {
            match register(&kubelets, &resource, options).await {
                Ok(()) => tracing::info!(resource, "registered with the kubelet"),
                Err(error) => {
                    tracing::warn!(%error, "the kubelet refused the device plugin; trying again");
                    return tokio::time::sleep(TRY_EVERY).await;
                }
            }
            while identity(&kubelets).as_ref() == Some(&kubelet) && ours.exists() {
                tokio::time::sleep(TRY_EVERY).await;
            }
            tracing::info!("the kubelet restarted");
        };
        tokio::select! {
            ended = served => {
                if let Err(error) = ended {
                    tracing::warn!(%error, "the device plugin's socket failed");
                }
                tokio::time::sleep(TRY_EVERY).await;
            }
            () = registered => {}
        }
    }
}

/// The identity of a kubelet's socket, which differs from that of a later socket at the same path.
fn identity(socket: &Path) -> Option<(u64, i64, i64)> {
    let metadata = std::fs::metadata(socket).ok()?;
    Some((metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

/// Listens on a socket at this path, replacing an existing file.
pub fn listen(path: &Path) -> Result<UnixListener, KubeletError> {
    let failed = |source| KubeletError::Socket {
        path: path.to_path_buf(),
        source,
    };
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    UnixListener::bind(path).map_err(failed)
}

async fn connect(socket: &Path) -> Result<Channel, Status> {
    let path: PathBuf = socket.to_path_buf();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move {
            let stream = UnixStream::connect(path).await?;
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
        }
    });
    // The address is not used: the connector has the path.
    let endpoint = Endpoint::from_static("http://localhost").timeout(ANSWER_LIMIT);
    let connected = endpoint.connect_with_connector(connector).await;
    connected.map_err(|error| Status::unavailable(format!("{}: {error}", socket.display())))
}

async fn register(
    kubelet: &Path,
    resource: &str,
    options: wire::DevicePluginOptions,
) -> Result<(), Status> {
    let channel = connect(kubelet).await?;
    let request = wire::RegisterRequest {
        version: "v1beta1".into(),
        endpoint: offer::socket_name(resource),
        resource_name: resource.into(),
        options: Some(options),
    };
    let mut client = wire::registration_client::RegistrationClient::new(channel);
    client.register(request).await.map(|_| ())
}

/// The kubelet's pods, with their devices of one resource.
pub async fn listed(socket: &Path, resource: &str) -> Result<Vec<ListedPod>, Status> {
    Ok(as_listed(resource, list(socket).await?))
}

/// Every container with devices, with each of its devices, of any resource. `claimed` adds devices
/// of claims from Muster's driver, by their names there.
pub async fn held(socket: &Path, claimed: bool) -> Result<Vec<(DeviceHolder, String)>, Status> {
    let mut held = Vec::new();
    for pod in list(socket).await?.pod_resources {
        for container in pod.containers {
            let holder = DeviceHolder {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                container: container.name,
            };
            let devices = container.devices.into_iter();
            let ids = devices.flat_map(|devices| devices.device_ids);
            held.extend(ids.map(|id| (holder.clone(), id)));
            let claims = container.dynamic_resources.into_iter().filter(|_| claimed);
            let ours = claims.flat_map(|claim| claim.claim_resources);
            let ours = ours.filter(|device| device.driver_name == DRIVER);
            held.extend(ours.map(|device| (holder.clone(), device.device_name)));
        }
    }
    Ok(held)
}

/// The claims that pods use, each by namespace and name.
pub async fn claims(socket: &Path) -> Result<BTreeSet<(String, String)>, Status> {
    let pods = list(socket).await?.pod_resources.into_iter();
    let containers = pods.flat_map(|pod| pod.containers);
    let claims = containers.flat_map(|container| container.dynamic_resources);
    Ok(claims
        .map(|claim| (claim.claim_namespace, claim.claim_name))
        .collect())
}

async fn list(socket: &Path) -> Result<ListPodResourcesResponse, Status> {
    let channel = connect(socket).await?;
    let mut client = PodResourcesListerClient::new(channel).max_decoding_message_size(LIST_MAX);
    let answer = client.list(ListPodResourcesRequest {}).await?;
    Ok(answer.into_inner())
}
