//! The objects that a RayService creates: its clusters, and the two Services through which the serving one is reached.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use resources::kinds::{RayCluster, WorkerGroupSpec};
use resources::names;
use serde_json::{Value, json};

use super::plan::{ParsedRayService, SpecChange, chosen_port, spec_hash};
use crate::action::{Action, DependentKind};
use crate::ownership::controller_reference;
use crate::pod_names;
use crate::ray::API_VERSION;
use crate::terms;

/// The kind of owners.
pub(crate) const KIND: &str = "RayService";
/// The ports of Ray Serve have this name, or one that begins with it and a hyphen.
const SERVE_PORT: &str = "serve";

/// A name for a cluster that is made now, unlike those of earlier ones.
pub(crate) fn cluster_name(
    service: &ParsedRayService<'_>,
    taken: &[&str],
    now: Timestamp,
) -> String {
    let uid = service.meta.uid.as_deref().unwrap_or_default();
    let second = u32::try_from(now.as_second() & i64::from(u32::MAX)).unwrap_or_default();
    let numbers = (0..=u32::MAX).map(|more| second.wrapping_add(more));
    let mut named = numbers.map(|number| pod_names::numbered(service.name(), "", uid, number));
    let free = named.find(|name| !taken.contains(&name.as_str()));
    free.unwrap_or_default()
}

fn origin(service: &ParsedRayService<'_>) -> BTreeMap<String, String> {
    BTreeMap::from([
        (names::RAY_ORIGIN_NAME.to_owned(), service.name().to_owned()),
        (names::RAY_ORIGIN_KIND.to_owned(), KIND.to_owned()),
    ])
}

