//! Muster as the extender of a stock kube-scheduler: answers about nodes from the [`ReportBoard`], and the
//! binding with chosen devices. It handles that scheduler's pods and refuses Muster's own. The
//! server owns the extender's wire protocol.

use std::collections::BTreeSet;

use invariants::Violation;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use scheduler::{Bind, Event, GroupRef, Infeasible, PodRef};
use tokio::task::JoinError;

use super::binder::{self, is_bound};
use super::checked_planner::CheckedPlanner;
use super::queries::ReportBoard;

/// The victims of one node: its name, and the uids of the pods that would be evicted.
pub type NodeVictims = (String, BTreeSet<String>);

/// Why a pod of kube-scheduler was not bound. Each variant names the pod.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The API did not return the pod.
    #[error("{pod} cannot be read: {reason}")]
    Unread {
        /// The pod.
        pod: String,
        /// The API's error.
        reason: Box<kube::Error>,
    },
    /// A pod of the same name has replaced it.
    #[error("{0} was replaced by another pod of this name")]
    Replaced(String),
    /// The pod has a node already.
    #[error("{0} is already bound")]
    Bound(String),
    /// The pod is one of Muster's own.
    #[error(
        "{pod} names the scheduler {scheduler:?}, which is Muster itself; give it the name of a \
         kube-scheduler's profile, or leave it to Muster"
    )]
    OwnPod {
        /// The pod.
        pod: String,
        /// The scheduler that it names.
        scheduler: String,
    },
    /// The node cannot take the pod.
    #[error("{pod}: {reason}")]
    Infeasible {
        /// The pod.
        pod: String,
        /// Why not.
        reason: NoBind,
    },
    /// The API refused the binding.
    #[error("{pod} was not bound: {reason}")]
    Refused {
        /// The pod.
        pod: String,
        /// The API's answer.
        reason: String,
    },
    /// The task that binds the pod ended early.
    #[error(transparent)]
    Task(#[from] JoinError),
}

/// Why a node cannot take a pod of kube-scheduler.
#[derive(Debug, thiserror::Error)]
pub enum NoBind {
    /// The cluster was not listed yet.
    #[error("the scheduler is still listing the cluster; try again")]
    NotListed,
    /// The node lacks something that the pod needs.
    #[error("node {node}: {reason}")]
    Node {
        /// The node.
        node: String,
        /// What it lacks.
        reason: String,
    },
    /// The binding would break an invariant.
    #[error("{0}")]
    Invariant(Violation),
}

impl ReportBoard {
    /// Whether each of these nodes can take a pod that kube-scheduler places, or why not; in their
    /// order. None before the cluster was listed, because allocations are unknown until then.
    pub async fn extender_filter(
        &self,
        pod: Pod,
        nodes: Vec<String>,
    ) -> Option<Vec<Result<(), Infeasible>>> {
        self.ask_when_listed(move |planner| {
            let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
            planner.scheduler().extender_filter(&pod, &names)
        })
        .await
    }

    /// The score of each of these nodes for such a pod, from 0 to 10. None before the cluster was
    /// listed.
    pub async fn extender_scores(&self, pod: Pod, nodes: Vec<String>) -> Option<Vec<i64>> {
        self.ask_when_listed(move |planner| {
            let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
            planner.scheduler().extender_scores(&pod, &names)
        })
        .await
    }

    /// Which nodes can take such a pod once their victims are gone. None before the cluster was
    /// listed.
    pub async fn extender_filter_without(
        &self,
        pod: Pod,
        victims: Vec<NodeVictims>,
    ) -> Option<Vec<bool>> {
        self.ask_when_listed(move |planner| {
            let gone: Vec<(&str, BTreeSet<&str>)> = (victims.iter())
                .map(|(node, uids)| (node.as_str(), uids.iter().map(String::as_str).collect()))
                .collect();
            planner.scheduler().extender_filter_without(&pod, &gone)
        })
        .await
    }

