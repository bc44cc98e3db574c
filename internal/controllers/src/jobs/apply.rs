//! Carries out the decision about one job: annotations first, then the actions, then the status.
//! Every step is idempotent.

use futures::stream::{self, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use resources::kinds::PodGroup;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;
use workloads::{Action, Dependent, DependentKind, EventNote, ReconcileOutcome};

use super::dependents::{create, delete, is_gone};
use super::difference::merge_patch;
use super::runner::Workload;
use super::{RunnerObject, api};
use crate::event_recorder::{EventRecorder, EventType};

/// How many objects of one job are written at once.
const AT_ONCE: usize = 16;
/// Up to this many pods get an event each; more share one event.
const TOLD_SINGLY: usize = 16;

/// The decided writes for one job.
pub(crate) struct JobWrites<S> {
    annotations: Option<Value>,
    actions: Vec<Action>,
    /// The patch from the known status to the decided one.
    status: Option<Value>,
    known: Value,
    decided: S,
    events: Vec<EventNote>,
}

/// The result of applying the work.
pub(crate) struct Applied<K> {
    /// The job as last written.
    pub(crate) written: Option<K>,
    /// The failure, to be retried.
    pub(crate) trouble: Option<String>,
    /// Another object was in the way and may go away; the job is to be checked again.
    pub(crate) recheck: bool,
}

impl<K> Applied<K> {
    fn nothing() -> Applied<K> {
        Applied {
            written: None,
            trouble: None,
            recheck: false,
        }
    }
}

impl<S: Serialize> JobWrites<S> {
    /// The writes that lead from the job's current state to the decided one.
    pub(crate) fn new<W: Workload<Status = S>>(
        job: &W::Kind,
        outcome: ReconcileOutcome<S>,
    ) -> JobWrites<S> {
        let status = serde_json::to_value(&outcome.status).unwrap_or_default();
        let mut known = W::status_of(job);
        if known.is_null() {
            known = json!({});
        }
        JobWrites {
            annotations: (!outcome.annotations.is_empty()).then(|| json!(outcome.annotations)),
            actions: outcome.actions,
            status: merge_patch(&known, &status),
            known,
            decided: outcome.status,
            events: outcome.events,
        }
    }

    pub(crate) fn is_nothing(&self) -> bool {
        self.annotations.is_none()
            && self.actions.is_empty()
            && self.status.is_none()
            && self.events.is_empty()
    }
}

/// Carries the work out.
pub(crate) async fn apply<W: Workload>(
    client: &Client,
    notes: &EventRecorder,
    job: Arc<W::Kind>,
    mut work: JobWrites<W::Status>,
) -> Applied<W::Kind> {
    let mut applied = Applied::nothing();
    let namespace = job.namespace().unwrap_or_default();
    let name = job.name_any();
    let jobs: Api<W::Kind> = api(client, &namespace);
    let about = reference(job.as_ref());
    // A new job may have the same name: the uid identifies the job that was decided on.
    let uid = job.uid();

    if let Some(annotations) = work.annotations {
        let patch = json!({"metadata": {"uid": uid, "annotations": annotations}});
        match jobs
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Ok(written) => applied.written = Some(written),
            Err(error) if is_gone(&error) => {
                applied.recheck = true;
                return applied;
            }
            Err(error) => {
                applied.trouble = Some(format!("writing the job's annotations: {error}"));
                return applied;
            }
        }
    }

    let (first, rest): (Vec<Action>, Vec<Action>) = work.actions.into_iter().partition(comes_first);
    let executor = ActionExecutor {
        client: client.clone(),
        namespace: namespace.clone(),
        job: (name.clone(), uid.clone()),
    };
    let mut done = executor.carry_out::<W::Kind>(first).await;
    done.extend(executor.carry_out::<W::Kind>(rest).await);
    let holds_status = |outcome: &ActionOutcome| {
        (outcome.deletes || outcome.required || W::STATUS_NEEDS_ACTIONS) && outcome.result.is_err()
    };
    let incomplete = done.iter().any(holds_status);
    if let Some(message) = tell_of_objects::<W>(notes, &about, &done) {
        W::note_failure(&mut work.decided, &message, Timestamp::now());
        let status = serde_json::to_value(&work.decided).unwrap_or_default();
        work.status = merge_patch(&work.known, &status);
    }
    for outcome in done {
        match outcome.result {
            Ok(ActionEffect::InTheWay) => applied.recheck = true,
            Ok(_) => {}
            Err(error) => {
                applied
                    .trouble
                    .get_or_insert(format!("{}: {error}", outcome.what));
            }
        }
    }

    // A job must not become terminal while objects that it must delete still exist.
    if incomplete {
        return applied;
    }
    if let Some(status) = work.status {
        let patch = json!({"metadata": {"uid": uid}, "status": status});
        match jobs
            .patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Ok(written) => applied.written = Some(written),
            Err(error) if is_gone(&error) => {
                applied.recheck = true;
                return applied;
            }
            Err(error) => {
                applied
                    .trouble
                    .get_or_insert(format!("writing the job's status: {error}"));
                return applied;
            }
        }
    }
    for event in work.events {
        notes.note(&about, event.kind.into(), &event.reason, &event.message);
    }
    applied
}

