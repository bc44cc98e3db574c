//! Creates the pods of a cluster from its groups' templates.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvVar, ExecAction, Pod, PodSpec, Probe, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::{amounts, names as shared};

use super::plan::{ParsedRayCluster, RayGroup, WorkerGroup};
use super::ports::{HeadPort, HeadPorts};
use super::{autoscaler, command, names};
use crate::ownership::controller_reference;
use crate::terms;

/// The container that waits for the head before a worker starts. KubeRay's name.
const WAIT_CONTAINER: &str = "wait-gcs-ready";
/// Ray's directory if the parameter `temp-dir` names no other.
const TEMP_DIR: &str = "/tmp/ray";

/// The decision's inputs that every pod needs.
#[derive(Clone, Copy)]
pub(crate) struct PodMaker<'a> {
    pub(crate) cluster: &'a ParsedRayCluster<'a>,
    pub(crate) ports: &'a HeadPorts,
    pub(crate) scheduler_name: &'a str,
}

/// What distinguishes a pod from the others of its cluster.
struct Place<'a> {
    name: String,
    node_type: &'static str,
    group: &'a RayGroup<'a>,
    /// The address of the cluster's state, as this pod reaches it.
    address: String,
    start: String,
    labels: Vec<(&'static str, String)>,
}

impl PodMaker<'_> {
    /// The head.
    pub(crate) fn head(&self) -> Pod {
        let group = &self.cluster.head;
        let mut pod = self.pod(Place {
            name: names::head_pod(self.cluster.name()),
            node_type: names::HEAD,
            group,
            address: format!("127.0.0.1:{}", self.ports.get(HeadPort::Gcs)),
            start: command::of_head(group, self.ports, self.cluster.autoscaling),
            labels: Vec::new(),
        });
        if let Some(container) = first_container(&mut pod) {
            declare_ports(container, self.ports);
        }
        let containers = pod.spec.as_mut().map(|spec| &mut spec.containers);
        let mut containers = containers.into_iter().flatten();
        if let Some(submitter) = containers.find(|known| known.name == shared::RAY_SUBMITTER) {
            let dashboard = format!("127.0.0.1:{}", self.ports.get(HeadPort::Dashboard));
            set_env(submitter, "RAY_DASHBOARD_ADDRESS", &dashboard);
        }
        if let Some(spec) = pod.spec.as_mut().filter(|_| self.cluster.autoscaling) {
            autoscaler::add_to(spec, self.cluster, self.ports);
        }
        pod
    }

    /// One host of a replica.
    pub(crate) fn worker(&self, group: &WorkerGroup<'_>, replica: u32, host: u32) -> Pod {
        let head = names::head_host(self.cluster);
        let address = format!("{head}:{}", self.ports.get(HeadPort::Gcs));
        let mut labels = vec![(names::REPLICA_INDEX, replica.to_string())];
        if group.hosts > 1 {
            labels.push((names::REPLICA_NAME, names::replica(group, replica)));
            labels.push((names::HOST_INDEX, host.to_string()));
        }
        let mut pod = self.pod(Place {
            name: names::worker_pod(self.cluster, group, replica, host),
            node_type: names::WORKER,
            group: &group.group,
            start: command::of_worker(&group.group, &address, self.ports),
            address,
            labels,
        });
        let wait = first_container(&mut pod).map(|container| {
            set_env(container, "FQ_RAY_IP", &head);
            set_env(
                container,
                "RAY_IP",
                &names::head_service(self.cluster.name()),
            );
            wait_container(container, &head, self.ports)
        });
        if let (Some(spec), Some(wait)) = (&mut pod.spec, wait) {
            spec.init_containers.get_or_insert_default().push(wait);
            // Ray's autoscaler takes a worker that starts anew for the one that it knows.
            if self.cluster.autoscaling {
                spec.restart_policy = Some("Never".to_owned());
            }
        }
        pod
    }

    fn pod(&self, place: Place<'_>) -> Pod {
        let cluster = self.cluster;
        let template_meta = place.group.template.metadata.clone().unwrap_or_default();
        let mut spec = place.group.template.spec.clone().unwrap_or_default();
        let keep = keeps_command(cluster.meta) || keeps_command(&template_meta);
        if let Some(container) = spec.containers.first_mut() {
            command::set(container, &place.start, keep);
            for (name, value) in self.variables(&place) {
                set_env(container, name, &value);
            }
            if cluster.autoscaling && autoscaler::is_second(cluster) {
                set_env(container, autoscaler::VERSION_2, "1");
            }
            probe(container, place.group);
        }
        complete(&mut spec, &place.name, self.scheduler_name);
        let mut labels = template_meta.labels.unwrap_or_default();
        labels.extend(self.labels(&place));
        let mut annotations = template_meta.annotations.unwrap_or_default();
        annotations.insert(shared::GROUP_NAME.to_owned(), cluster.name().to_owned());
        annotations.insert(shared::TASK_SPEC.to_owned(), place.group.name.clone());
        terms::run_for(cluster.meta, &mut labels, &mut annotations);
        let owner = controller_reference(names::API_VERSION, names::KIND, cluster.meta);
        Pod {
            metadata: ObjectMeta {
                name: Some(place.name),
                namespace: cluster.meta.namespace.clone(),
                labels: Some(labels),
                annotations: Some(annotations),
                finalizers: template_meta.finalizers,
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            spec: Some(spec),
            status: None,
        }
    }

    fn labels(&self, place: &Place<'_>) -> BTreeMap<String, String> {
        let cluster = self.cluster.name();
        let mut labels = common_labels(cluster, place.node_type);
        labels.insert(names::IS_RAY_NODE.to_owned(), "yes".to_owned());
        labels.insert(names::GROUP.to_owned(), place.group.name.clone());
        let more = place.labels.iter();
        labels.extend(more.map(|(key, value)| ((*key).to_owned(), value.clone())));
        labels
    }

    fn variables(&self, place: &Place<'_>) -> [(&'static str, String); 8] {
        let meta = self.cluster.meta;
        [
            ("RAY_CLUSTER_NAME", self.cluster.name().to_owned()),
            (
                "RAY_CLUSTER_NAMESPACE",
                meta.namespace.clone().unwrap_or_default(),
            ),
            ("RAY_CLOUD_INSTANCE_ID", place.name.clone()),
            ("RAY_NODE_TYPE_NAME", place.group.name.clone()),
            ("KUBERAY_GEN_RAY_START_CMD", place.start.clone()),
            ("RAY_PORT", self.ports.get(HeadPort::Gcs).to_string()),
            ("RAY_ADDRESS", place.address.clone()),
            ("RAY_USAGE_STATS_KUBERAY_IN_USE", "1".to_owned()),
        ]
    }
}

