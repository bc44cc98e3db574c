//! A Deployment's ReplicaSets: which is the new one, their revisions, and the changes that a pass decided on. The writes
//! carry the version that the decision was made on, so that one made on an outdated copy is refused.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStatus, ReplicaSet, ReplicaSetSpec,
};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde_json::{Value, json};

use super::super::{amount, template_hash};
use super::{Strategy, status, strategy};
use crate::action::{Action, Dependent, DependentKind, EventNote, ReconcileOutcome};
use crate::ownership::controller_reference;
use crate::terms;

/// The annotation with the number of a template, on the Deployment and its ReplicaSets.
pub const REVISION: &str = "deployment.kubernetes.io/revision";
/// The earlier numbers of a ReplicaSet whose template came back.
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// The Deployment's replicas, and the most pods during its rollout, when the set was last sized.
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MAX: &str = "deployment.kubernetes.io/max-replicas";
/// The label that distinguishes the pods of a Deployment's ReplicaSets.
pub(super) const HASH: &str = "pod-template-hash";
/// Annotations of a Deployment that its ReplicaSets don't get.
const NOT_COPIED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "deprecated.deployment.rollback.to",
    REVISION,
    HISTORY,
    DESIRED,
    MAX,
];
/// The longest text of earlier numbers.
const HISTORY_CHARS: usize = 2_000;
/// How many names are tried if other templates' sets have them.
const COLLISIONS_MAX: i32 = 1_000;

/// One ReplicaSet and what a pass decided about it.
pub(super) struct SetState<'a> {
    pub(super) replica_set: &'a ReplicaSet,
    /// The pods that it should have, after this pass.
    pub(super) replicas: i64,
    annotations: BTreeMap<String, String>,
    min_ready: Option<i32>,
}

/// A Deployment's spec and sets.
pub(super) struct DeploymentPlan<'a> {
    pub(super) deployment: &'a Deployment,
    pub(super) spec: &'a DeploymentSpec,
    pub(super) desired: i64,
    pub(super) surge: i64,
    pub(super) unavailable: i64,
    /// The set of the current template.
    pub(super) new: Option<SetState<'a>>,
    /// The others, the oldest first.
    pub(super) old: Vec<SetState<'a>>,
    /// A set that this pass creates; its number of pods.
    pub(super) created: Option<(String, i64)>,
}

impl SetState<'_> {
    pub(super) fn name(&self) -> &str {
        self.replica_set
            .metadata
            .name
            .as_deref()
            .unwrap_or_default()
    }

    /// The pods that it has had to have since before this pass.
    pub(super) fn before(&self) -> i64 {
        replicas(self.replica_set)
    }

    pub(super) fn available(&self) -> i64 {
        let status = self.replica_set.status.as_ref();
        i64::from(
            status
                .and_then(|status| status.available_replicas)
                .unwrap_or(0),
        )
    }

    fn number(&self, annotation: &str) -> Option<i64> {
        self.annotations.get(annotation)?.parse().ok()
    }

    fn revision(&self) -> i64 {
        self.number(REVISION).unwrap_or(0)
    }

    pub(super) fn max_before(&self) -> Option<i64> {
        self.number(MAX).filter(|number| *number > 0)
    }
}

fn replicas(set: &ReplicaSet) -> i64 {
    let spec = set.spec.as_ref();
    i64::from(spec.and_then(|spec| spec.replicas).unwrap_or(1)).max(0)
}

/// A template without the label that its ReplicaSet added.
fn bare(template: Option<&PodTemplateSpec>) -> PodTemplateSpec {
    let mut template = template.cloned().unwrap_or_default();
    if let Some(meta) = &mut template.metadata {
        if let Some(labels) = &mut meta.labels {
            labels.remove(HASH);
            if labels.is_empty() {
                meta.labels = None;
            }
        }
        if *meta == ObjectMeta::default() {
            template.metadata = None;
        }
    }
    template
}

