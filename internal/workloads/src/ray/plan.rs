//! Reads a RayCluster's spec: sets KubeRay's defaults, names the groups, and refuses an invalid spec with its field.
//! All later code works on a [`ParsedRayCluster`].

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use resources::kinds::{RayCluster, WorkerGroupSpec};
use resources::names as shared;
use resources::numbers::GANG_MEMBERS_MAX;

use super::names;

/// The `managedBy` value for which this controller works, as it does if the field is absent.
pub(crate) const MANAGED_BY: &str = "ray.io/kuberay-operator";
/// The container of a head whose template is absent.
const HEAD_CONTAINER: &str = "ray-head";

/// Why a cluster cannot run: the field and its accepted values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidCluster {
    #[error(
        "spec.headGroupSpec.template: give one, because there is no worker group whose template the head could use"
    )]
    NoHeadTemplate,
    #[error("{field}.template.spec.containers: give at least one container: the first runs Ray")]
    NoContainer { field: String },
    #[error(
        "spec.workerGroupSpecs: {pods} workers at the least; a cluster may have at most {GANG_MEMBERS_MAX} pods: lower \
         replicas, minReplicas or numOfHosts"
    )]
    TooManyPods { pods: u64 },
    #[error(
        "spec.workerGroupSpecs[{index}].groupName: {name:?} occurs twice; give each group its own name"
    )]
    SameName { index: usize, name: String },
}

/// What `ray start` and the pod of a group follow from.
pub(crate) struct RayGroup<'a> {
    /// `headgroup`, or the worker group's name.
    pub(crate) name: String,
    pub(crate) params: BTreeMap<String, String>,
    /// What Ray counts, in place of the container's resources.
    pub(crate) resources: Option<&'a BTreeMap<String, String>>,
    /// Ray's own labels of the node.
    pub(crate) labels: Option<&'a BTreeMap<String, String>>,
    pub(crate) template: Cow<'a, PodTemplateSpec>,
}

/// A group of workers.
pub(crate) struct WorkerGroup<'a> {
    pub(crate) group: RayGroup<'a>,
    /// The replicas that should exist now.
    pub(crate) replicas: u32,
    /// The replicas that must start together with the head.
    pub(crate) least: u32,
    /// The bounds in the spec.
    pub(crate) min: u32,
    pub(crate) max: u32,
    /// Pods of one replica.
    pub(crate) hosts: u32,
    /// True if the group is to have no pods.
    pub(crate) suspended: bool,
    /// Pods to delete by name; no new pod gets such a name.
    pub(crate) to_delete: BTreeSet<&'a str>,
}

impl WorkerGroup<'_> {
    pub(crate) fn pods(&self) -> u32 {
        self.replicas.saturating_mul(self.hosts)
    }
}

/// A cluster's parsed spec.
pub(crate) struct ParsedRayCluster<'a> {
    pub(crate) meta: &'a ObjectMeta,
    pub(crate) head: RayGroup<'a>,
    pub(crate) workers: Vec<WorkerGroup<'a>>,
    pub(crate) suspend: bool,
    /// True if no other head takes the place of one that has started.
    pub(crate) keeps_head: bool,
    /// True if Ray's autoscaler decides how many workers there are.
    pub(crate) autoscaling: bool,
    pub(crate) autoscaler_options: Option<&'a serde_json::Value>,
    pub(crate) service_annotations: Option<&'a BTreeMap<String, String>>,
}

impl RayGroup<'_> {
    /// The container that runs Ray: the first.
    pub(crate) fn container(&self) -> Option<&Container> {
        self.template.spec.as_ref()?.containers.first()
    }
}

impl<'a> ParsedRayCluster<'a> {
    /// Reads the spec, or returns the invalid field.
    pub(crate) fn of(cluster: &'a RayCluster) -> Result<ParsedRayCluster<'a>, InvalidCluster> {
        let spec = &cluster.spec;
        let autoscaling = spec.enable_in_tree_autoscaling == Some(true);
        let groups = spec.worker_group_specs.as_deref().unwrap_or_default();
        let mut workers: Vec<WorkerGroup<'a>> = Vec::new();
        for (index, group) in groups.iter().enumerate() {
            let read = worker_group(index, group, autoscaling)?;
            if workers
                .iter()
                .any(|known| known.group.name == read.group.name)
            {
                let name = read.group.name;
                return Err(InvalidCluster::SameName { index, name });
            }
            workers.push(read);
        }
        let head = &spec.head_group_spec;
        let template = match &head.template {
            Some(template) => Cow::Borrowed(template),
            None => Cow::Owned(template_for_head(groups.first())?),
        };
        let head = RayGroup {
            name: names::HEAD_GROUP.to_owned(),
            params: params(head.ray_start_params.as_ref()),
            resources: head.resources.as_ref(),
            labels: head.labels.as_ref(),
            template,
        };
        if head.container().is_none() {
            let field = "spec.headGroupSpec".to_owned();
            return Err(InvalidCluster::NoContainer { field });
        }
        let parsed = ParsedRayCluster {
            meta: &cluster.metadata,
            head,
            workers,
            suspend: spec.suspend == Some(true),
            keeps_head: keeps_head(&cluster.metadata),
            autoscaling,
            autoscaler_options: spec.autoscaler_options.as_ref(),
            service_annotations: spec.head_service_annotations.as_ref(),
        };
        parsed.check_size()?;
        Ok(parsed)
    }

    /// Refuses a cluster with more pods than a gang may have: the cost of all later code is proportional to the pods.
    fn check_size(&self) -> Result<(), InvalidCluster> {
        let pods = self.workers.iter().map(|group| u64::from(group.pods()));
        let pods = pods.fold(0, u64::saturating_add);
        if pods < u64::try_from(GANG_MEMBERS_MAX).unwrap_or_default() {
            return Ok(());
        }
        Err(InvalidCluster::TooManyPods { pods })
    }

    pub(crate) fn name(&self) -> &'a str {
        self.meta.name.as_deref().unwrap_or_default()
    }