/// Whether pods need the action's object.
fn comes_first(action: &Action) -> bool {
    matches!(
        action,
        Action::ApplyPodGroup(_)
            | Action::Create(
                Dependent::Claim(_)
                    | Dependent::Revision(_)
                    | Dependent::ConfigMap(_)
                    | Dependent::SshKeys(_)
                    | Dependent::ServiceAccount(_)
                    | Dependent::Role(_)
                    | Dependent::RoleBinding(_)
            )
    )
}

/// The effect of an action.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ActionEffect {
    Created,
    Deleted,
    Changed,
    /// The state was already as decided.
    Already,
    /// Another object has the name.
    InTheWay,
}

/// One action and its result.
pub(super) struct ActionOutcome {
    pub(super) what: String,
    /// For an event: what the action creates or deletes, such as a pod, and its name.
    pub(super) object: Option<(&'static str, String)>,
    pub(super) deletes: bool,
    /// The status says that the object exists.
    pub(super) required: bool,
    pub(super) result: Result<ActionEffect, kube::Error>,
}

pub(super) struct ActionExecutor {
    pub(super) client: Client,
    pub(super) namespace: String,
    /// The name and uid of the job that was decided on.
    job: (String, Option<String>),
}

impl ActionExecutor {
    async fn carry_out<K: RunnerObject>(&self, actions: Vec<Action>) -> Vec<ActionOutcome> {
        stream::iter(actions.into_iter().map(|action| self.act::<K>(action)))
            .buffered(AT_ONCE)
            .collect()
            .await
    }