/// The service's cluster of this name.
pub(crate) fn cluster(service: &ParsedRayService<'_>, name: &str) -> RayCluster {
    let mut spec = service.cluster_spec();
    let hashes = hashes(service);
    let origin = origin(service);
    let groups = spec.worker_group_specs.iter_mut().flatten();
    for group in groups {
        mark(group, &origin);
    }
    if let Some(template) = &mut spec.head_group_spec.template {
        let meta = template.metadata.get_or_insert_default();
        meta.labels.get_or_insert_default().extend(origin.clone());
    }
    let mut labels = service.meta.labels.clone().unwrap_or_default();
    labels.remove(names::USER);
    labels.extend(origin);
    let mut annotations = terms::of_gang(service.meta);
    let queue = terms::queue(service.meta);
    annotations.extend(queue.map(|queue| (names::QUEUE_NAME.to_owned(), queue)));
    annotations.extend(hashes);
    RayCluster {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: service.meta.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![controller_reference(API_VERSION, KIND, service.meta)]),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

fn mark(group: &mut WorkerGroupSpec, origin: &BTreeMap<String, String>) {
    let meta = group.template.metadata.get_or_insert_default();
    meta.labels.get_or_insert_default().extend(origin.clone());
}

/// The annotations by which a cluster's spec is compared later.
fn hashes(service: &ParsedRayService<'_>) -> [(String, String); 2] {
    let spec = service.cluster_spec();
    let groups = spec.worker_group_specs.as_ref().map_or(0, Vec::len);
    [
        (names::RAY_SPEC_HASH.to_owned(), spec_hash(&spec)),
        (names::RAY_WORKER_GROUPS.to_owned(), groups.to_string()),
    ]
}

/// The change of a cluster that serves, or will, by which it follows the numbers of workers and gets further groups. The
/// numbers of an autoscaled cluster are its autoscaler's, but for their bounds.
pub(crate) fn follow(service: &ParsedRayService<'_>, cluster: &RayCluster) -> Option<Action> {
    let change = service.compare(cluster);
    if change == SpecChange::Another {
        return None;
    }
    let spec = service.cluster_spec();
    let scales = spec.enable_in_tree_autoscaling == Some(true);
    let wanted = spec.worker_group_specs.unwrap_or_default();
    let known = cluster.spec.worker_group_specs.as_deref();
    let known = known.unwrap_or_default();
    let mut groups = known.to_vec();
    for (group, wanted) in groups.iter_mut().zip(&wanted) {
        group.min_replicas = wanted.min_replicas;
        group.max_replicas = wanted.max_replicas;
        if !scales {
            group.replicas = wanted.replicas;
        }
    }
    let origin = origin(service);
    for group in wanted.iter().skip(known.len()) {
        let mut group = group.clone();
        mark(&mut group, &origin);
        groups.push(group);
    }
    if groups == known && change == SpecChange::Nothing {
        return None;
    }
    let annotations: BTreeMap<String, String> = hashes(service).into_iter().collect();
    Some(Action::Change {
        kind: DependentKind::RayCluster,
        name: cluster.metadata.name.clone().unwrap_or_default(),
        uid: cluster.metadata.uid.clone().unwrap_or_default(),
        patch: json!({"metadata": {"annotations": annotations}, "spec": {"workerGroupSpecs": groups}}),
    })
}

/// The Service of the serving cluster's head.
pub(crate) fn head_service(service: &ParsedRayService<'_>, cluster: &RayCluster) -> Service {
    let cluster_name = cluster.metadata.name.clone().unwrap_or_default();
    let endpoints = cluster.status.as_ref();
    let endpoints = endpoints.and_then(|status| status.endpoints.clone());
    let ports = endpoints.unwrap_or_default().into_iter();
    let ports = ports.filter_map(|(name, number)| Some(port(&name, number.parse().ok()?, None)));
    let mut labels = origin(service);
    labels.insert(names::RAY_NODE_TYPE.to_owned(), "head".to_owned());
    let selector = [
        (names::RAY_CLUSTER, cluster_name.as_str()),
        (names::RAY_NODE_TYPE, "head"),
    ];
    let spec = ServiceSpec {
        cluster_ip: Some("None".to_owned()),
        selector: Some(texts(&selector)),
        ports: Some(ports.collect()),
        publish_not_ready_addresses: Some(true),
        ..ServiceSpec::default()
    };
    let name = format!("{}-head-svc", service.name());
    object(service, name, labels, BTreeMap::new(), spec)
}

/// The name of the Service through which the applications are reached.
pub(crate) fn serve_service_name(service: &ParsedRayService<'_>) -> String {
    let given = service.spec.serve_service.as_ref();
    let given = given.and_then(|given| given.metadata.name.clone());
    given
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| format!("{}-serve-svc", service.name()))
}

/// The Service through which the applications are reached.
pub(crate) fn serve_service(service: &ParsedRayService<'_>, cluster: &RayCluster) -> Service {
    let cluster_name = cluster.metadata.name.clone().unwrap_or_default();
    let template = service.spec.serve_service.clone().unwrap_or_default();
    let mut labels = template.metadata.labels.unwrap_or_default();
    labels.extend(origin(service));
    labels.insert(
        names::RAY_SERVE.to_owned(),
        format!("{}-serve", service.name()),
    );
    let mut spec = template.spec.unwrap_or_default();
    let selector = [
        (names::RAY_CLUSTER, cluster_name.as_str()),
        (names::RAY_SERVE, "true"),
    ];
    spec.selector = Some(texts(&selector));
    if spec.type_.is_none() {
        let type_ = &service.spec.ray_cluster_config.head_group_spec.service_type;
        spec.type_.clone_from(type_);
    }
    let mut ports = serve_ports(service, cluster);
    for given in spec.ports.take().unwrap_or_default() {
        let known = ports.iter_mut().find(|known| known.name == given.name);
        match known {
            Some(known) => {
                let target = known.target_port.take();
                *known = given;
                if chosen_port(cluster).is_some() || known.target_port.is_none() {
                    known.target_port = target;
                }
            }
            None => ports.push(given),
        }
    }
    spec.ports = Some(ports);
    let annotations = template.metadata.annotations.unwrap_or_default();
    object(
        service,
        serve_service_name(service),
        labels,
        annotations,
        spec,
    )
}

