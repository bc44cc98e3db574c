//! Ray's own autoscaler beside the head: a container in the head's pod, and its rights. It reads the RayCluster and its
//! pods, and writes `replicas` and `workersToDelete`. Source: KubeRay 1.7, Ray 2.60.

use k8s_openapi::api::core::v1::{Container, EnvVar, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::names;
use super::plan::ParsedRayCluster;
use super::pods::common_labels;
use super::ports::{HeadPort, HeadPorts};
use crate::account_rights::{RightsOf, rule};
use crate::action::Action;
use crate::ownership::controller_reference;
use crate::pod_names;

/// The container. KubeRay's name.
const CONTAINER: &str = "autoscaler";
/// The variable by which Ray runs the second version of its autoscaler.
pub(crate) const VERSION_2: &str = "RAY_enable_autoscaler_v2";
/// Seconds between two runs of the program, which ends after a few requests that failed.
const AGAIN_AFTER: u32 = 5;

/// Whether the cluster's autoscaler is Ray's second one. The first knows nodes by their addresses, so it must not be
/// chosen where pods share their node's.
pub(crate) fn is_second(cluster: &ParsedRayCluster<'_>) -> bool {
    option::<String>(cluster, "version").is_none_or(|version| version != "v1")
}

/// Adds the container to the head's pod.
pub(crate) fn add_to(pod: &mut PodSpec, cluster: &ParsedRayCluster<'_>, ports: &HeadPorts) {
    let Some(ray) = pod.containers.first() else {
        return;
    };
    let container = container(cluster, ray, ports);
    pod.containers.retain(|known| known.name != CONTAINER);
    pod.containers.push(container);
    pod.service_account_name = Some(account(cluster));
    // A container that ends is started again beside the other, unless Ray must not start again.
    if !cluster.keeps_head {
        pod.restart_policy = Some("Always".to_owned());
    }
}

fn container(cluster: &ParsedRayCluster<'_>, ray: &Container, ports: &HeadPorts) -> Container {
    let meta = cluster.meta;
    let namespace = meta.namespace.clone().unwrap_or_default();
    let program = format!(
        "ray kuberay-autoscaler --cluster-name {} --cluster-namespace {namespace} --gcs-address 127.0.0.1:{}",
        cluster.name(),
        ports.get(HeadPort::Gcs),
    );
    let script = format!(
        "trap 'kill $!; exit 0' TERM; while :; do {program} & wait $!; sleep {AGAIN_AFTER} & wait $!; done"
    );
    let mut env = ray.env.clone().unwrap_or_default();
    let variables = [
        ("RAY_CLUSTER_NAME", cluster.name().to_owned()),
        ("RAY_CLUSTER_NAMESPACE", namespace),
        ("RAY_HEAD_POD_NAME", names::head_pod(cluster.name())),
        ("KUBERAY_CRD_VER", "v1".to_owned()),
    ];
    let chosen: Vec<EnvVar> = option(cluster, "env").unwrap_or_default();
    let ours = variables.map(|(name, value)| EnvVar {
        name: name.to_owned(),
        value: Some(value),
        ..EnvVar::default()
    });
    for variable in chosen.into_iter().chain(ours) {
        env.retain(|known| known.name != variable.name);
        env.push(variable);
    }
    Container {
        name: CONTAINER.to_owned(),
        image: option(cluster, "image").or_else(|| ray.image.clone()),
        image_pull_policy: option(cluster, "imagePullPolicy").or(ray.image_pull_policy.clone()),
        command: Some(["/bin/bash", "-c", "--"].map(str::to_owned).to_vec()),
        args: Some(vec![script]),
        env: Some(env),
        env_from: option(cluster, "envFrom").or(ray.env_from.clone()),
        working_dir: ray.working_dir.clone(),
        resources: option(cluster, "resources"),
        security_context: option(cluster, "securityContext").or(ray.security_context.clone()),
        volume_mounts: option(cluster, "volumeMounts").or(ray.volume_mounts.clone()),
        ..Container::default()
    }
}

/// A member of `autoscalerOptions`; none if it is absent or cannot be read.
fn option<T: DeserializeOwned>(cluster: &ParsedRayCluster<'_>, key: &str) -> Option<T> {
    let value: &Value = cluster.autoscaler_options?.get(key)?;
    serde_json::from_value(value.clone()).ok()
}

/// The service account of the head's pod: the template's, or one of the cluster's name.
fn account(cluster: &ParsedRayCluster<'_>) -> String {
    let spec = cluster.head.template.spec.as_ref();
    let given = spec.and_then(|spec| spec.service_account_name.clone());
    given
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| cluster.name().to_owned())
}

/// What the autoscaler needs before the head starts: a service account with the right to read the namespace's pods, and
/// to change this cluster alone.
pub(crate) fn rights(cluster: &ParsedRayCluster<'_>) -> Vec<Action> {
    // The uid in the name is not known before the cluster exists: no other role of this name, whose rights the account
    // would get, can have been made for it.
    let uid = cluster.meta.uid.as_deref().unwrap_or_default();
    let role = pod_names::numbered(cluster.name(), "-autoscaler", uid, 0);
    let account = account(cluster);
    let rights = RightsOf {
        account: &account,
        is_own: account == cluster.name(),
        role: &role,
    };
    let own = vec![cluster.name().to_owned()];
    let rules = vec![
        rule("", "pods", &["get", "list", "watch"], None),
        rule("ray.io", "rayclusters", &["get", "patch"], Some(own)),
    ];
    let all = rights.with(rules, |name| metadata(cluster, name));
    all.into_iter().map(Action::Create).collect()
}

fn metadata(cluster: &ParsedRayCluster<'_>, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: cluster.meta.namespace.clone(),
        labels: Some(common_labels(cluster.name(), names::HEAD)),
        owner_references: Some(vec![controller_reference(
            names::API_VERSION,
            names::KIND,
            cluster.meta,
        )]),
        ..ObjectMeta::default()
    }
}