    async fn act<K: RunnerObject>(&self, action: Action) -> ActionOutcome {
        let (client, namespace) = (&self.client, self.namespace.as_str());
        let outcome = |what: String, deletes: bool, result| ActionOutcome {
            what,
            object: None,
            deletes,
            required: false,
            result,
        };
        match action {
            Action::CreatePod(pod) => {
                let name = pod.name_any();
                let result = create(&api::<Pod>(client, namespace), &pod).await;
                ActionOutcome {
                    object: Some(("pod", name.clone())),
                    ..outcome(format!("creating pod {name}"), false, result)
                }
            }
            Action::DeletePod { name, uid, grace } => {
                let params = DeleteParams {
                    grace_period_seconds: grace,
                    ..DeleteParams::default()
                };
                let result = delete(&api::<Pod>(client, namespace), &name, uid, params).await;
                ActionOutcome {
                    object: Some(("pod", name.clone())),
                    ..outcome(format!("deleting pod {name}"), true, result)
                }
            }
            Action::CreateService(service) => {
                let what = format!("creating service {}", service.name_any());
                outcome(
                    what,
                    false,
                    create(&api::<Service>(client, namespace), &service).await,
                )
            }
            Action::DeleteService { name, uid } => {
                let services = api::<Service>(client, namespace);
                let result = delete(&services, &name, uid, DeleteParams::default()).await;
                outcome(format!("deleting service {name}"), true, result)
            }
            Action::ApplyPodGroup(group) => {
                let what = format!("writing pod group {}", group.name_any());
                outcome(
                    what,
                    false,
                    put_group(&api::<PodGroup>(client, namespace), &group).await,
                )
            }
            Action::DeletePodGroup { name, uid } => {
                let groups = api::<PodGroup>(client, namespace);
                let result = delete(&groups, &name, uid, DeleteParams::default()).await;
                outcome(format!("deleting pod group {name}"), true, result)
            }
            Action::Create(dependent) => self.create_dependent(dependent).await,
            Action::Change {
                kind,
                name,
                uid,
                patch,
            } => {
                let result = self.change_dependent(kind, &name, &uid, patch).await;
                outcome(format!("changing {} {name}", kind.as_str()), false, result)
            }
            Action::Adopt {
                kind,
                name,
                uid,
                patch,
            } => {
                let result = match self.may_adopt::<K>().await {
                    Ok(true) => self.change_dependent(kind, &name, &uid, patch).await,
                    Ok(false) => Ok(ActionEffect::InTheWay),
                    Err(error) => Err(error),
                };
                outcome(format!("adopting {} {name}", kind.as_str()), false, result)
            }
            Action::Delete { kind, name, uid } => {
                let result = self.delete_dependent(kind, &name, uid).await;
                let is_reported = matches!(
                    kind,
                    DependentKind::Job | DependentKind::RayCluster | DependentKind::JobSet
                );
                ActionOutcome {
                    object: is_reported.then(|| (kind.as_str(), name.clone())),
                    ..outcome(format!("deleting {} {name}", kind.as_str()), true, result)
                }
            }
            Action::DeleteJob { name, uid } => {
                let jobs = api::<K>(client, namespace);
                let result = delete(&jobs, &name, uid, DeleteParams::background()).await;
                outcome(format!("deleting job {name}"), true, result)
            }
        }
    }
}

impl ActionExecutor {
    /// Whether the job is still the one that was decided on and stays.
    async fn may_adopt<K: RunnerObject>(&self) -> Result<bool, kube::Error> {
        let (name, uid) = &self.job;
        let job = api::<K>(&self.client, &self.namespace)
            .get_opt(name)
            .await?;
        Ok(job.is_some_and(|job| job.uid() == *uid && job.meta().deletion_timestamp.is_none()))
    }
}

async fn put_group(groups: &Api<PodGroup>, group: &PodGroup) -> Result<ActionEffect, kube::Error> {
    if group.metadata.resource_version.is_none() {
        return create(groups, group).await;
    }
    let name = group.name_any();
    match groups.replace(&name, &PostParams::default(), group).await {
        Ok(_) => Ok(ActionEffect::Changed),
        // The object changed or is gone; the watch will show its current state.
        Err(error) if is_gone(&error) => Ok(ActionEffect::InTheWay),
        Err(error) => Err(error),
    }
}

/// Records events for what was created and deleted, pods above all, and for what could not be created; returns why.
fn tell_of_objects<W: Workload>(
    notes: &EventRecorder,
    about: &ObjectReference,
    done: &[ActionOutcome],
) -> Option<String> {
    for noun in ["pod", "job", "claim", "RayCluster", "JobSet"] {
        let about_noun = |outcome: &&ActionOutcome| {
            outcome
                .object
                .as_ref()
                .is_some_and(|(what, _)| *what == noun)
        };
        for (effect, verb) in [
            (ActionEffect::Created, "Created"),
            (ActionEffect::Deleted, "Deleted"),
        ] {
            let outcome = done.iter().filter(about_noun);
            let outcome =
                outcome.filter(|outcome| matches!(outcome.result, Ok(known) if known == effect));
            let names = outcome.filter_map(|outcome| Some(outcome.object.as_ref()?.1.as_str()));
            let names: Vec<&str> = names.collect();
            let reason = W::pod_event(effect == ActionEffect::Created);
            if names.len() > TOLD_SINGLY {
                let message = format!(
                    "{verb} {} {noun}s: {} to {}",
                    names.len(),
                    names[0],
                    names[names.len() - 1]
                );
                notes.note(about, EventType::Normal, reason, &message);
            } else {
                for name in names {
                    let message = format!("{verb} {noun}: {name}");
                    notes.note(about, EventType::Normal, reason, &message);
                }
            }
        }
    }
    let failed = done
        .iter()
        .filter(|outcome| outcome.object.is_some() && !outcome.deletes);
    let error = failed
        .filter_map(|outcome| outcome.result.as_ref().err())
        .next()?;
    let message = match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    };
    let event = format!("Error creating: {message}");
    notes.note(about, EventType::Warning, "FailedCreate", &event);
    Some(message)
}

/// The reference to a job for events.
pub(crate) fn reference<K: RunnerObject>(job: &K) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        namespace: job.namespace(),
        name: Some(job.name_any()),
        uid: job.uid(),
        ..ObjectReference::default()
    }
}