/// The ports named `serve` and `serve-...` of the head's container; without one, HTTP.
fn serve_ports(service: &ParsedRayService<'_>, cluster: &RayCluster) -> Vec<ServicePort> {
    let template = service
        .spec
        .ray_cluster_config
        .head_group_spec
        .template
        .as_ref();
    let pod = template.and_then(|template| template.spec.as_ref());
    let container = pod.and_then(|pod| pod.containers.first());
    let declared = container.and_then(|container| container.ports.as_ref());
    let is_serving = |name: &str| {
        let rest = name.strip_prefix(SERVE_PORT);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let chosen = chosen_port(cluster);
    let target = |name: &str| match name {
        SERVE_PORT => chosen,
        "serve-grpc" => chosen.map(|port| port.saturating_add(1)),
        _ => None,
    };
    let ports = declared.into_iter().flatten().filter_map(|declared| {
        let name = declared.name.as_deref().filter(|name| is_serving(name))?;
        let number = u16::try_from(declared.container_port).ok()?;
        Some(port(name, number, target(name)))
    });
    let mut ports: Vec<ServicePort> = ports.collect();
    if ports.is_empty() {
        ports.push(port(SERVE_PORT, service.own_http_port(), chosen));
    }
    ports
}

fn port(name: &str, number: u16, target: Option<u16>) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: i32::from(number),
        protocol: Some("TCP".to_owned()),
        target_port: Some(IntOrString::Int(i32::from(target.unwrap_or(number)))),
        ..ServicePort::default()
    }
}

fn texts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn object(
    service: &ParsedRayService<'_>,
    name: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    spec: ServiceSpec,
) -> Service {
    Service {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: service.meta.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations).filter(|all| !all.is_empty()),
            owner_references: Some(vec![controller_reference(API_VERSION, KIND, service.meta)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// The change that makes an existing Service lead where the wanted one does, if it does not. A port keeps the node port
/// that it got.
pub(crate) fn redirect(known: &Service, wanted: &Service) -> Option<Action> {
    let (old, new) = (known.spec.as_ref()?, wanted.spec.as_ref()?);
    let old_ports = old.ports.as_deref().unwrap_or_default();
    let mut ports = new.ports.clone().unwrap_or_default();
    for port in &mut ports {
        let before = old_ports.iter().find(|before| before.name == port.name);
        if let Some(before) = before {
            port.node_port = port.node_port.or(before.node_port);
            port.protocol = port.protocol.take().or_else(|| before.protocol.clone());
            port.target_port = port
                .target_port
                .take()
                .or_else(|| before.target_port.clone());
        }
    }
    if old.selector == new.selector && old_ports == ports {
        return None;
    }
    // The selector has the same keys for every cluster, but for keys that a user added.
    let mut selector: BTreeMap<String, Value> = BTreeMap::new();
    let added = old.selector.iter().flatten();
    selector.extend(added.map(|(key, _)| (key.clone(), Value::Null)));
    let own = new.selector.iter().flatten();
    selector.extend(own.map(|(key, value)| (key.clone(), value.as_str().into())));
    Some(Action::Change {
        kind: DependentKind::Service,
        name: known.metadata.name.clone().unwrap_or_default(),
        uid: known.metadata.uid.clone().unwrap_or_default(),
        patch: json!({"metadata": {}, "spec": {"selector": selector, "ports": ports}}),
    })
}

/// The cluster that a Service leads to.
pub(crate) fn leads_to(service: &Service) -> Option<&str> {
    let selector = service.spec.as_ref()?.selector.as_ref()?;
    selector.get(names::RAY_CLUSTER).map(String::as_str)
}
