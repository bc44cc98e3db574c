//! The loop that scales by HorizontalPodAutoscalers, each [`SYNC`] as in Kubernetes: it reads an autoscaler's target, the
//! target's pods and what `metrics.k8s.io` says they use, has [`workloads::autoscaling`] decide, and writes the scale and
//! the status. An autoscaler's memory is lost with the loop; then what runs counts as its last proposal.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, Resource as _, ResourceExt as _};
use resources::quantity::Quantity;
use resources::registry;
use serde::Deserialize;
use serde_json::json;
use supervisor::contained;
use tokio::time::{MissedTickBehavior, interval};
use workloads::autoscaling::{ObservedScaler, PodUsage, ScalingMemory, decide, unscalable};

use super::access::{api_resource, unless_gone};
use super::stopped;
use crate::context::Context;
use crate::event_recorder::{EventRecorder, EventType};
use crate::retry::{PANICKED, panicked_note};

/// Between two looks at all autoscalers (`--horizontal-pod-autoscaler-sync-period`).
const SYNC: Duration = Duration::from_secs(15);

/// What `metrics.k8s.io/v1beta1` says of a pod, beside its name.
#[derive(Debug, Deserialize)]
struct PodMetrics {
    timestamp: Timestamp,
    window: String,
    containers: Vec<ContainerMetrics>,
}

#[derive(Debug, Deserialize)]
struct ContainerMetrics {
    name: String,
    usage: BTreeMap<String, String>,
}

/// Why an autoscaler's target is not scaled.
#[derive(Debug, PartialEq, Eq)]
struct Unscalable {
    /// The reason of the condition and the event.
    reason: &'static str,
    /// What failed, before the cause in the condition.
    what: &'static str,
    /// The cause, which is the event's message.
    cause: String,
}

impl Unscalable {
    fn unread(cause: String) -> Unscalable {
        Unscalable {
            reason: "FailedGetScale",
            what: "the HPA controller was unable to get the target's current scale",
            cause,
        }
    }

    fn unwritten(cause: String) -> Unscalable {
        Unscalable {
            reason: "FailedUpdateScale",
            what: "the HPA controller was unable to update the target scale",
            cause,
        }
    }
}

/// What the API answered, or why it did not.
fn cause(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

struct Autoscalers {
    client: Client,
    notes: EventRecorder,
    /// By the autoscaler's uid.
    memories: HashMap<String, ScalingMemory>,
}

pub(crate) async fn run(mut ctx: Context) {
    let mut state = Autoscalers {
        client: ctx.client.clone(),
        notes: EventRecorder::new(ctx.client.clone(), "horizontal-pod-autoscaler"),
        memories: HashMap::new(),
    };
    let mut ticks = interval(SYNC);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stopped(&mut ctx.stop) => return,
            _ = ticks.tick() => {
                tokio::select! {
                    () = stopped(&mut ctx.stop) => return,
                    () = state.sync() => {}
                }
            }
        }
    }
}

