//! The hosts entries that pods of a node get, and their changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rpc::agent::v1::{HostsEntry, Update};

use super::desired_pods::Sent;
use super::{Session, SessionServer};
use crate::hosts::{self, NameSource};
use crate::pod_fields::gang_of;

/// A namespace, optionally a gang in it, and where else pods find names: these pods share one hosts file.
type HostsScope<'a> = (&'a str, Option<&'a str>, NameSource);

fn scope_of<'a>(server: &SessionServer, session: &Session, pod: &'a Pod) -> HostsScope<'a> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let serves = session.description.cluster_services && server.nodes.ranges.services.is_some();
    let source = match serves && hosts::asks_dns(pod) {
        true => NameSource::Dns,
        false => NameSource::HostsFile,
    };
    (namespace, gang_of(pod), source)
}

pub(super) fn names_of(
    server: &SessionServer,
    session: &Session,
    pod: &Pod,
) -> (u64, Vec<HostsEntry>) {
    let (namespace, gang, source) = scope_of(server, session, pod);
    let index = server.index.lock();
    (
        index.names_version(namespace),
        hosts::entries(&index, namespace, gang, source),
    )
}

/// Sends the hosts entries that changed, computed once for each gang.
pub(super) async fn send_changes(
    server: &SessionServer,
    session: &Session,
    sent: &mut BTreeMap<String, Sent>,
    pods: &[Arc<Pod>],
) -> bool {
    let mut computed: BTreeMap<HostsScope, (u64, Vec<HostsEntry>)> = BTreeMap::new();
    let mut updates = Vec::new();
    for pod in pods {
        let Some(uid) = pod.metadata.uid.as_deref() else {
            continue;
        };
        let Some(entry) = sent.get_mut(uid) else {
            continue;
        };
        if !session.instructions.lock().has(uid) {
            continue;
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        if server.index.lock().names_version(namespace) == entry.names_version {
            continue;
        }
        let (version, hosts) = computed
            .entry(scope_of(server, session, pod))
            .or_insert_with(|| names_of(server, session, pod));
        entry.names_version = *version;
        if entry.hosts != *hosts {
            entry.hosts.clone_from(hosts);
            updates.push(Update {
                uid: uid.to_owned(),
                hosts: hosts.clone(),
            });
        }
    }
    for update in updates {
        if !session.send(update).await {
            return false;
        }
    }
    true
}
