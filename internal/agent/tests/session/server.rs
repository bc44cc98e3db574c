//! A server and agents for one test, each with its own directory and port.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent::{AgentConfig, AgentError, Engines};
use apiserver::{ApiConfig, ApiServer};
use fleet::{CertificateAuthority, Fleet, FleetConfig, JoinTokenOptions};
use futures::TryStreamExt;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use resources::access::Caller;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming, TlsConnectInfo};
use tonic::transport::{Certificate, Identity, Server as TonicServer, ServerTlsConfig};

use crate::stand_in::StandIn;

/// Poll interval, short so that tests do not wait.
const LOOK: Duration = Duration::from_millis(50);

/// Time limit of every wait; no test measures by it.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Server {
    dir: tempfile::TempDir,
    pub client: kube::Client,
    pub fleet: Arc<Fleet>,
    address: SocketAddr,
    _serving: JoinHandle<()>,
}

pub struct Agent {
    stop: watch::Sender<bool>,
    running: JoinHandle<Result<(), AgentError>>,
}

impl Agent {
    /// Ends the agent, not the pods that it runs.
    pub async fn end(self) -> Result<(), AgentError> {
        self.stop.send_replace(true);
        self.running.await.unwrap()
    }

    /// Waits for the agent to end without a stop request; returns its result.
    pub async fn ended(self) -> Result<(), AgentError> {
        self.running.await.unwrap()
    }
}

impl Server {
    pub async fn start() -> Server {
        Server::start_as(None).await
    }