    /// The workers' pods that should exist now.
    pub(crate) fn worker_pods(&self) -> u32 {
        let pods = self.workers.iter().map(WorkerGroup::pods);
        pods.fold(0, u32::saturating_add)
    }

    /// The pods that must start together: the head and each group's least workers.
    pub(crate) fn least_members(&self) -> u32 {
        let pods = self.workers.iter();
        pods.map(|group| group.least.saturating_mul(group.hosts))
            .fold(1, u32::saturating_add)
    }
}

/// Whether `managedBy` names another controller for this cluster.
pub(crate) fn managed_elsewhere(cluster: &RayCluster) -> bool {
    let manager = cluster.spec.managed_by.as_deref();
    manager.is_some_and(|manager| manager != MANAGED_BY)
}

fn worker_group(
    index: usize,
    spec: &WorkerGroupSpec,
    autoscaling: bool,
) -> Result<WorkerGroup<'_>, InvalidCluster> {
    let count = |value: Option<i32>| value.map(|count| u32::try_from(count).unwrap_or_default());
    let min = count(spec.min_replicas);
    let max = count(spec.max_replicas).unwrap_or(u32::MAX);
    let replicas = match spec.suspend {
        Some(true) => 0,
        _ => {
            let least = min.unwrap_or_default().min(max);
            count(spec.replicas).unwrap_or(least).clamp(least, max)
        }
    };
    // Without the autoscaler, a group that states no minimum is meant to have its replicas.
    let least = min.unwrap_or(if autoscaling { 0 } else { replicas });
    let to_delete = spec.scale_strategy.iter();
    let to_delete = to_delete.flat_map(|strategy| &strategy.workers_to_delete);
    let name = spec.group_name.clone().filter(|name| !name.is_empty());
    let read = WorkerGroup {
        group: RayGroup {
            name: name.unwrap_or_else(|| format!("group{index}")),
            params: params(spec.ray_start_params.as_ref()),
            resources: spec.resources.as_ref(),
            labels: spec.labels.as_ref(),
            template: Cow::Borrowed(&spec.template),
        },
        replicas,
        least: least.min(replicas),
        min: min.unwrap_or_default(),
        max,
        hosts: count(spec.num_of_hosts).unwrap_or(1).max(1),
        suspended: spec.suspend == Some(true),
        to_delete: to_delete.map(String::as_str).collect(),
    };
    match read.group.container() {
        Some(_) => Ok(read),
        None => Err(InvalidCluster::NoContainer {
            field: format!("spec.workerGroupSpecs[{index}]"),
        }),
    }
}

/// Whether the cluster's annotation keeps the head.
fn keeps_head(meta: &ObjectMeta) -> bool {
    let annotations = meta.annotations.as_ref();
    annotations
        .and_then(|all| all.get(shared::RAY_KEEP_HEAD))
        .is_some_and(|value| value == "true")
}

/// The parameters as texts.
fn params(given: Option<&BTreeMap<String, IntOrString>>) -> BTreeMap<String, String> {
    let text = |value: &IntOrString| match value {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(text) => text.clone(),
    };
    let pairs = given.into_iter().flatten();
    pairs
        .map(|(name, value)| (name.clone(), text(value)))
        .collect()
}

/// The template of a head that has none: the first worker group's, without its resources and its own command.
fn template_for_head(group: Option<&WorkerGroupSpec>) -> Result<PodTemplateSpec, InvalidCluster> {
    let mut template = group
        .ok_or(InvalidCluster::NoHeadTemplate)?
        .template
        .clone();
    if let Some(spec) = &mut template.spec {
        spec.containers.truncate(1);
        for container in &mut spec.containers {
            container.name = HEAD_CONTAINER.to_owned();
            container.resources = None;
            container.command = None;
            container.args = None;
            container.ports = None;
        }
    }
    Ok(template)
}
