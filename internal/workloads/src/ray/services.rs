//! The head's Service: the name under which workers and clients find the head.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::names;
use super::plan::ParsedRayCluster;
use super::pods::common_labels;
use super::ports::{HeadPort, HeadPorts};
use crate::ownership::controller_reference;

/// The Service of the head: headless, as KubeRay's.
pub(crate) fn head(cluster: &ParsedRayCluster<'_>, ports: &HeadPorts) -> Service {
    let labels = common_labels(cluster.name(), names::HEAD);
    let owner = controller_reference(names::API_VERSION, names::KIND, cluster.meta);
    let own = HeadPort::ALL.into_iter();
    let own = own.filter_map(|port| Some((port.name()?, ports.get(port))));
    let mut listed: Vec<ServicePort> = own
        .chain([("serve", ports.serve())])
        .map(|(name, number)| port(name, i32::from(number)))
        .collect();
    // A port that the user's container declares under another name, or Serve's, if it declares that.
    let declared = cluster.head.container();
    let declared = declared
        .into_iter()
        .flat_map(|container| container.ports.iter().flatten());
    for one in declared {
        let Some(name) = one.name.as_deref() else {
            continue;
        };
        match listed
            .iter_mut()
            .find(|known| known.name.as_deref() == Some(name))
        {
            Some(known) if name == "serve" && !ports.chooses_serve() => {
                *known = port(name, one.container_port)
            }
            Some(_) => {}
            None => listed.push(port(name, one.container_port)),
        }
    }
    Service {
        metadata: ObjectMeta {
            name: Some(names::head_service(cluster.name())),
            namespace: cluster.meta.namespace.clone(),
            labels: Some(labels.clone()),
            annotations: cluster.service_annotations.cloned(),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            selector: Some(labels),
            ports: Some(listed),
            // Workers must find the head before it is ready.
            publish_not_ready_addresses: Some(true),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn port(name: &str, number: i32) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: number,
        target_port: Some(IntOrString::Int(number)),
        ..ServicePort::default()
    }
}
