//! Connections between crates that do not depend on each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver::{ApiServer, ExecAction, ExecEvent, ExecInput, ExecOpener, MeasuredUsage, UsageOf};
use fleet::Fleet;
use futures::StreamExt;
use futures::future::BoxFuture;
use identity::Identity;
use jiff::{SignedDuration, Timestamp};
use measurements::Used;
use portal::{
    Backends, BackupFailed, CreatedJoinToken, ListedJoinToken, LogProblem, LogQuery, NewJoinToken,
    NodeRequestProblem, UnreadableManifests,
};
use proxy::{PodHttp, ProxyTimes};
use resources::quantity::Quantity;
use rpc::agent::v1::{ExecData, ExecFrame, ExecInputEnd, ExecResize, OpenExec, exec_frame};
use rpc::exec_channel;

use super::history::SharedLatestUsage;
use super::layout::FileLayout;
use super::metrics::{self, RequestMetrics};
use super::{backup, upgrade};

/// Agents measure as often.
const MEASURED_EACH: SignedDuration = SignedDuration::from_secs(15);

/// Makes the pods' `log` subresource read from the nodes.
pub fn connect_logs(api: &ApiServer, fleet: &Arc<Fleet>) {
    let fleet = fleet.clone();
    api.set_log_opener(Arc::new(move |request| {
        let fleet = fleet.clone();
        Box::pin(async move {
            let ago = |seconds: u64| {
                let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
                Timestamp::now()
                    .checked_sub(SignedDuration::from_secs(seconds))
                    .ok()
            };
            let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
            let query = fleet::AgentLogQuery {
                namespace: request.namespace,
                pod: request.pod,
                uid: Some(request.uid),
                node: Some(request.node),
                container: request.container,
                follow: request.follow,
                tail_lines: request.tail.map(signed),
                since: request.since_time.or_else(|| ago(request.since_seconds?)),
                timestamps: request.timestamps,
                previous: request.previous,
                limit_bytes: request.limit_bytes.map(signed),
            };
            match fleet.open_log(query).await {
                Ok(stream) => Ok(stream.boxed()),
                Err(error) => Err(refused(&error)),
            }
        })
    }));
}

/// Makes the pods' `exec`, `attach` and `portforward` subresources reach the nodes.
pub fn connect_exec(api: &ApiServer, fleet: &Arc<Fleet>) {
    api.set_exec_opener(exec_opener(fleet));
}

/// Makes `metrics.k8s.io` answer what was measured last.
pub fn connect_usage(api: &ApiServer, latest: SharedLatestUsage) {
    api.set_usage_source(Arc::new(move |of| {
        let latest = latest.read();
        let now = Timestamp::now();
        let (at, used) = match of {
            UsageOf::Node(node) => {
                let (at, used) = latest.node(node, now)?;
                (at, BTreeMap::from([(String::new(), amounts(used)?)]))
            }
            UsageOf::Pod {
                namespace,
                name,
                uid,
            } => {
                let (at, pod) = latest.pod(&(namespace.to_owned(), name.to_owned()), now)?;
                if pod.uid != uid {
                    return None;
                }
                let containers = pod.containers.iter();
                let used: Option<_> = containers
                    .map(|(name, used)| Some((name.clone(), amounts(used)?)))
                    .collect();
                (at, used?)
            }
        };
        Some(MeasuredUsage {
            at,
            window: MEASURED_EACH,
            used,
        })
    }));
}

/// The amounts by resource; none until CPU time and memory were measured, so that no reader takes what is new for idle.
fn amounts(used: &Used) -> Option<BTreeMap<String, Quantity>> {
    let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let cpu = Quantity::from_milli(whole(used.cpu_millicores?));
    let memory = Quantity::from_bytes(whole(used.memory_bytes?));
    let gpus = used.gpus.iter();
    let gpus =
        gpus.map(|(resource, milli)| (resource.clone(), Quantity::from_milli(whole(*milli))));
    let own = [("cpu".to_owned(), cpu), ("memory".to_owned(), memory)];
    Some(own.into_iter().chain(gpus).collect())
}