    /// Binds a pod to the node that kube-scheduler chose, with devices chosen there. The caller
    /// must run it to its end and not drop it once begun.
    ///
    /// # Errors
    /// Why the pod is not bound; kube-scheduler then tries it again.
    pub async fn bind_for_extender(
        &self,
        client: &Client,
        pod: PodRef,
        node: String,
    ) -> Result<(), BindError> {
        let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
        let name = format!("pod {}/{}", pod.namespace, pod.name);
        let found = api.get(&pod.name).await;
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                let reason = Box::new(error);
                return Err(BindError::Unread { pod: name, reason });
            }
        };
        self.may_bind(&name, &pod, &found)?;
        let decide = move |planner: &mut CheckedPlanner| planner.bind_for_extender(found, &node);
        let bind = self.ask_when_listed(decide).await;
        let bind = match bind.unwrap_or(Err(NoBind::NotListed)) {
            Ok(bind) => bind,
            Err(reason) => return Err(BindError::Infeasible { pod: name, reason }),
        };
        let outcome = binder::bind(client.clone(), bind).await;
        self.tally().bound(outcome.refused.is_some());
        let Some(refused) = outcome.refused else {
            return Ok(());
        };
        // The API's current state decides: the pod may be bound to another node.
        let now = match refused.found {
            Some(found) if is_bound(&found) => Event::PodChanged(Box::new(found)),
            _ => Event::PodGone(pod.namespace, pod.name),
        };
        self.ask_when_listed(move |planner| planner.apply(now))
            .await;
        Err(BindError::Refused {
            pod: name,
            reason: refused.why,
        })
    }

    fn may_bind(&self, name: &str, meant: &PodRef, found: &Pod) -> Result<(), BindError> {
        if found.metadata.uid.as_deref() != Some(meant.uid.as_str()) {
            return Err(BindError::Replaced(name.to_owned()));
        }
        if is_bound(found) {
            return Err(BindError::Bound(name.to_owned()));
        }
        let spec = found.spec.as_ref();
        let scheduler = spec.and_then(|spec| spec.scheduler_name.as_deref());
        let scheduler = scheduler.unwrap_or_default();
        let own = &self.config().scheduler_names;
        if own.iter().any(|own| own == scheduler) {
            return Err(BindError::OwnPod {
                pod: name.to_owned(),
                scheduler: scheduler.to_owned(),
            });
        }
        Ok(())
    }

    /// Asks the planner, once everything was listed.
    async fn ask_when_listed<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut CheckedPlanner) -> T + Send + 'static,
    ) -> Option<T> {
        if !self.counts().listed {
            return None;
        }
        self.ask(move |planner| Some(question(planner))).await
    }
}

impl CheckedPlanner {
    /// Chooses devices for a pod of another scheduler on the node that this scheduler chose, and
    /// counts the pod as bound there.
    fn bind_for_extender(&mut self, pod: Pod, node: &str) -> Result<Bind, NoBind> {
        let devices = self.scheduler().extender_devices(&pod, node);
        let devices = devices.map_err(|no| NoBind::Node {
            node: node.to_owned(),
            reason: no.why,
        })?;
        let meta = &pod.metadata;
        let or_empty = |field: &Option<String>| field.clone().unwrap_or_default();
        let pod_ref = PodRef {
            namespace: or_empty(&meta.namespace),
            name: or_empty(&meta.name),
            uid: or_empty(&meta.uid),
        };
        let bind = Bind {
            group: GroupRef {
                namespace: pod_ref.namespace.clone(),
                name: pod_ref.name.clone(),
                lone: true,
            },
            pod: pod_ref,
            node: node.to_owned(),
            devices,
            volumes: Vec::new(),
        };
        self.check_foreign_bind(&pod, &bind)
            .map_err(NoBind::Invariant)?;
        self.apply(Event::PodChanged(Box::new(binder::bound(pod, &bind))));
        Ok(bind)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn pod(name: &str, gpus: u32) -> Pod {
        read(json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name},
            "spec": {"schedulerName": "default-scheduler", "containers": [
                {"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]},
        }))
    }

    fn planner() -> CheckedPlanner {
        let config = scheduler::Config {
            scheduler_names: vec!["muster".to_owned()],
            ..scheduler::Config::default()
        };
        let mut planner = CheckedPlanner::new(&config);
        let gpus: Vec<_> = (0..2)
            .map(|i| json!({"id": format!("g{i}"), "index": i, "healthy": true}))
            .collect();
        planner.apply(Event::NodeChanged(read(json!({
            "metadata": {"name": "n1",
                "annotations": {"muster.io/inventory": json!({"gpus": gpus}).to_string()}},
            "status": {"allocatable": {"cpu": "8", "pods": "110", "nvidia.com/gpu": "2"}},
        }))));
        planner
    }

    #[test]
    fn two_pods_bound_one_after_the_other_never_get_the_same_device() {
        let mut planner = planner();
        let first = planner.bind_for_extender(pod("a", 1), "n1").unwrap();
        let second = planner.bind_for_extender(pod("b", 1), "n1").unwrap();
        let given = |bind: &Bind| bind.devices["main"]["nvidia.com/gpu"].clone();
        assert_eq!(
            (given(&first), given(&second)),
            (vec!["g0".to_owned()], vec!["g1".to_owned()])
        );
        let full = planner.bind_for_extender(pod("c", 1), "n1").unwrap_err();
        assert_eq!(full.to_string(), "node n1: Insufficient nvidia.com/gpu");
        // The API refused the first binding: its devices are free again.
        planner.apply(Event::PodGone("ns".to_owned(), "a".to_owned()));
        let third = planner.bind_for_extender(pod("c", 1), "n1").unwrap();
        assert_eq!(given(&third), ["g0"]);
    }

    #[test]
    fn a_bind_that_would_break_an_invariant_is_refused_and_holds_nothing() {
        let mut planner = planner();
        planner.update_check_only(&read(json!({
            "metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "8", "pods": "110"}},
        })));
        let refused = planner.bind_for_extender(pod("a", 1), "n1").unwrap_err();
        assert!(matches!(refused, NoBind::Invariant(_)), "{refused}");
        assert!(refused.to_string().starts_with("I"), "{refused}");
        assert!(planner.scheduler().extender_filter(&pod("a", 2), &["n1"])[0].is_ok());
    }
}