impl Autoscalers {
    async fn sync(&mut self) {
        let all: Api<HorizontalPodAutoscaler> = Api::all(self.client.clone());
        let scalers = match all.list(&ListParams::default()).await {
            Ok(list) => list.items,
            Err(error) => {
                tracing::warn!(%error, "the controller could not list the HorizontalPodAutoscalers; it tries again in {} s", SYNC.as_secs());
                return;
            }
        };
        let uids: Vec<String> = scalers
            .iter()
            .filter_map(|one| one.metadata.uid.clone())
            .collect();
        self.memories.retain(|uid, _| uids.contains(uid));
        for scaler in scalers {
            if scaler.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let about = reference(&scaler);
            match contained(self.settle(&scaler, &about)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(namespace = ?about.namespace, name = ?about.name, %error, "the controller could not write a HorizontalPodAutoscaler's status; it tries again");
                }
                Err(panic) => {
                    tracing::error!(namespace = ?about.namespace, name = ?about.name, %panic, "the controller panicked over an autoscaler and tries again");
                    let note = panicked_note(panic.message());
                    self.notes.note(&about, EventType::Warning, PANICKED, &note);
                }
            }
        }
    }

    async fn settle(
        &mut self,
        scaler: &HorizontalPodAutoscaler,
        about: &ObjectReference,
    ) -> kube::Result<()> {
        let now = Timestamp::now();
        match self.scaled(scaler, about, now).await {
            Ok(status) => self.write(scaler, status).await,
            Err(Unscalable {
                reason,
                what,
                cause,
            }) => {
                self.notes.note(about, EventType::Warning, reason, &cause);
                let status = unscalable(scaler, reason, format!("{what}: {cause}"), now);
                self.write(scaler, status).await
            }
        }
    }

    /// Scales an autoscaler's target, and answers with the status.
    async fn scaled(
        &mut self,
        scaler: &HorizontalPodAutoscaler,
        about: &ObjectReference,
        now: Timestamp,
    ) -> Result<HorizontalPodAutoscalerStatus, Unscalable> {
        let namespace = scaler.namespace().unwrap_or_default();
        let (resource, name) = target(scaler)?;
        let targets: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &namespace, &resource);
        let unread = |error: kube::Error| Unscalable::unread(cause(&error));
        let scale = targets.get_scale(&name).await.map_err(unread)?;
        let replicas = scale.spec.and_then(|spec| spec.replicas).unwrap_or(0);
        let status = scale.status.unwrap_or_default();
        let selector = status.selector.unwrap_or_default();
        if selector.is_empty() {
            return Err(Unscalable {
                reason: "InvalidSelector",
                what: "the HPA target's scale is missing a selector",
                cause: "selector is required".to_owned(),
            });
        }
        let selected = ListParams::default().labels(&selector);
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let pods = pods.list(&selected).await.map_err(unread)?.items;
        let usage = self.usage(&namespace, &selected).await;
        let uid = scaler.uid().unwrap_or_default();
        let memory = self.memories.entry(uid).or_default();
        let observed = ObservedScaler {
            scaler,
            replicas,
            current: status.replicas,
            pods: &pods,
            usage: &usage,
        };
        let decision = decide(&observed, memory, now);
        if let Some(wanted) = decision.replicas {
            let patch = Patch::Merge(json!({"spec": {"replicas": wanted}}));
            let written = targets
                .patch_scale(&name, &PatchParams::default(), &patch)
                .await;
            written.map_err(|error| Unscalable::unwritten(cause(&error)))?;
            memory.scaled(replicas, wanted, now);
            tracing::info!(
                %namespace, name = %scaler.name_any(), target = %name, from = replicas, to = wanted,
                "the autoscaler changes the replicas of its target"
            );
        }
        for note in decision.notes {
            self.notes
                .note(about, note.kind.into(), &note.reason, &note.message);
        }
        Ok(decision.status)
    }

    /// What the selected pods use, by name. Without an answer no pod counts as measured, which the decision says.
    async fn usage(&self, namespace: &str, selected: &ListParams) -> BTreeMap<String, PodUsage> {
        let gvk = GroupVersionKind::gvk("metrics.k8s.io", "v1beta1", "PodMetrics");
        let resource = ApiResource::from_gvk_with_plural(&gvk, "pods");
        let measured: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        match measured.list(selected).await {
            Ok(list) => list.items.into_iter().filter_map(usage_of).collect(),
            Err(error) => {
                tracing::warn!(%namespace, %error, "the controller could not read what pods use");
                BTreeMap::new()
            }
        }
    }

    async fn write(
        &self,
        scaler: &HorizontalPodAutoscaler,
        status: HorizontalPodAutoscalerStatus,
    ) -> kube::Result<()> {
        if scaler.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let namespace = scaler.namespace().unwrap_or_default();
        let api: Api<HorizontalPodAutoscaler> = Api::namespaced(self.client.clone(), &namespace);
        // A list that is left out would keep its old values.
        let mut status = json!(status);
        for list in ["currentMetrics", "lastScaleTime"] {
            if status.get(list).is_none() {
                status[list] = serde_json::Value::Null;
            }
        }
        let patch = Patch::Merge(json!({
            // The uid excludes another autoscaler of the same name.
            "metadata": {"uid": scaler.metadata.uid},
            "status": status,
        }));
        let written = api
            .patch_status(&scaler.name_any(), &PatchParams::default(), &patch)
            .await;
        unless_gone(written)?;
        Ok(())
    }
}

