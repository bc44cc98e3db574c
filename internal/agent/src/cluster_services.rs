//! The cluster's Services on this node, where the agent gives pods addresses: takes what the server sends, has the
//! kernel lead Services' addresses to endpoints, and answers pods' questions for names.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use dns::{DnsError, DnsServer, Names, Zone};
use k8s_openapi::api::core::v1::Pod;
use network::{NetworkError, NodeServices};
use parking_lot::Mutex;
use resources::services::ClusterService;
use resources::services::addresses::ServiceRange;
use rpc::agent::v1::ServiceChanges;
use tokio::sync::watch;

use crate::error::AgentError;
use crate::reprogram::{self, AGAIN};
use dns::resolv_conf::{HOST_FILE, ResolvConf};

type Services = BTreeMap<(String, String), Arc<ClusterService>>;

/// The cluster's Services on this node.
#[derive(Clone)]
pub struct ClusterServices {
    /// None where the agent gives pods no addresses.
    node: Option<Arc<NodeServices>>,
    names: Names,
    arriving: Arc<Mutex<Option<Services>>>,
    wanted: watch::Sender<Wanted>,
}

/// What the server sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    /// Whether Services have addresses, once the server has said it.
    range: Option<Option<ServiceRange>>,
    /// The Services, once all have arrived.
    services: Option<Services>,
}

impl ClusterServices {
    /// Nothing is known yet. `gives`: whether the agent gives pods addresses.
    ///
    /// # Errors
    ///
    /// When `ip` or `nft` is missing.
    pub fn open(gives: bool) -> Result<ClusterServices, AgentError> {
        let node = gives.then(NodeServices::open).transpose();
        Ok(ClusterServices {
            node: node.map_err(AgentError::PodNetwork)?.map(Arc::new),
            names: Names::default(),
            arriving: Arc::default(),
            wanted: watch::Sender::default(),
        })
    }

    /// Takes the range of Services' addresses as the server sent it; empty if Services have none.
    pub fn set_range(&self, text: &str) {
        let range = match text.parse::<ServiceRange>() {
            Ok(range) => Some(range),
            Err(_) if text.is_empty() => None,
            Err(error) => {
                tracing::error!(range = text, %error, "the server sent a range of Services' addresses that the agent cannot read");
                return;
            }
        };
        self.wanted.send_if_modified(|wanted| {
            let changed = wanted.range != Some(range);
            wanted.range = Some(range);
            changed
        });
    }

    /// Takes changes; acts when the last one of a series has come.
    pub fn take(&self, changes: ServiceChanges) {
        let mut arriving = self.arriving.lock();
        let known = || self.wanted.borrow().services.clone().unwrap_or_default();
        let mut services = match changes.begins {
            true => Services::new(),
            false => arriving.take().unwrap_or_else(known),
        };
        for key in &changes.removed {
            if let Some((namespace, name)) = key.split_once('/') {
                services.remove(&(namespace.to_owned(), name.to_owned()));
            }
        }
        for json in &changes.services_json {
            match serde_json::from_str::<ClusterService>(json) {
                Ok(service) => {
                    let key = (service.namespace.clone(), service.name.clone());
                    services.insert(key, Arc::new(service));
                }
                Err(error) => {
                    tracing::error!(%error, "the server sent a Service that cannot be read; it has no address here");
                }
            }
        }
        if !changes.complete {
            *arriving = Some(services);
            return;
        }
        self.wanted
            .send_modify(|wanted| wanted.services = Some(services));
    }

    /// The address of the cluster's DNS server, if there is one on this node.
    pub fn dns(&self) -> Option<Ipv4Addr> {
        self.node.as_ref()?;
        self.wanted.borrow().range.flatten().map(ServiceRange::dns)
    }

    /// The text of a pod's `resolv.conf`; none if the pod has the node's own. `own_network`: whether it has a network
    /// of its own. Blocks.
    pub fn resolv_conf(&self, pod: &Pod, own_network: bool) -> Option<String> {
        let host = std::fs::read_to_string(HOST_FILE).unwrap_or_default();
        resolv_conf(pod, own_network, self.dns(), &ResolvConf::parse(&host))
    }

    /// Programs what changed, for good.
    pub async fn program(self) {
        let Some(node) = self.node else {
            return std::future::pending().await;
        };
        let names = self.names.clone();
        let work_for = move |wanted: Wanted| {
            let (node, names) = (node.clone(), names.clone());
            move || program(&node, &names, wanted)
        };
        let failure = "Services are not up to date on this node; the agent tries again";
        reprogram::after_each_change(self.wanted.subscribe(), failure, work_for).await;
    }

    /// Answers questions for names, for good.
    pub async fn answer(self) {
        let Some(node) = self.node.clone() else {
            return std::future::pending().await;
        };
        let mut changes = self.wanted.subscribe();
        let mut failing = false;
        loop {
            let range = changes.borrow_and_update().range.flatten();
            let moved = async {
                let moved = changes.wait_for(|wanted| wanted.range.flatten() != range);
                moved.await.is_ok()
            };
            tokio::select! {
                ended = serve(node.clone(), range, self.names.clone()) => {
                    if let Err(error) = &ended && !failing {
                        tracing::error!(%error, "the agent's DNS server failed, so pods of this node resolve no names; the agent tries again");
                    }
                    failing = ended.is_err();
                    tokio::time::sleep(AGAIN).await;
                }
                moved = moved => {
                    if !moved {
                        return;
                    }
                    failing = false;
                }
            }
        }
    }
}

