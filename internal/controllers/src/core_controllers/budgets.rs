//! The loop that keeps PodDisruptionBudgets' statuses as [`resources::budget`] computes them. Pods
//! are watched only once there is a budget.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use resources::budget::{BudgetCounts, BudgetedPod, is_about};
use serde_json::{Value, json};

use super::access::unless_gone;
use super::mirror::{self, FieldMirror, ObjectKey, reference};
use super::stopped;
use super::work_queue::PendingKeys;
use crate::context::Context;
use crate::event_recorder::EventRecorder;
use crate::retry::guarded;

/// How many budgets are reconciled before the watches are read again.
const TAKE_MAX: usize = 64;
/// How long a change waits for others of the same budget: gangs start and end many pods at once.
const SETTLE: Duration = Duration::from_millis(200);

/// The fields of a pod that budgets need.
#[derive(Clone, Debug, PartialEq)]
struct BudgetMember {
    labels: BTreeMap<String, String>,
    standing: BudgetedPod,
}

impl BudgetMember {
    fn of(pod: Pod) -> BudgetMember {
        BudgetMember {
            standing: BudgetedPod::of(&pod),
            labels: pod.metadata.labels.unwrap_or_default(),
        }
    }
}

struct BudgetState {
    client: Client,
    notes: EventRecorder,
    budgets: FieldMirror<PodDisruptionBudget>,
    pods: FieldMirror<BudgetMember>,
    work: PendingKeys<ObjectKey>,
}

pub(crate) async fn run(mut ctx: Context) {
    let client = ctx.client.clone();
    let any = watcher::Config::default;
    let mut budgets = mirror::watch(Api::<PodDisruptionBudget>::all(client.clone()), any());
    let mut pods: BoxStream<'static, watcher::Event<Pod>> = stream::pending().boxed();
    let mut watching = false;
    let mut state = BudgetState {
        client: client.clone(),
        notes: EventRecorder::new(client.clone(), "disruption-controller"),
        budgets: FieldMirror::new(),
        pods: FieldMirror::new(),
        work: PendingKeys::new(),
    };
    loop {
        tokio::select! {
            () = stopped(&mut ctx.stop) => return,
            Some(event) = budgets.next() => {
                for change in state.budgets.take(event, |budget| budget) {
                    state.work.add_after(change.key, SETTLE);
                }
                if !watching && state.budgets.iter().next().is_some() {
                    watching = true;
                    pods = mirror::watch(Api::<Pod>::all(client.clone()), any());
                }
            }
            Some(event) = pods.next() => state.take_pod(event),
            () = state.work.ready(), if state.pods.synced() => state.act().await,
        }
    }
}

impl BudgetState {
    fn take_pod(&mut self, event: watcher::Event<Pod>) {
        for change in self.pods.take(event, BudgetMember::of) {
            let now = self.pods.get(&change.key);
            if now == change.before.as_ref() {
                continue;
            }
            for (key, budget) in self.budgets.in_namespace(&change.key.0) {
                let mut states = now.into_iter().chain(&change.before);
                if states.any(|member| is_about(budget, &member.labels)) {
                    self.work.add_after(key.clone(), SETTLE);
                }
            }
        }
    }

    async fn act(&mut self) {
        for key in self.work.take(TAKE_MAX) {
            match guarded(self.settle(&key)).await {
                Ok(()) => self.work.done(&key),
                Err(error) => {
                    let uid = self.budgets.get(&key).and_then(|b| b.metadata.uid.clone());
                    let about = reference("policy/v1", "PodDisruptionBudget", &key, uid);
                    self.notes.note_panic(&about, &error);
                    tracing::warn!(budget = ?key, %error, "the controller could not write a PodDisruptionBudget's status; it tries again");
                    self.work.failed(key);
                }
            }
        }
    }

    async fn settle(&self, key: &ObjectKey) -> kube::Result<()> {
        let Some(budget) = self.budgets.get(key) else {
            return Ok(());
        };
        let members = self.pods.in_namespace(&key.0).map(|(_, member)| member);
        let members = members.filter(|member| is_about(budget, &member.labels));
        let count = BudgetCounts::of(budget, members.map(|member| member.standing));
        let Some(status) = status(budget, count) else {
            return Ok(());
        };
        let api: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &key.0);
        let patch = Patch::Merge(json!({ "status": status }));
        unless_gone(
            api.patch_status(&key.1, &PatchParams::default(), &patch)
                .await,
        )?;
        Ok(())
    }
}

/// The new status, if it differs.
fn status(budget: &PodDisruptionBudget, count: BudgetCounts) -> Option<Value> {
    let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let wanted = (
        number(count.expected),
        number(count.healthy),
        number(count.desired),
        number(count.allowed()),
        budget.metadata.generation,
    );
    let status = budget.status.as_ref().map(|status| {
        (
            status.expected_pods,
            status.current_healthy,
            status.desired_healthy,
            status.disruptions_allowed,
            status.observed_generation,
        )
    });
    (status != Some(wanted)).then(|| {
        json!({
            "expectedPods": wanted.0, "currentHealthy": wanted.1, "desiredHealthy": wanted.2,
            "disruptionsAllowed": wanted.3, "observedGeneration": wanted.4,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_written_only_if_it_changed() {
        let mut budget: PodDisruptionBudget = serde_json::from_value(json!({
            "metadata": {"name": "b", "generation": 1},
            "spec": {"minAvailable": 2, "selector": {}},
        }))
        .unwrap();
        let count = BudgetCounts {
            expected: 4,
            healthy: 3,
            desired: 2,
        };
        let first = status(&budget, count).unwrap();
        assert_eq!(first["disruptionsAllowed"], 1);
        budget.status = serde_json::from_value(first).unwrap();
        assert_eq!(status(&budget, count), None);
    }
}