/// HTTP to programs in pods, and the subresources `proxy` by it.
pub fn connect_pods(api: &ApiServer, fleet: &Arc<Fleet>) -> PodHttp {
    let pods = PodHttp::new(api.clone(), exec_opener(fleet), ProxyTimes::default());
    api.set_pod_proxy(pods.handler());
    pods
}

/// What starts commands in pods, and connects to their ports.
fn exec_opener(fleet: &Arc<Fleet>) -> ExecOpener {
    let fleet = fleet.clone();
    Arc::new(move |request| {
        let fleet = fleet.clone();
        Box::pin(async move {
            let (command, attach, port) = match request.action {
                ExecAction::Command(command) => (command, false, 0),
                ExecAction::Attach => (Vec::new(), true, 0),
                ExecAction::Forward(port) => (Vec::new(), false, port),
            };
            let open = OpenExec {
                stream_id: 0,
                namespace: request.namespace,
                pod: request.pod,
                uid: request.uid,
                container: request.container,
                command,
                stdin: request.stdin,
                stdout: request.stdout,
                stderr: request.stderr,
                tty: request.tty,
                attach,
                forward_port: port.into(),
            };
            match fleet.open_exec(&request.node, open).await {
                Ok(connection) => Ok(exec_streams(connection)),
                Err(error) => Err(exec_refused(&error)),
            }
        })
    })
}

fn exec_refused(error: &fleet::ExecError) -> apiserver::ExecError {
    let words = error.to_string();
    match error {
        fleet::ExecError::NotStarted(_) => apiserver::ExecError::Refused(words),
        _ => apiserver::ExecError::Unavailable(words),
    }
}

/// A command's connection in the resource API's terms.
fn exec_streams(connection: fleet::ExecConnection) -> apiserver::ExecStreams {
    let to_agent = connection.to_agent.clone();
    let send = move |input: ExecInput| -> BoxFuture<'static, bool> {
        let to_agent = to_agent.clone();
        Box::pin(async move { to_agent.send(Ok(exec_frame(input))).await.is_ok() })
    };
    let events = futures::stream::unfold(connection, |mut connection| async move {
        let event = match connection.from_agent.message().await {
            Ok(frame) => exec_event(frame?)?,
            Err(status) => ExecEvent::Failed(format!(
                "the connection to the node was lost: {}",
                status.message()
            )),
        };
        Some((event, connection))
    });
    apiserver::ExecStreams {
        send: Box::new(send),
        events: events.boxed(),
    }
}

fn exec_frame(input: ExecInput) -> ExecFrame {
    let body = match input {
        ExecInput::Data(data) => exec_frame::Body::Data(ExecData {
            channel: exec_channel::INPUT,
            data: data.into(),
        }),
        ExecInput::Resize { width, height } => exec_frame::Body::Resize(ExecResize {
            width: width.into(),
            height: height.into(),
        }),
        ExecInput::End => exec_frame::Body::InputEnd(ExecInputEnd {}),
    };
    ExecFrame { body: Some(body) }
}

/// What an agent's message says; none if it is no part of the protocol, which ends the command.
fn exec_event(frame: ExecFrame) -> Option<ExecEvent> {
    match frame.body? {
        exec_frame::Body::Data(data) if data.channel == exec_channel::ERRORS => {
            Some(ExecEvent::Errors(data.data.into()))
        }
        exec_frame::Body::Data(data) => Some(ExecEvent::Output(data.data.into())),
        exec_frame::Body::Exit(exit) if exit.error.is_empty() => Some(ExecEvent::Exit(exit.code)),
        exec_frame::Body::Exit(exit) => Some(ExecEvent::Failed(exit.error)),
        _ => None,
    }
}

fn refused(error: &fleet::LogReadError) -> apiserver::LogError {
    let words = error.to_string();
    match error {
        fleet::LogReadError::NotFound(_) => apiserver::LogError::NotFound(words),
        fleet::LogReadError::NotReady(_) => apiserver::LogError::BadRequest(words),
        fleet::LogReadError::NodeAway { .. } | fleet::LogReadError::Failed(_) => {
            apiserver::LogError::Unavailable(words)
        }
    }
}

