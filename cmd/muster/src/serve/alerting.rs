//! Judges the alerts by nodes, quotas and the server's own state, and notifies the receivers. No request and no pod
//! waits for it, and a receiver that does not answer delays no other one.

mod send;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use alerting::{
    Alerts, AlertsState, DiskFacts, DueDelivery, Receiver, ServerFacts, conditions, read_receivers,
};
use anyhow::{Context, Result};
use futures::stream::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, ResourceQuota};
use kube::Client;
use kube::runtime::reflector::Store;
use parking_lot::Mutex;
use portal::SharedAlerts;
use supervisor::{StatefulLoop, Stop, caught, contained};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use self::send::Sender;
use super::layout::{FileLayout, write_private};
use super::mirror::{is_ready, mirror};
use super::scheduled_backups::SharedBackupFacts;
use super::signals;
use super::tls::ServedCertificates;

/// How often what is due is sent and stored.
const EVERY: Duration = Duration::from_secs(1);
/// The conditions are judged at one of so many of these times.
const JUDGED_EVERY: u32 = 5;

/// Reads the file of receivers.
///
/// # Errors
/// It cannot be read, or a value is invalid.
pub fn receivers(file: Option<&Path>) -> Result<Vec<Receiver>> {
    let Some(file) = file else {
        return Ok(Vec::new());
    };
    let named = || format!("--alert-receivers = {}", file.display());
    let text = std::fs::read_to_string(file)
        .with_context(named)
        .context("name a TOML file that the server's user may read")?;
    read_receivers(&text).with_context(named)
}

/// The alerts of a server.
pub struct Alerting {
    alerts: SharedAlerts,
    file: PathBuf,
    data: PathBuf,
    sender: Arc<Sender>,
    /// The state of the server's backups, if it takes any.
    backups: Option<SharedBackupFacts>,
}

impl Alerting {
    /// Goes on with the stored alerts. A file that cannot be read is put aside: no job depends on the alerts.
    ///
    /// # Errors
    /// There are receivers, and this machine has no CA certificates by which their servers could be verified.
    pub fn open(layout: &FileLayout, receivers: Vec<Receiver>, url: String) -> Result<Alerting> {
        let file = layout.alerts();
        let sender = Arc::new(Sender::new(!receivers.is_empty())?);
        let alerts = Alerts::restore(stored(&file), receivers, url);
        Ok(Alerting {
            alerts: Arc::new(Mutex::new(alerts)),
            file,
            data: layout.root().to_owned(),
            sender,
            backups: None,
        })
    }

    /// The same with the server's backups among what is judged.
    pub fn with_backups(mut self, backups: Option<SharedBackupFacts>) -> Alerting {
        self.backups = backups;
        self
    }

    /// The alerts.
    pub fn alerts(&self) -> SharedAlerts {
        self.alerts.clone()
    }

    /// Judges and notifies until the stop.
    pub async fn run(self, client: Client, served: Arc<ServedCertificates>, stop: Stop) {
        // Deliveries in flight are kept over a panic: each receiver has one at a time, and waits for its end.
        let state = (self, JoinSet::new());
        let state = StatefulLoop::run_until_stop(
            "the alerts",
            state,
            &stop,
            move |(alerting, sending), ended| {
                let (client, served) = (client.clone(), served.clone());
                Box::pin(async move { alerting.follow(client, &served, sending, ended).await })
            },
        )
        .await;
        state.0.store(&mut false).await;
    }