impl<'a> DeploymentPlan<'a> {
    pub(super) fn of(
        deployment: &'a Deployment,
        spec: &'a DeploymentSpec,
        own: impl Iterator<Item = &'a ReplicaSet>,
    ) -> DeploymentPlan<'a> {
        let mut sets: Vec<&ReplicaSet> = own.collect();
        sets.sort_by_key(|set| {
            let created = set.metadata.creation_timestamp.as_ref();
            (created.map(|time| time.0), set.metadata.name.clone())
        });
        let wanted = bare(Some(&spec.template));
        let template = |set: &ReplicaSet| {
            let spec = set.spec.as_ref();
            bare(spec.and_then(|spec| spec.template.as_ref()))
        };
        let new = sets.iter().position(|set| template(set) == wanted);
        let state = |set: &'a ReplicaSet| SetState {
            replica_set: set,
            replicas: replicas(set),
            annotations: set.metadata.annotations.clone().unwrap_or_default(),
            min_ready: set.spec.as_ref().and_then(|spec| spec.min_ready_seconds),
        };
        let new = new.map(|at| state(sets.remove(at)));
        let desired = i64::from(spec.replicas.unwrap_or(1)).max(0);
        let rolling = spec
            .strategy
            .as_ref()
            .and_then(|strategy| strategy.rolling_update.as_ref());
        let rolls = strategy(spec) == Strategy::RollingUpdate && desired > 0;
        let rolling = rolling.filter(|_| rolls);
        let surge = amount(
            rolling.and_then(|all| all.max_surge.as_ref()),
            desired,
            true,
        );
        let down = rolling.and_then(|all| all.max_unavailable.as_ref());
        let mut unavailable = amount(down, desired, false);
        if rolls && surge == 0 && unavailable == 0 {
            // Both were percentages that round to nothing; without one of them no pod could be replaced.
            unavailable = 1;
        }
        DeploymentPlan {
            deployment,
            spec,
            desired,
            surge,
            unavailable: unavailable.min(desired),
            new,
            old: sets.into_iter().map(state).collect(),
            created: None,
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &SetState<'a>> {
        self.old.iter().chain(&self.new)
    }

    /// The pods that all sets should have, with that of a set that this pass creates.
    pub(super) fn total(&self) -> i64 {
        let created = self.created.as_ref().map_or(0, |(_, replicas)| *replicas);
        self.all().map(|set| set.replicas).sum::<i64>() + created
    }

    /// True if the Deployment's replicas changed since a set with pods was last sized.
    pub(super) fn is_scaling(&self) -> bool {
        let sized = |set: &SetState<'_>| {
            set.number(DESIRED)
                .is_some_and(|number| number != self.desired)
        };
        self.all().any(|set| set.replicas > 0 && sized(set))
    }

    /// How many pods the new set may have now.
    pub(super) fn new_size(&self, now: i64) -> i64 {
        if strategy(self.spec) == Strategy::Recreate {
            return self.desired;
        }
        let room = self.desired + self.surge - self.total();
        now + room.max(0).min((self.desired - now).max(0))
    }

    /// The number that the new set should have at least.
    fn next_revision(&self) -> i64 {
        let old = self.old.iter().map(SetState::revision).max();
        old.unwrap_or(0).saturating_add(1)
    }

    /// Gives the new set its number and the Deployment's annotations, or creates it unless old pods must end first.
    pub(super) fn sync_revision(
        &mut self,
        outcome: &mut ReconcileOutcome<DeploymentStatus>,
        now: Timestamp,
    ) {
        let next = self.next_revision();
        if let Some(new) = &mut self.new {
            copy_annotations(&self.deployment.metadata, &mut new.annotations);
            let known = new.revision();
            if known < next {
                if known > 0 {
                    remember(&mut new.annotations, known);
                }
                new.annotations
                    .insert(REVISION.to_owned(), next.to_string());
            }
            new.min_ready = self.spec.min_ready_seconds;
            let name = new.name().to_owned();
            status::found(self.spec, &name, outcome, now);
            self.keep_revision(outcome);
        }
    }

    /// Writes the new set's number to the Deployment.
    pub(super) fn keep_revision(&self, outcome: &mut ReconcileOutcome<DeploymentStatus>) {
        let number = self
            .new
            .as_ref()
            .and_then(|new| new.annotations.get(REVISION));
        if let Some(number) = number {
            self.name_revision(number, outcome);
        }
    }

    fn name_revision(&self, number: &str, outcome: &mut ReconcileOutcome<DeploymentStatus>) {
        let annotations = self.deployment.metadata.annotations.as_ref();
        let known = annotations.and_then(|map| map.get(REVISION));
        if known.map(String::as_str) != Some(number) {
            let number = Some(number.to_owned());
            outcome.annotations.insert(REVISION.to_owned(), number);
        }
    }

    /// Creates the set of the current template.
    pub(super) fn create(
        &mut self,
        outcome: &mut ReconcileOutcome<DeploymentStatus>,
        now: Timestamp,
    ) {
        let size = self.new_size(0);
        let (hash, name) = self.free_name(outcome);
        let meta = &self.deployment.metadata;
        let mut template = self.spec.template.clone();
        let labels = template.metadata.get_or_insert_default();
        let labels = labels.labels.get_or_insert_default();
        labels.insert(HASH.to_owned(), hash.clone());
        let mut selector: LabelSelector = self.spec.selector.clone();
        let matched = selector.match_labels.get_or_insert_default();
        matched.insert(HASH.to_owned(), hash);
        let mut annotations = BTreeMap::new();
        copy_annotations(meta, &mut annotations);
        let mut labels = labels.clone();
        terms::inherit(meta, &mut labels, &mut annotations);
        let revision = self.next_revision().to_string();
        annotations.insert(REVISION.to_owned(), revision.clone());
        self.size_annotations(&mut annotations);
        let set = ReplicaSet {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: meta.namespace.clone(),
                labels: Some(labels),
                annotations: Some(annotations),
                owner_references: Some(vec![controller_reference("apps/v1", "Deployment", meta)]),
                ..ObjectMeta::default()
            },
            spec: Some(ReplicaSetSpec {
                replicas: i32::try_from(size).ok(),
                min_ready_seconds: self.spec.min_ready_seconds,
                selector,
                template: Some(template),
            }),
            status: None,
        };
        if size > 0 {
            let message = format!("Scaled up replica set {name} from 0 to {size}");
            let event = EventNote::normal("ScalingReplicaSet", message);
            outcome.events.push(event);
        }
        status::created(self.spec, &name, outcome, now);
        self.name_revision(&revision, outcome);
        self.created = Some((name, size));
        let set = Dependent::ReplicaSet(Box::new(set));
        outcome.actions.push(Action::Create(set));
    }

    /// A hash whose name no set of another template has.
    fn free_name(&self, outcome: &mut ReconcileOutcome<DeploymentStatus>) -> (String, String) {
        let deployment = self.deployment.metadata.name.as_deref().unwrap_or_default();
        let mut collisions = outcome.status.collision_count.unwrap_or(0).max(0);
        loop {
            let hash = template_hash(&self.spec.template, collisions);
            let name = format!("{deployment}-{hash}");
            let taken = self.old.iter().any(|set| set.name() == name);
            if !taken || collisions >= COLLISIONS_MAX {
                return (hash, name);
            }
            collisions += 1;
            outcome.status.collision_count = Some(collisions);
        }
    }

    fn size_annotations(&self, annotations: &mut BTreeMap<String, String>) {
        let max = self.desired + self.surge;
        annotations.insert(DESIRED.to_owned(), self.desired.to_string());
        annotations.insert(MAX.to_owned(), max.to_string());
    }

    /// Deletes the oldest sets without pods beyond the limit.
    pub(super) fn delete_history(&self, outcome: &mut ReconcileOutcome<DeploymentStatus>) {
        let kept = self.spec.revision_history_limit.unwrap_or(10);
        let kept = usize::try_from(kept).unwrap_or_default();
        let alive = |set: &&SetState<'_>| set.replica_set.metadata.deletion_timestamp.is_none();
        let mut old: Vec<&SetState<'_>> = self.old.iter().filter(alive).collect();
        old.sort_by_key(|set| set.revision());
        let surplus = old.len().saturating_sub(kept);
        for set in old.into_iter().take(surplus) {
            let status = set.replica_set.status.as_ref();
            let observed = status.and_then(|status| status.observed_generation);
            let empty = status.is_none_or(|status| status.replicas == 0) && set.replicas == 0;
            if empty && observed >= set.replica_set.metadata.generation {
                outcome.actions.push(Action::Delete {
                    kind: DependentKind::ReplicaSet,
                    name: set.name().to_owned(),
                    uid: set.replica_set.metadata.uid.clone().unwrap_or_default(),
                });
            }
        }
    }

    /// Writes what was decided about the existing sets.
    pub(super) fn write(&self, outcome: &mut ReconcileOutcome<DeploymentStatus>) {
        for set in self.all() {
            let mut annotations = set.annotations.clone();
            if set.replicas != set.before() || set.replicas > 0 {
                self.size_annotations(&mut annotations);
            }
            let known = set
                .replica_set
                .metadata
                .annotations
                .clone()
                .unwrap_or_default();
            let mut patch = json!({});
            let changed: BTreeMap<&String, &String> = annotations
                .iter()
                .filter(|(key, value)| known.get(*key) != Some(*value))
                .collect();
            if !changed.is_empty() {
                patch["metadata"]["annotations"] = json!(changed);
            }
            if set.replicas != set.before() {
                patch["spec"]["replicas"] = set.replicas.into();
                let up = if set.replicas > set.before() {
                    "up"
                } else {
                    "down"
                };
                let message = format!(
                    "Scaled {up} replica set {} from {} to {}",
                    set.name(),
                    set.before(),
                    set.replicas
                );
                let event = EventNote::normal("ScalingReplicaSet", message);
                outcome.events.push(event);
            }
            let min_ready = |of: Option<i32>| of.unwrap_or(0);
            let had = set
                .replica_set
                .spec
                .as_ref()
                .and_then(|spec| spec.min_ready_seconds);
            if min_ready(set.min_ready) != min_ready(had) {
                patch["spec"]["minReadySeconds"] = min_ready(set.min_ready).into();
            }
            if patch == json!({}) || set.replica_set.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let version = set.replica_set.metadata.resource_version.clone();
            patch["metadata"]["resourceVersion"] = version.map_or(Value::Null, Value::from);
            outcome.actions.push(Action::Change {
                kind: DependentKind::ReplicaSet,
                name: set.name().to_owned(),
                uid: set.replica_set.metadata.uid.clone().unwrap_or_default(),
                patch,
            });
        }
    }
}

fn copy_annotations(from: &ObjectMeta, to: &mut BTreeMap<String, String>) {
    for (key, value) in from.annotations.iter().flatten() {
        if !NOT_COPIED.contains(&key.as_str()) {
            to.insert(key.clone(), value.clone());
        }
    }
}

/// Appends an earlier number; the oldest ones go if the text gets too long.
fn remember(annotations: &mut BTreeMap<String, String>, number: i64) {
    let mut text = annotations.get(HISTORY).cloned().unwrap_or_default();
    if !text.is_empty() {
        text.push(',');
    }
    text.push_str(&number.to_string());
    while text.len() > HISTORY_CHARS {
        match text.split_once(',') {
            Some((_, rest)) => text = rest.to_owned(),
            None => break,
        }
    }
    annotations.insert(HISTORY.to_owned(), text);
}
