//! Sends an agent its desired pods, with the data that each of them needs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use rpc::agent::v1::{Assign, HostsEntry, SyncComplete};
use tokio::time::Instant;

use super::host_names::{names_of, send_changes};
use super::token_renewal::{renew_tokens, until};
use super::{AGAIN, Session, SessionServer, network_policies, node_of, pod_network, services};
use crate::resolve::{Resolved, resolve};
use crate::sent_instructions::Instruction;

/// Changes within this time are sent together.
const COALESCE: Duration = Duration::from_millis(20);

/// The data that the driver has sent for a pod, so that it sends only changes.
#[derive(Default)]
pub(super) struct Sent {
    pub(super) names_version: u64,
    pub(super) hosts: Vec<HostsEntry>,
    /// The data found for an incomplete pod; fetched again until it is complete.
    lacking: Option<Resolved>,
    /// When the pod's tokens have to be replaced.
    pub(super) renew_at: Option<Timestamp>,
}

/// Sends the agent its desired pods until the session ends.
pub(super) async fn drive(server: &Arc<SessionServer>, session: &Arc<Session>) {
    let mut sent: BTreeMap<String, Sent> = BTreeMap::new();
    let mut complete = false;
    let mut resolve_at = Instant::now() + AGAIN;
    let (mut network, mut services, mut policies) = (None, None, None);
    loop {
        if !pod_network::send(server, session, &mut network).await
            || !services::send(server, session, &mut services).await
        {
            return;
        }
        let pods = server.index.lock().pods_of_node(&session.node);
        let instructions = session.instructions.lock().review(&pods);
        let assigned = instructions
            .iter()
            .filter_map(|instruction| match instruction {
                Instruction::Assign(pod) => pod.metadata.namespace.clone(),
                _ => None,
            });
        for namespace in assigned.collect::<BTreeSet<_>>() {
            network_policies::catch_up(server, session, &namespace).await;
        }
        // After the pods were read and before they are assigned: a pod starts with its rules.
        if !network_policies::send(server, session, &mut policies).await {
            return;
        }
        for instruction in instructions {
            if !carry_out(server, session, &mut sent, instruction).await {
                return;
            }
        }
        if !send_changes(server, session, &mut sent, &pods).await {
            return;
        }
        if Instant::now() >= resolve_at {
            resolve_at = Instant::now() + AGAIN;
            if !resolve_again(server, session, &mut sent, &pods).await {
                return;
            }
        }
        if !complete {
            complete = true;
            if !session.send(SyncComplete {}).await {
                return;
            }
        }
        if !renew_tokens(server, session, &mut sent, &pods).await {
            return;
        }
        let lacking = sent.values().any(|sent| sent.lacking.is_some());
        let renewal = sent.values().filter_map(|sent| sent.renew_at).min();
        let wait = renewal.map(|at| until(at, Timestamp::now()));
        tokio::select! {
            () = tokio::time::sleep(wait.unwrap_or_default()), if wait.is_some() => {}
            () = session.wake.notified() => {}
            () = tokio::time::sleep_until(resolve_at), if lacking => {}
            () = session.outbound.closed() => return,
        }
        tokio::time::sleep(COALESCE).await;
    }
}

async fn carry_out(
    server: &Arc<SessionServer>,
    session: &Arc<Session>,
    sent: &mut BTreeMap<String, Sent>,
    instruction: Instruction,
) -> bool {
    match instruction {
        Instruction::Stop(stop) => session.send(stop).await,
        Instruction::Assign(pod) => {
            let resolved = resolve(&server.client, &pod, Timestamp::now()).await;
            assign(server, session, sent, &pod, resolved).await
        }
        Instruction::Vanished {
            namespace,
            name,
            uid,
        } => {
            // A stop must not rely on a view that may be stale.
            let api: Api<Pod> = Api::namespaced(server.client.clone(), &namespace);
            match api.get_opt(&name).await {
                Ok(Some(pod))
                    if pod.metadata.uid.as_deref() == Some(&uid)
                        && node_of(&pod) == Some(&session.node) =>
                {
                    server.index.change(|index| index.put_pod(pod));
                    true
                }
                Ok(_) => {
                    sent.remove(&uid);
                    let stop = session.instructions.lock().confirm_vanished(&uid);
                    match stop {
                        Some(stop) => session.send(stop).await,
                        None => true,
                    }
                }
                Err(error) => {
                    tracing::warn!(node = session.node, pod = name, %error, "the server could not read whether a pod exists; it asks again");
                    let session = session.clone();
                    tokio::spawn(async move {
                        tokio::time::sleep(AGAIN).await;
                        session.wake();
                    });
                    true
                }
            }
        }
    }
}

pub(super) async fn assign(
    server: &SessionServer,
    session: &Session,
    sent: &mut BTreeMap<String, Sent>,
    pod: &Arc<Pod>,
    resolved: Resolved,
) -> bool {
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let (names_version, hosts) = names_of(server, session, pod);
    let pod_json = match serde_json::to_string(pod.as_ref()) {
        Ok(json) => json,
        Err(error) => {
            tracing::error!(node = session.node, uid, %error, "the server cannot encode a pod as JSON");
            return true;
        }
    };
    if !resolved.no_namespace.is_empty() {
        let why = &resolved.no_namespace;
        tracing::warn!(
            node = session.node,
            uid,
            why,
            "the server does not assign a pod yet: its Unix account is unknown"
        );
        sent.entry(uid).or_default().lacking = Some(resolved);
        return true;
    }
    let entry = sent.entry(uid).or_default();
    entry.names_version = names_version;
    entry.hosts = hosts.clone();
    let message = Assign {
        pod_json,
        volumes: resolved.volumes.clone(),
        env: resolved.env.clone(),
        hosts,
        unix_account: resolved.unix_account.clone(),
    };
    entry.renew_at = resolved.renew_at;
    entry.lacking = resolved.has_problem().then_some(resolved);
    session.send(message).await
}

/// Fetches again the data that pods lack, and sends the changes.
async fn resolve_again(
    server: &Arc<SessionServer>,
    session: &Arc<Session>,
    sent: &mut BTreeMap<String, Sent>,
    pods: &[Arc<Pod>],
) -> bool {
    for pod in pods {
        let Some(uid) = pod.metadata.uid.as_deref() else {
            continue;
        };
        let Some(before) = sent.get_mut(uid).and_then(|sent| sent.lacking.take()) else {
            continue;
        };
        if !session.instructions.lock().has(uid) {
            continue;
        }
        let now = resolve(&server.client, pod, Timestamp::now()).await;
        if now == before {
            if let Some(entry) = sent.get_mut(uid) {
                entry.lacking = Some(before);
            }
        } else if !assign(server, session, sent, pod, now).await {
            return false;
        }
    }
    true
}
