//! The headless Service of each replica: the DNS name under which the other replicas find it.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use resources::names;
use resources::training::ReplicaType;

use super::plan::{ParsedTrainingJob, Replicas};
use super::pods::replica_labels;
use super::rendezvous::Ports;
use super::view::Details;
use crate::ownership::controller_reference;

/// The labels that all pods of a job have.
const OF_JOB: [&str; 2] = [names::JOB_NAME, names::OPERATOR_NAME];

/// The name of a replica's Service: that of its pod. The replicas of an MPIJob share one, in whose domain each has its
/// host name.
pub(crate) fn name(plan: &ParsedTrainingJob<'_>, role: ReplicaType, index: u32) -> String {
    match plan.job.details {
        Details::Mpi(_) => plan.name().to_owned(),
        _ => plan.pod_name(role, index),
    }
}

/// The Service of one replica.
pub(crate) fn service(
    plan: &ParsedTrainingJob<'_>,
    replicas: &Replicas<'_>,
    index: u32,
    ports: &Ports,
) -> Service {
    let shared = matches!(plan.job.details, Details::Mpi(_));
    let mut labels = replica_labels(plan, replicas.role, index);
    if shared {
        labels.retain(|key, _| OF_JOB.contains(&key.as_str()));
    }
    let mut selector = labels.clone();
    selector.remove(names::JOB_ROLE);
    Service {
        metadata: ObjectMeta {
            name: Some(name(plan, replicas.role, index)),
            namespace: plan.meta.namespace.clone(),
            labels: Some(labels),
            owner_references: Some(vec![controller_reference(
                &plan.kind.api_version(),
                plan.kind.kind,
                plan.meta,
            )]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            selector: Some(selector),
            ports: Some(service_ports(plan, replicas, index, ports)),
            // Replicas must find each other before any of them can be ready.
            publish_not_ready_addresses: Some(true),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// The main container's ports, and the rendezvous port if it is not among them.
fn service_ports(
    plan: &ParsedTrainingJob<'_>,
    replicas: &Replicas<'_>,
    index: u32,
    ports: &Ports,
) -> Vec<ServicePort> {
    let declared = replicas
        .main_container()
        .and_then(|container| container.ports.as_deref());
    let mut list: Vec<ServicePort> = declared
        .unwrap_or_default()
        .iter()
        .map(|port| ServicePort {
            name: Some(
                port.name
                    .clone()
                    .unwrap_or_else(|| format!("port-{}", port.container_port)),
            ),
            port: port.container_port,
            target_port: Some(IntOrString::Int(port.container_port)),
            protocol: port.protocol.clone(),
            ..ServicePort::default()
        })
        .collect();
    if list
        .iter()
        .all(|port| port.name.as_deref() != Some(plan.kind.port_name))
    {
        let number = ports.of(plan, replicas.role, index);
        list.push(ServicePort {
            name: Some(plan.kind.port_name.to_owned()),
            port: i32::from(number),
            target_port: Some(IntOrString::Int(i32::from(number))),
            ..ServicePort::default()
        });
    }
    list
}