fn status_of(error: &fleet::LogReadError) -> u16 {
    match error {
        fleet::LogReadError::NotFound(_) => 404,
        fleet::LogReadError::NotReady(_) => 400,
        fleet::LogReadError::NodeAway { .. } => 503,
        fleet::LogReadError::Failed(_) => 500,
    }
}

/// Makes the resource API look up users in the identity store.
pub fn connect_users(api: &ApiServer, identity: &Identity) {
    let (tokens, records) = (identity.clone(), identity.clone());
    api.set_users(apiserver::Users {
        bearer: Box::new(move |secret| tokens.bearer(secret).map(|(caller, _)| caller)),
        groups: Box::new(move |name| {
            let user = records.user(name);
            user.map_or_else(Vec::new, |user| user.caller().groups)
        }),
    });
}

/// The functions of other crates that the portal calls.
#[allow(
    clippy::too_many_arguments,
    reason = "each is another component of the server"
)]
pub fn hooks(
    api: &ApiServer,
    fleet: &Arc<Fleet>,
    controllers: &controllers::Handle,
    store: &store::Store,
    layout: &FileLayout,
    url: String,
    usage: portal::SharedUsage,
    alerts: portal::SharedAlerts,
    idle_jobs: portal::SharedIdleJobs,
    measured: Box<super::history::MeasuredSource>,
    requests: Arc<RequestMetrics>,
) -> Backends {
    let (api, authority, reader) = (api.clone(), api.clone(), api.clone());
    let (logs, tokens, asks) = (fleet.clone(), fleet.clone(), fleet.clone());
    let (listing, revoking, removing) = (fleet.clone(), fleet.clone(), fleet.clone());
    let board = || controllers.board.clone();
    let (reports, preview, history) = (board(), board(), board());
    let (could_evict, queues, defragmentation) = (board(), board(), board());
    let upgrade = upgrade::backend(fleet, store, layout);
    let (store, server) = (store.clone(), layout.server());
    let (paths, counted) = (api.clone(), board());
    Backends {
        usage,
        alerts,
        idle_jobs,
        measured,
        permits_path: Box::new(move |caller, path| paths.permits_path(caller, "get", path)),
        metrics: Box::new(move |page| {
            metrics::scheduler(page, counted.len(), &counted.counts());
            requests.write(page);
            metrics::process(page);
        }),
        upgrade,
        client_for: Box::new(move |caller| api.client(caller.clone())),
        permits: Box::new(move |caller, wanted| authority.permits(caller, wanted)),
        explain: Box::new(move |namespace, group| reports.get(namespace, group)),
        could_evict: Box::new(move |namespace, group| {
            let board = could_evict.clone();
            Box::pin(async move { board.could_evict(&namespace, &group).await })
        }),
        history: Box::new(move |namespace, group| history.history(namespace, group)),
        queues: Box::new(move || {
            let board = queues.clone();
            Box::pin(async move { board.standings().await })
        }),
        defragmentation: Box::new(move || {
            let board = defragmentation.clone();
            Box::pin(async move { board.defragmentation().await })
        }),
        read_manifests: Box::new(move |caller, text| {
            let reader = reader.clone();
            Box::pin(async move {
                let read = reader.read_manifests(&caller, text).await;
                read.map_err(|error| UnreadableManifests {
                    reason: error.to_string(),
                })
            })
        }),
        preview: Box::new(move |object| {
            let board = preview.clone();
            Box::pin(async move { controllers::preview::preview(&board, &object).await })
        }),
        open_log: Box::new(move |query| {
            let fleet = logs.clone();
            Box::pin(async move { open_log(&fleet, query).await })
        }),
        ask_rdma: Box::new(move |node, ask| {
            let fleet = asks.clone();
            Box::pin(async move { ask_rdma(&fleet, &node, &ask).await })
        }),
        issue_join_token: Box::new(move |new| {
            let (fleet, url) = (tokens.clone(), url.clone());
            Box::pin(async move { issue_join_token(&fleet, new, url).await })
        }),
        list_join_tokens: Box::new(move || {
            let fleet = listing.clone();
            Box::pin(async move { list_join_tokens(&fleet).await })
        }),
        revoke_join_token: Box::new(move |id| {
            let fleet = revoking.clone();
            Box::pin(async move { fleet.revoke_join_token(&id).await.map_err(problem) })
        }),
        remove_node: Box::new(move |name| {
            let fleet = removing.clone();
            Box::pin(async move { fleet.remove_node(&name).await.map_err(problem) })
        }),
        backup: Box::new(move |asked| {
            let (store, server) = (store.clone(), server.clone());
            Box::pin(async move {
                let write = move || -> anyhow::Result<()> {
                    let options = store::BackupOptions {
                        files: backup::files(&server)?,
                        passphrase: asked.passphrase,
                    };
                    store.backup(&asked.path, &options)?;
                    Ok(())
                };
                let reason = match tokio::task::spawn_blocking(write).await {
                    Ok(Ok(())) => return Ok(()),
                    Ok(Err(error)) => format!("{error:#}"),
                    Err(error) => error.to_string(),
                };
                Err(BackupFailed { reason })
            })
        }),
    }
}