/// Why this node has no DNS server.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Address(#[from] NetworkError),
    #[error(transparent)]
    Listen(#[from] DnsError),
    #[error("the DNS server's address was not taken: {0}")]
    Panicked(#[from] tokio::task::JoinError),
}

/// Serves names while the range of Services' addresses stays; without one there are none to serve.
async fn serve(
    node: Arc<NodeServices>,
    range: Option<ServiceRange>,
    names: Names,
) -> Result<(), ServeError> {
    let Some(range) = range else {
        return std::future::pending().await;
    };
    tokio::task::spawn_blocking(move || node.take_dns_address(range)).await??;
    let server = DnsServer::listen(range.dns(), names).await?;
    server.serve().await;
    Ok(())
}

/// Programs what the server sent, as far as it has said everything.
fn program(node: &NodeServices, names: &Names, wanted: Wanted) -> Result<(), NetworkError> {
    let (Some(range), services) = (wanted.range, wanted.services) else {
        return Ok(());
    };
    let Some(range) = range else {
        return node.clear();
    };
    let Some(services) = services else {
        return Ok(());
    };
    names.set(Zone::new(range.range(), services.clone()));
    node.set(range, services)
}

/// The text of a pod's `resolv.conf`, by its DNS policy (Kubernetes' `dnsPolicy`); none if it has the node's own.
fn resolv_conf(
    pod: &Pod,
    own_network: bool,
    dns: Option<Ipv4Addr>,
    host: &ResolvConf,
) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let config = spec.dns_config.as_ref();
    let of_cluster = match spec.dns_policy.as_deref().unwrap_or("ClusterFirst") {
        "ClusterFirst" => own_network,
        "ClusterFirstWithHostNet" => true,
        _ => false,
    };
    let mut conf = match (spec.dns_policy.as_deref(), dns.filter(|_| of_cluster)) {
        (Some("None"), _) => ResolvConf::default(),
        (_, Some(dns)) => ResolvConf::of_cluster(dns, namespace, host),
        (_, None) if config.is_none() => return None,
        (_, None) => host.clone(),
    };
    if let Some(config) = config {
        let options = config.options.iter().flatten().filter_map(|option| {
            let name = option.name.as_ref()?;
            Some(match &option.value {
                Some(value) => format!("{name}:{value}"),
                None => name.clone(),
            })
        });
        conf.add(ResolvConf {
            nameservers: config.nameservers.clone().unwrap_or_default(),
            search: config.searches.clone().unwrap_or_default(),
            options: options.collect(),
        });
    }
    Some(conf.text())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_pods_resolvers_follow_its_dns_policy() {
        let host = ResolvConf::parse("nameserver 192.0.2.53\nsearch example.org\n");
        let dns = Some(Ipv4Addr::new(10, 96, 0, 10));
        let of = |spec: Value, own: bool, dns: Option<Ipv4Addr>| {
            let mut spec = spec;
            spec["containers"] = json!([]);
            let pod = json!({"metadata": {"namespace": "team", "name": "p"}, "spec": spec});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            resolv_conf(&pod, own, dns, &host).map(|text| text.replace('\n', "; "))
        };
        let cluster = "nameserver 10.96.0.10; search team.svc.cluster.local svc.cluster.local cluster.local \
             example.org; options ndots:5; ";
        let config = json!({"nameservers": ["192.0.2.1"], "searches": ["x.example"],
            "options": [{"name": "ndots", "value": "1"}, {"name": "rotate"}]});
        let own = "nameserver 192.0.2.1; search x.example; options ndots:1 rotate; ";
        let added = "nameserver 192.0.2.53; nameserver 192.0.2.1; search example.org x.example; options ndots:1 rotate; ";
        for (spec, own_network, dns, expected) in [
            (json!({}), true, dns, Some(cluster)),
            (json!({}), true, None, None),
            (json!({}), false, dns, None),
            (
                json!({"dnsPolicy": "ClusterFirstWithHostNet"}),
                false,
                dns,
                Some(cluster),
            ),
            (json!({"dnsPolicy": "Default"}), true, dns, None),
            (
                json!({"dnsPolicy": "None", "dnsConfig": config}),
                true,
                dns,
                Some(own),
            ),
            (
                json!({"dnsPolicy": "Default", "dnsConfig": config}),
                true,
                dns,
                Some(added),
            ),
        ] {
            let text = of(spec.clone(), own_network, dns);
            assert_eq!(text.as_deref(), expected, "{spec} {own_network}");
        }
    }

    #[tokio::test]
    async fn services_count_once_all_of_a_series_have_come() {
        let services = ClusterServices::open(false).unwrap();
        let names = |services: &ClusterServices| {
            let wanted = services.wanted.borrow();
            let all = wanted
                .services
                .as_ref()
                .map(|all| all.keys().map(|key| key.1.clone()));
            all.map(|all| all.collect::<Vec<_>>().join(" "))
        };
        let json = |name: &str| {
            json!({"namespace": "team", "name": name, "address": null, "externalName": null,
                "affinitySeconds": null, "ports": [], "groups": []})
            .to_string()
        };
        let change =
            |begins: bool, complete: bool, put: &[&str], removed: &[&str]| ServiceChanges {
                begins,
                complete,
                services_json: put.iter().map(|name| json(name)).collect(),
                removed: removed.iter().map(|name| format!("team/{name}")).collect(),
            };
        services.take(change(true, false, &["a", "b"], &[]));
        assert_eq!(names(&services), None);
        services.take(change(false, true, &["c"], &[]));
        assert_eq!(names(&services).as_deref(), Some("a b c"));
        services.take(change(false, true, &["d"], &["a"]));
        assert_eq!(names(&services).as_deref(), Some("b c d"));
        // Another session: what it does not name is gone, but only when it has named everything.
        services.take(change(true, false, &["d"], &[]));
        assert_eq!(names(&services).as_deref(), Some("b c d"));
        services.take(change(false, true, &[], &[]));
        assert_eq!(names(&services).as_deref(), Some("d"));
    }
}
