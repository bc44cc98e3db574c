//! Health endpoints of a server for a Kubernetes cluster, over plain HTTP: liveness, readiness,
//! and metrics in Prometheus' text format.

use std::sync::{Arc, RwLock};

use axum::Router;
use axum::http::{HeaderName, StatusCode, header};
use axum::routing::get;
use controllers::jobs::JobKind;
use controllers::scheduling::{CounterSnapshot, ReportBoard};
use kube::Client;
use resources::exposition::{self, Kind, MetricLabels, Page};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::{metrics, open_port};

/// The server's state.
pub enum ServerState {
    /// The cluster is not ready for the server: the reason.
    Waits(String),
    /// Another server leads, or none yet: the holder's name, or an empty string.
    Follows(watch::Receiver<String>),
    /// This server leads: its scheduler's reports, and the client that it writes with.
    Leads(Arc<ReportBoard>, Client),
}

/// Why a server cannot answer as the leader.
#[derive(Debug, thiserror::Error)]
pub enum NotLeading {
    #[error("the state of this server is damaged by a panic: restart it")]
    Broken,
    #[error("this server is not ready: {0}")]
    Waits(String),
    #[error("this server is on standby, and no server leads yet")]
    NoLeader,
    #[error("this server is on standby: {0} leads")]
    Follows(String),
}

/// The state behind the endpoints.
pub struct HealthState {
    standing: RwLock<ServerState>,
    /// Each kind of job, and whether this server controls it.
    kinds: Vec<(JobKind, bool)>,
}

impl HealthState {
    /// The state before the first look at the cluster.
    pub fn new(kinds: Vec<(JobKind, bool)>) -> HealthState {
        HealthState {
            standing: RwLock::new(ServerState::Waits("starting".to_owned())),
            kinds,
        }
    }

    /// Sets the state.
    pub fn set(&self, standing: ServerState) {
        if let Ok(mut now) = self.standing.write() {
            *now = standing;
        }
    }

    /// The leader's board and client; the error names the leader if it is another server.
    pub fn leader(&self) -> Result<(Arc<ReportBoard>, Client), NotLeading> {
        let Ok(standing) = self.standing.read() else {
            return Err(NotLeading::Broken);
        };
        match &*standing {
            ServerState::Leads(board, client) => Ok((board.clone(), client.clone())),
            ServerState::Waits(why) => Err(NotLeading::Waits(why.clone())),
            ServerState::Follows(leader) => match leader.borrow().as_str() {
                "" => Err(NotLeading::NoLeader),
                leader => Err(NotLeading::Follows(leader.to_owned())),
            },
        }
    }

    /// Ready: the server leads, or would take over from the leader.
    fn ready(&self) -> (StatusCode, String) {
        let unready = |why: &str| (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"));
        let Ok(standing) = self.standing.read() else {
            return unready("broken");
        };
        match &*standing {
            ServerState::Waits(why) => unready(&format!("waiting: {why}")),
            ServerState::Follows(leader) => {
                let leader = leader.borrow();
                let text = match leader.as_str() {
                    "" => "on standby".to_owned(),
                    leader => format!("on standby: {leader} leads"),
                };
                (StatusCode::OK, format!("{text}\n"))
            }
            ServerState::Leads(board, _) if !board.counts().listed => {
                unready("leading: the cluster is being listed")
            }
            ServerState::Leads(..) => (StatusCode::OK, "leading\n".to_owned()),
        }
    }

    /// The page of metrics, with its content type.
    fn metrics(&self) -> ([(HeaderName, &'static str); 1], String) {
        let mut leads = false;
        let mut pending = 0;
        let mut counts = CounterSnapshot::default();
        if let Ok(standing) = self.standing.read()
            && let ServerState::Leads(board, _) = &*standing
        {
            leads = true;
            pending = board.len();
            counts = board.counts();
        }
        let mut page = Page::default();
        let number = |yes: bool| f64::from(u8::from(yes));
        page.single(
            "muster_leader",
            Kind::Gauge,
            "This server leads.",
            number(leads),
        );
        let controls = self.kinds.iter().map(|(kind, controlled)| {
            let labels = MetricLabels::default().with("kind", kind.as_str());
            (labels, number(*controlled))
        });
        page.family(
            "muster_controls",
            Kind::Gauge,
            "This server controls jobs of the kind.",
            controls,
        );
        metrics::scheduler(&mut page, pending, &counts);
        metrics::process(&mut page);
        let kind = [(header::CONTENT_TYPE, exposition::CONTENT_TYPE)];
        (kind, page.text())
    }
}

/// Serves requests until `stop`.
pub async fn serve(socket: TcpListener, state: Arc<HealthState>, stop: watch::Receiver<bool>) {
    open_port::serve(socket, router(state), open_port::CONNECTIONS_MAX, stop).await;
}

fn router(state: Arc<HealthState>) -> Router {
    let (readiness, measured) = (state.clone(), state);
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || async move { readiness.ready() }))
        .route("/metrics", get(move || async move { measured.metrics() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_ready_while_it_stands_by_and_not_while_the_cluster_lacks_its_kinds() {
        let state = HealthState::new(vec![(JobKind::PyTorchJob, false)]);
        assert_eq!(state.ready().0, StatusCode::SERVICE_UNAVAILABLE);
        state.set(ServerState::Waits(
            "the cluster does not know queues".to_owned(),
        ));
        let (status, text) = state.ready();
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(text.contains("queues"), "{text}");
        let (_leader, follows) = watch::channel("other_1".to_owned());
        state.set(ServerState::Follows(follows));
        let ready = (StatusCode::OK, "on standby: other_1 leads\n".to_owned());
        assert_eq!(state.ready(), ready);
    }

    #[test]
    fn metrics_say_who_leads_and_which_kinds_are_left_alone() {
        let state = HealthState::new(vec![(JobKind::PyTorchJob, false)]);
        let (kind, text) = state.metrics();
        assert_eq!(
            kind,
            [(
                header::CONTENT_TYPE,
                "text/plain; version=0.0.4; charset=utf-8"
            )]
        );
        assert!(text.contains("\nmuster_leader 0\n"), "{text}");
        assert!(
            text.contains("\nmuster_controls{kind=\"PyTorchJob\"} 0\n"),
            "{text}"
        );
        assert!(
            text.contains("# TYPE muster_binds_total counter\n"),
            "{text}"
        );
    }
}