    /// A server that takes itself for another version, if one is given.
    pub async fn start_as(version: Option<&str>) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let store_dir = dir.path().join("store");
        let api = tokio::task::spawn_blocking(move || {
            let store = store::Store::open(&store_dir, store::Options::default()).unwrap();
            ApiServer::open(store, ApiConfig::default()).unwrap()
        })
        .await
        .unwrap();
        let client = api.client(Caller::component("fleet"));
        let ca = Arc::new(CertificateAuthority::load_or_create(&dir.path().join("ca")).unwrap());
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let issued = ca.issue_server(&[], &[loopback]).unwrap();
        let mut config = FleetConfig::new(ca.clone());
        if let Some(version) = version {
            config.version = version.parse().unwrap();
        }
        let fleet = Fleet::start(client.clone(), config);
        let tls = ServerTlsConfig::new()
            .identity(Identity::from_pem(issued.chain_pem, issued.key_pem))
            .client_ca_root(Certificate::from_pem(ca.certificate_pem()))
            .client_auth_optional(true);
        let incoming = TcpIncoming::bind((loopback, 0).into()).unwrap();
        let address = incoming.local_addr().unwrap();
        let router = TonicServer::builder()
            .tls_config(tls)
            .unwrap()
            .layer(tower::util::MapRequestLayer::new(show_peer))
            .add_routes(fleet.routes());
        let serving = tokio::spawn(async move {
            router.serve_with_incoming(incoming).await.unwrap();
        });
        Server {
            dir,
            client,
            fleet,
            address,
            _serving: serving,
        }
    }

    pub async fn token(&self) -> String {
        self.token_for(None).await
    }

    /// A token for one join, restricted to this node if one is given.
    pub async fn token_for(&self, node: Option<&str>) -> String {
        let options = JoinTokenOptions {
            ttl: SignedDuration::from_mins(5),
            description: "test".to_owned(),
            node: node.map(str::to_owned),
            uses: 1,
        };
        let made = self.fleet.create_join_token(&options).await;
        made.unwrap().token
    }

    pub fn config(&self, node: &str, token: Option<String>) -> AgentConfig {
        AgentConfig {
            server: format!("https://{}", self.address),
            token,
            ca: None,
            ca_fingerprint: Some(self.fleet.ca_fingerprint()),
            data: self.data(node),
            node_name: node.to_owned(),
            node_ip: IpAddr::from([127, 0, 0, 1]),
            machine_description: None,
            expected: None,
            mig_strategy: None,
            vendors: Vec::new(),
            rdma: devices::rdma::RdmaSettings::default(),
            topology: agent::TellTopology::default(),
            host_images: false,
            cri_socket: None,
            labels: [("zone".to_owned(), "test".to_owned())].into(),
            look: LOOK,
            xids: devices::xids::XidSources::default(),
            metrics: None,
            sharing: devices::sharing::Sharing::default(),
            mps: devices::mps::MpsConfig::default(),
            over_share: devices::over_share::OverShare::default(),
            accounts: agent::Accounts::default(),
            pod_ids: agent::POD_IDS,
            pod_processes: agent::POD_PROCESSES,
            pod_disk: agent::PodDisk::Share,
            max_pods: agent::MAX_PODS,
            pod_network: agent::PodNetworkMode::Host,
            reserved: agent::Reserved::default(),
            read_only_host: true,
            hidden: Vec::new(),
            shim_command: Vec::new(),
            upgrade: agent::BinaryUpgrade::off("a test"),
        }
    }

    pub fn data(&self, node: &str) -> PathBuf {
        self.dir.path().join("agents").join(node)
    }

    /// An agent that joins with a token if it has no identity.
    pub async fn agent(&self, node: &str, engine: &Arc<StandIn>) -> Agent {
        let token = self.token().await;
        self.agent_with(self.config(node, Some(token)), engine)
    }

    pub fn agent_with(&self, config: AgentConfig, engine: &Arc<StandIn>) -> Agent {
        let (stop, stopped) = watch::channel(false);
        let engines = Engines {
            process: engine.clone(),
            images: None,
        };
        Agent {
            stop,
            running: tokio::spawn(agent::run_with(config, engines, stopped)),
        }
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Creates a pod that is already bound to a node.
    pub async fn bound_pod(&self, name: &str, node: &str, extra: Value) -> Pod {
        let mut spec = json!({
            "nodeName": node,
            "restartPolicy": "Never",
            "containers": [{"name": "main", "command": ["work"]}],
        });
        for (key, value) in extra.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name}, "spec": spec}))
        .unwrap();
        self.pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap()
    }

    /// Waits until a pod meets a condition.
    pub async fn pod_until(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        until(&format!("pod {name}"), async || {
            let pod = self.pods().get_opt(name).await.unwrap()?;
            let pod = serde_json::to_value(pod).unwrap();
            wanted(&pod).then_some(pod)
        })
        .await
    }

    /// Waits until a pod is in a phase.
    pub async fn phase(&self, name: &str, phase: &str) -> Value {
        self.pod_until(name, |pod| pod["status"]["phase"] == phase)
            .await
    }

    /// Waits until a pod's object is gone.
    pub async fn gone(&self, name: &str) {
        until(&format!("the end of pod {name}"), async || {
            self.pods()
                .get_opt(name)
                .await
                .unwrap()
                .is_none()
                .then_some(())
        })
        .await;
    }

    /// A whole log.
    pub async fn log(&self, query: fleet::AgentLogQuery) -> Result<String, fleet::LogReadError> {
        let chunks: Vec<_> = self
            .fleet
            .open_log(query)
            .await?
            .try_collect()
            .await
            .unwrap();
        Ok(String::from_utf8(chunks.concat()).unwrap())
    }
}

/// Waits for a condition; the panic names `what` if it isn't met.
pub async fn until<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let waiting = async {
        loop {
            if let Some(found) = check().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// As in the server's listener: adds the certificate's subject to the request.
fn show_peer<B>(mut request: http::Request<B>) -> http::Request<B> {
    let peer = request
        .extensions()
        .get::<TlsConnectInfo<TcpConnectInfo>>()
        .and_then(|info| info.peer_certs())
        .and_then(|certificates| fleet::peer_identity(certificates.first()?));
    if let Some(peer) = peer {
        request.extensions_mut().insert(peer);
    }
    request
}
