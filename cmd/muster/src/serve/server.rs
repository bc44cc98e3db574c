//! Wires the server: store, resource API, identities, fleet, controllers, portal, and the
//! listener in front of them. The parts that run are components of one supervisor.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use apiserver::{ApiConfig, ApiServer};
use axum::Router;
use axum::middleware::from_fn_with_state;
use fleet::{CertificateAuthority, Fleet, FleetConfig};
use identity::{Identity, Options};
use proxy::{ProxyDomain, WebProxy};
use resources::access::Caller;
use supervisor::Supervisor;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::accounting::Accounting;
use super::alerting::{self, Alerting};
use super::certificate::{self, Certificate, ServerNames};
use super::decisions::Decisions;
use super::hangs::HangDetection;
use super::history::History;
use super::idle_gpus::IdleGpuPolicing;
use super::layout::{FileLayout, write_private};
use super::listener::{self, Certificates, ListenerConfig, ListenerLimits};
use super::metrics::RequestMetrics;
use super::scheduled_backups::ScheduledBackups;
use super::tls::{self, CertificateKeeper, ReadTlsOptions, ServedCertificates};
use super::{
    admin, audit, backends, host, oidc, plain_http, pod_pages, pod_security, process, route_layer,
    scheduler, signals, upgrade,
};
use crate::arguments::ServerOptions;
use crate::join_url::join_url;

/// Ports for rendezvous where pods share their node's network: below Linux's ephemeral
/// range, which begins at 32768.
const RENDEZVOUS_PORTS: std::ops::RangeInclusive<u16> = 20_000..=29_999;

/// How long the control loops may take to stop.
const PATIENCE: Duration = Duration::from_secs(5);

/// A running server.
pub struct RunningServer {
    /// The connected nodes.
    pub fleet: Arc<Fleet>,
    /// The running parts. A stop ends them in the reverse order: the listener, the configured certificate, the
    /// renewal of the own one, the fleet, the controllers, the backups, the alerts, the policy about idle GPUs, the history, the usage and the decisions on disk, and
    /// the audit log.
    pub components: Supervisor,
    address: SocketAddr,
}