/// The kind and the name of an autoscaler's target. Any version of a kind that can be scaled will do.
fn target(scaler: &HorizontalPodAutoscaler) -> Result<(ApiResource, String), Unscalable> {
    let asked = scaler.spec.as_ref().map(|spec| &spec.scale_target_ref);
    let (kind, version, name) = asked.map_or(("", "", ""), |asked| {
        let version = asked.api_version.as_deref().unwrap_or_default();
        (asked.kind.as_str(), version, asked.name.as_str())
    });
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let mut all = registry::all().iter();
    let found = all.find(|one| one.kind == kind && (one.group == group || version.is_empty()));
    let Some(found) = found.filter(|found| found.scale.is_some()) else {
        let scaled: Vec<&str> = registry::all()
            .iter()
            .filter(|one| one.scale.is_some())
            .map(|one| one.kind)
            .collect();
        return Err(Unscalable::unread(format!(
            "spec.scaleTargetRef: {version:?} {kind:?} cannot be scaled; kinds with a scale: {}",
            scaled.join(", ")
        )));
    };
    Ok((api_resource(found), name.to_owned()))
}

fn usage_of(pod: DynamicObject) -> Option<(String, PodUsage)> {
    let name = pod.metadata.name?;
    let measured: PodMetrics = serde_json::from_value(pod.data).ok()?;
    let containers = measured.containers.into_iter().map(|container| {
        let used = container
            .usage
            .into_iter()
            .filter_map(|(resource, amount)| {
                let amount: Quantity = amount.parse().ok()?;
                Some((resource, amount.milli()))
            });
        (container.name, used.collect())
    });
    let usage = PodUsage {
        at: measured.timestamp,
        window: measured.window.parse().unwrap_or(SignedDuration::ZERO),
        containers: containers.collect(),
    };
    Some((name, usage))
}

fn reference(scaler: &HorizontalPodAutoscaler) -> ObjectReference {
    ObjectReference {
        // A list's items leave out what they are.
        api_version: Some("autoscaling/v2".to_owned()),
        kind: Some("HorizontalPodAutoscaler".to_owned()),
        ..scaler.object_ref(&())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaler(version: &str, kind: &str) -> HorizontalPodAutoscaler {
        serde_json::from_value(json!({
            "metadata": {"name": "s"},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": version, "kind": kind, "name": "t"}},
        }))
        .unwrap()
    }

    #[test]
    fn a_target_is_a_kind_with_a_scale() {
        for (version, kind, plural) in [
            ("apps/v1", "Deployment", "deployments"),
            ("apps/v1", "StatefulSet", "statefulsets"),
        ] {
            let (resource, name) = target(&scaler(version, kind)).unwrap();
            assert_eq!((resource.plural.as_str(), name.as_str()), (plural, "t"));
        }
        for (version, kind) in [
            ("v1", "Pod"),
            ("apps/v1", "DaemonSet"),
            ("x/v1", "Deployment"),
        ] {
            let Unscalable { reason, cause, .. } = target(&scaler(version, kind)).unwrap_err();
            assert_eq!(reason, "FailedGetScale");
            assert!(cause.contains("spec.scaleTargetRef") && cause.contains("Deployment"));
        }
    }

    #[test]
    fn pod_metrics_are_read_in_thousandths() {
        let pod: DynamicObject = serde_json::from_value(json!({
            "metadata": {"name": "p"}, "timestamp": "2026-01-02T03:04:05Z", "window": "15s",
            "containers": [{"name": "c", "usage": {"cpu": "250m", "memory": "1Ki", "nvidia.com/gpu": "1900m"}}],
        }))
        .unwrap();
        let (name, usage) = usage_of(pod).unwrap();
        assert_eq!((name.as_str(), usage.window.as_secs()), ("p", 15));
        let used = &usage.containers["c"];
        assert_eq!(used["cpu"], 250);
        assert_eq!(used["memory"], 1024 * 1000);
        assert_eq!(used["nvidia.com/gpu"], 1900);
    }
}