/// The labels that the objects of one node type have, and by which the head's service finds it.
pub(crate) fn common_labels(cluster: &str, node_type: &str) -> BTreeMap<String, String> {
    let identifier = format!("{cluster}-{node_type}");
    let own = [
        (names::CLUSTER, cluster),
        (names::NODE_TYPE, node_type),
        (names::IDENTIFIER, identifier.as_str()),
    ];
    let all = own.into_iter().chain(names::COMMON);
    all.map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn keeps_command(meta: &ObjectMeta) -> bool {
    let annotations = meta.annotations.as_ref();
    annotations
        .and_then(|all| all.get(names::OVERWRITE_COMMAND))
        .is_some_and(|value| value == "true")
}

fn first_container(pod: &mut Pod) -> Option<&mut Container> {
    pod.spec.as_mut()?.containers.first_mut()
}

fn complete(spec: &mut PodSpec, name: &str, scheduler_name: &str) {
    if spec.hostname.is_none() && name.len() <= crate::pod_names::NAME_MAX {
        spec.hostname = Some(name.to_owned());
    }
    if spec
        .scheduler_name
        .as_deref()
        .unwrap_or_default()
        .is_empty()
    {
        spec.scheduler_name = Some(scheduler_name.to_owned());
    }
}

/// Sets a variable that the container lacks.
fn set_env(container: &mut Container, name: &str, value: &str) {
    let env = container.env.get_or_insert_default();
    if env.iter().all(|known| known.name != name) {
        env.push(EnvVar {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            ..EnvVar::default()
        });
    }
}

/// Corrects the numbers of declared ports, and declares the head's others.
fn declare_ports(container: &mut Container, ports: &HeadPorts) {
    let declared = container.ports.get_or_insert_default();
    for port in HeadPort::ALL {
        let Some(name) = port.name() else { continue };
        let number = i32::from(ports.get(port));
        match declared
            .iter_mut()
            .find(|known| known.name.as_deref() == Some(name))
        {
            Some(known) => known.container_port = number,
            None => declared.push(ContainerPort {
                name: Some(name.to_owned()),
                container_port: number,
                ..ContainerPort::default()
            }),
        }
    }
    if ports.chooses_serve() {
        let mut serve = declared.iter_mut();
        if let Some(known) = serve.find(|known| known.name.as_deref() == Some("serve")) {
            known.container_port = i32::from(ports.serve());
        }
    }
}

/// Ready once the node's raylet runs. `ray start --block` ends with the raylet, so that no liveness probe is needed.
fn probe(container: &mut Container, group: &RayGroup<'_>) {
    if container.readiness_probe.is_some() {
        return;
    }
    let dir = group
        .params
        .get("temp-dir")
        .map_or(TEMP_DIR, String::as_str);
    let check = format!("test -S {dir}/session_latest/sockets/raylet");
    container.readiness_probe = Some(Probe {
        exec: Some(ExecAction {
            command: Some(vec!["/bin/bash".to_owned(), "-c".to_owned(), check]),
        }),
        period_seconds: Some(1),
        timeout_seconds: Some(5),
        failure_threshold: Some(5),
        ..Probe::default()
    });
}

/// The container that ends when the head listens: it has the image and the rights of the one that runs Ray.
fn wait_container(of: &Container, head: &str, ports: &HeadPorts) -> Container {
    let mut waits = vec![ports.get(HeadPort::Gcs)];
    waits.extend(Some(ports.get(HeadPort::Raylet)).filter(|port| *port > 0));
    let wait = |port: &u16| {
        format!("until (exec 3<>/dev/tcp/{head}/{port}) 2>/dev/null; do sleep 0.5; done")
    };
    let script: Vec<String> = waits.iter().map(wait).collect();
    Container {
        name: WAIT_CONTAINER.to_owned(),
        image: of.image.clone(),
        image_pull_policy: of.image_pull_policy.clone(),
        command: Some(["/bin/bash", "-c", "--"].map(str::to_owned).to_vec()),
        args: Some(vec![script.join("; ")]),
        env: of.env.clone(),
        env_from: of.env_from.clone(),
        resources: of.resources.as_ref().map(without_devices),
        security_context: of.security_context.clone(),
        volume_mounts: of.volume_mounts.clone(),
        ..Container::default()
    }
}

/// CPUs and memory only: waiting needs no GPU.
fn without_devices(resources: &ResourceRequirements) -> ResourceRequirements {
    let kept = |list: &Option<BTreeMap<String, Quantity>>| {
        let mut list = list.clone()?;
        list.retain(|name, _| name == amounts::CPU || name == amounts::MEMORY);
        Some(list)
    };
    ResourceRequirements {
        limits: kept(&resources.limits),
        requests: kept(&resources.requests),
        ..ResourceRequirements::default()
    }
}