async fn issue_join_token(
    fleet: &Fleet,
    new: NewJoinToken,
    server: String,
) -> Result<CreatedJoinToken, NodeRequestProblem> {
    let made = fleet
        .create_join_token(&fleet::JoinTokenOptions {
            ttl: SignedDuration::try_from(new.ttl).unwrap_or(SignedDuration::MAX),
            description: "muster token join".to_owned(),
            node: new.node,
            uses: new.uses,
        })
        .await
        .map_err(problem)?;
    // The authority's fingerprint is part of the token, so that the agent can verify the server.
    Ok(CreatedJoinToken {
        secret: format!("{}@{}", made.token, fleet.ca_fingerprint()),
        id: made.id,
        expires: made.expires,
        server,
    })
}

async fn list_join_tokens(fleet: &Fleet) -> Result<Vec<ListedJoinToken>, NodeRequestProblem> {
    let now = Timestamp::now();
    let mut tokens = fleet.list_join_tokens().await.map_err(problem)?;
    tokens.retain(|token| token.expires > now);
    let listed = tokens.into_iter().map(|token| ListedJoinToken {
        id: token.id,
        description: token.description,
        node: token.node,
        uses: token.uses,
        expires: token.expires,
    });
    Ok(listed.collect())
}

fn problem(error: fleet::FleetError) -> NodeRequestProblem {
    NodeRequestProblem {
        status: match error {
            fleet::FleetError::NodeName { .. } | fleet::FleetError::TokenOption { .. } => 422,
            _ => 503,
        },
        detail: error.to_string(),
    }
}

async fn open_log(fleet: &Fleet, query: LogQuery) -> Result<portal::LogStream, LogProblem> {
    let query = fleet::AgentLogQuery {
        namespace: query.namespace,
        pod: query.pod,
        container: query.container.unwrap_or_default(),
        follow: query.follow,
        tail_lines: query
            .tail_lines
            .map(|lines| i64::try_from(lines).unwrap_or(i64::MAX)),
        timestamps: query.timestamps,
        previous: query.previous,
        ..fleet::AgentLogQuery::default()
    };
    match fleet.open_log(query).await {
        Ok(stream) => Ok(stream.boxed()),
        Err(error) => Err(LogProblem {
            status: status_of(&error),
            detail: error.to_string(),
        }),
    }
}

async fn ask_rdma(
    fleet: &Fleet,
    node: &str,
    ask: &serde_json::Value,
) -> Result<serde_json::Value, NodeRequestProblem> {
    let answer = fleet.ask_rdma(node, ask.to_string()).await;
    let answer = answer.map_err(|error| NodeRequestProblem {
        // Not 503 or 504, because clients retry these for minutes.
        status: match error {
            fleet::NodeRequestError::NodeAway { .. } | fleet::NodeRequestError::Silent { .. } => {
                502
            }
            fleet::NodeRequestError::Refused(_) => 409,
        },
        detail: error.to_string(),
    })?;
    serde_json::from_str(&answer).map_err(|error| NodeRequestProblem {
        status: 502,
        detail: format!("node {node:?} answered what is not JSON: {error}"),
    })
}
