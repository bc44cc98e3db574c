//! Wires the server: store, resource API, identities, fleet, controllers, portal, and the
//! listener in front of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use apiserver::{ApiConfig, ApiServer};
use axum::Router;
use axum::middleware::from_fn_with_state;
use fleet::{CertificateAuthority, Fleet, FleetConfig};
use identity::audit::AuditLog;
use identity::{Identity, Options};
use resources::access::Caller;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

use super::certificate::{self, Certificate, Names};
use super::decisions::Decisions;
use super::layout::{Layout, write_private};
use super::listener::{self, Certificates, Front, Limits};
use super::{admin, audit, edge, hooks, host, plain_http, pod_security, process, scheduler};
use crate::arguments::ServerOptions;

/// Ports for rendezvous where pods share their node's network: below Linux's ephemeral
/// range, which begins at 32768.
const RENDEZVOUS_PORTS: std::ops::RangeInclusive<u16> = 20_000..=29_999;

/// How long the control loops may take to stop.
const PATIENCE: Duration = Duration::from_secs(5);

/// A running server.
pub struct Server {
    /// The connected nodes.
    pub fleet: Arc<Fleet>,
    address: SocketAddr,
    listening: JoinHandle<Result<()>>,
    renewing: AbortHandle,
    controllers: controllers::Handle,
    decisions: Decisions,
    api: ApiServer,
    audit_log: AuditLog,
}

impl Server {
    /// Starts all parts; when this returns, the server answers requests.
    pub async fn start(
        layout: &Layout,
        options: &ServerOptions,
        stop: watch::Receiver<bool>,
    ) -> Result<Server> {
        // Errors in files are reported before anything is changed.
        let scheduler = scheduler::config(options, controllers::SchedulerConfig::default())?;
        scheduler::refuse_cutting(&scheduler)?;
        let api_config = ApiConfig {
            pod_security: pod_security::config(options)?,
            ..ApiConfig::default()
        };
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
        layout.sweep_server();
        let of_api = store.clone();
        let api =
            tokio::task::spawn_blocking(move || ApiServer::open(of_api, api_config)).await??;
        let audit_log = audit::open(layout, &options.audit, &api).await?;
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
        hooks::connect_users(&api, &identity);

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
            hooks: Arc::new(hooks::hooks(
                &api,
                &fleet,
                &controllers,
                &store,
                &layout.server(),
            )),
        };
        let known = names(options, address);
        let own_names = plain_http::Names::new(&known.dns, &known.addresses);
        let router = Router::new()
            .merge(portal::router(portal))
            .merge(fleet.routes().into_axum_router().reset_fallback())
            .fallback_service(api.router())
            // The last layer handles a request first.
            .layer(from_fn_with_state(api.clone(), apiserver::impersonate))
            .layer(from_fn_with_state(
                identity.clone(),
                identity::require_caller,
            ))
            .layer(from_fn_with_state(api.clone(), apiserver::authenticate))
            .layer(from_fn_with_state(
                audit::recorder(&audit_log),
                identity::audit::trace,
            ))
            .layer(from_fn_with_state(
                own_names,
                plain_http::refuse_other_hosts,
            ));
        let router = edge::around(router);
        let certificate = Certificate::issue(&ca, &names(options, address))?;
        let front = Front {
            tls: Arc::new(certificate::tls(&ca, certificate.clone())?),
            router,
            limits: Limits::of(process::raise_open_files()),
            certificates: certificates(&fleet),
        };
        let renewing = {
            let (ca, options) = (ca.clone(), options.clone());
            tokio::spawn(async move {
                let names = || names(&options, address);
                certificate.renew_in_time(&ca, names).await;
            })
        };
        // Written before the first request is answered: a user who can read the file can use it.
        admin::write_kubeconfig(layout, &identity, &ca, local(address)).await;
        let listening = tokio::spawn(listener::serve(socket, front, stop));
        Ok(Server {
            fleet,
            address,
            listening,
            renewing: renewing.abort_handle(),
            controllers,
            decisions,
            api,
            audit_log,
        })
    }

    /// An address that reaches this server from this machine.
    pub fn local_address(&self) -> SocketAddr {
        local(self.address)
    }

    /// The URL for a browser on this machine: plain HTTP on loopback, where the browser would warn
    /// of a certificate from the server's own authority.
    pub fn browser_url(&self) -> String {
        let scheme = if self.local_address().ip().is_loopback() {
            "http"
        } else {
            "https"
        };
        format!("{scheme}://{}/", self.local_address())
    }

    /// Runs until a stop signal, then shuts the parts down in order.
    pub async fn run_to_end(self) -> Result<()> {
        let ended = self.listening.await.context("the listener's task ended")?;
        self.renewing.abort();
        self.fleet.shutdown();
        self.controllers.shutdown(PATIENCE).await;
        self.decisions.finish().await;
        audit::close(self.audit_log, &self.api).await;
        ended
    }
}

/// The validity of client certificates, according to the fleet.
fn certificates(fleet: &Arc<Fleet>) -> Certificates {
    let changes = fleet.revocations();
    let fleet = fleet.clone();
    Certificates {
        counts: Arc::new(move |peer| fleet.counts(peer)),
        changes,
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
fn names(options: &ServerOptions, address: SocketAddr) -> Names {
    let mut dns = vec!["localhost".to_string()];
    let mut ips: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    if let Some(host) = host::name() {
        dns.push(host);
    }
    if !address.ip().is_unspecified() {
        ips.push(address.ip());
    } else {
        ips.extend(host::addresses());
    }
    for advertised in &options.advertise {
        match advertised.parse() {
            Ok(ip) => ips.push(ip),
            Err(_) => dns.push(advertised.clone()),
        }
    }
    dns.dedup();
    ips.sort();
    ips.dedup();
    Names {
        dns,
        addresses: ips,
    }
}
