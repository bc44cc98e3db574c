//! A LeaderWorkerSet's pods and Services.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::leader_worker_set::{
    GROUP_INDEX, GROUP_KEY, GROUP_SIZE, KIND, LEADER_ADDRESS, LEADER_NAME, LEADER_WORKER, NAME,
    REVISION, SIZE, SUBGROUP_INDEX, SUBGROUP_KEY, SUBGROUP_POLICY, SUBGROUP_SIZE, WORKER_INDEX,
    WORKER_NUMBER,
};
use resources::names;

use super::API_VERSION;
use super::gang;
use super::groups::Group;
use super::plan::{GroupPlan, ParsedSet, subgroup_size};
use super::revisions::sha1_hex;
use crate::apps::add_volumes;
use crate::failure;
use crate::ownership::controller_reference;
use crate::pod_facts;
use crate::terms;

/// The numbers of the pods to create: workers may wait for their leader.
pub(crate) fn missing(template: &GroupPlan<'_>, group: Option<&Group<'_>>) -> Vec<u32> {
    let pod = |worker: u32| group.and_then(|group| group.pod(worker));
    let leader_ready = pod(0).is_some_and(pod_facts::is_ready);
    let most = if template.leader_first && !leader_ready {
        1
    } else {
        template.size
    };
    (0..most).filter(|worker| pod(*worker).is_none()).collect()
}

/// A pod of a group.
pub(crate) fn pod(set: &ParsedSet<'_>, template: &GroupPlan<'_>, index: u32, worker: u32) -> Pod {
    let given = template.of(worker);
    let meta = given.metadata.clone().unwrap_or_default();
    let mut labels = meta.labels.unwrap_or_default();
    let mut annotations = meta.annotations.unwrap_or_default();
    terms::inherit(set.meta, &mut labels, &mut annotations);
    // The gang has the queue.
    labels.remove(names::QUEUE_NAME);
    annotations.remove(names::QUEUE_NAME);
    let namespace = set.meta.namespace.as_deref().unwrap_or_default();
    let leader = set.leader_name(index);
    for (key, value) in [
        (NAME, set.name.to_owned()),
        (GROUP_INDEX, index.to_string()),
        (WORKER_INDEX, worker.to_string()),
        (GROUP_KEY, group_key(set, index)),
        (REVISION, template.revision.clone()),
    ] {
        labels.insert(key.to_owned(), value);
    }
    annotations.insert(SIZE.to_owned(), template.size.to_string());
    annotations.insert(
        names::GROUP_NAME.to_owned(),
        gang::name(set, index, &template.revision),
    );
    if worker > 0 {
        annotations.insert(LEADER_NAME.to_owned(), leader.clone());
    }
    if let Some(policy) = &template.template.sub_group_policy {
        let size = subgroup_size(policy).unwrap_or(1);
        let type_ = policy.type_.clone();
        annotations.insert(SUBGROUP_SIZE.to_owned(), size.to_string());
        annotations.insert(
            SUBGROUP_POLICY.to_owned(),
            type_.unwrap_or_else(|| LEADER_WORKER.to_owned()),
        );
    }
    if let Some(part) = template.subgroup(worker) {
        labels.insert(SUBGROUP_INDEX.to_owned(), part.to_string());
        labels.insert(
            SUBGROUP_KEY.to_owned(),
            sha1_hex(&format!("{leader}/{part}")),
        );
    }
    let name = set.pod_name(index, worker);
    let mut spec = given.spec.clone().unwrap_or_default();
    let subdomain = set.subdomain(index);
    let variables = [
        (LEADER_ADDRESS, format!("{leader}.{subdomain}.{namespace}")),
        (GROUP_SIZE, template.size.to_string()),
        (WORKER_NUMBER, worker.to_string()),
    ];
    let inits = spec.init_containers.iter_mut().flatten();
    for container in inits.chain(&mut spec.containers) {
        prepend(container, &variables);
    }
    failure::report_log_end(&mut spec.containers);
    let claims = template.template.volume_claim_templates.as_deref();
    add_volumes(claims.unwrap_or_default(), &name, &mut spec);
    spec.hostname = Some(name.clone());
    spec.subdomain = Some(subdomain);
    Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: set.meta.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations),
            finalizers: meta.finalizers,
            owner_references: Some(vec![controller_reference(API_VERSION, KIND, set.meta)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// The labels of the claims of a pod. Upstream gives them by the selectors of its StatefulSets: one of all leaders, and
/// one of each group's workers.
pub(crate) fn claim_labels(
    set: &ParsedSet<'_>,
    index: u32,
    worker: u32,
) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([(NAME.to_owned(), set.name.to_owned())]);
    if worker == 0 {
        labels.insert(WORKER_INDEX.to_owned(), worker.to_string());
    } else {
        labels.insert(GROUP_INDEX.to_owned(), index.to_string());
        labels.insert(GROUP_KEY.to_owned(), group_key(set, index));
    }
    labels
}

/// The SHA-1 of the leader's namespace and name.
fn group_key(set: &ParsedSet<'_>, index: u32) -> String {
    let namespace = set.meta.namespace.as_deref().unwrap_or_default();
    sha1_hex(&format!("{namespace}/{}", set.leader_name(index)))
}

/// Sets variables before the container's own, which may refer to them.
fn prepend(container: &mut Container, variables: &[(&str, String)]) {
    let own = container.env.take().unwrap_or_default();
    let mut env: Vec<EnvVar> = variables
        .iter()
        .map(|(name, value)| EnvVar {
            name: (*name).to_owned(),
            value: Some(value.clone()),
            value_from: None,
        })
        .collect();
    let given = |one: &EnvVar| variables.iter().any(|(name, _)| *name == one.name);
    env.extend(own.into_iter().filter(|one| !given(one)));
    container.env = Some(env);
}

/// The headless Service by which pods have names: of the set, or of one group.
pub(crate) fn service(set: &ParsedSet<'_>, group: Option<u32>) -> Service {
    let mut selector = BTreeMap::from([(NAME.to_owned(), set.name.to_owned())]);
    if let Some(index) = group {
        selector.insert(GROUP_INDEX.to_owned(), index.to_string());
    }
    let name = group.map_or_else(|| set.name.to_owned(), |index| set.leader_name(index));
    Service {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: set.meta.namespace.clone(),
            labels: Some(selector.clone()),
            owner_references: Some(vec![controller_reference(API_VERSION, KIND, set.meta)]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            selector: Some(selector),
            // A Service has a port; none is reached through a headless one.
            ports: Some(vec![ServicePort {
                name: Some("placeholder".to_owned()),
                port: 1,
                ..ServicePort::default()
            }]),
            publish_not_ready_addresses: Some(true),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}
