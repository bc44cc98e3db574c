//! Wires the server: store, resource API, identities, fleet, controllers, portal, and the
//! listener in front of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use apiserver::{ApiConfig, ApiServer};
use axum::Router;
use fleet::{CertificateAuthority, Fleet, FleetConfig};
use identity::{FirstAdmin, Identity, Options};
use resources::access::Caller;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::decisions::Decisions;
use super::layout::{Layout, write_private};
use super::{admin, hooks, host, listener, scheduler};
use crate::arguments::ServerOptions;

/// Ports for rendezvous where pods share their node's network: below Linux's ephemeral
/// range, which begins at 32768.
const RENDEZVOUS_PORTS: std::ops::RangeInclusive<u16> = 20_000..=29_999;

/// How long the control loops get to stop.
const PATIENCE: Duration = Duration::from_secs(5);

/// A running server.
pub struct Server {
    /// Set when this start created the first administrator.
    pub first_admin: Option<FirstAdmin>,
    /// The connected nodes.
    pub fleet: Arc<Fleet>,
    address: SocketAddr,
    listening: JoinHandle<Result<()>>,
    controllers: controllers::Handle,
    decisions: Decisions,
}

impl Server {
    /// Starts everything; when this returns, requests are answered.
    pub async fn start(
        layout: &Layout,
        options: &ServerOptions,
        stop: watch::Receiver<bool>,
    ) -> Result<Server> {
        // What is wrong in a file is said before anything is touched.
        let scheduler = scheduler::config(options, controllers::SchedulerConfig::default())?;
        scheduler::refuse_cutting(&scheduler)?;
        let socket = TcpListener::bind(options.listen).await.with_context(|| {
            format!(
                "--listen: {} can't be listened on; is another server there? choose another port",
                options.listen
            )
        })?;
        let address = socket.local_addr()?;
        let store_directory = layout.store();
        let store = tokio::task::spawn_blocking(move || {
            store::Store::open(&store_directory, store::Options::default())
        })
        .await??;
        let of_api = store.clone();
        let api =
            tokio::task::spawn_blocking(move || ApiServer::open(of_api, ApiConfig::default()))
                .await??;
        let client = |name: &str| api.client(Caller::component(name));

        let opened = Identity::open(
            client("identity"),
            Options {
                first_password: first_password(options)?,
            },
        )
        .await?;
        if let Some(first) = &opened.first_admin {
            write_private(&layout.first_password(), &format!("{}\n", first.password))?;
        }
        let identity = opened.identity;

        let ca = Arc::new(CertificateAuthority::load_or_create(&layout.server())?);
        let fleet = Fleet::start(client("fleet"), FleetConfig::new(ca.clone()));
        hooks::connect_logs(&api, &fleet);

        let controllers = controllers::start(
            client("controllers"),
            controllers::Config {
                scheduler,
                node_grace: options.node_grace(),
                jobs: controllers::jobs::JobKind::ALL.into(),
                upkeep: true,
                rendezvous_ports: RENDEZVOUS_PORTS,
            },
        );
        let decisions = Decisions::keep(layout.decisions(), controllers.board.clone()).await;
        let portal = portal::Portal {
            identity: identity.clone(),
            board: portal::Board::start(&client("portal")),
            hooks: Arc::new(hooks::hooks(&api, &fleet, &controllers, &store)),
        };
        let router = Router::new()
            .merge(portal::router(portal))
            .merge(fleet.routes().into_axum_router().reset_fallback())
            .fallback_service(api.router())
            .layer(axum::middleware::from_fn_with_state(
                identity.clone(),
                identity::require_caller,
            ));
        let tls = tls(&ca, options, address)?;
        // Written before anything is answered: who reads it can use it.
        admin::write_kubeconfig(layout, &identity, &ca, local(address)).await?;
        let listening = tokio::spawn(listener::serve(socket, tls, router, stop));
        Ok(Server {
            first_admin: opened.first_admin,
            fleet,
            address,
            listening,
            controllers,
            decisions,
        })
    }

    /// An address that reaches this server from this machine.
    pub fn local_address(&self) -> SocketAddr {
        local(self.address)
    }

    /// What to open in a browser on this machine: plain HTTP on loopback, where a
    /// certificate of our own authority would only be warned about.
    pub fn browser_url(&self) -> String {
        let scheme = if self.local_address().ip().is_loopback() {
            "http"
        } else {
            "https"
        };
        format!("{scheme}://{}/", self.local_address())
    }

    /// Runs until told to stop, then ends what must be ended in order.
    pub async fn run_to_end(self) -> Result<()> {
        let ended = self.listening.await.context("the listener's task ended")?;
        self.fleet.shutdown();
        self.controllers.shutdown(PATIENCE).await;
        self.decisions.finish().await;
        ended
    }
}

fn local(listening: SocketAddr) -> SocketAddr {
    let ip = match listening.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, listening.port())
}

fn first_password(options: &ServerOptions) -> Result<Option<String>> {
    let Some(file) = &options.first_password_file else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("--first-password-file: {} can't be read", file.display()))?;
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_string()))
}

/// The names and addresses that the server's certificate is for.
fn names(options: &ServerOptions, address: SocketAddr) -> (Vec<String>, Vec<IpAddr>) {
    let mut names = vec!["localhost".to_string()];
    let mut ips: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    if let Some(host) = host::name() {
        names.push(host);
    }
    if !address.ip().is_unspecified() {
        ips.push(address.ip());
    } else {
        ips.extend(host::addresses());
    }
    for advertised in &options.advertise {
        match advertised.parse() {
            Ok(ip) => ips.push(ip),
            Err(_) => names.push(advertised.clone()),
        }
    }
    names.dedup();
    ips.sort();
    ips.dedup();
    (names, ips)
}

fn tls(
    ca: &CertificateAuthority,
    options: &ServerOptions,
    address: SocketAddr,
) -> Result<rustls::ServerConfig> {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::server::WebPkiClientVerifier;

    let (names, ips) = names(options, address);
    let issued = ca.issue_server(&names, &ips)?;
    let chain = CertificateDer::pem_slice_iter(issued.chain_pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .context("the server's own certificate can't be read")?;
    let key = PrivateKeyDer::from_pem_slice(issued.key_pem.as_bytes())
        .context("the server's own key can't be read")?;
    let mut roots = rustls::RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(ca.certificate_pem().as_bytes()) {
        roots.add(root.context("the authority's certificate can't be read")?)?;
    }
    let clients = WebPkiClientVerifier::builder(Arc::new(roots))
        .allow_unauthenticated()
        .build()
        .context("client certificates can't be checked")?;
    let mut config = rustls::ServerConfig::builder()
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)
        .context("the server's own certificate does not fit its key")?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