    async fn follow(
        &self,
        client: Client,
        served: &ServedCertificates,
        sending: &mut JoinSet<Sent>,
        ended: watch::Receiver<bool>,
    ) {
        let untracked = |node: &mut Node| node.metadata.managed_fields = None;
        let (nodes, follow_nodes) = mirror(&client, untracked);
        let untracked = |quota: &mut ResourceQuota| quota.metadata.managed_fields = None;
        let (quotas, follow_quotas) = mirror(&client, untracked);
        let mut followed = futures::stream::select(follow_nodes, follow_quotas).fuse();
        let mut ended = std::pin::pin!(signals::requested(ended));
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut ready, mut turn, mut logged) = (false, 0, false);
        loop {
            tokio::select! {
                () = &mut ended => return,
                _ = followed.next() => ready = ready || (is_ready(&nodes) && is_ready(&quotas)),
                Some(sent) = sending.join_next() => self.settle(sent),
                _ = ticks.tick() => {
                    // Without all nodes an alert that fires would seem to have ended.
                    if ready && turn == 0
                        && let Err(panic) = caught(|| self.judge(&nodes, &quotas, served))
                    {
                            tracing::error!(%panic, "the server panicked while it judged alerts; those that fire go on, and it tries again");
                    }
                    turn = (turn + 1) % JUDGED_EVERY;
                    for due in self.alerts.lock().take_due(Timestamp::now()) {
                        let sender = self.sender.clone();
                        sending.spawn(async move { deliver(&sender, due).await });
                    }
                    self.store(&mut logged).await;
                }
            }
        }
    }

    fn judge(
        &self,
        nodes: &Store<Node>,
        quotas: &Store<ResourceQuota>,
        served: &ServedCertificates,
    ) {
        let now = Timestamp::now();
        let disk = durable::disk_space(&self.data).ok().map(|space| DiskFacts {
            path: self.data.display().to_string(),
            free: space.available,
            total: space.bytes,
        });
        let server = ServerFacts {
            certificate_ends: served.configured().map(|pair| pair.not_after),
            disk,
            backup: self.backups.as_ref().and_then(|facts| facts.lock().clone()),
        };
        let (nodes, quotas) = (nodes.state(), quotas.state());
        let nodes = nodes.iter().map(Arc::as_ref);
        let found = conditions(nodes, quotas.iter().map(Arc::as_ref), &server, now);
        self.alerts.lock().observe(found, now);
    }

    fn settle(&self, sent: Result<Sent, tokio::task::JoinError>) {
        match sent {
            Ok(sent) => {
                if let Err(why) = &sent.result {
                    tracing::warn!(
                        receiver = sent.receiver,
                        delivery = sent.id,
                        why,
                        "a receiver of alerts was not notified"
                    );
                }
                let mut alerts = self.alerts.lock();
                alerts.settle(&sent.receiver, sent.result, Timestamp::now());
            }
            // The delivery stays in flight, and goes out again after a restart.
            Err(error) => tracing::error!(%error, "a delivery of alerts failed inside the server"),
        }
    }

    /// Stores what changed. `logged` is whether a failure was logged.
    async fn store(&self, logged: &mut bool) {
        let Some(state) = self.alerts.lock().take_changes() else {
            return;
        };
        let file = self.file.clone();
        let write = move || write_state(&file, &state);
        let written = tokio::task::spawn_blocking(write).await;
        let failure = match written {
            Ok(Ok(())) => {
                *logged = false;
                return;
            }
            Ok(Err(error)) => format!("{error:#}"),
            Err(error) => error.to_string(),
        };
        self.alerts.lock().mark_changed();
        if !std::mem::replace(logged, true) {
            tracing::warn!(
                failure,
                "the alerts are not stored; the server tries again each second"
            );
        }
    }
}

/// How a delivery went.
struct Sent {
    receiver: String,
    id: String,
    result: Result<(), String>,
}

async fn deliver(sender: &Sender, due: DueDelivery) -> Sent {
    let result = match contained(sender.send(&due)).await {
        Ok(sent) => sent.map_err(|error| error.to_string()),
        Err(panic) => Err(format!("the server panicked while it sent: {panic}")),
    };
    Sent {
        receiver: due.receiver.name,
        id: due.id,
        result,
    }
}

fn write_state(file: &Path, state: &AlertsState) -> Result<()> {
    write_private(file, &serde_json::to_string(state)?)
}

fn stored(file: &Path) -> AlertsState {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return AlertsState::default();
        }
        Err(error) => {
            tracing::error!(file = %file.display(), %error, "the stored alerts cannot be read; notices may be repeated");
            return AlertsState::default();
        }
    };
    serde_json::from_str(&text).unwrap_or_else(|error| {
        let aside = file.with_extension("damaged");
        let moved = std::fs::rename(file, &aside);
        tracing::error!(put_aside = %aside.display(), %error, moved = moved.is_ok(), "the stored alerts are damaged and are put aside; notices may be repeated");
        AlertsState::default()
    })
}