impl RunningServer {
    /// Starts all parts; when this returns, the server answers requests. `read_tls` reads the options of the certificate
    /// again at SIGHUP.
    pub async fn start(
        layout: &FileLayout,
        options: &ServerOptions,
        read_tls: ReadTlsOptions,
    ) -> Result<RunningServer> {
        // Errors in files are reported before anything is changed.
        let file = options.scheduler.scheduler_config.as_deref();
        let scheduler = scheduler::config(file, controllers::SchedulerConfig::default())?;
        scheduler::refuse_repartition(&scheduler)?;
        let tls_source = options.tls.source()?;
        tls::check(&tls_source)?;
        let oidc = oidc::sign_in(&options.oidc)?;
        let receivers = alerting::receivers(options.alert_receivers.as_deref())?;
        let mut api_config = ApiConfig {
            pod_security: pod_security::config(options)?,
            service_range: options.service_cidr,
            ..ApiConfig::default()
        };
        let socket = TcpListener::bind(options.listen).await.with_context(|| {
            format!(
                "--listen: the server cannot listen on {}; choose another port, or stop the server \
                 that uses this one",
                options.listen
            )
        })?;
        let address = socket.local_addr()?;
        let store = upgrade::open_store(layout).await?;
        layout.sweep_server();
        let ca = Arc::new(CertificateAuthority::load_or_create(&layout.server())?);
        api_config.root_ca = Some(ca.certificate_pem().to_owned());
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

        let (measurements, received) = History::channel();
        let fleet = Fleet::start(
            client("fleet"),
            FleetConfig {
                rollout_file: Some(layout.rollout()),
                node_grace: options.node_grace(),
                pod_range: options.pod_range(),
                service_range: options.service_cidr,
                measurements: Some(measurements),
                ..FleetConfig::new(ca.clone())
            },
        );
        fleet.resume_rollout().await;
        backends::connect_logs(&api, &fleet);
        backends::connect_exec(&api, &fleet);
        backends::connect_users(&api, &identity);

        let mut controllers = controllers::start(
            client("controllers"),
            controllers::Config {
                scheduler,
                node_grace: options.node_grace(),
                jobs: controllers::jobs::JobKind::ALL.into(),
                core_controllers: true,
                rendezvous_ports: RENDEZVOUS_PORTS,
                root_ca: Some(ca.certificate_pem().to_owned()),
            },
        );
        let decisions = Decisions::keep(layout.decisions(), controllers.board.clone()).await;
        let requests = Arc::new(RequestMetrics::default());
        let accounting = Accounting::keep(layout.usage(), client("accounting")).await;
        let backups = ScheduledBackups::open(layout, &options.backups, &store)?;
        let alerting = Alerting::open(layout, receivers, url_for_nodes(options, address))?
            .with_backups(backups.as_ref().map(ScheduledBackups::facts));
        let history = History::open(layout.history(), received, accounting.book()).await;
        backends::connect_usage(&api, history.latest_usage());
        let board = portal::Board::start(&client("portal"));
        let idle_gpus = IdleGpuPolicing::new(board.clone(), history.idle_gpus());
        let hangs = HangDetection::new(board.clone(), history.quiet_pods());
        let portal = portal::Portal {
            identity: identity.clone(),
            board: board.clone(),
            oidc: oidc.map(Arc::new),
            hooks: Arc::new(backends::hooks(
                &api,
                &fleet,
                &controllers,
                &store,
                layout,
                url_for_nodes(options, address),
                accounting.book(),
                alerting.alerts(),
                idle_gpus.jobs(),
                history.source(),
                requests.clone(),
            )),
        };
        let pods = backends::connect_pods(&api, &fleet);
        let web_proxy = WebProxy::new(pods, options.proxy_domain.clone());
        let known = names(options, address);
        let own_names = plain_http::AllowedHosts::new(&known.dns, &known.addresses);
        let router = Router::new()
            .merge(portal::router(portal))
            .merge(web_proxy.routes())
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
        let router = route_layer::around(router, requests.clone());
        let router = pod_pages::beside(router, web_proxy.clone(), requests.clone());
        let certificate = Certificate::issue(&ca, &known)?;
        let served = ServedCertificates::new(certificate.clone());
        let configured =
            CertificateKeeper::start(tls_source, layout, served.clone(), &known, read_tls)?;
        let config = ListenerConfig {
            tls: Arc::new(certificate::tls(&ca, served.clone())?),
            router,
            limits: ListenerLimits::of(process::raise_open_files()),
            certificates: certificates(&fleet),
            streams: Arc::new(move |request| {
                web_proxy.owns(request) || apiserver::is_proxied(request.uri().path())
            }),
            requests,
        };
        // Written before the first request is answered: a user who can read the file can use it.
        admin::write_kubeconfig(layout, &identity, &ca, local(address)).await;

        let (of_alerts, certificates_of_alerts) = (client("alerting"), served.clone());
        let of_idle_gpus = client("idle-gpu-policy");
        let of_hangs = client("hang-detection");
        let mut components = Supervisor::new();
        components
            .run("audit log", |stop| async move {
                stop.requested().await;
                audit::close(audit_log, &api).await;
                Ok::<(), Infallible>(())
            })
            // The history is optional: the server goes on if it can't be written any more.
            .until_done("decisions", |stop| async move {
                stop.requested().await;
                decisions.finish().await;
                Ok::<(), Infallible>(())
            })
            .until_done("accounting", |stop| async move {
                stop.requested().await;
                accounting.finish().await;
                Ok::<(), Infallible>(())
            })
            .until_done("history", |stop| async move {
                history.run(board, stop).await;
                Ok::<(), Infallible>(())
            })
            .until_done("idle GPU policy", |stop| async move {
                idle_gpus.run(of_idle_gpus, stop).await;
                Ok::<(), Infallible>(())
            })
            .until_done("hang detection", |stop| async move {
                hangs.run(of_hangs, stop).await;
                Ok::<(), Infallible>(())
            })
            .until_done("alerts", |stop| async move {
                alerting.run(of_alerts, certificates_of_alerts, stop).await;
                Ok::<(), Infallible>(())
            })
            .run("controllers", |stop| async move {
                let ended = stop.run_until_requested(controllers.ended()).await;
                controllers.shutdown(PATIENCE).await;
                ended.map_or(Ok(()), Err)
            });
        let connected = fleet.clone();
        components.run("fleet", |stop| async move {
            stop.requested().await;
            connected.shutdown();
            Ok::<(), Infallible>(())
        });
        if let Some(backups) = backups {
            components.run_loop("backups", backups.run());
        }
        let (options, of_configured) = (options.clone(), options.clone());
        components
            .run_loop("certificate renewal", async move {
                let names = || names(&options, address);
                certificate.renew_in_time(&ca, names).await;
            })
            .run_loop("configured certificate", async move {
                let names = || names(&of_configured, address);
                configured.keep(names).await;
            })
            .run("listener", |stop| {
                listener::serve(socket, config, stop.receiver())
            });
        Ok(RunningServer {
            fleet,
            components,
            address,
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

    /// Runs until `stop` is true, then stops the parts in order.
    ///
    /// # Errors
    /// A part ended unexpectedly; the error names it, and the other parts are stopped.
    pub async fn run_until(self, stop: watch::Receiver<bool>) -> Result<()> {
        let stop = signals::requested(stop);
        Ok(self.components.supervise(stop).await?)
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

/// An address that reaches a socket of this machine from this machine.
pub fn local(listening: SocketAddr) -> SocketAddr {
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
        .with_context(|| format!("--first-password-file: {} cannot be read", file.display()))?;
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_string()))
}

/// The address by which nodes join.
fn url_for_nodes(options: &ServerOptions, address: SocketAddr) -> String {
    join_url(address, &options.advertise, host::own_name().as_deref())
}

/// The names and addresses that the server's certificate is for.
fn names(options: &ServerOptions, address: SocketAddr) -> ServerNames {
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
    dns.extend(options.proxy_domain.as_ref().map(ProxyDomain::wildcard));
    dns.dedup();
    ips.sort();
    ips.dedup();
    ServerNames {
        dns,
        addresses: ips,
    }
}
